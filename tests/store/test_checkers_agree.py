"""What each checker of a store finds: a table of damage and checkers, with the reason where one does not look.

The table stands in `docs/operation.md` as well ("What each check covers"). Whatever builds something again leaves a
store in which `tally store verify` finds nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from engine_lab import filled_store, opened, small

from tallystick.spark.jobs import audit
from tallystick.spark.options import ReadOptions
from tallystick.spark.runner import inline
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.queue_format import INDEX_ENTRY
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.settings import StoreSettings
from tallystick.store.verify.repair import StoreRepair
from tallystick.store.verify.report import verify

COUNT = 150
TOPICS = "config/topics.json"
EXT_BYTES = 20 * 20 + 4


def chosen(root: Path) -> StoreSettings:
    return small(
        root, enableConsumeQueueExt=True, mappedFileSizeConsumeQueueExt=EXT_BYTES, scrubBytesPerSecond=0, maxIndexNum=64
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled_store(chosen(tmp_path_factory.mktemp("sound") / "store"), COUNT)


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def record(root: Path, number: int) -> tuple[Path, int]:
    with SegmentFiles(root / "commitlog") as log:
        pos = [step.pos for step in walk(log) if step.kind is StepKind.RECORD][number]
    return root / "commitlog" / segment_name(pos - pos % 4096), pos % 4096


def body(root: Path, number: int) -> None:
    path, at = record(root, number)
    patch(path, at + 90, b"\xee")


def queue(root: Path, number: int = 0) -> Path:
    return sorted((root / "consumequeue/T/0").iterdir())[number]


def ext(root: Path) -> Path:
    return root / "consumequeue_ext/T/0" / segment_name(0)


def index(root: Path) -> Path:
    return sorted((root / "index").iterdir())[0]


ENTRY_9 = 40 + 32 * 4 + INDEX_ENTRY.size * 9

Damage = Callable[[Path], object]

FINDS = "finds"
UNSEALED = "no: not a full segment"
DURABLE = "no: reads the log from the mark on"
UNITS = "no: compares no units"
EXT_UNITS = "no: reads no extension units"
LATER = "finds; the next start rebuilds"
TABLES = "no: the broker loads tables, not the store"
NOT_READ = "no: reads log, queues, index"
SILENT = "no: makes it again"


class Row(NamedTuple):
    """A kind of damage, and what each checker says of it. Anything but "finds..." is why it says nothing."""

    damage: Damage
    verify: str
    scrub: str
    start: str
    dry_run: str
    audit: str


def unit(number: int, at: int, data: bytes) -> Damage:
    return lambda root: patch(queue(root, number * 20 // 320), number * 20 % 320 + at, data)


FAR = (1 << 40).to_bytes(8)
LAST = COUNT // 2 - 1
TABLE: dict[str, Row] = {
    "log: body in a full segment": Row(lambda root: body(root, 5), FINDS, FINDS, DURABLE, FINDS, FINDS),
    "log: body in the last segment": Row(lambda root: body(root, COUNT - 2), FINDS, UNSEALED, FINDS, FINDS, FINDS),
    "ConsumeQueue: position in a unit": Row(unit(7, 0, bytes(6) + b"\1\1"), FINDS, FINDS, UNITS, FINDS, FINDS),
    "ConsumeQueue: tags code": Row(unit(7, 12, bytes(8)), FINDS, FINDS, UNITS, FINDS, FINDS),
    "ConsumeQueue: hole": Row(unit(7, 0, bytes(100)), FINDS, FINDS, UNITS, FINDS, FINDS),
    "ConsumeQueue: unit behind the log's end": Row(unit(7, 0, FAR), FINDS, FINDS, UNITS, FINDS, FINDS),
    "ConsumeQueue: last unit behind the log's end": Row(unit(LAST, 0, FAR), FINDS, UNSEALED, FINDS, FINDS, FINDS),
    "ConsumeQueue: missing file": Row(lambda root: queue(root, 1).unlink(), FINDS, LATER, FINDS, FINDS, FINDS),
    "ConsumeQueue: short file": Row(lambda root: os.truncate(queue(root, 1), 100), FINDS, LATER, FINDS, FINDS, FINDS),
    "extension: unit": Row(lambda root: patch(ext(root), 20 * 7, bytes(20)), FINDS, FINDS, EXT_UNITS, FINDS, FINDS),
    "extension: missing file": Row(lambda root: ext(root).unlink(), FINDS, FINDS, EXT_UNITS, FINDS, FINDS),
    "extension: short file": Row(lambda root: os.truncate(ext(root), 100), FINDS, LATER, FINDS, FINDS, FINDS),
    "index: header": Row(lambda root: patch(index(root), 0, b"\1" * 8), FINDS, FINDS, FINDS, FINDS, FINDS),
    "index: slot": Row(lambda root: patch(index(root), 40, b"\0\0\0\x3d"), FINDS, FINDS, FINDS, FINDS, FINDS),
    "index: entry": Row(lambda root: patch(index(root), ENTRY_9, b"\0\1\2\3"), FINDS, FINDS, FINDS, FINDS, FINDS),
    "index: missing file": Row(lambda root: index(root).unlink(), FINDS, FINDS, FINDS, FINDS, FINDS),
    "config: table": Row(lambda root: patch(root / TOPICS, 0, b"x"), FINDS, NOT_READ, TABLES, FINDS, FINDS),
    "tally-progress": Row(
        lambda root: (root / "tally-progress").write_bytes(b"x" * 8192), FINDS, NOT_READ, SILENT, FINDS, FINDS
    ),
    "tally-queues": Row(lambda root: patch(root / "tally-queues", 30, b"xxxx"), FINDS, NOT_READ, SILENT, FINDS, FINDS),
    "checkpoint": Row(lambda root: os.truncate(root / "checkpoint", 7), FINDS, NOT_READ, SILENT, FINDS, FINDS),
}


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Callable[[Damage], Path]:
    """A fresh copy of the store with this damage."""

    def make(damage: Damage) -> Path:
        root = tmp_path / "store"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(sound, root)
        damage(root)
        return root

    return make


def nothing(root: Path) -> None:
    """No damage."""


def wrong(root: Path) -> set[str]:
    """Folders and files in which `verify` finds something, also what the next start repairs."""
    report = verify(root)
    return {finding.file.split("/")[0] for finding in (*report.damage, *report.notes)}


def is_left(kind: str) -> set[str]:
    """What a repair leaves: it does not change the log."""
    return {"commitlog"} if kind.startswith("log: ") else set()


@pytest.mark.parametrize("kind", TABLE)
def test_verify(damaged: Callable[[Damage], Path], kind: str) -> None:
    root = damaged(nothing)
    assert wrong(root) == set()
    TABLE[kind].damage(root)
    assert bool(wrong(root)) is TABLE[kind].verify.startswith(FINDS)


@pytest.mark.parametrize("kind", TABLE)
def test_repair(damaged: Callable[[Damage], Path], kind: str) -> None:
    root = damaged(TABLE[kind].damage)
    with StoreRepair.opened(root, dry_run=True) as repair:
        plan = repair.look()
    assert (plan.useful or bool(plan.log or plan.tables)) is TABLE[kind].dry_run.startswith(FINDS)
    with StoreRepair.opened(root) as repair:
        repair.run(repair.look())
    assert wrong(root) == is_left(kind)


@pytest.mark.parametrize("kind", TABLE)
async def test_start(damaged: Callable[[Damage], Path], kind: str) -> None:
    root = damaged(TABLE[kind].damage)
    expected = TABLE[kind].start
    async with opened(chosen(root)) as store:
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "look-at-index"))
        await store.index_repair.close()
        assert bool(store.findings.listed()) is expected.startswith(FINDS)
    if expected in (FINDS, SILENT):
        assert wrong(root) == is_left(kind)


@pytest.mark.parametrize("kind", TABLE)
async def test_scrub(damaged: Callable[[Damage], Path], kind: str) -> None:
    """Of a broker that runs when the damage comes. Each finding is told once, however often the scrub comes by."""
    root = damaged(nothing)
    expected = TABLE[kind].scrub
    async with opened(chosen(root)) as store:
        store.scrub._setting = 1 << 40
        TABLE[kind].damage(root)
        await store.scrub._pass()
        counts = store.findings.counts()
        assert bool(store.findings.listed()) is expected.startswith(FINDS)
        await store.scrub._pass()
        assert store.findings.counts() == counts
    if expected == LATER:
        async with opened(chosen(root)):
            pass
    if expected.startswith(FINDS):
        assert wrong(root) == is_left(kind)


@pytest.mark.parametrize("kind", TABLE)
def test_audit(damaged: Callable[[Damage], Path], kind: str) -> None:
    root = damaged(TABLE[kind].damage)
    summary = audit.run(ReadOptions.parse({"path": f"n0={root}"}), inline)
    assert bool(summary["differences"] or summary["notes"]) is TABLE[kind].audit.startswith(FINDS)


def test_the_documents_say_the_same() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operation.md").read_text()
    for kind, row in TABLE.items():
        assert f"| {kind} | {' | '.join(row[1:])} |\n" in text, kind
