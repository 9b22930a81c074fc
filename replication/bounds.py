"""Bounds of the numbers in messages between members, and of the distance between a message's term and the own term.

Terms and indexes have 64 bits on the wire and on the disk. A group never reaches such values: at a billion terms per
second it would take a century. A number above `TERM_MAX` or `INDEX_MAX` is therefore damaged or forged. A member must
refuse it before it saves it: it cannot take back a durable term (S1), and after the largest term there is no election.

`TERM_JUMP_MAX` is far smaller. It limits how much one message can raise the term. With the pre-vote, a term rises only
when a majority agreed to an election. A member that was absent missed at most one election per election timeout (about
a second): 2**20 elections are twelve days in which a leader was elected and lost every second. A member does not
believe a message with a larger step. `FarTerms` handles a member that was really absent for longer.
"""

from __future__ import annotations

from collections.abc import Set
from math import isfinite

from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.messages import (
    AppendReply,
    AppendRequest,
    EntriesLost,
    Heartbeat,
    HeartbeatReply,
    InstallRequest,
    Message,
    PreVoteReply,
    PreVoteRequest,
    ReadReply,
    Removed,
    VoteRequest,
)

TERM_MAX = 1 << 62
INDEX_MAX = 1 << 62
TERM_JUMP_MAX = 1 << 20
"""See the module's docstring. A sender of one message per millisecond needs 139 years to go from 0 to `TERM_MAX`."""


def impossible(message: Message) -> str | None:
    """Why no member in any state can have sent this message; None if one can. Pure. The codec checks sizes."""
    if message.source < 0 or message.target < 0:
        return f"members {message.source} and {message.target}"
    term = message.asked_term if isinstance(message, PreVoteRequest) else message.term
    if not 0 <= term <= TERM_MAX:
        return f"term {term}"
    match message:
        case AppendRequest():
            return _impossible_append(message)
        case AppendReply(prev_index=prev, match_index=match, conflict_index=conflict, conflict_term=conflict_term):
            return _indexes(prev, match, conflict) or _log_term(-1 if conflict_term is None else conflict_term, term)
        case Heartbeat(commit_index=commit, readmit_index=readmit, round=round_, sent_at=sent_at):
            return _indexes(commit, -1 if readmit is None else readmit) or _round(round_, sent_at)
        case HeartbeatReply(commit_index=commit, round=round_, sent_at=sent_at):
            return _indexes(commit) or _round(round_, sent_at)
        case VoteRequest(last_index=last, last_term=last_term) | PreVoteRequest(last_index=last, last_term=last_term):
            return _indexes(last) or _log_term(last_term, term)
        case PreVoteReply(asked_term=asked):
            return None if 0 <= asked <= TERM_MAX else f"asked term {asked}"
        case InstallRequest(snapshot_index=index, snapshot_term=snapshot_term, membership=entry):
            return _indexes(index) or _log_term(snapshot_term, term) or _membership(entry)
        case ReadReply(index=index):
            return _indexes(-1 if index is None else index)
        case Removed(commit_index=index) | EntriesLost(match_index=index):
            return _indexes(index)
    return None


def _impossible_append(request: AppendRequest) -> str | None:
    reason = _indexes(request.prev_index, request.commit_index) or _log_term(request.prev_term, request.term)
    if reason is not None:
        return reason
    last_term, last_index = request.prev_term, request.prev_index
    for run in request.runs:
        if not last_term <= run.term <= request.term or not last_index < run.last_index <= INDEX_MAX:
            return f"a run of term {run.term} up to {run.last_index} after term {last_term} up to {last_index}"
        last_term, last_index = run
    before = request.prev_index
    for entry in request.memberships:
        if not before < entry.index <= last_index:
            return f"a membership at {entry.index}, entries {request.prev_index + 1} to {last_index}"
        if reason := _membership(entry):
            return reason
        before = entry.index
    return None


def _indexes(*indexes: int) -> str | None:
    """Why an index is out of range. -1 means "no entry" and is in range."""
    for index in indexes:
        if not -1 <= index <= INDEX_MAX:
            return f"index {index}"
    return None


def _log_term(term: int, current: int) -> str | None:
    """Why a term of an entry is impossible: it is above the message's term. -1 means "no entry" and is possible."""
    return None if -1 <= term <= current else f"an entry of term {term} in term {current}"


def _round(round_: int, sent_at: float) -> str | None:
    return None if round_ >= 0 and isfinite(sent_at) else f"round {round_} sent at {sent_at}"


def _membership(entry: MembershipEntry) -> str | None:
    if entry.index > INDEX_MAX or entry.index < -1:
        return f"a membership at {entry.index}"
    return None if entry.membership.voters else "a membership without voters"


class FarTerms:
    """Members whose last message had a term more than `TERM_JUMP_MAX` above the own term.

    If only one member sends such a term, it is damaged or does not belong to the group. If so many voters send one that
    they decide elections, the group really continued without this member. The member then follows in steps of
    `TERM_JUMP_MAX`: raising the own term is always safe, and even a group of faulty members cannot exhaust the terms.
    """

    def __init__(self) -> None:
        self._said: set[int] = set()

    def near(self, member: int) -> None:
        """Notes that `member` sent a plausible term."""
        self._said.discard(member)

    def said(self, member: int, voters: Set[int], own: int) -> bool:
        """Notes that `member` sent a term that is too far. True if enough voters did; the count then starts again."""
        self._said.add(member)
        agreed = self._said & (voters - {own})
        if len(agreed) < max(2, Membership.of(voters).quorum):
            return False
        self._said.clear()
        return True
