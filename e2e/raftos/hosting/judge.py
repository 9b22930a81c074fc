"""Judges a group of raftos nodes, as the simulator's oracle judges our members: it sees all logs, votes and commits.

It checks the group after each callback of each process. A finding is recorded under the rule that it breaks, once per
history. The run continues, because raftos does not stop either.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from .post import Packet
from .raftos_group import NAME, RaftosGroup, RaftosMember

RULES = {
    "S1": "a member votes for two in one term",
    "S3, S10": "a member leads without a majority's votes of its term",
    "election safety": "two members lead one term",
    "leader completeness": "a leader lacks an entry that was committed",
    "S6, S7": "a member loses an entry that it knew to be committed",
    "S8, S10": "a leader commits what no majority has",
    "applied equality": "two members apply different entries at one index",
    "S12": "a member applies an entry twice",
    "D1": "a member's term goes back",
    "acknowledged": "an acknowledged value is gone in the end",
    "S11, L": "all is repaired, and for 30 seconds nothing is committed",
    "L7": "more than 2 000 packets in a second, each answer breeds an append: the run ends there",
    "no exception": "a handler raises, asyncio logs it",
}

MOST_PACKETS = 2_000
"""In a second. Heartbeats to four members and their answers are 40; four that catch up, an entry a trip, are 1 300."""

Entry = dict[str, Any]


class JudgedGroup(RaftosGroup):
    """`findings`: by rule, what was seen first."""

    def __init__(self, size: int, **options: Any) -> None:
        self.findings: dict[str, str] = {}
        self.committed_entries: dict[int, Entry] = {}
        """By index: the first that a leader committed there."""
        self._applied: dict[int, str] = {}
        self._applied_by: defaultdict[int, set[int]] = defaultdict(set)
        self._terms: dict[int, int] = {}
        self._packets: Counter[int] = Counter()
        self._known: dict[int, list[Entry]] = {}
        """By member: entries that it holds for committed, in its present life."""
        super().__init__(size, **options)

    @property
    def quorum(self) -> int:
        return self.size // 2 + 1

    def found(self, rule: str, what: str) -> None:
        assert rule in RULES
        self.findings.setdefault(rule, f"{self.queue.now:.3f}: {what}")

    # -- what members tell ---------------------------------------------------------------------------------------------

    def sends(self, member: RaftosMember, packet: Packet, content: dict[str, Any]) -> None:
        super().sends(member, packet, content)
        voted = self.votes.get((member.id, content["term"]), set())
        if len(voted) > 1:
            self.found("S1", f"{member.id} in term {content['term']}: {sorted(voted)}")
        self._packets[int(self.queue.now)] += 1
        if self._packets[int(self.queue.now)] > MOST_PACKETS:
            self.found("L7", f"{MOST_PACKETS} packets in a second")
            for each in self.members:
                each.end()

    def elected(self, member: RaftosMember) -> None:
        term = member.term
        if len(self.led[term]) > 1:
            self.found("election safety", f"term {term}: {sorted(self.led[term])}")
        voters = {each for (each, of), candidates in self.votes.items() if of == term and member.id in candidates}
        if len(voters) < self.quorum:
            self.found("S3, S10", f"{member.id} leads term {term} by {sorted(voters)} of {self.size}")
        entries = member.entries
        for index, entry in self.committed_entries.items():
            if entries[index - 1 : index] != [entry]:
                self.found("leader completeness", f"{member.id}, term {term}, lacks {index}: {entry}")

    def ran(self, member: RaftosMember) -> None:
        super().ran(member)
        if not member.running or member.node is None:
            self._known.pop(member.id, None)
            return
        term = member.term
        if term < self._terms.get(member.id, 0):
            self.found("D1", f"{member.id} goes from term {self._terms[member.id]} to {term}")
        self._terms[member.id] = term
        known, entries = self._known.setdefault(member.id, []), member.entries
        if entries[: len(known)] != known:
            self.found("S6, S7", f"{member.id} had committed {len(known)} entries, of {len(entries)} not all are these")
        if member.commit_index > len(known):
            if member.leads:
                self._commits(member, len(known) + 1)
            known[:] = entries[: member.commit_index]

    def _commits(self, leader: RaftosMember, first: int) -> None:
        for index in range(first, leader.commit_index + 1):
            entry = leader.entries[index - 1]
            holders = [each.id for each in self.members if each.entries[index - 1 : index] == [entry]]
            if len(holders) < self.quorum:
                self.found("S8, S10", f"{leader.id} commits {index}, which {holders} of {self.size} have")
            self.committed_entries.setdefault(index, entry)

    def applies(self, member: RaftosMember, index: int, command: dict[str, str]) -> None:
        value = command[NAME]
        if self._applied.setdefault(index, value) != value:
            self.found("applied equality", f"{member.id} applies {value} as {index}, others {self._applied[index]}")
        if index in self._applied_by[member.id]:
            self.found("S12", f"{member.id} applies {index} again")
        self._applied_by[member.id].add(index)

    def lost_power(self, member: RaftosMember) -> None:
        """Its state may be an older one now: to apply again what that lacks is right."""
        self._applied_by[member.id].clear()

    def fails(self, member: RaftosMember, error: BaseException) -> None:
        super().fails(member, error)
        self.found("no exception", f"{member.id}: {self.errors[-1]}")

    # -- the end -------------------------------------------------------------------------------------------------------

    @property
    def in_storm(self) -> bool:
        return "L7" in self.findings

    def judge_the_end(self, last_value: str) -> None:
        """All is repaired for long enough, and `last_value` was proposed since."""
        if last_value not in self.acknowledged:
            self.found("S11, L", f"terms {[each.term for each in self.members]}, leaders {sorted(self.leaders())}")
        gone = self.missing(self.acknowledged)
        if gone:
            self.found("acknowledged", f"{len(gone)} of {len(self.acknowledged)}: {', '.join(gone[:5])}")
