"""How a broker takes part: alone (this module), or as a member of a replicated group (`group/in_group.py`).

A broker gets one of the two when it is opened. They differ in who may change tables and messages, which timers run, and
what is saved at the end; the broker asks its role and knows neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from tallystick.node.access.addresses import address_list
from tallystick.node.broker.services.rebuilding import all_queues
from tallystick.node.broker.slaves.server import SlaveServer
from tallystick.node.remoting.codes import RequestCode
from tallystick.store.formats.message import Host

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.broker.group.group_role import BrokerGroup
    from tallystick.node.broker.services.table_files import TableFiles
    from tallystick.node.remoting.connection import Connection
    from tallystick.node.remoting.endpoint import Handler

_logger = logging.getLogger("tallystick.broker")


class Role(Protocol):
    """One broker's part in the work. The broker calls `join` once, and then the others in their order here."""

    has_pictures: bool
    """Whether the files of the tables are written from a group's log."""
    group: BrokerGroup | None
    """The group, from `join` on; None without one."""

    slaves: SlaveServer | None
    """The port for slaves, from `join` on; None without one."""

    def join(self, broker: Broker, files: TableFiles, routes: dict[int, Handler]) -> dict[int, Handler]:
        """Completes the tables of a broker that was just created. Returns the requests that it serves, made from
        `routes`."""
        ...

    async def start(self) -> None:
        """Starts the timers, or begins to follow the group."""
        ...

    def look(self) -> None:
        """Runs once a second."""
        ...

    def failure(self) -> str | None:
        """The failure that only a restart can repair; None while no such failure has occurred."""
        ...

    def unready(self) -> str | None:
        """Why the broker is not usable; None if it is."""
        ...

    def closed(self, connection: Connection) -> None:
        """A connection to this broker is closed."""
        ...

    async def leave(self) -> None:
        """The broker will stop, and still serves: hands over what only it does."""
        ...

    async def linger(self, connections: Callable[[], Collection[Connection]]) -> None:
        """The broker has left the name servers: waits for clients that do not know it yet."""
        ...

    async def stop(self) -> None:
        """The servers have stopped: ends the timers or the links to other members."""
        ...

    async def save(self) -> None:
        """Saves the tables, after the last change."""
        ...


class Alone:
    """The `Role` of a broker without a group. Its timers run from start to stop, and its tables are in their files.

    `slave_listeners`: bound sockets for slaves; empty: it has none.
    """

    has_pictures = False
    group: BrokerGroup | None = None
    slaves: SlaveServer | None = None
    _broker: Broker

    def __init__(self, slave_listeners: Sequence[socket.socket] = ()) -> None:
        self._slave_listeners = slave_listeners

    def join(self, broker: Broker, files: TableFiles, routes: dict[int, Handler]) -> dict[int, Handler]:
        """See `Role`. Tables that were lost are rebuilt from each other and from the queues."""
        self.take(broker)
        queues, topics = broker.store.queues, broker.topics
        files.rebuild(topics, broker.groups, broker.offsets, all_queues(broker))
        files.report_unknown(queues.unknown_topics({*topics, *topics.system_names()}))
        self.open_for_slaves()
        return {code: handler for code, handler in routes.items() if code != RequestCode.RELAYED_HEART_BEAT}

    def take(self, broker: Broker) -> None:
        """This is the role of `broker`."""
        self._broker = broker

    def open_for_slaves(self) -> None:
        """Makes the port for slaves; `start` accepts connections. Does nothing without listeners."""
        broker = self._broker
        if self._slave_listeners:
            allowed = address_list(broker.settings.haAllowedAddresses)
            self.slaves = SlaveServer(broker.store, self._slave_listeners, allowed)
            broker.registration.ha_address = str(
                Host(broker.settings.brokerIP2 or broker.settings.brokerIP1, self.slaves.port)
            )

    async def start(self) -> None:
        """See `Role`."""
        await self._broker.schedule.start()
        await self._broker.timers.start()
        await self._broker.transactions.start()
        await self._broker.expiry.start()
        if self.slaves is not None:
            await self.slaves.start()

    def look(self) -> None:
        """See `Role`: nothing changes by itself."""

    def failure(self) -> str | None:
        """See `Role`."""
        return self._broker.store.admission.failure()

    def unready(self) -> str | None:
        """See `Role`."""
        return self._broker.store.admission.trouble()

    def closed(self, connection: Connection) -> None:
        """See `Role`: no other member was told of it."""

    async def leave(self) -> None:
        """See `Role`: there is no successor."""

    async def linger(self, connections: Callable[[], Collection[Connection]]) -> None:
        """See `Role`: nothing else would serve the clients."""

    async def stop(self) -> None:
        """See `Role`."""
        await self._broker.schedule.stop()
        await self._broker.timers.stop()
        await self._broker.transactions.stop()
        await self._broker.expiry.stop()
        if self.slaves is not None:
            with contextlib.suppress(OSError):  # `save` reports it
                await self._broker.store.flush()
            await self.slaves.stop()

    async def save(self) -> None:
        """See `Role`."""
        broker = self._broker
        try:
            # Offsets may only refer to what is on disk: flush the log first, then save the tables.
            await broker.store.flush()
        except OSError as error:
            _logger.error("offsets of delays and transactions are not saved, some are delivered again: %s", error)
        else:
            broker.transactions.settle()
            try:
                await asyncio.to_thread(broker.schedule.persist)
            except OSError as error:
                _logger.error("offsets of delays are not saved, some are delivered again: %s", error)
        for table in (broker.topics, broker.groups, broker.offsets, broker.filters, broker.expiry.offsets):
            await table.try_save()
