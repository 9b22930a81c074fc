"""The operations of a history on a group of any members, and the state that it can observe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection

from simulator.clock import EventQueue

from .post import Held, Packet, Post


class Group(ABC):
    """Members 0 to size - 1, all started. Values that are proposed are strings, each proposed once."""

    post: Post
    patience_seconds: float
    """The shortest that a follower waits for a leader before it stands; the longest is at least twice that."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.queue = EventQueue()
        self.votes: dict[tuple[int, int], set[int]] = defaultdict(set)
        """For whom a member voted in a term, itself included: by (member, term)."""
        self.led: dict[int, set[int]] = defaultdict(set)
        """Members that led a term."""
        self.acknowledged: list[str] = []
        """Values of which a client was told that they are committed."""
        self.answers: list[str] = []
        """What readers were told, in order."""
        self.errors: list[str] = []
        """Exceptions of members that were not caught."""

    # -- what a history does -------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        self.queue.run_until(self.queue.now + seconds)

    @abstractmethod
    def stand(self, member: int) -> None:
        """It has waited long enough for a leader, or for votes: it asks for votes, in the next term."""

    def elect(self, member: int) -> None:
        """Makes `member` the leader, where nothing stands against that."""
        self.stand(member)
        self.run(0.1)
        assert member in self.leaders(), f"member {member} was not elected"

    @abstractmethod
    def propose(self, member: int, value: str) -> None:
        """A client asks `member`, which should lead, to make `value` the group's."""

    @abstractmethod
    def read(self, member: int) -> None:
        """A client asks `member` for the group's newest value; `answers` has it, if there is an answer."""

    @abstractmethod
    def kill(self, member: int) -> None:
        """kill -9. Our core loses what was not synced even then; raftos keeps what it wrote."""

    @abstractmethod
    def lose_power(self, *members: int) -> None: ...

    @abstractmethod
    def start(self, member: int) -> None:
        """A new process on the files of the old one."""

    def restart(self, *members: int) -> None:
        for member in members:
            self.kill(member)
        for member in members:
            self.start(member)

    @abstractmethod
    def kill_while_saving_a_vote(self, member: int) -> None:
        """In the middle of the next time that it does."""

    @abstractmethod
    def kill_while_truncating(self, member: int) -> None:
        """In the middle of the next time that it does."""

    def hold(
        self, kind: str | None = None, *, source: int | None = None, target: int | None = None, copies: bool = False
    ) -> Held:
        return self.post.hold(kind, source=source, target=target, copies=copies)

    def part(self, one: Collection[int], other: Collection[int]) -> None:
        """Nothing passes from one side to the other from now on."""
        self.post.cut(one, other)

    def cut_off(self, *members: int) -> None:
        """Parts these from all others."""
        self.part(members, set(range(self.size)) - set(members))

    def heal(self) -> None:
        self.post.heal()

    # -- what it sees --------------------------------------------------------------------------------------------------

    @abstractmethod
    def leaders(self) -> set[int]:
        """Members that think to lead, now."""

    @abstractmethod
    def is_running(self, member: int) -> bool: ...

    @abstractmethod
    def term(self, member: int) -> int: ...

    @abstractmethod
    def log(self, member: int) -> list[str]:
        """Values in the log of a member, committed or not; entries that hold no value are left out."""

    @abstractmethod
    def committed(self, member: int) -> list[str]:
        """Those that the member holds for committed."""

    def holders(self, value: str) -> set[int]:
        """Members that have it in their log."""
        return {each for each in range(self.size) if value in self.log(each)}

    def leader(self) -> int:
        """The only one."""
        (leader,) = self.leaders()
        return leader

    def double_votes(self) -> list[str]:
        """Members that voted for two in one term."""
        return [f"{each} in term {term}: {sorted(by)}" for (each, term), by in self.votes.items() if len(by) > 1]

    def rival_leaders(self) -> list[str]:
        """Terms that two members led."""
        return [f"term {term}: {sorted(members)}" for term, members in self.led.items() if len(members) > 1]

    def missing(self, values: Collection[str]) -> list[str]:
        """Of these, what the leader does not have; without a leader, what no running member has."""
        holders = self.leaders() or {each for each in range(self.size) if self.is_running(each)}
        there = {value for each in holders for value in self.log(each)}
        return [value for value in values if value not in there]


__all__ = ["Group", "Held", "Packet"]
