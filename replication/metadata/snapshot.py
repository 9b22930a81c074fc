"""The replicated tables at one index of the log, as one file: `tally-metadata`, replaced as a whole.

Layout, big-endian:

offset  size  field
     0     8  "TALLYMD1"
     8     8  applied index; -1: the state before the first entry
    16     8  bytes of the content
    24     4  CRC-32 of the 24 bytes before and the content
    28     n  content: a JSON object, table name -> picture, keys sorted

The index and what it led to are in one file, written to a temporary name, synced and renamed: a crash leaves the old
pair or the new one, never one index with the other's tables (S12). The same bytes go to a member whose log begins
behind what others still have (L11). Keys are sorted so that equal states are equal files, on every member.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tallystick.replication.metadata.entry import MetadataError
from tallystick.replication.metadata.tables import ReplicatedTables

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

FILE_NAME = "tally-metadata"

_MAGIC = b"TALLYMD1"
_HEAD = struct.Struct(">8sqq")
_CRC = struct.Struct(">I")
_CONTENT = _HEAD.size + _CRC.size
assert _CONTENT == 28, "fixed by every file already on disk"


class SnapshotError(MetadataError):
    """The file is there and is no snapshot; `path` says which."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


def encode(tables: ReplicatedTables) -> bytes:
    """The file's bytes."""
    content = orjson.dumps(tables.pictures(), option=orjson.OPT_SORT_KEYS)
    head = _HEAD.pack(_MAGIC, tables.applied_index, len(content))
    return head + _CRC.pack(zlib.crc32(content, zlib.crc32(head))) + content


def decode(data: bytes | memoryview) -> ReplicatedTables:
    """MetadataError: not what `encode` made, or damaged since."""
    if len(data) < _CONTENT:
        raise MetadataError(f"a snapshot of {len(data)} bytes, its head alone has {_CONTENT}")
    magic, applied_index, size = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise MetadataError("no snapshot of tables, or one of another version")
    content = data[_CONTENT:]
    if size != len(content):
        raise MetadataError(f"a snapshot with {len(content)} of {size} bytes")
    if _CRC.unpack_from(data, _HEAD.size)[0] != zlib.crc32(content, zlib.crc32(data[: _HEAD.size])):
        raise MetadataError("the CRC of a snapshot does not fit its content")
    pictures: Any = orjson.loads(content)
    if not isinstance(pictures, dict) or not all(isinstance(picture, dict) for picture in pictures.values()):
        raise MetadataError("a snapshot that is no table of pictures")
    return ReplicatedTables(applied_index, pictures)


def load(folder: Path) -> ReplicatedTables | None:
    """What `folder` holds; None: nothing yet. SnapshotError: damaged. OSError.

    A damaged one is not to be taken for none: entries before it may be deleted from the log already.
    """
    path = folder / FILE_NAME
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except MetadataError as error:
        raise SnapshotError(path, error.reason) from error


def save(door: Door, folder: Path, data: bytes) -> None:
    """Replaces the file by `encode`'s bytes, durably. Blocks. OSError: the one before it can still be loaded."""
    temporary = folder / f"{FILE_NAME}.tmp"
    door.mkdir(str(folder))
    door.write_file(str(temporary), data)
    door.rename(str(temporary), str(folder / FILE_NAME))
    door.sync_dir(str(folder))
