"""Members that come and go, one at a time (M1 to M8)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raft_lab import ENTRY_BYTES, HEARTBEAT, SETTINGS, Group, Member, T, leader_of

from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.effects import (
    AppendOwn,
    ChangeRefused,
    Commit,
    MembershipChanged,
    RemovedFromGroup,
    Role,
    RoleChanged,
)
from tallystick.replication.membership import (
    AddLearner,
    Change,
    Membership,
    MembershipEntry,
    MembershipError,
    Promote,
    Remove,
    changed,
)
from tallystick.replication.messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    PreVoteReply,
    PreVoteRequest,
    Removed,
    TermRun,
    VoteReply,
    VoteRequest,
)


def change(member: Member, wanted: Change) -> None:
    member.call(member.raft.change_membership, wanted)


def refusal(member: Member, wanted: Change) -> str:
    change(member, wanted)
    (refused,) = member.effects(ChangeRefused)
    assert member.effects(AppendOwn) == []
    return refused.reason


def test_a_new_member_learns_first_and_votes_when_it_has_everything() -> None:
    group = Group()
    leader = group.elect(0)
    leader.propose(20)
    group.deliver()
    newcomer = group.join(3)
    change(leader, AddLearner(3))
    group.deliver()
    assert newcomer.log.terms == leader.log.terms
    group.heartbeat(0)
    assert newcomer.raft.membership == Membership.of([0, 1, 2], [3])
    assert newcomer.raft.commit_index == leader.raft.commit_index
    change(leader, Promote(3))
    group.deliver()
    group.heartbeat(0)
    for member in group.members:
        assert member.raft.membership == Membership.of([0, 1, 2, 3])
        assert member.raft.membership_index <= member.raft.commit_index


def test_a_learner_is_not_counted_does_not_vote_and_does_not_stand() -> None:
    member = leader_of(learners=[3])
    member.step(AppendReply(3, 0, 1, 0, 0, True, 0, 0))
    assert member.raft.commit_index == -1
    learner = Member(3, learners=[3])
    learner.now += 100.0
    learner.expire()
    learner.expire()
    assert learner.raft.role is Role.FOLLOWER
    candidate = Member(0, learners=[3])
    candidate.expire()
    assert {m.target for m in candidate.messages(PreVoteRequest)} == {1, 2}


def test_a_learner_that_lacks_much_is_not_promoted() -> None:
    member = leader_of(learners=[3], settings=replace(SETTINGS, promote_within_bytes=10 * ENTRY_BYTES))
    for source in (1, 2):
        member.step(AppendReply(source, 0, 1, 0, 0, True, 0, 0))
    member.propose(11)
    member.step(AppendReply(3, 0, 1, 0, 0, True, 0, 0))
    assert "lacks" in refusal(member, Promote(3))
    member.step(AppendReply(3, 0, 1, 0, 0, True, 1, 1))
    change(member, Promote(3))
    assert member.effects(AppendOwn)


def test_a_learner_that_does_not_answer_is_not_promoted() -> None:
    group = Group()
    leader = group.elect(0)
    group.join(3)
    change(leader, AddLearner(3))
    group.deliver()
    group.down = {3}
    group.wait(2 * T)
    assert "answer" in refusal(leader, Promote(3))


def test_a_learner_that_was_not_heard_yet_is_not_promoted() -> None:
    """It may have forgotten its votes, and says so with its first answer."""
    group = Group()
    leader = group.elect(0)
    newcomer = group.join(3, possible_loss=PossibleLoss.VOTES)
    change(leader, AddLearner(3))
    assert leader.raft.commit_index < leader.raft.membership_index
    group.deliver(lambda message: 3 not in (message.source, message.target))
    assert leader.raft.commit_index == leader.raft.membership_index
    assert "answer" in refusal(leader, Promote(3))
    group.wait(SETTINGS.append_timeout_seconds + 3 * HEARTBEAT)
    assert newcomer.raft.possible_loss is PossibleLoss.NONE
    change(leader, Promote(3))
    assert leader.effects(AppendOwn)


def test_a_membership_counts_from_when_it_is_appended() -> None:
    group = Group(4)
    leader = group.elect(0)
    group.down = {2, 3}
    leader.propose()
    group.deliver()
    before = leader.raft.commit_index
    assert before < leader.log.last_index, "two of four are no majority"
    change(leader, Remove(3))
    assert leader.effects(MembershipChanged)
    group.deliver()
    assert leader.raft.commit_index == leader.log.last_index, "two of three are"


def test_a_smaller_majority_commits_what_it_has_at_once() -> None:
    member = leader_of(4)
    for source in (1, 2):
        member.step(AppendReply(source, 0, 1, 0, 0, True, 0, 0))
    member.syncs = False
    member.propose(2)
    member.sync()
    member.step(AppendReply(1, 0, 1, 0, 0, True, 1, 2))
    assert member.raft.commit_index == 0
    change(member, Remove(3))
    assert member.effects(Commit) == [Commit(2)]


def test_a_membership_that_is_cut_off_falls_back() -> None:
    entry = MembershipEntry(1, Membership.of([0, 1]))
    member = Member(0)
    member.step(AppendRequest(1, 0, 2, 0, -1, -1, (TermRun(2, 1),), -1, (entry,)))
    assert member.raft.membership == entry.membership
    assert member.effects(MembershipChanged) == [MembershipChanged(entry)]
    member.step(AppendRequest(2, 0, 3, 0, 0, 2, (TermRun(3, 1),), -1))
    assert member.raft.membership == Membership.of([0, 1, 2])
    assert member.raft.membership_index == -1


def test_a_restart_uses_the_newest_membership_in_the_log() -> None:
    group = Group()
    leader = group.elect(0)
    change(leader, Remove(2))
    group.deliver()
    group[1].crash()
    assert group[1].raft.membership == Membership.of([0, 1])


def test_only_one_change_is_under_way() -> None:
    group = Group()
    leader = group.elect(0)
    group.down = {1, 2}
    change(leader, AddLearner(3))
    assert leader.effects(AppendOwn)
    assert "not committed" in refusal(leader, AddLearner(4))
    group.down = set()
    group.wait(2 * T)
    change(leader, AddLearner(4))
    assert leader.effects(AppendOwn)


def test_no_change_before_an_entry_of_the_own_term_is_committed() -> None:
    member = leader_of()
    assert "of its current term" in refusal(member, AddLearner(3))
    member.step(AppendReply(1, 0, 1, 0, 0, True, 0, 0))
    change(member, AddLearner(3))
    assert member.effects(AppendOwn)


def test_two_leaders_cannot_each_change_the_same_membership() -> None:
    """The bug of 2015: two memberships, each one step from the same base, need not have majorities that meet.

    Member 0 makes 4 a voter and reaches only 4: to it three of {0, 1, 2, 3, 4} are enough. Member 1 then leads by
    the votes of 2 and 3, and wants to remove 0: two of {1, 2, 3} would be enough to it, say 1 and 2. Then 0 could win
    with 3 and 4, and overwrite what 1 has committed. So 1 must first commit an entry of its term as members were.
    """
    group = Group(4)
    group.elect(0)
    group.join(4)
    change(group[0], AddLearner(4))
    group.deliver()
    group.heartbeat(0)
    for one in (0, 4):
        for other in (1, 2, 3):
            group.cut(one, other)
    change(group[0], Promote(4))
    group.deliver()
    assert group[4].raft.membership.voters == {0, 1, 2, 3, 4}
    group.pass_time(2 * T)
    group[1].crash()
    group.expire(1)
    group.deliver(lambda message: not isinstance(message, AppendRequest) or message.target != 3)
    assert group[1].raft.role is Role.LEADER
    change(group[1], Remove(0))
    refused = group[1].effects(ChangeRefused)
    group.deliver(lambda message: not isinstance(message, AppendRequest) or message.target != 3)
    group.heal()
    for one in (1, 2):
        for other in (0, 3, 4):
            group.cut(one, other)
    group[0].crash()
    group.elect(0)
    group.heal()
    group.wait(10 * T)
    assert len({tuple(log) for log in group.logs()}) == 1
    assert [each.change for each in refused] == [Remove(0)]


def test_a_leader_that_removes_itself_leaves_when_that_is_committed_without_it() -> None:
    group = Group()
    leader = group.elect(0)
    group.down = {1}
    change(leader, Remove(0))
    group.deliver()
    assert leader.raft.role is Role.LEADER, "it leads on, and does not count itself"
    assert leader.raft.commit_index < leader.raft.membership_index
    group.down = set()
    group.wait(SETTINGS.append_timeout_seconds + HEARTBEAT)
    (removed,) = [effect for effect in leader.history if isinstance(effect, RemovedFromGroup)]
    assert removed.commit_index == leader.raft.commit_index >= leader.raft.membership_index
    assert leader.raft.role is Role.FOLLOWER
    group.wait(T)
    assert {member.raft.role for member in group.members[1:]} == {Role.LEADER, Role.FOLLOWER}
    group.wait(5 * T)
    assert leader.raft.role is Role.FOLLOWER, "and does not come back"


def test_a_leader_whose_removal_is_not_committed_may_be_needed() -> None:
    """It alone has the entry that removes it, and the longer log: the other cannot be elected without its vote."""
    group = Group(2)
    leader = group.elect(0)
    group.cut(0, 1)
    change(leader, Remove(0))
    group.deliver()
    leader.crash()
    assert leader.raft.membership == Membership.of([1])
    group.heal()
    group.wait(10 * T)
    assert group[1].raft.role is Role.LEADER
    assert group[1].raft.membership == Membership.of([1])
    assert [effect for effect in leader.history if isinstance(effect, RemovedFromGroup)]


def test_one_that_was_a_voter_and_learns_again_does_not_stand() -> None:
    """What it saved of the commit index is old: by that it is a voter still."""
    entries = (MembershipEntry(1, Membership.of([1, 2])), MembershipEntry(2, Membership.of([1, 2], [0])))
    member = Member(0)
    member.step(AppendRequest(1, 0, 2, 0, -1, -1, (TermRun(2, 2),), -1, entries))
    for _ in range(3):
        member.expire()
    assert member.raft.role is Role.FOLLOWER


def test_an_old_commit_index_does_not_keep_it_from_standing() -> None:
    """After a start the commit index is a hint (D6), here from before the member voted. The log says more (M2)."""
    member = Member(0, voters=[1], learners=[0], terms=[1, 1, 1, 1, 1], commit_index=0)
    member.log.memberships[:] = [MembershipEntry(2, Membership.of([0, 1])), MembershipEntry(4, Membership.of([1]))]
    member.start(commit_index=0)
    member.tick(10 * T)
    member.tick(20 * T)
    assert member.raft.role is Role.PRE_CANDIDATE
    member.log.memberships.pop(0)  # a learner that is removed, on the other hand, was never to stand
    member.start(commit_index=0)
    member.tick(30 * T)
    member.tick(40 * T)
    assert member.raft.role is Role.FOLLOWER


def test_a_removed_member_does_not_disturb_the_group_and_is_notified() -> None:
    group = Group()
    leader = group.elect(0)
    change(leader, Remove(2))
    group.deliver()
    group.wait(5 * T)
    assert [effect for effect in group[2].history if isinstance(effect, RemovedFromGroup)]
    assert (leader.raft.role, leader.raft.term) == (Role.LEADER, 1)
    told = len(group[2].history)
    group.wait(5 * T)
    new = group[2].history[told:]
    assert not [effect for effect in new if isinstance(effect, RoleChanged) and effect.role is not Role.FOLLOWER]


def test_a_removed_learner_is_notified() -> None:
    group = Group()
    leader = group.elect(0)
    learner = group.join(3)
    change(leader, AddLearner(3))
    group.deliver()
    change(leader, Remove(3))
    group.deliver()
    assert not [effect for effect in learner.history if isinstance(effect, RemovedFromGroup)]
    group.wait(3 * T)
    assert [effect for effect in learner.history if isinstance(effect, RemovedFromGroup)]
    assert learner.raft.role is Role.FOLLOWER
    assert (leader.raft.role, leader.raft.term) == (Role.LEADER, 1)


def test_a_removed_member_that_lost_its_votes_is_notified() -> None:
    group = Group()
    leader = group.elect(0)
    group.heartbeat(0)
    group[2].crash(possible_loss=PossibleLoss.VOTES)
    change(leader, Remove(2))
    group.deliver()
    group.wait(3 * T)
    assert [effect for effect in group[2].history if isinstance(effect, RemovedFromGroup)]
    assert group[2].raft.possible_loss is PossibleLoss.VOTES, "it must not be readmitted in between"


def test_a_learner_whose_entry_was_never_committed_is_notified() -> None:
    """The entry that let it in was cut off everywhere else, and its index is above that of the membership in force."""
    group = Group()
    leader = group.elect(0)
    learner = group.join(3)
    group.cut(0, 1)
    group.cut(0, 2)
    change(leader, AddLearner(3))
    group.deliver()
    assert learner.raft.membership.learners == {3}
    group.isolate(0)
    group.wait(5 * T)
    (successor,) = [member for member in group.members if member.raft.role is Role.LEADER]
    successor.propose(5)
    group.wait(3 * T)
    (removed,) = [effect for effect in learner.history if isinstance(effect, RemovedFromGroup)]
    assert removed.commit_index >= learner.raft.membership_index > successor.raft.membership_index


def test_a_learner_without_a_leader_asks_and_stays_a_learner() -> None:
    """Whatever is answered: agreement makes it no candidate."""
    learner = Member(3, learners=[3])
    learner.expire()
    learner.expire()
    asked = learner.messages(PreVoteRequest)
    assert [ask.target for ask in asked] == [0, 1, 2]
    for ask in asked:
        learner.step(PreVoteReply(ask.target, 3, 0, ask.asked_term, ask.campaign, True))
    assert (learner.raft.role, learner.raft.term) == (Role.FOLLOWER, 0)
    assert learner.messages(VoteRequest) == []


def test_a_member_is_removed_only_by_what_is_committed() -> None:
    entry = MembershipEntry(0, Membership.of([0, 1]))
    member = Member(0)
    member.step(AppendRequest(1, 0, 2, 0, -1, -1, (TermRun(2, 0),), -1, (entry,)))
    member.now += 2 * T
    member.step(PreVoteRequest(2, 0, 3, 7, 0, -1))
    assert member.messages(Removed) == []
    assert not member.reply(PreVoteReply).granted
    member.step(AppendRequest(1, 0, 2, 0, 0, 2, (), 0))
    member.step(PreVoteRequest(2, 0, 3, 7, 0, -1))
    assert member.messages(Removed) == [Removed(0, 2, 2, 0)]


def test_a_member_that_cannot_read_its_log_notifies_no_member_of_its_removal() -> None:
    """The entry that let it in may be what cannot be read (L12)."""
    member = Member(0)
    entry = MembershipEntry(0, Membership.of([0, 1]))
    member.step(AppendRequest(1, 0, 2, 0, -1, -1, (TermRun(2, 0),), 0, (entry,)))
    member.now += 2 * T
    member.call(member.raft.readable, False)
    member.step(PreVoteRequest(2, 0, 3, 7, 0, -1))
    assert member.messages(Removed) == []
    member.call(member.raft.readable, True)
    member.step(PreVoteRequest(2, 0, 3, 7, 0, -1))
    assert member.messages(Removed) == [Removed(0, 2, 2, 0)]


def test_a_member_that_was_let_in_again_is_voted_for_by_who_does_not_know_yet() -> None:
    """Its log is the longer one: it holds the entry that let it in again."""
    entry = MembershipEntry(0, Membership.of([0, 1]))
    member = Member(0)
    member.step(AppendRequest(1, 0, 2, 0, -1, -1, (TermRun(2, 0),), 0, (entry,)))
    member.now += 2 * T
    member.step(VoteRequest(2, 0, 3, 7, 2, 4))
    assert member.reply(VoteReply).granted


def test_word_of_a_removal_before_one_was_let_in_again_is_old() -> None:
    entry = MembershipEntry(8, Membership.of([0, 1, 2]))
    member = Member(0)
    member.step(AppendRequest(1, 0, 2, 0, -1, -1, (TermRun(2, 8),), 8, (entry,)))
    assert member.step(Removed(2, 0, 2, commit_index=5)) == []
    member.step(Removed(2, 0, 2, commit_index=9))
    assert member.effects(RemovedFromGroup) == [RemovedFromGroup(9)]
    member.expire()
    member.expire()
    assert member.raft.role is Role.FOLLOWER


def test_who_knows_no_membership_waits_to_be_let_in() -> None:
    member = Member(7, voters=[])
    for _ in range(5):
        member.expire()
    assert member.raft.role is Role.FOLLOWER
    assert member.sent == []
    member.step(Heartbeat(1, 7, 3, 1, 0.0, -1))
    assert member.raft.leader == 1


def test_old_memberships_travel_with_the_entries_that_hold_them() -> None:
    group = Group()
    leader = group.elect(0)
    change(leader, AddLearner(3))
    group.deliver()
    change(leader, Remove(3))
    group.deliver()
    leader.propose(5)
    group.deliver()
    newcomer = group.join(3)
    change(leader, AddLearner(3))
    group.deliver()
    group.heartbeat(0)
    group.wait(T)
    assert [entry.index for entry in newcomer.log.memberships] == [entry.index for entry in leader.log.memberships]
    assert not [effect for effect in newcomer.history if isinstance(effect, RemovedFromGroup)]


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        (AddLearner(1), "already"),
        (Promote(1), "not a learner"),
        (Promote(9), "not a learner"),
        (Remove(9), "not in the group"),
    ],
)
def test_changes_that_make_no_sense_are_refused(wanted: Change, word: str) -> None:
    member = leader_of()
    member.step(AppendReply(1, 0, 1, 0, 0, True, 0, 0))
    assert word in refusal(member, wanted)


def test_the_last_voter_stays() -> None:
    with pytest.raises(MembershipError):
        changed(Membership.of([0], [1]), Remove(0))


def test_no_change_while_leadership_is_handed_over_or_the_disk_is_full() -> None:
    member = leader_of()
    member.step(AppendReply(1, 0, 1, 0, 0, True, 0, 0))
    member.call(member.raft.transfer, 2)
    assert "a transfer of leadership is in progress" in refusal(member, AddLearner(3))
    alone = Member(0, voters=[0])
    alone.tick()
    alone.disk(DiskState.FULL)
    assert "full" in refusal(alone, AddLearner(3))
    assert "does not lead" in refusal(Member(0), AddLearner(3))


def test_a_membership_that_could_not_be_written_was_never_there() -> None:
    """Nothing may have been committed by its majority: that of the one before counts."""
    group = Group(2)
    leader = group.elect(0)
    group.down = {1}
    leader.propose()
    group.deliver()
    before = leader.raft.commit_index
    leader.fails = DiskState.FULL
    change(leader, Remove(1))
    assert leader.raft.membership == Membership.of([0, 1])
    assert leader.raft.commit_index == before
    leader.sync()
    assert leader.raft.commit_index == before


def test_a_group_grows_from_one_to_three_and_shrinks_again() -> None:
    group = Group(1)
    group[0].tick()
    leader = group[0]
    for number in (1, 2):
        group.join(number)
        change(leader, AddLearner(number))
        group.deliver()
        change(leader, Promote(number))
        group.deliver()
        group.heartbeat(0)
    assert leader.raft.membership == Membership.of([0, 1, 2])
    group.down = {0}
    group.wait(6 * T)
    (leader,) = [member for member in group.members[1:] if member.raft.role is Role.LEADER]
    for number in {1, 2} - {leader.number} | {0}:
        change(leader, Remove(number))
        group.deliver()
        group.heartbeat(leader.number)
    assert leader.raft.membership == Membership.of([leader.number])
    leader.propose()
    assert leader.raft.commit_index == leader.log.last_index


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"voters": 1, "learners": []}', b'{"voters": ["0"], "learners": []}']
)
def test_bytes_that_hold_no_membership(content: bytes) -> None:
    with pytest.raises(MembershipError):
        Membership.decode(content)


def test_a_membership_survives_its_bytes() -> None:
    membership = Membership.of([2, 0, 1], [7])
    assert Membership.decode(membership.encode()) == membership
    assert membership.encode() == b'{"voters": [0, 1, 2], "learners": [7]}'


def test_a_member_is_one_thing() -> None:
    with pytest.raises(MembershipError):
        Membership.of([0, 1], [1])
    with pytest.raises(MembershipError):
        Membership.of([-1])
