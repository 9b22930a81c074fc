"""The costs of many queues and files, counted in what is opened, mapped and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aged_log import dispatch_log, write_log
from engine_lab import message, opened, small

pytest.importorskip("pyspark.sql.datasource", reason="needs the group `spark`")

from pyspark.sql.pandas.types import from_arrow_schema

from tallystick.spark import follow, splits
from tallystick.spark.columns import schema_of
from tallystick.spark.follow import FollowedVolume
from tallystick.spark.jobs import audit
from tallystick.spark.options import ReadOptions
from tallystick.spark.planning import plan_tasks
from tallystick.spark.runner import Inline, inline
from tallystick.spark.scan import SplitScan
from tallystick.spark.source import MessageReader
from tallystick.spark.splits import plan
from tallystick.spark.volume import Source, Volume, open_volume
from tallystick.store import _kernel
from tallystick.store.formats.mapped import ReadMap
from tallystick.store.formats.queue_format import UNIT
from tallystick.store.formats.record import encode_filler
from tallystick.store.formats.segment_files import SegmentFiles
from tallystick.store.verify.report import Known

Golden = Callable[[str], Path]
BEGIN_MS = 1_700_000_000_000
QUEUES = 400


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with 1 200 messages in 400 queues."""
    root = tmp_path_factory.mktemp("scale") / "store"
    messages = ((f"T{number % QUEUES // 8}", number % 8, BEGIN_MS + number) for number in range(3 * QUEUES))
    write_log(root, messages, segment_bytes=1 << 20)
    dispatch_log(root, mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=2000, maxHashSlotNum=5000)
    return root


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of ConsumeQueues that are mapped within the test."""
    found: list[Path] = []
    new = ReadMap.__new__

    def noted(cls: type[ReadMap], path: Path) -> ReadMap:
        if "consumequeue" in path.parts:
            found.append(path)
        return new(cls, path)

    monkeypatch.setattr(ReadMap, "__new__", noted)
    return found


def test_opening_and_planning_map_no_queue(wide: Path, mapped: list[Path]) -> None:
    volume = open_volume(wide, "n")
    assert volume.queues_end == volume.bound > 0
    assert len(volume.fullest) == 256
    assert len(plan(volume, split_bytes=20_000)) > 5
    assert mapped == []


def test_the_ends_of_splits_are_searched_in_few_queues(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[Path] = []
    first_unit = splits._first_unit

    def counted(files: SegmentFiles, pos: int) -> Sequence[int]:
        searched.append(files.folder)
        return first_unit(files, pos)

    monkeypatch.setattr(splits, "_first_unit", counted)
    volume = open_volume(wide, "n")
    found = plan(volume, split_bytes=30_000)
    assert [each.begin for each in found] == [volume.begin, *(each.end for each in found[:-1])]
    assert len(found) > 2 and found[-1].end == volume.bound
    assert all(30_000 <= each.bytes < 30_000 * 17 // 16 for each in found[:-1])
    assert len(searched) < 200 * (len(found) - 1), "each of 256 queues has a record behind the end"
    assert sum(batch.num_rows for each in found for batch in SplitScan(each, ["size"])) == 3 * QUEUES


@pytest.mark.parametrize("filters", [{}, {"topic": "T3"}, {"key": "k7"}, {"from": "2023-11-14T22:13:20Z"}])
def test_a_batch_read_looks_at_the_queues_once(
    wide: Path, filters: dict[str, str], mapped: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = []
    look = _kernel.queue_ends

    def counted(*call: Any) -> Any:
        looks.append(call)
        return look(*call)

    monkeypatch.setattr(_kernel, "queue_ends", counted)
    options = ReadOptions.parse({"path": f"n={wide}", "splitBytes": "20000"} | filters)
    assert MessageReader(options, from_arrow_schema(schema_of(options.columns))).partitions()
    assert len(looks) == 1
    assert {path.parent.parent.name for path in mapped} <= {filters.get("topic")}, "the units of a topic are read"


def audited(root: Path) -> dict[str, Any]:
    return audit.run(ReadOptions.parse({"path": f"n={root}", "splitBytes": "50000"}), inline)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[set[tuple[str, int]] | None]:
    """The queues whose units are compared with records one by one within the test."""
    found: list[set[tuple[str, int]] | None] = []
    check = _kernel.check_queues

    def noted(*call: Any, only: set[tuple[str, int]] | None, **named: Any) -> Any:
        found.append(only)
        return check(*call, only=only, **named)

    monkeypatch.setattr(_kernel, "check_queues", noted)
    return found


def test_an_audit_of_a_sound_store_judges_no_queue(
    wide: Path, mapped: list[Path], judged: list[set[tuple[str, int]] | None]
) -> None:
    found = audited(wide)
    assert found["clean"] and found["sources"][0]["queues"] == QUEUES
    assert (judged, mapped) == ([], [])


def test_one_wrong_unit_among_many_queues_costs_one_queue(
    wide: Path, judged: list[set[tuple[str, int]] | None], tmp_path: Path
) -> None:
    path = wide / "consumequeue" / "T7" / "3" / f"{0:020d}"
    sound = path.read_bytes()
    try:
        with path.open("r+b") as file:
            file.seek(UNIT.size)
            file.write(UNIT.pack(1, 2, 3))
        found = audited(wide)
    finally:
        path.write_bytes(sound)
    assert [(each["file"], each["offset"]) for each in found["differences"]] == [(str(path), 20)]
    assert judged == [{("T7", 3)}]


@pytest.mark.parametrize("name", ["clean", "killed", "dledger-n1", "trimmed", "cqext"])
def test_the_fast_pass_leaves_out_only_queues_that_are_sound(
    golden: Callable[[str], Path], name: str, judged: list[set[tuple[str, int]] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden(name)
    found = audited(root)
    folders = {(folder.parent.name, int(folder.name)) for folder in root.glob("consumequeue/*/*")}
    suspected = set().union(*(only or () for only in judged))
    judged.clear()
    monkeypatch.setattr(audit, "suspicious_ends", lambda *_, **__: folders)
    assert audited(root) == found
    assert set().union(*(only or () for only in judged)) == folders
    assert folders - suspected


# -- tasks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean", "killed", "edge", "trimmed", "dledger-n1", "flipped-body"])
def test_an_audit_that_opens_queues_once_for_several_splits_finds_the_same(
    golden: Golden, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden(name)
    paths = [path for path in sorted(root.glob("consumequeue/*/*/*")) if any(path.read_bytes())]
    for path in paths:
        data = bytearray(path.read_bytes())
        written = len(data.rstrip(b"\0"))
        data[(written - 1) // UNIT.size * UNIT.size + 7] ^= 1  # the last byte of the last unit's position
        path.write_bytes(data)
    compared: list[int] = []
    units_of = audit.units_of

    def counted(scans: Sequence[SplitScan], *rest: Any) -> Any:
        compared.append(len(scans))
        return units_of(scans, *rest)

    monkeypatch.setattr(audit, "units_of", counted)
    options = ReadOptions.parse({"path": f"n={root}", "splitBytes": "70000"})
    together = audit.run(options, inline)
    assert sum(compared) > len(compared) or together["sources"][0]["live"] or (root / "abort").exists()
    compared.clear()
    monkeypatch.setattr(audit, "_TASK_BYTES_A_QUEUE", 0)
    alone = audit.run(options, inline)
    assert set(compared) == {1}
    for summary in (together, alone):
        summary["differences"].sort(key=str)
        summary["notes"].sort(key=str)
    assert together == alone and alone["differing"] > 0


def test_tasks_that_run_at_once_are_not_joined(wide: Path) -> None:
    class Both(Inline):
        at_once = 2

    known = Known.of({})
    (task,) = plan_tasks(ReadOptions.parse({"path": f"n={wide}", "splitBytes": "20000"}), members=True)
    plans = [audit.plan_audit(task, 0, known, runner.at_once) for runner in (inline, Both())]
    assert [list(each.splits) for each in plans] == [list(plans[0].splits)] * 2
    assert [len(each.tasks) for each in plans] == [1, 2]


def test_a_thousand_small_segments_are_few_tasks(tmp_path: Path) -> None:
    """1 000 segments of 1 MiB, each with some records and a filler."""
    size, count = 1 << 20, 1000
    folder = tmp_path / "commitlog"
    records = write_log(tmp_path / "template", [("T", 0, BEGIN_MS)] * 4)
    folder.mkdir()
    for number in range(count):
        start = number * size
        data = b"".join(record._replace(pos=start + record.pos).encode() for record in records)
        with (folder / f"{start:020d}").open("wb") as file:
            file.truncate(size)
            file.write(data + encode_filler(size - len(data)))
    options = ReadOptions.parse({"path": f"n={tmp_path}", "columns": "physical_offset", "committed": str(size * count)})
    reader = MessageReader(options, from_arrow_schema(schema_of(options.columns)))
    tasks = reader.partitions()
    assert 1 < len(tasks) <= 16
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.column(0).to_pylist()]
    assert rows == [number * size + record.pos for number in range(count) for record in records]


# -- following ---------------------------------------------------------------------------------------------------------


async def test_a_growing_store_is_followed_without_its_queues(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        await store.writes.put(message(b"first"))
        followed = FollowedVolume(Source("n", str(tmp_path)))
        bounds = [followed.now().bound]
        for step in range(40):
            for _ in range(step % 4):
                await store.writes.put(message(b"x" * 300, queue=step % 3))
            volume = followed.now()
            assert _below_bound(volume) == _below_bound(open_volume(tmp_path, "n"))
            bounds.append(volume.bound)
        assert bounds[-1] > 4096 * 3, "over several segments"
    assert followed.looks == 1


def _below_bound(volume: Volume) -> tuple[Any, ...]:
    """Without the next file, which the store creates at any time."""
    return volume.bound, volume.begin, [file for file in volume.files if file.start < volume.bound]


async def test_damage_behind_the_bound_is_passed_when_the_queues_know_more(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        await store.writes.put(message(b"first"))
        followed = FollowedVolume(Source("n", str(tmp_path)))
        first = followed.now()
        before = first.bound
        for _ in range(30):
            await store.writes.put(message(b"x" * 300))
    path = tmp_path / "commitlog" / f"{0:020d}"
    for lost in (b"\xee" * 8, bytes(8)):
        with path.open("r+b") as file:
            file.seek(before)
            file.write(lost)
        followed._volume = first
        assert followed.now().bound == open_volume(tmp_path).bound > before
        assert followed.now().bound == open_volume(tmp_path).bound
    assert followed.looks == 3, "once at first, once for each damage, and not when the bound is behind it"


async def test_zeros_within_the_last_segment_are_passed_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(small(tmp_path)) as store:
        await store.writes.put(message(b"first"))
        followed = FollowedVolume(Source("n", str(tmp_path)))
        before = followed.now().bound
        for _ in range(3):
            await store.writes.put(message(b"x" * 300))
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(before)
        file.write(bytes(100))
    assert followed.now().bound == before
    later = follow.clock.steady_ms() + 60_000
    monkeypatch.setattr(follow.clock, "steady_ms", lambda: later)
    assert followed.now().bound == open_volume(tmp_path).bound > before


@pytest.fixture
def member(golden: Callable[[str], Path]) -> Iterator[Path]:
    yield golden("dledger-n1")


def test_a_member_is_followed_up_to_what_is_dispatched(member: Path) -> None:
    """Of the entries of a group's member, those that its queues name are settled, and no others."""
    volume = open_volume(member, "n")
    (log,) = member.glob("dledger-*/data")
    (log.parent / "checkpoint").unlink(missing_ok=True)
    rows = []
    for split in plan(volume):
        for batch in SplitScan(split, ("topic", "queue_id", "queue_offset", "physical_offset", "size")):
            rows += batch.to_pylist()
    units = {_unit_place(member, row): row for row in rows if _unit_place(member, row) is not None}
    later = rows[len(rows) // 3 :]
    kept = {place: (row, place[0].read_bytes()[place[1] : place[1] + UNIT.size]) for place, row in units.items()}
    hidden = {place: value for place, value in kept.items() if value[0] in later}
    for (path, at), _ in hidden.items():
        _write(path, at, bytes(UNIT.size))
    followed = FollowedVolume(Source("n", str(member)))
    assert (
        followed.now().bound == later[0]["physical_offset"] - 48 or followed.now().bound <= later[0]["physical_offset"]
    )
    ordered = sorted(hidden.items(), key=lambda item: item[1][0]["physical_offset"])
    for (path, at), (row, unit) in ordered[:20]:
        _write(path, at, unit)
        assert followed.now().bound == row["physical_offset"] + row["size"] == open_volume(member).bound
    assert followed.looks == 1


def _unit_place(root: Path, row: dict[str, Any]) -> tuple[Path, int] | None:
    folder = root / "consumequeue" / row["topic"] / str(row["queue_id"])
    for path in sorted(folder.glob("*"), reverse=True):
        at = row["queue_offset"] * UNIT.size - int(path.name)
        if at >= 0:
            with path.open("rb") as file:
                file.seek(at)
                found = UNIT.unpack(file.read(UNIT.size))
            return (path, at) if found[:2] == (row["physical_offset"], row["size"]) else None
    return None


def _write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
