"""The judge of a simulation says what is broken, and only then: each invariant, broken by hand."""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).resolve().parent)
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from simulator.clock import Clock, EventQueue  # noqa: E402
from simulator.disk import DamagedEntryError, Disk, Entry  # noqa: E402
from simulator.member import Member  # noqa: E402
from simulator.network import Network, Weather  # noqa: E402
from simulator.oracle import Oracle, Violation  # noqa: E402
from simulator.profiles import ASYNCHRONOUS, PEACE  # noqa: E402
from simulator.simulation import Simulation  # noqa: E402

from tallystick.replication.durable import DiskState, PossibleLoss  # noqa: E402
from tallystick.replication.effects import AppendOwn, Role  # noqa: E402
from tallystick.replication.membership import Membership, MembershipEntry  # noqa: E402
from tallystick.replication.messages import (  # noqa: E402
    AppendReply,
    Heartbeat,
    InstallRequest,
    Message,
    PreVoteRequest,
    VoteReply,
    VoteRequest,
)
from tallystick.store.formats.ledger_format import EntryKind  # noqa: E402

THREE = Membership.of(range(3))


class Group:
    """Three members whose states are set by hand."""

    def __init__(self) -> None:
        self.simulation = Simulation(0, PEACE)
        self.oracle: Oracle = self.simulation.oracle
        for member_id in range(3):
            self.simulation.members[member_id] = Member(self.simulation, member_id, Disk(THREE), Clock(1.0, 0.0))

    def __getitem__(self, member_id: int) -> Member:
        return self.simulation.members[member_id]

    def log(self, member_id: int, *terms: int, synced: bool = True, payload: str = "") -> None:
        """Appends entries of these terms; those of the same index and term are the same entry, but for `payload`."""
        member = self[member_id]
        first = member.disk.last_index + 1
        entries = [
            Entry(term, EntryKind.MESSAGE, f"{index}/{term}{payload}") for index, term in enumerate(terms, first)
        ]
        member.disk.append(entries)
        self.oracle.appended(member, first, entries)
        if synced:
            member.disk.synced_index = member.disk.last_index

    def elect(self, member_id: int, term: int, voters: set[int]) -> None:
        for voter in voters:
            self.oracle.saved_vote(self[voter], term, member_id)
            self[voter].disk.term, self[voter].disk.voted_for = term, member_id
        self[member_id].running, self[member_id].role = True, Role.LEADER
        self.oracle.became_leader(self[member_id], term)

    def commit(self, member_id: int, index: int) -> None:
        self.oracle.committed_to(self[member_id], index)
        self[member_id].commit_index = index


@pytest.fixture
def group() -> Group:
    return Group()


def breaks(invariant: str) -> "pytest.RaisesExc[Violation]":
    return pytest.raises(Violation, match=rf"^{invariant}")


def test_a_group_that_does_everything_right(group: Group) -> None:
    group.elect(0, 1, {0, 1})
    group.log(0, 1, 1, 1)
    group.log(1, 1, 1)
    group.commit(0, 1)
    group.oracle.became_ready(group[0], 1)
    group.oracle.acknowledge(group[0], 1, group[0].disk.entry(1))
    group.commit(1, 1)
    group[0].role = Role.FOLLOWER
    group.elect(1, 2, {1, 2})
    group.log(1, 2)
    group.log(2, 1, 1, 2)
    group.commit(1, 2)
    group.oracle.truncated(group[0], 1)
    group[0].disk.truncate(1)
    group.log(0, 2)
    group.oracle.answered_read(group[0], 1, 1)
    group.oracle.compare_logs()


# -- votes and terms ---------------------------------------------------------------------------------------------------


def test_terms_on_the_disk_do_not_fall(group: Group) -> None:
    group[0].disk.term = 4
    with breaks("term monotonic on disk"):
        group.oracle.saved_vote(group[0], 3, None)


def test_a_second_vote(group: Group) -> None:
    group[0].disk.term, group[0].disk.voted_for = 4, 1
    group.oracle.saved_vote(group[0], 4, 1)
    group.oracle.saved_vote(group[0], 5, 2)
    with breaks("one vote a term"):
        group.oracle.saved_vote(group[0], 4, 2)


def test_two_leaders_of_a_term(group: Group) -> None:
    group.elect(0, 1, {0, 1})
    for voter in (0, 1):
        group[voter].disk.term, group[voter].disk.voted_for = 0, None
    with breaks("election safety"):
        group.elect(1, 1, {1, 2})


def test_a_leader_without_a_majority(group: Group) -> None:
    with breaks("a leader has a majority's votes"):
        group.elect(0, 1, {0})


def test_a_leader_that_lacks_what_is_committed(group: Group) -> None:
    group.elect(0, 1, {0, 1})
    group.log(0, 1, 1)
    group.log(1, 1, 1)
    group.commit(0, 1)
    group.log(2, 1)
    with breaks("leader completeness"):
        group.elect(2, 2, {1, 2})


def test_a_leader_that_has_another_entry_there(group: Group) -> None:
    """Longer is not better: the entry is one of a later term than what is committed there, by a leader of long ago."""
    group.elect(0, 3, {0, 1})
    group.log(0, 3)
    group.log(1, 3)
    group.commit(0, 0)
    group.log(2, 2, 2, 2)
    with breaks("leader completeness"):
        group.elect(2, 4, {1, 2})


def test_a_commit_that_a_newer_leader_lacks(group: Group) -> None:
    group.elect(0, 1, {0, 1})
    group.log(0, 1)
    group.log(1, 1)
    group.elect(2, 2, {1, 2})
    with breaks("leader completeness"):
        group.oracle.committed_to(group[0], 0)


# -- logs --------------------------------------------------------------------------------------------------------------


def test_one_index_and_term_two_entries(group: Group) -> None:
    group.log(0, 1)
    with breaks("log matching"):
        group.log(1, 1, payload="!")


def test_one_entry_two_pasts(group: Group) -> None:
    group.log(0, 1, 3)
    with breaks("log matching"):
        group.log(1, 2, 3)


def test_terms_fall_along_a_log(group: Group) -> None:
    with breaks("terms never fall"):
        group.log(0, 2, 1)


def test_the_slow_twin_sees_two_pasts_as_well(group: Group) -> None:
    for member_id, payload in ((0, "a"), (1, "b")):
        group[member_id].disk.append([Entry(1, EntryKind.MESSAGE, payload), Entry(2, EntryKind.MESSAGE, "same")])
    with breaks("log matching"):
        group.oracle.compare_logs()


def test_a_leader_cuts_its_log(group: Group) -> None:
    group[0].role = Role.LEADER
    group.log(0, 1, 1)
    with breaks("leader append-only"):
        group.oracle.truncated(group[0], 0)


def test_what_is_committed_is_cut(group: Group) -> None:
    group.log(0, 1, 1)
    group[0].commit_index = 1
    with breaks("committed entries stay"):
        group.oracle.truncated(group[0], 0)


def test_bases(group: Group) -> None:
    group.oracle._bootstrap = THREE
    group.elect(0, 1, {0, 1})
    group.log(0, 1, 1, 1)
    group.log(1, 1, 1, 1)
    group.commit(0, 1)
    group.oracle.installed(group[2], snapshot(1, 1))
    with breaks("a snapshot is committed"):
        group.oracle.installed(group[2], snapshot(2, 1))
    with breaks("a snapshot is committed"):
        group.oracle.installed(group[2], snapshot(1, 2))
    with breaks("the membership of a snapshot is committed"):
        group.oracle.installed(group[2], replace(snapshot(1, 1), membership=MembershipEntry(2, THREE)))
    with breaks("the membership of a snapshot is committed"):
        group.oracle.installed(group[2], replace(snapshot(1, 1), membership=MembershipEntry(-1, Membership.of([0, 1]))))
    group.commit(1, 1)
    with breaks("committed entries stay"):
        group.oracle.installed(group[1], snapshot(0, 1))


def snapshot(index: int, term: int) -> InstallRequest:
    return InstallRequest(0, 2, 1, 0, index, term, MembershipEntry(-1, THREE))


# -- commit ------------------------------------------------------------------------------------------------------------


def committing(group: Group) -> None:
    group.elect(0, 1, {0, 1})
    group.log(0, 1, 1)
    group.log(1, 1, 1)
    group.commit(0, 0)


def test_the_commit_index_rises_and_never_exceeds_the_log(group: Group) -> None:
    committing(group)
    group.commit(0, 1)
    with breaks("commit index monotonic"):
        group.commit(0, 0)
    with breaks("commit index at most last index"):
        group.commit(0, 2)


def test_a_commit_that_a_majority_has_not_synced(group: Group) -> None:
    group.elect(0, 1, {0, 1})
    group.log(0, 1)
    group.log(1, 1, synced=False)
    with breaks("a commit is durable on a majority"):
        group.commit(0, 0)


def test_a_commit_that_is_durable_on_the_wrong_ones(group: Group) -> None:
    """Another entry at that index counts for nothing, and neither does what a member in doubt has since."""
    group.elect(0, 2, {0, 1})
    group.log(0, 2)
    group.log(1, 1)
    group.log(2, 2)
    group[2].disk.possible_loss = PossibleLoss.VOTES
    with breaks("a commit is durable on a majority"):
        group.commit(0, 0)
    group[2].disk.former_last_index = 0  # it had it before: what it said then is still true of the group
    group.commit(0, 0)


def test_a_commit_of_an_earlier_term_alone(group: Group) -> None:
    group.log(0, 1)
    group.log(1, 1)
    group.elect(0, 2, {0, 1})
    with breaks("a leader counts only entries of its term"):
        group.commit(0, 0)


def test_a_follower_commits_what_no_leader_has(group: Group) -> None:
    committing(group)
    group.commit(1, 0)
    with breaks("applied equality"):
        group.commit(1, 1)


def test_a_follower_commits_another_entry(group: Group) -> None:
    group.log(2, 0)
    committing(group)
    with breaks("applied equality"):
        group.commit(2, 0)


def test_ready_too_early(group: Group) -> None:
    group.elect(0, 1, {0, 1})
    group.log(0, 1)
    with breaks("ready behind a commit"):
        group.oracle.became_ready(group[0], 1)


def test_what_is_acknowledged_is_committed(group: Group) -> None:
    committing(group)
    group.oracle.acknowledge(group[0], 0, group[0].disk.entry(0))
    with breaks("acknowledged entries are committed"):
        group.oracle.acknowledge(group[0], 1, group[0].disk.entry(1))
    with breaks("acknowledged entries are committed"):
        group.oracle.acknowledge(group[0], 0, group[0].disk.entry(1))


def test_a_stale_read(group: Group) -> None:
    group.oracle.answered_read(group[0], 7, 7)
    with breaks("linearizable reads"):
        group.oracle.answered_read(group[0], 6, 7)


# -- membership and doubt ----------------------------------------------------------------------------------------------


def test_membership_changes(group: Group) -> None:
    def change(index: int) -> AppendOwn:
        return AppendOwn(index, 1, EntryKind.MEMBERSHIP, Membership.of(range(4)))

    group.elect(0, 1, {0, 1})
    group.log(0, 1, 1)
    group.log(1, 1, 1)
    with breaks("membership change only after a commit in the own term"):
        group.oracle.proposed_membership(group[0], change(2))
    group.commit(0, 1)
    group.oracle.proposed_membership(group[0], change(2))
    group[0].disk.append([Entry(1, EntryKind.MEMBERSHIP, Membership.of(range(4)))])
    with breaks("one membership change at a time"):
        group.oracle.proposed_membership(group[0], change(3))


def test_who_belongs_to_the_group_does_not_leave(group: Group) -> None:
    group.oracle.committed.append(Entry(1, EntryKind.MEMBERSHIP, Membership.of([0, 1])))
    group.oracle.committed.append(Entry(1, EntryKind.MESSAGE, "later"))
    group.oracle.left(group[2], 1)
    with breaks("only who was removed leaves"):
        group.oracle.left(group[1], 1)
    with breaks("only who was removed leaves"):
        group.oracle.left(group[2], 2)


def test_readmitted_too_early(group: Group) -> None:
    committing(group)
    group[1].disk = Disk.emptied(group[1].disk, THREE)
    with breaks("readmitted with all that it had"):
        group.oracle.readmitted(group[1])
    group.log(1, 1)
    group.oracle.readmitted(group[1])  # the other one was not committed, so it was not acknowledged


# -- what is said ------------------------------------------------------------------------------------------------------


def heartbeat(term: int = 1, commit_index: int = -1, source: int = 0) -> Heartbeat:
    return Heartbeat(source, 1, term, 1, 0.0, commit_index)


def success(match_index: int) -> AppendReply:
    return AppendReply(1, 0, 2, 0, 0, True, -1, match_index, DiskState.OK)


@pytest.mark.parametrize(
    ("invariant", "sender", "message"),
    [
        ("messages name their sender", 0, heartbeat(source=2)),
        ("term durable before it is told", 0, heartbeat(term=3)),
        ("commit before it is told", 0, heartbeat(commit_index=1)),
        ("entries durable before success is told", 1, success(2)),
        ("success tells what matches", 1, success(1)),
        ("own vote durable before votes are asked for", 1, VoteRequest(1, 2, 2, 0, 2, 2)),
        ("a candidate tells its own log's end", 0, VoteRequest(0, 2, 2, 0, 2, 0)),
        ("vote durable before it is given", 1, VoteReply(1, 2, 2, 0, True)),
    ],
)
def test_what_is_said_is_true(group: Group, invariant: str, sender: int, message: Message) -> None:
    """Member 0 leads term 2 with [1, 2]; member 1 voted for it and has [1, 1, 1], the last one not synced."""
    group.log(0, 1)
    group.elect(0, 2, {0, 1})
    group.log(0, 2)
    group.log(1, 1, 1)
    group.log(1, 1, synced=False)
    for truth in (
        heartbeat(term=2),
        PreVoteRequest(0, 2, 3, 0, 2, 1),
        VoteRequest(0, 2, 2, 0, 2, 1),
    ):
        group.oracle.sent(group[0], truth)
    for reply in (success(0), VoteReply(1, 0, 2, 0, True), VoteReply(1, 2, 2, 0, False)):
        group.oracle.sent(group[1], reply)
    with breaks(invariant):
        group.oracle.sent(group[sender], message)


# -- the disk ----------------------------------------------------------------------------------------------------------


def disk(synced: int, last: int) -> Disk:
    made = Disk(THREE)
    made.append([Entry(1, EntryKind.MESSAGE, index) for index in range(last + 1)])
    made.synced_index = synced
    return made


def test_power_loss_takes_a_part_of_what_was_not_synced() -> None:
    ends = set()
    for seed in range(200):
        volume = disk(synced=4, last=8)
        volume.lose_power(random.Random(seed))
        volume.recover()
        assert not volume.possible_loss
        assert [entry.payload for entry in volume.entries] == list(range(volume.last_index + 1))
        ends.add(volume.last_index)
    assert ends == {4, 5, 6, 7, 8}


def test_what_each_of_two_emptied_disks_had_is_known() -> None:
    first = disk(synced=1, last=1)
    again = Disk.emptied(first, None)
    again.append([Entry(2, EntryKind.MESSAGE, "of another term")])
    again.synced_index = 0
    assert Disk.emptied(again, None).lost == {(0, 1), (1, 1), (0, 2)}


def test_damage_is_not_cut_in_silence() -> None:
    volume = disk(synced=4, last=6)
    volume.damaged = {3}
    with pytest.raises(DamagedEntryError, match="entry 3"):
        volume.read(2, 5)
    assert [entry.payload for entry in volume.read(4, 5)] == [4, 5]
    volume.recover()
    assert (volume.last_index, volume.possible_loss, volume.lost) == (2, PossibleLoss.LOG, {(3, 1), (4, 1)})
    torn = disk(synced=4, last=6)
    torn.damaged = {5}
    torn.recover()
    assert (torn.last_index, torn.possible_loss) == (4, PossibleLoss.NONE)


def test_an_unclean_stop_of_the_asynchronous_mode_is_a_doubt() -> None:
    simulation = Simulation(3, ASYNCHRONOUS)
    member = simulation.members[0] = Member(simulation, 0, disk(synced=1, last=3), Clock(1.0, 0.0))
    assert member.promised_index == 3
    member.disk.distrust_unsynced()
    member.disk.lose_power(random.Random(1))
    member.disk.recover()
    assert member.disk.possible_loss is PossibleLoss.LOG
    assert all(member.holds(index, 1) for index in range(4)), "it was counted for these"
    assert not member.holds(4, 1)


def test_memberships_fall_back_with_the_log() -> None:
    volume = disk(synced=1, last=1)
    four = Membership.of(range(4))
    volume.append([Entry(1, EntryKind.MEMBERSHIP, four)])
    assert volume.membership == four
    volume.synced_index = 2
    volume.drop_before(2)
    assert (volume.first_index, volume.term_of(1), volume.memberships[0].index) == (2, 1, -1)
    volume.truncate(1)
    assert volume.membership == THREE


# -- network and time --------------------------------------------------------------------------------------------------


def carried(prepare: Callable[[Network], None], count: int = 200) -> tuple[list[float], Network]:
    """When packets from 0 to 1 arrive, that were all sent at once."""
    queue, arrivals = EventQueue(), []
    network = Network(queue, random.Random(1), Simulation(0, PEACE).faults, lambda message: arrivals.append(queue.now))
    prepare(network)
    for _ in range(count):
        network.send(heartbeat())
    queue.run_until(10.0)
    return arrivals, network


def test_partitions_are_directed_and_add_up() -> None:
    def cut(network: Network) -> None:
        network.block([(0, 1)])
        network.block([(0, 1), (2, 1)])
        network.unblock([(0, 1)])

    assert carried(cut)[0] == []
    assert len(carried(lambda network: network.block([(1, 0)]))[0]) == 200
    assert len(carried(lambda network: network.block([(0, 1)], bulk_only=True))[0]) == 200

    def repaired(network: Network) -> None:
        cut(network)
        network.unblock([(0, 1), (2, 1)])
        assert not network.blocked

    assert len(carried(repaired)[0]) == 200


def test_weather() -> None:
    def storm(network: Network) -> None:
        network.weather = Weather(loss=0.3, duplicate=0.3, late=0.3, late_seconds=2.0)

    arrivals, _ = carried(storm, 1000)
    assert 800 < len(arrivals) < 1000
    assert max(arrivals) > 1.9
    assert sum(moment > 0.01 for moment in arrivals) > 200


def test_events_of_one_moment_keep_their_order() -> None:
    queue = EventQueue()
    seen: list[object] = []
    for number in range(5):
        queue.after(1.0, seen.append, number)
    queue.at(0.5, seen.append, "first")
    queue.run_until(2.0)
    assert seen == ["first", 0, 1, 2, 3, 4]
    assert queue.now == 2.0


def test_a_clock_runs_at_its_own_rate_and_jumps_forwards() -> None:
    clock = Clock(1.5, 100.0)
    assert clock.read(10.0) == 115.0
    clock.jump(2.0)
    assert clock.read(10.0) == 117.0
