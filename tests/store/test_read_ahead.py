"""Queues are read ahead by several threads: all of them if the disk is asked, a sample if the cache has them."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import pytest

from tallystick.store._kernel import read_ahead_queues
from tallystick.store.engine import read_ahead as module
from tallystick.store.engine.read_ahead import read_ahead

TOPICS = 5000


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    for number in range(TOPICS):
        (tmp_path / f"t{number}").mkdir()
    return tmp_path


@pytest.mark.parametrize("asked", [True, False])
def test_threads_go_on_while_the_disk_is_asked(topics: Path, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    seen: list[bytes] = []
    lock = Lock()

    def read(folder: Path, names: list[bytes]) -> bool:
        assert folder == topics
        with lock:
            seen.extend(names)
        return asked

    monkeypatch.setattr(module, "read_ahead_queues", read)
    assert read_ahead(topics) == len(seen) == len(set(seen))
    if asked:
        assert sorted(seen) == sorted(path.name.encode() for path in topics.iterdir())
    else:
        assert len(seen) == 16 * 4 * 16


def test_few_topics_are_not_read_ahead(topics: Path) -> None:
    assert read_ahead(topics, TOPICS + 1) == 0
    assert read_ahead(topics / "none") == 0


def test_what_cannot_be_read_is_left_for_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "A" / "0").mkdir(parents=True)
    (tmp_path / "A" / "0" / f"{0:020}").mkdir()
    (tmp_path / "A" / "0" / "other").write_bytes(b"")
    for start in range(0, 6000, 1000):
        (tmp_path / "A" / "1").mkdir(exist_ok=True)
        (tmp_path / "A" / "1" / f"{start:020}").write_bytes(bytes(1000))
    (tmp_path / "A" / "2").symlink_to(tmp_path / "nowhere")
    assert read_ahead_queues(tmp_path, [b"file", b"A", b"gone", b"\xff"]) in (True, False)
    assert read_ahead(tmp_path, 1) == 2
