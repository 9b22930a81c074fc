"""The content of a METADATA entry: one patch of one table, as a JSON object that people can read in the log.

    {"format":1,"patch":{"topicConfigTable":{"T":{"perm":6,...}}},"table":"topics.json"}

A change that is too large for one entry is split into several, which are applied one after the other. A reader can see
a table with only some of its rows changed, but never a row that was not written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from tallystick.replication.metadata.merge_patch import Patch, PatchError, split

FORMAT = 1  # do not change: it is on disks
MAX_BODY_BYTES = 256 * 1024
"""Limit for the content of one entry. It is small compared with an append request, so it does not delay messages."""


class MetadataError(ValueError):
    """The content of an entry or of a snapshot is invalid for this version; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TablePatch(NamedTuple):
    """The change that one entry makes to one table."""

    table: str
    patch: Patch


def encode(change: TablePatch, max_bytes: int = MAX_BODY_BYTES) -> Iterator[bytes]:
    """The contents of the entries that carry out `change`, in order, each of at most `max_bytes`.

    Raises PatchError if a single value does not fit.
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
        raise PatchError(f"not JSON: {error}") from error


def decode(body: bytes) -> TablePatch:
    """Raises MetadataError if the content is invalid, or of a format that this version does not know."""
    try:
        fields: Any = orjson.loads(body)
    except ValueError as error:
        raise MetadataError(f"a metadata entry is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise MetadataError("a metadata entry is not a JSON object")
    if fields.get("format") != FORMAT:
        raise MetadataError(f"a metadata entry of format {fields.get('format')!r}, this version knows {FORMAT}")
    table, patch = fields.get("table"), fields.get("patch")
    if not isinstance(table, str) or not isinstance(patch, dict):
        raise MetadataError("a metadata entry names no table or has no patch")
    return TablePatch(table, patch)
