"""A broker without sockets or files: the real tables over files in memory, the fake store, connections that note."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from fake_store import Clock, FakeStore

from tallystick.node.broker.quotas import Quotas
from tallystick.node.broker.services.audit import AuditTrail
from tallystick.node.broker.services.expiry import ExpiryService
from tallystick.node.broker.services.schedule import ScheduleService
from tallystick.node.broker.services.stats import BrokerStats
from tallystick.node.broker.services.timers import TimerService
from tallystick.node.broker.services.transactions import TransactionService
from tallystick.node.broker.tables.clients import Client, ConsumerTable, ProducerTable
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroupTable
from tallystick.node.broker.tables.first_offsets import FirstOffsets
from tallystick.node.broker.tables.locks import QueueLocks
from tallystick.node.broker.tables.offsets import ConsumerOffsets
from tallystick.node.broker.tables.pulled import PulledOffsets
from tallystick.node.broker.tables.topics import TopicTable
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingConnectError
from tallystick.node.remoting.request_times import RequestTimes
from tallystick.store.formats.message import Host


class MemoryFile:
    """A table's file. `broken`: saving fails like a full disk."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.broken = False
        self.saves = 0

    def load(self) -> Any:
        return copy.deepcopy(self.value)

    def save(self, value: Any) -> None:
        if self.broken:
            raise OSError(28, "No space left on device")
        self.value = copy.deepcopy(value)
        self.saves += 1


PRODUCER_HOST = Host("10.0.0.1", 50000)


class FakeChannel:
    """A client's connection: what is sent to it is noted; `answer` is what it answers to calls (None: it is gone)."""

    def __init__(self, remote: Host = PRODUCER_HOST, answer: int | None = 0) -> None:
        self.remote = remote
        self.id = str(remote)
        self.closed = False
        self.attributes: dict[str, Any] = {}
        self.answer = answer
        self.sent: list[Command] = []

    def oneway(self, command: Command) -> None:
        self.sent.append(command)

    async def call(self, command: Command, timeout_s: float = 3.0) -> Command:
        self.sent.append(command)
        if self.answer is None:
            raise RemotingConnectError(self.id, "gone")
        return command.reply(self.answer)

    def close(self) -> None:
        self.closed = True


class FakeBroker:
    """Keeps to `BrokerContext`, as far as sends, delays and transactions use it."""

    def __init__(
        self,
        settings: BrokerSettings | None = None,
        *,
        store: FakeStore | None = None,
        delay_file: MemoryFile | None = None,
        offset_file: MemoryFile | None = None,
    ) -> None:
        self.clock: Clock = store.clock if store is not None else Clock()
        self.store = store or FakeStore(self.clock)
        self.settings = settings or BrokerSettings(brokerIP1="127.0.0.1", brokerName="broker-a", brokerClusterName="C1")
        self.host = Host("127.0.0.1", 10911)
        self.topics = TopicTable(MemoryFile(), self.settings, self.now_ms)
        self.groups = SubscriptionGroupTable(MemoryFile(), self.settings, self.now_ms)
        self.offsets = ConsumerOffsets(offset_file or MemoryFile())
        self.pulled = PulledOffsets()
        self.request_times = RequestTimes()
        self.producers = ProducerTable()
        self.consumers = ConsumerTable()
        self.locks = QueueLocks()
        self.stats = BrokerStats(self.settings.brokerClusterName, self.now_ms)
        self.schedule = ScheduleService(self, delay_file or MemoryFile())
        self.timers = TimerService(self)
        self.transactions = TransactionService(self)  # type: ignore[arg-type]
        self.expiry = ExpiryService(self, FirstOffsets(MemoryFile()))  # type: ignore[arg-type]
        self.group = None
        self.slaves = None
        self.access = None
        self.quotas = Quotas(self)  # type: ignore[arg-type]
        self.audit = AuditTrail(self)  # type: ignore[arg-type]
        self.copying = None
        self.registrations = 0

    def client_context(self) -> None:
        return None

    def now_ms(self) -> int:
        return self.clock.now_ms

    def steady_ms(self) -> int:
        return self.clock.now_ms

    def register_soon(self) -> None:
        self.registrations += 1

    def change(self, **changes: Any) -> None:
        """Other settings from now on."""
        self.settings = replace(self.settings, **changes)

    def producer(self, group: str, client_id: str = "p@1", channel: FakeChannel | None = None) -> FakeChannel:
        """A producer that heartbeats; its channel."""
        channel = channel or FakeChannel()
        self.producers.register(group, Client(channel, client_id, "JAVA", 373, self.clock.now_ms))
        return channel
