"""A table opens whatever its file is; what cannot be used is kept and reported, and never overwritten."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tallystick.store import tables
from tallystick.store._kernel import Door
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import FindingKind
from tallystick.store.table_opening import Opened, OpenedFile, Origin, open_table
from tallystick.store.tables import JsonTable, TableError

RUBBISH = [b"", b"{", b"[]", b"\0" * 64, bytes(range(256)) * 4, b'{"n":"x"}', b'{"n":[1]}', b'{"other":1}', b"{" * 500]


def make(file: OpenedFile) -> dict[str, int]:
    stored = file.load()
    return {} if stored is None else {"n": int(stored["n"])}


def opened(path: Path, findings: FindingLog | None = None, *, picture: bool = False) -> Opened[dict[str, int]]:
    found = findings or FindingLog(path.parent)
    return open_table(JsonTable(Door(), path), make, found, lost="nothing is left", picture=picture)


def saved(path: Path, *values: Any) -> JsonTable:
    table = JsonTable(Door(), path)
    for value in values:
        table.save(value)
    return table


def test_a_sound_file_is_used_and_nothing_is_reported(tmp_path: Path) -> None:
    saved(tmp_path / "t.json", {"n": 1}, {"n": 2})
    findings = FindingLog(tmp_path)
    assert opened(tmp_path / "t.json", findings) == Opened({"n": 2}, Origin.FILE, False)
    assert opened(tmp_path / "new.json", findings) == Opened({}, Origin.NOTHING, False)
    assert findings.total == 0


@pytest.mark.parametrize("content", RUBBISH)
def test_a_damaged_file_is_kept_and_its_backup_used(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.json"
    saved(path, {"n": 1}, {"n": 2})
    for number in (1, 2):
        path.write_bytes(content)
        findings = FindingLog(tmp_path)
        assert opened(path, findings) == Opened({"n": 1}, Origin.BACKUP, True)
        assert (tmp_path / f"t.json.damaged-{number}").read_bytes() == content, "each is kept"
        assert [finding.kind for finding in findings.listed()] == [FindingKind.DAMAGE, FindingKind.REPAIRED]
        assert f"kept as t.json.damaged-{number}" in findings.listed()[0].reason
    saved(path, {"n": 3})
    assert opened(path) == Opened({"n": 3}, Origin.FILE, False)


@pytest.mark.parametrize("content", RUBBISH)
def test_when_the_backup_is_damaged_too_both_are_kept_and_the_loss_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    (tmp_path / "t.json.bak").write_bytes(content)
    findings = FindingLog(tmp_path)
    assert opened(path, findings) == Opened({}, Origin.NOTHING, True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.json.bak.damaged-1", "t.json.damaged-1"]
    assert all("nothing is left" in finding.reason for finding in findings.listed())


def test_a_missing_file_with_a_backup_and_folders_in_their_place(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    saved(path, {"n": 1}, {"n": 2})
    path.unlink()
    assert opened(path) == Opened({"n": 1}, Origin.BACKUP, False)
    path.mkdir()
    (path / "inside").write_text("kept")
    assert opened(path) == Opened({"n": 1}, Origin.BACKUP, True)
    assert (tmp_path / "t.json.damaged-1" / "inside").read_text() == "kept"


def test_what_cannot_be_read_stops_the_start_since_it_may_be_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    saved(path, {"n": 1}, {"n": 2})
    real = tables._read

    def read(each: Path) -> Any:
        if each == path and path.exists():
            raise PermissionError(errno.EACCES, "Permission denied", str(each))
        return real(each)

    monkeypatch.setattr(tables, "_read", read)
    with pytest.raises(TableError, match=r"t\.json: cannot be read: Permission denied\. Make it readable"):
        opened(path)
    assert path.exists(), "a person decides what becomes of it"
    assert opened(path, picture=True) == Opened({"n": 1}, Origin.BACKUP, True), "a picture stops nothing"


def test_a_picture_that_cannot_be_set_aside_is_reported_and_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("rubbish")
    door = Door()
    door.fail("rename", "t.json", errno.EROFS)
    findings = FindingLog(tmp_path)
    file = JsonTable(door, path)
    assert open_table(file, make, findings, lost="", picture=True).table == {}
    assert "it cannot be set aside" in findings.listed()[0].reason
    with pytest.raises(OSError, match=r"t\.json"):
        open_table(file, make, findings, lost="")
