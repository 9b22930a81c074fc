"""The replicated tables as the log has them: pictures by name, changed by METADATA entries in the order of the log.

Every member applies the same entries in the same order, so all members have the same pictures at the same index. The
state is a value: it knows no leader, no clock and no file. Applied index and pictures go together, also on the disk
(`snapshot`), so that each entry counts once (S12).
"""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.replication.metadata.entry import TablePatch, decode
from tallystick.replication.metadata.merge_patch import Picture, merged


class ReplicatedTables:
    """The committed pictures. `applied_index`: of the last log entry that counted, of any kind; -1: none did."""

    def __init__(self, applied_index: int = -1, pictures: Mapping[str, Picture] | None = None) -> None:
        self.applied_index = applied_index
        self._pictures: dict[str, Picture] = dict(pictures or {})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReplicatedTables):
            return NotImplemented
        return self.applied_index == other.applied_index and self._pictures == other._pictures

    __hash__ = None  # type: ignore[assignment]  # it changes

    def picture(self, table: str) -> Picture:
        """A table as committed; {}: nobody wrote it yet. Later entries do not change what was handed out."""
        return self._pictures.get(table, {})

    def pictures(self) -> dict[str, Picture]:
        """All of them, by name."""
        return dict(self._pictures)

    def apply(self, index: int, body: bytes) -> TablePatch | None:
        """Entry `index` is committed; what it changed. None: it had been applied before, and changes nothing.

        MetadataError: this version does not understand it. It must stop then: its tables would not be the others' any
        more, and with them what it would do as a leader.
        """
        if index <= self.applied_index:
            return None
        change = decode(body)
        self._pictures[change.table] = merged(self.picture(change.table), change.patch)
        self.applied_index = index
        return change

    def pass_over(self, index: int) -> None:
        """Entries up to `index` are committed and none of them was of this kind."""
        self.applied_index = max(self.applied_index, index)
