"""A log that a group of members replicates: a message is safe when the group has committed it.

    driver ── commit, take_lead, serve, give_up, forget_cut ──▶ GroupCommit ── written, synced, failed ──▶ Replica

The engine uses only what the group has committed: dispatched, read and answered <= committed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tallystick.store.clock import wall_ms
from tallystick.store.engine.distribution import Tally
from tallystick.store.engine.durability import LogParts
from tallystick.store.engine.recovery import KeptLog
from tallystick.store.engine.waiters import Waiters
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES
from tallystick.store.formats.message import PutStatus

if TYPE_CHECKING:
    from tallystick.store._kernel import LedgerLog
    from tallystick.store.engine.admission import Admission
    from tallystick.store.engine.recovery import Recovered
    from tallystick.store.engine.replica import Replica

_FLUSH_SLAVE_TIMEOUT = 12
"""Fixed by the protocol: the answer's code for a send that was not committed in time."""


_COMMIT_LIMITS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_MOST_WRITES = 10_000
"""Writes that wait for a commit and are timed; older ones are not counted."""


class ReplicaLog:
    """The log of a member, which is recovered and open before the store on it."""

    is_replicated = True
    entry_header_bytes = ENTRY_HEADER_BYTES

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    @property
    def kept(self) -> KeptLog:
        """See `LogSource`: all of it."""
        return KeptLog(self._replica.log.written, self._replica.committed_pos)

    def sync_inherited(self, recovered: Recovered) -> None:
        """See `LogSource`. The member has synced its log before it opened it."""

    def open(self, recovered: Recovered) -> LedgerLog:
        """See `LogSource`."""
        return self._replica.log

    def durability(self, parts: LogParts) -> GroupCommit:
        """See `LogSource`."""
        return GroupCommit(self._replica, parts)


class GroupCommit:
    """A `Durability` of a replicated log. Owns the commit position, whether this member serves, the puts that wait for
    a commit, and the offsets of queues whose records are before the log."""

    is_pooled = False
    kernel_may_store = True
    # Nothing was stored, and another member may have room.
    no_segment_status = PutStatus.SERVICE_NOT_AVAILABLE

    def __init__(self, replica: Replica, parts: LogParts) -> None:
        self.flushed = Waiters()
        self.chores: tuple[tuple[str, Callable[[], None]], ...] = (("save-log-mark", replica.save_mark),)
        self.serving = False
        self.refusal: str | None = None
        self._replica = replica
        self._committed_waiters = Waiters()
        self._committed = parts.recovered.committed_pos
        self.commits = Tally(_COMMIT_LIMITS_S)
        """How long the commits of this leader's writes took, in s."""
        self._uncommitted: deque[tuple[int, float]] = deque(maxlen=_MOST_WRITES)  # end of a write, and when it was (s)
        self.keeps_all: Callable[[], bool] = lambda: False
        """Whether nothing of the log may be deleted. Any thread calls it."""
        self._count_from: dict[tuple[str, int], int] = {}
        self._count_also: dict[tuple[str, int], int] = {}
        self._settings = parts.settings
        self._log = replica.log
        self._dispatch = parts.dispatch
        self._dispatcher = parts.dispatcher
        self._deliver = parts.deliver

    # -- the strategy --------------------------------------------------------------------------------------------------

    @property
    def readable_end(self) -> int:
        """The committed end (R4)."""
        return min(self._committed, self._log.written)

    def read_limits(self) -> tuple[int, bool]:
        """See `Durability`. A follower that is behind knows no better offset than the reader. The same applies to a new
        leader whose queues lack a part of the log: it would send readers back to the beginning of the queue."""
        end = min(self._committed, self._log.written)
        return end, self.serving and not self._dispatcher.behind_bytes

    def start(self, admission: Admission) -> None:
        """See `Durability`. The store begins as a follower."""
        self._admission = admission
        self._dispatcher.advance(self._committed)
        admission.set_hot(False)

    async def stored(self, end: int, *, waits: bool) -> PutStatus:
        """See `Durability`. Every sender waits for the commit."""
        limit_s = self._settings.syncFlushTimeout / 1000
        return await self._committed_waiters.in_time(end, limit_s, PutStatus.FLUSH_SLAVE_TIMEOUT)

    def log_written(self, written: int) -> None:
        """See `Durability`. The appender calls it before it requests the sync: waking that thread takes as long as
        sending to followers, and the way over a follower takes longer."""
        if self.serving:
            self._uncommitted.append((written, time.monotonic()))
        self._replica.log_written()

    def log_synced(self, flushed: int) -> None:
        """See `Durability`."""
        self._replica.log_synced()
        self.flushed.resolve(flushed)

    def log_failed(self, error: OSError, *, final: bool) -> None:
        """See `Durability`."""
        self._replica.log_failed(error, final=final)

    def refuse(self, safe: int) -> None:
        """See `Durability`."""
        self.flushed.refuse(safe, PutStatus.UNKNOWN_ERROR)
        self._committed_waiters.refuse(safe, PutStatus.UNKNOWN_ERROR)

    def expire(self) -> None:
        """See `Durability`."""
        now_ms = wall_ms()
        self._deliver(self._log.expire(now_ms - self._settings.syncFlushTimeout, _FLUSH_SLAVE_TIMEOUT, now_ms))

    def keep_from(self) -> int:
        """See `Durability`: what a peer lacks, or what is not applied yet (D10)."""
        return 0 if self.keeps_all() else self._replica.keep_from()

    def release_before(self, pos: int) -> None:
        """See `Durability`."""
        self._replica.release_before(pos)

    def close(self, orderly: bool) -> None:
        """See `Durability`."""
        self._replica.close(orderly)

    # -- what the group decides ----------------------------------------------------------------------------------------

    def commit(self, pos: int) -> None:
        """The group has committed the log up to `pos`: dispatches it for reads, and answers the senders (B1)."""
        self._committed = max(self._committed, pos)
        while self._uncommitted and self._uncommitted[0][0] <= pos:
            self.commits.add(time.monotonic() - self._uncommitted.popleft()[1])
        self._dispatcher.advance(self.readable_end)
        self._deliver(self._log.release(pos, wall_ms()))
        self._committed_waiters.resolve(pos)

    def take_lead(self, term: int) -> None:
        """This member leads from now on: it appends entries of `term` behind all entries of the log, committed or not
        (B3). `serve` enables puts. Raises EntryError if the log is damaged."""
        # The order matters: records that are dispatched meanwhile are read twice, and none is omitted.
        first_index = self._replica.first_index_behind(self._dispatch.position)
        self._log.reset_offsets()
        before = self._count_also | self._count_from
        ends = {(name.encode(), queue_id): offset for (name, queue_id), offset in before.items()}
        for topic, queue_id, _, max_offset, _, _ in self._dispatch.queues():
            ends[topic, queue_id] = max(max_offset, ends.get((topic, queue_id), 0))
        for (topic, queue_id), offset in ends.items():
            if offset > 0:
                self._log.set_next_offset(topic, queue_id, offset)
        self._log.take_offsets(first_index)
        self._log.set_term(term)

    def count_from(self, ends: Mapping[tuple[str, int], int]) -> None:
        """These queues continue at these offsets or behind: their last records were before the start of this log (L11),
        or a conversion left them out because they were damaged."""
        self._count_from = dict(ends)

    def also_count_from(self, ends: Mapping[tuple[str, int], int]) -> None:
        """The same for queues of another log, which this group took over."""
        self._count_also = dict(ends)

    def ends_before(self, pos: int) -> dict[tuple[str, int], int]:
        """The next offsets of queues that the log from `pos` on does not show, by topic and queue id."""
        ends = self._count_also | self._count_from
        for topic, queue_id, _, max_offset, _, max_pos in self._dispatch.queues():
            key = topic.decode(), queue_id
            if max_offset > 0 and max_pos <= pos:
                ends[key] = max(max_offset, ends.get(key, 0))
            elif max_offset > ends.get(key, 0):
                ends.pop(key, None)
        return ends

    def serve(self, serving: bool) -> None:
        """Sets whether this member accepts puts: a leader that is ready does (S11)."""
        self.serving = serving
        self._uncommitted.clear()
        self._admission.set_hot(serving)

    def refuse_messages(self, reason: str | None) -> None:
        """Sets why the group of this leader has too little room for messages; None if it has enough. Other entries are
        not affected."""
        if reason != self.refusal:
            self.refusal = reason
            self._admission.look_again()

    def give_up(self, code: int, status: PutStatus) -> None:
        """Leadership is lost: answers all that wait for a commit with `code` or `status` for "outcome unknown" (B2)."""
        self.serve(False)
        self._deliver(self._log.expire(1 << 62, code, wall_ms()))
        self._committed_waiters.end(status)

    def forget_cut(self, was_end: int) -> None:
        """The log was truncated; before, it ended at `was_end`. Releases maps of segments that were replaced.

        Queues and index contain only committed records, which are never truncated (S7), so they do not change (B4)."""
        end = self._log.written
        assert self._dispatch.position <= end, "what was dispatched was committed"
        segment_bytes = self._settings.mappedFileSizeCommitLog
        for start in range(end - end % segment_bytes, was_end, segment_bytes):
            self._dispatch.forget_log_segment(start)
