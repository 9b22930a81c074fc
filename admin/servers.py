"""The servers of a cluster, and the requests of one question to them.

A question asks many servers at the same time, and no server can stall it: a request has a limited time, and a server
that did not answer one request of a question gets no further ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from tallystick.admin.errors import NoNameServerError
from tallystick.admin.models import Problem
from tallystick.client import (
    Client,
    ClientError,
    ConfigurationError,
    ConnectionFailed,
    NoAnswer,
    NotFound,
    NotSupported,
    ProtocolError,
)
from tallystick.client.core.errors import refused
from tallystick.client.wire import fastjson
from tallystick.client.wire.codes import RequestCode, ResponseCode
from tallystick.client.wire.command import Command

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
AT_ONCE = 32
"""Requests of one question that are in progress at the same time."""
_MASTER = 0


class Place(NamedTuple):
    """A broker process, as name servers know it. Of the processes with one `name`, the master has `id` 0."""

    cluster: str
    name: str
    id: int
    address: str

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True, slots=True)
class Topology:
    """All brokers that are registered, sorted by cluster, name and id."""

    places: tuple[Place, ...]

    def clusters(self) -> list[str]:
        """Returns the names of the clusters."""
        return list(dict.fromkeys(place.cluster for place in self.places))

    def masters(self, cluster: str | None = None) -> list[Place]:
        """Returns the masters, of one cluster or of all."""
        return [each for each in self.places if each.id == _MASTER and cluster in (None, each.cluster)]

    def readers(self) -> list[Place]:
        """Returns for each broker name its master; without one, the process with the lowest id."""
        found: dict[tuple[str, str], Place] = {}
        for place in self.places:
            found.setdefault((place.cluster, place.name), place)
        return list(found.values())

    def without_master(self) -> list[Place]:
        """Returns a process of each broker name that has no master now."""
        return [place for place in self.readers() if place.id != _MASTER]

    def at(self, address: str) -> Place | None:
        """Returns the process with this address."""
        return next((place for place in self.places if place.address == address), None)

    def named(self, name: str) -> list[Place]:
        """Returns the processes with this broker name."""
        return [place for place in self.places if place.name == name]


class Servers:
    """The servers that a client reaches. Each question begins with `question`."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self.client = client
        self.timeout_s = timeout_s

    def question(self) -> Question:
        """Returns a new question, which does not know of earlier failures."""
        return Question(self)

    @property
    def nameservers(self) -> list[str]:
        """The addresses of the name servers."""
        return self.client.nameservers.split(";")


class Question:
    """The requests that answer one question, and what could not be read (`problems`)."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.problems: list[Problem] = []
        self.versions: dict[str, int] = {}
        """The version of the protocol of each server that answered."""
        self._down: dict[str, ClientError] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.first_error: ClientError | None = None
        """What went wrong first; None: everything was read."""

    # --- name servers ---

    async def topology(self) -> Topology:
        """Asks a name server for the brokers. ClientError: none of them answers."""
        found = self.json(await self.nameserver(RequestCode.GET_BROKER_CLUSTER_INFO), "the table of brokers")
        try:
            clusters = found["clusterAddrTable"]
            of_name = {name: cluster for cluster, names in clusters.items() for name in names}
            places = [
                Place(str(row.get("cluster") or of_name.get(name, "")), str(name), broker_id, str(address))
                for name, row in found["brokerAddrTable"].items()
                for broker_id, address in fastjson.int_keys(row["brokerAddrs"]).items()
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"the table of brokers cannot be read: {type(error).__name__}: {error}") from error
        return Topology(tuple(sorted(places)))

    async def nameserver(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Sends a request to one of the name servers. ClientError; ConfigurationError: none of them is one."""
        try:
            return await self.servers.client.ask_nameserver(
                code, ext, body, timeout=self.servers.timeout_s, patient=False
            )
        except NotSupported as error:
            text = f"{error.address} is not a name server, perhaps it is a broker: {error.remark}"
            raise ConfigurationError(text, address=error.address) from error
        except (ConnectionFailed, NoAnswer) as error:
            raise NoNameServerError(error) from error

    async def ordered_topics(self) -> dict[str, str]:
        """Returns the topics whose order of queues is fixed, with their queues: `broker-a:4;broker-b:4`."""
        try:
            answer = await self.nameserver(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": ORDER_NAMESPACE})
        except NotFound:  # no topic is one
            return {}
        return dict(self.json(answer, "the table of ordered topics").get("table") or {})

    # --- brokers ---

    async def ask(
        self, place: Place | str, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """Sends a request to a server. ClientError: there is no answer, or it is an error."""
        answer = await self.call(place, code, ext, body)
        if answer.code != ResponseCode.SUCCESS:
            raise refused(str(place), answer.code, answer.remark)
        return answer

    async def call(
        self, place: Place | str, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """As `ask`, and returns an answer with an error code, too."""
        address = str(place)
        async with self._slots:
            if address in self._down:
                raise self._down[address]
            try:
                answer = await self.servers.client.call(address, code, ext, body, timeout=self.servers.timeout_s)
                self.versions[address] = answer.version
                return answer
            except (ConnectionFailed, NoAnswer) as error:
                self._down[address] = error
                raise

    async def table(self, place: Place | str, code: int, ext: Mapping[str, str] | None = None) -> dict[Any, Any]:
        """Returns the JSON object of an answer. Keys that are numbers or queues may be texts. ClientError."""
        return self.json(await self.ask(place, code, ext), f"the answer of {place} to request {code}")

    async def each(self, items: Iterable[K], work: Callable[[K], Awaitable[V]]) -> dict[K, V]:
        """Does the same with each item, many at a time. Returns the results; failures become problems."""
        found: dict[K, V] = {}

        async def one(item: K) -> None:
            try:
                found[item] = await work(item)
            except ClientError as error:
                self.failed(error.address or str(item), error)

        async with asyncio.TaskGroup() as tasks:
            order = list(items)
            for item in order:
                tasks.create_task(one(item))
        return {item: found[item] for item in order if item in found}

    def failed(self, subject: str, error: ClientError) -> None:
        """Notes that something could not be read."""
        self.first_error = self.first_error or error
        reason = str(error).removeprefix(f"{subject}: ").removeprefix(f"{subject} ")
        problem = Problem(subject, reason)
        if problem not in self.problems:
            self.problems.append(problem)

    def reason(self, place: Place) -> str | None:
        """Returns why a server could not be read; None: it was read."""
        return next((each.reason for each in self.problems if each.subject == place.address), None)

    def need_some(self, found: Any) -> None:
        """Raises the first error, if nothing was found because of it."""
        if not found and self.first_error is not None:
            raise self.first_error

    @staticmethod
    def json(answer: Command, what: str) -> dict[Any, Any]:
        """Returns the JSON object in an answer. ProtocolError: there is none."""
        try:
            found = fastjson.loads_tables(answer.body)
        except ValueError as error:
            raise ProtocolError(f"{what} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise ProtocolError(f"{what} cannot be read: it is not an object")
        return found


ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""The name servers' table of ordered topics."""
