"""The requests that send messages: their fields, and the parts of a batch.

A batch is a body with the messages one after the other:

    4  size of the part
    4  magic, 0
    4  CRC of the body, 0: the broker computes it
    4  flag
  4+n  body
  2+n  properties

Source: SendMessageRequestHeaderV2 and MessageDecoder.encodeMessage of RocketMQ 4.8.0.
"""

from __future__ import annotations

import struct

MAX_PROPERTIES_BYTES = 32_767
BATCH_PROPERTIES = "WAIT\x01true\x02"
_HEAD = struct.Struct(">IIIiI")
_LENGTH = struct.Struct(">H")


def send_fields(
    group: str,
    topic: str,
    queue_id: int,
    properties: str,
    born_ms: int,
    *,
    sys_flag: int = 0,
    flag: int = 0,
    is_batch: bool = False,
) -> dict[str, str]:
    """Returns the fields of SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE. `properties`: those of the message, encoded."""
    return {
        "a": group,
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": str(sys_flag),
        "g": str(born_ms),
        "h": str(flag),
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "true" if is_batch else "false",
    }


def batch_part(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    """Returns a message as a part of a batch."""
    size = 22 + len(body) + len(properties)
    return b"".join(
        (_HEAD.pack(size, 0, 0, flag, len(body)), body, _LENGTH.pack(len(properties)), properties),
    )
