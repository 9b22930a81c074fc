"""Where a consumer is in each queue: at the brokers, for the group, or in a local file, for a broadcast."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Protocol

from tallystick.client.consuming.pulling import Queues, Start
from tallystick.client.core.errors import ClientError, ConfigurationError
from tallystick.client.core.queue import Queue


class Progress(Protocol):
    """Loads and saves offsets."""

    async def load(self, queue: Queue) -> tuple[int, bool]:
        """Returns where to begin, and whether this offset is saved. ClientError: it is not known now."""

    async def save(self, offsets: dict[Queue, int]) -> dict[Queue, ClientError]:
        """Saves offsets. Returns the errors of those that were not saved."""


class GroupProgress:
    """At the brokers. A queue without an offset begins at `start`."""

    def __init__(self, queues: Queues, start: Start | datetime) -> None:
        self._queues = queues
        self._start = start

    async def load(self, queue: Queue) -> tuple[int, bool]:
        offset = await self._queues.committed(queue)
        return (await self._queues.begin(queue, self._start), False) if offset is None else (offset, True)

    async def save(self, offsets: dict[Queue, int]) -> dict[Queue, ClientError]:
        failed: dict[Queue, ClientError] = {}
        for queue, offset in offsets.items():
            try:
                await self._queues.commit(queue, offset)
            except ClientError as error:
                failed[queue] = error
        return failed


class LocalProgress:
    """In a file, which is replaced as a whole. ConfigurationError: the file cannot be read or is not one of these."""

    def __init__(self, path: Path, queues: Queues, start: Start | datetime) -> None:
        self._path = path
        self._queues = queues
        self._start = start
        self._offsets: dict[str, int] = {}
        try:
            found = json.loads(path.read_bytes())
            self._offsets = {str(name): int(offset) for name, offset in found["offsets"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"the file of offsets {path} cannot be read: {error}") from error

    async def load(self, queue: Queue) -> tuple[int, bool]:
        found = self._offsets.get(str(queue))
        return (await self._queues.begin(queue, self._start), False) if found is None else (found, True)

    async def save(self, offsets: dict[Queue, int]) -> dict[Queue, ClientError]:
        self._offsets |= {str(queue): offset for queue, offset in offsets.items()}
        try:
            self._write()
        except OSError as error:
            problem = ConfigurationError(f"the file of offsets {self._path} cannot be written: {error}")
            return dict.fromkeys(offsets, problem)
        return {}

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(self._path.name + ".new")
        with temporary.open("wb") as file:
            file.write(json.dumps({"offsets": self._offsets}, sort_keys=True).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
