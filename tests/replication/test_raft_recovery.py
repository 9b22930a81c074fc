"""Members whose disk fails, is full, was emptied or has forgotten, and those behind the log (D7, D9, S14, L10, L11)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raft_lab import ENTRY_BYTES, HEARTBEAT, SETTINGS, Group, Member, T, leader_of

from tallystick.replication.durable import DiskState, HardState, PossibleLoss
from tallystick.replication.effects import (
    Commit,
    Fatal,
    InstallSnapshot,
    LossDetected,
    MembershipChanged,
    ReadFailed,
    Readmitted,
    Role,
    RoleChanged,
    SendSnapshot,
    TransferEnded,
    Truncate,
    Write,
)
from tallystick.replication.membership import AddLearner, Membership, MembershipEntry, Promote
from tallystick.replication.messages import (
    AppendReply,
    AppendRequest,
    EntriesLost,
    Heartbeat,
    HeartbeatReply,
    InstallRequest,
    PreVoteReply,
    PreVoteRequest,
    TermRun,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

ENTRIES = AppendRequest(1, 0, 2, 0, 0, 1, (TermRun(2, 3),), 3)


# -- a disk that failed (D7) -------------------------------------------------------------------------------------------


def test_a_member_whose_disk_failed_acknowledges_nothing_any_more() -> None:
    member = Member(0, terms=[1], syncs=False)
    member.step(ENTRIES)
    member.disk(DiskState.FAILED)
    assert member.call(member.raft.synced, 3) == []
    assert member.step(ENTRIES) == []
    assert member.step(VoteRequest(1, 0, 9, 7, 9, 9)) == []
    assert member.step(Heartbeat(1, 0, 9, 1, 0.0, 3)) == []
    assert member.tick(100.0) == []
    assert member.disk(DiskState.OK) == [], "nothing but a new start ends that"
    assert member.step(ENTRIES) == []
    assert member.call(member.raft.read, 1) == [ReadFailed(1)]
    assert isinstance(member.call(member.raft.transfer, 1)[0], TransferEnded)


def test_a_leader_whose_disk_failed_steps_down_and_wakes_the_furthest() -> None:
    group = Group()
    leader = group.elect(0)
    group.cut(0, 1)
    leader.propose()
    group.deliver()
    leader.disk(DiskState.FAILED)
    assert leader.messages(TimeoutNow) == [TimeoutNow(0, 2, 1)]
    assert leader.effects(RoleChanged) == [RoleChanged(Role.FOLLOWER, 1, None)]
    group.deliver()
    assert group[2].raft.role is Role.LEADER
    assert group[2].log.terms == [1, 1, 1, 2]


def test_a_vote_that_could_not_be_saved_is_not_sent() -> None:
    """The driver drops what is behind an effect that failed, and says so: nothing of the new term ever leaves."""
    member = Member(0)
    effects = member.raft.step(0.0, VoteRequest(1, 0, 9, 7, 9, 9))
    assert effects
    member.disk(DiskState.FAILED)
    assert member.effects(RoleChanged), "the driver is told in any case"
    assert member.step(Heartbeat(1, 0, 9, 1, 0.0, 3)) == []


# -- a disk that is full (L10) -----------------------------------------------------------------------------------------


def test_a_write_that_failed_is_forgotten() -> None:
    member = Member(0, terms=[1, 1, 1])
    member.fails = DiskState.FULL
    member.step(AppendRequest(1, 0, 2, 0, 2, 1, (TermRun(2, 5),), 5))
    assert member.log.terms == [1, 1, 1]
    assert member.messages(AppendReply) == []
    member.step(AppendRequest(1, 0, 2, 0, 2, 1, (TermRun(2, 4),), 5))
    reply = member.reply(AppendReply)
    assert (reply.success, reply.match_index, reply.disk) == (True, 2, DiskState.FULL)
    member.disk(DiskState.OK)
    member.step(AppendRequest(1, 0, 2, 0, 2, 1, (TermRun(2, 4),), 5))
    assert member.reply(AppendReply).match_index == 4
    assert member.log.terms == [1, 1, 1, 2, 2]


def test_a_write_that_failed_behind_a_cut_leaves_what_was_cut_away() -> None:
    member = Member(0, terms=[1, 1, 1])
    effects = member.raft.step(0.0, AppendRequest(1, 0, 2, 0, 0, 1, (TermRun(2, 2),), -1))
    assert [type(effect) for effect in effects if isinstance(effect, Truncate | Write)] == [Truncate, Write]
    member.log.truncate(0)
    member.disk(DiskState.FULL)
    assert member.raft.synced_index == 0
    member.step(AppendRequest(1, 0, 2, 0, 2, 1, (), -1))
    reply = member.reply(AppendReply)
    assert (reply.success, reply.conflict_index) == (False, 1)


def test_a_write_that_failed_does_not_hide_a_commit() -> None:
    member = Member(0, terms=[1, 1, 1])
    member.fails = DiskState.FULL
    member.step(AppendRequest(1, 0, 1, 0, 2, 1, (TermRun(1, 4),), 4))
    assert member.effects(Commit) == [Commit(2)]
    assert member.raft.commit_index == 2


def test_a_write_that_went_half_way_counts_half() -> None:
    member = Member(0, terms=[1], syncs=False)
    member.raft.step(0.0, AppendRequest(1, 0, 2, 0, 0, 1, (TermRun(2, 4),), -1))
    member.log.terms += [2, 2]
    member.disk(DiskState.FULL)
    member.sync()
    assert member.messages(AppendReply) == []
    member.disk(DiskState.OK)
    member.step(AppendRequest(1, 0, 2, 0, 0, 1, (TermRun(2, 4),), -1))
    (write,) = member.effects(Write)
    assert write.first_index == 3


def test_a_membership_in_a_write_that_failed_falls_back() -> None:
    member = Member(0)
    member.fails = DiskState.FULL
    entry = MembershipEntry(0, Membership.of([0, 1]))
    member.step(AppendRequest(1, 0, 2, 0, -1, -1, (TermRun(2, 0),), -1, (entry,)))
    assert member.raft.membership == Membership.of([0, 1, 2])


def test_a_log_that_lost_what_is_committed_stops_the_member() -> None:
    member = Member(0, terms=[1, 1, 1], commit_index=2)
    member.log.truncate(1)
    member.disk(DiskState.FULL)
    assert member.effects(Fatal)


def test_a_follower_that_is_full_gets_everything_when_there_is_space_again() -> None:
    group = Group()
    leader = group.elect(0)
    group[1].disk(DiskState.FULL)
    leader.propose(50)
    group.deliver()
    assert leader.raft.commit_index == leader.log.last_index, "the others go on"
    assert group[1].log.last_index == 1
    group.wait(3 * T)
    sent = [m for m in leader.history if isinstance(getattr(m, "message", None), AppendRequest)]
    assert len(sent) < 30, "it is not sent everything again and again"
    group[1].disk(DiskState.OK)
    group.heartbeat(0)
    assert group[1].log.terms == leader.log.terms


# -- entries that may be gone (D9) -------------------------------------------------------------------------------------


def forgetful_group(size: int = 3, *, lost: int = 5) -> Group:
    """Member 1 acknowledged entries that member 2 has not got, and comes back without the last of them."""
    group = Group(size)
    group.elect(0)
    group.cut(0, 2)
    group[0].propose(10)
    group.deliver()
    assert group[0].raft.commit_index == group[0].log.last_index
    group[1].crash(possible_loss=PossibleLoss.LOG, keep=group[1].log.last_index - lost)
    return group


def test_a_member_with_a_possible_loss_elects_no_candidate_with_less() -> None:
    """Entries 7 to 11 were acknowledged to a producer; without member 0 no member has them. So no member may lead."""
    group = forgetful_group()
    group.down = {0}
    group.wait(10 * T)
    assert all(member.raft.role is not Role.LEADER for member in group.members[1:])
    group.down = set()
    group.heal()
    group.wait(5 * T)
    assert {len(log) for log in group.logs()} == {len(group[0].log.terms)}
    group.check()


def test_it_is_readmitted_when_it_has_what_the_leader_has() -> None:
    group = forgetful_group()
    assert group[1].raft.possible_loss is PossibleLoss.LOG
    group.isolate(1)
    group[0].propose()
    group.deliver()
    assert group[0].raft.commit_index < group[0].log.last_index, "its acknowledgement from before does not count"
    group.heal()
    group.wait(2 * T)
    assert group[1].raft.possible_loss is PossibleLoss.NONE
    assert [effect for effect in group[1].history if isinstance(effect, Readmitted)]
    assert group[0].raft.commit_index == group[0].log.last_index
    group.down = {0}
    group.wait(10 * T)
    assert any(member.raft.role is Role.LEADER for member in group.members[1:])


def test_a_member_learns_from_the_leader_that_its_log_lost_its_end() -> None:
    group = Group()
    leader = group.elect(0)
    leader.propose(5)
    group.deliver()
    group.heartbeat(0)
    match = leader.raft.match_indexes[1]
    group[1].crash(keep=match - 3)
    assert group[1].raft.possible_loss is PossibleLoss.NONE
    group.wait(SETTINGS.append_timeout_seconds + 2 * HEARTBEAT)
    (doubted,) = [effect for effect in group[1].history if isinstance(effect, LossDetected)]
    assert doubted.match_index == match
    group.wait(2 * T)
    assert [effect for effect in group[1].history if isinstance(effect, Readmitted)]
    assert group[1].log.terms == leader.log.terms
    assert (leader.raft.role, leader.raft.term) == (Role.LEADER, 1)


def test_a_member_whose_loss_the_leader_found_elects_no_candidate() -> None:
    """Members 0 and 1 committed it. Then 1 loses it, is told, and 0 dies: 2, which never had it, must not lead."""
    group = Group()
    leader = group.elect(0)
    group.down = {2}
    leader.propose(5)
    group.deliver()
    assert leader.raft.commit_index == leader.log.last_index
    group[1].crash(keep=leader.log.last_index - 3)
    group.deliver()
    group[1].step(EntriesLost(0, 1, 1, leader.log.last_index))
    assert group[1].effects(LossDetected) == [], "it does not follow the sender yet"
    group[1].step(Heartbeat(0, 1, 1, 99, 0.0, -1))
    group[1].step(EntriesLost(0, 1, 1, leader.log.last_index))
    assert group[1].effects(LossDetected) == [LossDetected(leader.log.last_index)]
    group.down = {0}
    group.wait(10 * T)
    assert {member.raft.role for member in group.members[1:]} <= {Role.FOLLOWER, Role.PRE_CANDIDATE}
    group.down = set()
    group.wait(10 * T)
    assert {len(log) for log in group.logs()} == {len(leader.log.terms)}
    group.check()


def test_an_old_refusal_is_no_sign_of_a_loss() -> None:
    """The refusal was in flight while the member got the entries; the member itself knows that better."""
    member = Member(1, terms=[1, 1, 1, 1])
    member.step(Heartbeat(0, 1, 1, 1, 0.0, -1))
    assert member.step(EntriesLost(0, 1, 1, 3)) == []
    assert member.raft.possible_loss is PossibleLoss.NONE
    member.step(EntriesLost(0, 1, 1, 4))
    assert member.effects(LossDetected) == [LossDetected(4)]
    assert member.step(EntriesLost(0, 1, 1, 4)) == [], "once"


def test_what_it_acknowledged_before_is_not_counted_again() -> None:
    member = leader_of(5)
    for source in (1, 2):
        member.step(AppendReply(source, 0, 1, 0, 0, True, 0, 0))
    member.propose(5)
    late = AppendReply(1, 0, 1, 0, 0, True, 0, 5)
    beat = [m for m in member.sent if isinstance(m, Heartbeat) and m.target == 1][-1]
    member.step(HeartbeatReply(1, 0, 1, beat.round, beat.sent_at, -1, incarnation=77, possible_loss=PossibleLoss.LOG))
    assert member.raft.match_indexes[1] == -1
    member.step(AppendReply(1, 0, 1, session=0, incarnation=77, success=True, prev_index=0, match_index=5))
    assert member.raft.match_indexes[1] == -1, "an answer to what was sent before it stopped"
    member.step(late)
    assert member.raft.match_indexes[1] == -1
    member.step(AppendReply(2, 0, 1, 0, 0, True, 0, 5))
    assert member.raft.commit_index == 0


def test_a_leader_that_may_not_be_the_newest_readmits_no_member() -> None:
    """Member 0 led, and does not know that 1 and 2 have elected 2 since. What 1 lost then, 0 cannot give back."""
    group = Group()
    group.elect(0)
    group.isolate(0)
    group.pass_time(2 * T)
    group.expire(2)
    group.deliver()
    group[2].propose(3)
    group.deliver()
    committed = group[2].raft.commit_index
    group.down = {2}
    group[1].hard_state = HardState()
    group[1].crash(possible_loss=PossibleLoss.VOTES, keep=-1)
    group.heal()
    assert group[0].raft.role is Role.LEADER
    group.wait(5 * T)
    assert group[1].log.terms == group[0].log.terms, "it has everything that 0 has"
    assert group[1].raft.possible_loss is PossibleLoss.VOTES
    assert group[0].raft.role is Role.LEADER
    group[0].propose(5)
    group.wait(T)
    assert group[1].log.terms == group[0].log.terms
    assert group[0].raft.commit_index == 1, "its acknowledgements count for nothing: 2 may have committed other entries"
    group.down = set()
    group.wait(5 * T)
    assert all(member.raft.commit_index >= committed for member in group.members)


def test_when_all_have_forgotten_the_longest_log_leads_if_all_are_there() -> None:
    """Power loss of all members with asynchronous flushing: all remaining entries are kept."""
    group = Group()
    group.elect(0)
    group[0].propose(9)
    group.deliver()
    for number, keep in ((0, 3), (1, 7), (2, 5)):
        group[number].crash(possible_loss=PossibleLoss.LOG, keep=keep)
    group.committed.clear()
    group.down = {0}
    group.wait(10 * T)
    assert all(member.raft.role is not Role.LEADER for member in group.members), "one is missing: it may have more"
    group.down = set()
    group.wait(10 * T)
    assert {member.raft.possible_loss for member in group.members} == {PossibleLoss.NONE}
    assert group[1].log.terms[:8] == [1] * 8
    assert len({tuple(log) for log in group.logs()}) == 1


def test_votes_of_members_with_a_possible_loss_are_marked() -> None:
    member = Member(0, possible_loss=PossibleLoss.LOG)
    member.step(PreVoteRequest(1, 0, 1, 7, 0, -1))
    assert member.reply(PreVoteReply).possible_loss is PossibleLoss.LOG
    member.step(VoteRequest(1, 0, 1, 7, 0, -1))
    assert member.reply(VoteReply).possible_loss is PossibleLoss.LOG
    member.step(Heartbeat(1, 0, 1, 1, 0.0, -1))
    assert member.reply(HeartbeatReply).possible_loss is PossibleLoss.LOG


def test_readmission_is_for_this_start_and_for_who_has_everything() -> None:
    member = Member(0, terms=[1, 1], possible_loss=PossibleLoss.LOG, syncs=False)
    here = member.raft.incarnation
    member.step(Heartbeat(1, 0, 1, 1, 0.0, -1, incarnation=here, readmit_index=1))
    assert member.raft.possible_loss is PossibleLoss.LOG, "that its log agrees with the leader's is not known"
    member.step(AppendRequest(1, 0, 1, 0, 1, 1, (TermRun(1, 2),), -1))
    member.step(Heartbeat(1, 0, 1, 2, 0.0, -1, incarnation=here + 1, readmit_index=1))
    assert member.raft.possible_loss is PossibleLoss.LOG, "meant for another start of it"
    member.step(Heartbeat(1, 0, 1, 3, 0.0, -1, incarnation=here, readmit_index=2))
    assert member.raft.possible_loss is PossibleLoss.LOG, "entry 2 is not durable"
    member.sync()
    member.step(Heartbeat(1, 0, 1, 4, 0.0, -1, incarnation=here, readmit_index=2))
    assert member.effects(Readmitted)
    assert member.reply(HeartbeatReply).possible_loss is PossibleLoss.NONE


# -- an emptied disk (S14) ---------------------------------------------------------------------------------------------


def test_a_member_with_an_emptied_disk_catches_up_and_then_votes() -> None:
    group = Group()
    leader = group.elect(0)
    leader.propose(20)
    group.deliver()
    group[1].hard_state = HardState()
    group[1].crash(possible_loss=PossibleLoss.VOTES, keep=-1)
    group.wait(3 * T)
    assert group[1].log.terms == leader.log.terms
    assert group[1].raft.possible_loss is PossibleLoss.NONE
    group.down = {0}
    group.wait(10 * T)
    assert any(member.raft.role is Role.LEADER for member in group.members[1:])


def test_a_member_that_may_have_voted_does_not_vote_again_nor_stand() -> None:
    """It voted for 2, was emptied, and is asked by 1: with its first vote still on the way, both could win."""
    group = Group()
    group[1].step(VoteRequest(2, 1, 1, 7, 0, -1))
    late = next(m for m in group.network if isinstance(m, VoteReply) and m.granted)
    group.network.clear()
    group[1].hard_state = HardState()
    group[1].crash(possible_loss=PossibleLoss.VOTES, keep=-1)
    group.down = {2}
    group.wait(10 * T)
    assert all(member.raft.role is Role.FOLLOWER for member in (group[1],))
    assert group[0].raft.role is not Role.LEADER
    assert late.granted


def test_if_votes_may_be_lost_all_others_must_have_answered() -> None:
    """Of five: a majority is not enough, since the candidate that it once voted for may be the one that is missing."""
    for loss, readmitted in ((PossibleLoss.LOG, True), (PossibleLoss.VOTES, False)):
        group = Group(5)
        group.elect(0)
        group.down = {4}
        if loss is PossibleLoss.VOTES:
            group[1].hard_state = HardState()
        group[1].crash(possible_loss=loss, keep=0 if loss is PossibleLoss.LOG else -1)
        group.wait(3 * T)
        assert (group[1].raft.possible_loss is PossibleLoss.NONE) is readmitted
        group.down = set()
        group.wait(3 * T)
        assert group[1].raft.possible_loss is PossibleLoss.NONE


# -- behind the log's start (L11) --------------------------------------------------------------------------------------


def test_a_member_behind_the_start_of_the_log_gets_a_snapshot_and_then_entries() -> None:
    group = Group()
    leader = group.elect(0)
    group.isolate(2)
    leader.propose(50)
    group.deliver()
    leader.log.drop_before(30)
    group.heal()
    group.wait(2 * T)
    (installed,) = [effect for effect in group[2].history if isinstance(effect, InstallSnapshot)]
    assert (installed.request.snapshot_index, installed.request.snapshot_term) == (29, 1)
    assert group[2].log.first_index == 30
    assert group[2].log.terms == leader.log.terms
    assert group[2].raft.commit_index == leader.raft.commit_index


def test_others_are_served_while_a_snapshot_is_on_its_way() -> None:
    group = Group()
    leader = group.elect(0)
    group.isolate(2)
    leader.propose(50)
    group.deliver()
    leader.log.drop_before(30)
    group.heal()

    def slow(message: object) -> bool:
        return not isinstance(message, InstallRequest)

    group.pass_time(T)
    leader.tick()
    group.deliver(slow)
    leader.propose(5)
    group.deliver(slow)
    assert leader.raft.commit_index == leader.log.last_index
    installs = [effect for effect in leader.history if isinstance(effect, SendSnapshot)]
    assert len(installs) == 1, "it is not sent again before its time"
    group.wait(SETTINGS.install_timeout_seconds + HEARTBEAT)
    assert group[2].log.last_index == leader.log.last_index


def test_the_snapshot_brings_the_membership_along() -> None:
    group = Group()
    leader = group.elect(0)
    leader.propose(20)
    group.deliver()
    leader.log.drop_before(15)
    newcomer = group.join(3)
    leader.call(leader.raft.change_membership, AddLearner(3))
    group.deliver()
    group.wait(T)
    (installed,) = [effect for effect in newcomer.history if isinstance(effect, MembershipChanged)]
    assert installed.entry.index > 14, "the newest committed one, although its entry comes behind the snapshot"
    assert newcomer.raft.membership == Membership.of([0, 1, 2], [3])
    assert newcomer.raft.membership_index == leader.raft.membership_index


def test_a_snapshot_does_not_take_away_what_agrees_with_it() -> None:
    """Entries behind it were acknowledged, and may be committed without this member knowing it."""
    snapshot = InstallRequest(1, 0, 3, 0, 1, 1, MembershipEntry(-1, Membership.of([0, 1, 2])))
    member = Member(0, terms=[1, 1, 2, 2], term=3)
    member.step(snapshot)
    assert member.effects(InstallSnapshot) == []
    assert member.reply(AppendReply).match_index == 1
    other = Member(0, terms=[1, 2, 2, 2], term=3)
    other.step(snapshot)
    assert other.log.terms == []
    assert (other.raft.commit_index, other.log.first_index) == (1, 2)
    assert other.reply(AppendReply).match_index == 1


def test_a_snapshot_below_what_is_committed_is_not_needed() -> None:
    member = Member(0, terms=[1, 1, 1], term=3, commit_index=2)
    member.step(InstallRequest(1, 0, 3, 0, 1, 9, MembershipEntry(-1, Membership.of([0, 1, 2]))))
    assert member.effects(InstallSnapshot) == []
    assert member.log.terms == [1, 1, 1]


def test_a_snapshot_of_an_old_leader_is_answered_with_the_newer_term() -> None:
    member = Member(0, term=5)
    member.step(InstallRequest(1, 0, 3, 0, 1, 1, MembershipEntry(-1, Membership.of([0, 1, 2]))))
    assert (member.reply(AppendReply).term, member.reply(AppendReply).success) == (5, False)


def test_a_snapshot_that_could_not_be_written_changes_nothing() -> None:
    member = Member(0, terms=[1], term=3)
    member.fails = DiskState.FULL
    member.step(InstallRequest(1, 0, 3, 0, 9, 2, MembershipEntry(5, Membership.of([0, 1]))))
    assert member.raft.commit_index == -1
    assert member.raft.membership == Membership.of([0, 1, 2])
    assert member.log.terms == [1]


def test_a_snapshot_that_is_not_there_is_a_mistake_of_the_driver() -> None:
    member = Member(0, terms=[1], term=3)
    with pytest.raises(RuntimeError):
        member.raft.installed(0.0, InstallRequest(1, 0, 3, 0, 9, 2, MembershipEntry(5, Membership.of([0, 1]))))
    assert member.raft.commit_index == -1


def test_entries_that_are_deleted_under_a_slow_member_lead_to_a_snapshot() -> None:
    small = replace(SETTINGS, max_append_bytes=2 * ENTRY_BYTES, max_inflight_bytes=4 * ENTRY_BYTES)
    group = Group(settings=small)
    leader = group.elect(0)
    leader.propose(40)
    slow = [m for m in group.network if isinstance(m, AppendRequest) and m.target == 2]
    for message in slow:
        group.network.remove(message)
    group.deliver()
    leader.log.drop_before(20)
    for message in slow:
        group[2].step(message)
    group.deliver()
    assert group[2].log.last_index == leader.log.last_index
    assert group[2].log.first_index == 20


# -- starting (D6) -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hint", "commit_index"), [(-1, 1), (0, 1), (3, 3), (99, 4)])
def test_the_saved_commit_index_is_a_hint_within_the_log(hint: int, commit_index: int) -> None:
    member = Member(0, terms=[1] * 5)
    member.log.drop_before(2)
    member.start(commit_index=hint)
    assert member.raft.commit_index == commit_index


def test_a_log_that_another_program_wrote_from_term_0_is_a_log() -> None:
    member = Member(0, voters=[0], terms=[0, 0, 3, 3])
    member.tick()
    assert member.raft.role is Role.LEADER
    assert (member.raft.term, member.log.terms) == (4, [0, 0, 3, 3, 4])
    assert member.effects(Commit) == [Commit(4)]


def test_who_forgot_the_membership_does_not_count_the_voters_of_the_past() -> None:
    """{0, 1} became {0, 1, 2}, and 0 and 2 committed more. Then 0 loses its log to damage, and 2 is down: 0 and 1 are
    all voters that either of them knows of, and must not begin a history without those entries."""
    group = Group(2)
    leader = group.elect(0)
    group.join(2)
    leader.call(leader.raft.change_membership, AddLearner(2))
    group.wait(2 * T)
    group.isolate(1)  # hears of nothing more
    group.cuts -= {(0, 1), (1, 0)}
    leader.call(leader.raft.change_membership, Promote(2))
    group.deliver(lambda message: message.target != 1 or not isinstance(message, AppendRequest))
    seen = leader.raft.membership_index
    group.cut(0, 1)
    leader.propose(3)
    group.deliver()
    committed = leader.raft.commit_index
    assert committed > seen > group[1].log.last_index
    group.down.add(2)
    leader.crash(possible_loss=PossibleLoss.LOG, keep=0)
    group.heal()
    group.wait(20 * T)
    assert not [member for member in group.members[:2] if member.raft.role is Role.LEADER]
    group.down.clear()
    group.wait(20 * T)
    assert group[0].raft.possible_loss is PossibleLoss.NONE
    assert {member.log.last_index >= committed for member in group.members} == {True}
    assert group[2].log.terms[: committed + 1] == group[0].log.terms[: committed + 1]


def test_who_forgot_that_it_is_not_alone_does_not_lead_alone() -> None:
    group = Group(1)
    leader = group.elect(0)
    group.join(1)
    for change in (AddLearner(1), Promote(1)):
        leader.call(leader.raft.change_membership, change)
        group.wait(2 * T)
    leader.propose(3)
    group.deliver()
    committed = leader.raft.commit_index
    group.down.add(1)
    leader.crash(possible_loss=PossibleLoss.LOG, keep=0)
    assert leader.raft.membership == Membership.of([0])
    group.wait(20 * T)
    assert leader.raft.role is not Role.LEADER
    group.down.clear()
    group.wait(20 * T)
    assert leader.raft.possible_loss is PossibleLoss.NONE and leader.raft.commit_index >= committed


def test_a_follower_with_a_full_disk_does_not_stand() -> None:
    member = Member(0, terms=[1])
    member.disk(DiskState.FULL)
    member.expire()
    assert member.raft.role is Role.FOLLOWER
    member.disk(DiskState.OK)
    member.expire()
    assert member.raft.role is Role.PRE_CANDIDATE


def test_a_leader_of_the_past_hears_of_the_newer_term() -> None:
    """Its entries and its snapshots are answered with a refusal that names the term: it steps down by that."""
    member = Member(0, terms=[1], term=5)
    for request in (ENTRIES, InstallRequest(1, 0, 2, 0, 9, 2, MembershipEntry(3, Membership.of([0, 1, 2])))):
        member.step(request)
        reply = member.reply(AppendReply)
        assert (reply.target, reply.term, reply.success) == (1, 5, False)


def test_an_answer_to_an_earlier_round_comes_too_late() -> None:
    leader = leader_of()
    rounds = []
    for _ in range(3):
        leader.tick(HEARTBEAT)
        rounds.append(next(beat for beat in leader.messages(Heartbeat) if beat.target == 1))
    for beat in (rounds[2], rounds[0]):
        leader.step(HeartbeatReply(1, 0, beat.term, beat.round, beat.sent_at, -1, 0))
    peer = leader.raft.peers[1]
    assert (peer.acked_round, peer.acked_at) == (rounds[2].round, rounds[2].sent_at)
