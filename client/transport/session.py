"""What producers and consumers of one client share: its id, connections, routes, heartbeats, and requests of brokers.

Brokers know a client by its heartbeats, which list the groups of its producers and consumers. They go to all brokers of
the topics in use: every 30 seconds, when a group is added, and at once over a new connection, because a broker that
restarted knows no client.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from tallystick.client.core.errors import ClientError, ClosedError, NotSupported, refused
from tallystick.client.core.events import Event, OnEvent
from tallystick.client.observing.observer import Observer
from tallystick.client.transport.connection import Served
from tallystick.client.transport.connections import Acl, Connections
from tallystick.client.transport.routes import NameServers, Route, Routes
from tallystick.client.wire import fastjson
from tallystick.client.wire.codes import RequestCode, ResponseCode
from tallystick.client.wire.command import Command, HeaderType

HEARTBEAT_S = 30.0
ROUTES_S = 30.0
VERSION_WITH_TIMERS = 413
"""The protocol version of RocketMQ 5.0.0: from then on brokers deliver messages at any time, not only after a level."""
_log = logging.getLogger("tallystick.client")
_numbers = itertools.count(1)


class Member(Protocol):
    """A consumer, as its brokers see it."""

    def heartbeat(self) -> dict[str, Any]:
        """Returns the entry of `consumerDataSet`."""

    def members_changed(self) -> None:
        """A broker reports that the members of the group changed."""

    def asked(self, request: Command) -> Served:
        """Serves a request about the group: reset of offsets, running info, a message to consume."""


class Session:
    """The shared state of one client. All methods run on the event loop of `start`."""

    def __init__(
        self,
        nameservers: list[str],
        *,
        tls: ssl.SSLContext | None,
        acl: Acl | None,
        header: HeaderType,
        connect_timeout_s: float,
        timeout_s: float,
        client_id: str | None,
        on_event: OnEvent | None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.timeout_s = timeout_s
        self.observers = tuple(observers)
        self._on_event = on_event
        self.connections = Connections(
            connect_timeout_s=connect_timeout_s, tls=tls, acl=acl, header=header, on_event=self.event
        )
        self.nameservers = NameServers(nameservers, self.connections)
        self.routes = Routes(self.nameservers, self.event, timeout_s)
        self.client_id = client_id or _client_id()
        self._producers: dict[str, int] = {}
        self._checks: dict[str, Callable[[str, Command], Served]] = {}
        self._members: dict[str, Member] = {}
        self._replies: dict[str, Callable[[Command], None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[Any]] = []
        self._timers: dict[str, bool] = {}
        self.closed = False
        self.connections.on_open.append(self._opened)
        self.routes.on_change.append(self._route_changed)
        for code in (
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
        ):
            self.connections.route(code, self._asked)
        self.connections.route(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._members_changed)
        self.connections.route(RequestCode.CHECK_TRANSACTION_STATE, self._check)
        self.connections.route(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._reply)

    # --- life ---

    def start(self) -> None:
        """Starts heartbeats and the refresh of routes."""
        if not self._loops:
            self._loops = [
                asyncio.create_task(self._every(HEARTBEAT_S, self.heartbeat), name="heartbeats"),
                asyncio.create_task(self._every(ROUTES_S, self.routes.refresh_all), name="routes"),
            ]

    async def close(self) -> None:
        """Ends all tasks and connections."""
        self.closed = True
        tasks = [*self._loops, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connections.close()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Runs background work, which `close` cancels. An error in it is logged and reported as an event."""
        if self.closed:
            work.close()
            raise ClosedError("the client is closed")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def event(self, event: Event) -> None:
        """Logs an event and reports it to the application."""
        _log.log(logging.WARNING if event.kind == "problem" else logging.DEBUG, "%s %s: %s", *_words(event))
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                _log.exception("the application's function for events failed")

    def problem(self, subject: str, detail: str) -> None:
        """Reports something that a person should know, and that the client handles."""
        self.event(Event("problem", subject, detail))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)
            self.problem(task.get_name(), f"{type(error).__name__}: {error}")

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except ClientError as error:
                _log.debug("background work failed: %s", error)

    # --- groups ---

    async def add_producer(self, group: str, check: Callable[[str, Command], Served] | None = None) -> None:
        """Announces a producer. `check` gets its transactions whose end a broker does not know."""
        self._producers[group] = self._producers.get(group, 0) + 1
        if check is not None:
            self._checks[group] = check
        await self.heartbeat()

    async def remove_producer(self, group: str) -> None:
        """Takes a producer back."""
        left = self._producers.get(group, 0) - 1
        if left > 0:
            self._producers[group] = left
            return
        self._producers.pop(group, None)
        self._checks.pop(group, None)
        await self._unregister({"producerGroup": group})

    async def add_member(self, group: str, member: Member) -> None:
        """Announces a consumer of a group. ClosedError is not possible; ValueError: this client has one already."""
        if group in self._members:
            raise ValueError(f"this client has a consumer of group {group}; a second one needs another Client")
        self._members[group] = member
        await self.heartbeat()

    async def remove_member(self, group: str) -> None:
        """Takes a consumer back: the brokers tell the others of its group."""
        if self._members.pop(group, None) is not None:
            await self._unregister({"consumerGroup": group})

    async def _unregister(self, ext: dict[str, str]) -> None:
        ext = {"clientID": self.client_id, **ext}
        calls = [
            self.connections.call(address, Command(RequestCode.UNREGISTER_CLIENT, ext=dict(ext)), 1.0)
            for address in self._broker_addresses()
            if self.connections.is_open(address)  # others do not know this client
        ]
        await asyncio.gather(*calls, return_exceptions=True)

    # --- heartbeats ---

    async def heartbeat(self) -> None:
        """Sends heartbeats to all brokers of the topics in use. Brokers that do not answer get the next one."""
        if self._producers or self._members:
            await asyncio.gather(*map(self._heartbeat_to, self._broker_addresses()))

    async def _heartbeat_to(self, address: str) -> None:
        body = {
            "clientID": self.client_id,
            "consumerDataSet": [member.heartbeat() for member in self._members.values()],
            "producerDataSet": [{"groupName": group} for group in self._producers],
        }
        command = Command(RequestCode.HEART_BEAT, body=fastjson.dumps(body))
        try:
            await self.connections.ask(address, command, self.timeout_s)
        except ClientError as error:
            _log.debug("heartbeat: %s", error)

    def _broker_addresses(self) -> list[str]:
        """Masters, and for consumers also the others, from which they may read."""
        found: list[str] = []
        for addresses in self.routes.brokers.values():
            found += addresses.values() if self._members else filter(None, [addresses.get(0)])
        return list(dict.fromkeys(found))

    def _opened(self, address: str) -> None:
        if (self._producers or self._members) and address in self._broker_addresses() and not self.closed:
            self.spawn(self._heartbeat_to(address), f"heartbeat to {address}")

    def _route_changed(self, route: Route) -> None:
        if (self._producers or self._members) and not self.closed:
            for address in self._broker_addresses():
                if not self.connections.is_open(address):
                    self.spawn(self._heartbeat_to(address), f"heartbeat to {address}")
        for member in self._members.values():
            member.members_changed()

    # --- what brokers can do ---

    async def has_timers(self, address: str) -> bool:
        """Whether a broker delivers messages at any time. RocketMQ does so since 5.0; tallystick, which answers as 4.8,
        says so in its configuration. ClientError: the broker does not answer, or not to this account."""
        known = self._timers.get(address)
        if known is None:
            answer = await self.connections.call(address, Command(RequestCode.GET_BROKER_CONFIG), self.timeout_s)
            known = answer.version >= VERSION_WITH_TIMERS
            if not known and answer.code != ResponseCode.SUCCESS:
                raise refused(address, answer.code, answer.remark)
            known = known or b"timerWheelEnable=true" in answer.body
            self._timers[address] = known
        return known

    # --- requests of brokers ---

    def expect_reply(self, correlation_id: str, deliver: Callable[[Command], None] | None) -> None:
        """`deliver` gets the reply with this id; None: it is not expected any longer."""
        if deliver is None:
            self._replies.pop(correlation_id, None)
        else:
            self._replies[correlation_id] = deliver

    def _members_changed(self, _: str, request: Command) -> Served:
        member = self._members.get((request.ext or {}).get("consumerGroup", ""))
        if member is not None:
            member.members_changed()
        return None

    def _asked(self, _: str, request: Command) -> Served:
        ext: Mapping[str, str] = request.ext or {}
        group = ext.get("consumerGroup") or ext.get("group") or ""
        member = self._members.get(group)
        if member is None:
            remark = f"this client has no consumer of group {group}"
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        return member.asked(request)

    def _check(self, address: str, request: Command) -> Served:
        for check in self._checks.values():
            served = check(address, request)
            if served is not None:
                return served
        return None

    def _reply(self, _: str, request: Command) -> Served:
        text = (request.ext or {}).get("properties") or (request.ext or {}).get("i") or ""
        marker = "CORRELATION_ID\x01"
        found = ("\x02" + text).partition("\x02" + marker)[2].partition("\x02")[0]
        deliver = self._replies.pop(found, None)
        if deliver is None:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="no request waits for this reply")
        deliver(request)
        return request.reply()


def not_supported(address: str, what: str) -> NotSupported:
    """Returns the error for something that a broker's version does not have."""
    return NotSupported(address, ResponseCode.VERSION_NOT_SUPPORTED, what)


def _client_id() -> str:
    """Unique: address, process, and a random number, because a process may have several clients."""
    try:
        host = socket.gethostbyname(socket.gethostname())
    except OSError:
        host = "127.0.0.1"
    return f"{host}@{os.getpid()}#{next(_numbers)}{random.randrange(1 << 32):08x}"


def _words(event: Event) -> tuple[str, str, str]:
    return event.kind, event.subject, event.detail
