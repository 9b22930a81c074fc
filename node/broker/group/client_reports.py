"""Clients of this member that its group's leader must know: reported to the leader, which reaches them through here.

A producer sends heartbeats only to the broker that it considers the master. After a change of leader this is the old
leader for up to 30 s, and the new one could neither check a transaction nor deliver a reply. Heartbeats of such clients
are therefore forwarded to the leader, all of them again after each change of leader, and the leader's requests to them
come back on the same link. Consumers send heartbeats to every member; they are forwarded only if they name a group that
this member does not have yet, because there may have been no leader to create it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.group import envelope
from tallystick.node.broker.processors.answers import objects, read_body
from tallystick.node.broker.tables.topics import retry_topic
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, ResponseError, need_long
from tallystick.node.remoting.errors import FrameError, HeaderError, RemotingError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.group.forwarding import Forwarder, Leadership
    from tallystick.node.remoting.endpoint import Handler

AT_ONCE = 32
"""How many clients are reported to the leader at a time, when all of them are reported again."""
CALL_MAX_S = 10.0


class ClientRelay:
    """The relay of one member. Its owner sets `forwarder` before the first request."""

    forwarder: Forwarder

    def __init__(self, broker: BrokerContext, leadership: Leadership, relayed: Handler) -> None:
        """`relayed`: serves RELAYED_HEART_BEAT if this member becomes the leader."""
        self._broker = broker
        self._group = leadership
        self._relayed = relayed
        self._heartbeats: dict[Any, Command] = {}  # the last one of each connection with a pure producer
        self._by_id: dict[str, Any] = {}
        self._untold: dict[Any, Command] = {}
        self._leader: tuple[int, bool] | None = None
        self._task: asyncio.Task[None] | None = None
        self._farewells: set[asyncio.Task[None]] = set()
        leadership.on_change.append(self._changed)

    def routes(self) -> dict[int, Handler]:
        """The requests that a leader can send on the link that this member made to it."""
        return {RequestCode.REQUEST_TO_CLIENT: self.pass_on}

    def heartbeat(self, handler: Handler) -> Handler:
        """Wraps `handler`, and informs the leader if it must know the client."""

        def handle(connection: Any, command: Command) -> Any:
            consumers = objects(read_body(command).get("consumerDataSet"), "consumerDataSet of a heartbeat")
            only_produces = not consumers
            lacks_group = any(self._lacks(data.get("groupName")) for data in consumers)
            answer = handler(connection, command)  # raises if it is not a heartbeat
            told = replace(command, code=RequestCode.RELAYED_HEART_BEAT)
            if only_produces:
                self._heartbeats[connection] = told
                self._by_id[connection.id] = connection
            else:
                self._forget(connection)
            if not self._group.leads and (only_produces or lacks_group):
                self._untold[connection] = told
                self._work()
            return answer

        return handle

    def unregister(self, handler: Handler) -> Handler:
        """Wraps `handler`, and informs the leader if it knows the client through this member."""

        def handle(connection: Any, command: Command) -> Any:
            place = self._group.place()
            if place is not None and connection in self._heartbeats:
                self._farewell(self.forwarder.tell(place, connection, command))
            return handler(connection, command)

        return handle

    def closed(self, connection: Any) -> None:
        """A client's connection is closed."""
        known = connection in self._heartbeats
        self._forget(connection)
        self._untold.pop(connection, None)
        place = self._group.place()
        if known and place is not None:
            self._farewell(self.forwarder.tell_left(place, connection))

    async def pass_on(self, link: Any, command: Command) -> Command | None:
        """31003: forwards the leader's request to a client."""
        try:
            inner = envelope.opened(command)
            connection = self._by_id.get(str(envelope.client_of(command)))
        except (FrameError, HeaderError) as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"an envelope without a valid request: {error}") from error
        if inner is None or connection is None or connection.closed:
            raise ResponseError(ResponseCode.CONSUMER_NOT_ONLINE, "the client is no longer connected here")
        if inner.is_oneway:
            connection.oneway(inner)
            return command.reply()
        timeout_s = min(CALL_MAX_S, need_long(command.ext, envelope.TIMEOUT_MS) / 1000)
        try:
            return envelope.answer(command, await connection.call(inner, timeout_s))
        except RemotingError as error:
            raise ResponseError(ResponseCode.CONSUMER_NOT_ONLINE, str(error)) from error

    async def stop(self) -> None:
        """Stops informing the leader."""
        tasks = [*self._farewells, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- internal ------------------------------------------------------------------------------------------------------

    def _lacks(self, name: Any) -> bool:
        if not isinstance(name, str):
            return False
        return self._broker.groups.find(name) is None or retry_topic(name) not in self._broker.topics

    def _forget(self, connection: Any) -> None:
        if self._heartbeats.pop(connection, None) is not None:
            self._by_id.pop(connection.id, None)

    def _changed(self) -> None:
        place = self._group.place()
        leader = (place.term, False) if place is not None else (0, True) if self._group.leads else None
        if leader is None or leader == self._leader:
            return
        self._leader = leader
        if place is not None:
            self._untold = {**self._heartbeats, **self._untold}
        self._work()

    def _work(self) -> None:
        if self._untold and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._tell(), name="tell the leader of clients")

    async def _tell(self) -> None:
        try:
            while self._untold:
                place = self._group.place()
                if place is None and not self._group.leads:
                    return  # until there is a leader
                some = [self._untold.popitem() for _ in range(min(AT_ONCE, len(self._untold)))]
                if place is None:
                    for connection, command in some:
                        self._relayed(connection, command)
                    await asyncio.sleep(0)
                else:
                    # A failed report is repeated with the next heartbeat, or after a change of leader.
                    await asyncio.gather(*(self.forwarder.tell(place, *each) for each in some))
        finally:
            self._task = None

    def _farewell(self, work: Awaitable[Any]) -> None:
        async def say() -> None:
            await work

        task = asyncio.get_running_loop().create_task(say(), name="tell the leader of a client that left")
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)
