"""What a group that follows a master knows of it: a table in the group's log, which is equal on every member.

    {"copy": {"state":     {"is": "following"},                      or "promoted": then the group is its own master
              "master":    {"address": "10.0.0.1:10911", "ha": "10.0.0.1:10912"},
              "promotion": {"master": "10.0.0.1:10911", ...},        see `record.Record`
              "ends":      {"T": {"0": 400}},                        queues whose messages expired before the copy
              "at:65536":  {"pos": 68104}}}                          place: the master's position, and the one here

A place is true for the log before its own entry: the records before `pos` are those of the master before its position.
Records have the same size in both logs. So the position of the master at the end of the log is the one of the last
place, plus the sizes of the records behind it. No other number is kept: a leader that is killed at any moment leaves a
log from which the next one continues exactly. A place is put into the log before the first record, before the first one
of each segment of the master (a filler has no entry here), and every `APART_BYTES`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from tallystick.node.broker.copying.record import Record
from tallystick.node.broker.tables.saving import NoFile, ReplicatedTable

APART_BYTES = 8 << 20
"""A new leader reads about so much to find its place in the master's log."""
FOLLOWING, PROMOTED = "following", "promoted"
_STATE, _MASTER, _PROMOTION, _ENDS, _AT = "state", "master", "promotion", "ends", "at:"


class Place(NamedTuple):
    """A position of the master's log, and the position in the group's log that corresponds to it."""

    master: int
    own: int


class CopyTable(ReplicatedTable):
    """The table of one member. A group that never followed a master has no row in it."""

    what = "copy"
    rows_field = "copy"
    at_once = True

    def __init__(self) -> None:
        super().__init__(NoFile())
        self._rows: dict[str, Any] = {}
        self._places: list[Place] | None = None  # None: not known since a change

    # -- rows ----------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str | None:
        """`FOLLOWING` or `PROMOTED`; None: the group never followed a master."""
        return state_of({self.rows_field: self._rows})

    @property
    def promotion(self) -> Record:
        """The promotion in progress, or the last one."""
        return replace(Record(), **self._rows.get(_PROMOTION, {}))

    @property
    def master(self) -> tuple[str, str]:
        """The master's addresses for clients and for slaves, as it was copied last; empty: never."""
        row = self._rows.get(_MASTER, {})
        return row.get("address", ""), row.get("ha", "")

    @property
    def ends(self) -> dict[tuple[str, int], int]:
        """The next offsets of queues that the master's log no longer shows."""
        return ends_of({self.rows_field: self._rows})

    def places(self) -> list[Place]:
        """All places, in the order of the logs."""
        if self._places is None:
            found = [(int(name[len(_AT) :]), row["pos"]) for name, row in self._rows.items() if name.startswith(_AT)]
            self._places = [Place(*pair) for pair in sorted(found)]
        return self._places

    # -- changes of a leader -------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """The group follows a master from now on."""
        self._set(_STATE, {"is": FOLLOWING})

    def set_master(self, address: str, ha_address: str) -> None:
        """The group copies this master."""
        if (address, ha_address) != self.master:
            self._set(_MASTER, {"address": address, "ha": ha_address})

    def add_place(self, place: Place) -> bool:
        """Puts a place into the log; False: the log accepts nothing now, and nothing was changed."""
        name = f"{_AT}{place.master}"
        self._set(name, {"pos": place.own})
        if self.row_durable(name):
            return True
        self._remove(name)
        return False

    def drop_behind(self, end: int) -> None:
        """The group's log was cut back to `end`: places behind it are no longer true."""
        names = [name for name, row in self._rows.items() if name.startswith(_AT) and row["pos"] > end]
        if names:
            self._remove(*names)

    def set_promotion(self, record: Record, *, decided: bool = False) -> None:
        """Replaces the record; `decided`: and the group is its own master. Both are one entry."""
        self._rows[_PROMOTION] = asdict(record)
        if decided:
            self._rows[_STATE] = {"is": PROMOTED}
        self.changed(_PROMOTION, _STATE)

    def set_ends(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Replaces the ends of queues."""
        rows: dict[str, dict[str, int]] = {}
        for (topic, queue_id), offset in sorted(ends.items()):
            rows.setdefault(topic, {})[str(queue_id)] = offset
        if rows != self._rows.get(_ENDS, {}):
            self._set(_ENDS, rows)

    def forget_places(self) -> None:
        """The group does not follow any longer."""
        names = [name for name in self._rows if name.startswith(_AT)]
        if names:
            self._remove(*names)

    def _set(self, name: str, row: Any) -> None:
        self._rows[name], self._places = row, None
        self.changed(name)

    def _remove(self, *names: str) -> None:
        for name in names:
            del self._rows[name]
        self._places = None
        self.changed(*names)

    # -- see `ReplicatedTable` -----------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """See `ReplicatedTable`."""
        return self.picture()

    def picture(self) -> dict[str, Any]:
        """See `ReplicatedTable`; {} for a group that never followed a master: it gets no entry."""
        return {self.rows_field: dict(self._rows)} if self._rows else {}

    def row_names(self) -> Collection[str]:
        """See `ReplicatedTable`."""
        return tuple(self._rows)

    def row_json(self, name: str) -> Any:
        """See `ReplicatedTable`."""
        return self._rows.get(name)

    def take_row(self, name: str, row: Any) -> None:
        """See `ReplicatedTable`."""
        self._places = None
        if row is None:
            self._rows.pop(name, None)
        else:
            self._rows[name] = row


def state_of(picture: Mapping[str, Any]) -> str | None:
    """`CopyTable.state` of a picture."""
    row = (picture.get(CopyTable.rows_field) or {}).get(_STATE)
    return None if row is None else str(row["is"])


def ends_of(picture: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """`CopyTable.ends` of a picture."""
    rows = (picture.get(CopyTable.rows_field) or {}).get(_ENDS) or {}
    return {
        (topic, int(queue_id)): int(offset) for topic, queues in rows.items() for queue_id, offset in queues.items()
    }
