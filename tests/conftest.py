"""Fixtures of the whole tree: where the team's shared material is, and its golden stores unpacked."""

import os
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# How long an example takes says something of the machine. All else is as Hypothesis has it: in CI the same ones always.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")

# A script's `make test &` has its shell ignore SIGINT, and the processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with golden stores and the peer lab, beside the repository (or `TALLYSTICK_SHARED`)."""
    folder = Path(os.environ.get("TALLYSTICK_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"needs the shared folder with golden/ and peer/: {folder} is not there")
    return folder


@pytest.fixture
def golden(shared: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Unpacks one golden set (store written by RocketMQ) and returns its `store` folder, times of files kept."""

    def unpack(name: str) -> Path:
        archive = shared / "golden" / name / "store.tar.xz"
        if not archive.is_file():
            pytest.skip(f"needs the golden store {archive}")
        target = tmp_path / name
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="fully_trusted")
            for member in tar.getmembers():
                seconds = member.pax_headers.get("mtime", str(member.mtime))
                whole, _, fraction = seconds.partition(".")
                nanoseconds = int(whole) * 10**9 + int(fraction.ljust(9, "0")[:9] or 0)
                os.utime(target / member.name, ns=(nanoseconds, nanoseconds), follow_symlinks=False)
        return target / "store"

    return unpack
