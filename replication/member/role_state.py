"""The role of a running member as its driver knows it, and what the member accepts in this role.

RoleChanged ─▶ role, leader ─▶ on_role
Ready ───────▶ ready ────────▶ on_ready          a leader accepts proposals while it is ready, transfers nothing,
                                                 and has too little uncommitted data to throttle
leadership lost ─▶ staged entries are dropped ─▶ on_refused
                └▶ written ones: after a transfer the successor gets a grace period to commit them ─▶ on_unknown
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.replication.durable import DiskState
from tallystick.replication.effects import Ready, Role, RoleChanged
from tallystick.replication.member.applier import Applier
from tallystick.replication.member.callbacks import Callbacks
from tallystick.replication.member.errors import NotAcceptingError, OutcomeUnknownError
from tallystick.replication.member.health import Health
from tallystick.replication.member.role_log import RoleLog
from tallystick.replication.member.settings import MemberSettings
from tallystick.replication.raft import Raft
from tallystick.replication.transport.handshake import Identity
from tallystick.store.clock import wall_ms

if TYPE_CHECKING:
    from tallystick.store._kernel import LedgerLog


class RoleState:
    """Owns role, leader, readiness, the limit of uncommitted data, and the grace period after a transfer.

    `on_lost()`: leadership was lost, and the staged entries are dropped."""

    def __init__(
        self,
        identity: Identity,
        settings: MemberSettings,
        raft: Raft,
        log: LedgerLog,
        applier: Applier,
        health: Health,
        callbacks: Callbacks,
        *,
        on_lost: Callable[[], None],
    ) -> None:
        self.role = Role.FOLLOWER
        self.leader: int | None = None
        """The current leader, as far as this member knows."""
        self.ready = False
        """Whether this member leads and has applied everything before its term (S11)."""
        self.throttled = False
        """Whether too much was uncommitted when `accepting` was last computed."""
        self.own_index = -1
        """The last of this leader's entries that was reported to the core."""
        self.lost_index = -1
        """The last entry of the log when this member lost leadership."""
        self._me, self._settings, self._raft, self._log = identity.member, settings, raft, log
        self._applier, self._health, self._callbacks, self._on_lost = applier, health, callbacks, on_lost
        self._role_log = RoleLog(identity.member, identity.group)
        self._told_accepting = False
        self._grace: asyncio.TimerHandle | None = None

    @property
    def leads(self) -> bool:
        return self.role is Role.LEADER

    @property
    def awaits_commit(self) -> bool:
        """Whether entries that were staged under this member's leadership may still be reported as committed."""
        return self.leads or self.in_grace

    @property
    def in_grace(self) -> bool:
        """Whether the successor still has time to commit this former leader's entries."""
        return self._grace is not None

    # -- what is accepted ----------------------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        """See `Member.accepting`."""
        if not self.ready or not self._raft.accepting:
            return False
        under_way = self._log.staged - self._applier.committed_pos
        limit = self._settings.max_uncommitted_bytes
        self.throttled = under_way >= (limit // 2 if self.throttled else limit)
        return not self.throttled

    def tell_accepting(self) -> None:
        """Informs the callbacks if `accepting` has changed."""
        accepting = self.accepting
        if accepting is not self._told_accepting:
            self._told_accepting = accepting
            for callback in self._callbacks.on_accepting:
                callback(accepting)

    def refusal(self) -> str:
        """Why proposals are not accepted."""
        if self._health.stopped is not None:
            return self._health.stopped
        if self.role is not Role.LEADER:
            return f"n{self._me} does not lead its group"
        if not self.ready:
            return "the leader is not ready"
        if self._raft.transfer_target is not None:
            return f"leadership is being transferred to n{self._raft.transfer_target}"
        if self._raft.disk_state is not DiskState.OK:
            return f"the leader's disk: {self._health.last_error}"
        return f"{self._log.staged - self._applier.committed_pos} bytes are not committed yet"

    def message_refusal(self) -> str | None:
        """See `Member.message_refusal`."""
        if self._health.stopped is not None or self.role is not Role.LEADER:
            return None
        raft = self._raft
        if raft.disk_state is not DiskState.OK:
            return f"the disk of n{self._me} is {raft.disk_state.name.lower()}: {self._health.last_error}"
        if raft.voters_with_room >= raft.membership.quorum:
            return None
        short = [f"n{peer.member}" for peer in raft.peers.values() if peer.voter and peer.disk is not DiskState.OK]
        return f"too little space on the disks of {', '.join(sorted(short))}"

    def abandon(self, reason: str) -> None:
        """Drops what is staged and not written."""
        answers = self._log.abandon(self._settings.abandon_code, reason, wall_ms())
        last = self._log.written_index
        self._applier.drop_behind(last, NotAcceptingError(reason, self.leader))
        for abandoned in self._callbacks.on_abandoned:
            abandoned(last)
        if answers:
            for callback in self._callbacks.on_refused:
                callback(answers)

    # -- effects -------------------------------------------------------------------------------------------------------

    def role_changed(self, effect: RoleChanged) -> None:
        """Handles the effect."""
        led = self.role is Role.LEADER
        raft = self._raft
        self._role_log.changed(
            effect.role,
            effect.term,
            effect.leader,
            raft.leadership_lost,
            raft.elected_by,
            raft.silent_seconds(time.monotonic()),
        )
        self.role, self.leader = effect.role, effect.leader
        self.ready = False
        self.tell_accepting()
        if led and effect.role is not Role.LEADER:
            self._lose_leadership()
        elif effect.role is Role.LEADER:
            self.own_index = self._log.written_index
            self._cancel_grace()  # entries of its last term are committed with this one's
        for callback in self._callbacks.on_role:
            callback(effect.role, effect.term, effect.leader)

    def become_ready(self, effect: Ready) -> None:
        """Handles the effect."""
        if self._applier.special.gaps:
            return  # an entry became unreadable; the core is informed next
        self.ready = True
        for callback in self._callbacks.on_ready:
            callback(effect.term)

    def committed(self) -> None:
        """More is committed: the grace period ends if it was waited for."""
        if self._grace is not None and self._applier.committed_index >= self.lost_index:
            self._cancel_grace()

    def truncated(self) -> None:
        """The log was truncated: the successor does not commit all entries of this former leader."""
        if self._grace is not None:
            self._end_grace()

    def halt(self) -> None:
        """The member stops: nothing is accepted from now on."""
        self.ready = False
        self.tell_accepting()
        self._cancel_grace()

    def _lose_leadership(self) -> None:
        log = self._log
        abandoned = log.staged > log.written
        self.abandon("leadership was lost")
        self._on_lost()
        self.lost_index = log.written_index
        if not abandoned and self.lost_index <= self._applier.committed_index:
            return  # nothing was uncommitted
        if self._raft.transfer_target is not None and not abandoned:
            # The successor has all entries and commits them soon, so the callers need not be told "unknown".
            loop = asyncio.get_running_loop()
            self._grace = loop.call_later(self._settings.outcome_grace_seconds, self._end_grace)
        else:
            self._end_grace()

    def _cancel_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _end_grace(self) -> None:
        self._cancel_grace()
        error = OutcomeUnknownError("leadership was lost")
        self._applier.waiters.fail_above(self._applier.committed_index, error)
        for callback in self._callbacks.on_unknown:
            callback()
