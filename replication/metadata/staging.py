"""A leader's side of the replicated tables: what changed since it was last put into the log, as contents of entries.

    live table ──rows that changed──▶ contents of entries ──the log took one──▶ staged picture

The staged pictures are the committed ones with all that this leader put into its log on top. They begin at a
leadership, when all entries before it are applied, and are thrown away when it ends: what is not committed by then may
be or not, and the log alone will tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tallystick.replication.metadata.entry import MAX_BODY_BYTES, TablePatch, decode, encode
from tallystick.replication.metadata.merge_patch import Patch, Picture, diff, merged
from tallystick.replication.metadata.tables import ReplicatedTables


class StagedTables:
    """The pictures as they will be when all that is staged is committed."""

    def __init__(self, committed: ReplicatedTables, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._pictures = committed.pictures()
        self._max_body_bytes = max_body_bytes

    def picture(self, table: str) -> Picture:
        """A table as staged; {}: nobody wrote it yet."""
        return self._pictures.get(table, {})

    def took(self, body: bytes) -> None:
        """The log has an entry with this content now."""
        change = decode(body)
        self._pictures[change.table] = merged(self.picture(change.table), change.patch)

    def replace(self, table: str, picture: Picture) -> list[bytes]:
        """Contents of entries that make the whole table `picture`; []: it is that already.

        They count when the log `took` them, one after the other. PatchError: no entry can hold it.
        """
        return self._entries(table, diff(self.picture(table), picture))

    def replace_rows(
        self, table: str, field: str, rows: Mapping[str, Any], head: Mapping[str, Any] | None = None
    ) -> list[bytes]:
        """The same for the named rows in `field` (None: gone), and then the fields of `head`.

        The cost follows the rows, not the table. PatchError.
        """
        before = self.picture(table)
        old = before.get(field, {})
        patch: Patch = {}
        changed = diff(
            {key: old[key] for key in rows if key in old},
            {key: value for key, value in rows.items() if value is not None},
        )
        if changed:
            patch[field] = changed
        head = head or {}
        patch.update(diff({key: before[key] for key in head if key in before}, head))
        return self._entries(table, patch)

    def _entries(self, table: str, patch: Patch) -> list[bytes]:
        if not patch:
            return []
        return list(encode(TablePatch(table, patch), self._max_body_bytes))
