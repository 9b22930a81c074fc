"""Tables that are kept in a file: which write speaks for which change."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import Any

import pytest

from tallystick.node.broker.tables.offsets import ConsumerOffsets


class SlowFile:
    """A write waits for `go`, and fails if it began before `repaired`."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.repaired = False
        self.saved: list[Any] = []

    def load(self) -> Any:
        return None

    def save(self, value: Any) -> None:
        works = self.repaired
        self.begun.set()
        assert self.go.wait(30)
        if not works:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.saved.append(value)


async def test_a_write_that_began_before_a_change_does_not_speak_for_it() -> None:
    file = SlowFile()
    table = ConsumerOffsets(file)
    table.commit("g", "T", 0, 1)
    first = asyncio.create_task(table.saved())
    await asyncio.to_thread(file.begun.wait, 30)
    file.repaired = True
    table.commit("g", "T", 0, 2)
    second = asyncio.create_task(table.saved())
    await asyncio.sleep(0)
    file.go.set()
    with pytest.raises(OSError, match="No space left"):
        await first
    await second
    assert [value["offsetTable"] for value in file.saved] == [{"T@g": {0: 2}}]
    assert not table.dirty


async def test_an_older_picture_never_replaces_a_newer_one() -> None:
    """`persist` at a stop may overtake a write on a thread, which gets its turn at the file later."""
    file = SlowFile()
    file.repaired = True
    file.go.set()
    table = ConsumerOffsets(file)
    table.commit("g", "T", 0, 1)
    older = table.to_json()
    table.commit("g", "T", 0, 2)
    table.persist()
    table._save(1, older)
    assert [value["offsetTable"] for value in file.saved] == [{"T@g": {0: 2}}]
