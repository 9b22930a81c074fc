"""Registers this broker with every name server: at the start, when topics change, and every `registerNameServerPeriod`.

Name servers do not communicate with each other, and drop a broker that is silent for two minutes. The broker therefore
registers with each separately and all at once. One that does not answer delays no other, also not the next registration
there: a change of leader often comes with the loss of the machine that had a name server. Changes that come together,
or while a name server has not answered, are sent in one registration.

A member of a replicated group has no broker id (-1) and is not registered until a leader is known. Then it registers
its id and the term of this id, and reports each change at once (B6). If a name server rejects a registration, the
broker tries again after three seconds.

A former leader stays registered as the master until its successor registers. RocketMQ's producers fail at once while a
broker name has no master, until they request the route again, whereas the former leader forwards what it gets. A name
server of tallystick asks the former leader whether it is alive as soon as the successor registers. One of RocketMQ does
not, so there the former leader waits for a fixed time, after which the successor has replaced its address.
Source: BrokerOuterAPI.registerBrokerAll of RocketMQ 4.8.0.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.tables.topics import READ_WRITE
from tallystick.node.core.settings import UNDECIDED
from tallystick.node.nameserver.registration import EXTERNAL_FIELD, TERM_FIELD, WHOLE_FIELD
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson

if TYPE_CHECKING:
    from tallystick.node.broker.tables.topics import TopicTable
    from tallystick.node.core.settings import BrokerSettings
    from tallystick.node.remoting.client import RemotingClient
    from tallystick.node.remoting.connection import Connection
    from tallystick.store.formats.message import Host

_logger = logging.getLogger("tallystick.broker")
_AGAIN_S = 3.0  # retry of a rejected registration: clients cannot find the broker until then
_START_S = 3.0  # a start waits no longer for name servers
_MASTER_ID = 0
SUCCESSOR_S = 2.0
"""How long a former leader waits for its successor to register, which takes a few milliseconds after its election."""


class Registration:
    """The registrations of one broker with the name servers of `namesrvAddr` and `externalNamesrvAddr`."""

    def __init__(
        self,
        client: RemotingClient,
        host: Host,
        topics: TopicTable,
        settings: BrokerSettings,
        successor_s: float = SUCCESSOR_S,
    ) -> None:
        self.settings = settings
        self.term = 0
        """The term of the replicated group in which `settings.brokerId` is valid; 0 without a group."""
        self.ha_address = ""
        """Where slaves connect, `host:port`; empty if the broker does not accept slaves."""
        self.on_master: Callable[[str, str], None] | None = None
        """Called with the addresses of the master, for clients and for slaves, which a name server told this slave."""
        self._client = client
        self._host = host
        self._topics = topics
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failing: set[str] = set()
        self._registering: dict[str, asyncio.Task[bool]] = {}
        """The registration in progress, by the name server's address."""
        self._outdated: set[str] = set()
        """Addresses whose registration in progress does not have the latest change."""
        self._told_ids: dict[str, int] = {}  # the last registered broker id, by the name server's address
        self._successor_s = successor_s
        self._asked_s: dict[str, float] = {}
        """When a name server last asked whether this broker is alive, by the event loop's clock."""
        self._waits: dict[str, asyncio.Event] = {}
        """Ends the wait for a successor, by the name server's address."""
        self._stopped = False

    @property
    def nameservers(self) -> list[str]:
        return [*_addresses(self.settings.namesrvAddr), *_addresses(self.settings.externalNamesrvAddr)]

    async def start(self) -> None:
        """Registers once, then continues in the background."""
        if begun := self.begin():
            await asyncio.wait(begun, timeout=_START_S)
        self._task = asyncio.get_running_loop().create_task(self._keep_on(), name="register")

    async def stop(self) -> None:
        """Unregisters, so that clients learn it at once and not after the name servers' two minutes. Later changes of
        the role are not registered."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            self._task = None
        in_progress = list(self._registering.values())
        for task in in_progress:
            task.cancel()
        await asyncio.gather(*in_progress, return_exceptions=True)
        await asyncio.gather(*(self._wait_for_successor(address) for address in self.nameservers))
        await self.withdraw()

    async def withdraw(self) -> None:
        """Unregisters the last registered id at each name server, and continues."""
        known = {address: self._told_ids.pop(address, UNDECIDED) for address in self.nameservers}
        await asyncio.gather(
            *(
                self._tell(address, self._goodbye(address, number))
                for address, number in known.items()
                if number != UNDECIDED
            )
        )

    def answer(self, connection: Connection, request: Command) -> Command:
        """Answers a name server that asks whether this broker is alive, because another one registers at its place."""
        if (address := self._client.address_of(connection)) is not None:
            self.asked_by(address)
        return request.reply()

    def asked_by(self, nameserver: str) -> None:
        """This name server asked."""
        self._asked_s[nameserver] = asyncio.get_running_loop().time()
        if (waits := self._waits.get(nameserver)) is not None:
            waits.set()

    def soon(self) -> None:
        """Registers at the next turn of the event loop, after a change."""
        self._wake.set()

    async def register_all(self) -> int:
        """Registers with every name server; returns how many accepted. A member without a role is not registered."""
        begun = self.begin()
        if begun:
            await asyncio.wait(begun)
        return sum(task.result() for task in begun if not task.cancelled())  # a stop cancels them

    def begin(self, nameservers: list[str] | None = None) -> list[asyncio.Task[bool]]:
        """Begins to register with name servers, with all of them by default; returns the registrations in progress."""
        if self._stopped or self.settings.brokerId == UNDECIDED:
            return []
        return [self._begun(address) for address in (self.nameservers if nameservers is None else nameservers)]

    def _begun(self, address: str) -> asyncio.Task[bool]:
        if (task := self._registering.get(address)) is not None:
            self._outdated.add(address)
            if address in self._waits and not self._is_former_master(address):  # it leads again
                self._waits[address].set()
            return task
        task = asyncio.get_running_loop().create_task(self._register(address), name=f"register with {address}")
        self._registering[address] = task
        return task

    async def _register(self, address: str) -> bool:
        """Registers with one name server, again if something changed meanwhile. Returns whether it accepted."""
        try:
            while True:
                await self._wait_for_successor(address)
                self._outdated.discard(address)
                if self._told_ids.get(address) != self.settings.brokerId:
                    self._asked_s.pop(address, None)  # that was about the former place
                # Set before the answer: an unregistration that overtakes the answer follows the registration on the
                # same connection.
                self._told_ids[address] = self.settings.brokerId
                accepted = await self._tell(address, self._hello(address))
                if address not in self._outdated or self._stopped or self.settings.brokerId == UNDECIDED:
                    return accepted
        finally:
            self._registering.pop(address, None)

    def _is_former_master(self, address: str) -> bool:
        """Whether a name server was told that this member of a group leads, which it does no longer."""
        return bool(self.term) and self._told_ids.get(address) == _MASTER_ID and self.settings.brokerId > _MASTER_ID

    async def _wait_for_successor(self, address: str) -> None:
        """Returns when a former master may give up its place at a name server, at once if it gives up nothing."""
        asked_s = self._asked_s.get(address, float("-inf"))
        recently = asyncio.get_running_loop().time() - asked_s < self._successor_s
        if recently or address in self._failing or not self._is_former_master(address):
            return
        waits = self._waits[address] = asyncio.Event()
        try:
            async with asyncio.timeout(self._successor_s):
                await waits.wait()
        except TimeoutError:
            pass  # a name server of RocketMQ, or no member leads
        finally:
            del self._waits[address]

    async def _keep_on(self) -> None:
        loop = asyncio.get_running_loop()
        all_told_s = loop.time()
        while True:
            period_s = min(60_000, max(10_000, self.settings.registerNameServerPeriod)) / 1000
            failing = [address for address in self.nameservers if address in self._failing]
            due_s = all_told_s + period_s
            try:
                async with asyncio.timeout_at(min(due_s, loop.time() + _AGAIN_S) if failing else due_s):
                    await self._wake.wait()
            except TimeoutError:
                if loop.time() < due_s:
                    self.begin(failing)  # the others are registered
                    continue
            self._wake.clear()
            all_told_s = loop.time()
            self.begin()

    async def _tell(self, address: str, command: Command) -> bool:
        try:
            answer = await self._client.call(address, command, self.settings.registerBrokerTimeoutMills / 1000)
            problem = answer.remark if answer.code != 0 else None
            self._take_master(command, answer)
        except RemotingError as error:
            problem = str(error)
        if problem is None:
            self._failing.discard(address)
            return True
        if address not in self._failing:  # once per outage, not per attempt
            self._failing.add(address)
            _logger.warning("name server %s did not accept the registration: %s", address, problem)
        return False

    def _take_master(self, command: Command, answer: Command) -> None:
        if self.on_master is None or command.code != RequestCode.REGISTER_BROKER or not answer.ext:
            return
        address, ha_address = answer.ext.get("masterAddr", ""), answer.ext.get("haServerAddr", "")
        if address:
            self.on_master(address, ha_address)

    def _identity(self, nameserver: str, broker_id: int) -> dict[str, str]:
        settings = self.settings
        is_outside = nameserver in _addresses(settings.externalNamesrvAddr)
        return {
            "brokerName": settings.brokerName,
            "brokerAddr": settings.externalAddress if is_outside else str(self._host),
            "clusterName": settings.brokerClusterName,
            "brokerId": str(broker_id),
        }

    def _goodbye(self, nameserver: str, broker_id: int) -> Command:
        return Command(RequestCode.UNREGISTER_BROKER, ext=self._identity(nameserver, broker_id))

    def _hello(self, nameserver: str) -> Command:
        body = fastjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": self._topic_wrapper()})
        ext = self._identity(nameserver, self.settings.brokerId) | {
            "haServerAddr": self.ha_address,
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            WHOLE_FIELD: "true",
        }
        if self.term:
            ext[TERM_FIELD] = str(self.term)
        if self.settings.externalAddress:
            ext[EXTERNAL_FIELD] = self.settings.externalAddress
        return Command(RequestCode.REGISTER_BROKER, ext=ext, body=body)

    def _topic_wrapper(self) -> dict[str, Any]:
        wrapper = self._topics.to_json()
        allowed = self.settings.brokerPermission
        if allowed & READ_WRITE != READ_WRITE:
            wrapper["topicConfigTable"] = {
                name: replace(topic, perm=topic.perm & allowed).to_json() for name, topic in self._topics.items()
            }
        return wrapper


def _addresses(text: str) -> list[str]:
    return [address.strip() for address in text.split(";") if address.strip()]
