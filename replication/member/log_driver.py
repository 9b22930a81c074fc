"""Carries out the effects on the log, and reports to the core what is written, what is durable, and what failed.

    propose ─▶ staged ─▶ one write_out a turn ─▶ log_written ─▶ Raft.appended     a leader's own entries
    Write, AppendOwn ──▶ write_out at once ────┬▶ log_synced ──▶ Raft.synced
                                               └▶ log_failed ──▶ Raft.disk, before any other call

A leader's entries are written once per turn of the event loop, regardless of the number of sends. A follower writes a
range at once, and answers after a sync that covers everything written until then (D2).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tallystick.replication.durable import DiskState
from tallystick.replication.effects import AppendOwn, Commit, Effect, Fatal, Write
from tallystick.replication.member.applier import Applier
from tallystick.replication.member.core_calls import CoreCalls
from tallystick.replication.member.disk import MemberDisk
from tallystick.replication.member.errors import NotAcceptingError
from tallystick.replication.member.health import Health
from tallystick.replication.member.inbox import Inbox
from tallystick.replication.member.log_writer import Appending, LogWriter
from tallystick.replication.member.ranges import RangeError
from tallystick.replication.member.reserve import NO_ROOM
from tallystick.replication.member.role_state import RoleState
from tallystick.replication.raft import Raft
from tallystick.store._kernel import EntryError
from tallystick.store.clock import wall_ms
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.formats.message import NOWHERE

_logger = logging.getLogger("tallystick.replication")


class LogDriver:
    """Owns the object that writes the log, if no store does.

    `appending`: the store's appender; None: this object writes the log itself. `asynchronous`: an entry counts when it
    is written, not when it is synced."""

    def __init__(
        self,
        member: int,
        disk: MemberDisk,
        raft: Raft,
        calls: CoreCalls,
        roles: RoleState,
        applier: Applier,
        inbox: Inbox,
        health: Health,
        *,
        appending: Appending | None,
        asynchronous: bool,
    ) -> None:
        self.writer: LogWriter | None = None
        """Writes and syncs the log; None if a store does."""
        self._me = member
        self._ledger, self._log = disk.ledger, disk.ledger.log
        self._raft, self._calls, self._roles, self._applier = raft, calls, roles, applier
        self._inbox, self._health = inbox, health
        self._asynchronous = asynchronous
        self._written_in_effect = False
        if appending is None:
            appending = self.writer = LogWriter(self._log, self, sync=not asynchronous)
        self._appending = appending

    # -- proposals -----------------------------------------------------------------------------------------------------

    def staged(self) -> None:
        """See `Member.staged`."""
        self._appending.kick()
        if not self._roles.throttled:
            self._roles.tell_accepting()

    def propose(self, kind: EntryKind, body: bytes) -> int:
        """See `Member.propose`."""
        roles = self._roles
        if not roles.accepting:
            raise NotAcceptingError(roles.refusal(), roles.leader)
        try:
            index = self._ledger.append_own(kind, body, wall_ms(), NOWHERE.encode())
        except OSError as error:
            self.log_failed(error, final=False)
            raise NotAcceptingError(str(error), roles.leader) from error
        self._applier.note_own(index, kind, body)
        self.staged()
        return index

    def write_staged(self) -> None:
        """Writes the accepted entries to the log now, and informs the core."""
        if self._log.staged > self._log.written:
            self._appending.write()

    # -- events of the log ---------------------------------------------------------------------------------------------

    def log_written(self) -> None:
        """See `Member.log_written`."""
        if self._health.stopped is not None:
            return
        if self._calls.in_effect:
            self._written_in_effect = True
            return
        index = self._log.written_index
        if self._roles.leads and index > self._roles.own_index:
            self._roles.own_index = index
            self._calls.call(self._raft.appended)
            if self._asynchronous:
                self._calls.call(self._counted)

    def log_synced(self) -> None:
        """See `Member.log_synced`."""
        if not self._asynchronous:
            self._calls.call(self._counted)

    def log_failed(self, error: OSError, *, final: bool) -> None:
        """See `Member.log_failed`."""
        if self._health.stopped is not None or (self._calls.in_effect and not final):
            return  # the effect's own write: the effect reports it
        self._health.note_failure(error)
        state = DiskState.FULL if error.errno in NO_ROOM and not final else DiskState.FAILED
        self._roles.abandon(error.strerror or str(error))
        self._calls.first(self._disk, state)

    def settled(self) -> None:
        """No call of the core waits any longer: reports what effects have written meanwhile."""
        if self._written_in_effect:
            self._written_in_effect = False
            self.log_written()

    def effect_failed(self, effect: Effect, error: OSError | RangeError) -> None:
        """An effect was not carried out: the core is told first."""
        if isinstance(error, RangeError):
            self._health.refuse_range(str(error))
            self._calls.instead(self._disk, DiskState.OK)  # the core drops what was to be written
            return
        self._health.note_failure(error)
        # Do not continue with a vote or a truncation that may or may not be on the disk.
        full = error.errno in NO_ROOM and isinstance(effect, Write | AppendOwn)
        self._roles.abandon(error.strerror or str(error))
        self._calls.instead(self._disk, DiskState.FULL if full else DiskState.FAILED)

    def enter(self, state: DiskState, reason: str | None) -> None:
        """The disk has too little space now because of `reason`, or enough again (None)."""
        self._health.last_error = reason or ""
        if reason is None:
            _logger.info("n%d: the disk has enough space again", self._me)
        else:
            _logger.warning("n%d: the disk is %s: %s", self._me, state.name.lower(), reason)
        self.write_staged()
        self._calls.call(self._disk, state)

    def _counted(self, now: float) -> Sequence[Effect]:
        """Reports the log as it is now: it may have been truncated since the sync began."""
        index = self._ledger.last_index if self._asynchronous else self._log.flushed_index
        return self._raft.synced(now, index)

    def _disk(self, now: float, state: DiskState) -> Sequence[Effect]:
        # Some of the staged entries may have been written before the disk was full.
        effects: list[Effect] = []
        index = self._log.written_index
        if self._roles.leads and index > self._roles.own_index and state is not DiskState.FAILED:
            self._roles.own_index = index
            effects += self._raft.appended(now)
        effects += self._raft.disk(now, state)
        if state is DiskState.FAILED:
            reason = f"the disk failed: {self._health.last_error}"
            _logger.critical("n%d no longer takes part in its group: %s", self._me, reason)
            effects.append(Fatal(reason))
        elif self._raft.commit_index > self._applier.committed_index:
            effects.append(Commit(self._raft.commit_index))  # its effect was in a list whose rest was dropped
        return effects

    # -- effects -------------------------------------------------------------------------------------------------------

    def write(self, effect: Write) -> None:
        """Handles the effect. Raises RangeError or OSError."""
        entries = self._inbox.entries_of(effect)
        try:
            self._ledger.append_entries(entries, effect.first_index)
        except EntryError as error:
            raise RangeError(f"entry {error.index} from n{effect.request.source}: {error.reason}") from error
        failed = self._appending.write()
        self._applier.note_entries(entries, effect.first_index, self._ledger.last_index)
        if failed is not None:
            raise failed
        if self._asynchronous:
            self._calls.then(self._counted)

    def append_own(self, effect: AppendOwn) -> None:
        """Handles the effect. Raises OSError."""
        log = self._log
        assert log.staged_index + 1 == effect.index, "own entries are at the log's end"
        log.set_term(effect.term)
        body = b"" if effect.membership is None else effect.membership.encode()
        self._ledger.append_own(effect.kind, body, wall_ms(), NOWHERE.encode())
        self._applier.note_own(effect.index, effect.kind, body)
        failed = self._appending.write()
        if failed is not None:
            raise failed
        self._roles.own_index = effect.index
        self._calls.then(self._raft.appended)
        if self._asynchronous:
            self._calls.then(self._counted)
