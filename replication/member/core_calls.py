"""Calls of the core, one after the other, each with all of its effects before the next, and its clock.

    call ─▶ Raft.step, tick, synced, ... ─▶ effect, effect, effect ─▶ what they ask to be called then ─▶ the next call
              ▲                                  └─ failed: the rest is dropped, and the core hears of it first
    deadline ─┘

Whoever calls in the middle of effects, as callbacks do, waits for their end. An effect that fails for the disk's or the
leader's sake ends its list (`effects`, 4); anything else that one raises is a mistake of ours, and nothing may follow.
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
"""A method of the core, or what stands for one: its first argument is the time."""

_NEVER = float("inf")


class CoreCalls:
    """Made when the member starts; on its event loop."""

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
        """`on_failed` is to call `instead`, `on_mistake` to halt. `on_deadline`: the core's time has come, and `tick`
        is to be called. `on_settled`: nothing waits any more.
        """
        self.halted = False
        self.working = False
        """The core is being called, or effects are carried out."""
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
        """Now, or when all that waits already is done."""
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
        except Exception as error:  # half a list of effects was carried out: nothing may follow
            self._on_mistake(error)
        finally:
            self.working = False
        if not self.halted:
            self._set_alarm()
            self._on_settled()

    def first(self, call: Call, *arguments: Any) -> None:
        """Now, or before all that waits already."""
        if self.working:
            self._waiting.appendleft((call, arguments))
        else:
            self.call(call, *arguments)

    def then(self, call: Call, *arguments: Any) -> None:
        """When the list of effects that is being carried out is at its end, if it comes to that."""
        self._then.append((call, arguments))

    def instead(self, call: Call, *arguments: Any) -> None:
        """The rest of the list is not carried out, and this is the next thing that the core hears."""
        self._then.clear()
        self._waiting.appendleft((call, arguments))

    def halt(self) -> None:
        """Nothing is called or carried out any more."""
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
        """The deadline mostly moved on since the alarm was set: it is set anew only here, not with every message."""
        self._alarm, self._alarm_at = None, _NEVER
        if self.halted:
            return
        if time.monotonic() >= self._raft.deadline:
            self._on_deadline()
        else:
            self._set_alarm()
