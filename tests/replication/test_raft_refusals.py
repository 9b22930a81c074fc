"""Messages that cannot be true: none of them ends a member, is saved, or outlives its author."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raft_lab import Group, Member, T

from tallystick.replication.bounds import INDEX_MAX, TERM_JUMP_MAX, TERM_MAX
from tallystick.replication.durable import HardState
from tallystick.replication.effects import Refused, RemovedFromGroup, Role, SaveVote
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
    TermRun,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

FAR = 5 + TERM_JUMP_MAX + 1


def of_term(term: int, source: int = 1) -> list[Message]:
    membership = MembershipEntry(-1, Membership.of([0, 1, 2]))
    return [
        PreVoteRequest(source, 0, term, 1, 0, -1),
        PreVoteReply(source, 0, term, 6, 1, True),
        VoteRequest(source, 0, term, 1, 0, -1),
        VoteRequest(source, 0, term, 1, 0, -1, transfer=True),
        VoteReply(source, 0, term, 1, True),
        AppendRequest(source, 0, term, 0, -1, -1, (), -1),
        AppendReply(source, 0, term, 0, 0, True, -1, -1),
        Heartbeat(source, 0, term, 1, 0.0, -1),
        HeartbeatReply(source, 0, term, 1, 0.0, -1),
        InstallRequest(source, 0, term, 0, 3, 1, membership),
        ReadReply(source, 0, term, 1, 3),
        TimeoutNow(source, 0, term),
        Removed(source, 0, term, 3),
    ]


@pytest.mark.parametrize("message", of_term(FAR), ids=lambda message: type(message).__name__)
def test_a_term_too_far_ahead_is_neither_taken_nor_answered(message: Message) -> None:
    member = Member(0, term=5)
    member.step(message)
    assert [type(effect) for effect in member.done] == [Refused]
    assert member.hard_state == HardState(5, None)


def test_a_term_just_near_enough_is_taken() -> None:
    member = Member(0, term=5)
    member.step(PreVoteReply(1, 0, FAR - 1, 6, 1, granted=False))
    assert member.hard_state == HardState(FAR - 1, None)


def test_one_member_alone_never_moves_a_term_too_far() -> None:
    member = Member(0, term=5)
    for term in (FAR, FAR + 7, TERM_MAX):
        for message in of_term(term):
            member.step(message)
    assert member.hard_state == HardState(5, None)


def test_a_member_follows_by_steps_where_so_many_are_far_ahead_that_they_decide() -> None:
    member, target = Member(0, term=5), 3 * TERM_JUMP_MAX
    for _ in range(4):
        for source in (1, 2):
            member.step(PreVoteReply(source, 0, target, 6, 1, granted=False))
    assert member.hard_state == HardState(target, None)


def test_a_member_that_never_took_part_believes_a_leader() -> None:
    member = Member(3, voters=[])
    member.step(PreVoteReply(0, 3, FAR, 6, 1, granted=False))
    assert member.hard_state == HardState(0, None)
    member.step(Heartbeat(0, 3, FAR, 1, 0.0, -1))
    assert member.hard_state == HardState(FAR, None)


def test_there_is_no_election_behind_the_last_term() -> None:
    member = Member(0, term=TERM_MAX)
    member.expire()
    assert [type(effect) for effect in member.done] == [Refused]
    member.step(Heartbeat(1, 0, TERM_MAX, 1, 0.0, -1))
    member.step(TimeoutNow(1, 0, TERM_MAX))
    assert member.effects(SaveVote) == []


def test_a_group_continues_beside_a_member_with_a_damaged_term() -> None:
    group = Group()
    leader = group.elect(0)
    group[2].hard_state = HardState(1 << 40, None)
    group[2].start()
    group.wait(10 * T)
    assert leader.raft.role is Role.LEADER and leader.raft.term == 1
    leader.propose()
    group.deliver()
    group.wait(1.0)
    assert leader.raft.commit_index == group[1].raft.commit_index == leader.log.last_index


@pytest.mark.parametrize(
    "changes",
    [
        {"match_index": 99},
        {"match_index": INDEX_MAX},
        {"match_index": -2},
    ],
)
def test_a_leader_counts_no_entry_that_it_does_not_have(changes: dict[str, int]) -> None:
    group = Group()
    leader = group.elect(0)
    group.cut(0, 1)
    group.cut(0, 2)
    leader.propose()
    peer = leader.raft.peers[1]
    before = leader.raft.commit_index
    fields = {"success": True, "prev_index": 0, "match_index": 0, "conflict_index": INDEX_MAX} | changes
    leader.step(AppendReply(1, 0, leader.raft.term, peer.session, peer.incarnation or 0, **fields))  # type: ignore[arg-type]
    assert leader.effects(Refused)
    assert leader.raft.commit_index == before


@pytest.mark.parametrize("prev_index", [INDEX_MAX, 99, -2])
def test_a_refusal_of_what_was_never_sent_changes_nothing(prev_index: int) -> None:
    group = Group()
    leader = group.elect(0)
    group.cut(0, 1)
    group.cut(0, 2)
    leader.propose()
    peer = leader.raft.peers[1]
    before = peer.next_index
    reply = AppendReply(1, 0, leader.raft.term, peer.session, peer.incarnation or 0, False, prev_index, -1)
    reply = replace(reply, conflict_index=INDEX_MAX)
    assert leader.step(reply) == []
    assert peer.next_index == before


@pytest.mark.parametrize(
    ("round_", "sent_at"), [(1 << 60, 0.0), (2, 1e300), (2, float("inf")), (2, float("nan")), (2, 1e9)]
)
def test_a_heartbeat_that_was_not_sent_is_not_answered(round_: int, sent_at: float) -> None:
    group = Group()
    leader = group.elect(0)
    group.wait(1.0)
    round_ = round_ if round_ > 2 else leader.raft.peers[1].acked_round + 1
    leader.step(HeartbeatReply(1, 0, leader.raft.term, round_, sent_at, 0))
    group.cut(0, 1)
    group.cut(0, 2)
    group.wait(3 * T)
    assert leader.raft.role is not Role.LEADER, "without a majority it steps down (L4)"


def test_an_answer_to_a_heartbeat_of_an_earlier_leadership_confirms_nothing() -> None:
    """It leads again in a newer term; a heartbeat of the first time comes late, and is answered with the newer term."""
    group = Group()
    leader = group.elect(0)
    group.wait(1.0)
    late = Heartbeat(0, 1, leader.raft.term, leader.raft.peers[1].acked_round + 40, leader.now, 0)
    group.elect(2)
    group.elect(0)
    group[1].step(late)
    answer = group[1].reply(HeartbeatReply)
    assert answer.term == leader.raft.term and answer.round == 0
    before = leader.raft.peers[1].acked_round
    leader.step(answer)
    older = HeartbeatReply(1, 0, leader.raft.term, late.round, late.sent_at, 0)  # as an older version answers
    assert leader.step(older) == []
    assert leader.raft.peers[1].acked_round == before


def test_the_word_that_a_member_was_removed_ends_with_the_next_word_of_its_leader() -> None:
    member = Member(0, term=5)
    member.step(Removed(1, 0, 5, INDEX_MAX))
    assert member.effects(RemovedFromGroup) and member.raft.removed
    member.step(Heartbeat(2, 0, 5, 1, 0.0, -1))
    assert not member.raft.removed
    member.expire()
    assert member.raft.role is Role.PRE_CANDIDATE


def test_a_commit_index_that_was_no_true_one_ends_with_its_term() -> None:
    member = Member(0, terms=[1, 1, 1])
    member.step(Heartbeat(1, 0, 1, 1, 0.0, INDEX_MAX))
    member.step(AppendRequest(2, 0, 2, 0, 2, 1, (TermRun(2, 3),), -1))
    assert member.raft.commit_index == -1


def test_a_group_whose_members_all_got_a_removal_notice_elects_again() -> None:
    """By a stranger that claims to be a member that is down; no leader is left to correct it."""
    group = Group()
    group.elect(0)
    group.down = {2}
    for number in (0, 1):
        group[number].step(VoteRequest(2, number, 2, 1, 2, 9, transfer=True))
        group[number].step(Removed(2, number, 2, INDEX_MAX))
        assert group[number].raft.removed
    group.wait(30 * T)
    assert Role.LEADER in {group[number].raft.role for number in (0, 1)}


def test_no_member_loses_a_request_of_a_term_that_it_saw_begin() -> None:
    member = Member(0, terms=[1, 1])
    member.step(VoteRequest(2, 0, 2, 1, 1, 1, transfer=True))
    member.step(Heartbeat(2, 0, 2, 1, 0.0, -1))
    member.step(EntriesLost(2, 0, 2, 40))
    assert member.effects(Refused) and not member.raft.possible_loss
