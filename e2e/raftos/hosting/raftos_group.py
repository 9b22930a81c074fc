"""A group of raftos nodes. Each process is a `VirtualLoop` with one node in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from simulator.clock import EventQueue

from . import adapted
from .files import Files
from .group import Group
from .loop import Killed, VirtualLoop
from .post import Packet, Post

KINDS = {
    "request_vote": "vote",
    "request_vote_response": "vote reply",
    "append_entries": "append",
    "append_entries_response": "append reply",
}
NAME = "x"
"""raftos replicates assignments to names: every value is assigned to this one."""


class Network(Protocol):
    def send(self, packet: Any) -> None: ...


class RaftosMember:
    def __init__(self, group: RaftosGroup, member: int) -> None:
        self.id = member
        self.node: Any = None
        self.applied: list[tuple[int, str]] = []
        """(index, value) of everything that was ever applied to its state file, in order."""
        self._group = group
        self._loop: VirtualLoop | None = None
        self._client: Any = None
        self.waiting: set[str] = set()
        """Values whose clients wait."""

    @property
    def running(self) -> bool:
        return self._loop is not None and self._loop.alive

    @property
    def role(self) -> Any:
        """raftos' Leader, Candidate or Follower."""
        assert self.node is not None
        return self.node.state.state

    @property
    def leads(self) -> bool:
        return self.running and isinstance(self.role, adapted.Leader)

    @property
    def term(self) -> int:
        cache = self.node.state.storage.cache if self.running else {}
        if "term" in cache:
            return int(cache["term"])
        content = self._group.files.content(adapted.path(self.id, "storage"))
        return int(adapted.unpack(content).get("term", 0)) if content else 0

    @property
    def entries(self) -> list[dict[str, Any]]:
        """Its log: in memory, or as its files have it while it is down; up to the first that cannot be read."""
        if self.running:
            entries: list[dict[str, Any]] = self.node.state.log.cache
            return entries
        readable = []
        for line in (self._group.files.content(adapted.path(self.id, "log")) or b"").splitlines(keepends=True):
            try:
                readable.append(adapted.unpack(line))
            except ValueError:
                break
        return readable

    @property
    def commit_index(self) -> int:
        return int(self.node.state.log.commit_index) if self.running else 0

    def start(self) -> None:
        assert not self.running
        self.node = self._client = None
        self.waiting.clear()
        loop = self._loop = VirtualLoop(  # type: ignore[abstract]  # what raftos asks of a loop is there
            self._group.queue,
            send=self._send,
            after_each=lambda: self._group.ran(self),
            on_error=lambda error: self._error(loop, error),
        )
        loop.run(self._begin, loop)

    def _begin(self, loop: VirtualLoop) -> None:
        try:
            self.node = adapted.new_node(self.id, self._group.size, loop)
        except Exception:
            loop.alive = False  # a process whose main function raises is over
            raise
        machine, log = self.node.state.state_machine, self.node.state.log
        apply = machine.apply

        def noted(command: dict[str, str]) -> None:
            self.applied.append((log.last_applied + 1, command[NAME]))
            self._group.applies(self, log.last_applied + 1, command)
            apply(command)

        machine.apply = noted
        loop.create_task(self.node.start())

    def end(self) -> None:
        if self._loop is not None:
            self._loop.alive = False

    def receive(self, packet: Packet) -> None:
        if self.running and self._loop is not None and self._loop.protocol is not None:
            self._loop.run(self._loop.protocol.datagram_received, packet.body, adapted.address(packet.source))

    def time_out(self) -> None:
        assert self._loop is not None
        timer = self.role.election_timer
        timer.handler.cancel()
        self._loop.run(timer._run)

    @property
    def serves(self) -> bool:
        """Leads, and has no command of a client in progress: raftos has one future for all of them."""
        return self.leads and self._client is not self.role

    def propose(self, value: str) -> None:
        """Through raftos' own way in for commands."""
        assert self._loop is not None
        self._client = self.role
        self._loop.run(lambda: self._loop and self._loop.create_task(self._command(self.role, value)))

    async def _command(self, role: Any, value: str) -> None:
        self.waiting.add(value)
        try:
            await self.node.state.set_value(NAME, value)
        finally:
            self.waiting.discard(value)
        if self._client is role:
            self._client = None
        self._group.acknowledges(self, value)

    def read(self) -> None:
        assert self._loop is not None
        self._loop.run(lambda: self._loop and self._loop.create_task(self._answer()))

    async def _answer(self) -> None:
        self._group.answers.append(await self.node.state.get_value(NAME))

    def _send(self, data: bytes, target: tuple[str, int]) -> None:
        content = adapted.unpack(data)
        packet = Packet(self.id, adapted.member_of(target), KINDS[content["type"]], data)
        self._group.sends(self, packet, content)

    def _error(self, loop: VirtualLoop, error: BaseException) -> None:
        if isinstance(error, Killed):
            loop.alive = False
        else:
            self._group.fails(self, error)


class RaftosGroup(Group):
    """`network`: takes the place of the script's post, made with what delivers a packet."""

    def __init__(
        self,
        size: int,
        *,
        seed: int = 0,
        heartbeat_seconds: float = 0.3,
        default_serializer: bool = False,
        network: Callable[[EventQueue, Callable[[Packet], None]], Network] | None = None,
    ) -> None:
        super().__init__(size)
        self.patience_seconds = 5 * heartbeat_seconds
        self.files = Files(lambda: self.queue.now)
        self.members = [RaftosMember(self, each) for each in range(size)]
        self.post = Post(self.queue, self.delivers)
        self._network: Network = self.post if network is None else network(self.queue, self.delivers)
        self._leading: dict[int, Any] = {}
        adapted.host(
            self.files,
            random.Random(seed),
            heartbeat_seconds=heartbeat_seconds,
            default_serializer=default_serializer,
        )
        for member in self.members:
            member.start()
        self.run(0.01)

    # -- what members tell ---------------------------------------------------------------------------------------------

    def ran(self, member: RaftosMember) -> None:
        """A callback of its process came to its end."""
        if member.leads and self._leading.get(member.id) is not member.role:
            self._leading[member.id] = member.role
            self.led[member.term].add(member.id)
            self.elected(member)

    def elected(self, member: RaftosMember) -> None:
        """It began to lead."""

    def sends(self, member: RaftosMember, packet: Packet, content: dict[str, Any]) -> None:
        if packet.kind == "vote":
            self.votes[member.id, content["term"]].add(member.id)
        elif content.get("vote_granted"):
            self.votes[member.id, content["term"]].add(packet.target)
        self._network.send(packet)

    def delivers(self, packet: Packet) -> None:
        self.members[packet.target].receive(packet)

    def acknowledges(self, member: RaftosMember, value: str) -> None:
        self.acknowledged.append(value)

    def applies(self, member: RaftosMember, index: int, command: dict[str, str]) -> None:
        """Before it does."""

    def fails(self, member: RaftosMember, error: BaseException) -> None:
        self.errors.append(f"{type(error).__name__}: {error}")

    # -- Group ---------------------------------------------------------------------------------------------------------

    def stand(self, member: int) -> None:
        if isinstance(self.members[member].role, adapted.Candidate):
            self.members[member].time_out()  # raftos' candidate becomes a follower first
        self.members[member].time_out()

    def propose(self, member: int, value: str) -> None:
        self.members[member].propose(value)

    def read(self, member: int) -> None:
        self.members[member].read()

    def kill(self, member: int) -> None:
        self.members[member].end()

    def lose_power(self, *members: int) -> None:
        for member in members:
            self.kill(member)
            self.files.lose_power(adapted.path(member, ""), None)

    def start(self, member: int) -> None:
        self.members[member].start()
        self.run(0.01)

    def kill_while_saving_a_vote(self, member: int) -> None:
        self.files.kill_in_rewrite(adapted.path(member, "storage"))

    def kill_while_truncating(self, member: int) -> None:
        self.files.kill_in_rewrite(adapted.path(member, "log"))

    def applied(self, member: int) -> list[str]:
        return [value for _, value in self.members[member].applied]

    def waits(self, value: str) -> bool:
        return any(value in member.waiting for member in self.members)

    def leaders(self) -> set[int]:
        return {member.id for member in self.members if member.leads}

    def is_running(self, member: int) -> bool:
        return self.members[member].running

    def term(self, member: int) -> int:
        return self.members[member].term

    def log(self, member: int) -> list[str]:
        return [entry["command"][NAME] for entry in self.members[member].entries]

    def committed(self, member: int) -> list[str]:
        return self.log(member)[: self.members[member].commit_index]
