"""What runs of a member: the core decides, and this module carries its effects out, on one event loop.

    feed, append ─▶ kernel log ─ staged() ─▶ one write_out a turn ─▶ sync thread ─▶ Raft.synced ─┐
                                                  └─▶ Raft.appended ─▶ sends                     ├─▶ effects, in order
    transport ───────────────────────────────────────────────────────▶ Raft.step ────────────────┤
    timer at `Raft.deadline` ────────────────────────────────────────▶ Raft.tick ────────────────┘

`core_calls` keeps the order of calls and effects. Each effect goes to the part that owns what it changes:

    SaveVote, MembershipChanged, LossDetected, Readmitted     disk (`disk`)
    Write, AppendOwn                                          log (`log_driver`)
    RoleChanged, Ready                                        role (`role_state`)
    Send, SendSnapshot                                        other members (`connections`)
    ReadReady, ReadFailed, TransferEnded                      waiting requests (`questions`)
    Commit, Truncate, InstallSnapshot, Fatal, ...             several of them: here

A range that goes to two members is read once, before it is synced (D3). Saving a vote and truncating the log block the
event loop for a few syncs: they are rare, and a leader does neither.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tallystick.replication.durable import DiskState
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
    RoleChanged,
    SaveVote,
    Send,
    SendSnapshot,
    TransferEnded,
    Truncate,
    Write,
)
from tallystick.replication.member.applier import Applier
from tallystick.replication.member.callbacks import Callbacks
from tallystick.replication.member.connections import Connections
from tallystick.replication.member.core_calls import CoreCalls
from tallystick.replication.member.damage import LogDamage
from tallystick.replication.member.disk import MemberDisk
from tallystick.replication.member.errors import OutcomeUnknownError, TransferError
from tallystick.replication.member.health import CLOSED, Health
from tallystick.replication.member.log_driver import LogDriver
from tallystick.replication.member.log_writer import Appending
from tallystick.replication.member.questions import Questions
from tallystick.replication.member.repairer import Repairer
from tallystick.replication.member.role_state import RoleState
from tallystick.replication.member.room import Room
from tallystick.replication.member.settings import MemberSettings
from tallystick.replication.member.upkeep import Upkeep
from tallystick.replication.raft import Raft
from tallystick.replication.transport.handshake import Identity
from tallystick.replication.transport.shipping import Shipping
from tallystick.replication.transport.transport import Transport
from tallystick.store.settings import FlushDiskType

_logger = logging.getLogger("tallystick.replication")


class Driver:
    """Owns the core and the parts that run beside it. Created when the member starts; `start` takes part."""

    def __init__(
        self,
        identity: Identity,
        settings: MemberSettings,
        disk: MemberDisk,
        applier: Applier,
        damage: LogDamage,
        room: Room,
        health: Health,
        callbacks: Callbacks,
        appending: Appending | None,
    ) -> None:
        """`appending`: see `Member.start`. Raises TlsError."""
        self._me, self._settings = identity.member, settings
        self._disk, self._applier, self._damage = disk, applier, damage
        self._health, self._callbacks = health, callbacks
        ledger = disk.ledger
        transport = Transport(
            identity,
            settings.transport,
            lambda message, payload: self.connections.deliver(message, payload),
            tls=settings.tls,
            on_connected=lambda member, lane: self.connections.connected(member, lane),
            on_room=lambda member, lane: self.connections.room(member, lane),
        )
        shipping = Shipping(transport)
        self.raft = raft = self._core()
        self.calls = calls = CoreCalls(
            raft,
            self._carry_out,
            on_failed=lambda effect, error: self.log.effect_failed(effect, error),
            on_mistake=self._mistake,
            on_deadline=self._on_deadline,
            on_settled=self._on_settled,
        )
        self.connections = Connections(
            transport, shipping, raft, ledger, calls, damage.task, health,
            max_append_bytes=settings.raft.max_append_bytes,
        )  # fmt: skip
        self.roles = RoleState(
            identity, settings, raft, ledger.log, applier, health, callbacks,
            on_lost=self.connections.snapshots.withdraw_all,
        )  # fmt: skip
        self.log = LogDriver(
            self._me, disk, raft, calls, self.roles, applier, self.connections.inbox, health,
            appending=appending, asynchronous=settings.flush is FlushDiskType.ASYNC_FLUSH,
        )  # fmt: skip
        self.repairer = Repairer(
            disk, damage, applier, raft, self.roles, shipping, health, callbacks,
            forget_range=self.connections.outbox.forget_range,
        )  # fmt: skip
        self.questions = Questions(raft, calls, applier, self.roles, health, self.log.write_staged)
        self.upkeep = Upkeep(
            settings, disk, raft, room, applier, self.log, self.repairer, self.connections.snapshots, health
        )
        self._do = self._hands()

    def _core(self) -> Raft:
        record = self._disk.vote.record
        return Raft(
            self._me,
            self._settings.raft,
            self._disk.ledger,
            hard_state=record.hard_state,
            memberships=self._disk.memberships,
            random=Random(),
            now=time.monotonic(),
            commit_index=self._applier.committed_index,
            must_catch_up=record.possible_loss,
            membership_seen=record.membership_index,
            readable=self._damage.unreadable is None,
        )

    def _hands(self) -> dict[type, Callable[[Any], None]]:
        """The function that carries out each kind of effect."""
        return {
            SaveVote: self._disk.save_vote,
            Truncate: self._truncate,
            Write: self.log.write,
            AppendOwn: self.log.append_own,
            Send: self.connections.outbox.send,
            Commit: self._commit,
            RoleChanged: self.roles.role_changed,
            Ready: self._become_ready,
            MembershipChanged: self._disk.membership_changed,
            RemovedFromGroup: self._removed,
            LossDetected: self._disk.loss_detected,
            Readmitted: self._disk.readmitted,
            ReadReady: self.questions.read_ready,
            ReadFailed: self.questions.read_failed,
            TransferEnded: self.questions.transfer_ended,
            SendSnapshot: self._send_snapshot,
            InstallSnapshot: self._install_snapshot,
            Refused: self._health.refuse_message,
            Fatal: self._fatal,
        }

    def _become_ready(self, effect: Ready) -> None:
        self.roles.become_ready(effect)
        if self.raft.membership_index < 0:
            asyncio.get_running_loop().call_soon(self._restate_membership)

    def _restate_membership(self) -> None:
        """No entry of the log has the membership: dledger wrote the log (M8)."""
        if self._health.stopped is None:
            self.log.write_staged()  # the core knows the written end of the log
            self.calls.call(self.raft.restate_membership)

    # -- start and stop ------------------------------------------------------------------------------------------------

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """Applies what is known to be committed, and listens at the bound sockets, which it owns from now on. Call
        `Upkeep.start` when the members' addresses are set."""
        self._health.stopped = None
        self._damage.task.on_changed = self._damage_changed
        self._disk.keep_reserve()
        self.calls.call(self._apply_known)
        self.connections.transport.start(sockets)

    async def stop(self, *, transfer: bool) -> bool:
        """Transfers leadership if this member leads (T7), and stops. Returns whether the log is sound."""
        if transfer and self._health.stopped is None and self.roles.leads and len(self.raft.membership.voters) > 1:
            try:
                await self.questions.transfer(None)
            except TransferError as error:
                _logger.warning("n%d stops without a transfer of leadership: %s", self._me, error)
        if self.roles.in_grace:  # the successor will soon commit this leader's entries
            applied = self._applier.when_applied(self.roles.lost_index)
            await asyncio.wait([applied], timeout=self._settings.outcome_grace_seconds)
        sound = self._health.stopped is None and self.raft.disk_state is not DiskState.FAILED
        await self.abort()
        return sound

    async def abort(self) -> None:
        """See `Member.abort`."""
        self._halt(CLOSED)
        await self.upkeep.ended()
        if self.log.writer is not None:
            await self.log.writer.close()
        await asyncio.to_thread(self.upkeep.wait_for_mark)
        await self.connections.close()

    def _halt(self, reason: str) -> None:
        """Stops: no input is accepted, nothing more is done, and all waiting callers get an error."""
        if self._health.stopped is None:
            self._health.stopped = reason
        self.roles.halt()
        self.calls.halt()
        self.upkeep.cancel()
        self.connections.halt()
        self._applier.give_up(reason)
        self.questions.give_up(reason)

    def _stop_for_good(self, reason: str) -> None:
        """Stops for good, because continuing would be unsafe. The disk stays as it is."""
        if self._health.stopped is None:
            _logger.critical("n%d stops: %s", self._me, reason)
            self._health.last_error = reason
            self._halt(reason)
            for callback in self._callbacks.on_fatal:
                callback(reason)

    # -- inputs of the core --------------------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        if _logger.isEnabledFor(logging.DEBUG):
            _logger.debug("n%d: %s", self._me, effect)
        self._do[type(effect)](effect)

    def _on_settled(self) -> None:
        self.roles.tell_accepting()
        self.log.settled()

    def _mistake(self, error: Exception) -> None:
        _logger.critical("n%d: internal error", self._me, exc_info=error)
        self._stop_for_good(f"internal error: {error!r}")

    def _on_deadline(self) -> None:
        self.log.write_staged()  # a tick may begin a transfer: accepted entries must be in the log
        self.calls.call(self.raft.tick)

    def _damage_changed(self) -> None:
        if self._health.stopped is None:
            self.calls.call(self._read_on)

    def _read_on(self, now: float) -> Sequence[Effect]:
        """After a repair or new damage: how far the log can be read may have changed."""
        effects: list[Effect] = []
        if self._applier.can_apply(self.raft.commit_index):
            effects.append(Commit(self.raft.commit_index))
        return effects + self.raft.readable(now, self._damage.unreadable is None)

    def _apply_known(self, now: float) -> Sequence[Effect]:
        """At the start: reports what is committed, although it is not new."""
        self._commit_up_to(self.raft.commit_index)
        return []

    # -- effects -------------------------------------------------------------------------------------------------------

    def _commit(self, effect: Commit) -> None:
        if self._applier.can_apply(effect.index):
            self._commit_up_to(effect.index)

    def _commit_up_to(self, index: int) -> None:
        self._applier.commit_up_to(index)
        self.repairer.scrubber.committed(self._applier.committed_pos)
        self.roles.committed()

    def _truncate(self, effect: Truncate) -> None:
        ledger, last_kept = self._disk.ledger, effect.last_kept
        was_end = ledger.log.written
        self._disk.truncate(last_kept)
        self.connections.outbox.forget_range()
        self.roles.truncated()
        self._applier.drop_behind(last_kept, OutcomeUnknownError("another leader truncated it"))
        pos = ledger.end_of(last_kept)
        self._damage.task.cut(last_kept, pos)
        for callback in self._callbacks.on_truncate:
            callback(pos, was_end)

    def _removed(self, effect: RemovedFromGroup) -> None:
        for callback in self._callbacks.on_removed:
            callback(effect.commit_index)

    def _send_snapshot(self, effect: SendSnapshot) -> None:
        self.connections.snapshots.send(effect.request, self._disk.ledger.base, self._applier.snapshot)

    def _install_snapshot(self, effect: InstallSnapshot) -> None:
        request = effect.request
        point, blob = self.connections.inbox.snapshot_of(effect)
        applied = self._applier.restore(blob)
        self._disk.install_snapshot(point, request.membership)
        self.connections.outbox.forget_range()
        self._applier.installed(point, applied)
        self._damage.task.forget()
        self.repairer.scrubber.reset()
        for callback in self._callbacks.on_installed:
            callback(point.index, point.pos)
        self.calls.then(self.raft.installed, request)

    def _fatal(self, effect: Fatal) -> None:
        self._stop_for_good(effect.reason)

    # -- for the store above the log -----------------------------------------------------------------------------------

    def keep_from(self) -> int:
        """See `Member.keep_from`."""
        pos, ledger = self._applier.committed_pos, self._disk.ledger
        if self._health.stopped is None:
            patience = time.monotonic() - self._settings.raft.election_timeout_seconds
            for peer in list(self.raft.peers.values()):
                held = peer.disk.can_write or self.raft.disk_state is DiskState.OK  # else: a snapshot later (L11)
                if held and peer.acked_at >= patience and peer.match_index >= ledger.base.index:
                    pos = min(pos, ledger.end_of(peer.match_index))
        return pos
