"""One member: the driver round a core, as simple as the contract in `effects` allows, on a disk that can do anything.

Syncs of the log run beside everything else, one at a time, each for all that was written when it began (group commit).
A truncation makes the sync that is running worthless: its report would speak of other entries.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tallystick.replication.durable import DiskState, HardState, PossibleLoss
from tallystick.replication.effects import (
    AppendOwn,
    ChangeRefused,
    Commit,
    Effect,
    Fatal,
    InstallSnapshot,
    LossDetected,
    MembershipChanged,
    ReadFailed,
    Readmitted,
    ReadReady,
    Ready,
    Refused,
    RemovedFromGroup,
    Role,
    RoleChanged,
    SaveVote,
    Send,
    SendSnapshot,
    TransferEnded,
    Truncate,
    Write,
)
from tallystick.replication.membership import Change
from tallystick.replication.messages import AppendRequest, InstallRequest, Message
from tallystick.replication.raft import Raft
from tallystick.store.formats.ledger_format import EntryKind

from .clock import Clock
from .disk import DamagedEntryError, Disk, Entry
from .oracle import Violation
from .process import Process

if TYPE_CHECKING:
    from .simulation import Simulation


class Member(Process):
    """`removed`: it was told to stop for good. `slowness`: factor on all times of its disk. `role`, `leader` and
    `commit_index` are as carried out, which the core may be ahead of."""

    def __init__(self, simulation: Simulation, member_id: int, disk: Disk, clock: Clock) -> None:
        super().__init__(simulation, member_id, clock)
        self.disk = disk
        self.removed = False
        self.slowness = 1.0
        self.disk_full = False
        self.disk_low = False
        self.sync_fails = False
        self.role = Role.FOLLOWER
        self.leader: int | None = None
        self.commit_index = -1
        self.raft: Raft
        self._oracle = simulation.oracle
        self._sync_number = 0
        self._syncing = False
        self._clients: dict[int, Entry] = {}
        """Who waits for an answer: index and entry of what was proposed."""
        self._reads: dict[int, int] = {}
        """Who waits for a read: token, and what was acknowledged when it was asked for."""
        self._installs: set[tuple[int, int, int]] = set()

    def __str__(self) -> str:
        return f"member {self.id}"

    # -- what others see -----------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """As far as this process knows."""
        return self.running and self.role is Role.LEADER

    @property
    def may_have_lost(self) -> bool:
        """Something that it once promised is gone, or will turn out to be."""
        return self.disk.possible_loss is not PossibleLoss.NONE or bool(self.disk.damaged)

    @property
    def promised_index(self) -> int:
        """Up to where it may say that it has the log: as synced, or in the asynchronous mode as written (D9)."""
        return self.disk.last_index if self._simulation.profile.asynchronous_flush else self.disk.synced_index

    def holds(self, index: int, term: int) -> bool:
        """Whether it may be counted for the entry: has it for good, and had no possible loss when it said so."""
        disk = self.disk
        if disk.possible_loss and index > disk.former_last_index:
            return False
        if index <= disk.base_index:
            return True  # only what is committed is ever deleted
        return (index <= self.promised_index and disk.term_of(index) == term) or (index, term) in disk.lost

    def agrees_with(self, leader: Member) -> bool:
        """Follows it, and has all that it has: durable, committed, and without a doubt."""
        disk, theirs = self.disk, leader.disk
        return (
            (self.running, self.leader, disk.term, self.may_have_lost) == (True, leader.id, theirs.term, False)
            and disk.synced_index == disk.last_index == theirs.last_index
            and self.commit_index == leader.commit_index == theirs.last_index
        )

    @property
    def holds_itself_a_member(self) -> bool:
        return self.id in self.disk.membership.members

    def state(self) -> str:
        """For people."""
        disk = self.disk
        return (
            f"{self}{'' if self.running else ' (down)'} {self.role.value} in term {disk.term} under {self.leader}, log "
            f"{disk.first_index} to {disk.last_index}, synced {disk.synced_index}, committed {self.commit_index}, "
            f"lost {disk.possible_loss.name}, voters {sorted(disk.membership.voters)} by {disk.memberships[-1].index}"
        )

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

    def link_opened(self, other: int) -> None:
        if self.running:
            self._put(self._call, "link_opened", other)

    def set_full(self, full: bool) -> None:
        """Space on the log's disk ran out, or is back."""
        self.set_room(DiskState.FULL if full else DiskState.OK)

    def set_room(self, state: DiskState) -> None:
        """LOW: entries can still be written; no clients' messages are taken, which here are entries like all others."""
        self.disk_full, self.disk_low = state is DiskState.FULL, state is DiskState.LOW
        if self.running:
            self._put(self._call, "disk", state)

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._begin_life()
        self.removed = False
        disk = self.disk
        disk.recover()
        self._simulation.note(self.id, "starts", (disk.first_index, disk.last_index, disk.possible_loss))
        self.raft = self._simulation.raft(
            self.id,
            self._simulation.profile.settings,
            disk,
            hard_state=HardState(disk.term, disk.voted_for),
            memberships=list(disk.memberships),
            random=random.Random(self._dice.getrandbits(64)),
            now=self._now(),
            commit_index=disk.commit_hint,
            must_catch_up=disk.possible_loss,
            membership_seen=disk.membership_seen,
        )
        self.commit_index = disk.base_index
        if self.raft.commit_index > self.commit_index:
            self._commit(Commit(self.raft.commit_index))
        self._set_alarm()
        if self.disk_full or self.disk_low:
            self._put(self._call, "disk", DiskState.FULL if self.disk_full else DiskState.LOW)

    def crash(self) -> None:
        """kill -9 and power loss in one: what was not synced is gone, in part or whole."""
        if not self.running:
            return
        simulation, disk = self._simulation, self.disk
        simulation.faults["crash"] += 1
        under_way, self._under_way = self._under_way, None
        if isinstance(under_way, Truncate):
            # Cut from the end, segment by segment: any length between the old and the new one.
            self._truncate(self._dice.randint(under_way.last_kept, disk.last_index))
        elif under_way is not None and self._dice.random() < 0.5:
            self._finish(under_way)
        self._end_life()
        if simulation.profile.asynchronous_flush:
            disk.distrust_unsynced()
        lost, torn = disk.lose_power(self._dice)
        simulation.faults["entry lost unsynced"] += lost
        simulation.faults["entry torn"] += torn

    def repair(self) -> None:
        """Repairs it. What its disk has lost comes to light by a restart."""
        self.stalled_until = min(self.stalled_until, self._queue.now)
        self.crash_at = None
        self.slowness = 1.0
        if self.disk_full or self.disk_low:
            self.set_full(False)
        if self.sync_fails or self.disk.damaged:
            self.crash()
        self.sync_fails = False

    def _end_life(self) -> None:
        super()._end_life()
        self._clients.clear()
        self._reads.clear()
        self._installs.clear()
        self._sync_number += 1
        self._syncing = False
        self.role, self.leader = Role.FOLLOWER, None

    def _work(self, life: int) -> None:
        try:
            super()._work(life)
        except DamagedEntryError as error:
            # A process that meets damage stops; its next start recovers from it (D8).
            self._simulation.note(self.id, "finds damage", error.index)
            self._simulation.faults["damage found when read"] += 1
            self.crash()
            self._simulation.restart_later(self, 0.2)

    # -- calls of the core ---------------------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> Sequence[Effect]:
        effects: list[Effect] = getattr(self.raft, name)(self._now(), *arguments)
        return effects

    def _deadline(self) -> float:
        return self.raft.deadline

    def _tick(self) -> Sequence[Effect]:
        return self.raft.tick(self._now())

    def _step(self, message: Message) -> Sequence[Effect]:
        return self.raft.step(self._now(), message)

    def _propose(self, payloads: Sequence[object]) -> Sequence[Effect]:
        if not self.raft.accepting or self.disk_full:
            return ()
        entries = [Entry(self.raft.term, EntryKind.MESSAGE, payload) for payload in payloads]
        self._clients.update(enumerate(entries, self.disk.last_index + 1))
        self._append(entries)
        return self.raft.appended(self._now())

    def _synced(self) -> Sequence[Effect]:
        # As the log is now: a truncation may have come between the sync and this call.
        return self.raft.synced(self._now(), self.promised_index)

    def _change(self, change: Change) -> Sequence[Effect]:
        """Not while a member may have lost data: a group of two that waits for one of them would be no finding."""
        return () if self._simulation.may_have_lost() else self.raft.change_membership(self._now(), change)

    # -- effects -------------------------------------------------------------------------------------------------------
    # Each returns the virtual seconds that it takes; those that must be durable are finished at their end.

    def _carry_out(self, effect: Effect) -> float:
        return _DO[type(effect)](self, effect)

    def _begin(
        self, effect: SaveVote | Truncate | InstallSnapshot | MembershipChanged | Readmitted | LossDetected
    ) -> float:
        if self.sync_fails:
            return self._fail(DiskState.FAILED)
        self._under_way = effect
        return self._simulation.sync_seconds(self)

    def _finish(self, effect: Effect) -> None:
        match effect:
            case SaveVote():
                self._oracle.saved_vote(self, effect.term, effect.voted_for)
                self.disk.term, self.disk.voted_for = effect.term, effect.voted_for
            case Truncate():
                self._truncate(effect.last_kept)
            case InstallSnapshot():
                self._install(effect.request)
            case MembershipChanged():
                self.disk.see_membership()
            case LossDetected():
                self.disk.forgot()
            case Readmitted():
                self._oracle.readmitted(self)
                self.disk.readmit()

    def _truncate(self, last_kept: int) -> None:
        self._oracle.truncated(self, last_kept)
        self.disk.truncate(last_kept)
        self._drop_sync()

    def _install(self, request: InstallRequest) -> None:
        self._oracle.installed(self, request)
        self.disk.install(request.snapshot_index, request.snapshot_term, request.membership)
        self.commit_index = request.snapshot_index
        self._drop_sync()
        self._then.append((self._call, ("installed", request)))

    def _write(self, effect: Write) -> float:
        request = effect.request
        assert effect.first_index == self.disk.last_index + 1, "entries are written at the end of the log"
        entries = request.payload[effect.first_index - request.prev_index - 1 :]
        if self.disk_full:
            self._append(entries[: self._dice.randint(0, len(entries) - 1)])
            return self._fail(DiskState.FULL)
        self._append(entries)
        return 0.0

    def _append_own(self, effect: AppendOwn) -> float:
        assert effect.index == self.disk.last_index + 1, "own entries stand at the end of the log"
        assert (effect.term, Role.LEADER) == (self.disk.term, self.role), "only a leader creates entries"
        if self.disk_full:
            return self._fail(DiskState.FULL)
        if effect.kind is EntryKind.MEMBERSHIP:
            self._oracle.proposed_membership(self, effect)
        self._append([Entry(effect.term, effect.kind, effect.membership)])
        self._then.append((self._call, ("appended",)))
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
            seconds = self._simulation.sync_seconds(self)
            self._queue.after(seconds, self._sync_ended, self._sync_number, self.disk.last_index)

    def _drop_sync(self) -> None:
        self._sync_number += 1
        self._syncing = False
        self._start_sync()

    def _sync_ended(self, number: int, index: int) -> None:
        if number != self._sync_number:
            return
        self._syncing = False
        if self.sync_fails:
            self._put_first(self._call, "disk", DiskState.FAILED)  # before anything else is answered (D7)
        else:
            self.disk.synced_index = index
            self._start_sync()
            self._put(self._synced)

    def _fail(self, state: DiskState) -> float:
        """An effect could not be carried out: the rest of its list is dropped, and the core hears of it next."""
        self._drop_list()
        self._put_first(self._call, "disk", state)
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
            self._simulation.clients.on_acknowledged(self)
        return 0.0

    def _role_changed(self, effect: RoleChanged) -> float:
        elected = effect.role is Role.LEADER and self.role is not Role.LEADER
        self.role, self.leader = effect.role, effect.leader
        if elected:
            self._oracle.became_leader(self, effect.term)
            self._simulation.on_leader(self)
        elif effect.role is not Role.LEADER:
            self._clients.clear()  # their outcome is unknown (B2)
        return 0.0

    def _ready(self, effect: Ready) -> float:
        self._oracle.became_ready(self, effect.term)
        self._simulation.clients.on_ready(self)
        return 0.0

    def _membership_changed(self, effect: MembershipChanged) -> float:
        if effect.entry != self.disk.memberships[-1]:
            raise Violation("newest membership in the log (M1)", f"{self} has {self.disk.memberships[-1]}: {effect}")
        return self._begin(effect)

    def _leave(self, effect: RemovedFromGroup) -> float:
        self._oracle.left(self, effect.commit_index)
        self._end_life()
        self.disk.synced_index = self.disk.last_index  # stopped in good order
        self.removed = True
        self._simulation.on_left(self)
        return 0.0

    def _read_ready(self, effect: ReadReady) -> float:
        self._oracle.answered_read(self, effect.index, self._reads.pop(effect.token))
        return 0.0

    def _read_failed(self, effect: ReadFailed) -> float:
        del self._reads[effect.token]
        return 0.0

    def _ship_snapshot(self, effect: SendSnapshot) -> float:
        request = effect.request
        shipment = (request.target, request.snapshot_index, request.session)
        if shipment not in self._installs:
            self._installs.add(shipment)
            self._queue.after(self._dice.uniform(0.01, 0.3), self._base_shipped, self.life, shipment, request)
        return 0.0

    def _base_shipped(self, life: int, shipment: tuple[int, int, int], request: InstallRequest) -> None:
        if life == self.life:
            self._installs.discard(shipment)
            self._simulation.network.send(request)

    def _hear(self, effect: ChangeRefused | TransferEnded) -> float:
        """An answer to a person, who asks for something else the next time."""
        return 0.0

    def _refuse(self, effect: Refused) -> float:
        """Here all members are sound: what one says is true, or a disk that lost something has not been noticed."""
        raise Violation("no member says what cannot be", f"{self}, of n{effect.member}: {effect.reason}")

    def _give_up(self, effect: Fatal) -> float:
        raise Violation("no member gives up (S4, S7)", f"{self}: {effect.reason}")


_DO: dict[type, Callable[[Member, Any], float]] = {
    SaveVote: Member._begin,
    Truncate: Member._begin,
    InstallSnapshot: Member._begin,
    Readmitted: Member._begin,
    LossDetected: Member._begin,
    Write: Member._write,
    AppendOwn: Member._append_own,
    Send: Member._send,
    Commit: Member._commit,
    RoleChanged: Member._role_changed,
    Ready: Member._ready,
    MembershipChanged: Member._membership_changed,
    RemovedFromGroup: Member._leave,
    ReadReady: Member._read_ready,
    ReadFailed: Member._read_failed,
    SendSnapshot: Member._ship_snapshot,
    TransferEnded: Member._hear,
    ChangeRefused: Member._hear,
    Refused: Member._refuse,
    Fatal: Member._give_up,
}
