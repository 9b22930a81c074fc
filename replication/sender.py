"""What a leader sends to one follower at a time: the next entries, a probe, or a snapshot (L7, L11).

Nothing is queued here. The entries that a member lacks are in the log, and `Peer` states how far the member is. A
message is created when it can be sent: in PIPELINE as many as fit into the window, in PROBE one, in INSTALL only the
snapshot. The window is a size in bytes on disk: the sender asks the log how far so many bytes reach.
"""

from __future__ import annotations

from tallystick.replication.durable import LogView
from tallystick.replication.effects import Effect, Send, SendSnapshot
from tallystick.replication.membership import MembershipEntry, MembershipHistory
from tallystick.replication.messages import AppendRequest, InstallRequest, TermRun
from tallystick.replication.peers import Peer, PeerState
from tallystick.replication.settings import RaftSettings
from tallystick.replication.term_runs import TermRuns


class Sender:
    """The sender of one leader in one term. Its methods append effects to the given list."""

    __slots__ = ("_batch", "_batch_first", "_batch_last", "_history", "_log", "_member", "_settings", "_term", "_terms")

    def __init__(
        self,
        member: int,
        term: int,
        settings: RaftSettings,
        log: LogView,
        terms: TermRuns,
        history: MembershipHistory,
    ) -> None:
        self._member = member
        self._term = term
        self._settings = settings
        self._log = log
        self._terms = terms
        self._history = history
        # Previous term, terms and memberships of the last request: two members at the same position get the same.
        self._batch_first = self._batch_last = -2
        self._batch: tuple[int, tuple[TermRun, ...], tuple[MembershipEntry, ...]] = (-1, (), ())

    def feed(self, now: float, peer: Peer, commit_index: int, effects: list[Effect]) -> None:
        """Sends everything that can be sent to this member now."""
        end = self._terms.last_index
        if peer.state is PeerState.PIPELINE:
            while peer.next_index <= end:
                first_index = self._log.first_index
                if peer.next_index < first_index:
                    self._send_snapshot(now, peer, commit_index, effects)
                    return
                last = self._within_window(peer, first_index, end)
                if last < peer.next_index:
                    return  # the next answer continues here
                self._send_entries(peer, last, commit_index, effects)
                peer.next_index = last + 1
                if peer.waiting_since is None:
                    peer.waiting_since = now
        elif peer.waiting_since is None:
            if peer.next_index < self._log.first_index:
                self._send_snapshot(now, peer, commit_index, effects)
            else:
                self._send_entries(peer, min(peer.next_index, end), commit_index, effects)
                peer.waiting_since = now

    def feed_again(self, now: float, peer: Peer, commit_index: int, effects: list[Effect]) -> None:
        """Considers the unanswered requests lost and sends again."""
        peer.lost()
        self.feed(now, peer, commit_index, effects)

    def is_overdue(self, now: float, peer: Peer) -> bool:
        """Whether an answer has been outstanding for too long."""
        if peer.waiting_since is None:
            return False
        settings = self._settings
        installing = peer.state is PeerState.INSTALL
        patience = settings.install_timeout_seconds if installing else settings.append_timeout_seconds
        return now - peer.waiting_since >= patience

    def tell_commit(self, peer: Peer, told_index: int, commit_index: int, effects: list[Effect]) -> None:
        """Informs a member that knows of commits only up to `told_index`, although it has more of these entries.

        The member restarted and does not know how far its log agrees: an append without entries tells it. If requests
        are unanswered, these tell it.
        """
        if (
            peer.state is PeerState.PIPELINE
            and peer.next_index == peer.match_index + 1
            and told_index < min(commit_index, peer.match_index)
        ):
            self._send_entries(peer, peer.match_index, commit_index, effects)

    def lacks_at_most(self, peer: Peer, max_bytes: int) -> bool:
        """Whether the entries that this member is not known to have take at most `max_bytes`."""
        first, last = peer.match_index + 1, self._log.last_index
        return first > last or (first >= self._log.first_index and self._log.extent(first, max_bytes) >= last)

    def _within_window(self, peer: Peer, first_index: int, end: int) -> int:
        """Index of the last entry of the next request; below the next one if the window is full."""
        last = min(end, self._log.extent(peer.next_index, self._settings.max_append_bytes))
        unanswered = peer.match_index + 1
        if peer.next_index > unanswered:
            # Entries that were deleted while they were unanswered are not counted.
            oldest = max(unanswered, first_index)
            last = min(last, self._log.extent(oldest, self._settings.max_inflight_bytes))
        return last

    def _send_entries(self, peer: Peer, last: int, commit_index: int, effects: list[Effect]) -> None:
        """Sends the entries from the next one to `last`; none if `last` is before it."""
        first = peer.next_index
        if first != self._batch_first or last != self._batch_last:
            prev_term = self._terms.term_of(first - 1)
            assert prev_term is not None, "an entry before the log's start is not sent"
            self._batch_first, self._batch_last = first, last
            self._batch = prev_term, self._terms.runs(first, last), self._history.between(first, last)
        prev_term, runs, memberships = self._batch
        request = AppendRequest(
            self._member, peer.member, self._term, peer.session, first - 1, prev_term, runs, commit_index, memberships
        )
        effects.append(Send(request))

    def _send_snapshot(self, now: float, peer: Peer, commit_index: int, effects: list[Effect]) -> None:
        """Sends a snapshot: the member lacks entries that the leader deleted."""
        snapshot_index = self._log.first_index - 1
        snapshot_term = self._terms.term_of(snapshot_index)
        assert snapshot_term is not None, "the entry before the start of the log has a term"
        peer.state, peer.waiting_since = PeerState.INSTALL, now
        membership = self._history.at(commit_index)
        request = InstallRequest(
            self._member, peer.member, self._term, peer.session, snapshot_index, snapshot_term, membership
        )
        effects.append(SendSnapshot(request))
