"""A process that does one thing after another, until it is killed: inputs, effects, and the moments between them.

Inputs wait in the inbox. Each is handed over by a call whose answer is a list of effects; these are carried out one by
one, in order, before the next input is taken. Between any two effects the process may be killed, or pause while the
rest of the world continues. An effect that must be durable takes time, in which a crash finds it in progress.

What an effect does is for `member` to say; here is only when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tallystick.replication.effects import Effect

from .clock import Clock

if TYPE_CHECKING:
    from .simulation import Simulation

_NEVER = float("inf")
_TIMER_IS_LATE_SECONDS = 0.001


@dataclass(slots=True)
class CrashPoint:
    """The process dies at the `countdown`-th effect of this kind: just before it is carried out, or just after."""

    kind: type
    after: bool
    countdown: int
    down_seconds: float

    def reached(self, effect: Effect, after: bool) -> bool:
        if type(effect) is not self.kind or after is not self.after:
            return False
        self.countdown -= 1
        return self.countdown == 0


class Process:
    """`running`: there is one, though it may be stalled. `life`: its number; what was begun for an earlier one comes to
    nothing when it is due."""

    def __init__(self, simulation: Simulation, member_id: int, clock: Clock) -> None:
        self.id = member_id
        self.clock = clock
        self.running = False
        self.life = 0
        self.stalled_until = 0.0
        self.crash_at: CrashPoint | None = None
        self._simulation = simulation
        self._queue = simulation.queue
        self._dice = simulation.dice
        self._inbox: deque[tuple[Callable[..., Sequence[Effect]], tuple[Any, ...]]] = deque()
        self._effects: deque[Effect] = deque()
        self._then: deque[tuple[Callable[..., Sequence[Effect]], tuple[Any, ...]]] = deque()
        """Calls that the contract asks for after the list that is being carried out."""
        self._under_way: Effect | None = None
        self._busy = False
        self._wakes_at = _NEVER

    # -- for `member` to say -------------------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> float:
        """Does it, or begins it and keeps it as `_under_way`; the virtual seconds that it takes."""
        raise NotImplementedError

    def _finish(self, effect: Effect) -> None:
        """What was in progress is done, durably."""
        raise NotImplementedError

    def _deadline(self) -> float:
        """When `_tick` is due, by the own clock."""
        raise NotImplementedError

    def _tick(self) -> Sequence[Effect]:
        raise NotImplementedError

    def crash(self) -> None:
        raise NotImplementedError

    # -- life ----------------------------------------------------------------------------------------------------------

    def _begin_life(self) -> None:
        assert not self.running
        self.life += 1
        self.running = True

    def _end_life(self) -> None:
        self._simulation.note(self.id, "ends", "")
        self.life += 1
        self.running = self._busy = False
        self._inbox.clear()
        self._effects.clear()
        self._then.clear()
        self._wakes_at = _NEVER
        self.stalled_until = 0.0
        self.crash_at = None

    def stall(self, seconds: float) -> None:
        """It stands still (SIGSTOP, a full swap); its clock and its disk go on."""
        self.stalled_until = max(self.stalled_until, self._queue.now + seconds)

    @property
    def busy(self) -> bool:
        """In the middle of a list of effects."""
        return self._busy

    def _now(self) -> float:
        return self.clock.read(self._queue.now)

    # -- one thing after another ---------------------------------------------------------------------------------------

    def _put(self, call: Callable[..., Sequence[Effect]], *arguments: Any) -> None:
        self._inbox.append((call, arguments))
        if not self._busy:
            self._work(self.life)

    def _put_first(self, call: Callable[..., Sequence[Effect]], *arguments: Any) -> None:
        """Before all that waits."""
        self._inbox.appendleft((call, arguments))
        if not self._busy:
            self._work(self.life)

    def _drop_list(self) -> None:
        """An effect failed: what is left of its list is not done."""
        self._effects.clear()
        self._then.clear()

    def _work(self, life: int) -> None:
        """Carries out effects and takes inputs until there is nothing to do, or something takes its time."""
        if life != self.life:
            return
        self._busy = True
        while self.life == life:
            if self.stalled_until > self._queue.now:
                self._queue.at(self.stalled_until, self._work, life)
                return
            if self._under_way is not None:
                effect, self._under_way = self._under_way, None
                self._finish(effect)
                self._maybe_die(effect, after=True)
            elif self._effects:
                if self._takes_time(self._effects.popleft()):
                    return
            elif self._then:
                call, arguments = self._then.popleft()
                self._effects.extend(call(*arguments))
            elif self._inbox:
                call, arguments = self._inbox.popleft()
                self._simulation.note(self.id, call.__name__[1:], arguments)
                self._effects.extend(call(*arguments))
                self._set_alarm()
            else:
                self._busy = False
                return

    def _takes_time(self, effect: Effect) -> bool:
        """Carries it out; whether the process continues later, or not at all."""
        life = self.life
        self._maybe_die(effect, after=False)
        if self.life != life:
            return True
        self._simulation.note(self.id, "does", effect)
        seconds = self._carry_out(effect)
        if self.life != life:
            return True
        if self._under_way is None:
            self._maybe_die(effect, after=True)
        if seconds or self._simulation.pauses():
            self._queue.after(seconds or 0.001, self._work, self.life)
            return True
        return False

    def _maybe_die(self, effect: Effect, *, after: bool) -> None:
        point = self.crash_at
        if point is not None and point.reached(effect, after):
            self._simulation.faults[f"crash {'after' if after else 'before'} {type(effect).__name__}"] += 1
            self.crash()
            self._simulation.restart_later(self, point.down_seconds)

    # -- alarms --------------------------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        """One wake-up is always on its way, at the deadline or before; one that is too early finds nothing to do."""
        deadline = self._deadline()
        if deadline < self._wakes_at:
            self._wakes_at = deadline
            seconds = max(deadline - self._now(), 0.0) / self.clock.rate
            self._queue.after(seconds + _TIMER_IS_LATE_SECONDS, self._wake, self.life, deadline)

    def _wake(self, life: int, deadline: float) -> None:
        if life != self.life or deadline != self._wakes_at:
            return
        if self.stalled_until > self._queue.now:
            self._queue.at(self.stalled_until, self._wake, life, deadline)
            return
        self._wakes_at = _NEVER
        if self._now() >= self._deadline():
            self._put(self._tick)
        else:
            self._set_alarm()
