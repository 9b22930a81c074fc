"""Bad input against a real `tally run`: answered as RocketMQ's clients expect, or the connection closed; never more.

After each test the process serves a send and a pull on a new connection. The floods at the end look at its memory,
descriptors and log lines. One process serves all tests of the module; seeds are fixed.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_lab import batch_body, json_frame, send_header
from tally_process import TallyProcess

from tallystick.node.remoting.codes import RequestCode

pytestmark = pytest.mark.process

ANSWER_S = 10.0
CLOSED = "closed"


class Wire:
    """One connection, without any of our own code on it."""

    def __init__(self, address: str, *, small: bool = False) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if small:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(ANSWER_S)
        self.socket.connect((host, int(port)))
        self._kept = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError):
            pass  # the other side may close while we still send: `answer` tells

    def _take(self, size: int) -> bytes:
        while len(self._kept) < size:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError
            self._kept += data
        taken, self._kept = self._kept[:size], self._kept[size:]
        return taken

    def answer(self) -> tuple[Any, bytes]:
        """Header and body of the next answer; (`CLOSED`, b"") if the connection ends instead."""
        header, body = self._frame()
        while header != CLOSED and not header["flag"] & 1:
            header, body = self._frame()  # the broker's own request: a consumer joined or left
        return header, body

    def _frame(self) -> tuple[Any, bytes]:
        try:
            total, mark = struct.unpack(">II", self._take(8))
            rest = self._take(total - 4)
        except EOFError:
            return CLOSED, b""
        header_bytes = mark & 0xFFFFFF
        header: Any = rest[:header_bytes]
        if mark >> 24 == 0:
            header = json.loads(header)
        else:
            code, _, _, opaque, flag = struct.unpack_from(">hBhii", header)
            header = {"code": code, "opaque": opaque, "flag": flag}
        return header, rest[header_bytes:]

    def ask(self, data: bytes) -> Any:
        self.send(data)
        return self.answer()[0]


def request(code: int, ext: Any = None, body: bytes = b"", **more: Any) -> bytes:
    header = {"code": code, "flag": 0, "language": "JAVA", "opaque": 7, "version": 373} | more
    if ext is not None:
        header["extFields"] = ext
    return json_frame(header, body)


def send_request(body: bytes = b"hello", *, without: str = "", **changes: Any) -> bytes:
    header = send_header(topic=changes.pop("topic", "T"), opaque=7)
    header["extFields"] |= changes
    header["extFields"].pop(without, None)
    return json_frame(header, body)


def pull(**changes: Any) -> dict[str, str]:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"}
    fields |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}
    return fields | {"subscription": "*", "expressionType": "TAG"} | changes


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TallyProcess]:
    with TallyProcess(tmp_path_factory.mktemp("tally")) as running:
        yield running
        assert running.end() == 0, running.log.read_text()[-4000:]
        log = running.log.read_text()
        assert "Traceback" not in log, log[-4000:]
        assert len(log.splitlines()) < 200, "a log line for each bad packet"


@pytest.fixture
def broker(process: TallyProcess) -> Iterator[str]:
    """The broker's address, with the topic that requests name; afterwards it must be as well as before."""
    address = process.places["broker"]
    with Wire(address) as wire:  # a process of pytest-xdist may begin with any test of this file
        assert wire.ask(send_request())["code"] == 0
    yield address
    assert process.process.poll() is None, process.log.read_text()[-4000:]
    with Wire(address) as wire:
        assert wire.ask(send_request())["code"] == 0
        assert wire.ask(request(11, pull()))["code"] in (0, 19, 20, 21)
    assert process.get("/healthz")[0] == process.get("/readyz")[0] == 200


def resident_kib(process: TallyProcess) -> int:
    """Anonymous memory: pages of mapped files come and go as the system likes."""
    for line in Path(f"/proc/{process.process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon")


def descriptors(process: TallyProcess) -> int:
    return len(os.listdir(f"/proc/{process.process.pid}/fd"))  # noqa: PTH208  # a name may vanish meanwhile


def settle(measure: Any, at_most: float, within_s: float = 10.0) -> None:
    """`measure()` comes down to `at_most`: connections that were closed take the process a moment."""
    deadline = time.monotonic() + within_s
    while (value := measure()) > at_most:
        assert time.monotonic() < deadline, (value, at_most)
        time.sleep(0.02)


# -- frames ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff" + bytes(20),
        b"\x00\x00\x00\x00" + bytes(20),
        b"\x00\x00\x00\x03" + bytes(20),
        b"\x7f\xff\xff\xff" + bytes(20),
        struct.pack(">II", 16_777_216 - 3, 4) + bytes(100),
        struct.pack(">II", 8, 5) + b"{}  ",
        struct.pack(">II", 8, 0xFFFFFF) + b"{}  ",
        struct.pack(">II", 6, 7 << 24 | 2) + b"{}",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(194),  # a whole record, which is no sound ClientHello
        bytes(random.Random(1).randbytes(4096)),
    ],
)
@pytest.mark.parametrize("port", ["broker", "name server"])
def test_invalid_frames_close_the_connection(process: TallyProcess, broker: str, port: str, data: bytes) -> None:
    with Wire(process.places[port]) as wire:
        assert wire.ask(data) == CLOSED


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"{" * 100_000,
        b"[" * 1_000_000,
        b'{"extFields":' * 50_000,
        b'{"code":310,"extFields":[],"opaque":1}',
        b'{"code":"x","opaque":1}',
        b'{"code":99999999999,"opaque":1}',
        b'{"code":310,"opaque":{}}',
        b"\xff\xfe\x00",
    ],
)
@pytest.mark.parametrize("port", ["broker", "name server"])
def test_invalid_headers_close_the_connection(process: TallyProcess, broker: str, port: str, header: bytes) -> None:
    with Wire(process.places[port]) as wire:
        assert wire.ask(json_frame(header)) == CLOSED


@pytest.mark.parametrize(
    "header",
    [
        b"",
        bytes(20),
        struct.pack(">hBhiii", 310, 0, 373, 7, 0, -1) + bytes(4),
        struct.pack(">hBhiii", 310, 0, 373, 7, 0, 1000) + bytes(4),
        struct.pack(">hBhiiii", 310, 0, 373, 7, 0, 0, 1000) + b"x",
        struct.pack(">hBhiiii", 310, 0, 373, 7, 0, 0, -5),
        struct.pack(">hBhiiii", 310, 0, 373, 7, 0, 0, 6) + struct.pack(">hi", -1, 0),
        struct.pack(">hBhiiii", 310, 0, 373, 7, 0, 0, 7) + struct.pack(">h", 1) + b"a" + struct.pack(">i", 1 << 30),
    ],
)
def test_invalid_binary_headers_close_the_connection(broker: str, header: bytes) -> None:
    with Wire(broker) as wire:
        assert wire.ask(json_frame(header, header_type=1)) == CLOSED


def test_what_came_before_the_bad_bytes_is_answered(broker: str) -> None:
    with Wire(broker) as wire:
        wire.send(request(30, {"topic": "T", "queueId": "0"}) * 3 + b"\xff" * 30)
        assert [wire.answer()[0]["code"] for _ in range(3)] == [0, 0, 0]
        assert wire.answer()[0] == CLOSED


def test_a_cut_frame_is_waited_for_and_then_forgotten(process: TallyProcess, broker: str) -> None:
    before = descriptors(process)
    frame = send_request(b"x" * 1000)
    for cut in (1, 3, 4, 7, 8, 100, len(frame) - 1):
        with Wire(broker) as wire:
            wire.send(frame[:cut])
    settle(lambda: descriptors(process), before)


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "code", "remark"),
    [
        (send_request(topic="nowhere", c="nope"), 17, "topic[nowhere] not exist"),
        (send_request(bytes((4 << 20) + 1)), 13, "illegal"),
        (send_request(topic="../../etc/passwd"), 1, "illegal characters"),
        (send_request(topic="a/b"), 1, "illegal characters"),
        (send_request(topic="a b"), 1, "illegal characters"),
        (send_request(topic="a\x00b"), 1, "illegal characters"),
        (send_request(topic="é"), 1, "illegal characters"),
        (send_request(topic="."), 1, "illegal characters"),
        (send_request(topic=""), 1, "blank"),
        (send_request(topic="t" * 128), 1, "longer than topic max length 127"),
        (send_request(topic="t" * 100_000), 1, "longer than topic max length 127"),
        (send_request(topic="SCHEDULE_TOPIC_XXXX"), 16, "forbidden"),
        (send_request(i="k\x01" + "v" * 32768 + "\x02"), 13, "properties"),
        (send_request(i="k\x01" + "é" * 16384 + "\x02"), 13, "properties"),
        (send_request(e="-1"), 0, ""),
        (send_request(e="-2147483648"), 0, ""),
        (send_request(e="99"), 1, "request queueId[99] is illegal"),
        (send_request(e="2147483648"), 1, "<e>"),
        (send_request(e="x"), 1, "<e>"),
        (send_request(e=None), 1, "the custom field <e> is null"),
        (send_request(e={"a": 1}), 1, "<e>"),
        (send_request(e=1), 0, ""),
        (send_request(g="99999999999999999999"), 1, "<g>"),
        (send_request(i="DELAY\x01x\x02"), 13, ""),
        (send_request(i="DELAY\x0199999999999\x02"), 13, ""),
        (send_request(b"", m="true"), 13, ""),
        (send_request(b"x" * 50, m="true"), 13, ""),
        (send_request(batch_body((b"a", b""))[:-1], m="true"), 13, ""),
        (send_request(b"\x7f\xff\xff\xff" * 10, m="true"), 13, ""),
        (send_request(batch_body((b"a", b"")) + bytes(3), m="true"), 13, ""),
        *((send_request(without=name), 1, f"the custom field <{name}> is null") for name in "abcdefgh"),
        (request(9999), 3, " request type 9999 not supported"),
        (request(-1), 3, " request type -1 not supported"),
        (request(0), 3, " request type 0 not supported"),
        (request(310), 1, "the custom field <a> is null"),
        (request(310, {}), 1, "the custom field <a> is null"),
        (request(11, pull(maxMsgNums="2147483647")), None, ""),
        (request(11, pull(maxMsgNums="-1")), None, ""),
        (request(11, pull(maxMsgNums="0")), None, ""),
        (request(11, pull(queueOffset="-9223372036854775808")), 21, ""),
        (request(11, pull(queueOffset="9223372036854775807")), 21, ""),
        (request(11, pull(queueOffset="9223372036854775808")), 1, "<queueOffset>"),
        (request(11, pull(queueId="-1")), 1, ""),
        (request(11, pull(queueId="99")), 1, ""),
        (request(11, pull(topic="../x")), 17, ""),
        (request(11, pull(topic="nowhere")), 17, ""),
        (request(11, pull(subscription="(" * 10_000)), None, ""),
        (request(11, pull(subscription="(" * 10_000, expressionType="SQL92")), 23, ""),
        (json_frame(b'{"code":310,"extFields":{"a":"\xff"},"opaque":7}'), 1, "<b> is null"),
        (request(11, pull(suspendTimeoutMillis="-1", sysFlag="4")), None, ""),
        (request(33, {"offset": "-1"}), 1, ""),
        (request(33, {"offset": "1"}), 1, ""),
        (request(33, {"offset": "9223372036854775807"}), 1, ""),
        (request(30, {"topic": "T", "queueId": "-5"}), None, ""),
        (request(29, {"topic": "T", "queueId": "2147483647", "timestamp": "-1"}), None, ""),
        (request(34, None, b"["), 1, ""),
        (request(34, None, b"[" * 100_000), 1, ""),
        (request(34, None, b'{"a":' * 100_000), 1, ""),
        (request(34, None, b'{"clientID":5,"consumerDataSet":{}}'), 1, ""),
        (request(34, None, bytes(1 << 20)), 1, ""),
        (request(17, {"topic": "../x", "defaultTopic": "TBW102", "perm": "6"}), 1, ""),
        (request(36, {"offset": "7", "group": "../g", "delayLevel": "-9"}), None, ""),
        (send_request().replace(b'"JAVA"', b'"KLINGON"').replace(b"\x00\x00\x00", b"\x00\x00\x00"), None, ""),
    ],
)
def test_requests_that_cannot_be_served_are_answered_why(
    broker: str, frame: bytes, code: int | None, remark: str
) -> None:
    total = len(frame) - 4
    header_bytes = int.from_bytes(frame[5:8], "big")
    if b'"KLINGON"' in frame:  # three letters more than JAVA
        header_bytes += 3
    frame = struct.pack(">II", total, header_bytes) + frame[8:]
    with Wire(broker) as wire:
        answer = wire.ask(frame)
        assert answer != CLOSED
        assert answer["opaque"] == 7 and answer["flag"] & 1
        if code is not None:
            assert answer["code"] == code, answer
        assert remark in (answer.get("remark") or "")
        # The same connection continues.
        assert wire.ask(send_request())["code"] == 0


def test_names_with_slashes_make_no_files(process: TallyProcess, broker: str) -> None:
    with Wire(broker) as wire:
        for topic in ("../../evil", "/tmp/evil", "..", "%RETRY%../evil", "a/../../evil"):
            assert wire.ask(send_request(topic=topic))["code"] != 0
            wire.ask(request(17, {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "readQueueNums": "4"}))
            wire.ask(request(36, {"offset": "0", "group": topic, "delayLevel": "0"}))
            beat = {"clientID": "c", "consumerDataSet": [{"groupName": topic, "subscriptionDataSet": []}]}
            wire.ask(request(34, None, json.dumps(beat).encode()))
    assert not list(process.folder.rglob("*evil*"))
    assert not Path("/tmp/evil").exists()


def test_every_request_code_answers_whatever_it_is_sent(process: TallyProcess, broker: str) -> None:
    rng = random.Random(20)
    names = [
        *("topic", "queueId", "consumerGroup", "producerGroup", "offset", "queueOffset", "maxMsgNums", "subVersion"),
        *("commitOffset", "suspendTimeoutMillis", "subscription", "expressionType", "group", "delayLevel", "key"),
        *("maxNum", "beginTimestamp", "endTimestamp", "timestamp", "clientID", "namespace", "value", "brokerName"),
        *("brokerAddr", "clusterName", "haServerAddr", "brokerId", "tranStateTableOffset", "commitLogOffset", "msgId"),
        *("commitOrRollback", "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "defaultTopic", "isForce"),
        *("statsName", "statsKey", "srcGroup", "destGroup", "isOffline", "index", "count", *"abcdefghijklm"),
    ]
    values = [
        "",
        "0",
        "-1",
        "T",
        "g",
        "x",
        "99999999999999999999",
        "../x",
        "é",
        "\x00",
        "true",
        "*",
        "null",
        5,
        None,
        [],
        {},
    ]
    bodies = [b"", b"{}", b"[]", b"{", b"null", b"\xff" * 10, b'{"a":1}', b"a=b\n", bytes(100)]
    for port in ("broker", "name server"):
        with Wire(process.places[port]) as wire:
            opaque = 0
            for code in sorted({int(code) for code in RequestCode} | {1, 5, 400, 32767, 1 << 30}):
                for attempt in range(6):
                    opaque += 1
                    ext = None if attempt == 0 else {n: rng.choice(values) for n in names if rng.random() < 0.7}
                    if ext:
                        ext["sysFlag"] = rng.choice(["0", "1", "4", "x"])  # not the one that lets a pull wait
                    frame = request(code, ext, b"" if attempt == 0 else rng.choice(bodies), opaque=opaque)
                    answer = wire.ask(frame)
                    assert answer != CLOSED, (port, code, ext)
                    assert answer["opaque"] == opaque, (port, code, ext)
                    assert attempt or answer["code"] != 3 or "not supported" in answer["remark"]


def test_oneway_requests_are_never_answered(broker: str) -> None:
    with Wire(broker) as wire:
        for frame in (request(9999, flag=2), request(310, flag=2), request(34, None, b"{", flag=2), request(5, flag=1)):
            wire.send(frame)
        assert wire.ask(request(30, {"topic": "T", "queueId": "0"}, opaque=99))["opaque"] == 99


def test_mutated_frames_are_answered_or_end_the_connection(broker: str) -> None:
    rng = random.Random(4)
    seeds = [
        send_request(),
        send_request(batch_body((b"a", b"k\x01v"), (b"b", b"")), m="true"),
        request(11, pull()),
        request(34, None, b'{"clientID":"c","consumerDataSet":[],"producerDataSet":[{"groupName":"p"}]}'),
        request(12, {"topic": "T", "key": "k", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": "9"}),
    ]
    wire = Wire(broker)
    ended = 0
    for _ in range(1500):
        frame = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(frame))
            kind = rng.randrange(3)
            if kind == 0:
                frame[at] = rng.randrange(256)
            elif kind == 1:
                del frame[at : at + rng.randint(1, 4)]
            else:
                frame[at:at] = rng.randbytes(rng.randint(1, 4))
        if rng.random() < 0.7:  # whole frames more often than not
            frame[:4] = (len(frame) - 4).to_bytes(4, "big")
        wire.send(bytes(frame))
        # A marker behind it: an answer to it says that the stream continues; else the connection has to end.
        wire.send(request(30, {"topic": "T", "queueId": "0"}, opaque=123_456))
        wire.socket.settimeout(0.05 if rng.random() < 0.05 else ANSWER_S)
        try:
            wire.socket.shutdown(socket.SHUT_WR)
            while (answer := wire.answer()[0]) != CLOSED:
                assert "code" in answer
        except (TimeoutError, OSError):
            pass
        wire.socket.close()
        ended += 1
        wire = Wire(broker)
    wire.socket.close()
    assert ended == 1500


# -- floods ------------------------------------------------------------------------------------------------------------


def test_ten_thousand_garbage_connections_leave_nothing_behind(process: TallyProcess, broker: str) -> None:
    rng = random.Random(7)
    kinds = [rng.randbytes(20), b"", b"\xff" * 8, json_frame(b"{"), send_request()[:50], b"GET / HTTP/1.0\r\n\r\n"]

    def flood(count: int) -> None:
        for number in range(count):
            with Wire(broker) as wire:
                wire.send(kinds[number % len(kinds)])

    flood(1000)  # what is made once is made
    settle(lambda: descriptors(process), 200)
    files, memory_kib, lines = descriptors(process), resident_kib(process), len(process.log.read_text().splitlines())
    flood(9000)
    settle(lambda: descriptors(process), files + 5)
    assert resident_kib(process) < memory_kib + 8 * 1024
    assert len(process.log.read_text().splitlines()) < lines + 40


def test_half_open_connections_do_not_block_other_clients(process: TallyProcess, broker: str) -> None:
    files, memory_kib = descriptors(process), resident_kib(process)
    held = [Wire(broker) for _ in range(500)]
    for number, wire in enumerate(held):
        wire.send(send_request(b"x" * 50_000)[: 1 + number * 97])
    with Wire(broker) as wire:
        assert wire.ask(send_request())["code"] == 0
    assert resident_kib(process) < memory_kib + 100 * 1024
    for wire in held:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
        wire.socket.close()
    settle(lambda: descriptors(process), files + 5)


def test_a_slow_header_is_served_when_it_is_there(broker: str) -> None:
    frame = send_request(b"slow")
    with Wire(broker) as slow, Wire(broker) as other:
        for at in range(len(frame) - 1):
            slow.send(frame[at : at + 1])
            if at % 50 == 0:
                assert other.ask(send_request())["code"] == 0
        slow.send(frame[-1:])
        assert slow.answer()[0]["code"] == 0


@pytest.mark.parametrize("kind", ["sends", "pulls", "offsets"])
def test_a_client_that_never_reads_is_not_read_from(process: TallyProcess, broker: str, kind: str) -> None:
    with Wire(broker) as wire:
        for _ in range(40):
            assert wire.ask(send_request(bytes(100_000), e="0"))["code"] == 0
    frame = {
        "sends": send_request(b"x"),
        "pulls": request(11, pull()),
        "offsets": request(30, {"topic": "T", "queueId": "0"}),
    }[kind]
    memory_kib = resident_kib(process)
    with Wire(broker, small=True) as wire:
        wire.socket.setblocking(False)
        block, sent, stuck_since = frame * 200, 0, time.monotonic()
        rest = block
        while time.monotonic() - stuck_since < 0.7 and sent < 256 << 20:
            try:
                count = wire.socket.send(rest)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            sent += count
            rest = rest[count:] or block
            stuck_since = time.monotonic()
        assert sent < 256 << 20, "it was read from without end"
        assert resident_kib(process) < memory_kib + 80 * 1024
        with Wire(broker) as other:
            assert other.ask(send_request())["code"] == 0
