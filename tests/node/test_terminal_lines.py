"""`lines` reads standard input in a thread: each way in which the input can end reaches the caller."""

import asyncio
import threading
from pathlib import Path

import pytest

from tallystick.node.commands import terminal
from tallystick.node.commands.terminal import InputError, lines


async def test_lines_come_without_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"one\r\ntwo\n\nthree")
    with path.open("rb") as stream:
        found = [line async for some in lines(stream) for line in some]
    assert found == [b"one", b"two", b"", b"three"]


async def test_a_line_above_the_limit_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "MAX_LINE_BYTES", 8)
    path = tmp_path / "input"
    path.write_bytes(b"short\n" + b"x" * 9)
    with path.open("rb") as stream, pytest.raises(InputError, match="longer than 8 bytes"):
        async for _ in lines(stream):
            pass


async def test_a_closed_stream_is_an_error(tmp_path: Path) -> None:
    """The thread must not end with an unhandled error: the caller would wait without limit."""
    unhandled: list[object] = []
    path = tmp_path / "input"
    path.write_bytes(b"never read\n")
    stream = path.open("rb")
    stream.close()
    previous, threading.excepthook = threading.excepthook, unhandled.append
    try:
        async with asyncio.timeout(60):
            with pytest.raises(InputError, match="standard input is closed"):
                async for _ in lines(stream):
                    pass
    finally:
        threading.excepthook = previous
    assert unhandled == []


async def test_a_stream_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "output"
    with path.open("wb") as stream, pytest.raises(OSError, match="Bad file descriptor"):
        async for _ in lines(stream):
            pass


async def test_a_process_without_standard_input_gets_an_error() -> None:
    """Python has no `sys.stdin` in a process that was started with a closed descriptor 0."""
    async with asyncio.timeout(60):
        with pytest.raises(InputError, match="standard input is closed"):
            async for _ in lines(None):
                pass
