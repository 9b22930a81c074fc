"""A few admin calls over the remoting protocol: create a topic, count stored messages, and read the dispatch lag.

The counts come from the broker under test, so that a rate only counts messages that are stored.
frame = length of the rest (4) · serialize type and header length (4) · JSON header · body.
RocketMQ's bodies are not always JSON (objects as keys); the numbers are found by their names.
"""

import contextlib
import json
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from harness.access import CONTROL_ADDRESS

CREATE_TOPIC = 17
RUNTIME_INFO = 28
ROUTE = 105
TOPIC_STATS = 202

_MAX_OFFSET = re.compile(rb'"maxOffset"\s*:\s*(\d+)')
_LOG_END = re.compile(rb'"commitLogMaxOffset"\s*:\s*"?(\d+)')
_BEHIND = re.compile(rb'"dispatchBehindBytes"\s*:\s*"?(-?\d+)')


class ControlError(Exception):
    """The broker answered an admin call with an error (`code` is not None) or not at all."""

    def __init__(self, what: str, code: int | None = None) -> None:
        super().__init__(what)
        self.code = code


class Answer(NamedTuple):
    """The answer to one call: response code, remark, body."""

    code: int
    remark: str
    body: bytes


def encode_request(code: int, fields: Mapping[str, str], opaque: int, body: bytes = b"") -> bytes:
    """One request frame."""
    header = {"code": code, "extFields": dict(fields), "flag": 0, "language": "JAVA", "opaque": opaque, "version": 373}
    # RocketMQ's clients always send this field, and rocketmq-rust closes a connection without it.
    header["serializeTypeCurrentRPC"] = "JSON"
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body


class Control:
    """Admin calls to one address, with one connection for each group of calls."""

    def __init__(self, host: str, port: int, *, timeout_s: float = 30.0) -> None:
        self.host, self.port, self.timeout_s = host, port, timeout_s

    @contextlib.contextmanager
    def connected(self) -> Iterator["Connection"]:
        """Connects, from an address that brokers with access control trust. ControlError: no server listens."""
        try:
            link = socket.create_connection((self.host, self.port), self.timeout_s, source_address=(CONTROL_ADDRESS, 0))
        except OSError as error:
            raise ControlError(f"{self.host}:{self.port}: {error}") from error
        with link:
            yield Connection(link)

    def call(self, code: int, fields: Mapping[str, str] | None = None) -> Answer:
        """Sends one call on a separate connection. ControlError: no answer."""
        with self.connected() as connection:
            return connection.call(code, fields or {})

    def answers(self) -> bool:
        """Returns whether a server answers there now."""
        try:
            self.call(RUNTIME_INFO)
        except ControlError:
            return False
        return True

    def accepts(self) -> bool:
        """Returns whether a server accepts connections there now."""
        try:
            with self.connected():
                return True
        except ControlError:
            return False

    def create_topic(self, topic: str, queues: int) -> None:
        """ControlError: the broker refused."""
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        _wanted(self.call(CREATE_TOPIC, fields), f"topic {topic}")

    def stored(self, topic: str) -> int:
        """Messages of this topic that a consumer could read: its queues' ends added. ControlError: no such topic."""
        with self.connected() as connection:
            return connection.stored(topic)

    def wait_stored(self, topic: str, count: int, timeout_s: float) -> int:
        """Waits until so many messages are readable, and returns how many there are then or when the time is over."""
        with self.connected() as connection:
            end = time.monotonic() + timeout_s
            while (stored := connection.stored(topic)) < count and time.monotonic() < end:
                time.sleep(0.05)
            return stored

    def wait_dispatched(self, timeout_s: float) -> float:
        """Waits until queues and index have caught up with the log; seconds that took. ControlError: not in time."""
        begin = time.monotonic()
        with self.connected() as connection:
            while True:
                info = _wanted(connection.call(RUNTIME_INFO, {}), "runtime info")
                found = _BEHIND.search(info.body)
                if found is None or int(found[1]) <= 0:
                    return time.monotonic() - begin
                if time.monotonic() - begin > timeout_s:
                    raise ControlError(f"the dispatch is {int(found[1])} bytes behind after {timeout_s:g} s")
                time.sleep(0.01)

    def log_end(self) -> int:
        """Bytes in the log, from its first ever. ControlError: the broker does not say."""
        answer = self.call(RUNTIME_INFO)
        if answer.code != 0:
            return 0  # RocketMQ fails on a store that has no log yet ("LinkedList.getLast")
        found = _LOG_END.search(answer.body)
        if found is None:
            raise ControlError("the broker does not say where its log ends (commitLogMaxOffset)")
        return int(found[1])

    def wait_route(self, topic: str, timeout_s: float) -> None:
        """Waits until a name server knows the topic. ControlError: not in time."""
        end = time.monotonic() + timeout_s
        while self.call(ROUTE, {"topic": topic}).code != 0:
            if time.monotonic() > end:
                raise ControlError(f"no route to topic {topic} after {timeout_s:g} s")
            time.sleep(0.05)


class Connection:
    """Calls one after the other on an open connection."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._opaque = 0

    def call(self, code: int, fields: Mapping[str, str]) -> Answer:
        """ControlError: the connection broke or the answer makes no sense."""
        self._opaque += 1
        try:
            self._link.sendall(encode_request(code, fields, self._opaque))
            length, header_length = struct.unpack(">ii", self._read(8))
            rest = self._read(length - 4)
            header = json.loads(rest[: header_length & 0xFFFFFF])
        except (OSError, ValueError, struct.error) as error:
            raise ControlError(f"call {code}: {error}") from error
        if header.get("opaque") != self._opaque:
            raise ControlError(f"call {code}: answer to another request: {header}")
        return Answer(int(header["code"]), header.get("remark") or "", rest[header_length & 0xFFFFFF :])

    def stored(self, topic: str) -> int:
        """See Control.stored."""
        answer = _wanted(self.call(TOPIC_STATS, {"topic": topic}), f"statistics of topic {topic}")
        return sum(int(number) for number in _MAX_OFFSET.findall(answer.body))

    def _read(self, count: int) -> bytes:
        chunks = []
        while count > 0:
            chunk = self._link.recv(min(count, 1 << 20))
            if not chunk:
                raise OSError("the broker closed the connection")
            chunks.append(chunk)
            count -= len(chunk)
        return b"".join(chunks)


def _wanted(answer: Answer, what: str) -> Answer:
    if answer.code != 0:
        raise ControlError(f"{what}: code {answer.code}: {answer.remark}", answer.code)
    return answer
