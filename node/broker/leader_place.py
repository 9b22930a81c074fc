"""Where a group's leader is: a row that each new leader puts into the log, so that the others can pass requests on.

    {"leaders": {"leader": {"term": 7, "member": 2, "address": "10.0.0.3:10911", "key": "…"}}}

`address` is the one that clients are told. `key` is made anew by every process: who knows it has read the group's log,
so what he says about a client's address is a member's word. A row holds in its own term only: there is one leader in a
term, so a member whose term it is knows that this is the one. The row is staged with the first tables of a leadership,
before anything that clients send; a follower has it a moment later.

Nothing of it is kept in a file beside the tables' snapshot: it says nothing to people, and it is no configuration.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from tallystick.node.broker.saving import ReplicatedTable

_ROW = "leader"
_KEY_BYTES = 16


class Place(NamedTuple):
    """One leadership, and where it is. `member`: its number; `address`: `host:port`."""

    term: int
    member: int
    address: str
    key: str


class NoFile:
    """The file of a table that has none."""

    def load(self) -> Any:
        return None

    def save(self, value: Any) -> None:
        """Nothing is kept."""


class LeaderPlace(ReplicatedTable):
    """The newest leadership that is committed; at the leader itself: its own."""

    what = "leader"
    rows_field = "leaders"
    at_once = True

    def __init__(self, member: int, address: str) -> None:
        """`member`, `address`: our own, for when we lead."""
        super().__init__(NoFile())
        self.place: Place | None = None
        self.key = secrets.token_hex(_KEY_BYTES)
        """Ours; members that know it may speak for clients."""
        self.on_taken: list[Callable[[], None]] = []
        """The group committed another one."""
        self._member, self._address = member, address

    def announce(self, term: int) -> None:
        """This member leads from now on: to be said before the tables of its leadership are staged."""
        self.place = Place(term, self._member, self._address, self.key)
        self.changed(_ROW)

    def of_term(self, term: int) -> Place | None:
        """Where the leader of this term is; None: it has not said so yet, or we have not heard it."""
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
            return  # of a later version
        self.place = None if row is None else Place(*(row[field] for field in Place._fields))
        for callback in self.on_taken:
            callback()
