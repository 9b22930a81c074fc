"""The replicated tables in the log: pictures by name, which METADATA entries change in the order of the log.

Every member applies the same entries in the same order, so all members have the same pictures at the same index. The
state is a value without leader, clock or file. Applied index and pictures belong together, also on the disk
(`snapshot`), so that each entry is applied once (S12).
"""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.replication.metadata.entry import TablePatch, decode
from tallystick.replication.metadata.merge_patch import Picture, merged


class ReplicatedTables:
    """The committed pictures. `applied_index`: the last applied log entry of any kind; -1 if there is none."""

    def __init__(self, applied_index: int = -1, pictures: Mapping[str, Picture] | None = None) -> None:
        self.applied_index = applied_index
        self._pictures: dict[str, Picture] = dict(pictures or {})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReplicatedTables):
            return NotImplemented
        return self.applied_index == other.applied_index and self._pictures == other._pictures

    __hash__ = None  # type: ignore[assignment]  # it changes

    def picture(self, table: str) -> Picture:
        """A table as committed; {} if it was never written. Later entries do not change the returned value."""
        return self._pictures.get(table, {})

    def pictures(self) -> dict[str, Picture]:
        """All pictures, by name."""
        return dict(self._pictures)

    def apply(self, index: int, body: bytes) -> TablePatch | None:
        """Applies the committed entry `index`; returns its change. None: it was applied before, and changes nothing.

        Raises MetadataError if this version does not understand it. The member must stop then: its tables would differ
        from those of the others, and with them its behaviour as a leader.
        """
        if index <= self.applied_index:
            return None
        change = decode(body)
        self._pictures[change.table] = merged(self.picture(change.table), change.patch)
        self.applied_index = index
        return change

    def pass_over(self, index: int) -> None:
        """Entries up to `index` are committed, and none of them was of this kind."""
        self.applied_index = max(self.applied_index, index)
