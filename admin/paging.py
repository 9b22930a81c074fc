"""Parts of long lists. A cursor is a text that only this module reads; callers give it back as they got it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from tallystick.client import ConfigurationError
from tallystick.client.core.queue import Queue

MOST = 1000
"""The largest part."""


def encode_cursor(position: Any) -> str:
    """Returns a position, a value that JSON has, as a cursor."""
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode().rstrip("=")


def decode_cursor(cursor: str) -> Any:
    """Returns the position of a cursor. ConfigurationError: the text is not a cursor."""
    try:
        return orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError) as error:
        raise ConfigurationError(f"{cursor!r:.80} is not a cursor") from error


def encode_offsets(offsets: Mapping[Queue, int]) -> str | None:
    """Returns the offset of each queue as a cursor; None: no queue is left."""
    rows = [[queue.broker, queue.id, offset] for queue, offset in offsets.items()]
    return encode_cursor(rows) if rows else None


def decode_offsets(cursor: str, queues: Iterable[Queue], what: str) -> dict[Queue, int]:
    """Returns the offsets of a cursor by queue, without queues that do not exist any longer. ConfigurationError: it is
    not a cursor of this `what`."""
    known = {(queue.broker, queue.id): queue for queue in queues}
    try:
        rows = [(str(broker), int(number), int(offset)) for broker, number, offset in decode_cursor(cursor)]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{cursor!r:.80} is not a cursor of this {what}") from error
    return {known[broker, number]: offset for broker, number, offset in rows if (broker, number) in known}


def checked_limit(limit: int) -> int:
    """Returns the size of a part. ConfigurationError: it is not from 1 to `MOST`."""
    if not 1 <= limit <= MOST:
        raise ConfigurationError(f"limit is a number from 1 to {MOST}, not {limit}")
    return limit


def names_of_page(names: Iterable[str], search: str, cursor: str | None, limit: int) -> tuple[list[str], str | None]:
    """Returns the names of a part, sorted, and the cursor of the next one. `search`: a part of the name."""
    checked_limit(limit)
    after = decode_cursor(cursor) if cursor else ""
    if not isinstance(after, str):
        raise ConfigurationError(f"{cursor!r:.80} is not a cursor of this list")
    wanted = search.casefold()
    rest = sorted(name for name in names if name > after and wanted in name.casefold())
    part = rest[:limit]
    return part, encode_cursor(part[-1]) if len(rest) > limit else None


def etag_of(value: Any) -> str:
    """Returns a text that differs if the value differs: for changes of what was read."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
