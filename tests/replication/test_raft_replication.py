"""The log of the core: what a follower takes, keeps and answers; what a leader sends, counts and commits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raft_lab import ENTRY_BYTES, HEARTBEAT, SETTINGS, Group, Member, T, at, leader_of

from tallystick.replication.effects import AppendOwn, Commit, Ready, Refused, Role, Send, Truncate, Write
from tallystick.replication.messages import AppendReply, AppendRequest, Heartbeat, TermRun
from tallystick.store.formats.ledger_format import EntryKind

SMALL = replace(SETTINGS, max_append_bytes=2 * ENTRY_BYTES, max_inflight_bytes=6 * ENTRY_BYTES)


def append(
    prev: tuple[int, int], *terms: int, term: int | None = None, commit_index: int = -1, source: int = 1
) -> AppendRequest:
    """From member 1 to member 0: entries of these terms behind the entry `prev` (term, index)."""
    prev_term, index = prev
    runs: list[TermRun] = []
    last = index
    for each in terms:
        last += 1
        if runs and runs[-1].term == each:
            runs.pop()
        runs.append(TermRun(each, last))
    leader_term = term if term is not None else max([0, prev_term, *terms])
    return AppendRequest(source, 0, leader_term, 0, index, prev_term, tuple(runs), commit_index)


def follower(*terms: int, **options: object) -> Member:
    return Member(0, terms=terms, **options)  # type: ignore[arg-type]


# -- what a follower takes (S5, S6, S7) --------------------------------------------------------------------------------


def test_entries_that_follow_are_taken() -> None:
    member = follower(1, 1)
    member.step(append((1, 1), 1, 2))
    assert member.log.terms == [1, 1, 1, 2]
    assert member.reply(AppendReply).match_index == 3


def test_entries_behind_a_gap_are_refused_with_the_end_of_the_log() -> None:
    member = follower(1, 1)
    member.step(append((1, 7), 1))
    reply = member.reply(AppendReply)
    assert (reply.success, reply.conflict_term, reply.conflict_index) == (False, None, 2)
    assert member.log.terms == [1, 1]


def test_entries_behind_a_different_entry_are_refused_with_its_whole_term() -> None:
    member = follower(1, 1, 2, 2, 2)
    member.step(append((3, 4), 3))
    reply = member.reply(AppendReply)
    assert (reply.success, reply.conflict_term, reply.conflict_index) == (False, 2, 2)


def test_a_tail_that_differs_makes_room() -> None:
    member = follower(1, 1, 2, 2)
    member.step(append((1, 1), 3))
    assert [type(effect) for effect in member.done if not isinstance(effect, Send)][-2:] == [Truncate, Write]
    assert member.log.terms == [1, 1, 3]


def test_only_what_differs_is_cut() -> None:
    member = follower(1, 1, 2, 2)
    member.step(append((1, 0), 1, 2, 3))
    assert member.effects(Truncate) == [Truncate(2)]
    (write,) = member.effects(Write)
    assert write.first_index == 3
    assert member.log.terms == [1, 1, 2, 3]


def test_an_older_request_does_not_shorten_a_log_that_agrees() -> None:
    member = follower(1)
    newer = append((1, 0), 1, 1, 1)
    older = append((1, 0), 1)
    member.step(newer)
    member.step(older)
    assert member.effects(Truncate) == []
    assert member.log.terms == [1, 1, 1, 1]
    assert member.reply(AppendReply).match_index == 1, "and is answered for what it held"


def test_an_append_without_entries_never_cuts() -> None:
    member = follower(1, 1, 1)
    member.step(append((1, 0), term=3))
    assert member.log.terms == [1, 1, 1]


def test_appends_may_come_in_any_order() -> None:
    """A leader's pipeline over two connections: the second comes first, and the leader finds its way."""
    group = Group(settings=SMALL)
    leader = group.elect(0)
    leader.propose(6)
    queued = [m for m in group.network if isinstance(m, AppendRequest) and m.target == 1]
    assert len(queued) == 3
    group.network.clear()
    for message in reversed(queued):
        group[1].step(message)
    group.deliver()
    group.wait(2 * T)
    assert group[1].log.terms == leader.log.terms
    assert leader.raft.commit_index == leader.log.last_index


def test_what_is_committed_is_never_cut() -> None:
    member = follower(1, 1, 1, commit_index=1)
    member.step(append((1, 0), 2, 2))
    (refused,) = member.effects(Refused)
    assert "S7" in refused.reason
    assert member.log.terms == [1, 1, 1]
    assert not member.messages(AppendReply)
    member.step(append((1, 2), 1, term=2))
    assert member.reply(AppendReply).success, "a leader that has what is committed is followed again"


def test_a_leader_that_has_another_committed_entry_is_refused() -> None:
    member = follower(1, 1, 1, commit_index=2)
    member.step(append((2, 1), 2))
    assert member.effects(Refused) and not member.messages(AppendReply)


def test_entries_whose_term_falls_behind_the_own_ones_are_refused() -> None:
    member = follower(1, 3, 3)
    member.log.drop_before(2)
    member.start()
    member.step(append((1, 0), 1, 1, 1, term=3))
    assert member.effects(Refused)
    assert member.log.terms == [3]


def test_entries_before_the_log_begins_agree() -> None:
    member = follower(1, 1, 1, 2, 2, commit_index=4)
    member.log.drop_before(3)
    member.start(commit_index=4)
    member.step(append((1, 0), 1, 1, 2, 2, 2))
    assert member.log.last_index == 5
    assert member.reply(AppendReply).match_index == 5
    member.step(append((1, 0), 1, term=2))
    assert member.reply(AppendReply).match_index == 1


# -- what a follower answers (S8, S9, D2) ------------------------------------------------------------------------------


def test_a_longer_tail_is_neither_answered_for_nor_committed() -> None:
    """Its own entries 2 to 4 are of an old leader; the new one knows nothing of them, nor may it think that it does."""
    member = follower(1, 1, 2, 2, 2)
    member.step(append((1, 1), term=3, commit_index=4))
    assert member.reply(AppendReply).match_index == 1
    assert member.raft.commit_index == 1


def test_a_heartbeat_commits_only_what_was_seen_to_agree() -> None:
    member = follower(1, 1, 2, 2, 2)
    member.step(Heartbeat(1, 0, 3, 1, 0.0, commit_index=4))
    assert member.raft.commit_index == -1
    member.step(append((1, 1), 3, term=3))
    assert member.raft.commit_index == 2, "of entry 2 it knows now, and the leader had committed it"


def test_the_answer_waits_for_the_disk() -> None:
    member = follower(1, syncs=False)
    member.step(append((1, 0), 1, commit_index=1))
    assert member.messages(AppendReply) == []
    assert member.raft.commit_index == 0, "nor is anything applied that a power loss would take"
    member.sync()
    assert member.reply(AppendReply).match_index == 1
    assert member.raft.commit_index == 1


def test_a_heartbeat_commits_nothing_that_is_not_durable() -> None:
    member = follower(1, syncs=False)
    member.step(append((1, 0), 1))
    member.step(Heartbeat(1, 0, 1, 1, 0.0, commit_index=1))
    assert member.raft.commit_index == 0
    member.sync()
    assert member.raft.commit_index == 1


def test_many_requests_wait_for_one_sync_and_are_answered_as_far_as_it_went() -> None:
    member = follower(1, syncs=False)
    for index in range(4):
        member.step(append((1, index), 1))
    member.call(member.raft.synced, 2)
    assert member.reply(AppendReply).match_index == 2
    member.call(member.raft.synced, 2)
    assert member.messages(AppendReply) == []
    member.sync()
    assert member.reply(AppendReply).match_index == 4


def test_a_repeated_request_waits_for_the_disk_as_well() -> None:
    member = follower(1, syncs=False)
    member.step(append((1, 0), 1))
    member.step(append((1, 0), 1))
    assert member.messages(AppendReply) == []
    member.step(append((1, 0), term=1))
    assert member.reply(AppendReply).match_index == 0, "what it has is answered at once"


def test_a_sync_is_no_answer_to_a_leader_of_the_past() -> None:
    """Written for the leader of term 1, which is gone when the disk is ready. The one of term 2 asks for itself."""
    member = follower(1, syncs=False)
    member.step(append((1, 0), 1, 1))
    member.step(Heartbeat(2, 0, 2, 1, 0.0, -1))
    member.sync()
    assert member.messages(AppendReply) == []
    member.step(append((1, 1), 1, 2, source=2))
    assert member.messages(AppendReply) == []
    member.sync()
    reply = member.reply(AppendReply)
    assert (reply.target, reply.term, reply.match_index) == (2, 2, 3)


def test_what_a_new_leader_cut_is_not_synced_by_what_was() -> None:
    member = follower(1, syncs=False)
    member.step(append((1, 0), 1, 1, 1))
    member.sync()
    member.step(append((1, 0), 2, 2, source=2))
    assert member.raft.synced_index == 0
    assert member.messages(AppendReply) == []
    member.sync()
    assert member.reply(AppendReply).match_index == 2


# -- what a leader counts (S10, D3) ------------------------------------------------------------------------------------


def accept(member: Member, source: int, match_index: int, **changes: object) -> None:
    member.step(at(AppendReply(source, 0, member.raft.term, 0, 0, True, match_index, match_index), **changes))


def test_a_leader_may_send_before_its_own_disk_but_counts_itself_only_behind_it() -> None:
    member = leader_of(syncs=False)
    assert member.raft.match_indexes == {1: -1, 2: -1}
    assert [m.target for m in member.sent if isinstance(m, AppendRequest)] == [1, 2]
    accept(member, 1, 0)
    assert member.raft.commit_index == -1, "one follower and an unsynced leader are no majority"
    member.sync()
    assert member.raft.commit_index == 0
    assert member.effects(Ready)


def test_a_disk_that_is_quicker_than_the_word_of_what_was_put_into_the_log() -> None:
    """Alone in its group nothing else would tell it: neither another sync nor an answer."""
    member = Member(0, voters=[0])
    member.tick()
    member.log.terms.append(1)
    member.call(member.raft.synced, 1)
    member.call(member.raft.appended)
    assert member.raft.commit_index == 1


def test_two_followers_commit_without_the_leader() -> None:
    member = leader_of(syncs=False)
    accept(member, 1, 0)
    accept(member, 2, 0)
    assert member.raft.commit_index == 0
    assert member.raft.synced_index == -1


def test_an_entry_of_an_older_term_is_not_committed_by_being_counted() -> None:
    """Figure 8 of the paper. Entry 1 of term 2 is on a majority, and may yet be lost; the no-op of term 4 saves it."""
    member = leader_of(terms=[1, 2], term=3)
    assert member.raft.term == 4
    accept(member, 1, 1)
    accept(member, 2, 1)
    assert member.raft.commit_index == -1
    accept(member, 1, 2)
    assert member.raft.commit_index == 2
    assert member.effects(Commit) == [Commit(2)]


def test_figure_8_in_full() -> None:
    """An entry on a majority is overwritten: it was not committed, so it must not have been acknowledged."""
    group = Group(5)
    group.elect(0)
    for other in (2, 3, 4):
        group.cut(0, other)
    group[0].propose()  # (a) entry 2 of term 1, on members 0 and 1
    group.deliver()
    group.down = {0}
    group.heal()
    group.expire(4)  # (b) entry 2 of term 2, on member 4 only
    group.deliver(lambda message: not isinstance(message, AppendRequest) and message.target != 1)
    assert group[4].log.terms[2] == 2
    group.down = {4}
    group[0].crash()
    group[4].crash()

    def but_not_the_no_op(message: object) -> bool:
        if not isinstance(message, AppendRequest):
            return True
        return message.target == 2 and not (message.prev_index == 2 and group[2].log.last_index == 2)

    for _ in range(2):  # the first answers say which term it is; then (c) entry 2 of term 1 goes to member 2 as well
        group.expire(0)
        group.deliver(but_not_the_no_op)
    assert group[0].raft.role is Role.LEADER
    assert [group[number].log.terms[2] for number in (0, 1, 2)] == [1, 1, 1]
    assert group[0].raft.commit_index == 1
    group.down = {0}  # (d)
    group.elect(4)
    assert [group[number].log.terms[2] for number in (1, 2, 3, 4)] == [2, 2, 2, 2]


def test_replies_of_an_older_term_or_session_count_for_nothing() -> None:
    member = leader_of(term=3)
    accept(member, 1, 0, term=3)
    accept(member, 1, 0, session=5)
    assert member.raft.match_indexes[1] == -1
    accept(member, 9, 0)
    assert member.raft.commit_index == -1, "nor do strangers'"


def test_a_late_answer_does_not_lower_what_is_known() -> None:
    member = leader_of()
    accept(member, 1, 0)
    member.propose(3)
    accept(member, 1, 3)
    accept(member, 1, 1)
    assert member.raft.match_indexes[1] == 3


def test_no_member_is_counted_twice() -> None:
    member = leader_of(5, syncs=False)
    for _ in range(5):
        accept(member, 1, 0)
    assert member.raft.commit_index == -1


# -- finding where two logs part (L6, L7) ------------------------------------------------------------------------------


def logs_meet(mine: list[int], theirs: list[int], term: int) -> int:
    """Round trips until the follower has the leader's log."""
    group = Group()
    for member, terms in zip(group.members, (mine, theirs, mine), strict=True):
        member.log.terms, member.durable_index = list(terms), len(terms) - 1
        member.hard_state = replace(member.hard_state, term=term)
        member.start()
    group.cut(0, 1)
    group.elect(0)
    group.heal()
    group.network.clear()
    refused = len(group[1].history)
    group.wait(3 * T)
    assert group[1].log.terms == group[0].log.terms
    replies = [e.message for e in group[1].history[refused:] if isinstance(e, Send)]
    return sum(isinstance(reply, AppendReply) and not reply.success for reply in replies)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ([1] * 500, [1] * 3),
        ([1] * 500, []),
        ([1] * 10 + [4] * 300, [1] * 10 + [2] * 200),
        ([1] * 10 + [2] * 5 + [4] * 300, [1] * 10 + [2] * 200),
        ([1] * 10 + [5] * 300, [1] * 10 + [2] * 50 + [3] * 100),
    ],
)
def test_logs_that_parted_long_ago_meet_in_a_few_round_trips(mine: list[int], theirs: list[int]) -> None:
    assert logs_meet(mine, theirs, term=6) <= 3


def test_before_a_match_is_known_one_request_is_out_and_then_many() -> None:
    member = leader_of(settings=SMALL)
    appends = [m for m in member.sent if isinstance(m, AppendRequest) and m.target == 1]
    assert len(appends) == 1
    accept(member, 2, 0)
    member.propose(10)
    assert [m.target for m in member.messages(AppendRequest)] == [2, 2, 2], "six of ten entries fit the window"
    accept(member, 2, 2)
    assert [m.last_index for m in member.messages(AppendRequest)] == [8]
    accept(member, 1, 0)
    assert {m.target for m in member.messages(AppendRequest)} == {1}


def test_a_probe_carries_one_entry() -> None:
    """What it carries may be refused; a megabyte each time would be a waste."""
    member = leader_of(terms=[1] * 5, term=1)
    member.step(AppendReply(1, 0, 2, 0, 0, False, 4, -1, conflict_index=2))
    (probe,) = member.messages(AppendRequest)
    assert (probe.prev_index, probe.last_index) == (1, 2)


def test_members_that_are_not_equally_far_get_what_each_lacks() -> None:
    member = leader_of(terms=[1, 1, 3, 3], term=3)
    accept(member, 1, 1)
    (to_1,) = member.messages(AppendRequest)
    assert (to_1.prev_term, to_1.prev_index, to_1.runs) == (1, 1, (TermRun(3, 3), TermRun(4, 4)))
    accept(member, 2, 3)
    (to_2,) = member.messages(AppendRequest)
    assert (to_2.prev_term, to_2.prev_index, to_2.runs) == (3, 3, (TermRun(4, 4),))


def test_the_window_holds_at_least_one_entry() -> None:
    tiny = replace(SETTINGS, max_append_bytes=1, max_inflight_bytes=1)
    member = leader_of(settings=tiny)
    accept(member, 1, 0)
    member.propose(3)
    assert len(member.messages(AppendRequest)) == 1
    accept(member, 1, 1)
    assert [m.last_index for m in member.messages(AppendRequest)] == [2]


def test_silence_leads_back_to_probing() -> None:
    group = Group(settings=SMALL)
    leader = group.elect(0)
    group.cut(0, 1)
    leader.propose(6)
    group.deliver()
    assert leader.raft.commit_index == leader.log.last_index, "the other follower is not held up"
    group.heal()
    group.wait(SETTINGS.append_timeout_seconds + 2 * HEARTBEAT)
    assert group[1].log.terms == leader.log.terms


def test_a_link_that_opens_is_tried_at_once() -> None:
    group = Group(settings=SMALL)
    leader = group.elect(0)
    group.cut(0, 1)
    leader.propose(6)
    group.deliver()
    group.heal()
    leader.call(leader.raft.link_opened, 1)
    group.deliver()
    assert group[1].log.terms == leader.log.terms


def test_refusals_of_a_whole_pipeline_make_one_probe() -> None:
    member = leader_of(settings=SMALL, terms=[1] * 5, term=1)
    accept(member, 1, 5)
    member.propose(6)
    requests = member.messages(AppendRequest)
    assert len(requests) == 3
    refusals = [AppendReply(1, 0, 2, 0, 0, False, m.prev_index, -1, conflict_index=6) for m in requests[1:]]
    member.step(refusals[0])
    assert [m.prev_index for m in member.messages(AppendRequest)] == [5]
    member.step(refusals[1])
    assert member.messages(AppendRequest) == []


def test_a_refusal_of_what_was_accepted_since_is_old() -> None:
    member = leader_of()
    accept(member, 1, 0)
    member.step(AppendReply(1, 0, 1, 0, 0, False, -1, -1, conflict_index=0))
    assert member.messages(AppendRequest) == []


def test_two_followers_that_are_equally_far_get_the_same_entries() -> None:
    member = leader_of(5)
    accept(member, 1, 0)
    accept(member, 2, 0)
    accept(member, 3, -1, prev_index=-1)
    member.propose(2)
    member.propose(1)
    requests = member.messages(AppendRequest)
    assert [(m.target, m.prev_index, m.last_index) for m in requests] == [(1, 2, 3), (2, 2, 3), (3, 2, 3)]
    assert all(m.runs == (TermRun(1, 3),) for m in requests)


def test_followers_hear_of_a_commit_with_the_next_heartbeat() -> None:
    group = Group()
    leader = group.elect(0)
    leader.propose()
    group.deliver()
    assert group[1].raft.commit_index < leader.raft.commit_index
    group.heartbeat(0)
    assert group[1].raft.commit_index == leader.raft.commit_index


def test_a_follower_that_restarts_hears_of_the_commit_without_new_entries() -> None:
    group = Group()
    leader = group.elect(0)
    group[1].start(commit_index=-1)
    group.heartbeat(0)
    group.heartbeat(0)
    assert group[1].raft.commit_index == leader.raft.commit_index


# -- a term's beginning (S11) ------------------------------------------------------------------------------------------


def test_ready_comes_once_and_behind_the_commit_of_the_no_op() -> None:
    member = leader_of()
    assert not member.raft.accepting
    accept(member, 1, 0)
    kinds = [type(effect) for effect in member.done]
    assert kinds.index(Commit) < kinds.index(Ready)
    assert member.raft.accepting
    member.propose()
    accept(member, 1, 1)
    assert member.effects(Ready) == []


def test_the_no_op_commits_what_the_term_before_left() -> None:
    group = Group()
    group.elect(0)
    group.isolate(0)
    group[0].propose()
    group.deliver()
    group.heal()
    group.cut(0, 2)
    group.heartbeat(0)
    group[0].call(group[0].raft.link_opened, 1)
    group.deliver(lambda message: not isinstance(message, AppendReply))
    assert group[1].log.last_index == 2
    group.down = {0}
    group.elect(1)
    assert group[1].raft.commit_index >= 3, "the entry of term 1 and the no-op"
    assert group[2].log.terms == group[1].log.terms


def test_a_former_leader_takes_no_entries() -> None:
    member = Member(0)
    with pytest.raises(RuntimeError):
        member.raft.appended(0.0)


def test_a_message_for_another_member_is_dropped() -> None:
    member = Member(0)
    assert member.step(Heartbeat(1, 2, 9, 1, 0.0, -1)) == []
    assert member.raft.term == 0


def test_the_own_entry_is_a_no_op() -> None:
    member = leader_of()
    (own,) = [effect for effect in member.history if isinstance(effect, AppendOwn)]
    assert own.kind is EntryKind.NO_OP
