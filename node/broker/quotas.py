"""Quotas: what one user, and one client, may do per second, and how many topics a user may create.

    a request ── its client's meter has room? ── its user's meter has room? ──▶ served, and takes its cost from both
                          └────────────── no ──────────┘
        pulls, and what keeps the state of a client    wait, at most `_MOST_WAIT_S`; then a pull is refused with
                                                       FLOW_CONTROL (215), and the others are served
        other requests                                 are refused with SYSTEM_BUSY (2). The answer is sent when there
                                                       is room again, at most `_MOST_PAUSE_S` later

The late answer paces clients that try again at once. Heartbeats, offsets and locks are never refused: a consumer that
uses up its quota stays a member of its group. What a pull delivers is counted when it is delivered.

The kernel takes the cost of the sends that it stores itself from the same meters (`store/kernel/src/meter.rs`), and
gives a send that finds no room to Python. A client is the client id of a user's heartbeat; without a user, or before
the first heartbeat, it is the address, because a stranger can choose any id. The table has the meters of open
connections, and of at most `_MOST_COOLING` others until their buckets are full again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from tallystick.node.access.policies import User
from tallystick.node.broker.processors.sending import SENDS, region
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, ResponseError
from tallystick.node.tls.handshakes import network_of
from tallystick.store._kernel import Meter

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.core.settings import BrokerSettings
    from tallystick.node.remoting.connection import Connection
    from tallystick.node.remoting.endpoint import Handler

KINDS = ("messages", "bytes", "requests")
"""What is limited, in the order of the kernel's numbers."""
OF_CLIENT, OF_USER = "client", "user"
_MOST_WAIT_S = 2.5
_MOST_PAUSE_S = 1.0
_MOST_WAITING = 10_000
"""Requests that wait or whose refusal waits; above, they are refused or served at once."""
_MOST_COOLING = 10_000
_LONGEST_ID = 256
_METER = "meter of the client"  # attribute of its connection

_PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
_STATE = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.END_TRANSACTION,
    }
)
"""Requests that keep what the broker knows of a client."""
_OF_MEMBERS = frozenset({RequestCode.FORWARDED_REQUEST, RequestCode.CLIENT_LEFT})
"""The member that has the client's connection counts them."""

_Rates = tuple[float, float, float]


class Quotas:
    """The meters of one broker. `throttled`: requests that found no room, by whose meter and which limit."""

    def __init__(self, broker: BrokerContext) -> None:
        self.throttled = {(scope, kind): 0 for scope in (OF_CLIENT, OF_USER) for kind in KINDS}
        self.on_throttled: Callable[[Connection, Command, str, str], None] = lambda *_: None
        """Called with each request that found no room: whose meter, and which limit."""
        self._broker = broker
        self._waiting = 0
        self._users: dict[str, Meter] = {}
        self._topics: dict[str, int] = {}
        """By user: how many topics it may create; users without a limit are not in it."""
        self._clients: WeakValueDictionary[str, Meter] = WeakValueDictionary()
        self._cooling: OrderedDict[str, Meter] = OrderedDict()

    # -- users ---------------------------------------------------------------------------------------------------------

    def use(self, users: Iterable[User]) -> None:
        """These users exist from now on, with their quotas."""
        settings, now_ms = self._broker.settings, self._broker.now_ms()
        before, self._users, self._topics = self._users, {}, {}
        for user in users:
            rates = _rates_of_user(settings, user)
            if any(rates):
                self._users[user.name] = _meter(before.get(user.name), rates, settings.quotaBurstSeconds, now_ms)
            if topics := _first(user.quota.topics, settings.userTopics):
                self._topics[user.name] = topics

    def of_user(self, name: str) -> Meter | None:
        """The meter of a user; None: it has no quota."""
        return self._users.get(name)

    def check_new_topics(self, user: str, names: Collection[str]) -> None:
        """ResponseError 16: the user has created as many topics as it may."""
        most = self._topics.get(user)
        if most is None:
            return
        topics = self._broker.topics
        new = sum(name not in topics for name in set(names))
        have = sum(config.owner == user for _, config in topics.items())
        if new and have + new > most:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"user {user} has created {have} topics, and may {most}")

    # -- clients -------------------------------------------------------------------------------------------------------

    def attach(self, connection: Connection) -> None:
        """A connection is open: it is the client of its address until `identified`."""
        self._attach(connection, network_of(connection.remote.ip))

    def identified(self, connection: Connection, user: str, client_id: str) -> None:
        """A heartbeat says who the client is. Without a user it says nothing that can be trusted."""
        if user:
            self._attach(connection, f"{user}@{client_id}"[:_LONGEST_ID])

    def detach(self, connection: Connection) -> None:
        """The connection is closed. What its client owes is kept."""
        name, meter = connection.attributes.pop(_METER, ("", None))
        if meter is None or meter.is_full(self._broker.now_ms()):
            return
        self._cooling[name] = meter
        self._cooling.move_to_end(name)
        if len(self._cooling) > _MOST_COOLING:
            self._cooling.popitem(last=False)

    def look(self) -> None:
        """Forgets clients without connection that owe nothing. Call it every few seconds."""
        now_ms = self._broker.now_ms()
        for name in [name for name, meter in self._cooling.items() if meter.is_full(now_ms)]:
            del self._cooling[name]

    def settings_changed(self, connections: Iterable[Connection]) -> None:
        """Uses the present settings for all clients from now on."""
        settings = self._broker.settings
        rates = _rates_of_client(settings)
        for meter in list(self._clients.values()):
            meter.set_rates(*rates, settings.quotaBurstSeconds)
        for connection in connections:
            name, _ = connection.attributes.get(_METER, ("", None))
            self._attach(connection, name or network_of(connection.remote.ip))

    def delivered(self, connection: Any, user: str, messages: int, size_bytes: int) -> None:
        """Messages were sent to a consumer of this user."""
        for meter in (_meter_of(connection), self._users.get(user)):
            if meter is not None:
                meter.take(messages, size_bytes, 0)

    def admits_pull(self, connection: Any, user: str) -> bool:
        """Whether client and user may pull now; takes the request from both if they may."""
        found = [meter for meter in (_meter_of(connection), self._users.get(user)) if meter is not None]
        if not found:
            return True
        now_ms = self._broker.now_ms()
        if any(meter.wait(now_ms) is not None for meter in found):
            return False
        for meter in found:
            meter.take(0, 0, 1)
        return True

    @property
    def table_size(self) -> int:
        """Clients that have a meter."""
        return len(self._clients)

    def _attach(self, connection: Connection, name: str) -> None:
        settings = self._broker.settings
        rates = _rates_of_client(settings)
        meter = None
        if any(rates):
            known = self._clients.get(name)
            meter = known or _meter(None, rates, settings.quotaBurstSeconds, self._broker.now_ms())
            self._clients[name] = meter
            self._cooling.pop(name, None)
        if _meter_of(connection) is meter is None:
            return
        connection.attributes[_METER] = name, meter
        feeding = connection.attributes.get("feeding")
        if feeding is not None:
            feeding.set_meter(meter)

    # -- requests ------------------------------------------------------------------------------------------------------

    def guard_clients(self, routes: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same routes, limited by client."""
        return self._guarded(routes, OF_CLIENT, lambda connection, _: _meter_of(connection))

    def guard_users(self, routes: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same routes, limited by user. Access control, which finds the user, is before them."""
        return self._guarded(routes, OF_USER, lambda _, command: self._users.get(command.user))

    def _guarded(
        self, routes: Mapping[int, Handler], scope: str, meter_of: Callable[[Connection, Command], Meter | None]
    ) -> dict[int, Handler]:
        def limited(handler: Handler) -> Handler:
            def handle(connection: Connection, command: Command) -> Any:
                meter = meter_of(connection, command)
                if meter is None:
                    return handler(connection, command)
                empty = meter.wait(self._broker.now_ms())
                if empty is None:
                    meter.take(*_cost(command), 1)
                    return handler(connection, command)
                return self._throttle(scope, meter, empty, handler, connection, command)

            return handle

        return {code: handler if code in _OF_MEMBERS else limited(handler) for code, handler in routes.items()}

    def _throttle(
        self,
        scope: str,
        meter: Meter,
        empty: tuple[int, int],
        handler: Handler,
        connection: Connection,
        command: Command,
    ) -> Any:
        kind, wait_ms = KINDS[empty[0]], empty[1]
        self.throttled[scope, kind] += 1
        self.on_throttled(connection, command, scope, kind)
        refusal = f"[OVERLOAD]the {scope} used up its {kind} per second, start flow control for a while"
        if command.code in _PULLS or command.code in _STATE:
            return self._wait(meter, refusal, handler, connection, command)
        answer = command.reply(
            ResponseCode.SYSTEM_BUSY, ext=region(self._broker) if command.code in SENDS else None, remark=refusal
        )
        return self._answer_late(answer, min(wait_ms / 1000, _MOST_PAUSE_S), silent=command.is_oneway)

    async def _answer_late(self, answer: Command, pause_s: float, *, silent: bool) -> Command | None:
        if self._waiting < _MOST_WAITING:
            await self._pause(pause_s)
        return None if silent else answer

    async def _wait(
        self, meter: Meter, refusal: str, handler: Handler, connection: Connection, command: Command
    ) -> Command | None:
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + _MOST_WAIT_S
        while (empty := meter.wait(self._broker.now_ms())) is not None and not connection.closed:
            left_s = deadline_s - clock()
            if left_s <= 0 or self._waiting >= _MOST_WAITING:
                if command.code in _PULLS:
                    return command.reply(ResponseCode.FLOW_CONTROL, ext={}, remark=refusal)
                break
            await self._pause(min(empty[1] / 1000, left_s))
        if connection.closed and command.code in _PULLS:
            return None
        meter.take(*_cost(command), 1)
        result = handler(connection, command)
        return await result if inspect.isawaitable(result) else result

    async def _pause(self, seconds: float) -> None:
        self._waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting -= 1


def _meter_of(connection: Any) -> Meter | None:
    found: tuple[str, Meter | None] = connection.attributes.get(_METER, ("", None))
    return found[1]


def _first(own: int | None, default: int) -> int:
    return default if own is None else own


def _rates_of_user(settings: BrokerSettings, user: User) -> _Rates:
    quota = user.quota
    return (
        _first(quota.messages_per_second, settings.userMessagesPerSecond),
        _first(quota.bytes_per_second, settings.userBytesPerSecond),
        _first(quota.requests_per_second, settings.userRequestsPerSecond),
    )


def _rates_of_client(settings: BrokerSettings) -> _Rates:
    return settings.clientMessagesPerSecond, settings.clientBytesPerSecond, settings.clientRequestsPerSecond


def _meter(known: Meter | None, rates: _Rates, burst_s: float, now_ms: int) -> Meter:
    """The meter with these rates: the known one, which keeps what is owed, or a new one."""
    if known is None:
        return Meter(*rates, burst_s, now_ms)
    known.set_rates(*rates, burst_s)
    return known


def _cost(command: Command) -> tuple[int, int]:
    """Messages and bytes that a request brings."""
    if command.code not in SENDS:
        return 0, 0
    body = command.body
    return (_batch_size(body) if command.code == RequestCode.SEND_BATCH_MESSAGE else 1), len(body)


def _batch_size(body: bytes) -> int:
    """Messages of a batch; the processor refuses one that is malformed."""
    count, at = 0, 0
    while at + 4 <= len(body):
        count += 1
        at += max(4, int.from_bytes(body[at : at + 4], "big"))
    return max(1, count)
