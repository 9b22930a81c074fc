"""Calls the core one call after the other, carries out all effects of one before the next, and sets its timer.

    call ─▶ Raft.step, tick, synced, ... ─▶ effect, effect, effect ─▶ calls that effects requested ─▶ the next call
              ▲                                  └─ failed: the rest is dropped, and the core is told first
    deadline ─┘

A call that is made while effects are carried out, for example by a callback, waits for their end. If an effect fails
because of the disk or of the leader, the rest of its list is dropped (`effects`, 4). Any other exception is an internal
error, and nothing may follow it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tallystick.replication.effects import Effect
from tallystick.replication.member.ranges import RangeError
from tallystick.replication.raft import Raft

Call = Callable[..., Sequence[Effect]]
"""A method of the core, or a function in its place. Its first argument is the time."""

_NEVER = float("inf")


class CoreCalls:
    """Created when the member starts, on its event loop."""

    def __init__(
        self,
        raft: Raft,
        carry_out: Callable[[Effect], None],
        *,
        on_failed: Callable[[Effect, OSError | RangeError], None],
        on_mistake: Callable[[Exception], None],
        on_deadline: Callable[[], None],
        on_settled: Callable[[], None],
    ) -> None:
        """`on_failed` must call `instead`, and `on_mistake` must halt. `on_deadline`: the core's deadline has passed,
        so `tick` must be called. `on_settled`: no call waits any longer.
        """
        self.halted = False
        self.working = False
        """The core is being called, or its effects are carried out."""
        self.in_effect = False
        self._raft = raft
        self._do = carry_out
        self._on_failed, self._on_mistake = on_failed, on_mistake
        self._on_deadline, self._on_settled = on_deadline, on_settled
        self._waiting: deque[tuple[Call, tuple[Any, ...]]] = deque()
        self._then: list[tuple[Call, tuple[Any, ...]]] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = _NEVER

    def call(self, call: Call, *arguments: Any) -> None:
        """Makes the call now, or after all waiting calls."""
        if self.halted:
            return
        if self.working:
            self._waiting.append((call, arguments))
            return
        self.working = True
        try:
            self._carry_out(call(time.monotonic(), *arguments))
            while self._waiting:
                call, arguments = self._waiting.popleft()
                self._carry_out(call(time.monotonic(), *arguments))
        except Exception as error:  # only a part of the effects was carried out: stop
            self._on_mistake(error)
        finally:
            self.working = False
        if not self.halted:
            self._set_alarm()
            self._on_settled()

    def first(self, call: Call, *arguments: Any) -> None:
        """Makes the call now, or before all waiting calls."""
        if self.working:
            self._waiting.appendleft((call, arguments))
        else:
            self.call(call, *arguments)

    def then(self, call: Call, *arguments: Any) -> None:
        """Makes the call after the current list of effects, unless an effect of it fails."""
        self._then.append((call, arguments))

    def instead(self, call: Call, *arguments: Any) -> None:
        """Drops the rest of the current list, and makes this the next call of the core."""
        self._then.clear()
        self._waiting.appendleft((call, arguments))

    def halt(self) -> None:
        """Stops: nothing is called or carried out afterwards."""
        self.halted = True
        self._waiting.clear()
        self._then.clear()
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_at = None, _NEVER

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self.in_effect = True
            try:
                self._do(effect)
            except (OSError, RangeError) as error:
                self._on_failed(effect, error)
                return
            finally:
                self.in_effect = False
            if self.halted:
                return
        if self._then:
            self._waiting.extendleft(reversed(self._then))
            self._then.clear()

    def _set_alarm(self) -> None:
        deadline = self._raft.deadline
        if deadline < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = deadline
            wait = max(0.0, deadline - time.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(wait, self._ring)

    def _ring(self) -> None:
        """In most cases the deadline moved since the timer was set: the timer is set again here, not with every
        message."""
        self._alarm, self._alarm_at = None, _NEVER
        if self.halted:
            return
        if time.monotonic() >= self._raft.deadline:
            self._on_deadline()
        else:
            self._set_alarm()
