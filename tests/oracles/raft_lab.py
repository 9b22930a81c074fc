"""Members of a group in one process, for tests that tell a story: logs are lists, the clock stands still until moved.

A `Member` carries out the effects of one core as a driver must; without a group its messages pile up in `sent`. A
`Group` passes messages in the order in which they were sent until all is quiet, except over links that were cut.
Nothing here is random but the cores' own timers, and those fire when a test says so.

After each call the invariants that one member can see are checked; the group adds those between members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from tallystick.replication.durable import DiskState, HardState, PossibleLoss
from tallystick.replication.effects import (
    AppendOwn,
    Effect,
    InstallSnapshot,
    MembershipChanged,
    Readmitted,
    Role,
    SaveVote,
    Send,
    SendSnapshot,
    Truncate,
    Write,
)
from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.messages import Message, PreVoteReply, PreVoteRequest, VoteReply, VoteRequest
from tallystick.replication.raft import Raft
from tallystick.replication.settings import RaftSettings

ENTRY_BYTES = 100
SETTINGS = RaftSettings()
T = SETTINGS.election_timeout_seconds
HEARTBEAT = SETTINGS.heartbeat_interval_seconds
_Kind = TypeVar("_Kind")


@dataclass
class MemoryLog:
    """A list of terms behind a base; every entry takes ENTRY_BYTES."""

    terms: list[int] = field(default_factory=list)
    base_index: int = -1
    base_term: int = -1
    memberships: list[MembershipEntry] = field(default_factory=list)

    @property
    def first_index(self) -> int:
        return self.base_index + 1

    @property
    def last_index(self) -> int:
        return self.base_index + len(self.terms)

    def term_of(self, index: int) -> int | None:
        if index == self.base_index:
            return self.base_term
        return self.terms[index - self.first_index] if self.first_index <= index <= self.last_index else None

    def extent(self, first: int, max_bytes: int) -> int:
        assert self.first_index <= first <= self.last_index, "asked for an entry that is not kept"
        return min(self.last_index, first + max(1, max_bytes // ENTRY_BYTES) - 1)

    def truncate(self, last_kept: int) -> None:
        assert last_kept >= self.base_index
        del self.terms[last_kept - self.base_index :]
        self.memberships = [entry for entry in self.memberships if entry.index <= last_kept]

    def drop_before(self, first_index: int) -> None:
        """Delete old entries, as cleaning does."""
        term = self.term_of(first_index - 1)
        assert term is not None
        del self.terms[: first_index - self.first_index]
        self.base_index, self.base_term = first_index - 1, term


class Member:
    """One core, its log and its disk. With `syncs`, what was written is durable at once; else when `sync` is called."""

    def __init__(
        self,
        number: int = 0,
        *,
        voters: Iterable[int] = (0, 1, 2),
        learners: Iterable[int] = (),
        terms: Iterable[int] = (),
        term: int | None = None,
        voted_for: int | None = None,
        commit_index: int = -1,
        possible_loss: PossibleLoss = PossibleLoss.NONE,
        settings: RaftSettings = SETTINGS,
        syncs: bool = True,
        now: float = 0.0,
    ) -> None:
        self.number = number
        self.log = MemoryLog(list(terms))
        self.hard_state = HardState(max([0, *self.log.terms]) if term is None else term, voted_for)
        self.bootstrap = MembershipEntry(-1, Membership.of(voters, learners))
        self.membership_seen = -1
        self.durable_index = self.log.last_index
        self.settings = settings
        self.syncs = syncs
        self.now = now
        self.sent: list[Message] = []
        self.done: list[Effect] = []  # of the last call
        self.history: list[Effect] = []
        self.fails: DiskState | None = None  # the next entries to be written meet this
        self.post: Callable[[Message], None] = self.sent.append
        self.raft: Raft
        self.start(commit_index, possible_loss)

    def start(self, commit_index: int = -1, possible_loss: PossibleLoss = PossibleLoss.NONE) -> None:
        self.raft = Raft(
            self.number,
            self.settings,
            self.log,
            hard_state=self.hard_state,
            memberships=[self.bootstrap, *self.log.memberships],
            random=Random(self.number),
            now=self.now,
            commit_index=commit_index,
            must_catch_up=possible_loss,
            membership_seen=self.membership_seen,
        )

    def crash(self, *, possible_loss: PossibleLoss = PossibleLoss.NONE, keep: int | None = None) -> None:
        """Lose what was not durable (or, with `keep`, all entries behind it), and start again."""
        self.log.truncate(self.durable_index if keep is None else keep)
        self.durable_index = self.log.last_index
        self.start(commit_index=min(self.raft.commit_index, self.log.last_index), possible_loss=possible_loss)

    # -- what happens to it --------------------------------------------------------------------------------------------

    def call(self, method: Callable[..., list[Effect]], *arguments: Any) -> list[Effect]:
        self.done = []
        self._carry_out(method, *arguments)
        while self.syncs and self.durable_index < self.log.last_index and not self.raft.halted:
            self.durable_index = self.log.last_index
            self._carry_out(self.raft.synced, self.durable_index)
        return self.done

    def step(self, message: Message) -> list[Effect]:
        return self.call(self.raft.step, message)

    def tick(self, later: float = 0.0) -> list[Effect]:
        self.now += later
        return self.call(self.raft.tick)

    def expire(self) -> list[Effect]:
        """The leader has been silent for long enough."""
        self.now = max(self.now, self.raft.deadline)
        return self.call(self.raft.tick)

    def propose(self, count: int = 1) -> list[Effect]:
        assert self.raft.accepting
        self.log.terms.extend([self.raft.term] * count)
        return self.call(self.raft.appended)

    def sync(self) -> list[Effect]:
        self.durable_index = self.log.last_index
        return self.call(self.raft.synced, self.durable_index)

    def disk(self, state: DiskState) -> list[Effect]:
        return self.call(self.raft.disk, state)

    # -- what it did ---------------------------------------------------------------------------------------------------

    def effects(self, kind: type[_Kind]) -> list[_Kind]:
        """Effects of one kind, of the last call."""
        return [effect for effect in self.done if isinstance(effect, kind)]

    def messages(self, kind: type[_Kind]) -> list[_Kind]:
        """Messages of one kind that the last call sent."""
        return [effect.message for effect in self.done if isinstance(effect, Send) and isinstance(effect.message, kind)]

    def reply(self, kind: type[_Kind]) -> _Kind:
        """The one message of its kind that the last call sent."""
        (message,) = self.messages(kind)
        return message

    # -- the driver ----------------------------------------------------------------------------------------------------

    def _carry_out(self, method: Callable[..., list[Effect]], *arguments: Any) -> None:
        term, commit_index = self.raft.term, self.raft.commit_index
        effects = method(self.now, *arguments)
        then: Callable[..., list[Effect]] | None = None
        then_arguments: tuple[Any, ...] = ()
        for position, effect in enumerate(effects):
            if isinstance(effect, Write | AppendOwn | Truncate | InstallSnapshot) and self.fails is not None:
                then, then_arguments, self.fails = self.raft.disk, (self.fails,), None
                del effects[position:]
                break
            self.done.append(effect)
            self.history.append(effect)
            match effect:
                case SaveVote():
                    self.hard_state = HardState(effect.term, effect.voted_for)
                case Truncate():
                    self.log.truncate(effect.last_kept)
                    self.durable_index = min(self.durable_index, effect.last_kept)
                case MembershipChanged(entry=entry):
                    in_doubt = self.raft.possible_loss is not PossibleLoss.NONE
                    self.membership_seen = max(entry.index, self.membership_seen if in_doubt else -1)
                case Readmitted():
                    self.membership_seen = self.raft.membership_index
                case Write(request=request, first_index=first):
                    assert first == self.log.last_index + 1, "entries must follow each other"
                    for run in request.runs:
                        self.log.terms.extend([run.term] * (run.last_index - self.log.last_index))
                    self.log.memberships += [entry for entry in request.memberships if entry.index >= first]
                case AppendOwn():
                    assert effect.index == self.log.last_index + 1
                    self.log.terms.append(effect.term)
                    if effect.membership is not None:
                        self.log.memberships.append(MembershipEntry(effect.index, effect.membership))
                    then = self.raft.appended
                case InstallSnapshot(request=request):
                    self.log.terms, self.log.memberships = [], []
                    self.log.base_index, self.log.base_term = request.snapshot_index, request.snapshot_term
                    self.bootstrap, self.durable_index = request.membership, request.snapshot_index
                    then, then_arguments = self.raft.installed, (request,)
                case Send():
                    self.post(effect.message)
                case SendSnapshot():
                    self.post(effect.request)
                case _:
                    pass
        assert self.raft.term >= term and self.raft.commit_index >= commit_index
        assert self.raft.commit_index <= self.log.last_index or self.raft.fatal
        if then is not None:
            self._carry_out(then, *then_arguments)

    @property
    def hard_state_is_kept(self) -> bool:
        return (self.raft.term, self.raft.voted_for) == (self.hard_state.term, self.hard_state.voted_for)


class Group:
    """Members 0 to n-1, all voters of each other."""

    def __init__(self, size: int = 3, *, settings: RaftSettings = SETTINGS, **options: Any) -> None:
        self.members = [Member(number, voters=range(size), settings=settings, **options) for number in range(size)]
        self.network: deque[Message] = deque()
        self.cuts: set[tuple[int, int]] = set()
        self.down: set[int] = set()
        self.lost: list[Message] = []
        self.leaders: dict[int, int] = {}
        self.committed: list[int] = []
        for member in self.members:
            member.post = self.network.append

    def __getitem__(self, number: int) -> Member:
        return self.members[number]

    def join(self, number: int, **options: Any) -> Member:
        """A new machine without anything: it waits to be let in."""
        assert number == len(self.members)
        self.members.append(Member(number, voters=(), now=self.now, **options))
        self.members[number].post = self.network.append
        return self.members[number]

    @property
    def now(self) -> float:
        return max(member.now for member in self.members)

    def cut(self, one: int, other: int) -> None:
        self.cuts |= {(one, other), (other, one)}

    def isolate(self, number: int) -> None:
        for other in range(len(self.members)):
            if other != number:
                self.cut(number, other)

    def heal(self) -> None:
        self.cuts.clear()

    def deliver(self, only: Callable[[Message], bool] = lambda message: True) -> None:
        """Pass messages until all is quiet; what `only` refuses, what crosses a cut or meets the dead is lost."""
        self.check()
        while self.network:
            message = self.network.popleft()
            ends = message.source, message.target
            unknown = message.target >= len(self.members)
            if unknown or self.down.intersection(ends) or ends in self.cuts or not only(message):
                self.lost.append(message)
            else:
                self.members[message.target].step(message)
                self.check()

    def wait(self, seconds: float) -> None:
        """Time passes for all members, a heartbeat at a time."""
        end = self.now + seconds
        while self.now < end:
            self.pass_time(min(HEARTBEAT, end - self.now))
            for member in self.members:
                if member.number not in self.down:
                    member.tick()
            self.deliver()

    def pass_time(self, seconds: float) -> None:
        """The clock advances without a call of the core."""
        now = max(member.now for member in self.members) + seconds
        for member in self.members:
            member.now = now

    def expire(self, number: int) -> None:
        """One member's election timer fires before all others."""
        self.pass_time(max(0.0, self.members[number].raft.deadline - self.now))
        self.members[number].tick()

    def elect(self, number: int) -> Member:
        """Silence long enough, then this member is the first to stand.

        Again, if it was told of a newer term, or held that its loop had stood still (L9).
        """
        self.pass_time(T)
        for _ in range(3):
            if self.members[number].raft.role is not Role.LEADER:
                self.expire(number)
                self.deliver()
        assert self.members[number].raft.role is Role.LEADER
        if self.members[number].raft.accepting:
            self.members[number].propose()
        self.deliver()
        self.heartbeat(number)
        return self.members[number]

    def heartbeat(self, number: int) -> None:
        """A round of this leader's, and everything that follows from it."""
        self.pass_time(HEARTBEAT)
        self.members[number].tick()
        self.deliver()

    def check(self) -> None:
        """Election safety, and that nothing committed ever differs."""
        for member in self.members:
            if member.number in self.down:
                continue
            raft = member.raft
            if raft.role is Role.LEADER:
                assert self.leaders.setdefault(raft.term, raft.id) == raft.id, f"two leaders of term {raft.term}"
            for index in range(max(member.log.first_index, 0), raft.commit_index + 1):
                term = member.log.term_of(index)
                assert term is not None
                if index == len(self.committed):
                    self.committed.append(term)
                assert self.committed[index] == term, f"entry {index} was committed twice, differently"

    def logs(self) -> list[list[int]]:
        return [member.log.terms for member in self.members]


def leader_of(size: int = 3, **options: Any) -> Member:
    """Member 0, elected by all members, its no-op in its log; no member has answered since."""
    member = Member(0, voters=range(size), **options)
    member.expire()
    while member.raft.role is not Role.LEADER:
        asked = [message for message in member.sent if isinstance(message, PreVoteRequest | VoteRequest)]
        member.sent.clear()
        for ask in asked:
            term = member.raft.term
            if isinstance(ask, PreVoteRequest):
                member.step(PreVoteReply(ask.target, 0, term, ask.asked_term, ask.campaign, True))
            else:
                member.step(VoteReply(ask.target, 0, term, ask.campaign, True))
    return member


def at(message: Message, **changes: Any) -> Any:
    """The same message with other fields."""
    return replace(message, **changes)
