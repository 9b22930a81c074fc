"""The all-seeing judge of a run: told of every effect as it is carried out, it says when an invariant is broken.

It knows what no member knows: all disks, all votes ever made durable, what was ever committed. Each check looks only at
what the effect changed, so that its cost does not grow with the log:

election safety         a table of the leader of each term
log matching            a table of the entry before each (index, term): if all logs that have an entry agree on what it
                        is and on the term before it, they agree on everything before it, by induction
leader append-only      a truncation by a member that leads
leader completeness     up to where each term committed, looked up at each election; and the other way round, for an
                        entry that is committed when a leader of a higher term is there already
applied equality        one committed log, extended by leaders; every member that commits is compared with it
commit index            monotonic in the life of a process, at most the log's last index; applied up to it
term and vote           what is on the disk never goes back, and never changes within a term
acknowledged            what a client was told is in the committed log, which only grows; at the end of the run it is in
                        the log of every member
reads                   the index for a read is never below what was acknowledged when it was asked for

Loss needs several coincidences on top of a mistake, and would come seldom. So the rules on which the proof rests are
watched as well: what is said must be durable (D1, D2), a leader has its votes and a commit its quorum on the disks as
they are (S1, S10), a success reply tells the truth about the log (S8), a membership has no rival (M2, M3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tallystick.replication.effects import AppendOwn, Role
from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    InstallRequest,
    Message,
    PreVoteRequest,
    VoteReply,
    VoteRequest,
)
from tallystick.store.formats.ledger_format import EntryKind

from .disk import Entry

if TYPE_CHECKING:
    from .member import Member


class Violation(Exception):  # noqa: N818 (it is the finding of a run, not an error of the program)
    """An invariant does not hold; `invariant` is its name."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


class Oracle:
    """Judges one run. `members` is the simulation's own table, as it grows."""

    def __init__(self, members: dict[int, Member], bootstrap: Membership) -> None:
        self._members = members
        self._bootstrap = bootstrap
        self.membership = MembershipEntry(-1, bootstrap)
        """The newest that is committed."""
        self.leaders: dict[int, int] = {}
        self._ends_at_election: dict[int, tuple[int, int]] = {}
        self._grants: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self._identities: dict[tuple[int, int], tuple[Entry, int]] = {}
        self.committed: list[Entry] = []
        self._committed_by_term: dict[int, int] = {}
        self.acknowledged_index = -1
        self.acknowledged = 0

    # -- the disk ------------------------------------------------------------------------------------------------------

    def saved_vote(self, member: Member, term: int, voted_for: int | None) -> None:
        """Before it is saved."""
        disk = member.disk
        if term < disk.term:
            raise Violation("term monotonic on disk", f"{member} goes back from term {disk.term} to {term}")
        if term == disk.term and disk.voted_for is not None and voted_for != disk.voted_for:
            raise Violation(
                "one vote a term (S1)", f"{member} voted for {disk.voted_for} in term {term}, now for {voted_for}"
            )
        if voted_for is not None:
            self._grants[term, voted_for].add(member.id)

    def appended(self, member: Member, first: int, entries: Sequence[Entry]) -> None:
        """After they were put into the log."""
        previous = member.disk.term_of(first - 1)
        assert previous is not None
        for index, entry in enumerate(entries, first):
            known = self._identities.setdefault((index, entry.term), (entry, previous))
            if (known[0] is not entry and known[0] != entry) or known[1] != previous:
                raise Violation(
                    "log matching",
                    f"{member} has entry {index} of term {entry.term} as {entry} after term {previous}, "
                    f"elsewhere it is {known[0]} after term {known[1]}",
                )
            if entry.term < previous:
                raise Violation(
                    "terms never fall along a log", f"{member}, entry {index}: {entry.term} after {previous}"
                )
            previous = entry.term

    def truncated(self, member: Member, last_kept: int) -> None:
        """Before it is done."""
        if member.role is Role.LEADER:
            raise Violation("leader append-only", f"{member} cuts its log after {last_kept} in its own term")
        if last_kept < member.commit_index:
            raise Violation(
                "committed entries stay (S7)", f"{member} cuts after {last_kept}, committed {member.commit_index}"
            )

    def installed(self, member: Member, request: InstallRequest) -> None:
        """Before the snapshot takes the place of the log."""
        index = request.snapshot_index
        if index >= len(self.committed) or self.committed[index].term != request.snapshot_term:
            raise Violation("a snapshot is committed (L11)", f"{member}: ({index}, {request.snapshot_term})")
        if index < member.commit_index:
            raise Violation(
                "committed entries stay (S7)", f"{member}: snapshot {index}, committed {member.commit_index}"
            )
        entry = request.membership
        known = self.committed[entry.index].payload if 0 <= entry.index < len(self.committed) else None
        if (self._bootstrap if entry.index == -1 else known) != entry.membership:
            # It is not cut off with the log, as one that came by an entry is: nothing would take it back (M1).
            raise Violation("the membership of a snapshot is committed (L11)", f"{member}: {entry}")

    def readmitted(self, member: Member) -> None:
        """Before its doubts are over: what it had of the committed log, it has again (D9, S14)."""
        disk = member.disk
        for index, term in sorted(disk.lost):
            committed = index < len(self.committed) and self.committed[index].term == term
            if committed and index > disk.base_index and (index > member.promised_index or disk.term_of(index) != term):
                raise Violation("readmitted with all that it had (D9)", f"{member} lacks {index} of term {term}")

    def proposed_membership(self, member: Member, effect: AppendOwn) -> None:
        """Before the leader appends it."""
        before = member.disk.memberships[-1]
        if before.index > member.commit_index:
            raise Violation(
                "one membership change at a time (M2)", f"{member} appends {effect.index} on {before.index}"
            )
        if member.disk.term_of(member.commit_index) != effect.term:
            raise Violation(
                "membership change only after a commit in the own term (M3)",
                f"{member} appends {effect.index} in term {effect.term}, committed {member.commit_index}",
            )

    # -- the network ---------------------------------------------------------------------------------------------------

    def sent(self, member: Member, message: Message) -> None:
        disk = member.disk
        if message.source != member.id:
            raise Violation("messages name their sender", f"{member} sends {message}")
        if isinstance(message, PreVoteRequest):
            return
        if message.term > disk.term:
            raise Violation("term durable before it is told (D1)", f"{member} has term {disk.term}, sends {message}")
        if isinstance(message, Heartbeat | HeartbeatReply | AppendRequest):
            if message.commit_index > member.commit_index:
                raise Violation("commit before it is told", f"{member} committed {member.commit_index}: {message}")
        elif isinstance(message, AppendReply):
            if message.success:
                self._check_success(member, message)
        elif isinstance(message, VoteRequest):
            if (disk.term, disk.voted_for) != (message.term, member.id):
                raise Violation("own vote durable before votes are asked for (D1)", f"{member}: {message}")
            if (message.last_term, message.last_index) != (disk.last_term, disk.last_index):
                raise Violation("a candidate tells its own log's end (S1)", f"{member}: {message}")
        elif isinstance(message, VoteReply) and message.granted:
            self._check_vote(member, message)

    def _check_vote(self, member: Member, reply: VoteReply) -> None:
        if (member.disk.term, member.disk.voted_for) != (reply.term, reply.target):
            raise Violation("vote durable before it is given (D1)", f"{member} has {member.disk.voted_for}: {reply}")

    def _check_success(self, member: Member, reply: AppendReply) -> None:
        if reply.match_index > member.promised_index:
            raise Violation(
                "entries durable before success is told (D2)", f"{member} synced {member.promised_index}: {reply}"
            )
        leader = self._members.get(reply.target)
        if leader is None or leader.role is not Role.LEADER or leader.disk.term != reply.term:
            return
        theirs, ours = leader.disk.term_of(reply.match_index), member.disk.term_of(reply.match_index)
        if theirs != ours and theirs is not None and ours is not None:
            raise Violation(
                "success tells what matches (S8)", f"{member} has term {ours} there, {leader} {theirs}: {reply}"
            )

    # -- roles ---------------------------------------------------------------------------------------------------------

    def became_leader(self, member: Member, term: int) -> None:
        other = self.leaders.setdefault(term, member.id)
        if other != member.id:
            raise Violation("election safety", f"members {other} and {member.id} both lead term {term}")
        disk = member.disk
        membership = disk.membership
        granted = self._grants[term, member.id] & membership.voters
        if len(granted) < membership.quorum:
            raise Violation(
                "a leader has a majority's votes",
                f"{member} leads term {term} of {sorted(membership.voters)} by {sorted(granted)}",
            )
        end_term = disk.last_term
        self._ends_at_election[term] = disk.last_index, end_term
        for committed_in, index in self._committed_by_term.items():
            if committed_in < term and not self._log_holds(disk.last_index, end_term, index):
                raise Violation(
                    "leader completeness",
                    f"{member} leads term {term} up to {disk.last_index} without entry {index}, "
                    f"which was committed in term {committed_in}",
                )

    def _log_holds(self, last_index: int, last_term: int, index: int) -> bool:
        """Whether the log that ends in (last_index, last_term) holds the committed entry `index`."""
        term = self.committed[index].term
        while last_index > index and last_term > term:
            last_index, last_term = last_index - 1, self._identities[last_index, last_term][1]
        return last_index >= index and last_term == term

    # -- commit and reads ----------------------------------------------------------------------------------------------

    def committed_to(self, member: Member, index: int) -> None:
        """Before `member` takes it over."""
        disk = member.disk
        if index < member.commit_index:
            raise Violation("commit index monotonic", f"{member} goes from {member.commit_index} to {index}")
        if index == member.commit_index:
            return  # said once more
        if index > disk.last_index:
            raise Violation("commit index at most last index", f"{member} commits {index} of {disk.last_index}")
        if member.role is Role.LEADER:
            self._check_quorum(member, index)
        for each in range(member.commit_index + 1, index + 1):
            entry = disk.entry(each)
            if each < len(self.committed):
                known = self.committed[each]
                if known is not entry and known != entry:
                    raise Violation("applied equality", f"{member} applies {entry} as {each}, others applied {known}")
            elif member.role is not Role.LEADER:
                raise Violation("applied equality", f"{member} applies {each}, which no leader has committed")
            else:
                self.committed.append(entry)
                if entry.kind is EntryKind.MEMBERSHIP:
                    self.membership = MembershipEntry(each, entry.payload)
        if member.role is Role.LEADER:
            self._committed_in(member, index)

    def _check_quorum(self, leader: Member, index: int) -> None:
        disk = leader.disk
        term = disk.term_of(index)
        if term != disk.term:
            raise Violation(
                "a leader counts only entries of its term (S10)", f"{leader} commits {index} of term {term}"
            )
        membership = disk.membership
        holders = [voter for voter in membership.voters if self._members[voter].holds(index, term)]
        if len(holders) < membership.quorum:
            raise Violation(
                "a commit is durable on a majority (S10, D2, D3)",
                f"{leader} commits {index}, which of {sorted(membership.voters)} only {sorted(holders)} hold",
            )

    def _committed_in(self, leader: Member, index: int) -> None:
        term = leader.disk.term
        self._committed_by_term[term] = max(index, self._committed_by_term.get(term, -1))
        for later, end in self._ends_at_election.items():
            if later > term and not self._log_holds(*end, index):
                raise Violation(
                    "leader completeness",
                    f"{leader} commits {index} in term {term}, the leader of term {later} does not hold it",
                )

    def left(self, member: Member, commit_index: int) -> None:
        """`member` is notified of its removal, which all entries up to `commit_index` confirm (M6, M7)."""
        known = self.committed[: commit_index + 1]
        memberships = [entry.payload for entry in known if entry.kind is EntryKind.MEMBERSHIP]
        in_force = memberships[-1] if memberships else self._bootstrap
        if commit_index >= len(self.committed) or member.id in in_force.members:
            raise Violation("only who was removed leaves (M6)", f"{member} by {commit_index}: {in_force}")

    def became_ready(self, member: Member, term: int) -> None:
        if member.role is not Role.LEADER or member.disk.term_of(member.commit_index) != term:
            raise Violation("ready behind a commit of the own term (S11)", f"{member}, term {term}")

    def acknowledge(self, member: Member, index: int, entry: Entry) -> None:
        """A client is told that its entry is at `index` for good."""
        if index >= len(self.committed) or self.committed[index] != entry:
            raise Violation("acknowledged entries are committed", f"{member} acknowledges {index}: {entry}")
        self.acknowledged += 1
        self.acknowledged_index = max(self.acknowledged_index, index)

    def answered_read(self, member: Member, index: int, acknowledged_index: int) -> None:
        """`acknowledged_index`: as it was when the read was asked for."""
        if index < acknowledged_index:
            raise Violation(
                "linearizable reads (R1)", f"{member} reads at {index}, {acknowledged_index} was there before"
            )

    # -- the slow twin -------------------------------------------------------------------------------------------------

    def compare_logs(self) -> None:
        """At the end of a run, with everything: pairs of logs entry by entry, each with the committed log."""
        members = sorted(self._members.values(), key=lambda each: each.id)
        for member in members:
            disk = member.disk
            for index in range(disk.first_index, min(member.commit_index, disk.last_index) + 1):
                if disk.entries[index - disk.first_index] != self.committed[index]:
                    raise Violation("applied equality", f"{member} differs from what was committed at {index}")
        for place, member in enumerate(members):
            for other in members[place + 1 :]:
                _match(member, other)


def _match(one: Member, other: Member) -> None:
    first = max(one.disk.first_index, other.disk.first_index)
    last = min(one.disk.last_index, other.disk.last_index)
    ours = one.disk.entries[first - one.disk.first_index : max(0, last + 1 - one.disk.first_index)]
    theirs = other.disk.entries[first - other.disk.first_index : max(0, last + 1 - other.disk.first_index)]
    agreed = True
    for index, (mine, its) in enumerate(zip(ours, theirs, strict=True), first):
        if mine.term == its.term and (not agreed or mine != its):
            raise Violation("log matching", f"{one} and {other} at {index}: {mine} and {its}, equal before: {agreed}")
        agreed = agreed and mine == its
