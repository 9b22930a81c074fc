"""A replaced file is the previous version or the new one, wherever the process dies or the power goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.store._kernel import Door
from tallystick.store.replace_file import replace_file

OLD, NEW = b"old" * 400, b"new" * 700
CALLS = 12
"""More than one replacement makes."""


def written(path: Path, data: bytes) -> None:
    door = Door()
    replace_file(door, path, data)


@pytest.mark.parametrize("calls", range(CALLS))
@pytest.mark.parametrize("keep_bytes", [0, 1, 1000])
def test_a_process_that_dies_leaves_one_version(tmp_path: Path, calls: int, keep_bytes: int) -> None:
    path = tmp_path / "file"
    written(path, OLD)
    door = Door()
    door.kill_after(calls, keep_bytes)
    try:
        replace_file(door, path, NEW)
    except OSError:
        assert door.dead
        assert path.read_bytes() in (OLD, NEW)
        written(path, NEW)  # its leftover must not disturb
    assert path.read_bytes() == NEW


@pytest.mark.parametrize("seed", range(20))
def test_power_that_goes_halfway_leaves_one_version(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "file"
    door = Door(record=True)
    replace_file(door, path, OLD)
    door.kill_after(seed % CALLS)
    try:
        replace_file(door, path, NEW)
        done = True
    except OSError:
        done = False
    door.crash(seed)
    assert path.read_bytes() in ((NEW,) if done else (OLD, NEW))


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_replacement_survives_a_loss_of_power(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    door = Door(record=True)
    replace_file(door, path, OLD)
    replace_file(door, path, NEW, durable=durable)
    door.crash(1, keep=0.0)
    assert path.read_bytes() == (NEW if durable else OLD)
