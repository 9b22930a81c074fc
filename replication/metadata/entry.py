"""The content of a METADATA entry: one patch of one table, as a JSON object, so that it can be read where it lies.

    {"format":1,"patch":{"topicConfigTable":{"T":{"perm":6,...}}},"table":"topics.json"}

A change that is larger than an entry may be becomes several, which are applied one after the other: a reader may see a
table with a part of its rows changed, never a row that nobody wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from tallystick.replication.metadata.merge_patch import Patch, PatchError, split

FORMAT = 1  # fixed: it is on disks
MAX_BODY_BYTES = 256 * 1024
"""Of one entry's content. Small beside an append request, so that metadata does not hold up messages."""


class MetadataError(ValueError):
    """The content of an entry or of a snapshot is not what this version writes; `reason` says where it fails."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TablePatch(NamedTuple):
    """What one entry does to one table."""

    table: str
    patch: Patch


def encode(change: TablePatch, max_bytes: int = MAX_BODY_BYTES) -> Iterator[bytes]:
    """The contents of the entries that make `change`, in order, each of at most `max_bytes`.

    PatchError: a single value does not fit.
    """
    frame_bytes = len(_body(TablePatch(change.table, {}))) - 2
    for part in split(change.patch, max_bytes - frame_bytes):
        body = _body(TablePatch(change.table, part))
        assert len(body) <= max_bytes, "split keeps the size"
        yield body


def _body(change: TablePatch) -> bytes:
    try:
        return orjson.dumps({"format": FORMAT, "patch": change.patch, "table": change.table})
    except (TypeError, ValueError) as error:
        raise PatchError(f"no JSON: {error}") from error


def decode(body: bytes) -> TablePatch:
    """MetadataError: no such content, or of a format that this version does not know."""
    try:
        fields: Any = orjson.loads(body)
    except ValueError as error:
        raise MetadataError(f"a metadata entry is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise MetadataError("a metadata entry is no JSON object")
    if fields.get("format") != FORMAT:
        raise MetadataError(f"a metadata entry of format {fields.get('format')!r}, this version knows {FORMAT}")
    table, patch = fields.get("table"), fields.get("patch")
    if not isinstance(table, str) or not isinstance(patch, dict):
        raise MetadataError("a metadata entry names no table or has no patch")
    return TablePatch(table, patch)
