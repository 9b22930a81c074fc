"""A leader's side of the replicated tables: changes since the last entry, as contents of new entries.

    live table ──rows that changed──▶ contents of entries ──the log accepted one──▶ staged picture

The staged pictures are the committed ones plus all changes that this leader has put into its log. They are created when
a leadership begins, after all earlier entries are applied, and dropped when it ends: it is then unknown which of the
uncommitted entries take effect, and only the log decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tallystick.replication.metadata.entry import MAX_BODY_BYTES, TablePatch, decode, encode
from tallystick.replication.metadata.merge_patch import Patch, Picture, diff, merged
from tallystick.replication.metadata.tables import ReplicatedTables


class StagedTables:
    """The pictures as they will be when everything that is staged is committed."""

    def __init__(self, committed: ReplicatedTables, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._pictures = committed.pictures()
        self._max_body_bytes = max_body_bytes

    def picture(self, table: str) -> Picture:
        """A table as staged; {} if it was never written."""
        return self._pictures.get(table, {})

    def took(self, body: bytes) -> None:
        """The log now has an entry with this content."""
        change = decode(body)
        self._pictures[change.table] = merged(self.picture(change.table), change.patch)

    def replace(self, table: str, picture: Picture) -> list[bytes]:
        """Contents of entries that turn the whole table into `picture`; [] if it already is.

        They take effect when the log has accepted each of them (`took`). Raises PatchError if no entry can hold a
        value.
        """
        return self._entries(table, diff(self.picture(table), picture))

    def replace_rows(
        self, table: str, field: str, rows: Mapping[str, Any], head: Mapping[str, Any] | None = None
    ) -> list[bytes]:
        """Like `replace`, but for the named rows in `field` (None: removed), and then for the fields of `head`.

        The cost depends on the rows, not on the table. Raises PatchError.
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
