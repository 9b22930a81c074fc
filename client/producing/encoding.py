"""Messages as requests: their properties, bodies, and parts of batches. Without I/O."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from tallystick.client.core.errors import ConfigurationError
from tallystick.client.core.message import Message, property_pairs
from tallystick.client.core.queue import Queue
from tallystick.client.wire import properties as names
from tallystick.client.wire.codes import RequestCode
from tallystick.client.wire.command import Command
from tallystick.client.wire.sending import BATCH_PROPERTIES, MAX_PROPERTIES_BYTES, batch_part, send_fields
from tallystick.client.wire.sys_flag import SysFlag

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,255}\Z")
_COMPRESSION_LEVEL = 5


@dataclass(slots=True)
class Outgoing:
    """A message as it is sent: `text` has its properties, `body` may be compressed."""

    message: Message
    unique_key: str
    text: str
    body: bytes
    sys_flag: int = 0

    @property
    def size(self) -> int:
        """Bytes of memory that it takes while it waits, roughly."""
        return len(self.body) + len(self.text) + 512

    def part(self) -> bytes:
        """The message as a part of a batch."""
        return batch_part(self.message.body, self.text.encode("utf-8", "surrogateescape"), self.message.flag)


def outgoing(
    message: Message, unique_key: str, max_bytes: int, compress_above: int, extra: dict[str, str] | None = None
) -> Outgoing:
    """Checks and encodes a message. `extra`: properties that the client sets. ConfigurationError: it cannot be sent."""
    if not _TOPIC.match(message.topic):
        raise ConfigurationError(f"{message.topic!r} is no name of a topic: letters, digits, and the characters %|_-")
    body = message.body
    if not isinstance(body, bytes):
        raise ConfigurationError(f"the body must be bytes, not {type(body).__name__}")
    if not body:
        raise ConfigurationError("the body is empty, which RocketMQ's clients cannot read")
    if len(body) > max_bytes:
        raise ConfigurationError(f"a body of {len(body)} bytes; max_message_bytes is {max_bytes}")
    pairs = property_pairs(message, unique_key)
    if extra:
        pairs |= extra
    try:
        text = names.encode(pairs)
    except (names.PropertyError, TypeError) as error:
        raise ConfigurationError(str(error)) from error
    if len(text) > MAX_PROPERTIES_BYTES // 4 and len(text.encode("utf-8", "surrogateescape")) > MAX_PROPERTIES_BYTES:
        raise ConfigurationError(f"the properties have more than {MAX_PROPERTIES_BYTES} bytes")
    if len(body) > compress_above:
        packed = zlib.compress(body, _COMPRESSION_LEVEL)
        if len(packed) < len(body):
            return Outgoing(message, unique_key, text, packed, SysFlag.COMPRESSED)
    return Outgoing(message, unique_key, text, body)


def request(group: str, queue: Queue, items: Sequence[Outgoing], code: int = RequestCode.SEND_MESSAGE_V2) -> Command:
    """Returns the request that sends one message, or several as a batch."""
    born_ms = time.time_ns() // 1_000_000
    if len(items) == 1:
        item = items[0]
        fields = send_fields(
            group, queue.topic, queue.id, item.text, born_ms, sys_flag=item.sys_flag, flag=item.message.flag
        )
        return Command(code, ext=fields, body=item.body)
    fields = send_fields(group, queue.topic, queue.id, BATCH_PROPERTIES, born_ms)
    fields["m"] = "true"
    return Command(RequestCode.SEND_BATCH_MESSAGE, ext=fields, body=b"".join([item.part() for item in items]))
