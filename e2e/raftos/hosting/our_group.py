"""A group of our cores, in the simulator: its members, its disks, its oracle, without its chance events.

The oracle looks at every effect that a member carries out, as it does under the simulator's seeds. What it finds is
raised as a `Violation` and ends the test: that our side holds is more than what a history asks about it.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from simulator.clock import Clock
from simulator.disk import Disk, Entry
from simulator.member import Member
from simulator.network import Network
from simulator.oracle import Oracle
from simulator.profiles import Profile
from simulator.simulation import Simulation

from tallystick.replication import messages
from tallystick.replication.effects import Effect, SaveVote, Truncate
from tallystick.replication.settings import RaftSettings
from tallystick.store.formats.ledger_format import EntryKind

from .group import Group
from .post import Packet, Post

KINDS: dict[type, str] = {
    messages.PreVoteRequest: "pre-vote",
    messages.PreVoteReply: "pre-vote reply",
    messages.VoteRequest: "vote",
    messages.VoteReply: "vote reply",
    messages.AppendRequest: "append",
    messages.AppendReply: "append reply",
    messages.Heartbeat: "heartbeat",
    messages.HeartbeatReply: "heartbeat reply",
}

_CALM = Profile("script", {}, clock_skew=0.0, pause=0.0, settings=RaftSettings(heartbeat_interval_seconds=0.1))


class _Witness(Oracle):
    """The simulator's oracle, which also tells the group what histories ask about."""

    group: OurGroup

    def saved_vote(self, member: Member, term: int, voted_for: int | None) -> None:
        super().saved_vote(member, term, voted_for)
        if voted_for is not None:
            self.group.votes[member.id, term].add(voted_for)

    def became_leader(self, member: Member, term: int) -> None:
        super().became_leader(member, term)
        self.group.led[term].add(member.id)

    def acknowledge(self, member: Member, index: int, entry: Entry) -> None:
        super().acknowledge(member, index, entry)
        self.group.acknowledged.append(entry.payload)

    def answered_read(self, member: Member, index: int, acknowledged_index: int) -> None:
        super().answered_read(member, index, acknowledged_index)
        self.group.answers.extend(_values(self.committed[: index + 1])[-1:])


class _Member(Member):
    """A member whose next effect of one kind may be its last."""

    dies_in: type[Effect] | None = None

    def in_the_middle_of(self, kind: type[Effect]) -> bool:
        return isinstance(self._under_way, kind)

    def time_out(self) -> None:
        self.clock.jump(max(0.0, self.raft.deadline - self.clock.read(self._queue.now)))
        self._wakes_at = float("inf")  # the alarm that is set was set before the clock jumped
        self._put(self._call, "tick")


class _Scripted(Simulation):
    def __init__(self, group: OurGroup) -> None:
        super().__init__(0, replace(_CALM, sizes=(group.size,)))
        self.queue = group.queue
        self.clients.end()  # only the script sends requests
        witness = self.oracle = _Witness(self.members, self._bootstrap)
        witness.group = group
        # The members' way out: all that they know of a network is that it sends.
        self.network = cast(Network, SimpleNamespace(send=self._post))
        self._group = group
        for each in range(group.size):
            # Clocks that agree, and count from 0: a script's times hold for all members.
            member = self.members[each] = _Member(self, each, Disk(self._bootstrap), Clock(1.0, 0.0))
            member.start()

    def _post(self, message: messages.Message) -> None:
        kind = KINDS.get(type(message), type(message).__name__)
        self._group.post.send(Packet(message.source, message.target, kind, message))

    def deliver(self, packet: Packet) -> None:
        self._deliver(packet.body)


class OurGroup(Group):
    patience_seconds = _CALM.settings.election_timeout_seconds

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.post = Post(self.queue, self._deliver)
        self._simulation = _Scripted(self)
        self._reads = 0
        self.run(0.01)

    def _deliver(self, packet: Packet) -> None:
        self._simulation.deliver(packet)

    def member(self, member: int) -> _Member:
        found = self._simulation.members[member]
        assert isinstance(found, _Member)
        return found

    def run(self, seconds: float) -> None:
        end = self.queue.now + seconds
        waiting = [self.member(each) for each in range(self.size) if self.member(each).dies_in is not None]
        while waiting and self.queue.now < end:
            super().run(0.0001)  # far less than any effect takes that has to be durable
            for member in waiting:
                if member.dies_in is not None and member.in_the_middle_of(member.dies_in):
                    member.dies_in = None
                    member.crash()
                    waiting = []
        super().run(max(0.0, end - self.queue.now))

    def stand(self, member: int) -> None:
        self.member(member).time_out()

    def propose(self, member: int, value: str) -> None:
        self.member(member).propose([value])

    def read(self, member: int) -> None:
        self._reads += 1
        self.member(member).read(self._reads)

    def kill(self, member: int) -> None:
        self.member(member).crash()

    def lose_power(self, *members: int) -> None:
        for member in members:
            self.kill(member)

    def start(self, member: int) -> None:
        self.member(member).start()
        self.run(0.01)

    def kill_while_saving_a_vote(self, member: int) -> None:
        self.member(member).dies_in = SaveVote

    def kill_while_truncating(self, member: int) -> None:
        self.member(member).dies_in = Truncate

    def leaders(self) -> set[int]:
        return {member.id for member in self._simulation.members.values() if member.leads}

    def is_running(self, member: int) -> bool:
        return self.member(member).running

    def term(self, member: int) -> int:
        return self.member(member).disk.term

    def log(self, member: int) -> list[str]:
        return _values(self.member(member).disk.entries)

    def committed(self, member: int) -> list[str]:
        each = self.member(member)
        return _values(each.disk.entries[: each.commit_index + 1])


def _values(entries: list[Entry]) -> list[Any]:
    return [entry.payload for entry in entries if entry.kind is EntryKind.MESSAGE]
