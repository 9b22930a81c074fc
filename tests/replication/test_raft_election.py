"""Elections of the core: who may be elected, once a term, and who is not disturbed by it."""

from __future__ import annotations

import pytest
from raft_lab import HEARTBEAT, Group, Member, T, at

from tallystick.replication.durable import HardState
from tallystick.replication.effects import AppendOwn, Effect, Refused, Role, RoleChanged, SaveVote, Send
from tallystick.replication.messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    PreVoteReply,
    PreVoteRequest,
    VoteReply,
    VoteRequest,
)


def vote_request(term: int, source: int = 1, last: tuple[int, int] = (0, -1), **more: bool) -> VoteRequest:
    return VoteRequest(source, 0, term, campaign=7, last_term=last[0], last_index=last[1], **more)


def pre_vote_request(asked_term: int, last: tuple[int, int] = (0, -1)) -> PreVoteRequest:
    return PreVoteRequest(1, 0, asked_term, campaign=7, last_term=last[0], last_index=last[1])


def heartbeat(term: int, source: int = 1, commit_index: int = -1) -> Heartbeat:
    return Heartbeat(source, 0, term, round=1, sent_at=0.0, commit_index=commit_index)


def candidate(size: int = 3, **options: object) -> Member:
    """Member 0, whose pre-vote was agreed to, and who now asks for votes."""
    member = Member(0, voters=range(size), **options)  # type: ignore[arg-type]
    member.expire()
    for request in member.messages(PreVoteRequest):
        if member.raft.role is Role.PRE_CANDIDATE:
            member.step(PreVoteReply(request.target, 0, member.raft.term, request.asked_term, request.campaign, True))
    assert member.raft.role is Role.CANDIDATE
    return member


def grant(member: Member, source: int, **changes: object) -> list[Effect]:
    (request,) = [m for m in member.sent if isinstance(m, VoteRequest) and m.target == source]
    return member.step(at(VoteReply(source, 0, request.term, request.campaign, True), **changes))


# -- one vote a term (S1, D1) ------------------------------------------------------------------------------------------


def test_a_vote_is_durable_before_it_is_granted() -> None:
    member = Member(0)
    effects = member.step(vote_request(term=3))
    saved = effects.index(SaveVote(3, 1))
    assert saved < effects.index(Send(member.reply(VoteReply)))
    assert member.reply(VoteReply).granted


def test_a_candidates_own_vote_is_durable_before_it_requests_votes() -> None:
    member = candidate()
    kinds = [type(effect) for effect in member.done]
    assert kinds.index(SaveVote) < kinds.index(Send)
    assert member.hard_state == HardState(1, 0)


def test_there_is_one_vote_a_term() -> None:
    member = Member(0)
    member.step(vote_request(term=3, source=1))
    member.step(vote_request(term=3, source=2))
    assert not member.reply(VoteReply).granted
    member.step(vote_request(term=3, source=1))
    assert member.reply(VoteReply).granted, "asked again, it says the same again"
    assert member.effects(SaveVote) == [], "and has nothing new to save"


def test_a_restart_between_the_vote_and_its_answer_gives_no_second_vote() -> None:
    member = Member(0)
    member.step(vote_request(term=3, source=1))
    member.sent.clear()
    member.crash()
    member.step(vote_request(term=3, source=2))
    assert not member.reply(VoteReply).granted
    member.step(vote_request(term=3, source=1))
    assert member.reply(VoteReply).granted


def test_a_candidate_that_falls_back_keeps_its_vote() -> None:
    member = candidate()
    member.step(heartbeat(term=1))
    assert member.raft.role is Role.FOLLOWER
    assert member.raft.voted_for == 0
    member.now += 3 * T
    member.step(vote_request(term=1, source=2))
    assert not member.reply(VoteReply).granted


def test_a_log_whose_term_was_never_saved_gives_no_vote_in_it() -> None:
    member = Member(0, terms=[1, 4], term=2)
    assert member.raft.term == 4
    member.step(vote_request(term=4, last=(4, 9)))
    assert not member.reply(VoteReply).granted


@pytest.mark.parametrize(
    ("last", "granted"),
    [((3, 0), True), ((2, 2), True), ((2, 9), True), ((2, 1), False), ((1, 99), False)],
)
def test_only_who_lacks_nothing_is_voted_for(last: tuple[int, int], granted: bool) -> None:
    """Compared are term and index of the last entry in the log, in this order; the terms of the members are not."""
    member = Member(0, terms=[1, 2, 2], term=2)
    member.step(vote_request(term=9, last=last))
    assert member.reply(VoteReply).granted is granted
    assert member.raft.term == 9
    assert member.raft.voted_for == (1 if granted else None)


def test_a_candidate_that_returns_with_less_does_not_get_the_vote_again() -> None:
    """Its disk was emptied since; the vote was for the log that it had."""
    member = Member(0, terms=[1, 2, 2])
    member.step(vote_request(term=5, last=(2, 2)))
    assert member.reply(VoteReply).granted
    member.step(vote_request(term=5, last=(0, -1)))
    assert not member.reply(VoteReply).granted


def test_raising_the_term_and_voting_is_one_record() -> None:
    member = Member(0, voted_for=2, term=5)
    member.step(vote_request(term=6))
    assert member.effects(SaveVote) == [SaveVote(6, 1)]


# -- answers that do not count (S2, S3) --------------------------------------------------------------------------------


def test_a_vote_of_an_older_campaign_does_not_count() -> None:
    member = candidate()
    grant(member, 1, campaign=12345)
    assert member.raft.role is Role.CANDIDATE
    grant(member, 1)
    assert member.raft.role is Role.LEADER


def test_a_vote_of_an_older_term_does_not_count() -> None:
    member = candidate(term=4)
    grant(member, 1, term=4)
    assert member.raft.role is Role.CANDIDATE


def test_votes_are_counted_by_who_gave_them() -> None:
    member = candidate(size=5)
    for _ in range(5):
        grant(member, 1)
    assert member.raft.role is Role.CANDIDATE
    grant(member, 2)
    assert member.raft.role is Role.LEADER


def test_an_agreement_to_another_pre_vote_does_not_count() -> None:
    member = Member(0)
    member.expire()
    (request, _) = member.messages(PreVoteRequest)
    agreed = PreVoteReply(1, 0, 0, request.asked_term, request.campaign, True)
    member.step(at(agreed, campaign=99))
    member.step(at(agreed, asked_term=7))
    member.step(at(agreed, granted=False))
    assert member.raft.role is Role.PRE_CANDIDATE


def test_a_late_agreement_to_a_pre_vote_is_no_vote() -> None:
    member = candidate(size=5)
    (request, *_) = [m for m in member.sent if isinstance(m, PreVoteRequest)]
    member.step(PreVoteReply(3, 0, 0, request.asked_term, request.campaign, True))
    member.step(PreVoteReply(4, 0, 0, request.asked_term, request.campaign, True))
    assert member.raft.role is Role.CANDIDATE


@pytest.mark.parametrize(
    "message",
    [
        heartbeat(term=8),
        AppendRequest(1, 0, 8, 0, -1, -1, (), -1),
        vote_request(term=8),
        VoteReply(1, 0, 8, 7, False),
        PreVoteReply(1, 0, 8, 9, 7, False),
        AppendReply(1, 0, 8, 0, 0, False, 0, -1),
        HeartbeatReply(1, 0, 8, 1, 0.0, -1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_newer_term_in_any_message_is_saved_and_followed(message: object) -> None:
    member = candidate()
    member.step(message)  # type: ignore[arg-type]
    assert member.raft.role is Role.FOLLOWER
    assert member.hard_state.term == member.raft.term == 8


def test_requests_of_an_older_term_are_answered_with_the_newer_one() -> None:
    member = Member(0, term=5)
    for request, reply in (
        (heartbeat(term=4), HeartbeatReply),
        (AppendRequest(1, 0, 4, 0, -1, -1, (), -1), AppendReply),
        (vote_request(term=4), VoteReply),
    ):
        member.step(request)
        assert member.reply(reply).term == 5  # type: ignore[attr-defined]
    assert member.raft.leader is None
    assert member.hard_state_is_kept


def test_of_two_leaders_of_one_term_the_second_is_refused() -> None:
    member = Member(0, term=5)
    member.step(heartbeat(term=5, source=1))
    member.step(heartbeat(term=5, source=2))
    assert member.effects(Refused) and not member.effects(Send)
    assert member.raft.leader == 1


def test_a_leader_refuses_another_one_of_its_term() -> None:
    member = candidate()
    grant(member, 1)
    member.step(AppendRequest(2, 0, 1, 0, -1, -1, (), -1))
    assert member.effects(Refused) and not member.effects(Send)
    assert member.raft.role is Role.LEADER


# -- sizes (L8) --------------------------------------------------------------------------------------------------------


def test_a_group_of_one_elects_itself_at_once() -> None:
    member = Member(0, voters=[0])
    member.tick()
    assert member.raft.role is Role.LEADER
    assert member.raft.ready, "and has committed its no-op alone"
    assert member.raft.commit_index == 0


@pytest.mark.parametrize(("size", "down"), [(2, 0), (3, 1), (4, 1), (5, 2), (6, 2)])
def test_a_majority_elects_and_commits(size: int, down: int) -> None:
    group = Group(size)
    group.down = set(range(size - down, size))
    leader = group.elect(0)
    leader.propose(3)
    group.deliver()
    assert leader.raft.commit_index == leader.log.last_index == 4


@pytest.mark.parametrize(("size", "down"), [(2, 1), (3, 2), (4, 2), (5, 3), (6, 3)])
def test_half_of_the_voters_or_less_is_no_majority(size: int, down: int) -> None:
    group = Group(size)
    leader = group.elect(0)
    commit_index = leader.raft.commit_index
    group.down = set(range(size - down, size))
    leader.propose()
    group.deliver()
    assert leader.raft.commit_index == commit_index
    group.down.add(0)
    group.down.remove(size - 1)
    group.wait(10 * T)
    assert all(member.raft.role is not Role.LEADER for member in group.members[1:])


def test_a_split_vote_is_tried_again_within_the_timeout() -> None:
    member = candidate()
    grant(member, 1, granted=False)
    grant(member, 2, granted=False)
    assert member.now < member.raft.deadline <= member.now + T


# -- the timer (L1, L2, L9) --------------------------------------------------------------------------------------------


def test_each_election_timeout_is_random() -> None:
    member = Member(0)
    waits = set()
    for _ in range(20):
        member.step(heartbeat(term=1))
        waits.add(member.raft.deadline - member.now)
    assert len(waits) == 20
    assert all(T <= wait < 2 * T for wait in waits)


def test_the_leader_resets_the_timer_even_with_entries_that_are_refused() -> None:
    member = Member(0, term=1)
    member.now += T / 2
    before = member.raft.deadline
    member.step(AppendRequest(1, 0, 1, 0, 50, 1, (), -1))
    assert not member.reply(AppendReply).success
    assert member.raft.deadline > before


def test_a_refused_vote_and_an_old_leader_leave_the_timer_alone() -> None:
    member = Member(0, terms=[1, 2], term=2)
    member.now += T / 2
    before = member.raft.deadline
    member.step(vote_request(term=5, last=(1, 0)))
    member.step(heartbeat(term=4))
    member.step(pre_vote_request(asked_term=9, last=(2, 5)))
    assert member.raft.deadline == before
    member.step(vote_request(term=6, last=(2, 5)))
    assert member.raft.deadline > before, "a granted vote resets it"


def test_a_stalled_loop_waits_once_more_before_it_stands_for_election() -> None:
    member = Member(0)
    member.tick(30.0)
    assert member.raft.role is Role.FOLLOWER
    member.now = member.raft.deadline + 30.0
    member.tick()
    assert member.raft.role is Role.PRE_CANDIDATE, "once, not forever"


def test_a_leader_whose_loop_stood_still_hears_what_was_answered_meanwhile() -> None:
    group = Group()
    leader = group.elect(0)
    leader.tick(30.0)
    assert leader.raft.role is Role.LEADER
    group.deliver()
    leader.tick(T)
    assert leader.raft.role is Role.LEADER


def test_a_stalled_leader_without_answers_steps_down() -> None:
    group = Group()
    leader = group.elect(0)
    group.isolate(0)
    leader.tick(30.0)
    leader.tick(30.0)
    assert leader.raft.role is Role.FOLLOWER


# -- pre-vote and stickiness (L3, L5) ----------------------------------------------------------------------------------


def test_agreeing_to_a_pre_vote_changes_nothing() -> None:
    member = Member(0, term=4, voted_for=2)
    before = member.raft.deadline
    (effect,) = member.step(pre_vote_request(asked_term=5))
    assert isinstance(effect, Send)
    assert member.reply(PreVoteReply).granted
    assert (member.raft.term, member.raft.voted_for, member.raft.deadline) == (4, 2, before)


def test_a_pre_vote_is_refused_while_a_leader_is_heard() -> None:
    member = Member(0, term=4)
    member.step(heartbeat(term=4, source=2))
    member.now += T * 0.9
    member.step(pre_vote_request(asked_term=5))
    assert not member.reply(PreVoteReply).granted
    member.now += T * 0.2
    member.step(pre_vote_request(asked_term=5))
    assert member.reply(PreVoteReply).granted


def test_a_leader_always_refuses_a_pre_vote() -> None:
    group = Group()
    leader = group.elect(0)
    leader.now += 100.0
    leader.step(pre_vote_request(asked_term=5, last=(9, 99)))
    assert not [m for m in group.network if isinstance(m, PreVoteReply) and m.granted]


def test_a_pre_vote_for_a_term_that_has_been_tells_the_asker_which_term_it_is() -> None:
    voter = Member(0, term=9)
    voter.step(pre_vote_request(asked_term=9))
    reply = voter.reply(PreVoteReply)
    assert (reply.granted, reply.term) == (False, 9)
    asker = Member(1, term=8)
    asker.expire()
    asker.step(reply)
    assert (asker.raft.role, asker.raft.term) == (Role.FOLLOWER, 9)


def test_a_real_vote_is_ignored_while_a_leader_is_heard() -> None:
    member = Member(0, term=4)
    member.step(heartbeat(term=4, source=2))
    assert member.step(vote_request(term=99, last=(9, 99))) == []
    assert member.raft.term == 4
    member.step(vote_request(term=99, last=(9, 99), transfer=True))
    assert member.reply(VoteReply).granted, "unless the leader itself wanted it"


def test_a_returning_member_does_not_disturb_the_group() -> None:
    group = Group()
    group.elect(0)
    group.isolate(2)
    group.wait(20 * T)
    group.heal()
    group.wait(5 * T)
    assert [member.raft.term for member in group.members] == [1, 1, 1]
    assert group[0].raft.role is Role.LEADER


def test_a_member_that_returns_with_a_higher_term_joins_again() -> None:
    """Pre-vote makes this rare: a candidate that was cut off after it had raised its term."""
    group = Group()
    group.elect(0)
    group[2].hard_state = HardState(7, 2)
    group[2].crash()
    group.wait(10 * T)
    assert {member.raft.term for member in group.members} == {8}
    assert len({member.raft.leader for member in group.members}) == 1


def test_a_flapping_link_does_not_change_the_leader() -> None:
    group = Group()
    group.elect(0)
    for _ in range(10):
        group.cut(0, 2)
        group.wait(2.5 * T)
        group.heal()
        group.wait(HEARTBEAT * 2)
    assert group[0].raft.role is Role.LEADER
    assert group[0].raft.term == 1


# -- a leader alone (L4) -----------------------------------------------------------------------------------------------


def test_an_isolated_leader_steps_down() -> None:
    group = Group()
    leader = group.elect(0)
    group.isolate(0)
    group.wait(T + 3 * HEARTBEAT)
    assert leader.raft.role is not Role.LEADER
    assert RoleChanged(Role.FOLLOWER, 1, None) in leader.history


def test_answers_count_from_when_they_were_asked_for() -> None:
    """Answers that come in after a second of way say nothing of now."""
    group = Group()
    leader = group.elect(0)
    leader.tick(HEARTBEAT)
    late = [m for m in group.network if isinstance(m, Heartbeat)]
    group.network.clear()
    for _ in range(8):
        leader.tick(HEARTBEAT)
    assert leader.raft.role is Role.LEADER
    for message in late:
        group[message.target].step(message)
    for reply in [m for m in group.network if isinstance(m, HeartbeatReply)]:
        leader.step(reply)
    leader.tick(HEARTBEAT * 2.5)
    assert leader.raft.role is Role.FOLLOWER


def test_a_minority_that_answers_is_not_enough() -> None:
    group = Group(5)
    leader = group.elect(0)
    for other in (2, 3, 4):
        group.cut(0, other)
    group.wait(T + 3 * HEARTBEAT)
    assert RoleChanged(Role.FOLLOWER, 1, None) in leader.history


# -- the new leader (S11) ----------------------------------------------------------------------------------------------


def test_a_new_leader_appends_an_empty_entry_of_its_term_at_once() -> None:
    member = candidate(terms=[1, 1])
    grant(member, 1)
    (own,) = member.effects(AppendOwn)
    assert (own.index, own.term, own.membership) == (2, 2, None)
    assert not member.raft.accepting, "it may not serve before that is committed"


def test_heartbeats_say_at_once_who_leads() -> None:
    member = candidate()
    grant(member, 1)
    assert {message.target for message in member.messages(Heartbeat)} == {1, 2}
