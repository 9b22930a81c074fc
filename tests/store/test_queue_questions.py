"""The cheap questions by which a start finds queues and index files to build again, each by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tallystick.store._kernel import Door, IndexFile, QueueExtent, QueueFault
from tallystick.store.engine.queue_recovery import QueueRecovery
from tallystick.store.engine.queue_repair import QueueRepair
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import FindingKind
from tallystick.store.formats.progress import Point, lock_time_ns
from tallystick.store.formats.queue_table import QueueTable

FILES = (("20260101000000000", 5000), ("20260102000000000", 9000))


@pytest.fixture(autouse=True)
def lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"lock")


def recovery_of(root: Path, dispatch: Mock, table: QueueTable | None = None) -> QueueRecovery:
    if table is not None:
        table.save(Door(), root)
    return QueueRecovery(root, dispatch, lambda *finding: None, lambda pos, end: None)


def table_of(root: Path) -> QueueTable:
    return QueueTable(9000, lock_time_ns(root), 0, 320, FILES, b"rows" * 9)


def test_a_table_of_another_life_of_the_store_is_not_believed(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    assert recovery_of(tmp_path, Mock(), table).table == table
    assert recovery_of(tmp_path, Mock(), table._replace(lock_ns=table.lock_ns + 1)).table is None


@pytest.mark.parametrize("doubtful", [False, True])
def test_what_a_power_loss_may_leave_counts_only_where_it_is_asked_for(tmp_path: Path, doubtful: bool) -> None:
    certain, uncertain = (
        QueueFault(row)  # type: ignore[arg-type, call-arg]  # the kernel's class takes one sequence
        for row in ((b"A", 0, "a gap", 0, True), (b"B", 1, "zeros at its end", 0, False))
    )
    recovery = recovery_of(tmp_path, Mock(**{"queue_faults.return_value": [certain, uncertain]}))
    recovery.look_at_files(9000, doubtful=doubtful)
    assert set(recovery.broken) == ({(b"A", 0), (b"B", 1)} if doubtful else {(b"A", 0)})


@pytest.mark.parametrize(
    ("ends", "differs"), [((3, 2), False), ((5,), True), ((3, 1), True), ((3, 2, 0), False), ((3, 1, 1), True)]
)
def test_queues_and_units_are_both_compared_with_the_mark(tmp_path: Path, ends: tuple[int, ...], differs: bool) -> None:
    rows = [QueueExtent((b"A", queue, 0, end, 0, 0)) for queue, end in enumerate(ends)]  # type: ignore[arg-type, call-arg]
    recovery = recovery_of(tmp_path, Mock(**{"queues.return_value": rows}))
    assert bool(recovery.totals_differ(Point(pos=9000, queues=2, units=5))) is differs


@pytest.mark.parametrize(
    ("there", "dropped"),
    [
        ({FILES[0][0]: 5000, FILES[1][0]: 9000}, ""),
        ({FILES[0][0]: 5000, FILES[1][0]: 9900}, ""),  # it grew since
        ({FILES[0][0]: 4000, FILES[1][0]: 9000}, FILES[0][0]),  # it lost entries
        ({FILES[0][0]: 5000}, FILES[1][0]),
    ],
)
def test_an_index_file_that_is_missing_or_lost_entries_is_made_again(
    tmp_path: Path, there: dict[str, int], dropped: str
) -> None:
    dispatch = Mock()
    files = [IndexFile((name, 0, 0, 0, end, 0, 0)) for name, end in there.items()]  # type: ignore[arg-type, call-arg]
    dispatch.index_files.return_value = files
    dispatch.drop_index_from.side_effect = lambda name: 700 if name else -1
    pos, _ = recovery_of(tmp_path, dispatch, table_of(tmp_path)).lost_index(0)
    assert pos == (700 if dropped else -1)
    assert [call.args[0] for call in dispatch.drop_index_from.mock_calls] == ["", *([dropped] if dropped else [])]


def repair_of(root: Path, dispatch: Mock, dispatcher: Mock | None = None) -> tuple[QueueRepair, FindingLog]:
    settings: Any = SimpleNamespace(root=root, queue_segment_bytes=320)
    findings = FindingLog(root)
    return QueueRepair(settings, dispatch, dispatcher or Mock(), Mock(), findings, lambda: 0), findings


def test_messages_that_the_log_lost_are_reported(tmp_path: Path) -> None:
    repair, findings = repair_of(tmp_path, Mock(**{"repair.return_value": (20, 21, 2, 2, [])}))
    assert repair.repair(b"A", 0, 20)
    (found,) = findings.listed()
    assert (found.kind, found.file, found.offset) == (FindingKind.DAMAGE, f"consumequeue/A/0/{320:020}", 80)
    assert "2 of the messages at offsets 20 to 21 are no longer in the log" in found.reason


async def test_a_reader_waits_only_until_the_comparing_thread_ends(tmp_path: Path) -> None:
    dispatch = Mock()
    dispatcher = Mock()
    repair, _ = repair_of(tmp_path, dispatch, dispatcher)
    dispatch.repair.side_effect = OSError(5, "Input/output error")
    assert repair.look_at(b"A", 0, 20), "what cannot be compared is passed over"
    dispatch.repair.side_effect = None
    dispatch.repair.return_value = None  # more of the log has to be read than the event loop may
    told = asyncio.Event()
    dispatcher.on_arrival.side_effect = lambda queues: told.set()
    assert not repair.look_at(b"A", 0, 20)
    async with asyncio.timeout(10):
        await told.wait()
    dispatcher.on_arrival.assert_called_once_with([("A", 0)])


def test_only_what_was_dispatched_is_compared(tmp_path: Path) -> None:
    dispatch = Mock(position=50, **{"audit.return_value": SimpleNamespace(wrong=[])})
    repair, _ = repair_of(tmp_path, dispatch)
    for upto in (40, 100):
        repair.check_range(0, upto, 1 << 20)
    assert [call.args[:2] for call in dispatch.audit.mock_calls] == [(0, 40), (0, 50)]
