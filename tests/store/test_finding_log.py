"""Findings are logged, counted and listed once, and neither a bad disk nor time makes the list grow without bound."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tallystick.store import finding_log
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import Finding, FindingKind


@pytest.fixture
def found(tmp_path: Path) -> FindingLog:
    return FindingLog(tmp_path)


def test_each_kind_has_one_line_with_event_place_and_reason(
    found: FindingLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    found.add(FindingKind.DAMAGE, tmp_path / "commitlog" / "0", "the CRC differs", offset=120, size=34, pos=120)
    found.add(FindingKind.CUT, "commitlog/0", "a torn write", offset=500, size=9)
    found.add(FindingKind.REBUILT, "consumequeue/T/0", "512 units, a file was missing")
    found.add(FindingKind.NOTE, "index", "nothing to do")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "found damage in commitlog/0 at byte 120, 34 bytes: the CRC differs"),
        ("WARNING", "cut commitlog/0 at byte 500, 9 bytes: a torn write"),
        ("WARNING", "rebuilt consumequeue/T/0: 512 units, a file was missing"),
        ("INFO", "note on index: nothing to do"),
    ]
    assert found.total == 4 and found.counts()["damage"] == 1


def test_damage_is_reported_once_until_the_file_is_set_right(found: FindingLog) -> None:
    assert found.add(FindingKind.DAMAGE, "consumequeue/T/0/00", "a hole", offset=20)
    assert not found.add(FindingKind.DAMAGE, "consumequeue/T/0/00", "a hole", offset=20)
    assert found.add(FindingKind.DAMAGE, "consumequeue/T/0/00", "a hole", offset=40)
    found.add(FindingKind.REBUILT, "consumequeue/T/0", "a hole")
    assert found.add(FindingKind.DAMAGE, "consumequeue/T/0/00", "a hole", offset=20)
    assert found.counts()["damage"] == 3


def test_the_newest_are_kept_and_all_are_counted(
    found: FindingLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(finding_log, "MAX_LINES", 5)
    monkeypatch.setattr(finding_log, "MAX_PLACES", 10)
    more = finding_log.MAX_KEPT + 50
    for offset in range(more):
        found.add(FindingKind.DAMAGE, "commitlog/0", "the CRC differs", offset=offset)
    listed = found.listed()
    assert len(listed) == finding_log.MAX_KEPT and listed[-1].offset == more - 1
    assert found.total == more
    assert found.to_json()["total"] == more and len(found.to_json()["newest"]) == finding_log.MAX_KEPT
    assert len(caplog.records) == 6
    assert "only counted" in caplog.records[-1].getMessage()


def test_kinds_and_their_words_are_fixed() -> None:
    """Labels of metrics, GET /node and log lines contain them, so dashboards and alerts depend on them."""
    assert {kind.value: Finding("f", 0, "why", kind).sentence() for kind in FindingKind} == {
        "damage": "found damage in f: why",
        "cut": "cut f: why",
        "rebuilt": "rebuilt f: why",
        "repaired": "repaired f: why",
        "removed": "removed f: why",
        "mark": "did not use f: why",
        "note": "note on f: why",
    }
