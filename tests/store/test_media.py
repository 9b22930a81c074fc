"""What a read could not get is read once more, reported with its place, and handed on to what can repair it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.store.engine import media
from tallystick.store.engine.media import MediaWatch
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import FindingKind
from tallystick.store.formats.segment_files import segment_name

SEGMENT = 8192


class Faults:
    """In the place of the kernel's list of what its reads met."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.met: list[tuple[str, int, int, bool]] = []
        monkeypatch.setattr(media, "map_faults", lambda: self.count)
        monkeypatch.setattr(media, "take_unread", self.take)

    def add(self, path: Path, offset: int, size: int) -> None:
        self.count += 1
        self.met.append((str(path), offset, size, False))

    def take(self, folder: Path) -> list[tuple[str, int, int, bool]]:
        taken = [each for each in self.met if Path(each[0]).is_relative_to(folder)]
        self.met = [each for each in self.met if each not in taken]
        return taken


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def watch_of(root: Path) -> tuple[MediaWatch, FindingLog]:
    for folder in ("commitlog", "index"):
        (root / folder).mkdir()
    findings = FindingLog(root)
    return MediaWatch(findings, root, root / "commitlog", SEGMENT), findings


def file(root: Path, name: str, size: int) -> Path:
    path = root / name
    path.write_bytes(b"x" * size)
    return path


def test_a_lost_range_of_the_log_is_damage_and_is_reported(tmp_path: Path, faults: Faults) -> None:
    watch, findings = watch_of(tmp_path)
    assert not watch.is_due
    faults.add(file(tmp_path, f"commitlog/{segment_name(SEGMENT)}", 4096), 4096, 4096)
    assert watch.is_due
    assert watch.look() == ([(SEGMENT + 4096, 2 * SEGMENT)], False)
    (found,) = findings.listed()
    assert (found.kind, found.offset, found.size, found.pos) == (FindingKind.DAMAGE, 4096, 4096, SEGMENT + 4096)
    assert "has only 4096 bytes" in found.reason
    assert watch.unreadable_bytes == 4096
    assert not watch.is_due, "until reads meet something again"
    assert watch.look() == ([], False)


def test_a_range_that_is_readable_again_is_recorded_and_not_repaired(tmp_path: Path, faults: Faults) -> None:
    watch, findings = watch_of(tmp_path)
    faults.add(file(tmp_path, f"commitlog/{segment_name(0)}", SEGMENT), 0, 4096)
    assert watch.look() == ([], False)
    (found,) = findings.listed()
    assert found.kind is FindingKind.NOTE and "passing error" in found.reason


def test_a_file_of_the_index_is_said_to_be_one(tmp_path: Path, faults: Faults) -> None:
    watch, findings = watch_of(tmp_path)
    faults.add(file(tmp_path, "index/20260101000000000", 100), 4096, 4096)
    assert watch.look() == ([], True)
    (found,) = findings.listed()
    assert found.kind is FindingKind.DAMAGE and found.pos == -1


def test_a_damaged_record_that_a_read_met_is_handed_on(tmp_path: Path, faults: Faults) -> None:
    watch, findings = watch_of(tmp_path)
    told: list[tuple[int, int]] = []
    watch.on_damage.append(lambda pos, end: told.append((pos, end)))
    watch.met(SEGMENT + 100, 50)
    assert told == [(SEGMENT + 100, SEGMENT + 150)]
    (found,) = findings.listed()
    assert (found.file, found.offset, found.pos) == (f"commitlog/{segment_name(SEGMENT)}", 100, SEGMENT + 100)
