"""The event loop of a simulated world: virtual time, one order of events, threads as events.

    ready callbacks, in their order  ─▶  nothing ready: time jumps to the next timer  ─▶  its callbacks are ready

No callback takes time; what takes time is a wait (a timer, the network, a disk), and its length comes from the seed.
`run_in_executor` makes two events of a call: it has all its effects at one moment, and its result is told later. A
kill may come between, or in the call itself (`Door.kill_after`).

Each callback belongs to the process in whose context it was made. Those of a dead process are dropped.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
from asyncio import base_events
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import TYPE_CHECKING, Any

from simulation.patches import SimExecutor, SimFuture, SimTask, in_thread
from simulation.trace import Trace
from simulation.world import MONOTONIC_BASE_S, Process, current
from tallystick.store._kernel import simulate_index_clock

if TYPE_CHECKING:
    from simulation.network import Network

_MOST_EVENTS_AT_ONE_TIME = 200_000
_WALL_BASE_S = 1.7e9


class LivelockError(AssertionError):
    """Callbacks call each other without an end while no time passes."""


class SimHandle:
    """A callback that waits. Stands for asyncio's handles of both kinds; a run makes tens of thousands of them."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "when_s")

    def __init__(self, when_s: float, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None):
        self.when_s = when_s
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


class SimLoop(base_events.BaseEventLoop):
    """`dice` decides how long blocking calls take. `network` answers everything about connections."""

    def __init__(self, dice: Random, trace: Trace) -> None:
        super().__init__()
        self.now = 0.0
        """Virtual seconds since the world began."""
        self.steps = 0
        self.trace = trace
        self.network: Network
        self._dice = dice
        self._sequence = 0
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._events_now = 0
        self._ended = False
        self.problems: list[str] = []
        """Uncaught exceptions, with their process."""
        simulate_index_clock(int(_WALL_BASE_S * 1000))
        self.set_task_factory(_make_task)
        self.set_exception_handler(self._on_problem)

    # --- time ---

    def time(self) -> float:
        """The monotonic clock of the process that asks."""
        process = current.get()
        return MONOTONIC_BASE_S + self.now if process is None else process.host.local_s(self.now)

    def wall_ns(self) -> int:
        """The wall clock of the process that asks."""
        process = current.get()
        return int((_WALL_BASE_S + self.now) * 1e9) if process is None else process.host.wall_ns(self.now)

    # --- callbacks ---

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = SimHandle(self.now, callback, args, context)
        if not self._ended:
            self._ready.append(handle)  # type: ignore[attr-defined]
        return handle  # type: ignore[return-value]

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        process = current.get()
        at = when - MONOTONIC_BASE_S if process is None else process.host.virtual_s(when)
        return self._at(at, when, callback, args, context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def at(
        self, virtual_s: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """A callback at a virtual time; for the world's own events, which no host's clock rules."""
        return self._at(virtual_s, virtual_s, callback, args, context)

    def _at(
        self, at: float, when: float, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.TimerHandle:
        timer = SimHandle(when, callback, args, context)  # a cancelled one stays in the heap until its time
        if not self._ended:
            self._sequence += 1
            heapq.heappush(self._timers, (max(at, self.now), self._sequence, timer))
        return timer  # type: ignore[return-value]

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            self._advance()
        ready: deque[SimHandle] = self._ready  # type: ignore[attr-defined]
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.is_cancelled:
                self._run_handle(handle)

    def _advance(self) -> None:
        timers = self._timers
        while timers:
            at, _, timer = heapq.heappop(timers)
            if timer.is_cancelled:
                continue
            if at > self.now:
                self.now, self._events_now = at, 0
                simulate_index_clock(int((_WALL_BASE_S + at) * 1000))
            self._ready.append(timer)  # type: ignore[attr-defined]
            if not timers or timers[0][0] > self.now:
                return
        if not self._ready:  # type: ignore[attr-defined]
            raise AssertionError("the world stands still: nothing is ready and no timer is set")

    def _run_handle(self, handle: SimHandle) -> None:
        process = handle.context.get(current)
        if process is not None:
            if process.dead:
                return
            if process.events_left is not None:
                process.events_left -= 1
                if process.events_left < 0:
                    self.die(process, "between two callbacks")
                    return
        self.steps += 1
        self._events_now += 1
        if self._events_now > _MOST_EVENTS_AT_ONE_TIME:
            raise LivelockError(f"{self._events_now} callbacks at one time; the last one is {handle.callback!r}")
        try:
            handle.context.run(handle.callback, *handle.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            message = f"Exception in callback {handle.callback!r}"
            self.call_exception_handler({"message": message, "exception": error})
        if process is not None and not process.dead and process.door is not None and process.door.dead:
            self.die(process, "in a call to the disk")

    def die(self, process: Process, how: str) -> None:
        """The process is gone, at once: no callback, no `finally`, no goodbye."""
        if process.dead:
            return
        process.dead = True
        self.trace.note(self.now, f"{process} dies {how}")
        if process.on_death is not None:
            process.on_death(process)

    def _on_problem(self, _: Any, context: dict[str, Any]) -> None:
        process = current.get()
        if process is not None and process.gone:
            return
        error = context.get("exception")
        self.problems.append(f"{process}: {context.get('message')}: {error!r}")

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(loop=self)

    # --- threads ---

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """One thread for each `SimExecutor`, any number without one."""
        if isinstance(executor, SimExecutor) and executor.closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        call = _Call(self, executor, func, args)
        process = current.get()
        delay = self.blocking_s(process)
        begin = self.now if executor is None else max(self.now, executor.free_at)
        effect = begin + delay * self._dice.random()
        if executor is not None:
            executor.free_at = begin + delay
            executor.waiting.append(call)
        elif process is not None:
            process.executors.append(call)
        self.at(effect, call.run)
        self.at(begin + delay, call.tell)
        return call.future

    def blocking_s(self, process: Process | None) -> float:
        """How long a call that may wait for the disk takes now."""
        dice = self._dice
        usual = dice.expovariate(1 / 0.0008) if dice.random() < 0.95 else dice.uniform(0.005, 0.08)
        slow = 0.0 if process is None else process.host.disk_delay_s
        return usual + (dice.expovariate(1 / slow) if slow else 0.0)

    async def shutdown_default_executor(self) -> None:
        pass

    # --- the rest of what processes ask a loop for ---

    def add_signal_handler(self, number: int, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        process = current.get()
        assert process is not None and not args
        process.signal_handlers[number] = callback

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        if not isinstance(host, str) or not host.replace(".", "").isdecimal():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, int(port or 0)))]

    async def create_connection(self, factory: Callable[[], Any], host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return await self.network.connect(factory, host, port)

    async def create_server(self, factory: Callable[[], Any], *_: Any, sock: Any = None, **__: Any) -> Any:  # type: ignore[override]
        return self.network.serve(factory, sock)

    async def sock_accept(self, sock: Any) -> Any:
        return await self.network.accept(sock)

    async def connect_accepted_socket(self, factory: Callable[[], Any], sock: Any, **_: Any) -> Any:  # type: ignore[override]
        return self.network.adopt(factory, sock)

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def end(self) -> None:
        """Nothing runs from now on, whatever is requested."""
        self._ended = True
        simulate_index_clock(-1)
        self._ready.clear()  # type: ignore[attr-defined]
        self._timers.clear()


class _Call:
    """A call on a thread: its effects, then its result."""

    def __init__(self, loop: SimLoop, executor: SimExecutor | None, func: Callable[..., Any], args: Any) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()
        self._executor = executor
        self._owner = current.get()
        self._call = (func, args)
        self._ran = False
        self._result: Any = None
        self._error: BaseException | None = None

    @property
    def name(self) -> str:
        """The function that is called."""
        return getattr(self._call[0], "__qualname__", repr(self._call[0]))

    def run(self) -> None:
        if self._ran:
            return
        self._ran = True
        func, args = self._call
        try:
            self._result = in_thread(lambda: func(*args))
        except Exception as error:
            self._error = error
        holder = self._executor.waiting if self._executor is not None else self._owner and self._owner.executors
        if holder and self in holder:
            holder.remove(self)

    def tell(self) -> None:
        self.run()
        if self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result)

    def cancel(self) -> None:
        self._ran = True
        self.future.cancel()


def _make_task(loop: Any, coro: Any, context: Context | None = None) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = SimTask(coro, loop=loop, context=context)
    process = current.get() if context is None else context.get(current)
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
    return task
