"""The arithmetic beside the core, each against something slow and obvious."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raft_lab import SETTINGS, MemoryLog, T

from tallystick.replication.acknowledgements import Acknowledgements
from tallystick.replication.durable import PossibleLoss
from tallystick.replication.election import Campaign, ElectionTimer
from tallystick.replication.leadership import Leadership
from tallystick.replication.membership import Membership, MembershipEntry, MembershipError, MembershipHistory
from tallystick.replication.messages import AppendReply, TermRun
from tallystick.replication.reads import Read, Reads
from tallystick.replication.sender import Sender
from tallystick.replication.settings import RaftSettings
from tallystick.replication.term_runs import TermRuns
from tallystick.store.settings import SettingsError

terms = st.lists(st.integers(0, 6), max_size=30).map(sorted)


def runs_of(terms_: list[int], first: int) -> tuple[TermRun, ...]:
    runs: list[TermRun] = []
    for index, term in enumerate(terms_, first):
        if runs and runs[-1].term == term:
            runs.pop()
        runs.append(TermRun(term, index))
    return tuple(runs)


# -- terms of the log --------------------------------------------------------------------------------------------------


@given(terms=terms, base=st.integers(-1, 5), data=st.data())
@settings(max_examples=200)
def test_term_runs_agree_with_a_list(terms: list[int], base: int, data: st.DataObject) -> None:
    log = MemoryLog(terms, base, -1 if base < 0 else min([*terms, 6]))
    runs = TermRuns.of(log)
    for _ in range(3):
        assert (runs.base_index, runs.last_index) == (log.base_index, log.last_index)
        assert runs.last_term == log.term_of(log.last_index)
        for index in range(base - 2, log.last_index + 3):
            assert runs.term_of(index) == log.term_of(index)
        for index in range(log.first_index, log.last_index + 1):
            same = [at for at in range(log.base_index, log.last_index + 1) if log.term_of(at) == log.term_of(index)]
            assert runs.first_of_run(index) == min(same)
            last = data.draw(st.integers(index - 1, log.last_index))
            assert runs.runs(index, last) == runs_of([log.term_of(at) or 0 for at in range(index, last + 1)], index)
        for term in range(-1, 9):
            same = [at for at in range(log.base_index, log.last_index + 1) if log.term_of(at) == term]
            assert runs.last_of_term(term) == (max(same) if same else None)
        kept = data.draw(st.integers(log.base_index, log.last_index))
        log.truncate(kept)
        runs.truncate(kept)
        count, rise = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 2))
        term = max(0, runs.last_term) + rise
        log.terms += [term] * count
        runs.append(term, log.last_index)


@given(mine=terms, theirs=terms, data=st.data())
@settings(max_examples=200)
def test_logs_agree_up_to_the_first_term_that_differs(mine: list[int], theirs: list[int], data: st.DataObject) -> None:
    prev = data.draw(st.integers(-1, len(theirs) - 1))
    theirs = mine[: prev + 1] + theirs[prev + 1 :]
    prev = min(prev, len(mine) - 1)
    agreed = prev
    while agreed + 1 < min(len(mine), len(theirs)) and mine[agreed + 1] == theirs[agreed + 1]:
        agreed += 1
    runs = TermRuns.of(MemoryLog(mine))
    assert runs.agree_up_to(prev, runs_of(theirs[prev + 1 :], prev + 1)) == agreed


def test_finding_the_terms_of_a_long_log_reads_little_of_it() -> None:
    asked = 0

    class Counting(MemoryLog):
        def term_of(self, index: int) -> int | None:
            nonlocal asked
            asked += 1
            return super().term_of(index)

    TermRuns.of(Counting([1] * 100_000 + [3] * 50_000))
    assert asked < 60


# -- majorities --------------------------------------------------------------------------------------------------------


@given(matches=st.lists(st.integers(-1, 20), min_size=1, max_size=6), own=st.integers(-1, 20), voter=st.booleans())
def test_committed_is_what_a_majority_has(matches: list[int], own: int, voter: bool) -> None:
    others = range(1, len(matches) + 1)
    membership = Membership.of([*others, 0] if voter else others)
    log = MemoryLog()
    sender = Sender(0, 1, SETTINGS, log, TermRuns.of(log), MembershipHistory([MembershipEntry(-1, membership)]))
    leading = Leadership(0, membership, 0, sender, now=0.0)
    for peer, match in zip(leading.voters, matches, strict=True):
        peer.match_index = match
    held = [*matches, own] if voter else matches
    best = max(
        index for index in range(-1, 21) if index == -1 or sum(m >= index for m in held) > len(membership.voters) / 2
    )
    assert leading.committed_index(own) == best


@pytest.mark.parametrize(("size", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)])
def test_quorums(size: int, quorum: int) -> None:
    assert Membership.of(range(size)).quorum == quorum


@given(
    size=st.integers(1, 6),
    answers=st.lists(st.tuples(st.integers(0, 7), st.booleans(), st.sampled_from(list(PossibleLoss))), max_size=12),
)
def test_a_campaign_is_won_by_a_majority_without_doubts_or_by_all(
    size: int, answers: list[tuple[int, bool, PossibleLoss]]
) -> None:
    membership = Membership.of(range(size))
    campaign = Campaign(5, 1, pre=False)
    for voter, granted, loss in answers:
        campaign.count(voter, granted=granted, possible_loss=loss)
    doubtful = {voter for voter, _, loss in answers if loss is PossibleLoss.LOG}  # the others do not answer
    agreed = {voter for voter, granted, loss in answers if granted and loss is not PossibleLoss.VOTES and voter < size}
    assert campaign.won(membership) is (len(agreed) == size or len(agreed - doubtful) > size / 2)


# -- small machines ----------------------------------------------------------------------------------------------------


def test_the_timer_fires_late_once_forgiven() -> None:
    timer = ElectionTimer(T, Random(1), 0.0)
    assert not timer.expired(timer.deadline - 0.001)
    assert timer.expired(timer.deadline)
    assert timer.expired(timer.deadline + T / 2)
    late = timer.deadline + T / 2 + 0.001
    assert not timer.expired(late)
    assert late + T <= timer.deadline < late + 2 * T
    assert timer.expired(timer.deadline + 100.0)


@given(
    requests=st.lists(st.integers(0, 20), max_size=15),
    syncs=st.lists(st.integers(0, 20), max_size=5).map(sorted),
)
def test_acknowledgements_say_as_much_as_is_durable_and_never_more(requests: list[int], syncs: list[int]) -> None:
    waiting = Acknowledgements()
    for match_index in requests:
        waiting.add(AppendReply(0, 1, 1, 0, 0, True, 0, match_index))
    told = -1
    for synced in syncs:
        reply = waiting.covered(synced)
        due = max([match for match in requests if match <= synced], default=-1)
        if reply is not None:
            assert told < reply.match_index <= synced
            told = reply.match_index
        # What a reordered request would have added is told with the one that overtook it.
        overtaken = any(match > synced for match in requests)
        assert told == due or overtaken


def test_reads_gather_while_a_round_is_out() -> None:
    reads = Reads()
    reads.add(Read(1, None))
    assert reads.round_wanted
    reads.sent(1, 10)
    reads.add(Read(2, None))
    reads.add(Read(3, 4))
    assert not reads.round_wanted
    assert list(reads.confirmed(0)) == []
    assert list(reads.confirmed(1)) == [(10, Read(1, None))]
    assert reads.round_wanted
    reads.sent(2, 11)
    assert reads.oldest_round == 2
    assert reads.drain() == [Read(2, None), Read(3, 4)]
    assert reads.drain() == []


def test_a_history_of_memberships_falls_back_and_keeps_the_oldest() -> None:
    entries = [MembershipEntry(index, Membership.of(range(count))) for index, count in ((-1, 1), (4, 2), (9, 3))]
    history = MembershipHistory(entries)
    assert history.latest is entries[2]
    assert history.at(8) is entries[1]
    assert history.at(9) is entries[2]
    assert history.between(5, 9) == (entries[2],)
    assert history.between(4, 8) == (entries[1],)
    assert history.between(10, 99) == ()
    history.truncate(8)
    assert history.latest is entries[1]
    history.truncate(-1)
    assert history.latest is entries[0]
    history.reset(entries[2])
    history.truncate(-1)
    assert history.latest is entries[2], "that of a snapshot is committed"
    with pytest.raises(MembershipError):
        MembershipHistory(reversed(entries))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("heartbeat_interval_seconds", 0.0),
        ("election_timeout_seconds", 0.15),
        ("max_append_bytes", 0),
        ("max_inflight_bytes", 1),
        ("clock_drift", 1.0),
        ("clock_drift", -0.1),
    ],
)
def test_settings_that_cannot_work_are_refused(key: str, value: float) -> None:
    with pytest.raises(SettingsError) as error:
        RaftSettings(**{key: value}).validate()  # type: ignore[arg-type]
    assert error.value.key == key


def test_the_defaults_work() -> None:
    SETTINGS.validate()


# -- who is counted on by a leader -------------------------------------------------------------------------------------


def test_a_leader_that_left_does_not_confirm_for_the_others() -> None:
    leading = Leadership(0, Membership.of([1, 2, 3]), 0, None, 0.0)
    back, answered, silent = (leading.peers[number] for number in (1, 2, 3))
    back.possible_loss, answered.acked_round, silent.acked_round = PossibleLoss.LOG, 5, 4
    assert not leading.confirmed_without(back, 5), "one of three voters said so"
    silent.acked_round = 5
    assert leading.confirmed_without(back, 5)


def test_leadership_moves_to_the_most_advanced_healthy_member() -> None:
    leading = Leadership(0, Membership.of([0, 1, 2, 3, 4]), 0, None, 0.0)
    for number, (match, acked_at) in enumerate([(9, 10.0), (30, 4.9), (20, 5.0), (40, 10.0)], 1):
        leading.peers[number].match_index, leading.peers[number].acked_at = match, acked_at
    leading.peers[4].possible_loss = PossibleLoss.LOG
    best = leading.best_successor(5.0)
    assert best is not None and best.member == 3
    assert leading.best_successor(11.0) is None
