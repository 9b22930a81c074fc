"""The broker's id of a message (its "offset id"): where it is stored, as upper-case hex.

    bytes  field
    4, 16  address of the store's host, IPv4 or IPv6
        4  its port
        8  position of the record in the log, in bytes

So it has 32 digits or 56. The client's own id (property UNIQ_KEY) has as many: which of the two a text is can only be
found out by looking.

Source: MessageDecoder.createMessageId / decodeMessageId of RocketMQ 4.8.0.
"""

from __future__ import annotations

from tallystick.client.wire.host import Host


class MessageIdError(ValueError):
    """The text is no offset id: not 32 or 56 hex digits."""


def encode_message_id(host: Host, pos: int) -> str:
    """The id of the record at `pos` (bytes) in the log of the store at `host`."""
    return (host.encode() + pos.to_bytes(8, "big")).hex().upper()


def decode_message_id(text: str) -> tuple[Host, int]:
    """The store's host and the record's position. MessageIdError: `text` is no such id."""
    if len(text) not in (32, 56):
        raise MessageIdError(f"a message id has 32 or 56 hex digits, not {len(text)} characters")
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise MessageIdError(f"{text!r} is no message id: {error}") from error
    if 2 * len(data) != len(text):
        raise MessageIdError(f"{text!r} is no message id: blanks between its digits")
    return Host.decode(data[:-8]), int.from_bytes(data[-8:], "big")
