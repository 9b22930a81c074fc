"""Whatever the kernel stores straight from a socket's bytes, the full decoder understands the same way.

Two ways lead to the log: `Log.feed` for plain sends it is sure of, and codec, send processor and store for the rest.
For headers of every kind, sound and mutated, each one that the short way serves must be one that the long way serves
too, with an equal record. `TALLYSTICK_SLOW=20` runs twenty times as many examples.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from engine_lab import BORN_MS, HOST, PEER, json_frame
from fake_broker import FakeBroker, FakeChannel
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tallystick.node.broker.processors.send import SendProcessor
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.remoting.codec import decode
from tallystick.node.remoting.errors import FrameError
from tallystick.node.remoting.frames import FrameSplitter
from tallystick.store._kernel import Door, Log
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record

SLOW = int(os.environ.get("TALLYSTICK_SLOW", "1"))
BUDGET = settings(max_examples=400 * SLOW, suppress_health_check=list(HealthCheck))
CLUSTER = "C1"


def short_way(folder: Path, stream: bytes) -> tuple[list[Record], list[tuple[int, bytes, bytes]], str | None]:
    """What `feed` stores, leaves, and says of the stream."""
    log = Log(
        Door(),
        str(folder),
        segment_bytes=1 << 20,
        max_message_bytes=4 << 20,
        store_host=HOST.encode(),
        suffix=f"CLUSTER\x01{CLUSTER}\x02".encode(),
        region="DefaultRegion",
    )
    log.start(0, 0)
    log.set_hot(True)
    log.set_topic(b"T", 4)
    served, cold, fault = log.feed(log.connect(PEER.encode()), stream, BORN_MS + 5)
    log.write_out()
    records, at = [], 0
    path = folder / f"{0:020}"
    data = path.read_bytes() if path.exists() else b""
    while at < log.written:
        records.append(Record.decode(data, at))
        at += records[-1].size
    assert len(records) == served
    path.unlink(missing_ok=True)
    return records, cold or [], fault


def long_way(header_type: int, header: bytes, body: bytes) -> Record:
    """The record that codec and send processor make of a frame. Fails if they refuse it."""
    command = decode(header_type, header, body)
    broker = FakeBroker()
    broker.topics.update(TopicConfig("T", 4, 4))
    answer = asyncio.run(_send(broker, command))
    assert answer is None or answer.code == 0, f"the long way answers {answer.code}: {answer.remark}"
    (record,) = broker.store.records()
    return record


async def _send(broker: FakeBroker, command: Any) -> Any:
    channel = FakeChannel()
    channel.remote = PEER
    return await SendProcessor(broker).routes()[command.code](channel, command)  # type: ignore[arg-type, misc]


def compare(folder: Path, header_type: int, header: bytes, body: bytes) -> bool:
    """Whether the short way serves it; fails if the long way sees something else in it."""
    records, _, fault = short_way(folder, json_frame(header, body, header_type))
    assert fault is None
    if not records:
        return False
    (short,) = records
    long = long_way(header_type, header, body)
    same: dict[str, Any] = {"pos": 0, "store_timestamp_ms": 0, "store_host": HOST, "properties": ""}
    assert short._replace(**same) == long._replace(**same)
    # A name that comes twice is stored twice, or once: its last value holds either way.
    assert properties.decode(short.properties) == properties.decode(long.properties)
    return True


odd = st.sampled_from(
    [
        *(
            "",
            "0",
            "1",
            "3",
            "4",
            "-1",
            "-0",
            "00",
            "+1",
            " 1",
            "1 ",
            "1_0",
            "1.0",
            "0x1",
            "x",
            "\u0661",
            "null",
            "true",
            "false",
        ),
        *("2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808"),
        *(
            "999999999999999999",
            "1000000000000000000",
            "T",
            "t",
            "TBW102",
            "\x00",
            "\x01",
            "\x02",
            "é",
            "\ud83d\ude00",
            "\\",
        ),
        *("KEYS\x01a b\x02", "TAGS\x01A", "a\x01b\x02a\x01c\x02", "a\x01", "\x01b\x02", "\x02", "a\x01b\x01c\x02"),
        *("WAIT\x01true\x02", "WAIT\x01false\x02", "DELAY\x011\x02", "CLUSTER\x01x\x02", "TRAN_MSG\x01true\x02"),
        *("wait\x01false\x02", "UNIQ_KEY\x01u\x02TAGS\x01é\x02", "UNIQ_KEY\x01\x02", "TIMER_DELAY_SEC\x011\x02"),
    ]
)
texts = odd | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
fields = st.dictionaries(st.sampled_from([*"abcdefghijklmn", "bname", "ns", "o", "AccessKey", ""]), texts, max_size=3)
numbers = st.sampled_from([0, 1, 2, 3, -1, 310, 320, 1 << 31, -(1 << 31), 1 << 40, 1.0, "1", "x", None, True, [], {}])
tops = st.dictionaries(
    st.sampled_from(["flag", "opaque", "version", "language", "remark", "serializeTypeCurrentRPC", "x", "code"]),
    numbers,
    max_size=2,
)


def plain() -> dict[str, str]:
    return {
        **{"a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": str(BORN_MS), "h": "7"},
        **{"i": "TAGS\x01A\x02UNIQ_KEY\x01u\x02", "j": "0", "k": "false", "m": "false"},
    }


def mutate(data: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    """Replaces slices: each is (place, length, with what)."""
    for place, length, new in cuts:
        at = place % (len(data) + 1)
        data = data[:at] + new + data[at + length :]
    return data


mutations = st.lists(
    st.tuples(
        st.integers(0, 1 << 16),
        st.integers(0, 3),
        st.binary(max_size=3)
        | st.sampled_from([b'"', b"\\", b"\\u0041", b"\\ud800", b"{", b"}", b",", b":", b" ", b"\n", b"0", b"-"]),
    ),
    max_size=2,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@given(
    fields,
    tops,
    st.sets(st.sampled_from("abcdefghijklm"), max_size=1),
    st.booleans(),
    mutations,
    st.binary(max_size=20),
)
@settings(BUDGET)
@example({}, {}, set(), True, [], b"body")
@example({"d": "99999999999"}, {}, set(), True, [], b"")
@example({"l": "x"}, {}, set(), True, [], b"")
@example({}, {"version": 1 << 40}, set(), True, [], b"")
@example({}, {"version": "x"}, set(), True, [], b"")
@example({"a": "\xff"}, {}, set(), False, [(20, 1, b"\xff")], b"")
@example({"n": ""}, {"remark": "x"}, set(), False, [], b"")
@example({"bname": "\x1f"}, {}, set(), False, [(194, 0, b"\x00")], b"")
def test_json_headers(folder, ext, top, without, escape, cuts, body) -> None:
    named = {name: value for name, value in (plain() | ext).items() if name not in without}
    command = {"code": 310, "extFields": named, "flag": 0, "language": "JAVA", "opaque": 9, "version": 373} | top
    text = json.dumps(command, ensure_ascii=escape, separators=(",", ":"))
    compare(folder, 0, mutate(text.encode("utf-8", "surrogatepass"), cuts), body)


def binary_header(ext: dict[str, str], code: int, flag: int, language: int, version: int) -> bytes:
    parts = b""
    for name, value in ext.items():
        key, text = name.encode(), value.encode("utf-8", "surrogatepass")
        parts += len(key).to_bytes(2, "big") + key + len(text).to_bytes(4, "big") + text
    head = code.to_bytes(2, "big") + bytes([language]) + version.to_bytes(2, "big", signed=True)
    head += (9).to_bytes(4, "big") + flag.to_bytes(4, "big", signed=True) + bytes(4)
    return head + len(parts).to_bytes(4, "big") + parts


@given(
    fields,
    st.sets(st.sampled_from("abcdefghijklm"), max_size=1),
    st.sampled_from([0, 2, 1, 3, 4, -1]),
    st.integers(0, 255),
    st.integers(-(1 << 15), (1 << 15) - 1),
    mutations,
    st.binary(max_size=20),
)
@settings(BUDGET)
@example({}, set(), 0, 0, 373, [], b"body")
@example({"a": "x"}, set(), 0, 200, -1, [(30, 1, b"\xff")], b"")
def test_binary_headers(folder, ext, without, flag, language, version, cuts, body) -> None:
    named = {name: value for name, value in (plain() | ext).items() if name not in without}
    compare(folder, 1, mutate(binary_header(named, 310, flag, language, version), cuts), body)


def test_the_remark_of_a_binary_header_is_not_parsed_as_fields(folder) -> None:
    """A remark may hold what looks like the length of the fields, and fields, of which the last one takes in the true
    ones."""
    header = binary_header(plain(), 310, 0, 0, 373)
    rest = header[17:]
    others = {name: value for name, value in plain().items() if name != "c"} | {"e": "1"}
    false = binary_header(others, 310, 0, 0, 373)[21:] + b"\0\1c" + len(rest).to_bytes(4, "big")
    remark = (len(false) + len(rest)).to_bytes(4, "big") + false
    assert not compare(folder, 1, header[:13] + len(remark).to_bytes(4, "big") + remark + rest, b"x")


def test_the_examples_reach_the_short_way(folder) -> None:
    assert compare(folder, 0, json.dumps({"code": 310, "extFields": plain(), "flag": 0, "opaque": 9}).encode(), b"x")
    assert compare(folder, 1, binary_header(plain(), 310, 0, 0, 373), b"x")


@pytest.mark.parametrize("sys_flag", [-(1 << 31), -1, (1 << 31) - 1, 1 << 20])
def test_both_ways_keep_bits_of_a_system_flag_that_have_no_name(folder, sys_flag) -> None:
    fields = plain() | {"f": str(sys_flag & ~0xC)}  # no transaction: the long way alone takes those
    assert compare(folder, 0, json.dumps({"code": 310, "extFields": fields, "flag": 0, "opaque": 9}).encode(), b"x")


@given(
    st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=30), st.integers(0, 3)), max_size=5),
    mutations,
    st.randoms(use_true_random=False),
)
@settings(BUDGET)
def test_streams_are_cut_as_the_plain_splitter_cuts_them(folder, frames, cuts, random) -> None:
    stream = mutate(b"".join(json_frame(header, body, kind) for header, body, kind in frames), cuts)
    splitter, expected, broken = FrameSplitter(), [], False
    try:
        expected = [tuple(frame) for frame in splitter.feed(stream)]
    except FrameError as error:
        expected, broken = [tuple(frame) for frame in error.frames], True
    _, whole, fault = short_way(folder, stream)
    # An unknown header type breaks the splitter's stream; the kernel leaves the frame to the decoder.
    assert whole[: len(expected)] == expected
    assert broken or len(whole) == len(expected)
    # The kernel sees a wrong length with its four bytes, the splitter with the four behind them.
    left = len(stream) - sum(8 + len(header) + len(body) for _, header, body in whole)
    assert fault is None or broken or left < 8
    if broken and fault is None and len(whole) > len(expected):
        assert whole[len(expected)][0] > 1

    log = Log(
        Door(),
        str(folder),
        segment_bytes=1 << 20,
        max_message_bytes=4 << 20,
        store_host=HOST.encode(),
        suffix=b"",
        region="r",
    )
    connection, found, rest = log.connect(PEER.encode()), [], stream
    while rest:
        size = random.randint(1, len(rest))
        _, cold, fault = log.feed(connection, rest[:size], 0)
        found += cold or []
        rest = rest[size:] if fault is None else b""
    assert found == whole
