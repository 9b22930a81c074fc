"""What tests of backups share: a place that fails, and short ways to back up, restore and compare."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

from engine_lab import message, opened, small

from tallystick.node.backup.create import BackupRun, Outcome
from tallystick.node.backup.errors import PlaceError
from tallystick.node.backup.manifest import SourceName
from tallystick.node.backup.pieces import Throttle
from tallystick.node.backup.places import FolderPlace, Place
from tallystick.node.backup.restore import Point, Restore, Restored
from tallystick.node.backup.seals import Seal
from tallystick.node.backup.source import SourceStore
from tallystick.store import tables
from tallystick.store._kernel import Door
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.record import Record
from tallystick.store.formats.segment_files import SegmentFiles

NAME = SourceName("lab", "broker-a")
KEY = b"k" * 32
_clock = itertools.count(1_700_000_000_000, 1000)


class CutError(Exception):
    """The process is gone."""


async def fill(root: Path, count: int, *, seed: int = 1, topics: tuple[str, ...] = ("T", "U"), first: int = 0) -> None:
    """More messages, of all sizes, in an orderly stopped store."""
    dice = random.Random(seed)
    async with opened(small(root)) as store:
        for number in range(first, first + count):
            body = b"%d-%d " % (seed, number) + dice.randbytes(dice.choice([0, 20, 300, 1500]))
            sent = message(
                body, topic=dice.choice(topics), queue=dice.randrange(2), properties=f"KEYS\x01k{number}\x02"
            )
            assert (await store.writes.put(sent)).status.stored
    save_tables(root, topics)


def save_tables(root: Path, topics: tuple[str, ...], offset: int = 10**6) -> None:
    """Topics, and offsets of a group that are far behind the ends."""
    (root / "config").mkdir(exist_ok=True)
    rows = {name: {"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for name in topics}
    kept = {f"{name}@g": {0: offset, 1: 1} for name in topics}
    (root / "config/topics.json").write_bytes(tables.encode({"topicConfigTable": rows}))
    (root / "config/consumerOffset.json").write_bytes(tables.encode({"offsetTable": kept}))


class CountedPlace:
    """A place whose calls are counted, and that ends the process, or fails, at one of them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.text = place.text
        self.calls = 0
        self.cut_at: int | None = None
        self.fail_at: int | None = None
        self.writes: list[str] = []

    def _count(self) -> None:
        self.calls += 1
        if self.cut_at is not None and self.calls > self.cut_at:
            raise CutError
        if self.calls == self.fail_at:
            raise PlaceError(f"{self.text}: the test fails this call")

    def names(self, below: str) -> dict[str, int]:
        self._count()
        return self._place.names(below)

    def read(self, name: str) -> bytes:
        self._count()
        return self._place.read(name)

    def write(self, name: str, data: bytes) -> None:
        self._count()
        self._place.write(name, data)
        self.writes.append(name)

    def remove(self, name: str) -> None:
        self._count()
        self._place.remove(name)


def back_up(
    root: Path, place: Place | Path, seal: Seal | None = None, committed: Callable[[], int] | None = None
) -> Outcome:
    """One backup, of a store without a group under the name `NAME`. Ids have the order of the calls."""
    where = FolderPlace(place) if isinstance(place, Path) else place
    source = SourceStore(root, None if list(root.glob("dledger-*")) else NAME)
    run = BackupRun(
        source, where, seal or Seal(), throttle=Throttle(0), committed=committed, now_ms=lambda: next(_clock)
    )
    return run.run()


def restore(
    outcome: Outcome,
    place: Place | Path,
    root: Path,
    seal: Seal | None = None,
    point: Point | None = None,
    door: Door | None = None,
) -> Restored:
    """Restores a backup as it is."""
    where = FolderPlace(place) if isinstance(place, Path) else place
    return Restore(outcome.manifest, where, seal or Seal(), root, point=point, door=door).run()


def log_bytes(folder: Path, begin: int, end: int) -> bytes:
    """The bytes [begin, end) of a log."""
    found = b""
    with SegmentFiles(folder) as log:
        for start in log.starts:
            first, last = max(begin, start), min(end, start + log.segment_bytes)
            if first < last:
                found += (log.read(first, last - first)) or b""
    return found


def records(root: Path, until: int | None = None) -> list[Record]:
    """All records of a plain log, by the slow walk."""
    with SegmentFiles(root / "commitlog") as log:
        steps = [step for step in walk(log) if step.kind is StepKind.RECORD]
    return [step.record for step in steps if step.record and (until is None or step.pos + step.size <= until)]
