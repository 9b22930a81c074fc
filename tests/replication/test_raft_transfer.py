"""Handing leadership over: to whom, how, and what happens when it does not work (T1 to T7, L10)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raft_lab import ENTRY_BYTES, HEARTBEAT, SETTINGS, Group, Member, T, leader_of

from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.effects import Role, RoleChanged, TransferEnded, TransferResult
from tallystick.replication.messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    PreVoteRequest,
    TimeoutNow,
    VoteRequest,
)


def transfer(member: Member, target: int | None = None) -> None:
    member.call(member.raft.transfer, target)


def ended(member: Member) -> list[TransferEnded]:
    return [effect for effect in member.history if isinstance(effect, TransferEnded)]


def test_leadership_moves_to_the_target_at_once_and_without_a_pre_vote() -> None:
    group = Group()
    old = group.elect(0)
    transfer(old, 2)
    assert not old.raft.accepting
    group.deliver()
    group.heartbeat(2)
    assert group[2].raft.role is Role.LEADER
    assert group[2].raft.ready
    assert group[1].raft.leader == group[0].raft.leader == 2
    assert ended(old) == [TransferEnded(2, TransferResult.DONE, 2)]
    since = group[2].history.index(RoleChanged(Role.CANDIDATE, 2, None))
    assert not [m for m in group[2].history[since:] if isinstance(getattr(m, "message", None), PreVoteRequest)]


def test_the_target_gets_all_entries_before_timeout_now() -> None:
    member = leader_of()
    for source in (1, 2):
        member.step(AppendReply(source, 0, 1, 0, 0, True, 0, 0))
    member.propose(3)
    transfer(member, 1)
    assert member.messages(TimeoutNow) == []
    member.step(AppendReply(1, 0, 1, 0, 0, True, 3, 2))
    assert member.messages(TimeoutNow) == []
    member.step(AppendReply(1, 0, 1, 0, 0, True, 3, 3))
    assert member.messages(TimeoutNow) == [TimeoutNow(0, 1, 1)]


def test_without_a_target_the_furthest_is_taken() -> None:
    group = Group(5)
    leader = group.elect(0)
    for behind in (1, 2, 4):
        group.cut(0, behind)
    leader.propose()
    group.deliver()
    group.heal()
    transfer(leader)
    assert leader.raft.transfer_target == 3


def test_a_target_that_is_dead_holds_puts_up_for_one_timeout_only() -> None:
    group = Group()
    leader = group.elect(0)
    group.down = {2}
    leader.propose()
    group.deliver()
    transfer(leader, 2)
    assert leader.raft.transfer_target == 2, "it answered a moment ago"
    group.wait(T + HEARTBEAT)
    assert ended(leader) == [TransferEnded(2, TransferResult.TIMED_OUT, 0)]
    assert leader.raft.accepting
    transfer(leader, 2)
    assert ended(leader)[1].result is TransferResult.UNREACHABLE, "by now it is known to be dead"


def test_a_target_that_lacks_much_is_refused() -> None:
    member = leader_of(settings=replace(SETTINGS, transfer_within_bytes=10 * ENTRY_BYTES))
    for source in (1, 2):
        member.step(AppendReply(source, 0, 1, 0, 0, True, 0, 0))
    member.propose(11)
    transfer(member, 1)
    assert member.effects(TransferEnded) == [TransferEnded(1, TransferResult.TOO_FAR_BEHIND, 0)]
    member.step(AppendReply(1, 0, 1, 0, 0, True, 1, 1))
    transfer(member, 1)
    assert member.raft.transfer_target == 1


@pytest.mark.parametrize("reply", [{"disk": DiskState.FULL}, {"possible_loss": PossibleLoss.LOG, "incarnation": 5}])
def test_a_target_that_is_not_sound_is_refused(reply: dict[str, object]) -> None:
    member = leader_of()
    member.step(AppendReply(2, 0, 1, 0, 0, True, 0, 0))
    beat = next(m for m in member.sent if isinstance(m, Heartbeat))
    member.step(HeartbeatReply(1, 0, 1, beat.round, beat.sent_at, 0, **reply))  # type: ignore[arg-type]
    transfer(member, 1)
    assert member.effects(TransferEnded) == [TransferEnded(1, TransferResult.UNHEALTHY, 0)]


def test_refusals_have_distinct_reasons() -> None:
    member = Member(0)
    transfer(member, 1)
    assert ended(member)[-1].result is TransferResult.NOT_LEADER
    member = leader_of(learners=[7])
    transfer(member, 1)
    assert ended(member)[-1].result is TransferResult.NOT_READY
    member.step(AppendReply(1, 0, 1, 0, 0, True, 0, 0))
    for target in (0, 7, 9):
        transfer(member, target)
        assert ended(member)[-1].result is TransferResult.NOT_A_VOTER
    transfer(member, 1)
    transfer(member, 2)
    assert ended(member)[-1].result is TransferResult.UNDER_WAY
    alone = Member(0, voters=[0])
    alone.tick()
    transfer(alone)
    assert ended(alone)[-1].result is TransferResult.NO_TARGET


def test_a_lost_timeout_now_is_sent_again() -> None:
    group = Group()
    leader = group.elect(0)
    transfer(leader, 1)
    group.network.clear()
    group.heartbeat(0)
    assert group[1].raft.role is Role.LEADER


def test_a_timeout_now_of_an_old_term_is_ignored() -> None:
    member = Member(0, term=5)
    member.step(Heartbeat(1, 0, 5, 1, 0.0, -1))
    assert member.step(TimeoutNow(1, 0, 4)) == []
    assert member.step(TimeoutNow(2, 0, 5)) == [], "nor of one that does not lead"
    member.step(TimeoutNow(1, 0, 5))
    assert member.raft.role is Role.CANDIDATE
    assert all(request.transfer for request in member.messages(VoteRequest))


@pytest.mark.parametrize("state", [DiskState.FULL, DiskState.FAILED])
def test_a_member_that_cannot_write_ignores_timeout_now(state: DiskState) -> None:
    member = Member(0, term=5)
    member.step(Heartbeat(1, 0, 5, 1, 0.0, -1))
    member.disk(state)
    member.step(TimeoutNow(1, 0, 5))
    assert member.raft.role is Role.FOLLOWER


def test_a_transfer_that_another_member_wins_is_reported_as_such() -> None:
    group = Group()
    leader = group.elect(0)
    group.cut(0, 2)
    leader.propose()
    group.deliver()
    transfer(leader, 2)
    group.cut(1, 2)
    group[0].now += T / 2
    group.heal()
    group.cut(0, 2)
    leader.step(Heartbeat(1, 0, 9, 1, 0.0, -1))
    assert ended(leader) == [TransferEnded(2, TransferResult.NOT_TAKEN, 1)]


def test_puts_go_on_at_the_new_leader_and_nothing_is_lost() -> None:
    group = Group()
    for turn in range(6):
        if turn == 0:
            group.elect(0)
        number = turn % 3
        group[number].propose(5)
        group.deliver()
        transfer(group[number], (turn + 1) % 3)
        group.deliver()
        group.heartbeat((turn + 1) % 3)
    assert group[0].log.terms == group[1].log.terms == group[2].log.terms
    assert group[0].raft.term == 7
    assert group[0].raft.commit_index == group[0].log.last_index


# -- a full disk (L10) -------------------------------------------------------------------------------------------------


def test_a_leader_whose_disk_is_full_hands_over() -> None:
    group = Group()
    leader = group.elect(0)
    leader.disk(DiskState.FULL)
    assert not leader.raft.accepting
    group.deliver()
    assert leader.raft.role is Role.FOLLOWER
    assert {member.raft.role for member in group.members[1:]} == {Role.LEADER, Role.FOLLOWER}
    group.wait(10 * T)
    assert leader.raft.role is Role.FOLLOWER


def test_a_leader_with_a_full_disk_and_no_target_steps_down() -> None:
    group = Group()
    leader = group.elect(0)
    group.isolate(0)
    leader.disk(DiskState.FULL)
    group.wait(2 * T)
    assert leader.raft.role is Role.FOLLOWER
    assert not [m for m in group.lost if isinstance(m, PreVoteRequest) and m.source == 0], "it does not stand"


def test_a_leader_that_is_the_only_voter_stays_and_accepts_nothing() -> None:
    member = Member(0, voters=[0])
    member.tick()
    member.disk(DiskState.FULL)
    assert (member.raft.role, member.raft.accepting) == (Role.LEADER, False)
    member.disk(DiskState.OK)
    assert member.raft.accepting


def test_a_candidate_whose_disk_is_full_gives_up() -> None:
    member = Member(0)
    member.expire()
    assert member.raft.role is Role.PRE_CANDIDATE
    member.disk(DiskState.FULL)
    assert member.raft.role is Role.FOLLOWER
    member.expire()
    assert member.raft.role is Role.FOLLOWER
    member.disk(DiskState.OK)
    member.expire()
    assert member.raft.role is Role.PRE_CANDIDATE


# -- the preferred leader (T6) -----------------------------------------------------------------------------------------


def test_leadership_returns_to_the_preferred_leader_when_it_was_healthy_for_long() -> None:
    preferred = replace(SETTINGS, preferred_leader=1, preferred_after_seconds=5.0)
    group = Group(settings=preferred)
    group.elect(0)
    group.wait(4.5)
    assert group[0].raft.role is Role.LEADER
    group.wait(1.5)
    assert group[1].raft.role is Role.LEADER


def test_a_preferred_leader_that_did_not_take_it_is_left_alone_for_a_while() -> None:
    preferred = replace(SETTINGS, preferred_leader=1, preferred_after_seconds=5.0, preferred_retry_seconds=60.0)
    group = Group(settings=preferred)
    leader = group.elect(0)
    group[1].raft.disk_state = DiskState.OK

    def deaf(message: object) -> bool:
        return not isinstance(message, TimeoutNow)

    def wait(seconds: float) -> None:
        for _ in range(round(seconds / HEARTBEAT)):
            for member in group.members:
                member.now += HEARTBEAT
            for member in group.members:
                member.tick()
            group.deliver(deaf)

    wait(50.0)
    assert [end.result for end in ended(leader)] == [TransferResult.TIMED_OUT]
    wait(30.0)
    assert len(ended(leader)) == 2


def test_a_preferred_leader_that_lags_is_not_asked() -> None:
    preferred = replace(SETTINGS, preferred_leader=1, preferred_after_seconds=5.0, transfer_within_bytes=ENTRY_BYTES)
    group = Group(settings=preferred)
    leader = group.elect(0)
    leader.propose(5)
    group.deliver(lambda message: not (isinstance(message, AppendRequest) and message.target == 1))
    for _ in range(100):
        for member in group.members:
            member.now += HEARTBEAT
        for member in group.members:
            member.tick()
        group.deliver(lambda message: not (isinstance(message, AppendRequest) and message.target == 1))
    assert ended(leader) == []
    assert leader.raft.role is Role.LEADER


# -- little room (L10) -------------------------------------------------------------------------------------------------


def test_a_leader_with_little_room_hands_over_to_a_member_with_more() -> None:
    group = Group()
    leader = group.elect(0)
    group[1].disk(DiskState.LOW)
    group.wait(1.0)
    leader.disk(DiskState.LOW)
    group.wait(2 * T)
    assert [member.raft.role for member in group.members] == [Role.FOLLOWER, Role.FOLLOWER, Role.LEADER]


def test_if_all_disks_are_full_the_leader_stays_and_the_groups_own_entries_are_committed() -> None:
    group = Group()
    leader = group.elect(0)
    for member in group.members[1:]:
        member.disk(DiskState.LOW)
    group.wait(1.0)
    leader.disk(DiskState.LOW)
    group.wait(20 * T)
    assert (leader.raft.role, leader.raft.term) == (Role.LEADER, 1)
    assert leader.raft.accepting and leader.raft.voters_with_room == 0
    leader.propose(3)
    group.wait(1.0)
    assert all(member.raft.commit_index == leader.log.last_index for member in group.members)


def test_where_every_disk_is_full_the_leader_stays_and_takes_nothing() -> None:
    group = Group()
    leader = group.elect(0)
    for member in group.members[1:]:
        member.disk(DiskState.FULL)
    group.wait(1.0)
    leader.disk(DiskState.FULL)
    group.wait(20 * T)
    assert (leader.raft.role, leader.raft.term, leader.raft.accepting) == (Role.LEADER, 1, False)
    for member in group.members:
        member.disk(DiskState.OK)
    group.wait(1.0)
    assert leader.raft.accepting and leader.raft.voters_with_room == 3


def test_a_member_with_little_room_may_be_elected() -> None:
    group = Group()
    group.elect(0)
    for member in group.members:
        member.disk(DiskState.LOW)
    group.wait(1.0)
    group.down = {0}
    group.wait(10 * T)
    assert Role.LEADER in {member.raft.role for member in group.members[1:]}


def test_leadership_is_not_sent_where_it_would_not_stay() -> None:
    group = Group()
    leader = group.elect(0)
    group[1].disk(DiskState.LOW)
    group.wait(1.0)
    leader.call(leader.raft.transfer, 1)
    (ended,) = leader.effects(TransferEnded)
    assert ended.result is TransferResult.UNHEALTHY
