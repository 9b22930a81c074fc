"""The files of an unfinished conversion, in the folder that it writes.

    tally-convert          the state, as JSON: which store is converted, into what, and how far that is durable
    tally-convert-places   pairs of positions, 16 bytes each: (old log, new log), big-endian, as the kernel returns them
    commitlog.converting   the new log; or `dledger-n0.converting`, with `data/` and `index/`

The new log has its final name only when everything else is complete and durable, so neither tallystick nor RocketMQ
takes an unfinished conversion for a store. The state is replaced as a whole, after what it describes was synced. A
conversion that was interrupted at any point continues from its state; what is behind it in the new log is removed.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store.replace_file import replace_file

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

FILE_NAME = "tally-convert"
PLACES_NAME = "tally-convert-places"
UNFINISHED = ".converting"
"""Behind the name of the folder of an unfinished log."""

_FORMAT = 1
_PAIR = struct.Struct(">QQ")


class JournalError(ValueError):
    """The state of a conversion cannot be used; the text names the file."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of the old log that was left out because it is damaged. `file`, `offset`: where it begins."""

    begin: int
    end: int
    file: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} at byte {self.offset}: {self.reason}; {self.end - self.begin} bytes are left out"


@dataclass(slots=True)
class State:
    """How far a conversion is. What it says is durable."""

    layout: str
    """Of the new log: `plain` or `dledger`."""
    member: str
    """Id of the member whose folder the new log is in (n0); "" in the plain layout."""
    segment_bytes: int
    first: int
    """Position of the first byte of the new log."""
    source_first: int
    """Position of the first byte of the old log."""
    index_segment_bytes: int
    """Of the index of entries, in dledger's layout."""
    part: int = 0
    """Number of the part of the old log that is read."""
    pos: int = 0
    """The old log was read up to this position."""
    anchor_bytes: int = 0
    anchor_crc: int = 0
    """CRC-32 of so many bytes before `pos`: whether this is still the same log."""
    target_pos: int = 0
    next_index: int = 0
    chain: int = 0
    pairs: int = 0
    """Number of pairs in the file of places."""
    records: int = 0
    own_entries: int = 0
    references: int = 0
    dangling: int = 0
    """Records that end a transaction whose half message is not in the log."""
    gaps: list[Gap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = False
    """Everything is durable and was compared: only the name of the new log is left to change."""

    def save(self, door: Door, folder: Path) -> None:
        """Durably replaces the file. OSError: the previous state stays valid."""
        fields = {"format": _FORMAT, **asdict(self)}
        text = json.dumps(fields, indent=1).encode()
        replace_file(door, folder / FILE_NAME, b"%s\ncrc32 %d\n" % (text, zlib.crc32(text)))

    @classmethod
    def load(cls, folder: Path) -> State | None:
        """The state in `folder`; None without a file. Raises JournalError or OSError."""
        path = folder / FILE_NAME
        try:
            text, _, crc = path.read_bytes().rpartition(b"\ncrc32 ")
            if not crc.strip().isdigit() or int(crc) != zlib.crc32(text):
                raise ValueError("its CRC differs")
            fields = json.loads(text)
            if fields.pop("format") != _FORMAT:
                raise ValueError("it has the format of another version")
            fields["gaps"] = [Gap(**gap) for gap in fields["gaps"]]
            return cls(**fields)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(
                f"{path} cannot be used: {error}. Remove {folder} and begin the conversion again"
            ) from error

    def add_places(self, door: Door, folder: Path, pairs: list[tuple[int, int]]) -> None:
        """Appends pairs to the file of places; durable when the state is saved. OSError."""
        if pairs:
            path = folder / PLACES_NAME
            if not path.exists():
                door.create(path, 0, False)
                door.sync_dir(folder)
            door.write(path, self.pairs * _PAIR.size, b"".join(_PAIR.pack(*pair) for pair in pairs))
            door.sync(path)
            self.pairs += len(pairs)

    def places(self, folder: Path) -> list[tuple[int, int]]:
        """The pairs that were saved. Raises JournalError or OSError."""
        if not self.pairs:
            return []
        with (folder / PLACES_NAME).open("rb") as file:
            data = file.read(self.pairs * _PAIR.size)
        if len(data) != self.pairs * _PAIR.size:
            raise JournalError(f"{folder / PLACES_NAME} is too short. Remove {folder} and begin the conversion again")
        return [(old, new) for old, new in _PAIR.iter_unpack(data)]
