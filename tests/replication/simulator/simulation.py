"""One run: a seed, a profile, and what comes of them.

    chaos                                      calm
    |- faults, proposals, reads, changes ----->|- everything repaired; agreement within `CALM_SECONDS`, or "stuck" -->|

All chance comes from `random.Random(seed)`; nothing depends on hashes, addresses or the real time.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from tallystick.replication.membership import Membership
from tallystick.replication.messages import Message
from tallystick.replication.raft import Raft

from .clients import Clients
from .clock import Clock, EventQueue
from .disk import Disk
from .faults import FAULTS, some_change
from .member import Member
from .network import Network
from .oracle import Oracle, Violation
from .process import Process
from .profiles import ROUTINE, Profile
from .trace import WORLD, Step

CALM_SECONDS = 20.0
"""How long the group may take to agree after the last fault: forty election timeouts."""
TRACE_STEPS = 60
_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run was, and whether it held: `invariant` and `violation` are None, or what does not hold and where.

    `steps`: effects carried out and inputs taken by members. `faults`: what was injected, by kind. `trace`: the last
    steps before a violation, for people.
    """

    seed: int
    profile: str
    steps: int
    elections: int
    committed: int
    faults: Counter[str]
    invariant: str | None
    violation: str | None
    trace: tuple[str, ...]


class Simulation:
    """A group under one seed. `raft`: what makes a core; a test passes one with a mistake in it."""

    def __init__(
        self,
        seed: int,
        profile: Profile | None = None,
        *,
        raft: Callable[..., Raft] = Raft,
        listener: Callable[[Step], None] | None = None,
    ) -> None:
        """`profile`: None lets the seed choose one of the routine. `listener` hears of every step."""
        self.seed = seed
        self.dice = random.Random(seed)
        self.profile = profile if profile is not None else self.dice.choice(ROUTINE)
        self.raft = raft
        self.queue = EventQueue()
        self.faults: Counter[str] = Counter()
        self.network = Network(self.queue, self.dice, self.faults, self._deliver)
        self.members: dict[int, Member] = {}
        self._bootstrap = Membership.of(range(self.dice.choice(self.profile.sizes)))
        self.oracle = Oracle(self.members, self._bootstrap)
        self.clients = Clients(self)
        self._listener = listener
        self._steps = 0
        self._trace: deque[Step] = deque(maxlen=TRACE_STEPS)
        self._calm = False
        self._scapegoat: Member | None = None

    # -- a run ---------------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        invariant = violation = None
        try:
            self._cause_chaos()
            self._repair()
            self._await_agreement()
            self.oracle.compare_logs()
        except Violation as found:
            invariant, violation = found.invariant, str(found)
        except Exception:  # the core's assertions are findings; a bug of the simulator is known by its traceback
            invariant, violation = "no exception", traceback.format_exc()
        return Outcome(
            self.seed,
            self.profile.name,
            self._steps,
            len(self.oracle.leaders),
            len(self.oracle.committed),
            self.faults,
            invariant,
            violation,
            () if violation is None else tuple(map(str, self._trace)),
        )

    def _cause_chaos(self) -> None:
        self.network.weather = self.profile.weather
        for member_id in sorted(self._bootstrap.voters):
            self._found(member_id, Disk(self._bootstrap)).start()
        self.clients.begin()
        if self.profile.faults:
            self.queue.after(self.dice.uniform(0.0, 2.0), self._next_fault)
        self.queue.run_until(self.profile.chaos_seconds)

    def _next_fault(self) -> None:
        if self._calm:
            return
        name, seconds = self.profile.draw(self.dice)
        self.note(WORLD, "fault", (name, seconds))
        self.faults[name] += 1
        FAULTS[name](self, min(seconds, self.profile.chaos_seconds - self.queue.now))
        self.queue.after(self.dice.uniform(*self.profile.fault_gap_seconds), self._next_fault)

    def _repair(self) -> None:
        """All faults end now, and all members of the group run."""
        self._calm = True
        self.clients.end()
        self.network.clear_up()
        self.note(WORLD, "repairs all", "")
        for member in list(self.members.values()):
            member.repair()
            if not member.running and (not member.removed or self._is_wanted(member)):
                member.start()

    def _await_agreement(self) -> None:
        wanted = self.oracle.acknowledged + 1
        while not self._agrees(wanted):
            if self.queue.now > self.profile.chaos_seconds + CALM_SECONDS:
                states = "; ".join(member.state() for member in self.members.values())
                raise Violation("liveness", f"no agreement in {CALM_SECONDS} s: {states}")
            if self.oracle.acknowledged < wanted or self._untold():
                # A stranger with entries that were never committed believes those who go on beyond them (M6).
                self.clients.propose()
            self.queue.run_until(self.queue.now + _LOOK_SECONDS)

    def _agrees(self, acknowledged: int) -> bool:
        """One leader, ready; all its members have all of its log, committed; a proposal of the calm came through. Who
        was left out has been told (M6), if one of those whom it would ask is a member still."""
        leaders = [member for member in self.members.values() if member.leads and member.raft.ready]
        if len(leaders) != 1 or self.oracle.acknowledged < acknowledged:
            return False
        group = leaders[0].disk.membership.members
        return not self._untold() and all(self.members[each].agrees_with(leaders[0]) for each in group)

    def _untold(self) -> bool:
        """Whether a member does not know that it was removed, and asks one that does."""
        leaders = [member for member in self.members.values() if member.leads and member.raft.ready]
        if len(leaders) != 1:
            return False
        group = leaders[0].disk.membership.members
        strangers = [member for member in self.members.values() if member.running and member.id not in group]
        return any(each.holds_itself_a_member and each.disk.membership.voters & group for each in strangers)

    # -- what members and faults tell and ask --------------------------------------------------------------------------

    def note(self, member: int, what: str, detail: object) -> None:
        """A step was taken."""
        self._steps += 1
        step = Step(self.queue.now, member, what, detail)
        self._trace.append(step)
        if self._listener is not None:
            self._listener(step)

    def sync_seconds(self, member: Member) -> float:
        return 0.001 + self.dice.expovariate(500.0) * member.slowness

    def pauses(self) -> bool:
        return self.dice.random() < self.profile.pause

    def scapegoat(self) -> Member | None:
        """In a steady run, the one follower that gets the faults; None while there is no leader."""
        if self._scapegoat is None and self.oracle.acknowledged:
            followers = [member for member in self.members.values() if not member.leads]
            self._scapegoat = self.dice.choice(followers)
        return self._scapegoat

    def on_leader(self, member: Member) -> None:
        if self._scapegoat is not None:
            raise Violation("a leader that a majority hears stays (L3, L5)", f"{member} takes its place")
        if self.profile.eager_changes and not self._calm:
            change = some_change(self, member)
            if change is not None:
                member.change_membership(change)

    def restart_later(self, member: Process, seconds: float) -> None:
        self.queue.after(seconds, self._restart, self.members[member.id], member.life)

    def _restart(self, member: Member, life: int) -> None:
        if life == member.life and not member.running and not member.removed:
            member.start()

    def invite(self, member_id: int) -> None:
        """A process starts for a member that is about to be added; a removed member keeps its disk."""
        member = self.members.get(member_id) or self._found(member_id, Disk(None))
        if not member.running:
            member.start()

    def on_left(self, member: Member) -> None:
        """It stopped because of an outdated notice of its removal: the member that added it again starts it again."""
        self.queue.after(1.0, self._start_if_wanted, member)

    def _start_if_wanted(self, member: Member) -> None:
        if member.removed and self._is_wanted(member):
            member.start()

    def _is_wanted(self, member: Member) -> bool:
        newest = max((each.disk for each in self.members.values()), key=lambda disk: (disk.last_term, disk.last_index))
        return member.id in newest.membership.members

    def bootstrap_of(self, member_id: int) -> Membership | None:
        return self._bootstrap if member_id in self._bootstrap.voters else None

    def may_have_lost(self) -> bool:
        return any(member.may_have_lost for member in self.members.values())

    def may_damage(self, member: Member) -> bool:
        """Whether the group tolerates it: in every membership in force, a minority may have lost data."""
        committed = self.oracle.membership
        in_force = {committed.membership}
        for each in self.members.values():
            in_force |= {entry.membership for entry in each.disk.memberships if entry.index > committed.index}
        doubtful = {each.id for each in self.members.values() if each.may_have_lost} | {member.id}
        return all(len(doubtful & each.voters) <= (len(each.voters) - 1) // 2 for each in in_force)

    def may_crash(self, member: Member) -> bool:
        """In the asynchronous mode a crash is damage: what it said last may be forgotten (D9)."""
        return not self.profile.asynchronous_flush or self.may_damage(member)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _found(self, member_id: int, disk: Disk) -> Member:
        skew = self.profile.clock_skew
        clock = Clock(self.dice.uniform(1 - skew, 1 + skew), self.dice.uniform(0.0, 1e5))
        member = self.members[member_id] = Member(self, member_id, disk, clock)
        return member

    def _deliver(self, message: Message) -> None:
        member = self.members.get(message.target)
        if member is not None:
            member.receive(message)
