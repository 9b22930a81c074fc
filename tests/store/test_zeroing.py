"""A cut keeps the length of each file: a kill or a power loss at any call leaves a log that the next start takes.

Each test cuts a log in one of the three ways that there are (a start, `store repair --cut`, a member's start) and dies
at every call to the disk in turn. The fourth one, a group's cut of a member's log while it runs, is tested the same way
in `tests/replication/test_ledger_recovery.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_lab import message, opened, read_queue, small
from ledger_lab import INDEX_BYTES, SEGMENT_BYTES, assert_is, made, open_ledger

from tallystick.store._kernel import Door
from tallystick.store.engine import zeroing
from tallystick.store.engine.recovery import open_dispatch, recover
from tallystick.store.engine.zeroing import zero_behind
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.verify.repair import StoreRepair

COUNT = 60
SEGMENT = 4096


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut of a small file takes several calls."""
    monkeypatch.setattr(zeroing, "_PIECE_BYTES", 1024)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "store"

    async def fill() -> None:
        async with opened(small(root)) as store:
            for n in range(COUNT):
                await store.writes.put(message(b"body %d" % n * 8, queue=n % 2, properties=f"KEYS\x01k{n}\x02"))

    asyncio.run(fill())
    return root


def records(root: Path) -> list[tuple[int, int]]:
    """Position and end of each record."""
    with SegmentFiles(root / "commitlog") as log:
        return [(step.pos, step.pos + step.size) for step in walk(log) if step.kind is StepKind.RECORD]


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def lengths(*folders: Path) -> set[int]:
    return {path.stat().st_size for folder in folders for path in folder.iterdir()}


def ends_of_a_machine(tmp_path: Path, make: Callable[[Path], None]) -> Iterator[tuple[Path, Door, Callable[[], bool]]]:
    """A new folder for each kill and each power loss at the call `n`, until a run needs fewer calls. The caller cuts
    with the door, and then asks how the machine ended: False, it was not reached."""
    for keep in (None, 0.0, 0.5):
        calls, reached = 0, True
        while reached:
            folder = tmp_path / f"{keep}-{calls}"
            make(folder)
            door = Door(record=keep is not None)
            door.kill_after(calls, keep_bytes=calls % 5 * 100)

            def end(door: Door = door, keep: float | None = keep, calls: int = calls) -> bool:
                nonlocal reached
                reached = door.dead
                if keep is not None:
                    door.crash(calls, keep)
                return reached

            yield folder, door, end
            shutil.rmtree(folder)
            calls += 1
        assert calls > 4, "the cut took several calls"


def test_zeros_take_the_place_of_the_rest_and_the_length_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xee" * 5000)
    zero_behind(Door(), path, 1234)
    assert path.read_bytes() == b"\xee" * 1234 + bytes(5000 - 1234)


def test_what_is_zero_is_not_written(tmp_path: Path) -> None:
    """A gigabyte that was allocated ahead is not written at a start."""
    path = tmp_path / "file"
    path.write_bytes(bytes(3000) + b"\xee" + bytes(7000))
    door = Door()
    zero_behind(door, path, 100)
    assert path.read_bytes() == bytes(10_001) and door.counts()["write"] == 1


def test_a_killed_cut_leaves_the_front_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = random.Random(1).randbytes(4096)
    for calls in range(6):
        path.write_bytes(before)
        door = Door()
        door.kill_after(calls)
        with contextlib.suppress(OSError):
            zero_behind(door, path, 100)
        after = path.read_bytes()
        kept = len(after.rstrip(b"\0"))
        assert len(after) == 4096 and after[:kept] == before[:kept], calls


def test_zeros_are_durable(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xee" * 5000)
    door = Door(record=True)
    zero_behind(door, path, 100)
    door.crash(1, 0.0)
    assert path.read_bytes() == b"\xee" * 100 + bytes(4900)


def start(root: Path, door: Door) -> None:
    """What a start does before it opens the log to new messages."""
    chosen = small(root)
    recover(root, chosen, open_dispatch(door, root, root / "commitlog", chosen, 0), door)


async def test_a_start_that_dies_while_it_cuts_a_torn_tail(sound: Path, tmp_path: Path) -> None:
    end = records(sound)[-1][1]
    dice = random.Random(3)

    def make(root: Path) -> None:
        shutil.copytree(sound, root)
        (root / "abort").touch()
        (root / "tally-progress").unlink()
        # What a lost power can leave of records that were not acknowledged: bytes that are no record.
        path = root / "commitlog" / segment_name(end - end % SEGMENT)
        patch(path, end % SEGMENT, bytes(byte or 1 for byte in dice.randbytes(SEGMENT - end % SEGMENT)))

    for root, door, ended in ends_of_a_machine(tmp_path, make):
        with contextlib.suppress(OSError):
            start(root, door)
        ended()
        assert lengths(root / "commitlog") == {SEGMENT}
        async with opened(small(root)) as store:
            assert store.log.written == end
            assert len(read_queue(store, queue=0)) + len(read_queue(store, queue=1)) == COUNT
            path = root / "commitlog" / segment_name(end - end % SEGMENT)
            assert not any(path.read_bytes()[end % SEGMENT :])


async def test_a_repair_that_dies_while_it_cuts(sound: Path, tmp_path: Path) -> None:
    pos = records(sound)[20][0]

    def make(root: Path) -> None:
        shutil.copytree(sound, root)
        patch(root / "commitlog" / segment_name(pos - pos % SEGMENT), pos % SEGMENT + 4, b"\0\0\0\1")

    def cut(root: Path, door: Door) -> None:
        with StoreRepair.opened(root, door=door) as repair:
            loss = repair._loss_at(repair.look(), pos)
            repair._cut(loss)

    for root, door, ended in ends_of_a_machine(tmp_path, make):
        with contextlib.suppress(OSError):
            cut(root, door)
        reached = ended()
        assert lengths(root / "commitlog") == {SEGMENT}
        with StoreRepair.opened(root) as repair:
            plan = repair.look()
            # Whatever the kill left of the cut, it can be done again at the same byte.
            repair.run(plan, pos if reached else None)
        async with opened(small(root)) as store:
            assert store.log.written == pos and store.findings.listed() == []


def test_a_member_that_dies_while_it_cuts_a_torn_tail(tmp_path: Path) -> None:
    whole, twin = tmp_path / "whole", made(tmp_path / "whole")[1]
    header = twin.entries[-1][0]
    at = header.pos % SEGMENT_BYTES
    path = whole / "data" / segment_name(header.pos - at)
    assert at + header.size + 100 < SEGMENT_BYTES
    behind = at + header.size + 100  # what a loss of power left of writes behind the torn one
    patch(path, at + 60, bytes(behind - at - 60) + b"\xee" * (SEGMENT_BYTES - behind))

    def copy(folder: Path) -> None:
        shutil.copytree(whole, folder)

    for folder, door, ended in ends_of_a_machine(tmp_path, copy):
        with contextlib.suppress(OSError):
            open_ledger(folder, door)
        ended()
        assert lengths(folder / "data") == {SEGMENT_BYTES} and lengths(folder / "index") == {INDEX_BYTES}
        again = open_ledger(folder)
        assert again.damage is None
        assert_is(again, twin, twin.last_index - 1)
        assert not any((folder / "data" / path.name).read_bytes()[at:])
