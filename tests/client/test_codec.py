"""Commands and their bytes: RocketMQ's own samples, every recorded frame, and whatever else may come over a wire."""

import base64
import json
import lzma
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.wire.codec import MAX_FIELDS, MAX_FRAME, MAX_HEADER, decode, encode, encode_head
from tallystick.client.wire.command import LANGUAGES, Command, HeaderType
from tallystick.client.wire.errors import FrameError, HeaderError
from tallystick.client.wire.frames import Frame, FrameSplitter

# Printed by RocketMQ 4.8.0's own classes.
PULL_FIELDS = {
    "queueId": "0",
    "maxMsgNums": "32",
    "sysFlag": "2",
    "suspendTimeoutMillis": "15000",
    "commitOffset": "0",
    "topic": "T",
    "queueOffset": "5",
    "subVersion": "1",
    "consumerGroup": "g",
}
SAMPLES = [
    (
        Command(11, 258, 0, "JAVA", 0, None, PULL_FIELDS, b"B"),
        "00000116000001117b22636f6465223a31312c226578744669656c6473223a7b2271756575654964223a2230222c226d61784d73674e756d"
        "73223a223332222c22737973466c6167223a2232222c2273757370656e6454696d656f75744d696c6c6973223a223135303030222c22636f"
        "6d6d69744f6666736574223a2230222c22746f706963223a2254222c2271756575654f6666736574223a2235222c2273756256657273696f"
        "6e223a2231222c22636f6e73756d657247726f7570223a2267227d2c22666c6167223a302c226c616e6775616765223a224a415641222c22"
        "6f7061717565223a3235382c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a30"
        "7d42",
        "000000bd010000b8000b000000000001020000000000000000000000a30007717565756549640000000130000a6d61784d73674e756d7300"
        "00000233320007737973466c61670000000132001473757370656e6454696d656f75744d696c6c6973000000053135303030000c636f6d6d"
        "69744f666673657400000001300005746f7069630000000154000b71756575654f66667365740000000135000a73756256657273696f6e00"
        "00000131000d636f6e73756d657247726f7570000000016742",
    ),
    (
        Command(0, 258, 1, "JAVA", 0, "ok"),
        "000000710000006d7b22636f6465223a302c22666c6167223a312c226c616e6775616765223a224a415641222c226f7061717565223a3235"
        "382c2272656d61726b223a226f6b222c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f"
        "6e223a307d",
        "0000001b0100001700000000000000010200000001000000026f6b00000000",
    ),
    (
        Command(15, 1, 2, "JAVA", 0),
        "000000620000005e7b22636f6465223a31352c22666c6167223a322c226c616e6775616765223a224a415641222c226f7061717565223a31"
        "2c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a307d",
        "0000001901000015000f00000000000001000000020000000000000000",
    ),
]
# Traffic between RocketMQ 4.8.0's own clients, broker and name server.
RECORDINGS = ["send", "consume", "pull", "transaction", "admin", "mqadmin", "register"]


def recorded(golden_folder: Path, name: str) -> Iterator[dict[str, Any]]:
    path = golden_folder / "wire" / f"{name}.jsonl.xz"
    if not path.is_file():
        pytest.skip(f"needs the recorded frames {path}")
    with lzma.open(path) as lines:
        yield from map(json.loads, lines)


def raw_frame(row: dict[str, Any]) -> bytes:
    header, body = base64.b64decode(row["raw"]), base64.b64decode(row["body"])
    return struct.pack(">II", 4 + len(header) + len(body), row["serializeType"] << 24 | len(header)) + header + body


@pytest.mark.parametrize(("command", "as_json", "as_binary"), SAMPLES)
def test_the_samples_of_rocketmq_both_ways(command: Command, as_json: str, as_binary: str) -> None:
    for kind, text in ((HeaderType.JSON, as_json), (HeaderType.ROCKETMQ, as_binary)):
        command.header_type = kind
        frame = bytes.fromhex(text)
        assert [decode(*found) for found in FrameSplitter().feed(frame)] == [command]
        assert encode(command) == frame
        assert encode_head(command) + command.body == frame


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_recorded_frame_decodes_and_encodes_to_the_same_bytes(golden_folder: Path, name: str) -> None:
    count = 0
    for row in recorded(golden_folder, name):
        raw = raw_frame(row)
        (frame,) = FrameSplitter().feed(raw)
        command = decode(*frame)
        assert (command.code, command.opaque) == (row["header"]["code"], row["header"]["opaque"])
        assert encode(command) == raw
        command.header_type = HeaderType.ROCKETMQ
        (binary,) = FrameSplitter().feed(encode(command))
        again = decode(*binary)
        if command.ext == {}:
            command.ext = None  # the binary header cannot tell no fields from an empty set of them
        assert again == command
        count += 1
    assert count


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
commands = st.builds(
    Command,
    st.integers(-(2**15), 2**15 - 1),
    int32,
    int32,
    st.sampled_from(LANGUAGES),
    st.integers(0, 2**15 - 1),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    st.none() | st.dictionaries(text, text, min_size=1, max_size=5),
    st.binary(max_size=50),
    st.sampled_from(HeaderType),
)


@given(st.lists(commands, max_size=5), st.integers(1, 40))
def test_a_stream_of_commands_comes_through_in_chunks_of_any_size(sent: list[Command], chunk: int) -> None:
    stream = b"".join(map(encode, sent))
    splitter = FrameSplitter()
    got = [frame for at in range(0, len(stream), chunk) for frame in splitter.feed(stream[at : at + chunk])]
    assert [decode(*frame) for frame in got] == sent


def json_command(header: str | bytes) -> Command:
    return decode(0, header if isinstance(header, bytes) else header.encode(), b"")


def test_a_json_header_is_read_with_patience() -> None:
    command = json_command(
        "{'code':'11',opaque:7,extFields:{queueId:3,all:true,rate:1.5,none:null,5:{a:[1]}},remark:404,"
        "language:'KLINGON',flag:null,more:{},}"
    )
    assert command == Command(
        11,
        opaque=7,
        language=None,
        version=0,
        remark="404",
        ext={"queueId": "3", "all": "true", "rate": "1.5", "5": '{"a":[1]}'},
    )
    assert json_command("{}") == Command(0, language=None, version=0)


@pytest.mark.parametrize("number", ["2147483648", "-2147483649", "true", "1.0", "'x'", "[]", "'99999999999999999999'"])
@pytest.mark.parametrize("field", ["code", "opaque", "flag", "version"])
def test_a_number_of_the_header_has_32_bits(field: str, number: str) -> None:
    with pytest.raises(HeaderError, match=field):
        json_command(f"{{{field}:{number}}}")


@pytest.mark.parametrize(
    "header", ["", "[]", "7", "nonsense", "{'extFields':[]}", "{'a':" * 2000, '{"a":' * 500 + "1" + "}" * 500 + "}"]
)
def test_what_is_no_json_header_is_a_header_error(header: str) -> None:
    with pytest.raises(HeaderError):
        json_command(header)


def test_a_deep_value_in_a_field_is_a_header_error() -> None:
    deep = '{"code":1,"extFields":{"a":' + '{"a":' * 300 + "1" + "}" * 302
    with pytest.raises(HeaderError, match="nested deeper"):
        json_command(deep)


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ("00" * 20, "of 20 bytes"),
        ("000b000000000001020000000000000004" + "00" * 4, "remark of 4"),
        ("000b0000000000010200000000ffffffff" + "00" * 4, "remark of -1"),
        ("000b000000000001020000000000000000" + "00000001", "fields of 1"),
        ("000b000000000001020000000000000000" + "ffffffff", "fields of -1"),
        ("000b000000000001020000000000000000" + "00000003" + "000100", "torn field"),
        ("000b000000000001020000000000000000" + "00000007" + "00024100000000", "name of 2"),
        ("000b000000000001020000000000000000" + "00000007" + "ffff4100000000", "name of -1"),
        ("000b000000000001020000000000000000" + "00000007" + "00014100000001", "field of 1 bytes"),
        ("000b000000000001020000000000000000" + "00000007" + "000141ffffffff", "field of -1 bytes"),
    ],
)
def test_the_lengths_in_a_binary_header_are_checked(header: str, match: str) -> None:
    with pytest.raises(HeaderError, match=match):
        decode(1, bytes.fromhex(header), b"")


def test_an_unknown_language_is_absent_in_both_forms() -> None:
    assert decode(1, bytes.fromhex("000b630175" + "00" * 16), b"").language is None
    assert json_command('{"language":"KLINGON"}').language is None
    (frame,) = FrameSplitter().feed(encode(Command(1, language=None, header_type=HeaderType.ROCKETMQ)))
    assert decode(*frame).language == "OTHER"


def test_what_a_binary_header_cannot_say() -> None:
    for command in (Command(200_050), Command(1, ext={"k" * 40_000: ""})):
        assert encode(command)
        command.header_type = HeaderType.ROCKETMQ
        with pytest.raises(HeaderError, match="does not fit"):
            encode(command)


def test_half_a_surrogate_pair_does_not_stop_an_answer() -> None:
    for kind in HeaderType:
        (frame,) = FrameSplitter().feed(encode(Command(1, remark="caf\udce9", header_type=kind)))
        assert (decode(*frame).remark or "").startswith("caf")


@pytest.mark.parametrize(
    ("head", "match"),
    [
        (struct.pack(">iI", -1, 0), "negative length -1"),
        (struct.pack(">iI", 0, 0), "header of 0 bytes in a frame that ends 0 bytes"),
        (struct.pack(">iI", 3, 0), "ends 3 bytes"),
        (struct.pack(">iI", 9, 6), "header of 6 bytes"),
        (struct.pack(">iI", MAX_FRAME - 3, 0), f"frame of {MAX_FRAME + 1} bytes"),
        (struct.pack(">iI", 20, 2 << 24), "header type 2"),
        (b"HTTP/1.1 400 Bad Request\r\n", "text that begins with 'HTTP', which is not a frame"),
        (b"\xff\xff\xff\xffGET / HTTP/1.1\r\n", "negative length -1"),
    ],
)
def test_the_lengths_of_a_frame_are_checked_and_the_good_ones_before_it_kept(head: bytes, match: str) -> None:
    good = encode(Command(34, body=b"heartbeat"))
    for cut in range(0, len(good) + 1, 7):
        splitter = FrameSplitter()
        assert splitter.feed(good[:cut]) in ([], [Frame(0, good[8:-9], b"heartbeat")])
        with pytest.raises(FrameError, match=match) as caught:
            splitter.feed(good[cut:] + head)
        assert len(caught.value.frames) == (cut < len(good))


def test_the_largest_frame_goes_through_and_one_byte_more_does_not() -> None:
    command = Command(1)
    command.body = bytes(MAX_FRAME - len(encode_head(command)))
    frame = encode(command)
    assert len(frame) == MAX_FRAME
    splitter = FrameSplitter()
    got = [found for at in range(0, MAX_FRAME, 65536) for found in splitter.feed(frame[at : at + 65536])]
    assert len(got) == 1 and got[0].body == command.body
    command.body += b"\0"
    with pytest.raises(FrameError, match="are allowed"):
        encode(command)


def test_ten_thousand_broken_frames_are_only_ever_frame_or_header_errors(golden_folder: Path) -> None:
    """A fixed budget of damage from one seed: bytes flipped, cut out, put in, lengths overwritten, pure noise."""
    source = random.Random(48)
    frames = [raw_frame(row) for name in ("send", "admin", "register") for row in recorded(golden_folder, name)]
    binary = [decode(*FrameSplitter().feed(frame)[0]) for frame in frames[::7]]
    for command in binary:
        command.header_type = HeaderType.ROCKETMQ
    frames += map(encode, binary)
    outcomes = {"fine": 0, "frame": 0, "header": 0}
    for _ in range(10_000):
        data = damaged(source, source.choice(frames))
        try:
            splitter = FrameSplitter()
            cut = source.randrange(len(data) + 1)
            for frame in splitter.feed(data[:cut]) + splitter.feed(data[cut:]):
                encode(decode(*frame))
            outcomes["fine"] += 1
        except FrameError:
            outcomes["frame"] += 1
        except HeaderError:
            outcomes["header"] += 1
    assert all(count > 500 for count in outcomes.values()), outcomes


def damaged(source: random.Random, frame: bytes) -> bytes:
    data = bytearray(frame)
    header_end = min(len(data), 8 + (int.from_bytes(data[4:8], "big") & 0xFFFFFF))
    for _ in range(source.randint(1, 4)):
        at = source.randrange(8, max(9, header_end))
        match source.randrange(8):
            case 0:
                data[at : at + 1] = bytes([source.randrange(256)])
            case 1:
                del data[at : at + source.randrange(20)]
            case 2:
                data[at:at] = source.choice([b"{", b"[", b'"', b"\\", b"\xff", b"\x00", b"{" * 300, b"9" * 500])
            case 3:
                field = source.choice([0, 4])
                data[field : field + 4] = source.choice(
                    [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", source.randbytes(4)]
                )
            case 4:
                del data[source.randrange(len(data)) :]
                data += bytes(max(0, 8 - len(data)))
            case 5:
                data[at : at + 4] = struct.pack(">i", source.choice([-1, -(2**31), 2**31 - 1, 0, 1000]))
            case 6:
                data[4] = source.choice([0, 1])
            case _:
                data += source.randbytes(source.randrange(30))
    if source.random() < 0.5:  # lengths that fit, so that the damage is looked at
        header_size = min(header_end, len(data)) - 8
        data[0:4] = struct.pack(">I", len(data) - 4)
        data[5:8] = struct.pack(">I", max(0, header_size))[1:]
    return bytes(data)


def test_a_header_that_would_take_long_to_read_is_refused() -> None:
    """Reading it costs its receiver much more than its sender: it is refused by its size."""
    wide = {f"f{number}": "x" for number in range(MAX_FIELDS + 1)}
    lenient = b'{code:11,"extFields":{"a":[' + b'{"a":1},' * 10_000 + b"]}}"
    for header_type, header, reason in (
        (HeaderType.JSON, b'{"code":11,"remark":"' + b"x" * MAX_HEADER + b'"}', "a header of"),
        (HeaderType.JSON, json.dumps({"code": 11, "extFields": wide}).encode(), "extFields"),
        (HeaderType.JSON, lenient, "strict JSON"),
        (HeaderType.ROCKETMQ, _binary(wide), "more than"),
        (HeaderType.ROCKETMQ, _binary({"a": "x" * MAX_HEADER}), "a header of"),
    ):
        with pytest.raises(HeaderError, match=reason):
            decode(header_type, header, b"")
    wide.popitem()
    assert decode(HeaderType.JSON, json.dumps({"code": 11, "extFields": wide}).encode(), b"").ext == wide
    assert decode(HeaderType.ROCKETMQ, _binary(wide), b"").ext == wide
    properties = "\\ud800" + "x" * 32_000
    text = b'{"code":310,"extFields":{"i":"' + properties.encode() + b'"}}'
    assert len(decode(HeaderType.JSON, text, b"").ext["i"]) == 32_001, "a message with a lone surrogate"


def _binary(ext: dict[str, str]) -> bytes:
    frame = encode(Command(11, ext=ext, header_type=HeaderType.ROCKETMQ))
    return frame[8 : 8 + int.from_bytes(frame[5:8], "big")]
