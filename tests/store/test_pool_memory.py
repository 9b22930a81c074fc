"""The buffers of the transient store pool are locked in memory, or a warning says why not."""

from __future__ import annotations

import logging
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_lab import HOST, opened, small

from tallystick.store._kernel import Door, Log
from tallystick.store.engine import locking
from tallystick.store.engine.appender import Appender

BUFFER = 64 << 20
RIGHT = "CapEff:\t0000000000004000\n"  # CAP_IPC_LOCK is bit 14
NO_RIGHT = "CapEff:\t00000000ffffbfff\n"


def locked_bytes() -> int:
    """Locked memory of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck:"))
    return int(line.split()[1]) << 10


def log_in(folder: Path) -> Log:
    log = Log(
        Door(), str(folder), segment_bytes=1 << 20, max_message_bytes=4 << 20, store_host=HOST.encode(), suffix=b"",
        region="R",
    )  # fmt: skip
    log.start(0, 0)
    return log


def append(log: Log, body: bytes) -> None:
    log.append(b"T", 0, body, b"", now_ms=1, born_timestamp=1, born_host=HOST.encode())


def free_range_of_the_heap(size: int) -> bytearray:
    """Leaves one free range of this size on the allocator's heap, below the returned block."""
    bytearray(31 << 20)  # once it is freed, the allocator takes blocks of this size from its heap, no longer from maps
    blocks = [bytearray(16 << 20) for _ in range(size >> 24)]
    above = bytearray(1 << 20)
    del blocks
    return above


@pytest.mark.parametrize("free_bytes", [0, 6 * BUFFER], ids=["own_maps", "heap"])
def test_staged_bytes_lie_in_locked_memory(tmp_path: Path, free_bytes: int) -> None:
    if locking.forbidden(4 * BUFFER):
        pytest.skip("this process may not lock enough memory")
    above = free_range_of_the_heap(free_bytes)
    log, before = log_in(tmp_path / "log"), locked_bytes()
    log.lock_buffers()
    assert locked_bytes() - before == pytest.approx(BUFFER, abs=1 << 20)
    for number in range(40):  # over a border between segments, too: the next piece has another buffer
        append(log, bytes([number]) * 60_000)
    assert locked_bytes() - before >= BUFFER
    log.write_out()
    append(log, b"again")
    assert locked_bytes() - before == pytest.approx(BUFFER, abs=1 << 20), "one is kept, the others are released"
    del log
    assert locked_bytes() - before < 1 << 20
    del above


def test_what_is_written_from_locked_buffers_is_the_same(tmp_path: Path) -> None:
    logs = log_in(tmp_path / "locked"), log_in(tmp_path / "plain")
    try:
        logs[0].lock_buffers()
    except OSError:
        pytest.skip("this process may not lock memory")
    for log in logs:
        for round_number in range(3):
            for number in range(15):
                append(log, bytes([round_number + number]) * 50_000)
            log.write_out()
    names = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert len(names) > 1
    for name in names:
        assert (tmp_path / "locked" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


@pytest.mark.parametrize(
    ("limit", "status", "reason"),
    [
        (resource.RLIM_INFINITY, NO_RIGHT, ""),
        (BUFFER, NO_RIGHT, ""),
        (BUFFER - 1, RIGHT, ""),
        (BUFFER - 1, NO_RIGHT, f"may lock {BUFFER - 1} bytes (RLIMIT_MEMLOCK), and the buffers take up to {BUFFER}"),
    ],
)
def test_the_limit_of_the_process_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, status: str, reason: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    path = tmp_path / "status"
    path.write_text(f"Name:\tpython\n{status}Threads:\t1\n")
    told = locking.forbidden(BUFFER, path)
    assert reason in told and bool(told) is bool(reason)


@pytest.mark.parametrize(
    "error", [MemoryError("Cannot allocate memory"), PermissionError(1, "Operation not permitted")]
)
def test_a_refusal_of_the_system_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """ENOMEM, which comes above RLIMIT_MEMLOCK, is a MemoryError for Python."""

    def lock_buffers() -> None:
        raise error

    monkeypatch.setattr(locking, "forbidden", lambda size: "")
    appender: Any = SimpleNamespace(log=SimpleNamespace(lock_buffers=lock_buffers), _pool_bytes=1)
    Appender._lock_buffers(appender)
    assert caplog.messages == [
        f"the buffers of transientStorePoolEnable are not locked in memory, the system can swap them out: {error}"
    ]


async def test_a_start_warns_once_if_memory_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locking, "forbidden", lambda size: f"the limit is below {size}")
    settings = small(tmp_path / "store", transientStorePoolEnable=True, transientStorePoolSize=3)
    with caplog.at_level(logging.WARNING):
        async with opened(settings):
            pass
    warnings = [line for line in caplog.messages if "not locked in memory" in line]
    assert len(warnings) == 1 and warnings[0].endswith("the limit is below 12288")
