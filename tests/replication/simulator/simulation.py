"""One run: a seed, a profile, and what comes of them.

    chaos                                      calm
    |- faults, proposals, reads, changes ----->|- everything mended; agreement within `CALM_SECONDS`, or "stuck" -->|

All chance comes from `random.Random(seed)`; nothing depends on hashes, addresses or the real time.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import Enum

from tallystick.replication.effects import Install, InstallBase, Send, Write
from tallystick.replication.membership import Membership
from tallystick.replication.messages import Message
from tallystick.replication.raft import Raft

from .clock import Clock, EventQueue
from .disk import Disk
from .faults import FAULTS, Profile, some_change
from .member import Member
from .network import CALM, Network
from .oracle import Oracle, Violation
from .profiles import ROUTINE

CALM_SECONDS = 30.0
"""How long the group may take to agree once nothing goes wrong any more."""
TRACE_STEPS = 60
_LOOK_SECONDS = 0.25


@dataclass(slots=True)
class Outcome:
    """What a run was, and whether it held: `violation` is None, or what does not hold and where."""

    seed: int
    profile: str
    steps: int
    seconds: float
    committed: int
    acknowledged: int
    leaders: int
    faults: Counter[str]
    invariant: str | None = None
    violation: str | None = None
    trace: list[str] = field(default_factory=list)


class Simulation:
    """A group under one seed. `raft`: what makes a core; a test passes one with a mistake in it."""

    def __init__(
        self,
        seed: int,
        profile: Profile | None = None,
        *,
        raft: Callable[..., Raft] = Raft,
        listener: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.profile = profile if profile is not None else self.dice.choice(ROUTINE)
        self.raft = raft
        self.queue = EventQueue()
        self.faults: Counter[str] = Counter()
        self.network = Network(self.queue, self.dice, self.faults, self._deliver)
        self.members: dict[int, Member] = {}
        self.oracle = Oracle(self.members)
        self.steps = 0
        self._listener = listener
        self._trace: deque[tuple[float, int, str, object]] = deque(maxlen=TRACE_STEPS)
        self._proposals = 0
        self._reads = 0
        self._calm = False
        self.quiet_until = 0.0
        """Until then clients propose nothing of their own accord."""
        self._bootstrap = Membership.of(range(self.dice.choice(self.profile.sizes)))

    # -- a run ---------------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        invariant = violation = None
        try:
            self._run()
        except Violation as found:
            invariant, violation = found.invariant, str(found)
        except Exception as error:  # a bug of the core is a finding; one of the simulator is seen by its traceback
            invariant, violation = "no exception", traceback.format_exc()
            del error
        return Outcome(
            self.seed,
            self.profile.name,
            self.steps,
            self.queue.now,
            len(self.oracle.committed),
            self.oracle.acknowledged,
            len(self.oracle.leaders),
            self.faults,
            invariant,
            violation,
            [] if violation is None else [_line(*step) for step in self._trace],
        )

    def _run(self) -> None:
        for member_id in sorted(self._bootstrap.voters):
            self._found(member_id, Disk(self._bootstrap)).start()
        end = self.profile.chaos_seconds
        self.network.weather = self.profile.weather
        self.queue.after(0.0, self._next_proposal)
        self.queue.after(0.0, self._next_read)
        if self.profile.faults:
            self.queue.after(self.dice.uniform(0.0, 2.0), self._next_fault)
        self.queue.run_until(end)
        self._mend_all()
        while not self._agreed():
            if self.queue.now > end + CALM_SECONDS:
                raise Violation("liveness", f"stuck: {self._state()}")
            if self.oracle.acknowledged < self._agreed_target:
                self._propose()
            self.queue.run_until(self.queue.now + _LOOK_SECONDS)
        self.oracle.compare_logs()

    def _mend_all(self) -> None:
        self._calm = True
        self.network.weather = CALM
        self.network.blocked.clear()
        self.note(-1, "all is mended", "")
        for member in list(self.members.values()):
            member.stalled_until = min(member.stalled_until, self.queue.now)
            member.crash_at = None
            member.slowness = 1.0
            if member.disk_full:
                member.set_full(False)
            if member.running and (member.sync_fails or member.disk.damaged):
                member.crash()
            member.sync_fails = False
            if not member.running and (not member.removed or self._is_wanted(member)):
                member.removed = False
                member.start()
        self._agreed_target = self.oracle.acknowledged + 1

    def _agreed(self) -> bool:
        """One leader, ready; all its members have all of its log, committed; and a proposal of the calm came through."""
        leaders = [member for member in self.members.values() if member.leads and member.raft.ready]
        if len(leaders) != 1 or self.oracle.acknowledged < self._agreed_target:
            return False
        leader = leaders[0]
        for each in leader.raft.membership.members:
            member = self.members[each]
            if not member.running or member.disk.term != leader.disk.term or member.in_doubt:
                return False
            if member.leader != leader.id or member.commit_index != leader.commit_index:
                return False
            if not member.disk.synced_index == member.disk.last_index == leader.disk.last_index == leader.commit_index:
                return False
        return True

    def _state(self) -> str:
        return "; ".join(
            f"{member}{'' if member.running else ' (down)'} {member.role.value} term {member.disk.term} leader "
            f"{member.leader} log {member.disk.first_index}..{member.disk.last_index} synced {member.disk.synced_index} "
            f"committed {member.commit_index} {member.disk.doubt.name}"
            for member in self.members.values()
        )

    # -- clients and faults --------------------------------------------------------------------------------------------

    def _next_proposal(self) -> None:
        if not self._calm:
            if self.queue.now >= self.quiet_until:
                self._propose()
            gap = self.profile.proposal_gap_seconds
            # Now and then nobody wants anything: only then can a member that is cut off have all that others have.
            seconds = self.dice.expovariate(1 / gap) if self.dice.random() < 0.9 else self.dice.uniform(0.3, 1.5)
            self.queue.after(seconds, self._next_proposal)

    def _propose(self) -> None:
        accepting = [member for member in self.members.values() if member.running and member.raft.accepting]
        if accepting:
            self._propose_to(self.dice.choice(accepting))

    def _propose_to(self, member: Member) -> None:
        count = self.dice.choice((1, 1, 1, 2, 6))
        self._proposals += count
        member.propose(range(self._proposals - count, self._proposals))

    def _next_read(self) -> None:
        if not self._calm:
            self._reads += 1
            self.dice.choice(list(self.members.values())).read(self._reads)
            self.queue.after(self.dice.expovariate(1 / self.profile.read_gap_seconds), self._next_read)

    def _next_fault(self) -> None:
        if self._calm:
            return
        name, seconds = self.profile.draw(self.dice)
        self.note(-1, "fault", (name, seconds))
        self.faults[name] += 1
        FAULTS[name](self, min(seconds, self.profile.chaos_seconds - self.queue.now))
        self.queue.after(self.dice.uniform(*self.profile.fault_gap_seconds), self._next_fault)

    # -- what members and faults ask -----------------------------------------------------------------------------------

    def note(self, member: int, what: str, detail: object) -> None:
        """A step was taken."""
        self.steps += 1
        self._trace.append((self.queue.now, member, what, detail))
        if self._listener is not None:
            self._listener(_line(self.queue.now, member, what, detail))

    def sync_seconds(self, member: Member) -> float:
        return 0.001 + self.dice.expovariate(500.0) * member.slowness

    def pauses(self) -> bool:
        return self.dice.random() < self.profile.pause

    def on_leader(self, member: Member) -> None:
        if self.profile.eager_changes and not self._calm:
            change = some_change(self, member)
            if change is not None:
                member.change_membership(change)

    def on_ready(self, member: Member) -> None:
        """A client finds the new leader at once."""
        if not self._calm and self.dice.random() < 0.5:
            self.queue.after(self.dice.uniform(0.0, 0.02), self._propose_to, member)

    def on_acknowledged(self, member: Member) -> None:
        """Whoever else still thinks to lead is asked what it knows: a stale read shows now if ever."""
        for other in self.members.values():
            if other is not member and other.leads and not self._calm:
                self._reads += 1
                self.queue.after(self.dice.uniform(0.0, 0.05), other.read, self._reads)

    def restart_later(self, member: Member, seconds: float) -> None:
        self.queue.after(seconds, self._restart, member, member.life)

    def _restart(self, member: Member, life: int) -> None:
        if life == member.life and not member.running and not member.removed:
            member.start()

    def invite(self, member_id: int) -> None:
        """Somebody starts a process for a member that is about to be added; one that was removed keeps its disk."""
        member = self.members.get(member_id) or self._found(member_id, Disk(None))
        member.removed = False
        if not member.running:
            member.start()

    def left(self, member: Member) -> None:
        """It stopped because somebody who knew no better told it so: whoever has let it in again starts it again."""
        self.queue.after(1.0, self._start_if_wanted, member)

    def _start_if_wanted(self, member: Member) -> None:
        if member.removed and self._is_wanted(member):
            member.removed = False
            member.start()

    def _is_wanted(self, member: Member) -> bool:
        newest = max(self.members.values(), key=lambda each: (each.disk.term_of(each.disk.last_index), each.disk.last_index))
        return member.id in newest.disk.membership.members

    def bootstrap_of(self, member_id: int) -> Membership | None:
        return self._bootstrap if member_id in self._bootstrap.voters else None

    def in_doubt(self) -> bool:
        return any(member.in_doubt for member in self.members.values())

    def may_damage(self, member: Member) -> bool:
        """Whether the group can bear it: those in doubt stay a minority, and the membership does not change meanwhile."""
        memberships = {each.disk.membership for each in self.members.values()} - {Membership(frozenset())}
        if len(memberships) > 1:
            return False
        (membership,) = memberships
        doubtful = {each.id for each in self.members.values() if each.in_doubt} | {member.id}
        return len(doubtful) <= (len(membership.voters) - 1) // 2

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


def _line(moment: float, member: int, what: str, detail: object) -> str:
    who = "world" if member < 0 else f"n{member}"
    return f"{moment:9.4f}  {who:5}  {what}  {_brief(detail)}"


def _brief(value: object) -> str:
    """Without what can be guessed: an effect's message stands for the effect, defaults and bytes are left out."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return ", ".join(_brief(each) for each in value)
    if isinstance(value, Send | Write | Install | InstallBase):
        inner = value.message if isinstance(value, Send) else value.request
        return f"{type(value).__name__} {_brief(inner)}"
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        shown = [f"{each.name}={_brief(getattr(value, each.name))}" for each in fields(value) if _speaks(value, each)]
        return f"{type(value).__name__}({', '.join(shown)})"
    return str(value)


def _speaks(value: object, field_: Field[object]) -> bool:
    return field_.name != "payload" and getattr(value, field_.name) != field_.default
