"""The replicated tables at one index of the log, in one file, `tally-metadata`, which is replaced as a whole.

Layout, big-endian:

offset  size  field
     0     8  "TALLYMD1"
     8     8  applied index; -1: the state before the first entry
    16     8  bytes of the content
    24     4  CRC-32 of the 24 bytes before and the content
    28     n  content: a JSON object, table name -> picture, keys sorted

The index and the tables at this index are in one file, which is written under a temporary name, synced and renamed. A
crash leaves the old pair or the new one, never one index with the tables of the other (S12). A member whose log is too
far behind the others' gets the same bytes (L11). Keys are sorted, so that equal states are equal files on all members.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tallystick.replication.metadata.entry import MetadataError
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store.replace_file import replace_file

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

FILE_NAME = "tally-metadata"

_MAGIC = b"TALLYMD1"
_HEAD = struct.Struct(">8sqq")
_CRC = struct.Struct(">I")
_CONTENT = _HEAD.size + _CRC.size
assert _CONTENT == 28, "fixed by every file already on disk"


class SnapshotError(MetadataError):
    """The file exists but is not a valid snapshot; `path` names it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


def encode(tables: ReplicatedTables) -> bytes:
    """The file's bytes."""
    content = orjson.dumps(tables.pictures(), option=orjson.OPT_SORT_KEYS)
    head = _HEAD.pack(_MAGIC, tables.applied_index, len(content))
    return head + _CRC.pack(zlib.crc32(content, zlib.crc32(head))) + content


def decode(data: bytes | memoryview) -> ReplicatedTables:
    """Raises MetadataError if `encode` did not make the data, or the data is damaged."""
    if len(data) < _CONTENT:
        raise MetadataError(f"a snapshot of {len(data)} bytes; its head alone has {_CONTENT}")
    magic, applied_index, size = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise MetadataError("not a snapshot of tables, or of another version")
    content = data[_CONTENT:]
    if size != len(content):
        raise MetadataError(f"a snapshot with {len(content)} of {size} bytes")
    if _CRC.unpack_from(data, _HEAD.size)[0] != zlib.crc32(content, zlib.crc32(data[: _HEAD.size])):
        raise MetadataError("the CRC of a snapshot does not match its content")
    pictures: Any = orjson.loads(content)
    if not isinstance(pictures, dict) or not all(isinstance(picture, dict) for picture in pictures.values()):
        raise MetadataError("a snapshot that does not contain tables")
    return ReplicatedTables(applied_index, pictures)


def load(folder: Path) -> ReplicatedTables | None:
    """The tables in `folder`; None if there is no file. Raises SnapshotError if it is damaged; OSError.

    A damaged file must not be treated as a missing one: older entries may already be deleted from the log.
    """
    path = folder / FILE_NAME
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except MetadataError as error:
        raise SnapshotError(path, error.reason) from error


def save(door: Door, folder: Path, data: bytes) -> None:
    """Durably replaces the file by `encode`'s bytes. Blocks. OSError: the previous file can still be loaded."""
    door.mkdir(folder)
    replace_file(door, folder / FILE_NAME, data)
