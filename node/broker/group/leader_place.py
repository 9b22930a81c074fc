"""The place of a group's leader: a row that each new leader puts into the log, so that others can forward requests.

    {"leaders": {"leader": {"term": 7, "member": 2, "address": "10.0.0.3:10911", "key": "…"}}}

`address` is the address for clients. Each process creates a new `key`. A sender that knows the key has read the group's
log, so it is a member, and its statement about a client's address can be trusted. A row is valid only in its own term:
a term has one leader, so a member in that term knows that this is the leader. The row is staged with the first tables
of a leadership, before anything that clients send; followers have it soon afterwards.

No separate file keeps it: it is in the tables' snapshot, it is not configuration, and people do not need it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from tallystick.node.broker.tables.saving import NoFile, ReplicatedTable

_ROW = "leader"
_KEY_BYTES = 16


class Place(NamedTuple):
    """One leadership and its place. `member`: its number; `address`: `host:port`."""

    term: int
    member: int
    address: str
    key: str


class LeaderPlace(ReplicatedTable):
    """The newest committed leadership; at the leader itself, its own."""

    what = "leader"
    rows_field = "leaders"
    at_once = True

    def __init__(self, member: int, address: str) -> None:
        """`member`, `address`: of this broker, for when it leads."""
        super().__init__(NoFile())
        self.place: Place | None = None
        self.key = secrets.token_hex(_KEY_BYTES)
        """The key of this process; members that know it can act for clients."""
        self.on_taken: list[Callable[[], None]] = []
        """Called when the group committed another leadership."""
        self._member, self._address = member, address

    def announce(self, term: int) -> None:
        """This member leads from now on. Call it before the tables of its leadership are staged."""
        self.place = Place(term, self._member, self._address, self.key)
        self.changed(_ROW)

    def of_term(self, term: int) -> Place | None:
        """The place of this term's leader; None if it has not announced it, or it is not committed here."""
        place = self.place
        return place if place is not None and place.term == term else None

    def to_json(self) -> dict[str, Any]:
        return self.picture()

    def row_names(self) -> Collection[str]:
        return () if self.place is None else (_ROW,)

    def row_json(self, name: str) -> dict[str, Any] | None:
        return None if self.place is None or name != _ROW else self.place._asdict()

    def take_row(self, name: str, row: Any) -> None:
        if name != _ROW:
            return  # written by a later version
        self.place = None if row is None else Place(*(row[field] for field in Place._fields))
        for callback in self.on_taken:
            callback()
