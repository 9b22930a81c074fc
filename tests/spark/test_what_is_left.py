"""Reading a store with lost files: everything else is read, and the gaps are reported with their places."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agreement import log_of
from field_lab import SEGMENT, ledger_store, plain_store

from tallystick.spark.jobs import export, rebuild, stats, trace
from tallystick.spark.jobs.registry import text_of
from tallystick.spark.options import ReadOptions
from tallystick.spark.outputs import FolderOutput
from tallystick.spark.planning import plan_sources
from tallystick.spark.runner import inline
from tallystick.spark.scan import Damage, DamageMetError, SplitScan, Wanted

MISSING = "the file is missing"
ALL = Wanted()
COLUMNS = ["physical_offset", "size", "queue_offset", "tags"]


@pytest.fixture(scope="module", params=["plain", "dledger"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "store"
    return plain_store(folder) if request.param == "plain" else ledger_store(folder)


@pytest.fixture
def root(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "store"))


def options_of(root: Path) -> ReadOptions:
    return ReadOptions.parse({"path": f"n0={root}"})


def read(root: Path, *, fail_fast: bool = False, wanted: Wanted = ALL) -> tuple[list[dict[str, Any]], list[Damage]]:
    rows, damage = [], []
    for planned in plan_sources(options_of(root), inline, wanted=wanted):
        for split in planned.splits:
            scan = SplitScan(split, COLUMNS, wanted, check_crc=True, fail_fast=fail_fast)
            rows += [row for batch in scan for row in batch.to_pylist()]
            damage += scan.damage
    return rows, damage


def segments(root: Path) -> list[Path]:
    return sorted(log_of(root)[0].iterdir())


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def without(rows: list[dict[str, Any]], begin: int, end: int) -> list[dict[str, Any]]:
    """Those that do not reach into [begin, end)."""
    return [row for row in rows if row["physical_offset"] + row["size"] <= begin or row["physical_offset"] >= end]


@pytest.mark.parametrize("number", [1, -1])
@pytest.mark.parametrize("lose", [Path.unlink, zero])
def test_a_lost_file_of_the_log_is_a_gap(root: Path, number: int, lose: Callable[[Path], None]) -> None:
    whole, _ = read(root)
    path = segments(root)[number]
    begin = int(path.name)
    end = begin + SEGMENT if number > 0 else max(row["physical_offset"] + row["size"] for row in whole)
    lose(path)
    rows, (damage,) = read(root)
    assert rows == without(whole, begin, end) and len(rows) < len(whole)
    assert (damage.file, damage.position, damage.size) == (str(path), begin, end - begin)
    assert damage.reason == (MISSING if lose is Path.unlink else "unwritten")
    with pytest.raises(DamageMetError, match=f"{path.name}: {end - begin} bytes at position {begin}: {damage.reason}"):
        read(root, fail_fast=True)


def test_what_is_left_of_a_short_file_is_read(root: Path) -> None:
    whole, _ = read(root)
    path = segments(root)[1]
    begin = int(path.name)
    os.truncate(path, SEGMENT // 2)
    rows, damage = read(root)
    assert rows == without(whole, begin + SEGMENT // 2, begin + SEGMENT)
    assert any(begin <= row["physical_offset"] < begin + SEGMENT // 2 for row in rows)
    assert sum(each.size for each in damage) >= SEGMENT // 2
    last = damage[-1]
    assert (last.position, last.size) == (begin + SEGMENT // 2, SEGMENT // 2)
    assert last.reason == f"the file has {SEGMENT // 2} bytes instead of {SEGMENT}"


def test_two_lost_files_are_one_gap(root: Path) -> None:
    whole, _ = read(root)
    files = segments(root)
    assert len(files) > 3
    for path in files[1:3]:
        path.unlink()
    rows, (damage,) = read(root)
    assert (damage.position, damage.size) == (SEGMENT, 2 * SEGMENT)
    assert rows == without(whole, SEGMENT, 3 * SEGMENT)


@pytest.mark.parametrize(
    "wanted",
    [Wanted(topics=("T",)), Wanted(keys=("k1", "k60")), Wanted(store_times_ms=(0, 1)), Wanted(topics=("none",))],
)
def test_a_filter_does_not_hide_a_gap(root: Path, wanted: Wanted) -> None:
    whole = read(root, wanted=wanted)[0]
    for number in (1, -1):
        segments(root)[number].unlink()
    rows, damage = read(root, wanted=wanted)
    assert sum(each.size for each in damage) > SEGMENT
    lost = [(each.position, each.position + each.size) for each in damage]
    for begin, end in lost:
        whole = without(whole, begin, end)
    assert rows == whole


@pytest.mark.parametrize("lost", ["consumequeue/T/0/00000000000000000000", "consumequeue", "index", "consumequeue_ext"])
def test_lost_queues_and_index_do_not_stop_a_reader(root: Path, lost: str) -> None:
    whole, _ = read(root)
    path = root / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    assert read(root) == (whole, [])


def test_a_damaged_unit_makes_no_gap(root: Path) -> None:
    """It names a record in files that never existed."""
    whole, _ = read(root)
    path = max((root / "consumequeue" / "T" / "0").iterdir())
    data = bytearray(path.read_bytes())
    last = max(at for at in range(0, len(data), 20) if any(data[at : at + 20]))
    data[last : last + 8] = (1 << 40).to_bytes(8, "big")
    path.write_bytes(data)
    assert read(root) == (whole, [])


def test_jobs_report_the_gap_and_an_export_takes_it_later(root: Path, tmp_path: Path) -> None:
    whole, _ = read(root)
    paths = [segments(root)[1], segments(root)[-1]]
    for path in paths:
        path.rename(tmp_path / path.name)
    summary = stats.run(options_of(root), inline)
    left = summary["messages"]
    assert summary["damaged"] == 2 and 0 < left < len(whole)
    assert text_of(summary).count(MISSING) == 2
    first = export.run(options_of(root), inline, FolderOutput(tmp_path / "out"))
    assert (first["added_rows"], first["damaged"]) == (left, 2) and text_of(first).count(MISSING) == 2
    assert trace.run(options_of(root), inline, "k0")["events"]
    for path in paths:
        (tmp_path / path.name).rename(path)
    second = export.run(options_of(root), inline, FolderOutput(tmp_path / "out"))
    assert (second["added_rows"], second["damaged"]) == (len(whole) - left, 0)


def test_an_export_takes_later_what_a_zeroed_file_had(tmp_path: Path) -> None:
    """In the plain layout, where a broker may also write new messages: nothing behind the bound is recorded."""
    root = plain_store(tmp_path / "store")
    path = segments(root)[-1]
    whole, data = read(root)[0], path.read_bytes()
    zero(path)
    first = export.run(options_of(root), inline, FolderOutput(tmp_path / "out"))
    path.write_bytes(data)
    second = export.run(options_of(root), inline, FolderOutput(tmp_path / "out"))
    assert first["damaged"] == 1
    assert first["added_rows"] + second["added_rows"] == len(whole) and second["added_rows"] > 0


def test_a_stream_does_not_stop_at_a_gap(root: Path) -> None:
    """Its offsets are the bound, which a gap does not move."""
    (planned,) = plan_sources(options_of(root), inline)
    segments(root)[1].unlink()
    (again,) = plan_sources(options_of(root), inline)
    assert again.volume.bound == planned.volume.bound
    assert replace(again.volume, files=planned.volume.files) == planned.volume


def test_a_rebuild_says_where_it_stopped(root: Path) -> None:
    segments(root)[1].unlink()
    (found,) = rebuild.run(options_of(root), inline, None)["volumes"]
    assert found["stopped"] is not None and found["end"] == SEGMENT
