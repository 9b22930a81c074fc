"""`tally backup restore --once`: a restore that is killed anywhere and run again ends as if nothing had happened."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
from backup_lab import NAME, CutError, back_up, fill, records

from tallystick.node.backup import once
from tallystick.node.backup.errors import BackupError
from tallystick.node.backup.manifest import Manifest
from tallystick.node.backup.places import FolderPlace
from tallystick.node.backup.restore import Restore
from tallystick.node.backup.seals import Seal
from tallystick.node.cli import main
from tallystick.store.engine.restoring import check_complete


async def made(tmp_path: Path) -> Manifest:
    await fill(tmp_path / "store", 30)
    return back_up(tmp_path / "store", tmp_path / "place").manifest


def restore_of(tmp_path: Path, manifest: Manifest, cut_at: int | None = None) -> Restore:
    """Ends at the call of `progress` with this number."""
    calls = 0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == cut_at:
            raise CutError

    return Restore(manifest, FolderPlace(tmp_path / "place"), Seal(), tmp_path / "to", progress=progress)


async def test_a_run_that_was_killed_anywhere_is_run_again(tmp_path: Path) -> None:
    manifest, cut = await made(tmp_path), 0
    while True:
        cut += 1
        try:
            once.run(restore_of(tmp_path, manifest, cut), "orders-0")
            break
        except CutError:
            assert once.finished(tmp_path / "to", "orders-0") is None
            (tmp_path / "to" / "left").mkdir(exist_ok=True)
            (tmp_path / "to" / "left" / "file").write_text("of the killed run")
    assert cut > 3, "it was killed at several places"
    assert not (tmp_path / "to" / "left").exists()
    assert len(records(tmp_path / "to")) == 30
    check_complete(tmp_path / "to")
    result = once.finished(tmp_path / "to", "orders-0")
    assert result is not None and (result["messages"], result["backup"]) == (30, manifest.id)


async def test_a_finished_restore_is_never_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The broker runs on the folder then: nothing in it may change."""
    manifest = await made(tmp_path)
    address, to = f"{tmp_path}/place/{NAME.folder}/{manifest.id}", tmp_path / "to"
    assert main(["backup", "restore", address, str(to), "--once", "a", "--result", str(tmp_path / "result")]) == 0
    assert json.loads((tmp_path / "result").read_text())["messages"] == 30
    (to / "commitlog" / "of-the-broker").write_text("new")
    (tmp_path / "place" / NAME.folder / manifest.name).unlink()
    capsys.readouterr()
    assert main(["backup", "restore", address, str(to), "--once", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 30
    assert (to / "commitlog" / "of-the-broker").read_text() == "new"
    assert main(["backup", "restore", address, str(to), "--once", "b"]) == 2
    assert "has the store of the restore 'a', not of 'b'" in capsys.readouterr().err


async def test_a_backup_that_does_not_fit_the_new_cluster_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, to = await made(tmp_path), tmp_path / "to"
    words = ["backup", "restore", f"{tmp_path}/place/{NAME.folder}/latest", str(to), "--once", "a"]
    size = manifest.segment_bytes
    assert main([*words, "--segment-bytes", str(2 * size)]) == 2
    assert f"the log of the backup has files of {size} bytes" in capsys.readouterr().err
    assert main([*words, "--brokers", f"{NAME.broker},broker-b,broker-c"]) == 2
    assert f"there is no backup of {NAME.cluster}/broker-b, broker-c" in capsys.readouterr().err
    assert not to.exists()
    assert main([*words, "--segment-bytes", str(size), "--brokers", NAME.broker]) == 0


@pytest.mark.parametrize("content", [{"commitlog/0": "x"}, {"tally-restore-run": "b", "x": "y"}])
async def test_a_folder_of_others_is_not_changed(tmp_path: Path, content: dict[str, str]) -> None:
    manifest, to = await made(tmp_path), tmp_path / "to"
    for name, text in content.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_text(text)
    with pytest.raises(BackupError, match=r"is not empty|has what the restore 'b' left"):
        once.run(restore_of(tmp_path, manifest), "a")
    found = {path.relative_to(to).as_posix(): path.read_text() for path in to.rglob("*") if path.is_file()}
    assert found == content


async def test_a_name_that_was_not_written_completely_is_no_obstacle(tmp_path: Path) -> None:
    manifest = await made(tmp_path)
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "tally-restore-run.tmp").write_text("")
    assert once.run(restore_of(tmp_path, manifest), "a").messages == 30


async def test_two_runs_exclude_each_other(tmp_path: Path) -> None:
    manifest = await made(tmp_path)
    (tmp_path / "to").mkdir()
    descriptor = os.open(tmp_path / "to", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(BackupError, match=r"another restore into .* is running"):
            once.run(restore_of(tmp_path, manifest), "a")
    finally:
        os.close(descriptor)
    assert list((tmp_path / "to").iterdir()) == []


async def test_a_result_always_fits_into_a_termination_message(tmp_path: Path) -> None:
    from tallystick.node.commands.backup import fitting

    data = fitting({"notes": ["x" * 300] * 50, "address": "a" * 300, "bytes": 7})
    kept = json.loads(data)
    assert len(data) <= 4096 and kept["bytes"] == 7 and 0 < len(kept["notes"]) < 50
    assert json.loads(fitting({"address": "a" * 5000})) == {"error": "the result is too long"}


def test_credentials_come_from_a_mounted_secret(tmp_path: Path) -> None:
    from tallystick.node.backup.s3 import s3_settings

    (tmp_path / "AWS_ACCESS_KEY_ID").write_text("id\n")
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text("secret")
    (tmp_path / "ca.crt").write_text("something else")
    environment = {"AWS_ENDPOINT_URL": "http://here:1", "AWS_ACCESS_KEY_ID": "other"}
    assert s3_settings(tmp_path, environment) == {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ENDPOINT_URL": "http://here:1",
    }
