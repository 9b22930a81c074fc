"""A broker or a name server as it is started, stopped, killed, and deprived of its power, over and over on one disk.

A start runs the product's own `_Process`, as `tally broker` does, without HTTP: settings are parsed from text, signals
end it, and the broker of a member that must start again is opened again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import warnings
from contextvars import copy_context
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from simulation.patches import World
from simulation.world import Host, Process, current
from tallystick.node.core.configuration import load
from tallystick.node.run import _Process
from tallystick.store._kernel import Door

if TYPE_CHECKING:
    from simulation.loop import SimLoop

BROKER_PORT = 10911
NAMES_PORT = 9876
MEMBER_PORT = 11911

SMALL = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "1000",
    "maxHashSlotNum": "64",
    "maxIndexNum": "128",
    "maxMessageSize": "20000",
    "diskSpaceWarningLevelRatio": "0.9",
}
"""Small files, so that everything rolls, is made ahead and is cleaned within a few hundred messages."""


class Node:
    """One program on one host. `disk` is its door's record of what is durable; `settings` as `--set` takes them."""

    def __init__(self, loop: SimLoop, host: Host, settings: dict[str, str], *, broker: bool) -> None:
        assert host.folder is not None
        self.loop = loop
        self.host = host
        self.settings = settings
        self.is_broker = broker
        self.disk = Door(record=True, most_single_syncs=World.most_single_syncs)
        self.process: Process | None = None
        self.runs = 0
        self.async_until = float("-inf")
        """When it last ran with ASYNC_FLUSH, before a start with another mode."""
        self.kill_is_planned = False
        self.reports: list[str] = []
        """What its processes logged as warnings and errors."""
        self.left_over: list[str] = []
        """Tasks that the last process still had when it ended in order."""
        self.ended_badly: str | None = None
        """Why the last run ended by itself, if it did."""
        self._main: asyncio.Task[None] | None = None
        self._program: _Process | None = None

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def address(self) -> str:
        return f"{self.host.ip}:{BROKER_PORT if self.is_broker else NAMES_PORT}"

    @property
    def up(self) -> bool:
        """A process runs; it may be starting or stopping."""
        return self.process is not None

    @property
    def ready(self) -> bool:
        return self._program is not None and self._program._ready and self.up

    @property
    def broker(self) -> Any:
        """The running broker, None if there is none now."""
        return None if self._program is None or not self.up else self._program._broker

    def start(self) -> None:
        """Starts the program; it serves some time later."""
        assert self.process is None
        self.runs += 1
        self.host.powered = True
        door = self.disk = self.disk.next_process()
        process = Process(f"{self.name}.{self.runs}", self.host, door)
        process.on_death = self._died
        self.process, self.ended_badly, self.kill_is_planned = process, None, False
        self.loop.trace.note(self.loop.now, f"{process} starts")
        context = copy_context()
        context.run(current.set, process)
        self._main = context.run(self.loop.create_task, self._run(process), name=f"main of {process}")

    async def _run(self, process: Process) -> None:
        settings = load(
            assignments=[f"{key}={value}" for key, value in self.settings.items()] + ["http.port=-1"],
        )
        program = self._program = _Process(settings)
        try:
            await program.serve(not self.is_broker, self.is_broker)
            how = "in order" if program.exit_status == 0 else f"with status {program.exit_status}"
        except Exception as error:
            how = f"by {type(error).__name__}: {error}"
        if process.gone:
            self.loop.die(process, "in a call to the disk")
            return
        working = [call for call in process.executors if hasattr(call, "run")]
        for call in working:
            call.run()  # a process waits for its threads
        left = [task for task in process.tasks if task is not asyncio.current_task() and not task.done()]
        self._gone(process, how)
        process.dead = True
        self.loop.network.process_died(process, silently=False)
        self._release(process)
        if how != "in order":
            self.ended_badly = how
        # A table's write that is done on its thread, and whose task has not heard of it yet, is nothing left over.
        names = [
            f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')})"
            for task in left
            if not task.get_name().startswith(("save ", "write "))
        ]
        calls = [call.name for call in working if "StoreLock.check" not in call.name]  # it only looks
        self.left_over = sorted([*names, *(f"a call of {name} on a thread" for name in calls)])

    def stop(self) -> None:
        """SIGTERM."""
        process = self.process
        if process is None or process.dead:
            return
        self.loop.trace.note(self.loop.now, f"{process} gets SIGTERM")
        handler = process.signal_handlers.get(signal.SIGTERM)
        if handler is None:
            self.kill()  # the default action of a program that has not asked for the signal yet
        else:
            context = copy_context()
            context.run(current.set, process)
            context.run(handler)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.loop.die(self.process, "by kill -9")

    def kill_at_call(self, calls: int, keep_bytes: int) -> None:
        """SIGKILL within a call to the disk, after so many others."""
        if self.process is not None:
            self.kill_is_planned = True
            self.process.door.kill_after(calls, keep_bytes)

    def lose_power(self, dice: Random, keep: float | None = None) -> list[str]:
        """Power goes: the process, and whatever no sync covers. Returns what the disk lost."""
        self.host.powered = False
        if self.process is not None:
            self.loop.die(self.process, "with its host")
        self.host.boots += 1
        lost = self.disk.crash(dice.getrandbits(63), keep)
        self.disk.heal()
        self.loop.trace.note(self.loop.now, f"{self.name} loses power, and {len(lost)} operations of its disk")
        return lost

    def change(self, settings: dict[str, str]) -> None:
        """The next start has these settings."""
        if self.settings.get("flushDiskType") == "ASYNC_FLUSH":
            self.async_until = self.loop.now
        self.settings |= settings

    def _died(self, process: Process) -> None:
        process.door.kill()
        self._gone(process, "killed")
        self.loop.network.process_died(process, silently=not self.host.powered)
        self._release(process)

    def _gone(self, process: Process, how: str) -> None:
        self.loop.trace.note(self.loop.now, f"{process} ended {how}")
        self.process = None
        self._program = None

    def _release(self, process: Process) -> None:
        for lock in process.locks:
            lock.release()


def bury(processes: list[Process]) -> None:
    """Lets go of what dead processes left; nothing of it may have an effect. For the end of a world."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # coroutines that a kill kept from their first step
        for process in processes:
            for task in list(process.tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            process.tasks.clear()
        gc.collect()
    logging.disable(logging.NOTSET)


def broker_settings(folder: Path, host: Host, names: str, **changes: str) -> dict[str, str]:
    """A broker by itself."""
    return {
        "storePathRootDir": str(folder),
        "brokerIP1": host.ip,
        "brokerName": host.name,
        "bindAddress": host.ip,
        "listenPort": str(BROKER_PORT),
        "vipListenerEnable": "false",
        "namesrvAddr": names,
        **SMALL,
        **changes,
    }
