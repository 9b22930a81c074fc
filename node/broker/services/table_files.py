"""The files of a broker's tables: opens each, whatever its state, and rebuilds what can be rebuilt.

`store/table_opening.py` decides which version of a file is used, `rebuilding.py` restores rows from other files. This
module states what is lost with each file, as texts for operators.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tallystick.node.broker.services.rebuilding import Rebuilding
from tallystick.node.broker.tables.saving import SavedTable
from tallystick.store.findings import FindingKind
from tallystick.store.table_opening import OpenedFile, Origin, open_table
from tallystick.store.tables import JsonTable

if TYPE_CHECKING:
    from tallystick.node.broker.tables.consumer_groups import SubscriptionGroupTable
    from tallystick.node.broker.tables.offsets import ConsumerOffsets
    from tallystick.node.broker.tables.topics import TopicTable
    from tallystick.store._kernel import Door
    from tallystick.store.finding_log import FindingLog

T = TypeVar("T")
_logger = logging.getLogger("tallystick.broker")
_MAX_REPORTED = 20

_LOST = {
    "topics.json": "topics are rebuilt from their ConsumeQueues, with default settings",
    "subscriptionGroup.json": "groups are rebuilt from their retry topics and offsets, with default settings",
    "consumerOffset.json": "committed offsets are lost, consumer groups begin at their consumeFromWhere",
    "delayOffset.json": "delayed messages that are still in the log are delivered again",
    "firstOffset.json": "messages that expired by the retention of their topics expire again, up to a minute later",
    "consumerFilter.json": "SQL92 filters come back with the consumers' heartbeats",
}


class TableFiles:
    """The folder `config/` of one broker."""

    def __init__(self, door: Door, config: Path, findings: FindingLog, *, pictures: bool) -> None:
        """`pictures`: the broker is a member of a group, and the files are written from the group's log."""
        self._door, self._config, self._findings, self._pictures = door, config, findings, pictures
        self._origins: dict[str, Origin] = {}

    def file(self, name: str) -> JsonTable:
        """One file."""
        return JsonTable(self._door, self._config / name)

    def open(self, name: str, make: Callable[[OpenedFile], T], *, picture: bool = True) -> T:
        """The table of a file; `picture`: a member of a group writes it from the log. Raises TableError or OSError."""
        opened = open_table(self.file(name), make, self._findings, lost=_LOST[name], picture=picture and self._pictures)
        self._origins[name] = opened.origin
        if isinstance(opened.table, SavedTable) and (opened.damaged or opened.origin is Origin.BACKUP):
            opened.table.changed()  # the next save writes the missing file
        return opened.table

    def rebuild(
        self,
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsets,
        queues: Iterable[tuple[str, int]],
    ) -> None:
        """Adds rows from the other files to tables that were not read from their newest version."""
        Rebuilding(self._origins, self._config, self._findings).run(topics, groups, offsets, queues)

    def report_unknown(self, topics: Mapping[str, int]) -> None:
        """Reports topics that are in no table, with the number of their messages in the log, which cannot be read."""
        for topic, count in sorted(topics.items())[:_MAX_REPORTED]:
            reason = (
                f"has no topic {topic}, but the log has {count} messages of it: create it with updateTopic to read"
                " them, or delete it with deleteTopic"
            )
            self._findings.add(FindingKind.NOTE, self._config / "topics.json", reason)
        if topics:
            _logger.warning(
                "%d topics have messages and are not in topics.json: %s", len(topics), ", ".join(sorted(topics)[:20])
            )
