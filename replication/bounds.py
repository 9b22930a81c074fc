"""What a message between members can say at all, and how far its term may be from the own one.

Terms and indexes are 64 bits wide on the wire and on the disk. A group never gets near that: a billion terms a second
would take a century. So a number above `TERM_MAX` or `INDEX_MAX` is a damaged or a forged one, and it must be refused
before it is saved: a term that is durable cannot be taken back (S1), and behind the largest one there is no election.

Far below that, `TERM_JUMP_MAX` says how much a term may rise by one message. With the pre-vote a term rises only when a
majority agreed to an election. A member that was away missed at most one election for each election timeout, a second
or so: 2**20 of them are twelve days in which every second a leader was elected and lost again. A message that says more
is not believed. `FarTerms` is for the member that was away for longer than that all the same.
"""

from __future__ import annotations

from collections.abc import Set
from math import isfinite

from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.messages import (
    AppendReply,
    AppendRequest,
    Forgotten,
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
"""See the module's head. A stranger that may send a message each millisecond needs 139 years from 0 to `TERM_MAX`."""


def impossible(message: Message) -> str | None:
    """Why no member can have sent this, whatever its state; None: it can be. Pure; sizes are the codec's business."""
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
        case InstallRequest(base_index=base, base_term=base_term, membership=entry):
            return _indexes(base) or _log_term(base_term, term) or _membership(entry)
        case ReadReply(index=index):
            return _indexes(-1 if index is None else index)
        case Removed(commit_index=index) | Forgotten(match_index=index):
            return _indexes(index)
    return None


def _impossible_append(request: AppendRequest) -> str | None:
    reason = _indexes(request.prev_index, request.commit_index) or _log_term(request.prev_term, request.term)
    if reason is not None:
        return reason
    last_term, last_index = request.prev_term, request.prev_index
    for run in request.runs:
        if not last_term <= run.term <= request.term or not last_index < run.last_index <= INDEX_MAX:
            return f"a run of term {run.term} up to {run.last_index} behind term {last_term} up to {last_index}"
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
    """An index, or -1 for "none"."""
    for index in indexes:
        if not -1 <= index <= INDEX_MAX:
            return f"index {index}"
    return None


def _log_term(term: int, current: int) -> str | None:
    """A term of an entry, -1 for "no entry": never above the term in which it is told."""
    return None if -1 <= term <= current else f"an entry of term {term} in term {current}"


def _round(round_: int, sent_at: float) -> str | None:
    return None if round_ >= 0 and isfinite(sent_at) else f"round {round_} sent at {sent_at}"


def _membership(entry: MembershipEntry) -> str | None:
    if entry.index > INDEX_MAX or entry.index < -1:
        return f"a membership at {entry.index}"
    return None if entry.membership.voters else "a membership without voters"


class FarTerms:
    """Members whose last word was a term more than `TERM_JUMP_MAX` above the own one.

    One of them alone is damaged, or is no member. When so many voters say it that they decide elections, the group has
    really gone on without this member, which then follows by steps of `TERM_JUMP_MAX`: to raise the own term is always
    safe, and even a group of liars cannot bring it to its end.
    """

    def __init__(self) -> None:
        self._said: set[int] = set()

    def near(self, member: int) -> None:
        """It said a term that can be."""
        self._said.discard(member)

    def said(self, member: int, voters: Set[int], own: int) -> bool:
        """It said a term too far; whether enough others did. They begin again to be counted then."""
        self._said.add(member)
        agreed = self._said & (voters - {own})
        if len(agreed) < max(2, Membership.of(voters).quorum):
            return False
        self._said.clear()
        return True
