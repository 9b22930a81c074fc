"""What brokers keep in tables beside the log: topics, subscription groups, and how far consumers are.

    T1  a topic or group is as the last acknowledged change made it, after any restart
    O1  an offset that was committed so long before a fault that it was saved does not go back
    O2  an uncommitted offset is not returned, nor one from before a reset that was saved

A change whose outcome is not known leaves two possible rows; that row is no longer changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from simulation.clients import Client
from simulation.violation import ViolationError
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.errors import RemotingError

Row = tuple[int, ...] | None
Place = tuple[str, str, str, int]
"""Broker, group, topic, queue id."""

_SAVED_S = 10.0
"""flushConsumerOffsetInterval is 5 s; saving takes a moment."""


@dataclass
class Offsets:
    """What consumers said, by place."""

    tried: dict[Place, set[int]] = field(default_factory=dict)
    taken: dict[Place, list[tuple[float, int]]] = field(default_factory=dict)
    quiet: bool = True
    """Nothing is wrong now. What is committed while something is may be lost with a leader, or not be saved in time."""
    safe: dict[Place, int] = field(default_factory=dict)
    reset: dict[Place, tuple[float, set[int]]] = field(default_factory=dict)
    """When it was set back, and what was committed since."""

    def trying(self, place: Place, offset: int) -> None:
        """A consumer commits."""
        self.tried.setdefault(place, set()).add(offset)
        if place in self.reset:
            self.reset[place][1].add(offset)

    def took(self, place: Place, offset: int, now: float) -> None:
        """The broker said yes."""
        if self.quiet:
            self.taken.setdefault(place, []).append((now, offset))

    def resetting(self, place: Place, offset: int) -> None:
        """A consumer or administrator sets it back: from now on the broker may have either."""
        self.trying(place, offset)
        self.safe[place] = min(self.safe.get(place, 0), offset)
        self.taken[place] = [(at, min(taken, offset)) for at, taken in self.taken.get(place, ())]

    def was_reset(self, place: Place, offset: int, now: float) -> None:
        """The broker said yes: once that is saved, what was committed before does not come back."""
        if self.quiet:
            self.reset[place] = now, {offset}

    def fault(self, now: float) -> None:
        """Something goes wrong now: what was committed in the last seconds may not be saved."""
        self.quiet = False
        for place, taken in self.taken.items():
            old = [offset for at, offset in taken if at <= now - _SAVED_S]
            self.safe[place] = max([self.safe.get(place, 0), *old])
            taken.clear()
        for place, (at, since) in self.reset.items():
            if at <= now - _SAVED_S:
                self.tried[place] = since
        self.reset.clear()

    async def check(self, client: Client, address: Callable[[str], str]) -> None:
        """Asks for all of them. ViolationError."""
        for place in list(self.tried):
            least = max([self.safe.get(place, 0), *(offset for _, offset in self.taken.get(place, ()))])
            found = await client.committed(address(place[0]), *place[1:])
            if (found or 0) < least:
                raise ViolationError("O1", f"the offset of {place} is {found}, and {least} was committed")
            if found is not None and found not in self.tried[place] and found != 0:
                raise ViolationError("O2", f"the offset of {place} is {found}, which was not committed")


class Tables:
    """One administrator and what it did, by kind, broker and name."""

    def __init__(self, brokers: list[str], address: Callable[[str], str]) -> None:
        self.rows: dict[tuple[str, str, str], set[Row]] = {}
        self._open: set[tuple[str, str, str]] = set()
        self._brokers = brokers
        self._address = address
        self.stopping = False
        self._alone = asyncio.Lock()

    async def work(self, client: Client, dice: Random, pause_s: float) -> None:
        """Makes, changes and deletes rows until `stopping`."""
        while not self.stopping:
            await asyncio.sleep(dice.expovariate(1 / pause_s))
            kind, name = dice.choice(("topic", "group")), f"Adm{dice.randrange(12)}"
            place = kind, dice.choice(self._brokers), name
            if place in self._open:
                continue  # what became of an earlier change is not known
            async with self._alone:
                await self._change(client, dice, place)

    async def _change(self, client: Client, dice: Random, place: tuple[str, str, str]) -> None:
        kind, broker, name = place
        address = self._address(broker)
        before = self.rows.setdefault(place, {None})
        row: Row = None if dice.random() < 0.3 else (dice.randrange(1, 9), dice.choice((2, 4, 6)))
        if row is not None and kind == "group":
            row = (dice.randrange(1, 30),)
        self.rows[place] = before | {row}
        self._open.add(place)
        try:
            if row is None and kind == "topic":
                answer = await client.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
            elif row is None:
                answer = await client.call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": name})
            elif kind == "topic":
                answer = await client.set_topic(address, name, *row)
            else:
                answer = await client.set_group(address, name, *row)
        except RemotingError as error:
            client.loop.trace.note(client.loop.now, f"{place} to {row}: {error}")
            return
        client.loop.trace.note(client.loop.now, f"{place} to {row}: {answer.code} {answer.remark or ''}")
        if answer.code == ResponseCode.SUCCESS:
            self.rows[place] = {row}
            self._open.discard(place)

    async def check(self, client: Client, address: Callable[[str], str]) -> None:
        """Compares all rows; nothing is changed meanwhile. ViolationError."""
        async with self._alone:
            await self._check(client, address)

    async def _check(self, client: Client, address: Callable[[str], str]) -> None:
        for broker in self._brokers:
            topics = await client.table(address(broker), RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable")
            groups = await client.table(
                address(broker), RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable"
            )
            for (kind, of, name), possible in list(self.rows.items()):
                if of != broker:
                    continue
                if kind == "topic":
                    topic = topics.get(name)
                    row: Row = None if topic is None else (topic["readQueueNums"], topic["perm"])
                else:
                    group = groups.get(name)
                    row = None if group is None else (group["retryMaxTimes"],)
                if row not in possible:
                    raise ViolationError("T1", f"{kind} {name} of {broker} is {row}; it may be {possible}")
