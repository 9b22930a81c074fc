"""One broker: the store, the tables, the services on timers, and its ports.

It creates and owns them; `processors/` handles requests. At the start the store recovers, the tables load, the services
start, the ports open, and the broker registers with the name servers last, so that clients do not find a broker that is
not ready. At the end the order is the opposite: name servers, ports, services, tables, and the store last.

What differs with and without a replicated group is in the role (`role.py`). A member of a group becomes follower or
leader as described in `group_role.py`. Its services and its registration change with that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tallystick.node.access.opening import Signer, open_credentials
from tallystick.node.broker.copying import beginning
from tallystick.node.broker.copying.group_copy import GroupCopy
from tallystick.node.broker.copying.record import RecordFile
from tallystick.node.broker.copying.slave_role import SlaveRole
from tallystick.node.broker.entrance import Entrance
from tallystick.node.broker.feeding import FeedingSource, hot_queues
from tallystick.node.broker.group import queue_ends
from tallystick.node.broker.group.adoption import adopted_tables
from tallystick.node.broker.group.group_role import with_role
from tallystick.node.broker.group.in_group import InGroup
from tallystick.node.broker.group.membership import GroupPlan, forget_derived
from tallystick.node.broker.processors import all_routes
from tallystick.node.broker.processors.pull_quick import QuickPulls
from tallystick.node.broker.role import Alone, Role
from tallystick.node.broker.services.bit_maps import BitMaps
from tallystick.node.broker.services.expiry import ExpiryService
from tallystick.node.broker.services.holds import HoldTable
from tallystick.node.broker.services.registration import Registration
from tallystick.node.broker.services.schedule import ScheduleService
from tallystick.node.broker.services.stats import BrokerStats
from tallystick.node.broker.services.table_files import TableFiles
from tallystick.node.broker.services.timers import TimerService
from tallystick.node.broker.services.transactions import TransactionService
from tallystick.node.broker.slaves.listeners import bind_for_slaves
from tallystick.node.broker.tables.clients import ConsumerTable, ProducerTable
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroupTable
from tallystick.node.broker.tables.filters import ConsumerFilterTable
from tallystick.node.broker.tables.first_offsets import FirstOffsets
from tallystick.node.broker.tables.locks import QueueLocks
from tallystick.node.broker.tables.offsets import ConsumerOffsets
from tallystick.node.broker.tables.pulled import PulledOffsets
from tallystick.node.broker.tables.saving import SavedTable
from tallystick.node.broker.tables.topics import TopicTable
from tallystick.node.core import kept_settings, logs
from tallystick.node.core.configuration import as_text, change_while_running, parse_changes
from tallystick.node.core.rocketmq_settings import SHOWN
from tallystick.node.core.settings import PERMISSION_WRITE, UNDECIDED, BrokerSettings
from tallystick.node.core.starting import RECOVERING, StartProgress
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.endpoint import Handler, Limits
from tallystick.node.remoting.request_times import RequestTimes
from tallystick.node.remoting.server import RemotingServer, bind, close_all
from tallystick.node.tls.process import ProcessTls
from tallystick.replication.metadata import snapshot
from tallystick.store._kernel import Door
from tallystick.store.clock import steady_ms, wall_ms
from tallystick.store.engine.lock import StoreLock
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.engine.pace import Pace
from tallystick.store.finding_log import FindingLog
from tallystick.store.formats.message import Host
from tallystick.store.limited_log import RepeatedError
from tallystick.store.settings import BrokerRole, SettingsError, StoreSettings
from tallystick.store.tables import JsonTable

_logger = logging.getLogger("tallystick.broker")


class Broker:
    """A running broker; the attributes are those that processors see (`context.BrokerContext`)."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        changes: JsonTable,
        role: Role,
        tls: ProcessTls | None = None,
    ) -> None:
        self.settings = settings
        self.tls = tls
        """TLS of the process; None: it has none."""
        self.store = store
        self.host = store.store_host
        self.kept_settings = changes
        """The settings that were changed while the broker ran."""
        self.on_restart: list[Callable[[], None]] = []
        """Called when the broker must be stopped and started again."""
        config = store.root / "config"
        self.stats = BrokerStats(settings.brokerClusterName, self.now_ms)
        files = TableFiles(store.door, config, store.findings, pictures=role.has_pictures)
        self.topics = files.open("topics.json", lambda file: TopicTable(file, settings, self.now_ms))
        self.groups = files.open(
            "subscriptionGroup.json", lambda file: SubscriptionGroupTable(file, settings, self.now_ms)
        )
        self.offsets = files.open("consumerOffset.json", ConsumerOffsets)
        self.pulled = PulledOffsets()
        self.request_times = RequestTimes()
        self.filters = files.open(
            "consumerFilter.json", lambda file: ConsumerFilterTable(file, settings, self.now_ms), picture=False
        )
        self._bit_maps = BitMaps(self.filters, store)
        self.producers = ProducerTable()
        self.consumers = ConsumerTable()
        self.consumers.on_subscribed.append(self.filters.register)
        self.consumers.on_gone.append(self.filters.unregister)
        self.locks = QueueLocks()
        self.holds = HoldTable(store.queues, limit=settings.pullThreadPoolQueueCapacity)
        self.schedule = files.open("delayOffset.json", lambda file: ScheduleService(self, file))
        self.expiry = ExpiryService(self, files.open("firstOffset.json", FirstOffsets))
        self.timers = TimerService(self)
        self.transactions = TransactionService(self)
        self._entrance = Entrance(self, in_group=role.has_pictures)
        self.quotas, self.access, self.audit = self._entrance.quotas, self._entrance.access, self._entrance.audit
        self.sign: Signer | None = open_credentials("aclCredentialsFile", settings.aclCredentialsFile)
        """Signs the broker's own requests to name servers and to a master; None: they are not signed."""
        self._client = RemotingClient(
            {RequestCode.ARE_YOU_THERE: lambda connection, request: self.registration.answer(connection, request)},
            name="broker.client",
            sign=self.sign,
            tls=self.client_context,
        )
        self.advertised = Host(settings.brokerIP1, settings.listenPort)
        """Where clients and other members reach this broker."""
        self.http: Host | None = None
        """Where this process serves HTTP; None: it does not."""
        self.describe: Callable[[], dict[str, Any] | None] = lambda: None
        """The state of the process, as `GET /node` has it; None: the process has no description."""
        self.registration: Registration = Registration(self._client, self.advertised, self.topics, settings)
        self._leaving = False
        self._role = role
        routes = role.join(self, files, all_routes(self))
        self._store_audit = routes.pop(RequestCode.AUDIT_LINES)  # clients cannot send them
        routes = self._entrance.guard(routes)
        self.group = role.group
        self.slaves = role.slaves
        self._quick_pulls = QuickPulls(self)
        self._entrance.on_accounts = self._quick_pulls.forget
        self._server, self._vip_server = self._servers(routes)
        self._timers: list[asyncio.Task[None]] = []
        self._pace = Pace()

    def _servers(self, routes: Mapping[int, Handler]) -> tuple[RemotingServer, RemotingServer]:
        """The server of the broker's port, and that of the "VIP" port, which serves the same requests except pulls.

        Source: BrokerController, fastRemotingServer.
        """
        limits = Limits(
            frame_stall_s=self.settings.frameMaxStallTimeSeconds,
            connections_of_address=self.settings.maxConnectionsPerAddress,
        )
        idle_seconds = self.settings.serverChannelMaxIdleTimeSeconds
        pulls = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
        server = RemotingServer(
            routes,
            frame_source_factory=self._feeding,
            idle_seconds=idle_seconds,
            limits=limits,
            times=self.request_times,
            name="broker",
        )
        vip_server = RemotingServer(
            {code: handler for code, handler in routes.items() if code not in pulls},
            frame_source_factory=self._feeding_without_pulls,
            idle_seconds=idle_seconds,
            limits=limits,
            times=self.request_times,
            name="broker.vip",
        )
        for each in (server, vip_server):
            each.on_close.append(self._connection_closed)
        return server, vip_server

    # -- life ----------------------------------------------------------------------------------------------------------

    @classmethod
    async def start(
        cls,
        settings: BrokerSettings,
        store_settings: StoreSettings,
        door: Door | None = None,
        progress: StartProgress | None = None,
        findings: FindingLog | None = None,
        tls: ProcessTls | None = None,
    ) -> Broker:
        """Recovers the store, serves, and registers. ConfigurationError, OSError, and those of `MessageStore.open`.

        `findings`: the process's list of what is wrong with its files; `store.findings` afterwards.
        """
        progress = progress or StartProgress()
        findings = findings or FindingLog(store_settings.root)
        # The ports first: one that is taken costs no recovery, and records and name servers are told the real one.
        asked_port = settings.listenPort
        listeners = await bind(settings.bindAddress, settings.listenPort, "broker.listenPort")
        vip_listeners: list[socket.socket] = []
        slave_listeners: list[socket.socket] = []
        try:
            if settings.vipListenerEnable and settings.listenPort > 2:
                vip = "broker.listenPort - 2, the port for VIP clients; broker.vipListenerEnable=false: without it"
                vip_listeners = await bind(settings.bindAddress, settings.listenPort - 2, vip)
            settings = replace(settings, listenPort=listeners[0].getsockname()[1])
            slave_listeners = await bind_for_slaves(settings, store_settings, any_port=asked_port == 0)
            port = slave_listeners[0].getsockname()[1] if slave_listeners else 0
            store_settings = replace(store_settings, haListenPort=port)
            door = door or Door()
            return await cls._open(
                settings, store_settings, door, listeners, vip_listeners, slave_listeners, progress, findings, tls
            )
        except BaseException:
            close_all([*listeners, *vip_listeners, *slave_listeners])
            raise

    @classmethod
    async def _open(
        cls,
        settings: BrokerSettings,
        store_settings: StoreSettings,
        door: Door,
        listeners: Sequence[socket.socket],
        vip_listeners: Sequence[socket.socket],
        slave_listeners: Sequence[socket.socket],
        progress: StartProgress,
        findings: FindingLog,
        tls: ProcessTls | None,
    ) -> Broker:
        changes = JsonTable(door, store_settings.root / "config" / kept_settings.FILE_NAME)
        kept = kept_settings.open_kept_settings(changes, findings)
        source = str(changes.path)
        settings, store_settings = kept_settings.with_kept(
            (settings, store_settings), kept, lambda both, some: parse_changes(*both, some, source), source
        )
        host = await _store_host(settings)
        if store_settings.enableDLegerCommitLog:
            return await cls._open_member(
                settings, store_settings, door, host, changes, listeners, vip_listeners, progress, findings, tls
            )
        is_slave = store_settings.brokerRole is BrokerRole.SLAVE
        if is_slave:
            if settings.brokerId <= 0:
                raise SettingsError("brokerId", f"must be above 0 with brokerRole=SLAVE, not {settings.brokerId}")
            await asyncio.to_thread(beginning.begin, door, store_settings)
        record_file = RecordFile(door, store_settings.root)
        was_promoted = not is_slave and (await asyncio.to_thread(record_file.load)).number > 0
        progress.enter(RECOVERING, "log and queues")
        store = await MessageStore.open(
            store_settings,
            store_host=host,
            cluster=settings.brokerClusterName,
            region=settings.regionId,
            trace_on=settings.traceOn,
            door=door,
            on_progress=progress.read,
            findings=findings,
        )
        try:
            alone = Alone(slave_listeners)
            role: Role = alone
            if is_slave or was_promoted:
                role = SlaveRole(record_file, alone, promoted=not is_slave)
            broker = cls(settings, store, changes, role, tls)
            await broker._start(listeners, vip_listeners)
        except BaseException:
            await store.close()
            raise
        return broker

    @classmethod
    async def _open_member(
        cls,
        settings: BrokerSettings,
        store_settings: StoreSettings,
        door: Door,
        host: Host,
        changes: JsonTable,
        listeners: Sequence[socket.socket],
        vip_listeners: Sequence[socket.socket],
        progress: StartProgress,
        findings: FindingLog,
        tls: ProcessTls | None,
    ) -> Broker:
        """The member recovers its log, then the store recovers what is derived from it, then the member takes part."""
        # Whether the group follows a master is in its log: the store is that of a member in any case.
        copy = GroupCopy(wanted=store_settings.brokerRole is BrokerRole.SLAVE)
        store_settings = replace(store_settings, brokerRole=BrokerRole.ASYNC_MASTER)
        plan = GroupPlan(settings, store_settings)
        progress.enter(RECOVERING, "log")
        own = await bind(settings.bindAddress, plan.own[1], "store.dLegerPeers, for the members of the group")
        lock = None
        try:
            # Lock the folder before the recovery, which would truncate what a process that still runs is writing. In a
            # pod that replaces another one by force nothing else prevents that: the ports and the address are separate.
            door.mkdir(str(store_settings.root))
            lock = StoreLock.acquire(store_settings.root, door)
            config = store_settings.root / "config"
            committed = await asyncio.to_thread(snapshot.load, config)
            if committed is None:
                size = store_settings.mappedFileSizeCommitLog
                committed = await asyncio.to_thread(adopted_tables, door, config, plan.folder, size)
            roles: list[InGroup] = []  # the member asks for tables only when it takes part
            member = await plan.open_member(
                door,
                host,
                applied_index=committed.applied_index,
                snapshot=lambda: roles[0].state(),
                restore=lambda state: roles[0].take_state(state),
                findings=findings,
            )
            member.saved_index = lambda: roles[0].saved_index() if roles else -1
            if await asyncio.to_thread(forget_derived, door, store_settings.root, member.begin_pos):
                _logger.warning("snapshot at byte %d: rebuilding queues and index", member.begin_pos)
            progress.enter(RECOVERING, "queues")
            store = await MessageStore.open(
                store_settings,
                store_host=host,
                door=door,
                replica=member,
                lock=lock,
                on_progress=progress.read,
                findings=findings,
            )
            try:
                store.group.count_from(queue_ends.load(config))
                role = InGroup(member, committed, copy)
                broker = cls(replace(settings, brokerId=UNDECIDED), store, changes, role, tls)
                roles.append(role)
                await broker._start(listeners, vip_listeners)
                await member.start(own, plan.peers, appending=store.appender)
            except BaseException:
                await member.stop(transfer=False)
                await store.close()
                raise
        except BaseException:
            close_all(own)
            if lock is not None:
                lock.release()
            raise
        return broker

    async def _start(self, listeners: Sequence[socket.socket], vip_listeners: Sequence[socket.socket]) -> None:
        for name, _ in self.topics.items():
            self._topic_changed(name)
        self.topics.on_change.append(self._topic_changed)
        self.topics.gate.on_open.append(self._topic_opened)
        self.store.queues.on_arrival = self.holds.on_arrival
        self._bit_maps.start(wanted=self.settings.enableCalcFilterBitMap)
        self._set_hot()
        await self.expiry.apply()
        await self._role.start()
        self._every(lambda: 1_000, "each second", self._each_second)
        self._every(lambda: 1_000, "first offsets", self.expiry.apply_rest)
        self._every(lambda: 10_000, "each ten seconds", self._each_ten_seconds)
        self._every(lambda: self.settings.flushConsumerOffsetInterval, "save offsets", self.offsets.try_save)
        self.audit.start(self._store_audit)
        await self._server.serve(listeners, self.tls)
        if vip_listeners:
            await self._vip_server.serve(vip_listeners, self.tls)
        await self.registration.start()

    async def stop(self) -> None:
        """Stops in order; afterwards all tables and the whole log are on disk."""
        await self._role.leave()
        self._leaving = True
        await self.registration.stop()
        await self._role.linger(lambda: {*self._server.connections, *self._vip_server.connections})
        self.holds.release_all()
        await self._server.stop()
        await self._vip_server.stop()
        await self.audit.stop()
        await self._role.stop()
        for timer in self._timers:
            timer.cancel()
        await self._role.save()
        self._bit_maps.stop()
        await self._client.close()
        await self.store.close()

    @property
    def connection_count(self) -> int:
        return len(self._server.connections) + len(self._vip_server.connections)

    @property
    def connections_refused(self) -> dict[str, int]:
        """Connections that were closed at once because too many are open, by reason."""
        refused = (self._server.refused, self._vip_server.refused)
        return {reason: sum(each[reason] for each in refused) for reason in self._server.refused}

    @property
    def last_save_error(self) -> str:
        """Why a table could not be saved; empty if no save failed."""
        failing = self.failing_tables
        return f"cannot save {failing[0].what}: {failing[0].save_error}" if failing else ""

    @property
    def failing_tables(self) -> list[SavedTable]:
        """Tables whose last write failed. Each is written again as long as it differs from its file."""
        tables = (self.topics, self.groups, self.offsets, self.filters, self.schedule.offsets, self.expiry.offsets)
        return [table for table in tables if table.save_error]

    def failure(self) -> str | None:
        """The failure that only a restart can repair; None while no such failure has occurred."""
        return self._role.failure()

    def unready(self) -> str | None:
        """Why this broker is not usable; None if it accepts messages, or follows a leader closely."""
        return self._role.unready()

    # -- what a group changes ------------------------------------------------------------------------------------------

    def take_role(self, broker_id: int, term: int) -> None:
        """Uses this role in all answers from now on. `tell_name_servers` informs the name servers."""
        self.settings = self.registration.settings = with_role(self.settings, broker_id)
        self.registration.term = term

    @property
    def copying(self) -> SlaveRole | GroupCopy | None:
        """The copy of a master; None if this broker started as a master, or its group never followed one."""
        if isinstance(self._role, InGroup) and isinstance(self._role.copy, GroupCopy):
            return self._role.copy if self._role.copy.concerns else None
        return self._role if isinstance(self._role, SlaveRole) else None

    def start_serving(self) -> None:
        """This broker was promoted: accepts messages from now on."""
        for name, _ in self.topics.items():
            self._topic_changed(name)
        self._set_hot()

    def serve(self, serving: bool) -> None:
        """Accepts sends, or refuses them."""
        self.store.group.serve(serving)
        self._set_hot()

    async def tell_name_servers(self) -> None:
        """Registers the present role with all name servers at once."""
        if not self._leaving:
            await self.registration.register_all()

    def tell_name_servers_soon(self) -> None:
        """The same, without waiting for their answers."""
        if not self._leaving:
            self.registration.begin()

    async def leave_name_servers(self) -> None:
        """Unregisters from the name servers."""
        await self.registration.withdraw()
        self.take_role(UNDECIDED, self.registration.term)

    # -- what processors use -------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970."""
        return wall_ms()

    def steady_ms(self) -> int:
        """Milliseconds of a clock that cannot be set: for leases and timeouts."""
        return steady_ms()

    def client_context(self) -> ssl.SSLContext | None:
        """TLS of a new connection to a name server, a member or a master; None: without TLS."""
        return None if self.tls is None else self.tls.client_context()

    def register_soon(self) -> None:
        """Registers changed topics with the name servers at the next turn of the event loop."""
        self.registration.soon()

    def change_settings(self, changes: dict[str, str]) -> None:
        """Keeps settings given as text for the next start, and applies them. Blocks for a sync.

        ConfigurationError: a setting is unknown, needs a restart, or its value is wrong. OSError: they could not be
        saved. In all cases nothing changes.
        """
        changed, changed_store = change_while_running(
            self.settings, self.store.settings, changes, in_group=self.group is not None
        )
        kept_settings.keep_settings(self.kept_settings, changes)
        if changed.logLevel != self.settings.logLevel:
            logs.set_level(changed.logLevel)
        _logger.warning("settings changed: %s", ", ".join(f"{key}={text}" for key, text in changes.items()))
        self.store.change_settings(changed_store)
        self.settings = changed
        self._settings_changed()

    def _settings_changed(self) -> None:
        """All parts use the present settings from now on."""
        settings = self.settings
        self.registration.settings = self.groups.settings = self.filters.settings = settings
        self.topics.settings_changed(settings)
        self.holds.limit = settings.pullThreadPoolQueueCapacity
        self.store.log.set_answers(settings.regionId, settings.traceOn)
        self._entrance.accounts_changed()
        self.quotas.settings_changed({*self._server.connections, *self._vip_server.connections})
        self._set_hot()
        self._pace.wake()
        self.transactions.wake()
        self.register_soon()

    def configuration(self) -> dict[str, str]:
        """Returns all settings of broker and store as text, and those of RocketMQ 4.8 that have no effect here.

        `httpAddress` is where this process serves HTTP: readers of stores find brokers through a name server, which has
        no such address.
        """
        shown = SHOWN | as_text(self.settings) | as_text(self.store.settings)
        return shown if self.http is None else shown | {"httpAddress": str(self.http)}

    # -- inside --------------------------------------------------------------------------------------------------------

    def _feeding(self, connection: Connection) -> FeedingSource:
        return self._attached(connection, self._quick_pulls)

    def _feeding_without_pulls(self, connection: Connection) -> FeedingSource:
        return self._attached(connection, None)

    def _attached(self, connection: Connection, quick: QuickPulls | None) -> FeedingSource:
        source = FeedingSource(self.store, connection, quick)
        connection.attributes["feeding"] = source
        self.quotas.attach(connection)
        return source

    def _connection_closed(self, connection: Connection) -> None:
        source = connection.attributes.pop("feeding", None)
        if source is not None:
            source.close()
        self.quotas.detach(connection)
        self.holds.release(connection)
        self.producers.close(connection)
        self.consumers.close(connection)
        self._role.closed(connection)

    def _topic_changed(self, name: str) -> None:
        self.store.connections.set_topic(name, hot_queues(self.topics.get(name), self.topics.open_queues(name)))
        if self._timers:
            self.register_soon()

    def _topic_opened(self, name: str) -> None:
        """The topic's row is durable: from now on the kernel may acknowledge sends to it."""
        if name in self.topics:
            self.store.connections.set_topic(name, hot_queues(self.topics.get(name), self.topics.open_queues(name)))

    def _set_hot(self) -> None:
        """The kernel stores plain sends unless a setting requires that Python handles each of them."""
        settings = self.settings
        accepting = self.now_ms() >= settings.startAcceptSendRequestTimeStamp
        self.store.admission.set_hot(accepting and bool(settings.brokerPermission & PERMISSION_WRITE))

    def _every(self, interval_ms: Callable[[], int], what: str, work: Callable[[], Awaitable[None] | None]) -> None:
        errors = RepeatedError(_logger, f"periodic work of the broker ({what}) failed, retrying")

        async def repeat() -> None:
            while True:
                await self._pace.pause(interval_ms())
                await errors.attempt(work)

        self._timers.append(asyncio.get_running_loop().create_task(repeat()))

    def _each_second(self) -> None:
        self._role.look()
        if self.access is not None:
            self.access.look()
        self.count_puts()
        self.store.figures.sample()
        self.stats.settle()
        self.holds.scan(self.steady_ms())
        self._set_hot()

    def count_puts(self) -> None:
        """Adds what was stored since the last call to the statistics: once a second, and before they are read."""
        for topic, messages, size_bytes in self.store.log.take_counts():
            self.stats.put(topic.decode(), messages, size_bytes)

    async def _each_ten_seconds(self) -> None:
        now_ms = self.steady_ms()
        for table in (self.producers, self.consumers):
            for channel in table.expire(now_ms):
                channel.close()
        self.locks.expire(now_ms)
        self.quotas.look()
        self.filters.clean()
        for saved in (self.topics, self.groups, self.filters, self.expiry.offsets):
            await saved.try_save()


async def _store_host(settings: BrokerSettings) -> Host:
    """Returns the broker's address for records: always an IP address, although clients may get a name.

    SettingsError: `brokerIP1` is a name that cannot be resolved.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(settings.brokerIP1, settings.listenPort, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError("brokerIP1", f"{settings.brokerIP1!r} has no address: {error.strerror}") from error
    # IPv4 if possible: every reader supports the short form of a record.
    return Host(str(min(found, key=lambda row: row[0] != socket.AF_INET)[4][0]), settings.listenPort)
