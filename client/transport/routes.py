"""Where the queues of topics are: routes from name servers, kept and refreshed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tallystick.client.core.errors import (
    Busy,
    ClientError,
    ConfigurationError,
    ConnectionFailed,
    NoAnswer,
    NotFound,
    NotSupported,
    ProtocolError,
    Refused,
    refused,
)
from tallystick.client.core.events import Event, OnEvent
from tallystick.client.transport.connections import Connections
from tallystick.client.wire import fastjson
from tallystick.client.wire.codes import RequestCode, ResponseCode
from tallystick.client.wire.command import Command

AUTO_CREATE_TOPIC = "TBW102"
"""The topic like which brokers create unknown topics, if they are allowed to."""
AUTO_CREATE_QUEUES = 4
_READ, _WRITE = 4, 2
_ROUND_PAUSES_S = (0.1, 0.3, 1.0)
_ONE_SERVER_S = 3.0


class Queue(NamedTuple):
    """One queue of a topic at one broker. The order is that of RocketMQ's clients, who share queues by it."""

    topic: str
    broker: str
    id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.id}"


@dataclass(frozen=True, slots=True)
class Route:
    """The brokers of a topic, by name: their addresses by broker id, of which 0 is the master's. `write` has the queues
    of brokers that have a master, `read` those that can be read; both are sorted."""

    topic: str
    brokers: dict[str, dict[int, str]]
    write: tuple[Queue, ...]
    read: tuple[Queue, ...]
    clusters: dict[str, str] = field(default_factory=dict)
    """The cluster of each broker name."""


def parse_route(topic: str, body: bytes) -> Route:
    """Decodes the answer of a name server. ProtocolError: it is not a route."""
    try:
        found = fastjson.loads(body)
        brokers = {str(row["brokerName"]): fastjson.int_keys(row["brokerAddrs"]) for row in found["brokerDatas"]}
        clusters = {str(row["brokerName"]): str(row.get("cluster") or "") for row in found["brokerDatas"]}
        return Route(
            topic,
            brokers,
            _writable(topic, found, brokers),
            tuple(sorted(_queues(topic, found, brokers, _READ, "readQueueNums"))),
            clusters,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"the route of topic {topic} cannot be read: {type(error).__name__}: {error}") from error


def _writable(topic: str, found: dict[str, Any], brokers: dict[str, dict[int, str]]) -> tuple[Queue, ...]:
    masters = {name: addresses for name, addresses in brokers.items() if 0 in addresses}
    if ordered := found.get("orderTopicConf"):  # "broker-a:4;broker-b:4"; it wins over the queues of the brokers
        pairs = (part.split(":") for part in str(ordered).split(";") if part)
        return tuple(Queue(topic, name, number) for name, count in pairs for number in range(int(count)))
    return tuple(sorted(_queues(topic, found, masters, _WRITE, "writeQueueNums")))


def _queues(
    topic: str, found: dict[str, Any], brokers: dict[str, dict[int, str]], perm: int, count: str
) -> Iterator[Queue]:
    for row in found["queueDatas"]:
        if row["perm"] & perm and row["brokerName"] in brokers:
            yield from (Queue(topic, row["brokerName"], number) for number in range(row[count]))


class NameServers:
    """Name servers that answer for each other. A request goes to the one that answered last, then to the others."""

    def __init__(self, addresses: Sequence[str], connections: Connections) -> None:
        if not addresses:
            raise ConfigurationError("the address of a name server is needed: host:port;host:port")
        self.addresses = list(addresses)
        self._connections = connections
        self._first = random.randrange(len(self.addresses))

    async def ask(self, code: int, ext: dict[str, str], timeout_s: float, body: bytes = b"") -> Command:
        """Returns the answer of the first name server that has one. Refused, or the last ClientError of all."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        problem: ClientError | None = None
        for turn in range(1 << 30):
            for address in self._in_turn():
                left_s = min(_ONE_SERVER_S, deadline_s - loop.time())
                if left_s <= 0:
                    break
                command = Command(code, ext=dict(ext), body=body)
                try:
                    answer = await self._connections.call(address, command, left_s, patient=False)
                except (ConnectionFailed, NoAnswer) as error:
                    problem = error
                    continue
                if answer.code != ResponseCode.SUCCESS:
                    problem = refused(address, answer.code, answer.remark)
                    if isinstance(problem, Busy | NotSupported):  # it starts, or is not a name server
                        continue
                    self._first = self.addresses.index(address)
                    raise problem
                self._first = self.addresses.index(address)
                return answer
            if isinstance(problem, NotSupported):
                raise problem
            pause_s = _ROUND_PAUSES_S[min(turn, len(_ROUND_PAUSES_S) - 1)]
            if loop.time() + pause_s >= deadline_s:
                break
            await asyncio.sleep(pause_s)
        assert problem is not None, "each round tries at least one name server"
        raise problem

    def _in_turn(self) -> list[str]:
        return self.addresses[self._first :] + self.addresses[: self._first]


class Routes:
    """The routes of the topics in use. A route that changed is reported to `on_change`."""

    def __init__(self, nameservers: NameServers, on_event: OnEvent, timeout_s: float) -> None:
        self._nameservers = nameservers
        self._on_event = on_event
        self._timeout_s = timeout_s
        self._kept: dict[str, Route] = {}
        self._asking: dict[str, asyncio.Task[Route]] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        self.on_change: list[Callable[[Route], None]] = []

    @property
    def brokers(self) -> dict[str, dict[int, str]]:
        """The addresses of all brokers of the topics in use, by broker name and id."""
        return self._brokers

    def kept(self, topic: str) -> Route | None:
        """Returns the route that is known, without asking."""
        return self._kept.get(topic)

    def master(self, broker: str) -> str | None:
        """Returns the address of a broker's master; None: it has no master now."""
        return self._brokers.get(broker, {}).get(0)

    def reader(self, broker: str, broker_id: int = 0) -> str | None:
        """Returns the address to read from: that of this id if there is one, else the master's, else any."""
        addresses = self._brokers.get(broker)
        if not addresses:
            return None
        return addresses.get(broker_id) or addresses.get(0) or next(iter(addresses.values()))

    async def get(self, topic: str, timeout_s: float | None = None) -> Route:
        """Returns the route of a topic. NotFound, ConnectionFailed, NoAnswer, ProtocolError."""
        return self._kept.get(topic) or await self.refresh(topic, timeout_s)

    async def refresh(self, topic: str, timeout_s: float | None = None) -> Route:
        """Asks a name server now. A route that was known stays if no name server has it: it may have just started."""
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.get_running_loop().create_task(self._ask(topic))
            asking.add_done_callback(lambda task: self._answered(topic, task))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(asking)
        except TimeoutError:
            raise ConnectionFailed("name server", f"no route of topic {topic} within {timeout_s:.3g} s") from None

    async def refresh_all(self) -> None:
        """Asks for all routes that are kept. Failures leave them as they are."""
        await asyncio.gather(*(self.refresh(topic) for topic in list(self._kept)), return_exceptions=True)

    def forget(self, topic: str) -> None:
        """The topic is not in use any longer."""
        self._kept.pop(topic, None)

    async def to_create(self, topic: str, timeout_s: float | None = None) -> Route:
        """Returns where a topic that does not exist can be created by a send. NotFound: nowhere."""
        model = await self.refresh(AUTO_CREATE_TOPIC, timeout_s)
        write = tuple(Queue(topic, each.broker, each.id) for each in model.write if each.id < AUTO_CREATE_QUEUES)
        return Route(topic, model.brokers, write, (), model.clusters)

    def _answered(self, topic: str, task: asyncio.Task[Route]) -> None:
        del self._asking[topic]
        if not task.cancelled():
            task.exception()  # retrieved: those who wait have it

    async def _ask(self, topic: str) -> Route:
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            answer = await self._nameservers.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, self._timeout_s)
        except Refused as error:
            kept = self._kept.get(topic)
            if isinstance(error, NotFound) and kept is not None:
                return kept
            raise
        route = parse_route(topic, answer.body)
        before = self._kept.get(topic)
        self._kept[topic] = route
        # The newest answer is right about a broker: other routes may be from the time before a change of the master.
        used = {name for each in self._kept.values() for name in each.brokers}
        self._brokers = {name: value for name, value in (self._brokers | route.brokers).items() if name in used}
        if route != before:
            self._on_event(Event("route-changed", topic, f"{len(route.read)} queues"))
            for hook in self.on_change:
                hook(route)
        return route
