"""Cleaning: which segments go, with every time and every disk passed in."""

import dataclasses
import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.store._kernel import Door
from tallystick.store.engine.cleaning import MAX_FILES_A_RUN, CleaningRules, DiskState, changed, used_part
from tallystick.store.engine.segment_cleaner import RUNS_WHEN_ASKED, SegmentCleaner
from tallystick.store.engine.segments import Segment
from tallystick.store.settings import StoreSettings

HOUR = 3_600_000
NOW = 1_000 * HOUR
SIZE = 4096
RULES = CleaningRules.of(StoreSettings())


def log(*ages_hours: float) -> list[Segment]:
    """Segments changed so many hours ago."""
    return [
        Segment(index * SIZE, SIZE, int(NOW - age * HOUR), Path(f"{index * SIZE:020d}"))
        for index, age in enumerate(ages_hours)
    ]


def choose(segments, *, hour=12, used=(0.5,), state=DiskState.OK, keep_from=1 << 40, asked=False, rules=RULES):
    chosen = rules.choose(segments, now_ms=NOW, hour=hour, used=used, state=state, keep_from=keep_from, asked=asked)
    return [choice.segment.start // SIZE for choice in chosen]


def test_expired_segments_go_at_four_in_the_morning():
    segments = log(100, 80, 72, 71, 1, 0)
    assert choose(segments, hour=4) == [0, 1, 2]
    assert choose(segments, hour=5) == []


def test_files_are_also_deleted_on_a_full_or_unknown_disk_or_on_request():
    segments = log(100, 80, 1, 0)
    assert choose(segments, used=(0.75,)) == []
    assert choose(segments, used=(0.5, 0.76)) == [0, 1]
    assert choose(segments, used=(None, 0.1)) == [0, 1]
    assert choose(segments, asked=True) == [0, 1]


def test_a_young_segment_shields_the_ones_behind_it():
    assert choose(log(100, 1, 100, 0), hour=4) == [0]


def test_the_last_segment_stays():
    assert choose(log(100), hour=4) == []
    assert choose(log(100, 100), hour=4) == [0]
    assert choose([], hour=4) == []


def test_ten_at_most():
    assert len(choose(log(*[100] * 30), hour=4)) == MAX_FILES_A_RUN


def test_no_needed_file_is_deleted():
    segments = log(100, 100, 100, 0)
    assert choose(segments, hour=4, keep_from=2 * SIZE) == [0, 1]
    assert choose(segments, hour=4, keep_from=2 * SIZE - 1) == [0]
    assert choose(segments, state=DiskState.FULL, keep_from=0) == []


def test_a_nearly_full_disk_takes_young_segments_too():
    segments = log(3, 2, 1, 0)
    assert choose(segments, state=DiskState.CLEAN) == [0, 1, 2]
    kept = dataclasses.replace(RULES, forcibly=False)
    assert choose(segments, state=DiskState.FULL, rules=kept) == []
    assert choose(log(100, 1, 0), state=DiskState.FULL, used=(0.95,), rules=kept) == [0]


def test_a_full_disk_stays_full_until_it_is_well_below():
    state = DiskState.OK
    seen = []
    for used in (0.5, 0.84, 0.86, 0.90, 0.91, 0.89, 0.86, 0.85, 0.86):
        state = RULES.disk_state(state, [used])
        seen.append(state.name)
    assert seen == ["OK", "OK", "CLEAN", "CLEAN", "FULL", "FULL", "FULL", "OK", "CLEAN"]


def test_the_fuller_disk_counts():
    assert RULES.disk_state(DiskState.OK, [0.95, 0.1]) is DiskState.FULL
    assert RULES.disk_state(DiskState.OK, [0.1, 0.87]) is DiskState.CLEAN


def test_a_disk_that_does_not_answer_changes_nothing():
    for state in DiskState:
        assert RULES.disk_state(state, [None]) is state
        assert RULES.disk_state(state, []) is state


@pytest.mark.parametrize(("told", "taken"), [(0, 0.10), (75, 0.75), (100, 0.95)])
def test_the_ratio_is_clamped(told, taken):
    assert CleaningRules.of(StoreSettings(diskMaxUsedSpaceRatio=told)).used_max == taken


@given(
    st.lists(st.floats(0, 200), max_size=30),
    st.integers(0, 23),
    st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=2),
    st.sampled_from(DiskState),
    st.integers(0, 31 * SIZE),
    st.booleans(),
)
def test_always_a_beginning_of_the_log_and_never_what_is_needed(ages, hour, used, state, keep_from, asked):
    segments = log(*ages)
    chosen = choose(segments, hour=hour, used=used, state=state, keep_from=keep_from, asked=asked)
    assert chosen == list(range(len(chosen)))
    assert len(chosen) <= min(MAX_FILES_A_RUN, max(0, len(segments) - 1))
    assert len(chosen) * SIZE <= keep_from


def test_how_full_a_disk_is(tmp_path):
    used = used_part(tmp_path)
    assert used is not None
    assert 0 < used < 1
    assert used_part(tmp_path / "nowhere") is None


# -- the service -------------------------------------------------------------------------------------------------------


class Disk:
    """A disk of so many segments that gets emptier when one is deleted."""

    def __init__(self, folder: Path, segments: int) -> None:
        self.folder = folder
        self.segments = segments

    def used(self, folder: Path) -> float:
        return len(list(self.folder.iterdir())) / self.segments


@pytest.fixture
def store(tmp_path):
    settings = StoreSettings(storePathRootDir=str(tmp_path), mappedFileSizeCommitLog=SIZE)
    settings.commit_log_folder.mkdir()

    def fill(count: int, age_hours: float = 1) -> None:
        for index in range(count):
            path = settings.commit_log_folder / f"{index * SIZE:020d}"
            path.write_bytes(bytes(SIZE))
            os.utime(path, ns=(0, int(NOW - age_hours * HOUR) * 10**6))

    return settings, fill


def run(cleaner, hour=12, now_ms=NOW, keep_from=1 << 40):
    return cleaner.run(now_ms=now_ms, hour=hour, keep_from=keep_from)


def test_a_full_disk_is_emptied_and_puts_come_back(store):
    settings, fill = store
    fill(92)
    disk = Disk(settings.commit_log_folder, 100)
    pauses: list[float] = []
    told: list[int] = []
    cleaner = SegmentCleaner(settings, Door(), used=disk.used, pause=pauses.append, before_delete=told.append)
    first = run(cleaner)
    assert first.state is DiskState.FULL
    assert first.deleted == told == [index * SIZE for index in range(10)]
    assert pauses == [0.1] * 9
    assert cleaner.look() is DiskState.OK
    assert run(cleaner).deleted == []


def test_a_young_segment_is_deleted_with_a_warning_and_not_at_once(store, caplog):
    settings, fill = store
    fill(4, age_hours=71)
    (settings.commit_log_folder / f"{0:020d}").touch()
    os.utime(settings.commit_log_folder / f"{0:020d}", ns=(0, (NOW - 100 * HOUR) * 10**6))
    cleaner = SegmentCleaner(settings, Door(), used=lambda folder: 0.87, pause=lambda seconds: None)
    caplog.set_level("INFO")
    in_grace = cleaner.run(now_ms=NOW, hour=12, keep_from=1 << 40, open_s=59.9)
    assert in_grace.deleted == [0], "an expired one, because the disk is fuller than diskMaxUsedSpaceRatio"
    assert [record.levelname for record in caplog.records] == ["INFO"] and cleaner.deleted_early == 0
    assert cleaner.run(now_ms=NOW, hour=12, keep_from=1 << 40, open_s=60).deleted == [SIZE, 2 * SIZE]
    assert cleaner.deleted_early == 2
    text = caplog.records[-1].getMessage()
    assert caplog.records[-1].levelname == "WARNING"
    assert "changed 71.0 h ago, and fileReservedTime is 72 h. The disk is 87.0% full" in text


def test_asking_holds_for_a_number_of_looks(store):
    settings, fill = store
    fill(3, age_hours=10)
    cleaner = SegmentCleaner(settings, Door(), used=lambda folder: 0.1, pause=lambda seconds: None)
    cleaner.ask()
    assert run(cleaner).deleted == []
    late = NOW + 72 * HOUR
    for _ in range(RUNS_WHEN_ASKED - 1):
        run(cleaner)
    assert run(cleaner, now_ms=late).deleted == []
    cleaner.ask()
    assert run(cleaner, now_ms=late).deleted == [0, SIZE]


def test_a_segment_that_cannot_be_deleted_is_tried_again_later(store):
    settings, fill = store
    fill(3, age_hours=100)
    door = Door()
    door.fail("remove", f"{SIZE:020d}", errno.EBUSY)
    cleaner = SegmentCleaner(settings, door, used=lambda folder: 0.1, pause=lambda seconds: None)
    result = run(cleaner, hour=4)
    assert result.deleted == [0]
    assert result.error is not None
    assert result.error.errno == errno.EBUSY
    door.heal()
    assert run(cleaner, hour=4).deleted == []
    assert run(cleaner, hour=4, now_ms=NOW + settings.redeleteHangedFileInterval).deleted == [SIZE]


# -- times of files that a wrong clock made ----------------------------------------------------------------------------


def test_a_segment_written_while_the_clock_was_behind_is_as_young_as_the_one_before_it():
    segments = log(100, 30, 500_000, 29, 0)
    assert choose(segments, hour=4) == [0]
    assert changed(segments, NOW)[2] == segments[1].modified_ms


def test_a_segment_written_while_the_clock_was_ahead_expires_with_the_one_behind_it():
    segments = log(200, -1_000_000, 100, 99, 0)
    assert choose(segments, hour=4) == [0, 1, 2, 3]
    assert choose(log(200, -1_000_000, 10, 0), hour=4) == [0]


def test_a_log_of_nothing_but_the_future_does_not_expire():
    assert choose(log(-1000, -1000, -1000), hour=4) == []


def test_a_delete_that_failed_is_tried_again_although_the_clock_was_set_back(tmp_path):
    door = Door()
    for start in (0, SIZE):
        (tmp_path / "commitlog").mkdir(exist_ok=True)
        path = tmp_path / "commitlog" / f"{start:020d}"
        path.write_bytes(bytes(SIZE))
        os.utime(path, (0, 0))
    settings = StoreSettings(storePathRootDir=str(tmp_path), mappedFileSizeCommitLog=SIZE)
    cleaner = SegmentCleaner(settings, door, used=lambda folder: 0.1, pause=lambda seconds: None)
    door.fail("remove", f"{0:020d}", errno.EIO)
    assert cleaner.run(now_ms=NOW, hour=4, keep_from=1 << 40).error is not None
    door.heal()
    result = cleaner.run(now_ms=NOW - 100 * HOUR, hour=4, keep_from=1 << 40)
    assert result.deleted == [0]
