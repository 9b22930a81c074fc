"""Fixtures of all tests: golden data, golden stores unpacked, and the peer lab with real RocketMQ."""

import gc
import os
import shutil
import signal
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import scheduling
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "e2e"))  # `lab`: the suites are programs and not a part of the package

# How long an example takes says something of the machine. All else is as Hypothesis has it: in CI the same ones always.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")

# A script's `make test &` has its shell ignore SIGINT, and the processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


_MEMORY = Path("/dev/shm")
_LEAST_FREE_BYTES = 4 << 30


def pytest_configure() -> None:
    """`tmp_path` is in memory, if there is room: stores sync their files thousands of times in a run. On a disk this
    takes longer than all else. Tests of what only a disk does use `disk_path`. The runs in `e2e/` are on the disk."""
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _LEAST_FREE_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first, so that at the end no process is left alone with one of them."""
    for item in items:
        if item.nodeid.partition("::")[0] in scheduling.SLOW:
            item.add_marker(pytest.mark.slow)
    items.sort(key=_turn)


def pytest_collection_finish() -> None:
    """The tests themselves are some hundred thousand objects, which stay. The collector need not visit them."""
    gc.collect()
    gc.freeze()


def _turn(item: pytest.Item) -> int:
    if item.nodeid.startswith(scheduling.SHARED):
        return 0
    names = {mark.name for mark in item.iter_markers()}
    order = ("spark", "simulation", "process", "slow")
    return next((turn for turn, name in enumerate(order, 1) if name in names), len(order) + 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return scheduling.InTurn(config, log)


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on the disk, that is in the folder for temporary files."""
    with tempfile.TemporaryDirectory(prefix="tallystick-") as folder:
        yield Path(folder)


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than `tmp_path`."""
    for place in (Path(tempfile.gettempdir()), _MEMORY):
        if place.is_dir() and place.stat().st_dev != tmp_path.stat().st_dev:
            with tempfile.TemporaryDirectory(prefix="tallystick-", dir=place) as folder:
                yield Path(folder)
            return
    pytest.skip("needs two file systems: the folder for temporary files and /dev/shm are on the one of the tests")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the peer lab (real RocketMQ), beside the repository (or `TALLYSTICK_SHARED`)."""
    folder = Path(os.environ.get("TALLYSTICK_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"needs the folder with the peer lab (real RocketMQ): {folder} does not exist")
    return folder


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    """Stores and conversations that real RocketMQ wrote; its README describes them."""
    return ROOT / "tests" / "golden"


@pytest.fixture
def golden(golden_folder: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Unpacks one golden set (store written by RocketMQ) and returns its `store` folder, times of files kept."""

    def unpack(name: str) -> Path:
        target = tmp_path / name
        with tarfile.open(golden_folder / name / "store.tar.xz") as tar:
            tar.extractall(target, filter="fully_trusted")
            for member in tar.getmembers():
                seconds = member.pax_headers.get("mtime", str(member.mtime))
                whole, _, fraction = seconds.partition(".")
                nanoseconds = int(whole) * 10**9 + int(fraction.ljust(9, "0")[:9] or 0)
                os.utime(target / member.name, ns=(nanoseconds, nanoseconds), follow_symlinks=False)
        return target / "store"

    return unpack
