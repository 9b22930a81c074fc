"""Messages: those that an application sends, and those that it receives."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from tallystick.client.core.errors import ConfigurationError, ProtocolError
from tallystick.client.wire import properties as names
from tallystick.client.wire.host import Host
from tallystick.client.wire.message_id import encode_message_id
from tallystick.client.wire.sys_flag import SysFlag

_COMPRESSION_SHIFT, _COMPRESSION_MASK = 8, 0x700
_ZLIB = (0, 3)  # 0: a client before 5.0
_COMPRESSIONS = {1: "LZ4", 2: "ZSTD"}
MAX_BODY_BYTES = 64 << 20
"""The largest body that is decompressed: a small message can claim any size."""

RESERVED = frozenset(
    (
        *(names.UNIQ_KEY, names.WAIT, names.CLUSTER, names.MIN_OFFSET, names.MAX_OFFSET, names.TRAN_MSG, names.PGROUP),
        *(names.REAL_TOPIC, names.REAL_QID, names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID, names.RECONSUME_TIME),
        *(names.MAX_RECONSUME_TIMES, names.MSG_REGION, names.TRACE_ON, names.TRAN_PREPARED_QUEUE_OFFSET),
        *(names.TRANSACTION_CHECK_TIMES, names.TIMER_OUT_MS, names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS),
        *(names.TIMER_ROLL_TIMES, names.CONSUME_START_TIME, names.TRANSFER_FLAG, names.CORRECTION_FLAG),
        *(names.MQ2_FLAG, names.BUYER_ID, names.KEYS, names.TAGS, names.DELAY, names.TIMER_DELAY_MS),
        *(names.TIMER_DELAY_SEC, names.TIMER_DELIVER_MS, names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.MSG_TYPE),
    )
)
"""Properties that clients and brokers set. An application gives what they mean in other ways, or not at all."""


@dataclass(slots=True)
class Message:
    """A message to send.

    `tag` and `keys` are for filters and for queries; a key contains no blank. `properties` are for SQL filters and for
    consumers. Messages with the same `order_key` go to the same queue, in the order in which they are sent. `queue`
    chooses a queue by its number, at the first broker that has it. `delay_level` (1 to 18) delays the delivery as the
    broker's table says; `delay` and `deliver_at` need a broker with timers. `unique_key` identifies the message if it
    is sent again; without one, the client makes it. `flag` is a number that only applications interpret.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    order_key: str | None = None
    queue: int | None = None
    delay_level: int | None = None
    delay: timedelta | None = None
    deliver_at: datetime | None = None
    unique_key: str | None = None
    flag: int = 0

    @property
    def has_delay(self) -> bool:
        """Whether the delivery is delayed. Such a message cannot be a part of a batch."""
        return not (self.delay_level is None and self.delay is None and self.deliver_at is None)

    @property
    def needs_timers(self) -> bool:
        """Whether only brokers with timers can deliver it on time."""
        return self.delay is not None or self.deliver_at is not None


def property_pairs(message: Message, unique_key: str) -> dict[str, str]:
    """Returns all properties of a message to send. ConfigurationError: one of them cannot be sent."""
    pairs = {names.UNIQ_KEY: unique_key, names.WAIT: "true"}
    if message.properties:
        for name in message.properties:
            if name in RESERVED:
                raise ConfigurationError(f"the property {name} is set by the client or the broker")
        pairs |= message.properties
    if message.keys:
        keys = (message.keys,) if isinstance(message.keys, str) else message.keys
        if any(not key or names.KEY_SEPARATOR in key for key in keys):
            raise ConfigurationError("a key is a text without blanks")
        pairs[names.KEYS] = names.KEY_SEPARATOR.join(keys)
    if message.tag:
        pairs[names.TAGS] = message.tag
    if message.has_delay:
        pairs |= _delay(message)
    return pairs


def _delay(message: Message) -> dict[str, str]:
    given = [each for each in (message.delay_level, message.delay, message.deliver_at) if each is not None]
    if len(given) > 1:
        raise ConfigurationError("only one of delay_level, delay and deliver_at can be given")
    if message.delay_level is not None:
        if message.delay_level < 1:
            raise ConfigurationError("a delay level is 1 or more")
        return {names.DELAY: str(message.delay_level)}
    if message.delay is not None:
        milliseconds = message.delay // timedelta(milliseconds=1)
        if milliseconds < 0:
            raise ConfigurationError("a delay is not negative")
        return {names.TIMER_DELAY_MS: str(milliseconds)}
    assert message.deliver_at is not None
    if message.deliver_at.tzinfo is None:
        raise ConfigurationError("deliver_at needs a time zone")
    return {names.TIMER_DELIVER_MS: str(int(message.deliver_at.timestamp() * 1000))}


class Stored:
    """A message as a broker stored it.

    `topic` is the one to which it was sent, also if it comes from a queue of retries; `stored_in` and `queue_id` say
    where it is stored, at broker `broker`. `offset` is its number in the queue, `position` that in the broker's log.
    """

    __slots__ = (
        "_body",
        "_born_host",
        "_crc",
        "_plain",
        "_properties",
        "_store_host",
        "_text",
        "attempts",
        "born_ms",
        "broker",
        "flag",
        "offset",
        "position",
        "prepared_position",
        "queue_id",
        "size",
        "store_ms",
        "stored_in",
        "sys_flag",
    )

    def __init__(
        self,
        broker: str,
        stored_in: str,
        queue_id: int,
        offset: int,
        body: bytes,
        text: bytes,
        crc: int,
        flag: int,
        sys_flag: int,
        position: int,
        born_ms: int,
        store_ms: int,
        store_host: bytes,
        attempts: int,
        prepared_position: int,
        size: int,
        born_host: bytes = bytes(8),
    ) -> None:
        self.broker = broker
        self.stored_in = stored_in
        self.queue_id = queue_id
        self.offset = offset
        self._body = body
        self._text = text
        self._crc = crc
        self.flag = flag
        self.sys_flag = sys_flag
        self.position = position
        self.born_ms = born_ms
        self.store_ms = store_ms
        self._store_host = store_host
        self.attempts = attempts
        self.prepared_position = prepared_position
        self.size = size
        self._born_host = born_host
        self._properties: dict[str, str] | None = None
        self._plain: bytes | None = None

    @property
    def properties(self) -> dict[str, str]:
        """All properties, also those that clients and brokers set."""
        found = self._properties
        if found is None:
            found = self._properties = names.decode(self._text.decode("utf-8", "surrogateescape"))
        return found

    @property
    def body(self) -> bytes:
        """The body as it was sent. ProtocolError: it is damaged, or this client cannot decompress it."""
        plain = self._plain
        if plain is None:
            if not self.is_sound:
                raise ProtocolError(f"the body of message {self.message_id} is damaged: its CRC differs")
            plain = self._plain = plain_body(self._body, self.sys_flag)
        return plain

    @property
    def stored_body(self) -> bytes:
        """The body as it is stored: compressed, if `sys_flag` says so, and not checked."""
        return self._body

    @property
    def is_sound(self) -> bool:
        """Whether the body has its CRC."""
        return not self._body or zlib.crc32(self._body) & 0x7FFFFFFF == self._crc

    @property
    def topic(self) -> str:
        """The topic to which it was sent."""
        if self.stored_in.startswith(("%RETRY%", "%DLQ%")):
            return self.properties.get(names.RETRY_TOPIC, self.stored_in)
        return self.stored_in

    @property
    def tag(self) -> str | None:
        """The tag."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys."""
        text = self.properties.get(names.KEYS, "")
        return [key for key in text.split(names.KEY_SEPARATOR) if key]

    @property
    def unique_key(self) -> str | None:
        """The key that its producer made. It stays the same when the message is sent again."""
        return self.properties.get(names.UNIQ_KEY)

    @property
    def message_id(self) -> str:
        """The broker's id: its address and the position in its log."""
        return encode_message_id(Host.decode(self._store_host), self.position)

    @property
    def born_host(self) -> Host:
        """The address of the client that sent it, as its broker saw it."""
        return Host.decode(self._born_host)

    @property
    def store_host(self) -> Host:
        """The address of the broker that stored it."""
        return Host.decode(self._store_host)

    @property
    def sent_at(self) -> datetime:
        """When the producer sent it, by the producer's clock."""
        return datetime.fromtimestamp(self.born_ms / 1000, UTC)

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it."""
        return datetime.fromtimestamp(self.store_ms / 1000, UTC)

    def __repr__(self) -> str:
        place = f"{self.broker}/{self.queue_id}/{self.offset}"
        return f"<message {self.unique_key or self.message_id} of {self.topic}: {place}>"


def plain_body(body: bytes, sys_flag: int) -> bytes:
    """Returns a body without compression. ProtocolError: it cannot be decompressed."""
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    kind = (sys_flag & _COMPRESSION_MASK) >> _COMPRESSION_SHIFT
    if kind not in _ZLIB:
        raise ProtocolError(f"a body that is compressed with {_COMPRESSIONS.get(kind, f'method {kind}')}")
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, MAX_BODY_BYTES)
    except zlib.error as error:
        raise ProtocolError(f"a body that cannot be decompressed: {error}") from error
    if not inflater.eof:
        raise ProtocolError("a body that cannot be decompressed: it is torn or too large")
    return plain


S = TypeVar("S", bound=Stored)
_V4 = struct.Struct(">iiiiiqqiq8sq8siqi")  # a record up to its body, if both hosts have IPv4 addresses
_HEAD = struct.Struct(">iiiiiqqiq")
_MIDDLE = struct.Struct(">iqi")
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">h")
_MAGIC = 0xDAA320A7 - (1 << 32)
_MAGIC_LONG_TOPIC = 0xDAA320AB - (1 << 32)
_V6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


def decode_stored(data: bytes, broker: str, kind: type[S]) -> list[S]:
    """Decodes the records of an answer, one after the other, as `kind`. ProtocolError: they are not records."""
    found: list[S] = []
    at, end, v6 = 0, len(data), int(_V6)
    topic_bytes, topic = b"", ""
    try:
        while at < end:
            if int.from_bytes(data[at + 36 : at + 40], "big") & v6:
                fields, body_at = _with_ipv6(data, at)
            else:
                fields, body_at = _V4.unpack_from(data, at), at + _V4.size
            (
                size,
                magic,
                crc,
                queue,
                flag,
                offset,
                position,
                sys_flag,
                born,
                born_host,
                stored,
                host,
                times,
                prepared,
                length,
            ) = fields
            topic_at = body_at + length
            if magic == _MAGIC:
                name_at = topic_at + 1
                name_end = name_at + data[topic_at]
            elif magic == _MAGIC_LONG_TOPIC:
                name_at = topic_at + 2
                name_end = name_at + _SHORT.unpack_from(data, topic_at)[0]
            else:
                raise ProtocolError(f"no record has the magic {magic & 0xFFFFFFFF:08x}, at byte {at}")
            name = data[name_at:name_end]
            if name != topic_bytes:
                topic_bytes, topic = name, name.decode("utf-8", "surrogateescape")
            text_end = name_end + 2 + _SHORT.unpack_from(data, name_end)[0]
            if length < 0 or text_end != at + size or text_end > end:
                raise ProtocolError(f"a record of {size} bytes whose fields take {text_end - at}, at byte {at}")
            found.append(
                kind(
                    *(broker, topic, queue, offset, data[body_at:topic_at], data[name_end + 2 : text_end], crc, flag),
                    *(sys_flag, position, born, stored, host, times, prepared, size, born_host),
                )
            )
            at = text_end
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"a torn record at byte {at}") from error
    return found


def _with_ipv6(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
    """Returns the fields of a record up to its body, and where the body begins."""
    head = _HEAD.unpack_from(data, at)
    sys_flag = head[7]
    born_at = at + _HEAD.size
    born_end = born_at + (20 if sys_flag & SysFlag.BORN_HOST_V6 else 8)
    (store_ms,) = _LONG.unpack_from(data, born_end)
    host_end = born_end + 8 + (20 if sys_flag & SysFlag.STORE_HOST_V6 else 8)
    host = data[born_end + 8 : host_end]
    return (
        *head,
        data[born_at:born_end],
        store_ms,
        host,
        *_MIDDLE.unpack_from(data, host_end),
    ), host_end + _MIDDLE.size
