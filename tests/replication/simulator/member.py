"""One member: the driver round a core, as simple as the contract in `effects` allows, with all that can befall it.

A member is sequential. Inputs wait in its inbox; each is handed to the core, and the effects that come back are carried
out one by one, in order, before the next input. Between any two effects the process may be killed, or pause while the
rest of the world goes on. Effects that must be durable take time, and a crash in that time leaves the old state or the
new one (of a truncation also something between). Syncs of the log run beside all this, one at a time, each for all that
was written when it began (group commit).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tallystick.replication.durable import DiskState, Doubt, EntryKind, HardState
from tallystick.replication.effects import (
    AppendOwn,
    ChangeRefused,
    Commit,
    Effect,
    Fatal,
    Install,
    InstallBase,
    MembershipChanged,
    Readmitted,
    ReadFailed,
    ReadReady,
    Ready,
    RemovedFromGroup,
    Role,
    RoleChanged,
    SaveVote,
    Send,
    TransferEnded,
    Truncate,
    Write,
)
from tallystick.replication.membership import Change
from tallystick.replication.messages import AppendRequest, Message
from tallystick.replication.raft import Raft

from .clock import Clock
from .disk import DamagedEntryError, Disk, Entry
from .oracle import Violation

if TYPE_CHECKING:
    from .simulation import Simulation

_NEVER = float("inf")

Input = tuple[Callable[..., Sequence[Effect]], tuple[Any, ...]]


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


class Member:
    """`running`: there is a process, though it may be `stalled`. `removed`: it was told to stop for good."""

    def __init__(self, simulation: Simulation, member_id: int, disk: Disk, clock: Clock) -> None:
        self.id = member_id
        self.disk = disk
        self.clock = clock
        self.running = False
        self.removed = False
        self.life = 0
        """Number of the process: what was begun for an earlier one comes to nothing."""
        self.stalled_until = 0.0
        self.slowness = 1.0
        """Factor on all times of the disk."""
        self.disk_full = False
        self.sync_fails = False
        self.crash_at: CrashPoint | None = None
        self.role = Role.FOLLOWER
        self.leader: int | None = None
        self.commit_index = -1
        self.raft: Raft
        self._simulation = simulation
        self._queue = simulation.queue
        self._dice = simulation.dice
        self._oracle = simulation.oracle
        self._inbox: deque[Input] = deque()
        self._effects: deque[Effect] = deque()
        self._then: deque[tuple[Any, ...]] = deque()
        """Calls that the contract asks for after the list that is being carried out."""
        self._busy = False
        self._under_way: Effect | None = None
        self._sync_number = 0
        self._syncing = False
        self._wakes_at = 0.0
        self._clients: dict[int, Entry] = {}
        self._reads: dict[int, int] = {}
        self._installs: set[tuple[int, int]] = set()

    def __str__(self) -> str:
        return f"member {self.id}"

    # -- what others see -----------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """As far as this process knows."""
        return self.running and self.role is Role.LEADER

    @property
    def in_doubt(self) -> bool:
        """Something that it once promised is gone, or will turn out to be."""
        return self.disk.doubt is not Doubt.NONE or bool(self.disk.damaged)

    @property
    def promised_index(self) -> int:
        """Up to where it may say that it has the log: as synced, or in the asynchronous mode as written (D9)."""
        return self.disk.last_index if self._simulation.profile.asynchronous_flush else self.disk.synced_index

    def holds(self, index: int, term: int) -> bool:
        """Whether it may be counted for the entry: has it for good, and was not in doubt when it said so."""
        disk = self.disk
        if disk.doubt and index > disk.former_last_index:
            return False
        if index <= disk.base_index:
            return True  # only what is committed is ever deleted
        return (index <= self.promised_index and disk.term_of(index) == term) or disk.lost.get(index) == term

    @property
    def busy(self) -> bool:
        """In the middle of a list of effects."""
        return self._busy

    # -- inputs --------------------------------------------------------------------------------------------------------

    def receive(self, message: Message) -> None:
        if self.running:
            self._put(self._step, message)

    def propose(self, payloads: Sequence[object]) -> None:
        if self.running:
            self._put(self._propose, payloads)

    def read(self, token: int) -> None:
        if self.running:
            self._reads[token] = self._oracle.acknowledged_index
            self._put(self._call, "read", token)

    def transfer(self, target: int | None) -> None:
        if self.running:
            self._put(self._call, "transfer", target)

    def change_membership(self, change: Change) -> None:
        if self.running:
            self._put(self._change, change)

    def set_full(self, full: bool) -> None:
        """Space on the log's disk ran out, or is back."""
        self.disk_full = full
        if self.running:
            self._put(self._call, "disk", DiskState.FULL if full else DiskState.OK)

    def _put(self, call: Callable[..., Sequence[Effect]], *arguments: Any) -> None:
        self._inbox.append((call, arguments))
        if not self._busy:
            self._work(self.life)

    # -- the process ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        assert not self.running
        self.life += 1
        self.running = True
        self.disk.recover()
        now = self.clock.read(self._queue.now)
        disk = self.disk
        self.raft = self._simulation.raft(
            self.id,
            self._simulation.profile.settings,
            disk,
            hard_state=HardState(disk.term, disk.voted_for),
            memberships=list(disk.memberships),
            random=random.Random(self._dice.getrandbits(64)),
            now=now,
            commit_index=disk.commit_hint,
            must_catch_up=disk.doubt,
        )
        self._simulation.note(self.id, "starts", (disk.first_index, disk.last_index, disk.doubt))
        self.role, self.leader = Role.FOLLOWER, None
        self.commit_index = disk.base_index
        if self.raft.commit_index > self.commit_index:
            self._commit(Commit(self.raft.commit_index))
        if self.disk_full:
            self._inbox.append((self._call, ("disk", DiskState.FULL)))
        self._wakes_at = _NEVER
        self._set_alarm()
        self._work(self.life)

    def crash(self) -> None:
        """kill -9 and power loss in one: what was not synced is gone, in part or whole."""
        if not self.running:
            return
        self._end()
        self._simulation.faults["crash"] += 1
        under_way, self._under_way = self._under_way, None
        if isinstance(under_way, Truncate):
            # Cut from the end, segment by segment: any length between the old and the new one.
            self._truncate(self._dice.randint(under_way.last_kept, self.disk.last_index))
        elif under_way is not None and self._dice.random() < 0.5:
            self._finish(under_way)
        if self._simulation.profile.asynchronous_flush:
            self.disk.distrust_unsynced()
        lost, torn = self.disk.lose_power(self._dice)
        self._simulation.faults["entry lost unsynced"] += lost
        self._simulation.faults["entry torn"] += torn

    def stop(self) -> None:
        """For good, until somebody lets it in again: a removed member is stopped in good order."""
        self._end()
        self.disk.synced_index = self.disk.last_index

    def _end(self) -> None:
        self._simulation.note(self.id, "ends", None)
        self.running = False
        self.life += 1
        self._busy = False
        self._then.clear()
        self._inbox.clear()
        self._effects.clear()
        self._clients.clear()
        self._reads.clear()
        self._installs.clear()
        self._syncing = False
        self._sync_number += 1
        self.role, self.leader = Role.FOLLOWER, None
        self.crash_at = None
        self.stalled_until = 0.0

    def _damage_found(self, error: DamagedEntryError) -> None:
        """A process that meets damage stops; its next start recovers from it (D8)."""
        self._simulation.faults["damage found when read"] += 1
        self.crash()
        self._simulation.restart_later(self, 0.2)
        self._simulation.note(self.id, "found damage at", error.index)

    def stall(self, seconds: float) -> None:
        """The process stands still (SIGSTOP, a full swap); its clock and its disk go on."""
        self.stalled_until = max(self.stalled_until, self._queue.now + seconds)

    def _set_alarm(self) -> None:
        """One wake-up is always on its way, at the deadline or before; one that is too early finds nothing to do."""
        deadline = self.raft.deadline
        if deadline < self._wakes_at:
            self._wakes_at = deadline
            seconds = (deadline - self.clock.read(self._queue.now)) / self.clock.rate
            # Timers are late by a little, never early.
            self._queue.after(max(seconds, 0.0) + 0.001, self._wake, self.life, deadline)

    def _wake(self, life: int, deadline: float) -> None:
        if life != self.life or deadline != self._wakes_at:
            return
        if self.stalled_until > self._queue.now:
            self._queue.at(self.stalled_until, self._wake, life, deadline)
            return
        if self._busy:  # the loop comes to its timers between two inputs
            self._wakes_at = _NEVER
            self._inbox.append((self._call, ("tick",)))
            return
        self._wakes_at = _NEVER
        if self.clock.read(self._queue.now) >= self.raft.deadline:
            self._put(self._call, "tick")
        else:
            self._set_alarm()

    def _work(self, life: int) -> None:
        """Carries out effects and takes inputs until there is nothing to do, or something takes its time."""
        if life != self.life:
            return
        self._busy = True
        simulation = self._simulation
        try:
            while True:
                if self.stalled_until > self._queue.now:
                    self._queue.at(self.stalled_until, self._work, life)
                    return
                if self._under_way is not None:
                    effect, self._under_way = self._under_way, None
                    self._finish(effect)
                    if self._crashes(effect, after=True):
                        return
                if self._effects:
                    effect = self._effects.popleft()
                    if self._crashes(effect, after=False):
                        return
                    simulation.note(self.id, "does", effect)
                    seconds = _DO[type(effect)](self, effect)
                    if self.life != life:
                        return
                    if seconds or simulation.pauses():
                        self._queue.after(seconds or 0.001, self._work, life)
                        return
                    if self._crashes(effect, after=True):
                        return
                elif self._then:
                    self._effects.extend(self._call(*self._then.popleft()))
                elif self._inbox:
                    call, arguments = self._inbox.popleft()
                    simulation.note(self.id, call.__name__[1:], arguments)
                    self._effects.extend(call(*arguments))
                    self._set_alarm()
                else:
                    self._busy = False
                    return
        except DamagedEntryError as error:
            self._damage_found(error)

    def _crashes(self, effect: Effect, *, after: bool) -> bool:
        point = self.crash_at
        if point is None or not point.reached(effect, after):
            return False
        self._simulation.faults[f"crash {'after' if after else 'before'} {type(effect).__name__}"] += 1
        self._under_way = None
        self.crash()
        self._simulation.restart_later(self, point.down_seconds)
        return True

    # -- calls of the core ---------------------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> Sequence[Effect]:
        effects: list[Effect] = getattr(self.raft, name)(self.clock.read(self._queue.now), *arguments)
        return effects

    def _step(self, message: Message) -> Sequence[Effect]:
        return self.raft.step(self.clock.read(self._queue.now), message)

    def _propose(self, payloads: Sequence[object]) -> Sequence[Effect]:
        if not self.raft.accepting or self.disk_full:
            return ()
        entries = [Entry(self.raft.term, EntryKind.MESSAGE, payload) for payload in payloads]
        first = self.disk.last_index + 1
        self._append(entries)
        self._clients.update(enumerate(entries, first))
        return self._call("appended")

    def _synced(self) -> Sequence[Effect]:
        # As the log is now: a truncation may have come between the sync and this call.
        return self._call("synced", self.promised_index)

    def _change(self, change: Change) -> Sequence[Effect]:
        return () if self._simulation.in_doubt() else self._call("change_membership", change)

    # -- effects -------------------------------------------------------------------------------------------------------
    # Each returns the virtual seconds that it takes; those that must be durable are finished at their end.

    def _begin(self, effect: SaveVote | Truncate | InstallBase | Readmitted) -> float:
        if self.sync_fails:
            return self._disk_failed()
        self._under_way = effect
        return self._simulation.sync_seconds(self)

    def _finish(self, effect: Effect) -> None:
        """The moment in which it is durable."""
        match effect:
            case SaveVote():
                self._oracle.saved_vote(self, effect.term, effect.voted_for)
                self.disk.term, self.disk.voted_for = effect.term, effect.voted_for
            case Truncate():
                self._truncate(effect.last_kept)
            case InstallBase():
                self._install(effect)
            case Readmitted():
                self._oracle.readmitted(self)
                self.disk.readmit()

    def _truncate(self, last_kept: int) -> None:
        self._oracle.truncated(self, last_kept)
        self.disk.truncate(last_kept)
        self._drop_sync()

    def _install(self, effect: InstallBase) -> None:
        request = effect.request
        self._oracle.installed(self, request)
        self.disk.install(request.base_index, request.base_term, request.membership)
        self.commit_index = request.base_index
        self._drop_sync()
        self._then.append(("installed", request))

    def _write(self, effect: Write) -> float:
        request = effect.request
        assert effect.first_index == self.disk.last_index + 1, "entries are written at the end of the log"
        entries = request.payload[effect.first_index - request.prev_index - 1 :]
        if self.disk_full:
            self._append(entries[: self._dice.randint(0, len(entries) - 1)])
            self._fail(DiskState.FULL)
        else:
            self._append(entries)
        return 0.0

    def _append_own(self, effect: AppendOwn) -> float:
        assert effect.index == self.disk.last_index + 1, "own entries stand at the end of the log"
        assert (effect.term, self.role) == (self.disk.term, Role.LEADER)
        if self.disk_full:
            self._fail(DiskState.FULL)
            return 0.0
        if effect.kind is EntryKind.MEMBERSHIP:
            self._oracle.proposed_membership(self, effect)
        self._append([Entry(effect.term, effect.kind, effect.membership)])
        self._then.append(("appended",))
        return 0.0

    def _append(self, entries: Sequence[Entry]) -> None:
        first = self.disk.last_index + 1
        self.disk.append(entries)
        self._oracle.appended(self, first, entries)
        if self._simulation.profile.asynchronous_flush:
            self._inbox.append((self._synced, ()))
        self._start_sync()

    def _start_sync(self) -> None:
        if not self._syncing and self.disk.synced_index < self.disk.last_index:
            self._syncing = True
            self._queue.after(
                self._simulation.sync_seconds(self), self._sync_ended, self._sync_number, self.disk.last_index
            )

    def _drop_sync(self) -> None:
        """The log changed under it: its report would speak of other entries."""
        self._sync_number += 1
        self._syncing = False
        self._start_sync()

    def _sync_ended(self, number: int, index: int) -> None:
        if number != self._sync_number:
            return
        self._syncing = False
        if self.sync_fails:
            self._inbox.appendleft((self._call, ("disk", DiskState.FAILED)))  # before anything else is answered (D7)
            if not self._busy:
                self._work(self.life)
            return
        self.disk.synced_index = index
        self._start_sync()
        self._put(self._synced)

    def _fail(self, state: DiskState) -> None:
        """An effect could not be carried out: the rest of its list is dropped, and the core hears of it next."""
        self._effects.clear()
        self._then.clear()
        self._inbox.appendleft((self._call, ("disk", state)))

    def _disk_failed(self) -> float:
        self._fail(DiskState.FAILED)
        return 0.0

    def _send(self, effect: Send) -> float:
        message = effect.message
        if type(message) is AppendRequest and message.runs:
            message = replace(message, payload=self.disk.read(message.prev_index + 1, message.last_index))
        self._oracle.sent(self, message)
        self._simulation.network.send(message)
        return 0.0

    def _commit(self, effect: Commit) -> float:
        self._oracle.committed_to(self, effect.index)
        self.commit_index = effect.index
        if self._dice.random() < 0.2:
            self.disk.commit_hint = effect.index
        if self.role is Role.LEADER and self._clients:
            for index in [index for index in self._clients if index <= effect.index]:
                self._oracle.acknowledge(self, index, self._clients.pop(index))
            self._simulation.on_acknowledged(self)
        return 0.0

    def _role_changed(self, effect: RoleChanged) -> float:
        if effect.role is Role.LEADER and self.role is not Role.LEADER:
            self.role = effect.role
            self._oracle.became_leader(self, effect.term)
            self._simulation.on_leader(self)
        elif effect.role is not Role.LEADER:
            self._clients.clear()  # their outcome is unknown (B2)
        self.role, self.leader = effect.role, effect.leader
        return 0.0

    def _ready(self, effect: Ready) -> float:
        self._oracle.became_ready(self, effect.term)
        self._simulation.on_ready(self)
        return 0.0

    def _membership_changed(self, effect: MembershipChanged) -> float:
        if effect.entry != self.disk.memberships[-1]:
            raise Violation("newest membership in the log (M1)", f"{self} has {self.disk.memberships[-1]}: {effect}")
        return 0.0

    def _removed(self, effect: RemovedFromGroup) -> float:
        self._oracle.left(self, effect.membership_index)
        self.removed = True
        self.stop()
        self._simulation.left(self)
        return 0.0

    def _read_ready(self, effect: ReadReady) -> float:
        if effect.token in self._reads:
            self._oracle.answered_read(self, effect.index, self._reads.pop(effect.token))
        return 0.0

    def _read_failed(self, effect: ReadFailed) -> float:
        self._reads.pop(effect.token, None)
        return 0.0

    def _ship_base(self, effect: Install) -> float:
        request = effect.request
        shipment = (request.target, request.base_index)
        if shipment not in self._installs:
            self._installs.add(shipment)
            self._queue.after(self._dice.uniform(0.01, 0.3), self._base_shipped, self.life, effect)
        return 0.0

    def _base_shipped(self, life: int, effect: Install) -> None:
        if life == self.life:
            self._installs.discard((effect.request.target, effect.request.base_index))
            self._simulation.network.send(effect.request)

    def _nothing(self, effect: ChangeRefused | TransferEnded) -> float:
        return 0.0

    def _fatal(self, effect: Fatal) -> float:
        raise Violation("no member gives up", f"{self}: {effect.reason}")


_DO: dict[type, Callable[[Member, Any], float]] = {
    SaveVote: Member._begin,
    Truncate: Member._begin,
    InstallBase: Member._begin,
    Readmitted: Member._begin,
    Write: Member._write,
    AppendOwn: Member._append_own,
    Send: Member._send,
    Commit: Member._commit,
    RoleChanged: Member._role_changed,
    Ready: Member._ready,
    MembershipChanged: Member._membership_changed,
    RemovedFromGroup: Member._removed,
    ReadReady: Member._read_ready,
    ReadFailed: Member._read_failed,
    Install: Member._ship_base,
    TransferEnded: Member._nothing,
    ChangeRefused: Member._nothing,
    Fatal: Member._fatal,
}

EFFECTS = tuple(_DO)
"""All kinds of effects: places where a process can die."""
