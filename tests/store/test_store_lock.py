"""The lock file and the abort mark: one process at a time, and a death that is seen at the next start."""

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.store._kernel import Door
from tallystick.store.engine import abort
from tallystick.store.engine.lock import StoreLock, StoreLockedError

pytestmark = pytest.mark.process

_HOLD = """
import sys, pathlib
from tallystick.store.engine.lock import StoreLock
from tallystick.store._kernel import Door
lock = StoreLock.acquire(pathlib.Path(sys.argv[1]), Door())
print("held", flush=True)
sys.stdin.read()
"""
# As Java's FileChannel.tryLock(0, 1, false) does it.
_HOLD_AS_JAVA = """
import sys, fcntl
file = open(sys.argv[1] + "/lock", "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """Another process that holds the store in `tmp_path`, until its stdin is closed."""
    started = []

    def start(script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_file_is_rocketmqs(tmp_path):
    lock = StoreLock.acquire(tmp_path, Door())
    assert (tmp_path / "lock").read_bytes() == b"lock"
    lock.release()
    assert (tmp_path / "lock").exists()


def test_a_second_store_of_this_process_is_kept_out(tmp_path):
    lock = StoreLock.acquire(tmp_path, Door())
    with pytest.raises(StoreLockedError, match="this process") as caught:
        StoreLock.acquire(tmp_path, Door())
    assert caught.value.root == tmp_path
    assert str(tmp_path) in str(caught.value)
    lock.release()
    lock.release()
    StoreLock.acquire(tmp_path, Door()).release()


def test_another_process_is_named_and_its_death_frees_the_store(tmp_path, hold):
    holder = hold(_HOLD)
    with pytest.raises(StoreLockedError) as caught:
        StoreLock.acquire(tmp_path, Door())
    assert caught.value.holder_pid == holder.pid
    assert f"process {holder.pid}" in str(caught.value)
    holder.kill()
    holder.communicate()
    StoreLock.acquire(tmp_path, Door()).release()


def test_rocketmq_keeps_us_out(tmp_path, hold):
    (tmp_path / "lock").write_bytes(b"lock")
    holder = hold(_HOLD_AS_JAVA)
    with pytest.raises(StoreLockedError) as caught:
        StoreLock.acquire(tmp_path, Door())
    assert caught.value.holder_pid == holder.pid


def test_we_keep_rocketmq_out_even_when_the_file_is_read_meanwhile(tmp_path):
    lock = StoreLock.acquire(tmp_path, Door())
    (tmp_path / "lock").read_bytes()  # closing it would end a process lock
    script = _HOLD_AS_JAVA.replace('print("held", flush=True)', "")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, input="")
    assert "BlockingIOError" in done.stderr
    lock.release()


def test_other_errors_do_not_count_as_a_holder(tmp_path):
    with pytest.raises(FileNotFoundError):
        StoreLock.acquire(tmp_path / "nowhere", Door())
    door = Door()
    door.fail("write", "lock", errno.ENOSPC)
    with pytest.raises(OSError, match="No space") as caught:
        StoreLock.acquire(tmp_path, door)
    assert caught.value.filename == str(tmp_path / "lock")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_failed_attempt_leaves_no_descriptor(tmp_path):
    lock = StoreLock.acquire(tmp_path, Door())
    before = _descriptors()
    for _ in range(5):
        with pytest.raises(StoreLockedError):
            StoreLock.acquire(tmp_path, Door())
    assert _descriptors() == before
    assert fcntl.fcntl(lock._descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    lock.release()


@pytest.mark.parametrize("seed", range(20))
def test_the_abort_mark_survives_from_the_moment_the_store_is_open(tmp_path, seed):
    door = Door(record=True)
    assert not abort.was_aborted(tmp_path)
    abort.mark_open(tmp_path, door)
    door.crash(seed)
    assert abort.was_aborted(tmp_path)
    abort.mark_open(tmp_path, door)
    abort.mark_closed(tmp_path, door)
    door.crash(seed)
    assert not abort.was_aborted(tmp_path)
    abort.mark_closed(tmp_path, door)


def test_a_mark_that_is_not_durable_is_an_error(tmp_path):
    door = Door()
    door.fail("sync_dir", "", errno.EIO)
    with pytest.raises(OSError):
        abort.mark_open(tmp_path, door)
