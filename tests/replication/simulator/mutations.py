"""Bugs to be found: each is a small change of the core's text, as a programmer might make it with good intentions.

A simulation that finds nothing is worth what it would have found. So every mistake here has a test in which some run of
its profile, among a stated number of seeds, has to break an invariant. The text that a mutation replaces must be in the
core exactly once: a test fails if the core changes there, and then the mutation has to be adapted.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tallystick.replication.raft import Raft

_PACKAGE = "tallystick.replication"
_LOGIC = ("term_runs", "peers", "reads", "acknowledgements", "election", "sender", "leadership", "transfer", "raft")
"""Modules of the core with behaviour, each after those that it imports. The values (messages, effects, membership) are
shared with the product: what one core sends another one reads."""


@dataclass(frozen=True, slots=True)
class Edit:
    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """`breaks`: the rules that it breaks. `profile`: the kind of run in which that shows soon; `seeds`: after how many
    runs of it at the latest."""

    name: str
    breaks: str
    profile: str
    edits: tuple[Edit, ...]
    seeds: int = 200


class MutationError(Exception):
    """The core does not have the text that a mutation replaces, or has it more than once."""


def planted(mutation: Mutation) -> type[Raft]:
    """The core with the mistake in it; the product's own modules are as before."""
    originals = {name: sys.modules.get(f"{_PACKAGE}.{name}") for name in _LOGIC}
    try:
        for name in _LOGIC:
            module = _load(name, [edit for edit in mutation.edits if edit.module == name])
        core: type[Raft] = module.Raft
        return core
    finally:
        for name, original in originals.items():
            if original is not None:
                sys.modules[f"{_PACKAGE}.{name}"] = original
            else:
                del sys.modules[f"{_PACKAGE}.{name}"]


def _load(name: str, edits: list[Edit]) -> ModuleType:
    """A fresh copy of a module, changed; importers that are loaded after it get this copy."""
    full_name = f"{_PACKAGE}.{name}"
    found = importlib.util.find_spec(full_name)
    assert found is not None and found.origin is not None
    source = Path(found.origin).read_text()
    for edit in edits:
        if source.count(edit.old) != 1:
            raise MutationError(f"{name}.py has {source.count(edit.old)} times: {edit.old}")
        source = source.replace(edit.old, edit.new)
    module = sys.modules[full_name] = ModuleType(full_name)
    exec(compile(source, f"{found.origin} with a mistake", "exec"), module.__dict__)
    return module


MUTATIONS = (
    # -- votes -----------------------------------------------------------------
    Mutation(
        "the vote is forgotten with the role",
        "S1",
        "storm",
        (
            Edit(
                "raft",
                "        leading, self._leading, self._campaign = self._leading, None, None\n",
                "        leading, self._leading, self._campaign = self._leading, None, None\n"
                "        self.voted_for = None\n",
            ),
        ),
    ),
    Mutation(
        "term and vote are saved after what depends on them was sent",
        "D1",
        "storm",
        (
            Edit(
                "raft",
                "            self._HANDLERS[type(message)](self, now, message, effects)\n",
                "            self._HANDLERS[type(message)](self, now, message, effects)\n"
                "            effects.sort(key=lambda effect: isinstance(effect, SaveVote))\n",
            ),
        ),
    ),
    Mutation(
        "answers to an earlier election are counted",
        "S3",
        "late",
        (
            Edit(
                "raft",
                "        if not self._is_current(now, reply.term, effects) or campaign is None:\n",
                "        if campaign is None:\n",
            ),
            Edit("raft", "        if campaign.pre or reply.campaign != campaign.number:", "        if campaign.pre:"),
        ),
    ),
    Mutation(
        "a voter that answers twice counts twice",
        "S3",
        "late",
        (
            Edit(
                "election",
                "        (self._granted if granted else self._refused).add(voter)\n",
                "        again = voter in self._granted\n"
                "        (self._granted if granted else self._refused).add(-1 - voter if again else voter)\n",
            ),
            Edit(
                "election",
                "agreed = self._granted & membership.voters\n",
                "agreed = {each for each in self._granted if each < 0 or each in membership.voters}\n",
            ),
        ),
    ),
    Mutation(
        "half of the votes are enough",
        "S10",
        "storm",
        (
            Edit(
                "election",
                "len(agreed - self._may_have_lost) >= membership.quorum",
                "len(agreed - self._may_have_lost) >= (len(membership.voters) + 1) // 2",
            ),
        ),
    ),
    Mutation(
        "the longer log wins, whatever its last term",
        "S1",
        "network",
        (
            Edit(
                "raft",
                "(request.last_term, request.last_index) >= (self._terms.last_term, self._terms.last_index)",
                "request.last_index >= self._terms.last_index",
            ),
        ),
    ),
    Mutation(
        "voters do not stick to a leader that they hear",
        "L5, R3",
        "leases",
        (
            Edit(
                "raft",
                "return self._leading is not None or now - self._heard_at < self._settings.election_timeout_seconds",
                "return self._leading is not None",
            ),
        ),
    ),
    Mutation(
        "who has waited long enough stands, without asking whether that is of use",
        "L3",
        "steady",
        (Edit("raft", "            self._ask_whether_to_stand(effects)\n", "            self._stand(now, effects)\n"),),
    ),
    # -- commit ----------------------------------------------------------------
    Mutation(
        "entries of earlier terms are committed by counting",
        "S10",
        "storm",
        (
            Edit(
                "raft", "if index <= self.commit_index or index < leading.term_start:", "if index <= self.commit_index:"
            ),
        ),
    ),
    Mutation(
        "a follower answers before its disk has the entries",
        "D2",
        "storm",
        (Edit("raft", "        if reply.match_index <= self.synced_index:\n", "        if reply.match_index >= 0:\n"),),
    ),
    Mutation(
        "a leader counts itself before its own disk has the entries",
        "D3",
        "storm",
        (
            Edit(
                "raft",
                "index = leading.committed_index(self.synced_index)",
                "index = leading.committed_index(self._terms.last_index)",
            ),
        ),
    ),
    Mutation(
        "half of the voters are a majority",
        "S10",
        "storm",
        (Edit("leadership", "self.quorum = membership.quorum", "self.quorum = (len(membership.voters) + 1) // 2"),),
    ),
    Mutation(
        "learners are counted",
        "M5",
        "membership",
        (
            Edit(
                "leadership",
                "self.voters = tuple(peer for peer in self.peers.values() if peer.voter)",
                "self.voters = tuple(self.peers.values())",
            ),
        ),
    ),
    Mutation(
        "a leader that removed itself counts itself",
        "M7",
        "membership",
        (Edit("leadership", "self.counts_itself = self.member in membership.voters", "self.counts_itself = True"),),
    ),
    # -- what leader and follower tell each other ----------------------------------
    Mutation(
        "success tells the follower's own last index",
        "S8",
        "disks",
        (
            Edit(
                "raft",
                "self._acknowledge(self._append_reply(request, prev_index, last), effects)",
                "self._acknowledge(self._append_reply(request, prev_index, self._terms.last_index), effects)",
            ),
        ),
    ),
    Mutation(
        "a follower commits what it has, verified or not",
        "S9",
        "storm",
        (
            Edit(
                "raft",
                "index = min(self._leader_commit, self._verified_index, self.synced_index)",
                "index = min(self._leader_commit, self.synced_index)",
            ),
        ),
    ),
    Mutation(
        "what agreed with one leader's log is held to agree with the next one's",
        "S9",
        "network",
        (
            Edit(
                "raft",
                "        self._acknowledgements.clear()\n        self._verified_index = -1\n\n    def _become",
                "        self._acknowledgements.clear()\n\n    def _become",
            ),
        ),
    ),
    Mutation(
        "every append cuts what lies behind it",
        "S6",
        "storm",
        (
            Edit(
                "raft",
                "        if agreed < last:\n            if not self._fits_behind",
                "        if agreed >= last and max(last, self.commit_index) < terms.last_index:\n"
                "            self._cut(max(last, self.commit_index), effects)\n"
                "        if agreed < last:\n            if not self._fits_behind",
            ),
        ),
    ),
    Mutation(
        "a log that was cut is held to be as durable as before",
        "D2, D4",
        "storm",
        (
            Edit(
                "raft",
                "        effects.append(Truncate(last_kept))\n        self._terms.truncate(last_kept)\n"
                "        self.synced_index = min(self.synced_index, last_kept)\n",
                "        effects.append(Truncate(last_kept))\n        self._terms.truncate(last_kept)\n",
            ),
        ),
    ),
    Mutation(
        "a new leader appends no entry of its term",
        "S11",
        "storm",
        (Edit("raft", "        effects.append(AppendOwn(term_start, self.term, EntryKind.NO_OP))\n", ""),),
        seeds=20,
    ),
    # -- membership ------------------------------------------------------------
    Mutation(
        "a change before anything of the own term is committed",
        "M3",
        "membership",
        (
            Edit(
                "raft",
                '        if not leading.ready:\n            return "the leader has not committed',
                '        if False:\n            return "the leader has not committed',
            ),
        ),
    ),
    Mutation(
        "a change on top of one that is not committed",
        "M2",
        "membership",
        (
            Edit(
                "raft",
                "        if self.membership_index > self.commit_index:\n            return",
                "        if False:\n            return",
            ),
        ),
    ),
    Mutation(
        "a membership that was cut off stays in force",
        "M1",
        "membership",
        (Edit("raft", "        self._history.truncate(last_kept)\n", ""),),
    ),
    Mutation(
        "one that may not stand does not ask whether it is a member still",
        "M6",
        "membership",
        (Edit("raft", "            self._ask_whether_still_a_member(effects)\n", ""),),
    ),
    Mutation(
        "a snapshot is sent with the newest membership, committed or not",
        "M1, L11",
        "behind",
        (Edit("sender", "membership = self._history.at(commit_index)", "membership = self._history.latest"),),
    ),
    # -- possible losses -------------------------------------------------------
    Mutation(
        "a member that lost acknowledged entries carries on as if nothing had happened",
        "D8, D9, S14",
        "disks",
        (
            Edit(
                "raft",
                "        self.possible_loss = must_catch_up\n",
                "        self.possible_loss = PossibleLoss.NONE\n",
            ),
        ),
    ),
    Mutation(
        "a member that refuses what it acknowledged is taken for slow",
        "D8",
        "steady",
        (Edit("raft", "            elif peer.contradicts(reply):\n", "            elif False:\n"),),
    ),
    Mutation(
        "votes of members that may have lost them count",
        "D9, S14",
        "loss",
        (Edit("election", "        if possible_loss:\n            self._may_have_lost.add(voter)\n", ""),),
    ),
    Mutation(
        "entries that a member that may have lost data acknowledges count",
        "D9, S14",
        "loss",
        (Edit("peers", "return -1 if self.possible_loss else self.match_index", "return self.match_index"),),
    ),
    Mutation(
        "a member that may have lost data is readmitted before it has everything again",
        "D9, S14",
        "loss",
        (
            Edit(
                "raft",
                "        if min(self._verified_index, self.synced_index) >= readmit_index:\n",
                "        if readmit_index >= 0:\n",
            ),
        ),
    ),
    Mutation(
        "a leader readmits without asking whether it still leads",
        "D9, S14",
        "loss",
        (
            Edit(
                "raft",
                "        elif peer.readmit_index is None and leading.confirmed_without(peer, peer.readmit_round):\n",
                "        elif peer.readmit_index is None:\n",
            ),
        ),
    ),
    # -- room ------------------------------------------------------------------
    Mutation(
        "a member with little room does not stand",
        "L10",
        "room",
        (
            Edit(
                "raft",
                "            and self.disk_state.can_write  # L10\n",
                "            and self.disk_state is DiskState.OK\n",
            ),
        ),
    ),
    Mutation(
        "a leader with little room steps down, even if no member has more",
        "L10",
        "room",
        (
            Edit(
                "raft",
                "        best = leading.best_successor(now - self._settings.election_timeout_seconds)\n        if (\n",
                "        self._become_follower(now, None, effects)\n        best = None\n        if (\n",
            ),
        ),
    ),
    Mutation(
        "leadership is handed to a member that has as little room",
        "L10",
        "room",
        (Edit("raft", "            and best.disk.rank > self.disk_state.rank\n", ""),),
    ),
    Mutation(
        "a group with little room takes nothing at all",
        "L10",
        "room",
        (
            Edit(
                "raft",
                "and self.disk_state.can_write and not self.halted",
                "and self.disk_state is DiskState.OK and not self.halted",
            ),
        ),
    ),
    Mutation(
        "a full follower acknowledges what it could not write",
        "L10, D2",
        "disks",
        (Edit("raft", "                last = agreed  # L10: the reply says why\n", "                pass\n"),),
    ),
    # -- reads -----------------------------------------------------------------
    Mutation(
        "a heartbeat of an earlier term is answered as if it were of this one",
        "S3, R1",
        "late",
        (
            Edit("raft", "heartbeat.round if heartbeat.term == self.term else 0,", "heartbeat.round,"),
            Edit("raft", " or reply.sent_at < leading.began_at:", ":"),
        ),
    ),
    Mutation(
        "a leader reads without asking whether it still leads",
        "R1",
        "reads",
        (Edit("raft", "        elif self._settings.lease_reads and leading", "        elif leading.ready or leading"),),
    ),
    Mutation(
        "a leader reads before it is ready",
        "R1, S11",
        "storm",
        (
            Edit(
                "raft",
                "        if not leading.ready:\n            leading.reads.add_early",
                "        if False:\n            leading.reads.add_early",
            ),
        ),
    ),
    Mutation(
        "a follower reads by what it knows to be committed",
        "R2",
        "reads",
        (
            Edit(
                "raft",
                "            effects.append(Send(ReadRequest(self.id, self.leader, self.term, token)))\n",
                "            effects.append(ReadReady(token, self.commit_index))\n",
            ),
        ),
    ),
    Mutation(
        "the lease is kept while leadership is handed over",
        "R3, T5",
        "leases",
        (Edit("raft", "        leading.lease_void = True\n", ""),),
    ),
    Mutation(
        "the lease counts from the answer, not from the question",
        "R3",
        "leases",
        (
            Edit(
                "raft",
                "peer.acked_round, peer.acked_at = reply.round, reply.sent_at",
                "peer.acked_round, peer.acked_at = reply.round, now",
            ),
        ),
    ),
)
