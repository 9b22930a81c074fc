"""Offline repair: what is derived is rebuilt, the log is cut at a byte that a person named, and nothing else goes.

Each test damages a closed store, repairs it, and then asks three witnesses: `verify` is clean, a start finds nothing
and continues from the progress mark, and every message that the log has is served at its offset.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_lab import filled_store, opened, read_queue, small

from tallystick.node.cli import main
from tallystick.store._kernel import Door
from tallystick.store.engine.lock import StoreLock, StoreLockedError
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.findings import FindingKind
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.record import Record
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.verify.repair import StoreRepair
from tallystick.store.verify.repair_plan import NOTE_NAME, RepairError
from tallystick.store.verify.report import VerifyError, verify

COUNT = 120
STEP = 29
"""Of the calls to the disk, each one of so many is the one at which a repair is killed."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled_store(small(tmp_path_factory.mktemp("sound") / "store"), COUNT)


@pytest.fixture
def root(sound: Path, tmp_path: Path) -> Path:
    return copy_of(sound, tmp_path / "store")


def copy_of(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def positions(root: Path) -> list[int]:
    with SegmentFiles(root / "commitlog") as log:
        return [step.pos for step in walk(log) if step.kind is StepKind.RECORD]


def unit(root: Path, number: int, data: bytes, at: int = 0) -> None:
    patch(root / "consumequeue" / "T" / "0" / segment_name(number * 20 // 320 * 320), number * 20 % 320 + at, data)


def index_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "index").iterdir())[number]


def break_record(root: Path, number: int = 60, magic: bytes = b"\0\0\0\1") -> int:
    """Damages the magic of a record; its position."""
    pos = positions(root)[number]
    patch(root / "commitlog" / segment_name(pos - pos % 4096), pos % 4096 + 4, magic)
    return pos


def repair(root: Path, cut: int | None = None, door: Door | None = None) -> list[FindingKind]:
    with StoreRepair.opened(root, door=door) as opened_repair:
        done = opened_repair.run(opened_repair.look(), cut)
    return [each.kind for each in done]


async def served(root: Path) -> dict[int, list[bytes]]:
    """The bodies of each queue, as a start serves them that has to find nothing wrong."""
    async with opened(small(root)) as store:
        assert store.findings.listed() == []
        assert store.recovered.from_mark and store.recovered.clean
        return {queue: [each.body for each in read_queue(store, queue=queue)] for queue in (0, 1)}


def bodies(upto: int = COUNT) -> dict[int, list[bytes]]:
    return {queue: [b"body %d" % n * 8 for n in range(queue, upto, 2)] for queue in (0, 1)}


def only_an_empty_file(queue: Path) -> None:
    """What a process leaves that cannot get blocks for the first file of a queue, or is killed before it does."""
    shutil.rmtree(queue)
    queue.mkdir()
    (queue / segment_name(0)).touch()


DERIVED: dict[str, Callable[[Path], object]] = {
    "a unit that names nothing": lambda root: unit(root, 7, b"\xff" * 8),
    "a unit of another size": lambda root: unit(root, 7, b"\0\0\1\0", 8),
    "a unit of another tag": lambda root: unit(root, 7, b"\0" * 8, 12),
    "zeros in a queue": lambda root: unit(root, 20, bytes(100)),
    "a unit past the end of the log": lambda root: unit(root, 60, (1 << 40).to_bytes(8) + b"\0\0\0\x7f" + bytes(8)),
    "a queue file that is missing": lambda root: (root / "consumequeue/T/0" / segment_name(320)).unlink(),
    "a short queue file": lambda root: os.truncate(root / "consumequeue/T/0" / segment_name(0), 100),
    "a queue that is missing": lambda root: shutil.rmtree(root / "consumequeue/T/1"),
    "a queue with an empty file alone": lambda root: only_an_empty_file(root / "consumequeue/T/1"),
    "all queues missing": lambda root: shutil.rmtree(root / "consumequeue"),
    "an index slot": lambda root: patch(index_file(root), 40, b"\0\0\0\x30"),
    "an index entry": lambda root: patch(index_file(root), 40 + 32 * 4 + 20 * 9, b"\0\1\2\3"),
    "an index header": lambda root: patch(index_file(root), 36, b"\0\0\0\2"),
    "a short index file": lambda root: os.truncate(index_file(root), 100),
    "an index file that is missing": lambda root: index_file(root).unlink(),
    "the progress mark": lambda root: (root / "tally-progress").write_bytes(b"x" * 8192),
    "the table of queues": lambda root: patch(root / "tally-queues", 30, b"xxxx"),
    "the checkpoint": lambda root: os.truncate(root / "checkpoint", 7),
    "a table with a backup": lambda root: (root / "config/topics.json").write_text('{"a'),
    "an open store": lambda root: (root / "abort").write_bytes(b""),
}


@pytest.mark.parametrize("what", DERIVED)
async def test_what_is_not_the_log_is_sound_again(root: Path, what: str) -> None:
    DERIVED[what](root)
    repair(root)
    assert verify(root).damage == [] and verify(root).notes == []
    assert verify(root).index_entries >= COUNT
    assert await served(root) == bodies()
    assert not (root / NOTE_NAME).exists()


def test_a_sound_store_is_left_alone(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert repair(root) == []
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_a_dry_run_writes_nothing_and_says_what_it_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit(root, 7, b"\xff" * 8)
    (root / "lock").unlink()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert main(["store", "repair", str(root), "--dry-run"]) == 1
    assert "would rebuild ConsumeQueues from the log: T/0" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


async def test_damage_of_the_log_is_kept_and_a_placeholder_holds_its_offset(root: Path) -> None:
    pos = break_record(root)
    log = {path: path.read_bytes() for path in (root / "commitlog").iterdir()}
    repair(root)
    assert {path: path.read_bytes() for path in (root / "commitlog").iterdir()} == log
    report = verify(root)
    assert [(each.file, each.pos) for each in report.damage] == [(f"commitlog/{segment_name(8192)}", pos)]
    async with opened(small(root)) as store:
        assert store.queues.max_offset("T", 0) == 60
        assert [each.queue_offset for each in read_queue_past_damage(store)] == [n for n in range(60) if n != 30]


def read_queue_past_damage(store: MessageStore) -> list[Record]:
    from engine_lab import records_of

    found: list[Record] = []
    at = 0
    while at < store.queues.max_offset("T", 0):
        result = store.reads.get_message("T", 0, at, 1000)
        found += records_of(result.body) if result.body else []
        at = max(result.next_begin_offset, at + 1)
    return found


async def test_a_cut_removes_exactly_what_it_showed(root: Path) -> None:
    pos = break_record(root)
    with StoreRepair.opened(root, dry_run=True) as looking:
        (loss,) = looking.look().losses
    assert (loss.pos, loss.records, loss.files) == (pos, 59, [segment_name(12288), segment_name(16384)])
    assert {key: (each.first, each.last) for key, each in loss.queues.items()} == {
        ("T", 0): (31, 59),
        ("T", 1): (30, 59),
    }
    assert FindingKind.CUT in repair(root, cut=pos)
    report = verify(root)
    assert report.damage == [] and (report.records, report.end_pos) == (60, pos)
    assert await served(root) == bodies(60)


@pytest.mark.parametrize("pos", [0, 5, 1 << 40])
def test_a_cut_at_a_sound_place_is_refused(root: Path, pos: int) -> None:
    break_record(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(RepairError, match="not damaged at byte"):
        repair(root, cut=pos)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


async def test_a_gap_in_the_log_is_cut_in_front_of_it_only_on_demand(root: Path) -> None:
    (root / "commitlog" / segment_name(8192)).unlink()
    with StoreRepair.opened(root, dry_run=True) as looking:
        plan = looking.look()
    assert not plan.useful or plan.log
    assert [loss.pos for loss in plan.losses] == [8192]
    repair(root, cut=8192)
    assert verify(root).damage == [] and len(positions(root)) < 60
    await served(root)


async def test_a_short_file_of_the_log_is_extended(root: Path) -> None:
    os.truncate(root / "commitlog" / segment_name(4096), 1000)
    repair(root)
    report = verify(root)
    assert {each.file for each in report.damage} == {f"commitlog/{segment_name(4096)}"}
    assert report.records > 80
    async with opened(small(root)) as store:
        assert store.queues.max_offset("T", 0) == 60


def everything(root: Path) -> None:
    for what in ("a unit that names nothing", "a queue that is missing", "an index entry", "a table with a backup"):
        DERIVED[what](root)


@pytest.mark.parametrize("cutting", [False, True])
async def test_a_repair_may_be_killed_at_any_call(sound: Path, tmp_path: Path, cutting: bool) -> None:
    calls, dead = 0, True
    while dead:
        root = copy_of(sound, tmp_path / "store")
        everything(root)
        pos = break_record(root) if cutting else None
        door = Door()
        door.kill_after(calls, keep_bytes=calls % 7 * 5)
        try:
            repair(root, pos, door)
        except OSError:
            pass
        dead = door.dead
        repair(root, pos)
        report = verify(root)
        assert report.damage == [] and report.notes == [], (calls, [str(each) for each in report.damage])
        assert await served(root) == bodies(60 if cutting else COUNT), calls
        calls += STEP
    assert calls > 5 * STEP


async def test_a_start_between_a_killed_repair_and_the_next_one_is_sound(sound: Path, tmp_path: Path) -> None:
    calls, dead = 0, True
    while dead:
        root = copy_of(sound, tmp_path / "store")
        everything(root)
        door = Door()
        door.kill_after(calls)
        try:
            repair(root, None, door)
        except OSError:
            pass
        dead = door.dead
        async with opened(small(root)) as store:
            assert (store.queues.max_offset("T", 0), store.queues.max_offset("T", 1)) == (60, 60), calls
        repair(root)
        assert verify(root).damage == []
        assert await served(root) == bodies()
        calls += STEP


async def test_a_full_disk_ends_a_repair_that_can_be_run_again(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everything(root)
    door = Door()
    door.fail("allocate", "consumequeue", errno.ENOSPC)
    door.fail("write", "consumequeue", errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        repair(root, None, door)
    assert main(["store", "repair", str(root)]) == 0
    capsys.readouterr()
    assert await served(root) == bodies()


def test_a_store_that_is_open_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = StoreLock.acquire(root, Door())
    try:
        for arguments in ([], ["--dry-run"]):
            assert main(["store", "repair", str(root), *arguments]) == 2
            assert "already open" in capsys.readouterr().err
        with pytest.raises(StoreLockedError):
            repair(root)
    finally:
        lock.release()


@pytest.mark.parametrize("made", ["nothing", "a folder", "an empty log"])
def test_what_is_no_store_is_refused_and_not_written_to(tmp_path: Path, made: str) -> None:
    root = tmp_path / "stranger"
    if made != "nothing":
        (root / "commitlog" if made == "an empty log" else root).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(VerifyError):
        repair(root)
    assert main(["store", "repair", str(root)]) == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_json_tells_what_was_found_and_done(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit(root, 7, b"\xff" * 8)
    pos = break_record(root, 100)
    assert main(["store", "repair", str(root), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["sound"] is False and told["before"]["damaged"] > told["after"]["damaged"] == 1
    assert [queue["topic"] for queue in told["rebuild"]["queues"]] == ["T"]
    assert [cut["pos"] for cut in told["cuts"]] == [pos]
    assert {"rebuilt"} <= {each["kind"] for each in told["done"]}


def test_a_table_without_a_sound_backup_is_left_for_a_person(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "config" / "topics.json").write_text("{")
    (root / "config" / "topics.json.bak").write_text("{")
    assert main(["store", "repair", str(root)]) == 1
    assert "config/topics.json has no sound backup" in capsys.readouterr().out
    assert (root / "config" / "topics.json").read_text() == "{"


def test_a_table_that_cannot_be_read_is_not_replaced(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be sound, and newer than its backup."""
    table = root / "config" / "topics.json"
    before = {path: path.read_bytes() for path in table.parent.iterdir()}
    assert table.with_name("topics.json.bak") in before
    read_bytes = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path == table:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read_bytes(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", failing)
        assert main(["store", "repair", str(root)]) == 1
    told = capsys.readouterr().out
    assert "config/topics.json cannot be read" in told and "a start is refused" in " ".join(told.split())
    assert {path: path.read_bytes() for path in table.parent.iterdir()} == before
    assert verify(root).damage == []


@pytest.mark.parametrize("name", ["clean", "cqext", "edge", "trimmed", "killed", "short-queues", "torn-tail"])
def test_stores_of_rocketmq_are_repaired(name: str, golden: Callable[[str], Path]) -> None:
    root = golden(name)
    records = verify(root).records
    for path in sorted((root / "consumequeue").glob("*/*/*"))[:3]:
        patch(path, 0, b"\x11" * 60)
    patch(sorted((root / "index").iterdir())[0], 60, b"\x11" * 16)
    assert not verify(root).sound
    repair(root)
    report = verify(root)
    assert report.damage == [] and report.records == records


def test_a_queue_is_rebuilt_with_its_extension(golden: Callable[[str], Path]) -> None:
    root = golden("cqext")
    folder = next(path for path in sorted((root / "consumequeue_ext").glob("*/*")) if any(path.iterdir()))
    queue = root / "consumequeue" / folder.parent.name / folder.name
    before = sum(unit[2] < -(2**31) for unit in units(queue))
    assert before > 0
    shutil.rmtree(folder)
    assert not verify(root).sound
    repair(root)
    assert verify(root).damage == []
    assert any(folder.iterdir()), "the extension is there again"
    assert sum(unit[2] < -(2**31) for unit in units(queue)) >= before


def units(queue: Path) -> list[tuple[int, int, int]]:
    from tallystick.store.formats.queue_format import UNIT

    return [unit for path in sorted(queue.iterdir()) for unit in UNIT.iter_unpack(path.read_bytes()) if any(unit)]
