"""Every start ends in a store that serves everything, whatever happened to the files that are derived from the log.

One table of damage is crossed with three questions: does the log belong to a plain store or to a member of a group, is
the progress mark (`tally-progress`) there, missing or garbage, and did the last stop end in order or by a kill. Each
case starts the real engine on a copy of a store with several queues, files and index files. Then:

- each message is read at the offset that its put returned, and found by its key;
- the next message of each queue gets the next offset;
- a finding names the file, or the folder that it was in, wherever something had to be rebuilt;
- after an orderly close `verify` finds no damage, and the next start has nothing to report.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from derived_lab import (
    FILE_BYTES,
    Sent,
    check_keys,
    check_reads,
    files,
    index_file,
    patch,
    saved,
    send,
    started,
)

from tallystick.store._kernel import Door
from tallystick.store.engine.recovery import RecoveryError
from tallystick.store.findings import FindingKind
from tallystick.store.formats.progress import FILE_NAME as MARK
from tallystick.store.formats.queue_table import FILE_NAME as TABLE
from tallystick.store.verify.report import verify

COUNTS = {("A", 0): 40, ("A", 1): 25, ("B", 0): 10}
"""Queues and how many messages each has: three files, two files, one file."""
REBUILT = FindingKind.REBUILT


class Made(NamedTuple):
    root: Path
    group: bool
    sent: list[Sent]


async def make(folder: Path, *, group: bool, kill: bool) -> Made:
    root, copy = folder / "made", folder / "copy"
    order = [queue for turn in range(40) for queue, count in COUNTS.items() if turn < count]
    async with started(root, group) as store:
        sent = [await send(store, *queue, number) for number, queue in enumerate(order)]
        await saved(store, thorough=True)
        # A few more than the table of queues' ends and the checkpoint know.
        sent += [await send(store, *queue, 900 + number) for number, queue in enumerate(COUNTS)]
        await saved(store)
        if kill:
            shutil.copytree(root, copy)  # with times: the mark is bound to that of `lock`
    return Made(copy if kill else root, group, sent)


Damage = Callable[[Path], object]


def gone(root: Path) -> None:
    (root / MARK).unlink()


def garbage(root: Path) -> None:
    (root / MARK).write_bytes(b"\xa5" * 8192)


STOPS = ["plain, closed", "plain, killed", "group, closed", "group, killed"]
MARKS: dict[str, Damage] = {"mark ok": lambda root: None, "mark gone": gone, "mark garbage": garbage}
# A mark that is garbage is read as none, once is enough.
STARTS = [f"{stop}, {mark}" for stop in STOPS for mark in MARKS if "killed" not in stop or mark != "mark garbage"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    folder = tmp_path_factory.mktemp("stores")
    return {stop: asyncio.run(make(folder / stop, group="group" in stop, kill="killed" in stop)) for stop in STOPS}


@pytest.fixture(params=STARTS)
def made(request: pytest.FixtureRequest, stores: dict[str, Made], tmp_path: Path) -> Made:
    stop, _, mark = request.param.rpartition(", ")
    root = Path(shutil.copytree(stores[stop].root, tmp_path / "store"))
    MARKS[mark](root)
    return stores[stop]._replace(root=root)


# -- damage ------------------------------------------------------------------------------------------------------------


def of_each_queue(act: Callable[[Path], object]) -> Damage:
    def damage(root: Path) -> None:
        for path in sorted((root / "consumequeue").glob("*/*/*")):
            act(path)

    return damage


def ext_files(root: Path) -> None:
    """Unneeded extension files of a wrong length: RocketMQ writes them with enableConsumeQueueExt."""
    folder = root / "consumequeue_ext" / "A" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}").write_bytes(b"\xff" * 777)


# name, damage, where a finding REBUILT is expected (None: the damage may be made good without a word)
DAMAGES: list[tuple[str, Damage, str | None]] = [
    ("nothing", lambda root: None, None),
    ("first queue file short", lambda root: os.truncate(files(root)[0], 98), "consumequeue/A/0"),
    ("middle queue file short", lambda root: os.truncate(files(root)[1], 120), "consumequeue/A/0"),
    ("last queue file short", lambda root: os.truncate(files(root)[-1], 98), "consumequeue/A/0"),
    ("the only queue file short", lambda root: os.truncate(files(root, "B/0")[0], 98), "consumequeue/B/0"),
    ("queue file long", lambda root: patch(files(root)[1], FILE_BYTES, b"x" * 33), "consumequeue/A/0"),
    ("queue file empty", lambda root: os.truncate(files(root)[0], 0), "consumequeue/A/0"),
    ("first queue file missing", lambda root: files(root)[0].unlink(), "consumequeue/A/0"),
    ("middle queue file missing", lambda root: files(root)[1].unlink(), "consumequeue/A/0"),
    ("last queue file missing", lambda root: files(root)[-1].unlink(), None),
    ("queue file zeroed", lambda root: patch(files(root)[1], 0, bytes(FILE_BYTES)), "consumequeue/A/0"),
    ("last queue file zeroed", lambda root: patch(files(root)[-1], 0, bytes(FILE_BYTES)), None),
    ("units zeroed", lambda root: patch(files(root)[0], 20 * 5, bytes(20 * 3)), "consumequeue/A/0"),
    ("queue folder missing", lambda root: shutil.rmtree(root / "consumequeue/A/0"), "consumequeue/A/0"),
    ("all queues missing", lambda root: shutil.rmtree(root / "consumequeue"), "consumequeue/A/0"),
    ("each queue file short", of_each_queue(lambda path: os.truncate(path, 98)), "consumequeue/A/0"),
    ("each queue file empty", of_each_queue(lambda path: os.truncate(path, 0)), "consumequeue/A/0"),
    (
        "file with a strange number",
        lambda root: files(root)[0].rename(root / "consumequeue/A/0" / f"{7:020}"),
        "consumequeue/A/0",
    ),
    ("index file short", lambda root: os.truncate(index_file(root), 98), "index"),
    ("last index file short", lambda root: os.truncate(index_file(root, -1), 98), "index"),
    ("index file long", lambda root: patch(index_file(root), index_file(root).stat().st_size, b"x"), "index"),
    ("index file empty", lambda root: os.truncate(index_file(root), 0), "index"),
    ("index file missing", lambda root: index_file(root).unlink(), "index"),
    ("all index files missing", lambda root: shutil.rmtree(root / "index"), "index"),
    ("index file zeroed", lambda root: patch(index_file(root), 0, bytes(index_file(root).stat().st_size)), "index"),
    ("extension file of a wrong length", ext_files, None),
    ("table of ends missing", lambda root: (root / TABLE).unlink(), None),
    ("table of ends garbage", lambda root: (root / TABLE).write_bytes(b"\xa5" * 300), None),
    ("checkpoint missing", lambda root: (root / "checkpoint").unlink(), None),
    ("checkpoint garbage", lambda root: (root / "checkpoint").write_bytes(b"\xa5" * 4096), None),
    ("checkpoint short", lambda root: os.truncate(root / "checkpoint", 9), None),
]


# -- what every start has to reach -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("damage", "expected"), [pytest.param(*rest, id=name) for name, *rest in DAMAGES])
async def test_a_start_ends_with_whole_files(damage: Damage, expected: str | None, made: Made) -> None:
    damage(made.root)
    async with started(made.root, made.group) as store:
        check_reads(store, made.sent)
        check_keys(store, made.sent)
        more = [await send(store, *queue, 2000 + number) for number, queue in enumerate(COUNTS)]
        await store.flush()
        assert [each.offset for each in more] == [count + 1 for count in COUNTS.values()]
        check_reads(store, more)
        found = store.findings.listed()
        if expected is not None:
            assert any(each.kind is REBUILT and each.file.startswith(expected) for each in found), found
        assert not any(each.file.startswith(("commitlog", "dledger")) for each in found), found
    assert [str(each) for each in verify(made.root).damage] == []
    async with started(made.root, made.group) as store:
        check_reads(store, made.sent + more)
        assert store.findings.listed() == []


# -- sizes -------------------------------------------------------------------------------------------------------------


async def test_another_setting_is_no_damage(made: Made) -> None:
    """All queues would be rebuilt, in the place of files that are sound."""
    (made.root / TABLE).unlink()
    before = {path: path.read_bytes() for path in sorted((made.root / "consumequeue").glob("*/*/*"))}
    with pytest.raises(RecoveryError, match=f"Set it to {FILE_BYTES}; or remove the folder"):
        async with started(made.root, made.group, mappedFileSizeConsumeQueue=FILE_BYTES * 2):
            pass
    assert before == {path: path.read_bytes() for path in sorted((made.root / "consumequeue").glob("*/*/*"))}


async def test_a_queue_that_cannot_be_read_is_built_again(made: Made) -> None:
    door = Door()
    door.fail("read", "consumequeue/A/0", errno.EIO, times=1)
    async with started(made.root, made.group, door) as store:
        check_reads(store, made.sent)
        found = [each for each in store.findings.listed() if each.kind is REBUILT]
        assert [each.file for each in found] == ["consumequeue/A/0"], found
        assert "cannot be read" in found[0].reason
