"""A running member of a group: the core decides, and this module carries the effects out, on one event loop.

    feed, append ─▶ kernel log ─ staged() ─▶ one write_out a turn ─▶ sync thread ─▶ Raft.synced ─┐
                                                  └─▶ Raft.appended ─▶ sends                     ├─▶ effects, in order
    transport ───────────────────────────────────────────────────────▶ Raft.step ────────────────┤
    timer at `Raft.deadline` ────────────────────────────────────────▶ Raft.tick ────────────────┘

`core_calls` keeps the order of calls and effects. `inbox` and `outbox` hold what comes from and goes to other members.
`questions` holds requests that are answered later. This module holds the member's own state and all code that changes
it.

The user opens a member, adds callbacks, and starts it. The member calls the callbacks on the event loop between
effects. They must not block. They can call any method except `close`; the core handles their requests after the
effects.

A leader's entries are written once per turn of the event loop, regardless of the number of sends. A range that goes to
two members is read once, before it is synced (D3). A follower checks a range in the kernel before its core sees it,
writes it at once, and answers after a sync that covers everything written until then (D2). Saving a vote and
truncating the log block the event loop for a few syncs: they are rare, and a leader does neither.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.effects import (
    AppendOwn,
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
    TransferResult,
    Truncate,
    Write,
)
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.recovery import LedgerError
from tallystick.replication.ledger.vote import VoteFile
from tallystick.replication.member.callbacks import Callbacks
from tallystick.replication.member.core_calls import CoreCalls
from tallystick.replication.member.errors import (
    ChangeError,
    DiskError,
    NotAcceptingError,
    OutcomeUnknownError,
    ReadError,
    TransferError,
)
from tallystick.replication.member.inbox import Inbox
from tallystick.replication.member.log_writer import Appending, LogWriter
from tallystick.replication.member.opening import MemberDisk, open_disk, read_membership
from tallystick.replication.member.origin import Origin
from tallystick.replication.member.outbox import Outbox
from tallystick.replication.member.questions import Questions
from tallystick.replication.member.ranges import RangeError
from tallystick.replication.member.repair import Scrubber
from tallystick.replication.member.repair_task import Damage, RepairTask
from tallystick.replication.member.reserve import NO_ROOM, Reserve
from tallystick.replication.member.role_log import RoleLog
from tallystick.replication.member.room import Room
from tallystick.replication.member.settings import MemberSettings
from tallystick.replication.member.snapshot_transfer import SnapshotReceiver, SnapshotSender
from tallystick.replication.member.special import Gap, SpecialEntries
from tallystick.replication.member.status import GroupStatus, progress_of
from tallystick.replication.member.waiters import Waiters
from tallystick.replication.membership import Change, Membership, MembershipEntry
from tallystick.replication.messages import Message
from tallystick.replication.raft import Raft
from tallystick.replication.transport.handshake import Identity, Lane
from tallystick.replication.transport.peer_lane import Address
from tallystick.replication.transport.shipping import Shipping
from tallystick.replication.transport.transport import Transport
from tallystick.store._kernel import DamageError, EntryError
from tallystick.store.clock import wall_ms
from tallystick.store.findings import FindingKind
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.formats.message import NOWHERE
from tallystick.store.formats.progress import boot_id as machine_boot_id
from tallystick.store.formats.segment_files import segment_name
from tallystick.store.limited_log import LimitedLog
from tallystick.store.settings import FlushDiskType

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

_logger = logging.getLogger("tallystick.replication")

_CLOSED = "the member is closed"
_NOT_STARTED = "the member was not started"


class Member(Callbacks):
    """Use it in this order: `open`, append to its callbacks, `start`, `close`. All methods must be called on the event
    loop's thread, except those that say otherwise."""

    def __init__(
        self,
        folder: Path,
        door: Door,
        identity: Identity,
        settings: MemberSettings,
        disk: MemberDisk,
        special: SpecialEntries,
        *,
        applied_index: int,
        snapshot: Callable[[], bytes],
        restore: Callable[[bytes], int],
    ) -> None:
        """Use `open` instead."""
        super().__init__()
        self.identity = identity
        self.settings = settings
        self.folder = folder
        self.ledger: Ledger = disk.ledger
        """Its `log` takes the feeds and appends of a leader that is `accepting`; call `staged` afterwards."""
        self.last_error = ""
        """The last error, as a text for people; empty if there was none."""
        self.refused_ranges = 0
        """Number of appends that were dropped because their entries are damaged, or differ from the announced ones."""
        self.refused_messages = 0
        """Number of messages that were dropped because they cannot be true."""
        self._door = door
        self._log = disk.ledger.log
        self._vote: VoteFile = disk.vote
        self._origin: Origin = disk.origin
        self._memberships = disk.memberships
        self._unread = disk.damaged_memberships
        """Indexes of damaged memberships in the log. If one of them is not known from elsewhere, this member does not
        know which members must agree (L12)."""
        self._special = special
        self._snapshot = snapshot
        self._restore = restore
        self._addressed: frozenset[int] = frozenset()
        self._asynchronous = settings.flush is FlushDiskType.ASYNC_FLUSH

        # A member does not apply an entry that it cannot read, even if the group has committed it (L12).
        hint = special.readable_to(max(disk.ledger.committed_hint, disk.ledger.base.index))
        self._committed_index = hint
        self._committed_pos = disk.ledger.end_of(hint)
        self._applied_index = applied_index
        self._role = Role.FOLLOWER
        self._leader: int | None = None
        self._ready = False
        self._told_accepting = False
        self._throttled = False
        self._own_index = self._lost_index = -1
        """`_own_index`: the last of this leader's entries that was reported to the core. `_lost_index`: the last entry
        of the log when this member lost leadership."""
        self._waiters = Waiters()
        self._applied = Waiters()
        self._grace: asyncio.TimerHandle | None = None

        self._stopped: str | None = _NOT_STARTED
        self._written_in_effect = False
        self._tasks: list[asyncio.Task[None]] = []
        self._repair_task = RepairTask(
            disk.ledger,
            self._repair,
            note=self._note,
            changed=self._look_at_gaps,
            hopeless=self._pass_over,
        )
        self._deriving: list[Awaitable[None]] = []  # rebuilds of data derived from repaired entries
        for index in self._unread:
            self._add_unread(index)
        for gap in list(special.gaps):
            self._add_gap(gap)
        self._told_low: str | None = None
        self._room = Room(disk.ledger.folder, disk.ledger.segment_bytes, settings.min_free_bytes)
        self._marking = threading.Lock()
        self._reserve = Reserve(door, folder)
        self._appending: Appending | None = None
        self._writer: LogWriter | None = None
        self._limited = LimitedLog(_logger, time.monotonic)
        self._role_log = RoleLog(identity.member, identity.group)
        self._raft: Raft
        self._calls: CoreCalls
        self._do: dict[type, Callable[[Any], None]]
        self._questions: Questions
        self._inbox: Inbox
        self._outbox: Outbox
        self._transport: Transport
        self._shipping: Shipping
        self._snapshot_sender: SnapshotSender
        self._snapshot_receiver: SnapshotReceiver
        self._scrubber: Scrubber

    @classmethod
    async def open(
        cls,
        folder: Path,
        door: Door,
        identity: Identity,
        settings: MemberSettings,
        open_ledger: Callable[[bytes], Ledger],
        *,
        bootstrap: Membership | None = None,
        applied_index: int = -1,
        snapshot: Callable[[], bytes] = bytes,
        restore: Callable[[bytes], int] = lambda blob: -1,
        boot_id: bytes | None = None,
    ) -> Member:
        """Recovers the disk of `identity` in `folder`. Nothing is sent or received before `start`.

        `open_ledger(store_id)`: calls `Ledger.open` with that folder and door; it runs on a thread.
        `bootstrap`: the first membership of a new group. Pass it when the group is created, and never again: it states
        that this identity never ran before, so that an empty disk is correct (M8, S14). It is ignored if the disk
        already has a member. Without it, a member with an empty disk waits to be added or readmitted.
        `applied_index`: the last entry that `on_apply` applied to the state that the caller kept (S12).
        `snapshot()`: returns the applied state as bytes, with its applied index, for a member that is too far behind
        (L11). `restore(blob)`: durably replaces the state by such a snapshot and returns its applied index; it may
        raise OSError. `boot_id`: identifies this boot of the machine; by default the machine's own id.

        Raises DiskError, VoteError, LedgerError, EntryError, OSError or SettingsError.
        """
        settings.validate()

        def recover() -> tuple[MemberDisk, SpecialEntries]:
            disk = open_disk(
                folder,
                door,
                identity,
                open_ledger,
                bootstrap=bootstrap,
                asynchronous=settings.flush is FlushDiskType.ASYNC_FLUSH,
                boot_id=machine_boot_id() if boot_id is None else boot_id,
            )
            if applied_index < disk.ledger.base.index and disk.ledger.base.index >= 0:
                begin = disk.ledger.first_index
                raise DiskError(f"the state is applied up to {applied_index}, but the log begins at entry {begin}")
            special = SpecialEntries(disk.ledger)
            special.find(min(applied_index, disk.ledger.committed_hint) + 1)
            return disk, special

        disk, special = await asyncio.to_thread(recover)
        return cls(
            folder, door, identity, settings, disk, special,
            applied_index=applied_index, snapshot=snapshot, restore=restore,
        )  # fmt: skip

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(
        self,
        sockets: Sequence[socket.socket],
        addresses: Mapping[int, Address],
        *,
        appending: Appending | None = None,
    ) -> None:
        """Applies what is known to be committed, listens at the bound sockets (which it owns from now on), and takes
        part.

        `appending`: the object that writes and syncs the log and calls `log_written`, `log_synced` and `log_failed`:
        the appender of a store on this log. None: the member writes the log itself. Raises TlsError, or ValueError for
        a port out of range.
        """
        settings = self.settings
        self._transport = Transport(
            self.identity,
            settings.transport,
            self._deliver,
            tls=settings.tls,
            on_connected=self._on_connected,
            on_room=self._on_room,
        )
        self._shipping = Shipping(self._transport)
        self._snapshot_sender = SnapshotSender(self._transport, self._shipping)
        self._scrubber = Scrubber(self.folder, self._door, self.ledger, self._shipping, self._log_repaired)
        if appending is None:
            self._writer = LogWriter(self._log, self, sync=not self._asynchronous)
        self._appending = appending or self._writer
        self._raft = Raft(
            self.identity.member,
            settings.raft,
            self.ledger,
            hard_state=self._vote.record.hard_state,
            memberships=self._memberships,
            random=Random(),
            now=time.monotonic(),
            commit_index=self._committed_index,
            must_catch_up=self._vote.record.possible_loss,
            membership_seen=self._vote.record.membership_index,
            readable=self.unreadable is None,
        )
        self._calls = CoreCalls(
            self._raft,
            self._carry_out,
            on_failed=self._effect_failed,
            on_mistake=self._mistake,
            on_deadline=self._on_deadline,
            on_settled=self._on_settled,
        )
        self._questions = Questions(self._raft, self._calls, self._waiters)
        self._outbox = Outbox(
            self._raft,
            self.ledger,
            self._transport,
            self._calls,
            max_append_bytes=settings.raft.max_append_bytes,
            note=self._note,
            repair=lambda first, end_pos: self._repair_task.add(self.ledger.pos_of(first), end_pos),
        )
        self._inbox = Inbox(
            self._raft,
            self.ledger,
            self._calls,
            fetch_snapshot=lambda request: self._snapshot_receiver.receive(request),
            refuse=self._refused_range,
        )
        self._snapshot_receiver = SnapshotReceiver(self._shipping, self._inbox.snapshot_arrived)
        self._do = self._hands()
        self._stopped = None
        self._reserve.keep()
        self._calls.call(self._apply_known)
        self._transport.start(sockets)
        self.set_addresses(addresses)
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._keep_marks(), name="group-marks"))
        self._tasks.append(loop.create_task(self._repair_task.run(), name="repair-log"))
        if appending is None:  # otherwise the store on the log scrubs it and reports damage
            self._tasks.append(loop.create_task(self._scrub_now_and_then(), name="group-scrub"))
        if self._writer is not None and self._asynchronous:
            self._tasks.append(loop.create_task(self._flush_now_and_then(self._writer), name="group-flush"))

    def _carry_out(self, effect: Effect) -> None:
        if _logger.isEnabledFor(logging.DEBUG):
            _logger.debug("n%d: %s", self.identity.member, effect)
        self._do[type(effect)](effect)

    def _hands(self) -> dict[type, Callable[[Any], None]]:
        """The function that carries out each kind of effect."""
        return {
            SaveVote: self._save_vote,
            Truncate: self._truncate,
            Write: self._write,
            AppendOwn: self._append_own,
            Send: self._outbox.send,
            Commit: self._commit,
            RoleChanged: self._role_changed,
            Ready: self._become_ready,
            MembershipChanged: self._membership_changed,
            RemovedFromGroup: self._removed,
            LossDetected: self._loss_detected,
            Readmitted: self._readmitted,
            ReadReady: self._questions.read_ready,
            ReadFailed: self._questions.read_failed,
            TransferEnded: self._questions.transfer_ended,
            SendSnapshot: self._send_snapshot,
            InstallSnapshot: self._install_snapshot,
            Refused: self._refused,
            Fatal: self._fatal,
        }

    async def close(self, *, transfer: bool = True) -> None:
        """Transfers leadership if this member leads (T7), makes everything durable, and notes a clean stop. OSError.

        With a store's appender, the store makes it durable (`EngineReplica.close`) and is closed after this.
        """
        if transfer and self._stopped is None and self._role is Role.LEADER and len(self._raft.membership.voters) > 1:
            try:
                await self.transfer()
            except TransferError as error:
                _logger.warning("n%d stops without a transfer of leadership: %s", self.identity.member, error)
        if self._grace is not None:  # the successor will soon commit this leader's entries
            await asyncio.wait([self._applied.add(self._lost_index)], timeout=self.settings.outcome_grace_seconds)
        started, sound = self._appending is not None, self._stopped is None
        sound = sound and self._raft.disk_state is not DiskState.FAILED if started else True
        await self._end()
        if sound and (self._writer is not None or not started):
            self._log.abandon(self.settings.abandon_code, _CLOSED)
            await asyncio.to_thread(self.ledger.close, self._committed_index)

    async def abort(self) -> None:
        """Drops everything like a killed process: nothing is written, synced or sent any more.

        Returns when none of its threads uses the disk any longer.
        """
        await self._end()

    async def _end(self) -> None:
        if self._appending is None:
            return
        self._halt(_CLOSED)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writer is not None:
            await self._writer.close()
        await asyncio.to_thread(self._wait_for_marks)
        await self._shipping.close()
        await self._transport.close()

    def _wait_for_marks(self) -> None:
        with self._marking:
            pass  # saving a mark on a thread cannot be cancelled

    def _halt(self, reason: str) -> None:
        """Stops: no input is accepted, nothing more is done, and all waiting callers get an error."""
        if self._stopped is None:
            self._stopped = reason
        self._ready = False
        self._tell_accepting()
        self._calls.halt()
        self._cancel_grace()
        for task in self._tasks:
            task.cancel()
        self._snapshot_receiver.cancel()
        self._snapshot_sender.withdraw_all()
        unknown = OutcomeUnknownError(reason)
        self._waiters.fail_above(-1, unknown)
        self._applied.fail_above(-1, ReadError(reason))
        self._questions.give_up(reason)

    def _stop(self, reason: str) -> None:
        """Stops for good, because continuing would be unsafe. The disk stays as it is."""
        if self._stopped is None:
            _logger.critical("n%d stops: %s", self.identity.member, reason)
            self.last_error = reason
            self._halt(reason)
            for callback in self.on_fatal:
                callback(reason)

    def set_addresses(self, addresses: Mapping[int, Address]) -> None:
        """Sets the addresses of members and of possible future members. Raises ValueError for a port out of range."""
        self._transport.set_peers(addresses)
        self._addressed = frozenset(addresses)

    # -- the log -------------------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self._role

    @property
    def leader(self) -> int | None:
        """The current leader, as far as this member knows."""
        return self._leader

    @property
    def possible_loss(self) -> PossibleLoss:
        """What this member may have lost, as noted on its disk."""
        return self._vote.record.possible_loss

    @property
    def accepting(self) -> bool:
        """Whether feeds and proposals can be staged now (B8). Valid for this turn of the event loop."""
        if not self._ready or not self._raft.accepting:
            return False
        under_way = self._log.staged - self._committed_pos
        limit = self.settings.max_uncommitted_bytes
        self._throttled = under_way >= (limit // 2 if self._throttled else limit)
        return not self._throttled

    def staged(self) -> None:
        """Entries were staged in the kernel's log: they are written and replicated at the end of this turn."""
        assert self._appending is not None, "the member was started"
        self._appending.kick()
        if not self._throttled:
            self._tell_accepting()

    def propose(self, kind: EntryKind, body: bytes) -> int:
        """Stages an entry of the kind METADATA at once and returns its index. Raises NotAcceptingError."""
        assert kind is EntryKind.METADATA, "messages are fed or appended to the log; only the core appends other kinds"
        if not self.accepting:
            raise NotAcceptingError(self._refusal(), self._leader)
        try:
            index = self.ledger.append_own(kind, body, wall_ms(), NOWHERE.encode())
        except OSError as error:
            self.log_failed(error, final=False)
            raise NotAcceptingError(str(error), self._leader) from error
        self._special.append(index, kind, body)
        self.staged()
        return index

    def _refusal(self) -> str:
        if self._stopped is not None:
            return self._stopped
        if self._role is not Role.LEADER:
            return f"n{self.identity.member} does not lead its group"
        if not self._ready:
            return "the leader is not ready"
        if self._raft.transfer_target is not None:
            return f"leadership is being transferred to n{self._raft.transfer_target}"
        if self._raft.disk_state is not DiskState.OK:
            return f"the leader's disk: {self.last_error}"
        return f"{self._log.staged - self._committed_pos} bytes are not committed yet"

    async def committed(self, index: int) -> None:
        """Returns when this entry, which was staged under this leadership, is committed and applied.

        Raises OutcomeUnknownError, or NotAcceptingError if it could not be written.
        """
        if index > self._committed_index:
            if self._stopped is not None or (self._role is not Role.LEADER and self._grace is None):
                raise OutcomeUnknownError("leadership was lost")
            await self._waiters.add(index)

    @property
    def committed_index(self) -> int:
        """The last entry that is committed and applied, as far as this member knows."""
        return self._committed_index

    @property
    def committed_pos(self) -> int:
        """The position of the byte behind that entry."""
        return self._committed_pos

    def release_before(self, pos: int) -> int:
        """The log begins at `pos`, a segment's start, from now on (D10); the caller has checked that nothing before it
        is needed. Returns the new first index. `Ledger.delete_released` removes the files.

        Can run on any thread; blocks for syncs. Raises ValueError or OSError.
        """
        ledger = self.ledger
        base_index = ledger.index_of(pos)
        entry = next((entry for entry in reversed(list(self._memberships)) if entry.index <= base_index), None)
        if entry is not None and entry != self._origin.entry:
            self._save_origin(entry)
        ledger.release_before(pos)
        return ledger.first_index

    def keep_from(self) -> int:
        """The position from which the log is needed: by entries that are not applied here, or by a member that catches
        up. Can run on any thread."""
        pos = self._committed_pos
        if self._stopped is None:
            patience = time.monotonic() - self.settings.raft.election_timeout_seconds
            for peer in list(self._raft.peers.values()):
                held = peer.disk.can_write or self._raft.disk_state is DiskState.OK  # else: a snapshot later (L11)
                if held and peer.acked_at >= patience and peer.match_index >= self.ledger.base.index:
                    pos = min(pos, self.ledger.end_of(peer.match_index))
        return pos

    @property
    def disk_state(self) -> DiskState:
        return DiskState.OK if self._appending is None else self._raft.disk_state

    def _save_origin(self, entry: MembershipEntry) -> None:
        """Call it before the log begins later: a membership newer than the log's start is fine, an older one is not."""
        with self._marking:  # the event loop and the thread that deletes segments save it
            origin = replace(self._origin, entry=entry)
            self._reserve.use(lambda: origin.save(self._door, self.folder))
            self._origin = origin

    # -- the group -----------------------------------------------------------------------------------------------------

    async def transfer(self, target: int | None = None) -> int:
        """Transfers leadership to `target`, or to the voter with the longest log; returns the new leader.
        TransferError."""
        if self._stopped is not None:
            raise TransferError(TransferResult.NOT_LEADER, target, self._leader)
        self._write_staged()
        return await self._questions.transfer(target)

    async def change(self, change: Change) -> int:
        """Changes the membership by one member; returns the index of its entry once it is committed.

        Raises ChangeError if it is not possible now, or OutcomeUnknownError.
        """
        if self._stopped is not None:
            raise ChangeError(self._stopped)
        self._write_staged()
        return await self._questions.change(change)

    async def read(self) -> int:
        """Waits until everything that was committed before this call is applied here; returns the committed position
        (R1, R2). Raises ReadError.
        """
        if self._stopped is not None:
            raise ReadError(self._stopped)
        index = await self._questions.read_index()
        if index > self._committed_index:
            await self._applied.add(index)
        return self._committed_pos

    async def scrub(self, bytes_per_second: int | None = None) -> int:
        """Reads all sealed segments again and replaces damaged entries by another member's (D8); returns their number.

        Raises DiskError for damage that no member could repair.
        """
        rate = bytes_per_second or self.settings.scrub_bytes_per_second
        return await self._read_again(0, self._committed_pos, rate)

    async def _read_again(self, first: int, end_pos: int, bytes_per_second: float) -> int:
        if self._stopped is not None:
            raise DiskError(self._stopped)
        self._outbox.forget_range()
        end_pos = min(end_pos, self._committed_pos)
        return await self._scrubber.run(first, self._committed_index, end_pos, self._peers(), bytes_per_second)

    # -- inputs of the core --------------------------------------------------------------------------------------------

    def _on_settled(self) -> None:
        self._tell_accepting()
        if self._written_in_effect:
            self._written_in_effect = False
            self.log_written()

    def _mistake(self, error: Exception) -> None:
        _logger.critical("n%d: internal error", self.identity.member, exc_info=error)
        self._stop(f"internal error: {error!r}")

    def _read_on(self, now: float) -> Sequence[Effect]:
        """After a repair or new damage: how far the log can be read may have changed."""
        effects: list[Effect] = []
        if self._special.readable_to(self._raft.commit_index) > self._committed_index:
            effects.append(Commit(self._raft.commit_index))
        return effects + self._raft.readable(now, self.unreadable is None)

    def _apply_known(self, now: float) -> Sequence[Effect]:
        """At the start: reports what is committed, although it is not new."""
        self._commit_up_to(self._raft.commit_index)
        return []

    def _on_deadline(self) -> None:
        self._write_staged()  # a tick may begin a transfer: accepted entries must be in the log
        self._calls.call(self._raft.tick)

    def _deliver(self, message: Message, payload: memoryview | None) -> None:
        if self._stopped is None:
            self._inbox.deliver(message, payload)

    def _refused_range(self, reason: str) -> None:
        self.refused_ranges += 1
        if reason != self.last_error:
            _logger.error("n%d refused entries: %s", self.identity.member, reason)
        self.last_error = reason

    def _on_connected(self, member: int, lane: Lane) -> None:
        if lane is Lane.BULK and self._stopped is None:
            self._outbox.connected(member)
            self._snapshot_sender.send_again(member)
            self._repair_task.try_now()

    def _on_room(self, member: int, lane: Lane) -> None:
        if lane is Lane.BULK and self._stopped is None:
            self._outbox.room(member)
            self._snapshot_sender.on_room(member)

    # -- events of the log ---------------------------------------------------------------------------------------------

    def log_written(self) -> None:
        """More of what was staged is written. Called by the object that writes the log."""
        if self._stopped is not None or self._appending is None:  # a failed start closes a member that never started
            return
        if self._calls.in_effect:
            self._written_in_effect = True
            return
        index = self._log.written_index
        if self._role is Role.LEADER and index > self._own_index:
            self._own_index = index
            self._calls.call(self._raft.appended)
            if self._asynchronous:
                self._calls.call(self._counted)

    def log_synced(self) -> None:
        """More of what was written is durable."""
        if not self._asynchronous and self._appending is not None:
            self._calls.call(self._counted)

    def log_failed(self, error: OSError, *, final: bool) -> None:
        """A write failed, and what was staged is dropped. `final`: a sync failed, and nothing will be durable again."""
        if self._stopped is not None or self._appending is None or (self._calls.in_effect and not final):
            return  # the effect's own write: the effect reports it
        self._note_failure(error)
        state = DiskState.FULL if error.errno in NO_ROOM and not final else DiskState.FAILED
        self._abandon(error.strerror or str(error))
        self._calls.first(self._disk, state)

    def _write_staged(self) -> None:
        """Writes the accepted entries to the log now, and informs the core."""
        if self._log.staged > self._log.written:
            assert self._appending is not None
            self._appending.write()

    def _counted(self, now: float) -> Sequence[Effect]:
        """Reports the log as it is now: it may have been truncated since the sync began."""
        index = self.ledger.last_index if self._asynchronous else self._log.flushed_index
        return self._raft.synced(now, index)

    def _effect_failed(self, effect: Effect, error: OSError | RangeError) -> None:
        if isinstance(error, RangeError):
            self._refused_range(str(error))
            self._calls.instead(self._disk, DiskState.OK)  # the core drops what was to be written
            return
        self._note_failure(error)
        # Do not continue with a vote or a truncation that may or may not be on the disk.
        full = error.errno in NO_ROOM and isinstance(effect, Write | AppendOwn)
        self._abandon(error.strerror or str(error))
        self._calls.instead(self._disk, DiskState.FULL if full else DiskState.FAILED)

    def _note(self, text: str) -> None:
        self.last_error = text
        _logger.error("n%d: %s", self.identity.member, text)

    def _note_failure(self, error: OSError) -> None:
        if str(error) != self.last_error:
            _logger.error("n%d: disk error: %s", self.identity.member, error)
        self.last_error = str(error)

    def _abandon(self, reason: str) -> None:
        """Drops what is staged and not written."""
        answers = self._log.abandon(self.settings.abandon_code, reason)
        last = self._log.written_index
        self._special.truncate(last)
        self._waiters.fail_above(last, NotAcceptingError(reason, self._leader))
        for abandoned in self.on_abandoned:
            abandoned(last)
        if answers:
            for callback in self.on_refused:
                callback(answers)

    def _disk(self, now: float, state: DiskState) -> Sequence[Effect]:
        # Some of the staged entries may have been written before the disk was full.
        effects: list[Effect] = []
        index = self._log.written_index
        if self._role is Role.LEADER and index > self._own_index and state is not DiskState.FAILED:
            self._own_index = index
            effects += self._raft.appended(now)
        effects += self._raft.disk(now, state)
        if state is DiskState.FAILED:
            reason = f"the disk failed: {self.last_error}"
            _logger.critical("n%d no longer takes part in its group: %s", self.identity.member, reason)
            effects.append(Fatal(reason))
        elif self._raft.commit_index > self._committed_index:
            effects.append(Commit(self._raft.commit_index))  # its effect was in a list whose rest was dropped
        return effects

    # -- effects -------------------------------------------------------------------------------------------------------

    def _save_vote(self, effect: SaveVote) -> None:
        self._reserve.use(lambda: self._vote.save(effect.term, effect.voted_for))

    def _truncate(self, effect: Truncate) -> None:
        was_end = self._log.written
        self.ledger.truncate(effect.last_kept)
        self._outbox.forget_range()
        self._special.truncate(effect.last_kept)
        if self._grace is not None:
            self._end_grace()
        self._waiters.fail_above(effect.last_kept, OutcomeUnknownError("another leader truncated it"))
        pos = self.ledger.end_of(effect.last_kept)
        self._repair_task.cut(effect.last_kept, pos)
        self._unread = [index for index in self._unread if index <= effect.last_kept]
        for callback in self.on_truncate:
            callback(pos, was_end)

    def _write(self, effect: Write) -> None:
        entries = self._inbox.entries_of(effect)
        try:
            self.ledger.append_entries(entries, effect.first_index)
        except EntryError as error:
            raise RangeError(f"entry {error.index} from n{effect.request.source}: {error.reason}") from error
        failed = self._write_now()
        written = self.ledger.last_index
        if entries.special:
            self._special.extend(entries, effect.first_index)
            self._special.truncate(written)
        if failed is not None:
            raise failed
        if self._asynchronous:
            self._calls.then(self._counted)

    def _append_own(self, effect: AppendOwn) -> None:
        log = self._log
        assert log.staged_index + 1 == effect.index, "own entries are at the log's end"
        log.set_term(effect.term)
        body = b"" if effect.membership is None else effect.membership.encode()
        self.ledger.append_own(effect.kind, body, wall_ms(), NOWHERE.encode())
        self._special.append(effect.index, effect.kind, body)
        failed = self._write_now()
        if failed is not None:
            raise failed
        self._own_index = effect.index
        self._calls.then(self._raft.appended)
        if self._asynchronous:
            self._calls.then(self._counted)

    def _write_now(self) -> OSError | None:
        assert self._appending is not None
        return self._appending.write()

    def damaged(self, pos: int, end_pos: int, *, blocks: bool = False) -> None:
        """The bytes [pos, end_pos) of the log were found damaged: the member fetches them from another member, at once
        and until it succeeds. Can be called before `start`.

        `blocks`: what was derived from the log may lack the damaged part, so this member does not lead until then.
        """
        if self._stopped in (None, _NOT_STARTED) and self._other_members():
            self._repair_task.add(pos, end_pos, blocks=blocks)

    @property
    def unreadable(self) -> str | None:
        """Why this member does not lead in any case: a part of its log cannot be read. None if all of it can."""
        if self._lacks_membership():
            return (
                f"entry {self._unread[-1]}, which holds the members of the group, is damaged and is being fetched again"
            )
        if self._special.gaps:
            gap = self._special.gaps[0]
            return f"entries {gap.first} to {gap.sound - 1} of the log are damaged and are being fetched again"
        return "a part of the log is damaged and is being fetched again" if self._repair_task.blocked else None

    def is_being_repaired(self, pos: int) -> bool:
        """Whether byte `pos` of the log is in a range that is being fetched from another member."""
        return self._repair_task.covers(pos)

    def _other_members(self) -> list[int]:
        known = {self.identity.member}
        if self._memberships:
            known |= self._memberships[-1].membership.members
        if self._unread:  # the members are not known: ask every member that has an address
            known = known.union(*(entry.membership.members for entry in self._memberships), self._addressed)
        return sorted(known - {self.identity.member})

    def _lacks_membership(self) -> bool:
        """Whether a membership is not known: it may be in force, or must be sent to other members with older
        entries."""
        known = {entry.index for entry in self._memberships}
        return any(index not in known for index in self._unread)

    def _add_unread(self, index: int) -> None:
        """Fetches a damaged membership. A member that does not know it does not lead until then."""
        ledger = self.ledger
        try:
            pos, end = ledger.pos_of(index), ledger.end_of(index)
        except KeyError:
            self._note(f"entry {index}, which holds the members of the group, is not in the index of the log")
            return
        path = ledger.folder / "data" / segment_name(pos - pos % ledger.segment_bytes)
        lacks = self._lacks_membership()
        reason = (
            f"entry {index}, which holds the members of the group, is damaged; it is fetched from another member"
            + (", and until then this member does not lead" if lacks else "")
        )
        ledger.findings.add(
            FindingKind.DAMAGE, path, reason, offset=pos % ledger.segment_bytes, size=end - pos, pos=pos
        )
        self._repair_task.add(pos, end, blocks=lacks)

    def _read_memberships(self) -> None:
        """Puts memberships in force that were unreadable and are repaired."""
        repaired = [(index, read_membership(self.ledger, index)) for index in self._unread]
        entries = [MembershipEntry(index, found) for index, found in repaired if found is not None]
        if not entries:
            return
        self._unread = [index for index, found in repaired if found is None]
        known = {entry.index: entry for entry in [*entries, *self._memberships]}
        self._memberships = [known[index] for index in sorted(known)]
        if self._appending is not None:
            self._raft.memberships_read(self._memberships)

    def _peers(self) -> list[int]:
        """Other members, the leader first."""
        return sorted(self._other_members(), key=lambda member: (member != self._leader, member))

    async def _repair(self, damage: Damage) -> int:
        self._outbox.forget_range()
        end_pos = min(damage.end_pos, self._log.flushed)
        repaired = await self._scrubber.run(
            damage.first, self.ledger.synced_index, end_pos, self._peers(), float("inf")
        )
        if not repaired:  # a reader believed it was damaged, and may have skipped it
            self._log_repaired(damage.pos, damage.end_pos)
        while self._deriving:
            await self._deriving.pop()
        return repaired

    def _add_gap(self, gap: Gap) -> None:
        """Handles entries that cannot be read and are therefore not applied."""
        ledger, sound = self.ledger, gap.sound
        end = ledger.pos_of(sound) if sound <= ledger.last_index else self._log.written
        if self._other_members() or self._lacks_membership():
            path = ledger.folder / "data" / segment_name(gap.pos - gap.pos % ledger.segment_bytes)
            reason = (
                f"entry {gap.first} is damaged ({gap.reason}); entries {gap.first} to {sound - 1} are fetched from "
                "another member, and until then this member applies nothing behind them and does not lead"
            )
            ledger.findings.add(
                FindingKind.DAMAGE, path, reason, offset=gap.pos % ledger.segment_bytes, size=end - gap.pos, pos=gap.pos
            )
            self._repair_task.add(gap.pos, end, blocks=True)
        else:
            self._give_up(gap.first, "this is the only member")

    def _log_repaired(self, pos: int, end_pos: int) -> None:
        """These bytes of the log are sound now."""
        derived = [callback(pos, end_pos) for callback in self.on_repaired]
        self._deriving += [each for each in derived if each is not None]
        if self._unread:
            self._read_memberships()
        if self._special.gaps:
            self._special.rescan()

    def _pass_over(self, damage: Damage, reason: str) -> bool:
        """No member has a sound copy. If a member leads, its state contains these entries, so this member
        does not skip them. If no member can lead, this member skips them, and the group continues without them."""
        if self._leader is not None:
            return False
        if self._lacks_membership():
            newest = max((entry.index for entry in self._memberships), default=-1)
            if newest < max(self._unread) or newest > self._committed_index:
                return False  # it is unknown which members must agree
            self._unread.clear()
        self._give_up(damage.first, reason)
        return True

    def _give_up(self, first: int, why: str) -> None:
        for gap, kept in self._special.give_up(first):
            lost = "are lost, with their changes of the tables"
            what = "are used, although their headers cannot be verified" if kept else lost
            reason = f"entries {gap.first} to {gap.sound - 1} {what}: {why}"
            self.ledger.findings.add(FindingKind.DAMAGE, self.ledger.folder / "data", reason, offset=gap.pos)
            _logger.critical("n%d skips damaged entries of its log: %s", self.identity.member, reason)

    def _look_at_gaps(self) -> None:
        if self._stopped is None:
            self._calls.call(self._read_on)

    async def _scrub(self, first: int, end_pos: int, bytes_per_second: float) -> None:
        try:
            await self._read_again(first, end_pos, bytes_per_second)
        except (
            DiskError,
            LedgerError,
            EntryError,
            DamageError,
            OSError,
        ) as error:  # reported; a later attempt may succeed
            self._note(str(error))

    def _commit(self, effect: Commit) -> None:
        if self._special.readable_to(effect.index) > self._committed_index:
            self._commit_up_to(effect.index)

    def _commit_up_to(self, index: int) -> None:
        """Applies (S12) and then informs the waiting callers, up to `index` or the first unreadable entry (L12)."""
        gaps = len(self._special.gaps)
        for at, kind, body in self._special.take(index):
            if at > self._applied_index:
                for apply in self.on_apply:
                    apply(at, kind, body)
        if len(self._special.gaps) > gaps:
            self._add_gap(self._special.gaps[0])
        index = max(self._special.readable_to(index), self._committed_index)
        pos = self.ledger.end_of(index)
        self._committed_index, self._committed_pos = index, pos
        self._applied_index = max(self._applied_index, index)
        for told in self.on_commit:
            told(pos)
        self._waiters.resolve(index)
        self._applied.resolve(index)
        self._scrubber.committed(pos)
        if self._grace is not None and index >= self._lost_index:
            self._cancel_grace()

    def _role_changed(self, effect: RoleChanged) -> None:
        led = self._role is Role.LEADER
        raft = self._raft
        self._role_log.changed(
            effect.role,
            effect.term,
            effect.leader,
            raft.leadership_lost,
            raft.elected_by,
            raft.silent_seconds(time.monotonic()),
        )
        self._role, self._leader = effect.role, effect.leader
        self._ready = False
        self._tell_accepting()
        if led and effect.role is not Role.LEADER:
            self._lose_leadership()
        elif effect.role is Role.LEADER:
            self._own_index = self._log.written_index
            self._cancel_grace()  # entries of its last term are committed with this one's
        for callback in self.on_role:
            callback(effect.role, effect.term, effect.leader)

    def _lose_leadership(self) -> None:
        log = self._log
        abandoned = log.staged > log.written
        self._abandon("leadership was lost")
        self._snapshot_sender.withdraw_all()
        self._lost_index = log.written_index
        if not abandoned and self._lost_index <= self._committed_index:
            return  # nothing was uncommitted
        if self._raft.transfer_target is not None and not abandoned:
            # The successor has all entries and commits them soon, so the callers need not be told "unknown".
            loop = asyncio.get_running_loop()
            self._grace = loop.call_later(self.settings.outcome_grace_seconds, self._end_grace)
        else:
            self._end_grace()

    def _cancel_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _end_grace(self) -> None:
        self._cancel_grace()
        self._waiters.fail_above(self._committed_index, OutcomeUnknownError("leadership was lost"))
        for callback in self.on_unknown:
            callback()

    def _become_ready(self, effect: Ready) -> None:
        if self._special.gaps:
            return  # an entry became unreadable; the core is informed next
        self._ready = True
        for callback in self.on_ready:
            callback(effect.term)

    def _tell_accepting(self) -> None:
        accepting = self.accepting
        if accepting is not self._told_accepting:
            self._told_accepting = accepting
            for callback in self.on_accepting:
                callback(accepting)

    def _membership_changed(self, effect: MembershipChanged) -> None:
        known = [entry for entry in self._memberships if entry.index < effect.entry.index]
        self._memberships = [*known, effect.entry]
        self._reserve.use(lambda: self._vote.note_membership(effect.entry.index))

    def _removed(self, effect: RemovedFromGroup) -> None:
        for callback in self.on_removed:
            callback(effect.commit_index)

    def _loss_detected(self, effect: LossDetected) -> None:
        _logger.error(
            "n%d: the log ends at entry %d, but the leader knows of entry %d here: the disk lost durable entries; they "
            "are fetched again, and this member does not count until then",
            self.identity.member, self.ledger.last_index, effect.match_index,
        )  # fmt: skip
        self._reserve.use(lambda: self._vote.note_loss(PossibleLoss.LOG))

    def _readmitted(self, effect: Readmitted) -> None:
        _logger.warning("n%d readmitted: its votes and acknowledgements count again", self.identity.member)
        newest = self._memberships[-1].index if self._memberships else -1
        self._reserve.use(lambda: self._vote.readmit(newest))

    def _send_snapshot(self, effect: SendSnapshot) -> None:
        self._snapshot_sender.send(effect.request, self.ledger.base, self._snapshot)

    def _install_snapshot(self, effect: InstallSnapshot) -> None:
        request = effect.request
        point, blob = self._inbox.snapshot_of(effect)
        applied = self._restore(blob)
        self._save_origin(request.membership)
        self.ledger.install_snapshot(point.index, point.term, point.chain, point.pos)
        self._outbox.forget_range()
        self._special.clear()
        self._repair_task.forget()
        self._memberships, self._unread = [request.membership], []
        self._committed_index, self._committed_pos = point.index, point.pos
        self._applied_index = max(applied, point.index)
        self._waiters.fail_above(-1, OutcomeUnknownError("a snapshot replaced the log"))
        self._applied.resolve(point.index)
        self._scrubber.reset()
        for callback in self.on_installed:
            callback(point.index, point.pos)
        self._calls.then(self._raft.installed, request)

    def _refused(self, effect: Refused) -> None:
        self.refused_messages += 1
        who = "this member" if effect.member == self.identity.member else f"n{effect.member}"
        self.last_error = f"refused a message of {who}: {effect.reason}"
        self._limited.warning("refused", "n%d: %s", self.identity.member, self.last_error, about=effect.member)

    def _fatal(self, effect: Fatal) -> None:
        self._stop(effect.reason)

    # -- now and then --------------------------------------------------------------------------------------------------

    async def _keep_marks(self) -> None:
        """Notes how far the log is durable and committed, and checks whether a full disk has space again."""
        noted = None
        while True:
            await asyncio.sleep(self.settings.mark_interval_seconds)
            self._look_for_room()
            self._reserve.keep()
            self._snapshot_sender.withdraw_from_matched(self._raft.match_indexes)
            state = (self._log.flushed_index, self._committed_index)
            if self._writer is None or state == noted:
                continue
            try:
                await asyncio.to_thread(self.save_mark)
                noted = state
            except OSError as error:  # the previous mark is still valid
                self._note_failure(error)

    def _look_for_room(self) -> None:
        """Runs once a second. It tries a log that could not be written again when there is enough space."""
        state = self._raft.disk_state
        if state is DiskState.FAILED or (state is DiskState.FULL and not self._has_room()):
            return
        reason = self._told_low or self._room.shortage(self._log.written, was_low=state is not DiskState.OK)
        wanted = DiskState.OK if reason is None else DiskState.LOW
        if wanted is not state:
            self._enter(wanted, reason)

    def disk_low(self, reason: str | None) -> None:
        """The store above the log accepts no more messages, because its disk has too little space for them or for the
        files that are derived from them. `reason` says why; None: there is enough space again.

        A leader transfers its leadership to a member with more space. Without such a member it stays leader: the
        group's own entries are small, and offsets, locks and administration need them (L10).
        """
        self._told_low = reason
        if self._stopped is None:
            self._look_for_room()

    def _enter(self, state: DiskState, reason: str | None) -> None:
        self.last_error = reason or ""
        if reason is None:
            _logger.info("n%d: the disk has enough space again", self.identity.member)
        else:
            _logger.warning("n%d: the disk is %s: %s", self.identity.member, state.name.lower(), reason)
        self._write_staged()
        self._calls.call(self._disk, state)

    def message_refusal(self) -> str | None:
        """Why a leader should accept no messages although it accepts the group's own entries: too few members have
        enough disk space. None if enough members have it."""
        if self._stopped is not None or self._role is not Role.LEADER:
            return None
        raft = self._raft
        if raft.disk_state is not DiskState.OK:
            return f"the disk of n{self.identity.member} is {raft.disk_state.name.lower()}: {self.last_error}"
        if raft.voters_with_room >= raft.membership.quorum:
            return None
        short = [f"n{peer.member}" for peer in raft.peers.values() if peer.voter and peer.disk is not DiskState.OK]
        return f"too little space on the disks of {', '.join(sorted(short))}"

    def save_mark(self) -> None:
        """Notes how far the log is durable and committed. Can run on any thread; blocks. OSError: the old mark
        stays."""
        with self._marking:
            if self._stopped is None:
                self.ledger.save_mark(self._committed_index)

    def _has_room(self) -> bool:
        return self._room.for_log(self._log.written)

    async def _scrub_now_and_then(self) -> None:
        await asyncio.sleep(self.settings.scrub_first_seconds)
        while True:
            await self._scrub(0, self._committed_pos, self.settings.scrub_bytes_per_second)
            await asyncio.sleep(self.settings.scrub_interval_seconds)

    async def _flush_now_and_then(self, writer: LogWriter) -> None:
        while True:
            await asyncio.sleep(self.settings.async_flush_interval_seconds)
            if self._log.flushed < self._log.written:
                writer.request_sync()

    # -- for operators -------------------------------------------------------------------------------------------------

    def status(self) -> GroupStatus:
        """The state of this member and of its group, for operators."""
        raft, ledger = self._raft, self.ledger
        membership = raft.membership
        return GroupStatus(
            cluster=self.identity.cluster,
            group=self.identity.group,
            member=self.identity.member,
            role=self._role,
            term=raft.term,
            leader=self._leader,
            ready=self._ready,
            accepting=self.accepting,
            voters=tuple(sorted(membership.voters)),
            learners=tuple(sorted(membership.learners)),
            membership_index=raft.membership_index,
            membership_committed=raft.membership_index <= self._committed_index,
            first_index=ledger.first_index,
            last_index=ledger.last_index,
            synced_index=ledger.synced_index,
            commit_index=self._committed_index,
            applied_index=self._applied_index,
            transfer_target=raft.transfer_target,
            disk=raft.disk_state,
            doubt=raft.possible_loss,
            fatal=None if self._stopped is _CLOSED else self._stopped,
            last_error=self.last_error,
            refused_messages=self.refused_messages + self.refused_ranges,
            removed=raft.removed,
            unreadable=self.unreadable,
            unrepaired=self._repair_task.unrepaired(),
            peers=progress_of(raft, ledger, self._transport.status(), time.monotonic()),
        )
