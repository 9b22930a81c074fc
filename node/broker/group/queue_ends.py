"""The next offsets of queues whose records all lie before the start of a group's log.

Old segments are deleted, and with them all records of a queue that was idle for long. Members keep the queue's last
offset in its last file, which is never deleted. A member that starts from a snapshot (L11) never had that file: as a
leader it would assign offsets from 0, which the others have assigned before. The snapshot therefore carries the next
offset of these queues, and the receiving member stores them in a file, for queues without records.

The transferred bytes are, big-endian: "TALLYQE1", size of the object in bytes (8), the object, the tables' snapshot.
The file contains only the object: a JSON object, topic -> queue id -> next offset of the queue.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from tallystick.store.replace_file import replace_file

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

FILE_NAME = "tally-queue-ends"

QueueEnds = Mapping[tuple[str, int], int]
"""By topic and queue id: the offset of the next message."""

_HEAD = struct.Struct(">8sq")
_MAGIC = b"TALLYQE1"


class QueueEndsError(ValueError):
    """The bytes are not valid next offsets of queues."""


def encode(ends: QueueEnds) -> bytes:
    """The file's bytes."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, queue_id), end in ends.items():
        topics.setdefault(topic, {})[str(queue_id)] = end
    return orjson.dumps(topics, option=orjson.OPT_SORT_KEYS)


def decode(data: bytes) -> dict[tuple[str, int], int]:
    """Raises QueueEndsError if `encode` did not make the data."""
    try:
        topics = orjson.loads(data)
        return {(topic, int(queue)): int(end) for topic, queues in topics.items() for queue, end in queues.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise QueueEndsError(f"not a map of next offsets: {error}") from error


def joined(ends: QueueEnds, tables: bytes) -> bytes:
    """Both as one state, for a member that starts from a snapshot."""
    told = encode(ends)
    return _HEAD.pack(_MAGIC, len(told)) + told + tables


def parted(state: bytes) -> tuple[dict[tuple[str, int], int], bytes]:
    """Splits what `joined` made. Raises QueueEndsError."""
    if len(state) < _HEAD.size:
        raise QueueEndsError(f"{len(state)} bytes are too few for the state of a member")
    magic, size = _HEAD.unpack_from(state)
    if magic != _MAGIC or not 0 <= size <= len(state) - _HEAD.size:
        raise QueueEndsError("not the state of a member, or the state of another version")
    return decode(state[_HEAD.size : _HEAD.size + size]), state[_HEAD.size + size :]


def save(door: Door, folder: Path, ends: QueueEnds) -> None:
    """Durably replaces the file. Blocks. OSError: the previous file stays valid."""
    door.mkdir(folder)
    replace_file(door, folder / FILE_NAME, encode(ends))


def load(folder: Path) -> dict[tuple[str, int], int]:
    """The content of `folder`; empty if the member never started from a snapshot. QueueEndsError, OSError."""
    path = folder / FILE_NAME
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except QueueEndsError as error:
        raise QueueEndsError(
            f"{path}: {error}. Without it this member assigns offsets of idle queues twice: remove its store, and"
            " it fetches everything from its group"
        ) from error
