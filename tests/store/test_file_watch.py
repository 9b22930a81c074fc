"""Changes of files that a running process uses."""

import os
from pathlib import Path

import pytest

from tallystick.store.file_watch import FileWatch


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "certificate", tmp_path / "key"]
    for path in made:
        path.write_text("1")
    return made


def test_a_change_of_any_file_is_reported_once(files: list[Path]) -> None:
    watch = FileWatch(files)
    assert not watch.changed()
    for path in files:
        path.write_text("other")
        assert watch.changed() and not watch.changed()


def test_a_replaced_link_is_a_change(tmp_path: Path) -> None:
    """As Kubernetes replaces the files of a Secret."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tls.crt").write_text("same")
        os.utime(tmp_path / name / "tls.crt", (1, 1))
    (tmp_path / "data").symlink_to("one")
    watch = FileWatch([tmp_path / "data" / "tls.crt"])
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(tmp_path / "data")
    assert watch.changed()


def test_a_permission_that_is_given_is_a_change(files: list[Path]) -> None:
    files[0].chmod(0o000)
    watch = FileWatch(files)
    files[0].chmod(0o600)
    assert watch.changed()


def test_a_file_that_is_being_written_waits(files: list[Path]) -> None:
    watch = FileWatch(files, settle=True)
    for text in ("22", "333"):
        files[0].write_text(text)
        assert not watch.changed()
    assert watch.changed() and not watch.changed()


def test_a_file_that_is_gone_is_reported_at_once(files: list[Path]) -> None:
    watch = FileWatch(files, settle=True)
    files[1].unlink()
    assert watch.changed() and not watch.changed()
    files[1].write_text("1")
    assert not watch.changed(), "it may be incomplete"
    assert watch.changed()


def test_what_was_written_here_is_no_change(files: list[Path]) -> None:
    watch = FileWatch(files)
    files[0].write_text("mine")
    watch.take()
    assert not watch.changed()
