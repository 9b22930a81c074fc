"""Where queues begin because the retention of their topics is shorter than the log's: `config/firstOffset.json`.

A queue has its row from when messages of it expired. `offset` is its first offset; the messages before it have expired.
`last_pos` is the position of the last of them in the log, which proves that the row is about this queue: a queue of a
topic that was deleted and created again has another record at that offset.

The table is written before a queue begins later, so that no restart and no other leader of a group lets it begin
earlier again. RocketMQ does not know the file, and ignores it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from tallystick.node.broker.tables.saving import ReplicatedTable, TableFile, rows


class First(NamedTuple):
    """The begin of a queue: its first offset, and the position of the last message before it."""

    offset: int
    last_pos: int


class FirstOffsets(ReplicatedTable):
    """Begins by topic and queue. `on_taken` gets the queues of a topic whose begins the group committed."""

    what = "firstOffset.json"
    rows_field = "offsetTable"

    def __init__(self, file: TableFile) -> None:
        """The content of `file`. Raises ValueError or TypeError if it is not a table of first offsets."""
        super().__init__(file)
        # As in the picture, which is taken often: 50 000 queues are copied in a millisecond. The lists never change.
        self._rows: dict[str, dict[str, list[int]]] = {}
        self.on_taken: Callable[[str, Mapping[int, First]], None] = lambda topic, queues: None
        stored = file.load()
        for topic, row in ({} if stored is None else rows(stored, self.rows_field)).items():
            self.take_row(topic, row)

    def __contains__(self, topic: object) -> bool:
        return topic in self._rows

    def get(self, topic: str, queue_id: int) -> First | None:
        """The begin of a queue; None: no message of it has expired."""
        row = self._rows.get(topic, {}).get(str(queue_id))
        return None if row is None else First(*row)

    def queues(self, topic: str) -> dict[int, First]:
        """The begins of a topic's queues."""
        return {int(queue_id): First(*row) for queue_id, row in self._rows.get(topic, {}).items()}

    def has_expired(self, topic: str, queue_id: int, offset: int, pos: int) -> bool:
        """Whether the record at this position has expired."""
        first = self.get(topic, queue_id)
        return first is not None and offset < first.offset and pos <= first.last_pos

    def note(self, found: Mapping[str, Mapping[int, First]]) -> None:
        """Queues of these topics begin later. Raises ValueError if this broker is a follower."""
        self.must_lead()
        for topic, queues in found.items():
            self._rows.setdefault(topic, {}).update({str(queue_id): list(first) for queue_id, first in queues.items()})
        if found:
            self.changed(*found)

    def remove(self, *topics: str) -> None:
        """Removes the rows of topics. Raises ValueError if this broker is a follower."""
        self.must_lead()
        if known := [topic for topic in topics if self._rows.pop(topic, None) is not None]:
            self.changed(*known)

    def row_names(self) -> Collection[str]:
        return self._rows.keys()

    def row_json(self, name: str) -> dict[str, list[int]] | None:
        row = self._rows.get(name)
        return None if row is None else dict(row)

    def take_row(self, name: str, row: Any) -> None:
        if row is None:
            self._rows.pop(name, None)
            return
        found: dict[str, list[int]] = {}
        for queue_id, (offset, last_pos) in row.items():
            if min(int(queue_id), int(offset), int(last_pos)) < 0:
                raise ValueError(f"the first offset of {name} queue {queue_id} is {offset} behind {last_pos}")
            found[str(int(queue_id))] = [int(offset), int(last_pos)]
        before = self._rows.get(name, {})
        self._rows[name] = found
        new = {int(queue_id): First(*begin) for queue_id, begin in found.items() if before.get(queue_id) != begin}
        self.on_taken(name, new)

    def to_json(self) -> dict[str, Any]:
        return self.picture()
