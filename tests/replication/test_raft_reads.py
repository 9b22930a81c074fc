"""Reads of the core: answered only by one that is known to lead still (R1), a follower asks it (R2), leases (R3)."""

from __future__ import annotations

from dataclasses import replace

from raft_lab import HEARTBEAT, SETTINGS, Group, Member, T, leader_of

from tallystick.replication.durable import PossibleLoss
from tallystick.replication.effects import Effect, ReadFailed, ReadReady, Ready, Role
from tallystick.replication.membership import AddLearner
from tallystick.replication.messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    PreVoteReply,
    ReadReply,
    ReadRequest,
    VoteReply,
    VoteRequest,
)

LEASES = replace(SETTINGS, lease_reads=True, clock_drift=0.1)


def read(member: Member, token: int) -> list[Effect]:
    return member.call(member.raft.read, token)


def answer(member: Member, source: int, *, round_: int | None = None) -> list[Effect]:
    """Member `source` answers the newest round (or `round_`) of heartbeats that went to it."""
    sent = [m for m in member.sent if isinstance(m, Heartbeat) and m.target == source]
    beat = sent[-1] if round_ is None else next(m for m in sent if m.round == round_)
    return member.step(HeartbeatReply(source, 0, member.raft.term, beat.round, beat.sent_at, beat.commit_index))


def ready_leader(size: int = 3, **options: object) -> Member:
    member = leader_of(size, **options)
    for source in range(1, size):
        member.step(AppendReply(source, 0, member.raft.term, 0, 0, True, 0, member.log.last_index))
    assert member.raft.ready
    return member


# -- read index (R1) ---------------------------------------------------------------------------------------------------


def test_a_read_waits_for_a_majority_that_was_asked_after_it() -> None:
    member = ready_leader()
    before = [m for m in member.sent if isinstance(m, Heartbeat)][-1].round
    read(member, 1)
    assert member.effects(ReadReady) == []
    assert {m.target for m in member.messages(Heartbeat)} == {1, 2}, "it does not wait for the next heartbeat"
    answer(member, 1, round_=before)
    assert member.effects(ReadReady) == [], "answers to what was sent before say nothing"
    answer(member, 1)
    assert member.effects(ReadReady) == [ReadReady(1, member.raft.commit_index)]


def test_one_round_serves_all_that_came_while_the_last_was_out() -> None:
    member = ready_leader(5)
    read(member, 1)
    for token in (2, 3, 4):
        read(member, token)
        assert member.messages(Heartbeat) == []
    answer(member, 1)
    answer(member, 2)
    assert [ready.token for ready in member.effects(ReadReady)] == [1]
    assert len(member.messages(Heartbeat)) == 4, "the next round goes out at once"
    answer(member, 3)
    answer(member, 4)
    assert [ready.token for ready in member.effects(ReadReady)] == [2, 3, 4]


def test_a_lost_round_is_made_good_by_the_next_heartbeat() -> None:
    member = ready_leader()
    read(member, 1)
    member.tick(HEARTBEAT)
    answer(member, 2)
    assert member.effects(ReadReady) == [ReadReady(1, 0)]


def test_a_read_before_the_leader_is_ready_waits_until_it_is() -> None:
    member = leader_of()
    read(member, 1)
    answer(member, 1)
    answer(member, 2)
    assert not [effect for effect in member.history if isinstance(effect, ReadReady)]
    member.step(AppendReply(1, 0, 1, 0, 0, True, 0, 0))
    assert member.effects(Ready)
    answer(member, 1)
    assert member.effects(ReadReady) == [ReadReady(1, 0)]


def test_a_former_leader_answers_no_read() -> None:
    """Cut off, it does not know of the new leader's writes; its reads end when it notices."""
    group = Group()
    old = group.elect(0)
    group.isolate(0)
    group.expire(1)
    read(old, 7)
    group.wait(3 * T)
    assert not [effect for effect in old.history if isinstance(effect, ReadReady)]
    assert ReadFailed(7) in old.history


def test_a_member_that_leads_alone_answers_at_once() -> None:
    member = Member(0, voters=[0])
    member.tick()
    read(member, 1)
    assert member.effects(ReadReady) == [ReadReady(1, 0)]


def test_learners_and_members_with_a_possible_loss_confirm_nothing() -> None:
    member = leader_of(3, learners=[5])
    member.step(AppendReply(1, 0, 1, 0, 0, True, 0, 0))
    read(member, 1)
    beat = next(m for m in member.messages(Heartbeat) if m.target == 2)
    member.step(HeartbeatReply(5, 0, 1, beat.round, beat.sent_at, 0))
    member.step(HeartbeatReply(2, 0, 1, beat.round, beat.sent_at, 0, 99, PossibleLoss.LOG))
    assert member.effects(ReadReady) == []
    answer(member, 1)
    assert member.effects(ReadReady)


def test_reads_do_not_keep_a_leader_from_its_other_duties() -> None:
    """Rounds for reads follow each other without a pause; what is due with heartbeats is due all the same."""
    member = ready_leader()
    member.propose(3)
    again = 0
    for token in range(40):
        read(member, token)
        answer(member, 1)
        member.tick(HEARTBEAT / 2)
        again += len([m for m in member.messages(AppendRequest) if m.target == 2])
    assert again == 1, "member 2 does not answer: after a second it is sent the entries again"


# -- followers (R2) ----------------------------------------------------------------------------------------------------


def test_a_follower_asks_the_leader() -> None:
    group = Group()
    leader = group.elect(0)
    leader.propose(3)
    group.deliver()
    read(group[1], 5)
    group.deliver()
    assert ReadReady(5, leader.raft.commit_index) in group[1].history


def test_a_follower_without_a_leader_says_so() -> None:
    member = Member(0)
    assert read(member, 5) == [ReadFailed(5)]


def test_a_question_that_is_lost_ends() -> None:
    group = Group()
    group.elect(0)
    read(group[1], 5)
    group.network.clear()
    group.wait(T + HEARTBEAT)
    assert ReadFailed(5) in group[1].history


def test_an_answer_counts_once_and_only_if_asked_for() -> None:
    member = Member(0, term=3)
    member.step(Heartbeat(1, 0, 3, 1, 0.0, -1))
    read(member, 5)
    assert member.step(ReadReply(1, 0, 3, 6, 10)) == []
    assert member.step(ReadReply(1, 0, 3, 5, 10)) == [ReadReady(5, 10)]
    assert member.step(ReadReply(1, 0, 3, 5, 10)) == []


def test_who_does_not_lead_says_so() -> None:
    member = Member(0, term=3)
    member.step(ReadRequest(1, 0, 3, 5))
    assert member.reply(ReadReply).index is None


# -- leases (R3) -------------------------------------------------------------------------------------------------------


def leased() -> Member:
    member = ready_leader(settings=LEASES)
    member.tick(HEARTBEAT)
    answer(member, 1)
    return member


def at_once(member: Member, token: int) -> bool:
    read(member, token)
    return bool(member.effects(ReadReady))


def test_under_a_lease_a_read_is_answered_at_once() -> None:
    assert at_once(leased(), 1)


def test_a_lease_counts_from_when_the_round_was_sent_less_the_drift() -> None:
    member = leased()
    asked_at = member.now
    member.now = asked_at + T * 0.89
    assert at_once(member, 1)
    member.now = asked_at + T * 0.91
    assert not at_once(member, 2)


def test_there_is_no_lease_unless_it_was_asked_for() -> None:
    member = ready_leader()
    member.tick(HEARTBEAT)
    answer(member, 1)
    assert not at_once(member, 1)


def test_a_change_of_the_membership_voids_the_lease_until_the_next_round() -> None:
    member = leased()
    member.call(member.raft.change_membership, AddLearner(7))
    assert not at_once(member, 1)
    answer(member, 1)
    assert at_once(member, 2)


def test_a_transfer_ends_the_lease_for_the_rest_of_the_term() -> None:
    """The TimeoutNow may arrive when the transfer was given up long ago, and its vote request does not reach members
    with a leader."""
    member = leased()
    member.call(member.raft.transfer, 1)
    assert not at_once(member, 1)
    member.tick(T)
    answer(member, 1)
    answer(member, 2)
    assert member.raft.transfer_target is None
    assert member.raft.role is Role.LEADER
    member.tick(HEARTBEAT)
    answer(member, 1)
    assert not at_once(member, 2)


def test_a_member_that_starts_sticks_to_a_leader_that_it_may_have_had() -> None:
    """It may have answered a heartbeat, and the leader counts on it, just before it stopped."""
    for settings, votes in ((LEASES, False), (SETTINGS, True)):
        member = Member(0, settings=settings, now=50.0)
        member.step(VoteRequest(1, 0, 4, 7, 0, -1))
        assert bool(member.messages(VoteReply)) is votes
        assert not [m for m in member.sent if isinstance(m, PreVoteReply)]
        member.now += T
        member.step(VoteRequest(1, 0, 4, 7, 0, -1))
        assert member.reply(VoteReply).granted
