"""What a process asks of its machine is answered by the simulated world, as long as there is one.

Replaced are: the clocks of `time`, randomness of `random`, `secrets` and `os.urandom`, `os.statvfs`, and then, in the
product, the few places that make threads, listening sockets, doors and store locks. Without a world each of them does
what it always does. `install` must run before the product is imported: default arguments take functions as they are
at that time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from simulation.world import Entropy, current

if TYPE_CHECKING:
    from simulation.loop import SimLoop


class World:
    """The world that plays now, if one does."""

    loop: SimLoop | None = None
    entropy: Entropy | None = None
    hashes: Iterator[int] = itertools.count()
    most_single_syncs: int = 0
    """Of the disks: with more files the product syncs a whole file system. 0: as in production, so never here."""


def ordered_hash(self: Any) -> int:
    """Hashes of objects that stand in sets: numbers in the order of their first use, where Python takes addresses."""
    number: int | None = getattr(self, "_ordered_hash", None)
    if number is None:
        number = self._ordered_hash = next(World.hashes)
    return number


class SimTask(asyncio.Task):
    """A task that stands in sets at a place that only the seed decides."""

    __hash__ = ordered_hash


class SimFuture(asyncio.Future):
    """A future of the same kind."""

    __hash__ = ordered_hash


_real_urandom = os.urandom
_real_statvfs = os.statvfs
_real = {
    name: getattr(time, name) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep")
}
_RealRandom = random.Random

real_seconds: Callable[[], float] = _real["perf_counter"]
"""The machine's own clock, for measuring runs."""


def _monotonic() -> float:
    loop = World.loop
    return _real["monotonic"]() if loop is None else loop.time()


def _time_ns() -> int:
    loop = World.loop
    return _real["time_ns"]() if loop is None else loop.wall_ns()


def _sleep(seconds: float) -> None:
    if World.loop is None:
        _real["sleep"](seconds)  # else a thread's pause: threads are events, which take no time by themselves


def _urandom(count: int) -> bytes:
    entropy = World.entropy
    return _real_urandom(count) if entropy is None else entropy.bytes(count)


class _SeededRandom(_RealRandom):
    """`random.Random()` without a seed takes one from the world."""

    def __init__(self, seed: Any = None) -> None:
        if seed is None and World.entropy is not None:
            seed = World.entropy.bits(64)
        super().__init__(seed)


def _statvfs(path: Any) -> os.statvfs_result:
    process = current.get()
    if process is None:
        return _real_statvfs(path)
    used = process.host.disk_used
    blocks = 1 << 20
    free = blocks - int(blocks * (0.1 if used is None else used))
    return os.statvfs_result((4096, 4096, blocks, free, free, 1 << 20, 1 << 19, 1 << 19, 0, 255))


def install() -> None:
    """Replaces the standard library's functions, then imports the product and replaces its own. Once per process."""
    time.monotonic = time.perf_counter = _monotonic
    time.monotonic_ns = lambda: int(_monotonic() * 1e9)
    time.time_ns = _time_ns
    time.time = lambda: _time_ns() / 1e9
    time.sleep = _sleep  # type: ignore[assignment]
    os.urandom = _urandom
    os.statvfs = _statvfs
    random.Random = _SeededRandom  # type: ignore[assignment, misc]
    secrets.token_bytes = lambda nbytes=None: os.urandom(nbytes or 32)
    secrets.token_hex = lambda nbytes=None: os.urandom(nbytes or 32).hex()
    secrets.randbits = lambda k: int.from_bytes(os.urandom(k // 8 + 1)) >> (8 - k % 8)
    _install_in_product()


class SimExecutor(Executor):
    """Stands for a pool of one thread. The loop runs its calls one after the other; `shutdown` runs what is left."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.closed = False
        self.free_at = 0.0
        self.waiting: list[Any] = []
        process = current.get()
        if process is not None:
            process.executors.append(self)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.closed = True
        for call in list(self.waiting):
            if cancel_futures:
                call.cancel()
            else:
                call.run()
        self.waiting.clear()


class _ProcessBudget:
    """`memory_budget.PROCESS`: each simulated process has its own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_budget(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_budget(), name, value)


def _budget() -> Any:
    from tallystick.store.memory_budget import MemoryBudget

    process = current.get()
    assert process is not None, "only processes have connections"
    if process.budget is None:
        process.budget = MemoryBudget(256 << 20)
    return process.budget


def _turns_of_process(clock: Callable[[], float]) -> Any:
    """`turns_of_loop`: the simulated processes share a loop, and the callbacks of a dead one are dropped."""
    from tallystick.node.remoting.turns import Turns

    process = current.get()
    assert process is not None, "only processes have servers"
    if process.turns is None:
        process.turns = Turns(clock)
    return process.turns


def _install_in_product() -> None:
    import tallystick.node.broker.broker as broker
    import tallystick.node.nameserver.server as nameserver
    import tallystick.node.remoting.connection as connection
    import tallystick.node.remoting.server as remoting
    import tallystick.node.run as run
    import tallystick.replication.ledger.ledger as ledger
    import tallystick.replication.member.log_writer as log_writer
    import tallystick.replication.member.member as member
    import tallystick.replication.transport.link as link
    import tallystick.store.engine.appender as appender
    import tallystick.store.engine.lock as lock
    import tallystick.store.engine.threads as threads
    import tallystick.store.formats.progress as progress
    import tallystick.store.memory_budget as memory_budget
    from simulation.disk import SimSyncThread, patched_acquire, process_door
    from simulation.sockets import bind_one

    real_boot_id = progress.boot_id

    def boot_id() -> bytes:
        process = current.get()
        return real_boot_id() if process is None else process.host.boot_id

    progress.boot_id = boot_id
    ledger.machine_boot_id = member.machine_boot_id = boot_id
    remoting._bind_one = bind_one
    remoting.turns_of_loop = _turns_of_process
    connection.Connection.__hash__ = link.Link.__hash__ = ordered_hash  # type: ignore[method-assign]
    threads.ThreadPoolExecutor = SimExecutor  # type: ignore[assignment, misc]
    appender.SyncThread = log_writer.SyncThread = SimSyncThread  # type: ignore[assignment, misc]
    broker.Door = nameserver.Door = process_door  # type: ignore[assignment, misc]
    lock.StoreLock.acquire = classmethod(patched_acquire(lock.StoreLock.acquire.__func__))  # type: ignore[assignment, attr-defined, method-assign]
    memory_budget.PROCESS = _ProcessBudget()  # type: ignore[assignment]
    run.print = lambda *_, **__: None  # type: ignore[attr-defined]


def in_thread(call: Callable[[], Any]) -> Any:
    """Calls it as a thread would: without a running loop."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return call()
    finally:
        asyncio._set_running_loop(loop)
