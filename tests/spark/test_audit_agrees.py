"""An audit finds everything that `tally store verify` finds, in the same words, and never says clean over a loss."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agreement import agree, audited, patched, records_of
from engine_lab import filled_store, small

from tallystick.spark.jobs import audit
from tallystick.spark.jobs.registry import text_of
from tallystick.store import clock
from tallystick.store._kernel import Door
from tallystick.store.engine.lock import StoreLock
from tallystick.store.formats.queue_format import MAX_EXT_ADDRESS, UNIT
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.verify.report import verify

Golden = Callable[[str], Path]
Plant = Callable[[Path], object]


def segments(root: Path) -> list[Path]:
    return sorted([*root.glob("commitlog/*"), *root.glob("dledger-*/data/*")])


def remove_newest_segment(root: Path) -> None:
    segments(root)[-1].unlink()


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def zero_newest_segment(root: Path) -> None:
    zero(segments(root)[-1])


def zero_middle_segment(root: Path) -> None:
    zero(segments(root)[1])


def remove_middle_segment(root: Path) -> None:
    segments(root)[1].unlink()


def shorten_middle_segment(root: Path) -> None:
    path = segments(root)[1]
    os.truncate(path, path.stat().st_size // 2)


def change_queue_offset(root: Path) -> None:
    """Of record 30 of the queue: to 31, as in the finding that a batch of sorted offsets hid."""
    record = next(
        each for each in records_of(root) if (each.topic, each.queue_id, each.queue_offset) == ("GoldA", 0, 30)
    )
    patched(root, record.pos + 20, struct.pack(">q", 31))


def extension(at: int) -> Plant:
    """Changes the last byte of a field of the extension unit that a unit of a queue names."""

    def plant(root: Path) -> None:
        for folder in sorted(root.glob("consumequeue/*/*")):
            with SegmentFiles(folder) as files:
                data = files.read(5 * UNIT.size, UNIT.size)
            code = UNIT.unpack(data)[2] if data else 0
            if code <= MAX_EXT_ADDRESS:
                extended = root / "consumequeue_ext" / folder.relative_to(root / "consumequeue")
                flip(sorted(extended.iterdir())[0], code + (1 << 63) + at)
                return
        raise AssertionError("no unit has an extension")

    return plant


def flip(path: Path, at: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def remove_index(root: Path) -> None:
    shutil.rmtree(root / "index")


def flip_entry_index(root: Path) -> None:
    flip(sorted(root.glob("dledger-*/index/*"))[0], 32 * 7 + 11)


def lose_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


CASES: dict[str, tuple[str, Plant, str]] = {
    "newest segment deleted": ("clean", remove_newest_segment, "the log ends at"),
    "newest segment zeroed": ("clean", zero_newest_segment, "the log ends at"),
    "middle segment zeroed": ("clean", zero_middle_segment, "unwritten bytes between records"),
    "middle segment deleted": ("clean", remove_middle_segment, "the segment before this one is missing"),
    "middle segment cut": ("edge", shorten_middle_segment, "bytes instead of"),
    "queue offset of a record": ("clean", change_queue_offset, "which has queue offset 31"),
    "extension: size": ("cqext", extension(1), "is not valid"),
    "extension: msgStoreTime": ("cqext", extension(17), "with store time"),
    "extension: bitMapSize": ("cqext", extension(19), "is not valid"),
    "extension: tags code": ("cqext", extension(9), "has tags code"),
    "whole index deleted": ("clean", remove_index, "the index has no file"),
    "bit in dledger's index": ("dledger-n0", flip_entry_index, "the unit of entry 7"),
    "dledger: newest segment deleted": ("dledger-n0", remove_newest_segment, "the log ends at"),
    "dledger: middle segment zeroed": ("dledger-n0", zero_middle_segment, "unwritten bytes between records"),
    "queues lost, closed": ("clean", lose_queues, "the queue is missing"),
    "queues and index lost, killed": ("lost-queues", lambda root: None, "the queue is missing"),
    "queues cut, killed": ("short-queues", lambda root: None, "lacks the queue's last 7 messages"),
    "torn tail, killed": ("torn-tail", lambda root: None, "the log ends at"),
}


@pytest.mark.parametrize("case", CASES)
def test_both_name_it_in_the_same_words(golden: Golden, case: str) -> None:
    name, plant, words = CASES[case]
    root = golden(name)
    plant(root)
    summary = agree(root)
    assert not summary["clean"]
    assert any(words in each["reason"] for each in summary["differences"]), summary["differences"]
    assert text_of(summary).startswith("differences: ")


@pytest.mark.parametrize("name", ["clean", "killed", "cqext", "edge", "trimmed", "dledger-n0"])
def test_both_find_nothing_in_a_sound_store(golden: Golden, name: str) -> None:
    assert agree(golden(name))["clean"]


def test_a_damaged_delay_unit_accuses_itself(golden: Golden) -> None:
    """Not the other messages of its level, also if it is the first one."""
    root = golden("clean")
    levels: dict[str, list[Any]] = {}
    for record in records_of(root):
        if record.topic == "SCHEDULE_TOPIC_XXXX":
            levels.setdefault(record.property_table()["DELAY"], []).append(record)
    record = max(levels.values(), key=len)[0]
    path = root / "consumequeue" / record.topic / str(record.queue_id) / segment_name(0)
    at = record.queue_offset * UNIT.size
    flip(path, at + 18)
    (difference,) = agree(root)["differences"]
    assert (difference["file"], difference["offset"]) == (str(path), at)


def test_only_a_live_store_may_be_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its lock or by the clock; and only what its newest records lack."""
    root = filled_store(small(tmp_path / "store"), 20)
    newest_ms = records_of(root)[-1].store_timestamp_ms
    path = root / "consumequeue" / "T" / "1" / segment_name(0)
    data = path.read_bytes()
    path.write_bytes(data[: 9 * UNIT.size] + bytes(len(data) - 9 * UNIT.size))

    def look(age_ms: int) -> dict[str, Any]:
        """An audit at this time after the newest record."""
        monkeypatch.setattr(clock, "wall_ms", lambda: newest_ms + age_ms)
        return audited(root)

    assert not look(0)["sources"][0]["live"] and not look(0)["clean"], "it was closed in order"
    (root / "abort").touch()
    summary = look(audit.LAG_MS - 1)
    assert summary["sources"][0]["live"] and summary["clean"] and summary["behind"] == {"queue units": 1}
    summary = look(audit.LAG_MS)
    assert not summary["sources"][0]["live"] and not summary["clean"] and not summary["behind"]
    assert [each["repairable"] for each in summary["differences"]] == [True]
    assert text_of(summary).startswith("differences: 1, 1 of which the next start of the broker repairs\n")
    lock = StoreLock.acquire(root, Door())
    try:
        summary = look(audit.LAG_MS - 1)
        assert summary["sources"][0]["live"] and summary["behind"] == {"queue units": 1}
        summary = look(3_600_000)
        assert summary["sources"][0]["live"] and not summary["clean"], "its record is an hour old"
    finally:
        lock.release()


def test_settings_that_the_files_do_not_contain_are_taken_as_given(golden: Golden) -> None:
    root = golden("clean")
    levels = " ".join(f"{number + 1}s" for number in range(18))
    assert not audited(root, {"messageDelayLevel": levels})["clean"]
    remove_index(root)
    assert verify(root).damaged == 1
    assert audited(root, {"messageIndexEnable": "false"})["clean"]
