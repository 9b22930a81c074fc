"""The body of a registration: a broker's topics, as JSON or compressed. Without I/O.

JSON:

    {"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":0,"timestamp":1612682099000},
     "topicConfigTable":{"T":{"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4,...}}}}

Compressed: a zlib stream of big-endian fields:

size    field
4+n     DataVersion: length, JSON
4       count of topics, then for each
  4+n     length, text "name readQueueNums writeQueueNums perm filterType"
4+n     filter servers: length, JSON list

Brokers older than 3.0.11 send the wrapper alone. Source: apache/rocketmq, common/protocol/body/RegisterBrokerBody.java.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

from tallystick.store import fastjson
from tallystick.store.tables import DataVersion

TERM_FIELD = "groupTerm"
"""Header field of a registration: the term of a member of a replicated group. Other brokers do not send it, and name
servers of RocketMQ ignore it."""
EXTERNAL_FIELD = "externalAddress"
"""Header field of a registration: `host:port` for clients outside the brokers' network. It is optional, too."""
WHOLE_FIELD = "allTopics"
"""Header field of a registration: the body has all topics of the broker, so others are deleted. RocketMQ's brokers do
not send it, because they also register single changed topics."""
MAX_BYTES = 64 << 20  # of an uncompressed body
_MAX_RATIO, _RATIO_FROM_BYTES = 100, 1 << 20
"""How many times as large as the compressed body it can be, above this size. A table of topics has about 10; zeros have
1000, and would cost the name server a thousand times what they cost their sender."""
MAX_TOPICS = 250_000
"""Largest number of topics of one registration, and of one broker name."""


class RegistrationError(ValueError):
    """The body is not a registration. The text says where it is wrong."""


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of a topic at one broker. `perm` bits: 4 read, 2 write, 1 inherit. `sys_flag` bits: 1 unit,
    2 unit-sub."""

    read_queues: int = 16
    write_queues: int = 16
    perm: int = 6
    sys_flag: int = 0

    def to_json(self, broker_name: str) -> dict[str, Any]:
        """Returns an item of a route's `queueDatas`, with RocketMQ's spelling `topicSynFlag`."""
        return {
            "brokerName": broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicSynFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }


@dataclass(frozen=True, slots=True)
class RegisterBody:
    """The content of a registration. `filter_servers` None: the registration does not contain them."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, QueueData] = field(default_factory=dict)
    filter_servers: list[str] | None = None


def decode_json(body: bytes) -> RegisterBody:
    """Parses the JSON form. RegistrationError."""
    value = _object(_json(body), "the body")
    servers = value.get("filterServerList")
    wrapper = decode_wrapper(value.get("topicConfigSerializeWrapper"))
    return RegisterBody(wrapper.data_version, wrapper.topics, None if servers is None else _strings(servers))


def decode_wrapper(wrapper: bytes | Any) -> RegisterBody:
    """Parses a table of topics without filter servers, as text or as an object. RegistrationError."""
    value = _object(_json(wrapper) if isinstance(wrapper, bytes) else wrapper, "topicConfigSerializeWrapper")
    table = _object(value.get("topicConfigTable") or {}, "topicConfigTable")
    topics = {str(name): _queue_data(str(name), config) for name, config in table.items()}
    return RegisterBody(DataVersion.from_json(value.get("dataVersion")), topics)


def decode_compressed(body: bytes) -> RegisterBody:
    """Parses the compressed form. RegistrationError."""
    inflater = zlib.decompressobj()
    try:
        most = min(MAX_BYTES, max(_RATIO_FROM_BYTES, len(body) * _MAX_RATIO))
        data = inflater.decompress(body, most)
    except zlib.error as error:
        raise RegistrationError(f"the body is not compressed: {error}") from error
    if inflater.unconsumed_tail:
        raise RegistrationError(f"the body has more than {most} bytes when it is not compressed")
    if not inflater.eof:
        raise RegistrationError("the compressed body ends too early")
    pos = 0

    def number() -> int:
        nonlocal pos
        if pos + 4 > len(data):
            raise RegistrationError(f"the body ends after {len(data)} bytes, a number is due at {pos}")
        pos += 4
        return int.from_bytes(data[pos - 4 : pos], "big", signed=True)

    def text() -> bytes:
        nonlocal pos
        size = number()
        if size < 0 or pos + size > len(data):
            raise RegistrationError(f"a text of {size} bytes at {pos} in a body of {len(data)}")
        pos += size
        return data[pos - size : pos]

    version = DataVersion.from_json(_json(text()))
    count = number()
    if count > MAX_TOPICS:  # checked before the lines are parsed
        raise RegistrationError(f"{count} topics, {MAX_TOPICS} are allowed")
    topics = dict(_line(text().decode("utf-8", "replace")) for _ in range(count))
    return RegisterBody(version, topics, _strings(_json(text())))


def _line(text: str) -> tuple[str, QueueData]:
    parts = text.split(" ")
    try:
        name, read, write, perm, *_ = parts
        return name, QueueData(int(read), int(write), int(perm))
    except ValueError:
        raise RegistrationError(f"not a topic: {text[:200]!r}") from None


def _queue_data(name: str, config: Any) -> QueueData:
    fields = _object(config, f"the topic {name[:200]!r}")
    values = []
    for key, default in (("readQueueNums", 16), ("writeQueueNums", 16), ("perm", 6), ("topicSysFlag", 0)):
        value = fields.get(key, default)
        if type(value) is not int:
            raise RegistrationError(f"{key} of the topic {name[:200]!r} is not a number")
        values.append(value)
    return QueueData(*values)


def _json(text: bytes) -> Any:
    try:
        return fastjson.loads_request(text)
    except fastjson.FastjsonError as error:
        raise RegistrationError(f"the body is not JSON: {error}") from error


def _object(value: Any, what: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise RegistrationError(f"{what} is not a JSON object")
    return value


def _strings(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise RegistrationError("the filter servers are not a list")
    return [str(item) for item in value]
