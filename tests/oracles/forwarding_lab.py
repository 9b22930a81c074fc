"""Members of a group as brokers with real sockets and fake stores; the test says who leads, and what a member knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fake_broker import FakeBroker

from tallystick.node.broker.group.leader_only import LeaderOnly
from tallystick.node.broker.group.leader_place import Place
from tallystick.node.broker.processors.clients import ClientProcessor
from tallystick.node.broker.processors.locks import LockProcessor
from tallystick.node.broker.processors.offsets import OffsetProcessor
from tallystick.node.broker.processors.reply import ReplyProcessor
from tallystick.node.broker.processors.send import SendProcessor
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.node.remoting.server import Connection, RemotingServer
from tallystick.replication.member.errors import ReadError

TOPIC = "orders"


class Knowledge:
    """What a member knows of the group: keeps to `forwarding.Leadership` and `forwarded.Receiver`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.leads = self.accepting = False
        self.full = False
        self.key = f"key of n{number}"
        self.on_change: list[Callable[[], None]] = []
        self.reads = 0
        self.behind = False
        self._place: Place | None = None

    def refusal(self) -> str | None:
        if self.leads and self.accepting:
            return None
        return "the leader takes nothing" if self.leads else "this member follows"

    def hopeless(self) -> bool:
        return self.full

    def place(self) -> Place | None:
        return self._place

    async def read(self) -> None:
        self.reads += 1
        if self.behind:
            raise ReadError("told so by a test")

    def lead(self, accepting: bool = True) -> None:
        self.leads, self.accepting, self._place = True, accepting, None
        self.tell()

    def follow(self, leader: Node | None, term: int = 1) -> None:
        """`leader`: who this member takes for it."""
        self.leads, self.accepting = False, False
        if leader is None:
            self._place = None
        else:
            self._place = Place(term, leader.group.number, leader.address, leader.group.key)
        self.tell()

    def tell(self) -> None:
        for callback in self.on_change:
            callback()


class Node:
    """One member. `serve` more codes before `start`; `arrived` has the requests that its processors got."""

    def __init__(self, number: int) -> None:
        self.group = Knowledge(number)
        self.broker = FakeBroker()
        self.broker.topics.update(TopicConfig(TOPIC, 4, 4))
        self.arrived: list[Command] = []
        self.served: dict[int, Callable[[Any, Command], Any]] = {}
        self.address = ""
        self._server: RemotingServer | None = None

    async def start(self) -> None:
        broker: Any = self.broker
        routes: dict[int, Any] = {}
        for kind in (SendProcessor, ClientProcessor, LockProcessor, OffsetProcessor, ReplyProcessor):
            routes |= kind(broker).routes()
        routes |= self.served
        routes = {int(code): self._noting(handler) for code, handler in routes.items()}
        group: Any = self.group
        self.leader_only = LeaderOnly(routes, broker, group)
        self._server = RemotingServer(self.leader_only.routes)
        self._server.on_close.append(self._closed)
        self.address = f"127.0.0.1:{await self._server.start('127.0.0.1', 0)}"

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0.1)
        await self.leader_only.stop()

    @property
    def held(self) -> int:
        return self.leader_only.forwarder.held

    @property
    def connections(self) -> int:
        """Of clients and members to this one."""
        assert self._server is not None
        return len(self._server.connections)

    def bodies(self) -> list[bytes]:
        """Of what is stored here, in order."""
        return [record.body for record in self.broker.store.records(TOPIC)]

    def _noting(self, handler: Any) -> Any:
        def handle(connection: Any, command: Command) -> Any:
            self.arrived.append(command)
            return handler(connection, command)

        return handle

    def _closed(self, connection: Connection) -> None:
        self.broker.producers.close(connection)
        self.broker.consumers.close(connection)
        self.leader_only.closed(connection)


def send(body: bytes, *, oneway: bool = False, header_type: HeaderType = HeaderType.JSON) -> Command:
    """A plain send as the Java client's."""
    ext = {"a": "pg", "b": TOPIC, "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
    return Command(
        RequestCode.SEND_MESSAGE_V2, flag=2 if oneway else 0, ext={**ext, "k": "false", "m": "false"}, body=body,
        header_type=header_type,
    )  # fmt: skip


async def until(look: Callable[[], object]) -> None:
    """Returns when this is true: something is on its way over a socket."""
    for _ in range(2000):
        if look():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("timed out after 10 s")
