"""What goes wrong: each fault is a function of the run and of how long it lasts. How often is for `profiles` to say.

A fault counts itself in `simulation.faults` under the name by which a profile asks for it. Those that last have their
end in the queue when they begin, at the latest where the chaos of the run ends. All choices come from the run's dice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.replication.durable import DiskState
from tallystick.replication.effects import (
    AppendOwn,
    Commit,
    InstallSnapshot,
    MembershipChanged,
    ReadFailed,
    Readmitted,
    ReadReady,
    Ready,
    RoleChanged,
    SaveVote,
    Send,
    SendSnapshot,
    TransferEnded,
    Truncate,
    Write,
)
from tallystick.replication.membership import AddLearner, Change, Promote, Remove

from .disk import Disk
from .member import Member
from .network import Weather
from .oracle import Violation
from .process import CrashPoint

if TYPE_CHECKING:
    from .simulation import Simulation

Fault = Callable[["Simulation", float], None]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    FAULTS[function.__name__.replace("_", " ")] = function
    return function


def victim(simulation: Simulation) -> Member | None:
    """A running member; often one that leads, since most mistakes need a leader to show."""
    dice = simulation.dice
    running = [member for member in simulation.members.values() if member.running]
    leaders = [member for member in running if member.leads]
    if leaders and dice.random() < 0.4:
        return dice.choice(leaders)
    return dice.choice(running) if running else None


def some_leader(simulation: Simulation) -> Member | None:
    """Who leads, as far as it knows; there may be more than one."""
    leaders = [member for member in simulation.members.values() if member.leads]
    return simulation.dice.choice(leaders) if leaders else None


# -- the network -------------------------------------------------------------------------------------------------------


Links = list[tuple[int, int]]


def _cut(simulation: Simulation, seconds: float, links: Links) -> None:
    simulation.network.block(links)
    simulation.queue.after(seconds, simulation.network.unblock, links)


def _between(simulation: Simulation, member: Member) -> Links:
    """All links of a member, both ways."""
    others = [each for each in simulation.members if each != member.id]
    return [(member.id, each) for each in others] + [(each, member.id) for each in others]


def _to(simulation: Simulation, member: Member) -> Links:
    return [(each, member.id) for each in simulation.members if each != member.id]


@fault
def partition(simulation: Simulation, seconds: float) -> None:
    """Two sides that hear nothing of each other."""
    one, other = _sides(simulation, list(simulation.members))
    _cut(simulation, seconds, [(a, b) for a in one for b in other] + [(b, a) for a in one for b in other])


@fault
def one_way_partition(simulation: Simulation, seconds: float) -> None:
    """One side is heard and does not hear."""
    one, other = _sides(simulation, list(simulation.members))
    _cut(simulation, seconds, [(a, b) for a in one for b in other])


@fault
def bridge(simulation: Simulation, seconds: float) -> None:
    """Two sides that meet only in one member, which hears both."""
    ids = list(simulation.members)
    if len(ids) < 3:
        return
    ids.remove(simulation.dice.choice(ids))
    one, other = _sides(simulation, ids)
    _cut(simulation, seconds, [(a, b) for a in one for b in other] + [(b, a) for a in one for b in other])


@fault
def dead_link(simulation: Simulation, seconds: float) -> None:
    """One direction between two members."""
    ids = list(simulation.members)
    if len(ids) > 1:
        one, other = simulation.dice.sample(ids, 2)
        _cut(simulation, seconds, [(one, other)])


@fault
def new_connection(simulation: Simulation, seconds: float) -> None:
    """A leader is notified that its link to a member was opened again; messages in flight still arrive."""
    del seconds
    leader = some_leader(simulation)
    if leader is not None:
        leader.link_opened(simulation.dice.choice(list(simulation.members)))


@fault
def congestion(simulation: Simulation, seconds: float) -> None:
    """What is sent to one member queues up on the way."""
    member = victim(simulation)
    if member is not None:
        _slow_down(simulation, seconds, member)


@fault
def stuck_bulk_lane(simulation: Simulation, seconds: float) -> None:
    """A member gets heartbeats, votes and commits, and no entries."""
    member = victim(simulation)
    if member is not None:
        _block_bulk(simulation, seconds, member)


def _block_bulk(simulation: Simulation, seconds: float, member: Member) -> None:
    links = _to(simulation, member)
    simulation.network.block(links, bulk_only=True)
    simulation.queue.after(seconds, _unblock_bulk, simulation, links)


def _unblock_bulk(simulation: Simulation, links: Links) -> None:
    simulation.network.unblock(links, bulk_only=True)


@fault
def answers_stuck_on_the_way(simulation: Simulation, seconds: float) -> None:
    """To a leader, which is then cut off: it hears what others said long ago while they elect another one."""
    leader = some_leader(simulation)
    if leader is not None:
        _slow_down(simulation, 0.2, leader)
        simulation.queue.after(0.2, _cut, simulation, max(seconds - 0.2, 0.0), _between(simulation, leader))


def _slow_down(simulation: Simulation, seconds: float, member: Member) -> None:
    links = _to(simulation, member)
    simulation.network.lag.update(dict.fromkeys(links, 0.8))
    simulation.queue.after(seconds, _speed_up, simulation, links)


def _speed_up(simulation: Simulation, links: Links) -> None:
    for link in links:
        simulation.network.lag.pop(link, None)


@fault
def minority_back_with_a_stuck_lane(simulation: Simulation, seconds: float) -> None:
    """A leader and who still follows it have entries of their own; back again, they hear what is committed before they
    hear what that is."""
    leader = some_leader(simulation)
    if leader is None:
        return
    dice, others = simulation.dice, [each for each in simulation.members if each != leader.id]
    companions = dice.sample(others, max(0, len(others) // 2 - dice.randint(0, 1)))
    minority = [leader.id, *companions]
    rest = [each for each in others if each not in companions]
    _cut(simulation, seconds, [(a, b) for a in minority for b in rest] + [(b, a) for a in minority for b in rest])
    for each in minority:
        simulation.queue.after(seconds, _block_bulk, simulation, 0.4, simulation.members[each])


@fault
def leader_back_with_a_full_disk(simulation: Simulation, seconds: float) -> None:
    """A leader is cut off with uncommitted entries; after its return it cannot write the entries that replaced them."""
    leader = some_leader(simulation)
    if leader is not None and not leader.disk_full:
        _cut(simulation, seconds, _between(simulation, leader))
        simulation.queue.after(seconds, leader.set_full, True)
        simulation.queue.after(seconds + 0.4, leader.set_full, False)


@fault
def leader_out_of_sight(simulation: Simulation, seconds: float) -> None:
    """One follower and the leader lose each other. Nothing is proposed meanwhile, so that its log stays good enough for
    the others, who still hear the leader, to elect it."""
    leader = some_leader(simulation)
    if leader is not None and len(simulation.members) > 2:
        follower = simulation.dice.choice([each for each in simulation.members if each != leader.id])
        _cut(simulation, seconds, [(leader.id, follower), (follower, leader.id)])
        simulation.clients.quiet_until = simulation.queue.now + seconds


@fault
def bad_weather(simulation: Simulation, seconds: float) -> None:
    """Loss, duplicates, and packets that are late by more than an election takes."""
    dice = simulation.dice
    simulation.network.weather = Weather(
        loss=dice.choice((0.0, 0.1, 0.3)),
        duplicate=dice.choice((0.0, 0.1, 0.3)),
        delay=dice.choice((0.003, 0.03)),
        late=dice.choice((0.0, 0.1, 0.4)),
        late_seconds=dice.choice((0.1, 1.0, 4.0)),
    )
    simulation.queue.after(seconds, _calm_down, simulation, simulation.network.weather)


def _calm_down(simulation: Simulation, weather: Weather) -> None:
    if simulation.network.weather is weather:
        simulation.network.weather = simulation.profile.weather


def _sides(simulation: Simulation, ids: list[int]) -> tuple[list[int], list[int]]:
    """Two sides, neither of them empty if there are two members; often one is a single member that leads."""
    dice = simulation.dice
    leaders = [member.id for member in simulation.members.values() if member.leads and member.id in ids]
    if leaders and dice.random() < 0.4:
        one = [dice.choice(leaders)]
    else:
        one = dice.sample(ids, dice.randint(1, max(1, len(ids) - 1)))
    return one, [each for each in ids if each not in one]


# -- processes and clocks ----------------------------------------------------------------------------------------------

BOUNDARIES = (
    SaveVote,
    Truncate,
    Write,
    AppendOwn,
    Send,
    Commit,
    RoleChanged,
    Ready,
    MembershipChanged,
    SendSnapshot,
    InstallSnapshot,
    Readmitted,
    ReadReady,
    ReadFailed,
    TransferEnded,
)
"""Where a process may die: before and after each of these. The others end it, or are told to people only."""


@fault
def crash(simulation: Simulation, seconds: float) -> None:
    """Now, whatever the process is about."""
    member = victim(simulation)
    if member is not None and simulation.may_crash(member):
        member.crash()
        simulation.restart_later(member, seconds)


@fault
def crash_at_boundary(simulation: Simulation, seconds: float) -> None:
    """Just before or just after one of the next effects of a kind."""
    member = victim(simulation)
    if member is not None and simulation.may_crash(member):
        dice = simulation.dice
        member.crash_at = CrashPoint(dice.choice(BOUNDARIES), dice.random() < 0.5, dice.randint(1, 3), seconds * 0.5)


@fault
def power_cut(simulation: Simulation, seconds: float) -> None:
    """All at once; they come back one by one."""
    if simulation.profile.asynchronous_flush:
        return  # this mode loses data then by its definition (D9)
    for member in simulation.members.values():
        if member.running:
            member.crash()
            simulation.restart_later(member, seconds * simulation.dice.random())


@fault
def stall(simulation: Simulation, seconds: float) -> None:
    member = victim(simulation)
    if member is not None:
        member.stall(seconds)


@fault
def clock_jump(simulation: Simulation, seconds: float) -> None:
    """Forwards, by about what an election takes."""
    member = victim(simulation)
    if member is not None:
        member.clock.jump(seconds)


# -- disks -------------------------------------------------------------------------------------------------------------


@fault
def slow_disk(simulation: Simulation, seconds: float) -> None:
    member = victim(simulation)
    if member is not None:
        member.slowness = simulation.dice.choice((10.0, 100.0, 400.0))
        simulation.queue.after(seconds, setattr, member, "slowness", 1.0)


@fault
def full_disk(simulation: Simulation, seconds: float) -> None:
    member = victim(simulation)
    if member is not None and not member.disk_full:
        member.set_full(True)
        simulation.queue.after(seconds, member.set_full, False)


def _all_disks(simulation: Simulation, seconds: float, state: DiskState) -> list[Member]:
    """Members hold the same data, and fill up together, if not in the same moment; room comes back in the same way."""
    members = list(simulation.members.values())
    for member in members:
        simulation.queue.after(simulation.dice.uniform(0.0, 0.2), member.set_room, state)
        simulation.queue.after(seconds + simulation.dice.uniform(0.2, 0.4), member.set_room, DiskState.OK)
    if simulation.profile.calm_but_for_room and seconds > ROOM_SECONDS:
        simulation.queue.after(ROOM_SECONDS - 1.0, _expect_a_leader, simulation, state, len(simulation.oracle.leaders))
    return members


ROOM_SECONDS = 5.5
"""After so long without room on any disk, and nothing else wrong, the group has to be as it can be: time for some
elections in which the votes are split."""


def _expect_a_leader(simulation: Simulation, state: DiskState, leaders_before: int) -> None:
    """One leads, and none was elected more often than the members' running full one after the other explains (L10).

    With full disks no member may lead: one that just got leadership cannot write its first entry.
    """
    leading = [member for member in simulation.members.values() if member.leads and member.raft.ready]
    states = "; ".join(member.state() for member in simulation.members.values())
    if len(leading) != 1 and state is DiskState.LOW:
        raise Violation("a group without room keeps a leader (L10)", states)
    elected = len(simulation.oracle.leaders) - leaders_before
    if elected > len(simulation.members) + 1:
        raise Violation("leadership does not wander for want of room (L10)", f"{elected} elections: {states}")
    if state is DiskState.LOW:
        simulation.clients.propose()
        simulation.queue.after(0.9, _expect_progress, simulation, simulation.oracle.acknowledged)


def _expect_progress(simulation: Simulation, acknowledged: int) -> None:
    if simulation.oracle.acknowledged == acknowledged:
        states = "; ".join(member.state() for member in simulation.members.values())
        raise Violation("a group with little room commits its own entries (L10)", states)


@fault
def all_disks_low(simulation: Simulation, seconds: float) -> None:
    _all_disks(simulation, seconds, DiskState.LOW)


@fault
def all_disks_full(simulation: Simulation, seconds: float) -> None:
    """Nothing can be written at all: this must not cause repeated elections."""
    _all_disks(simulation, seconds, DiskState.FULL)


@fault
def leader_dies_on_low_disks(simulation: Simulation, seconds: float) -> None:
    _all_disks(simulation, seconds, DiskState.LOW)
    simulation.queue.after(0.4, _kill_leader, simulation, seconds)


def _kill_leader(simulation: Simulation, seconds: float) -> None:
    leader = some_leader(simulation)
    if leader is not None and len(simulation.members) > 2:
        leader.crash()
        simulation.restart_later(leader, seconds)


@fault
def low_disk(simulation: Simulation, seconds: float) -> None:
    member = victim(simulation)
    if member is not None and not member.disk_full:
        member.set_room(DiskState.LOW)
        simulation.queue.after(seconds, member.set_room, DiskState.OK)


@fault
def failing_sync(simulation: Simulation, seconds: float) -> None:
    """The disk returns errors until the process is restarted on a repaired one (D7)."""
    member = victim(simulation)
    if member is not None and not member.sync_fails and simulation.may_crash(member):
        member.sync_fails = True
        simulation.queue.after(seconds, _repair, simulation, member)


def _repair(simulation: Simulation, member: Member) -> None:
    member.sync_fails = False
    member.crash()
    simulation.restart_later(member, 0.1)


@fault
def bit_flip(simulation: Simulation, seconds: float) -> None:
    """In one entry of a member, found when that is read or at the next start; of a minority only."""
    del seconds
    dice = simulation.dice
    candidates = [m for m in simulation.members.values() if m.disk.entries and simulation.may_damage(m)]
    if candidates:
        member = dice.choice(candidates)
        disk = member.disk
        lowest, newest_membership = disk.first_index, disk.memberships[-1].index
        # Near the end lies what others may not have yet; with a membership a member forgets who belongs to the group.
        low = dice.choice((lowest, max(lowest, disk.last_index - 3), max(lowest, newest_membership - 1)))
        low = min(low, disk.last_index)  # a snapshot may bring a membership whose entry is still to come
        disk.damaged.add(min(dice.randint(low, disk.last_index), dice.randint(low, disk.last_index)))
        if dice.random() < 0.7 and member.running:
            member.crash()
            simulation.restart_later(member, dice.uniform(0.05, 1.0))


@fault
def emptied_disk(simulation: Simulation, seconds: float) -> None:
    """A known member comes back with nothing (S14); of a minority only."""
    dice = simulation.dice
    candidates = [m for m in simulation.members.values() if not m.removed and simulation.may_damage(m)]
    if candidates:
        member = dice.choice(candidates)
        _replace_disk(simulation, member)
        simulation.restart_later(member, seconds * 0.5)


@fault
def emptied_disk_beside_a_sleeping_leader(simulation: Simulation, seconds: float) -> None:
    """The leader sleeps while others elect another one; awake, it meets only a member that remembers nothing."""
    leader = some_leader(simulation)
    if leader is not None and len(simulation.members) > 2:
        forgetful = simulation.dice.choice([each for each in simulation.members if each != leader.id])
        _cut(simulation, seconds, [link for link in _between(simulation, leader) if forgetful not in link])
        leader.stall(seconds * 0.7)
        simulation.queue.after(seconds * 0.6, _empty_disk, simulation, simulation.members[forgetful])


def _empty_disk(simulation: Simulation, member: Member) -> None:
    if simulation.may_damage(member):
        _replace_disk(simulation, member)
        simulation.restart_later(member, 0.05)


def _replace_disk(simulation: Simulation, member: Member) -> None:
    member.crash()
    member.disk = Disk.emptied(member.disk, simulation.bootstrap_of(member.id))


@fault
def log_start_moved(simulation: Simulation, seconds: float) -> None:
    """Old segments are deleted on one member: no fault, but others may still need them (L11)."""
    del seconds
    member = victim(simulation)
    if member is not None and member.commit_index >= member.disk.first_index:
        keep_from = min(member.commit_index, member.disk.synced_index) + 1 - simulation.dice.randint(0, 3)
        if keep_from > member.disk.first_index and not member.busy:
            member.disk.drop_before(keep_from)


# -- one follower only: the others have nothing to complain of ---------------------------------------------------------


@fault
def follower_out_of_reach(simulation: Simulation, seconds: float) -> None:
    """The member receives nothing, or no member receives its messages, or both."""
    member = simulation.scapegoat()
    if member is not None:
        heard, hears = simulation.dice.choice(((True, False), (False, True), (False, False)))
        inward = _to(simulation, member)
        _cut(simulation, seconds, ([] if hears else inward) + ([] if heard else [(b, a) for a, b in inward]))


@fault
def follower_trouble(simulation: Simulation, seconds: float) -> None:
    """It is killed, perhaps with the end of its log lost; or stands still, or its clock jumps, or its disk is slow, or
    what it is sent queues up."""
    member = simulation.scapegoat()
    if member is None or not member.running:
        return
    match simulation.dice.choice(("killed", "shortened", "stalled", "jumps", "slow", "queues")):
        case "killed" | "shortened" as what:
            member.crash()
            if what == "shortened":  # whose leader stays, and knows better
                member.disk.shorten(simulation.dice)
            simulation.restart_later(member, seconds)
        case "stalled":
            member.stall(seconds)
        case "jumps":
            member.clock.jump(seconds)
        case "slow":
            member.slowness = 100.0
            simulation.queue.after(seconds, setattr, member, "slowness", 1.0)
        case "queues":
            _slow_down(simulation, seconds, member)


# -- people ------------------------------------------------------------------------------------------------------------


@fault
def transfer(simulation: Simulation, seconds: float) -> None:
    """An operator asks a leader, or a former one, to hand over to any member."""
    del seconds
    member = some_leader(simulation) or victim(simulation)
    if member is not None:
        member.transfer(simulation.dice.choice([None, *simulation.members]))


@fault
def transfer_over_a_dead_link(simulation: Simulation, seconds: float) -> None:
    """The target hears its leader and is not heard by it: it is elected, and the old leader learns of it by others."""
    leader = some_leader(simulation)
    if leader is not None and len(simulation.members) > 2:
        target = simulation.dice.choice([each for each in simulation.members if each != leader.id])
        _cut(simulation, seconds, [(target, leader.id)])
        leader.transfer(target)


@fault
def membership_change(simulation: Simulation, seconds: float) -> None:
    """Requested from every member that claims to lead: two leaders may get different requests."""
    del seconds
    for member in [member for member in simulation.members.values() if member.leads]:
        change = some_change(simulation, member)
        if change is not None:
            member.change_membership(change)


@fault
def membership_change_behind_a_partition(simulation: Simulation, seconds: float) -> None:
    """Asked of a leader just as it is cut off from all but a few: it appends what others will cut off."""
    leader = some_leader(simulation)
    change = None if leader is None else some_change(simulation, leader)
    if leader is not None and change is not None:
        others = [each for each in simulation.members if each != leader.id]
        lost = simulation.dice.sample(others, simulation.dice.randint(len(others) // 2, len(others)))
        _cut(simulation, seconds, [(leader.id, each) for each in lost] + [(each, leader.id) for each in lost])
        leader.change_membership(change)


@fault
def promotion_then_emptied_disk(simulation: Simulation, seconds: float) -> None:
    """A voter more, of whom an old one does not hear yet; then the leader forgets everything. The old one may take the
    voters of the past for all there are, and the leader's word for sound."""
    leader = some_leader(simulation)
    if leader is None or simulation.may_have_lost():
        return
    membership = leader.disk.membership
    laggards = sorted(membership.voters - {leader.id})
    if not membership.learners or not laggards:
        some_learner = some_change(simulation, leader)
        if isinstance(some_learner, AddLearner):
            leader.change_membership(some_learner)
        return
    laggard = simulation.members[simulation.dice.choice(laggards)]
    _block_bulk(simulation, seconds, laggard)
    leader.change_membership(Promote(simulation.dice.choice(sorted(membership.learners))))
    simulation.queue.after(seconds, _empty_disk, simulation, leader)


def some_change(simulation: Simulation, member: Member) -> Change | None:
    """A change that makes sense for the membership as `member` sees it; starts a process for who is added."""
    dice = simulation.dice
    if simulation.may_have_lost():
        return None
    membership = member.disk.membership
    choices: list[Change] = []
    choices += [Promote(each) for each in sorted(membership.learners)] * 3
    if len(membership.members) < simulation.profile.most_members:
        choices += [
            AddLearner(each) for each in range(simulation.profile.most_members) if each not in membership.members
        ]
    if len(membership.voters) > 1:
        choices += [Remove(each) for each in sorted(membership.voters)]
    change = dice.choice(choices) if choices else None
    if isinstance(change, AddLearner):
        simulation.invite(change.member)
    return change
