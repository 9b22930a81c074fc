"""A broker made of its tables, and of a store that keeps its messages in lists: what processors see."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from own_parts import OwnParts

from tallystick.node.broker.processors.admin import AdminProcessor
from tallystick.node.broker.processors.broker_to_client import RelayProcessor
from tallystick.node.broker.processors.clients import ClientProcessor
from tallystick.node.broker.processors.consumption import ConsumptionProcessor
from tallystick.node.broker.processors.inspection import InspectionProcessor
from tallystick.node.broker.processors.locks import LockProcessor
from tallystick.node.broker.processors.newer_admin import NewerAdminProcessor
from tallystick.node.broker.processors.offsets import OffsetProcessor
from tallystick.node.broker.quotas import Quotas
from tallystick.node.broker.services.expiry import ExpiryService
from tallystick.node.broker.services.stats import BrokerStats
from tallystick.node.broker.services.transaction_figures import TransactionFigures
from tallystick.node.broker.tables.clients import Client, ConsumerTable, ProducerTable
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroupTable
from tallystick.node.broker.tables.filters import ConsumerFilterTable
from tallystick.node.broker.tables.first_offsets import FirstOffsets
from tallystick.node.broker.tables.locks import QueueLocks
from tallystick.node.broker.tables.offsets import ConsumerOffsets
from tallystick.node.broker.tables.pulled import PulledOffsets
from tallystick.node.broker.tables.subscriptions import SubscriptionData
from tallystick.node.broker.tables.topics import TopicTable
from tallystick.node.core.configuration import change_while_running
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.command import Command, ResponseError
from tallystick.node.remoting.errors import RemotingTimeout
from tallystick.node.remoting.request_times import RequestTimes
from tallystick.store import fastjson
from tallystick.store.engine.put_times import GetCounts, PutTimes
from tallystick.store.formats.message import Host, Message, PutResult, PutStatus
from tallystick.store.settings import StoreSettings

NOW = 1_795_219_100_000


class Extension(NamedTuple):
    """As the kernel's `ExtensionUnit`, which Python cannot make."""

    size: int
    tags_code: int
    store_ms: int
    bit_map: bytes


class MemoryFile:
    def __init__(self) -> None:
        self.value: Any = None
        self.broken = False

    def load(self) -> Any:
        return self.value

    def save(self, value: Any) -> None:
        if self.broken:
            raise OSError(28, "No space left on device")
        self.value = value


class ListStore(OwnParts):
    """A store that knows store times of each queue, and records by position."""

    def __init__(self) -> None:
        self.times: dict[tuple[str, int], tuple[int, list[int]]] = {}
        self.records: dict[int, bytes] = {}
        self.put_messages: list[Message] = []
        self.in_memory = True
        self.min_pos, self.max_pos, self.flushed_pos, self.dispatch_behind_bytes = 0, 1000, 990, 0
        self.kept: set[str] = set()
        self.unused: dict[str, int] = {}
        self.settings = StoreSettings()
        self.tags_codes: dict[int, int] = {}
        """Tags codes by offset; others are 65."""
        self.extensions: dict[int, Extension] = {}
        self.put_times, self.get_counts = PutTimes(lambda: ([0] * 13, 0), lambda: ([0] * 13, 0, 0), 0), GetCounts(0)
        self.saved_progress = False
        self.deletions_asked = 0

    def fill(self, topic: str, queue_id: int, times: list[int], first: int = 0) -> None:
        self.times[topic, queue_id] = (first, times)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self.times.get((topic, queue_id), (0, []))[0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        first, times = self.times.get((topic, queue_id), (0, []))
        return first + len(times)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        first, times = self.times.get((topic, queue_id), (0, []))
        return times[offset - first] if 0 <= offset - first < len(times) else -1

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        first, times = self.times.get((topic, queue_id), (0, []))
        return first + min(range(len(times)), key=lambda at: abs(times[at] - timestamp_ms)) if times else 0

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        return self.in_memory

    def names(self) -> list[tuple[str, int]]:
        return list(self.times)

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        end = self.max_offset(topic, queue_id)
        codes = self.tags_codes
        return [(at * 100, 100, codes.get(at, 65)) for at in range(offset, min(end, offset + count))]

    def extension_unit(self, topic: str, queue_id: int, address: int) -> Extension | None:
        return self.extensions.get(address)

    def message_at(self, pos: int) -> bytes | None:
        return self.records.get(pos)

    def remove_topic(self, topic: str) -> None:
        self.times = {key: value for key, value in self.times.items() if key[0] != topic}

    async def save_progress(self) -> None:
        self.saved_progress = True

    def clean_unused_topics(self, keep: set[str]) -> dict[str, int]:
        self.kept = keep
        return dict(self.unused)

    def delete_expired_segments(self) -> None:
        self.deletions_asked += 1

    def clean_expired_queues(self) -> int:
        return 0

    def runtime_info(self) -> dict[str, str]:
        distribution = {"putMessageDistributeTime": self.put_times.distribution()}
        longest = {"putMessageEntireTimeMax": "7", "getMessageEntireTimeMax": "0"}
        return longest | distribution | self.get_counts.rates()

    async def put(self, message: Message) -> PutResult:
        self.put_messages.append(message)
        return PutResult(PutStatus.PUT_OK)


class NoSchedule:
    class offsets:  # noqa: N801  # an attribute of the real service
        offsets = {3: 12, 1: 0}  # noqa: RUF012

    @staticmethod
    def runtime_info() -> dict[str, str]:
        return {"scheduleMessageOffset_3": "12,12"}


class Wire:
    """A connection that keeps what is sent over it, and answers calls as it was told."""

    def __init__(self, answer: Command | None = None) -> None:
        self.remote = Host("127.0.0.1", 34880)
        self.closed = False
        self.sent: list[Command] = []
        self.answer = answer

    def oneway(self, command: Command) -> None:
        self.sent.append(command)

    async def call(self, command: Command, timeout_s: float = 3.0) -> Command:
        self.sent.append(command)
        if self.answer is None:
            raise RemotingTimeout("client", command.code, timeout_s)
        return self.answer

    def close(self) -> None:
        self.closed = True


class TableBroker:
    """The broker as processors see it."""

    def __init__(self, **settings: Any) -> None:
        values = {"brokerIP1": "127.0.0.1", "brokerName": "broker-a", "brokerClusterName": "PeerCluster", **settings}
        self.settings = BrokerSettings(**values)
        self.host = Host("127.0.0.1", 22411)
        self.group = None
        self.slaves = None
        self.access = None
        self.quotas = Quotas(cast(Any, self))
        self.copying = None
        self.clock = NOW
        self.store = ListStore()
        self.topics = TopicTable(MemoryFile(), self.settings, self.now_ms)
        self.groups = SubscriptionGroupTable(MemoryFile(), self.settings, self.now_ms)
        self.offsets = ConsumerOffsets(MemoryFile())
        self.filters = ConsumerFilterTable(MemoryFile(), self.settings, self.now_ms)
        self.producers, self.consumers, self.locks = ProducerTable(), ConsumerTable(), QueueLocks()
        self.stats = BrokerStats("PeerCluster", self.now_ms)
        self.pulled = PulledOffsets()
        self.transactions = SimpleNamespace(figures=TransactionFigures())
        self.request_times = RequestTimes()
        self.schedule = NoSchedule()
        self.timers = NoSchedule()
        self.expiry = ExpiryService(cast(Any, self), FirstOffsets(MemoryFile()))
        self.registered = 0
        kinds = (
            ClientProcessor,
            OffsetProcessor,
            LockProcessor,
            AdminProcessor,
            NewerAdminProcessor,
            ConsumptionProcessor,
            RelayProcessor,
            InspectionProcessor,
        )
        self.routes: dict[int, Any] = {}
        for kind in kinds:
            for code, handler in kind(cast(Any, self)).routes().items():
                assert code not in self.routes, "two processors for one code"
                self.routes[code] = handler

    def client_context(self) -> None:
        return None

    def now_ms(self) -> int:
        return self.clock

    def steady_ms(self) -> int:
        return self.clock

    def register_soon(self) -> None:
        self.registered += 1

    def count_puts(self) -> None: ...

    def change_settings(self, changes: dict[str, str]) -> None:
        self.settings, _ = change_while_running(self.settings, self.store.settings, changes, in_group=False)

    def configuration(self) -> dict[str, str]:
        return {"brokerName": "broker-a", "listenPort": "10911", "autoCreateTopicEnable": "true"}

    async def ask(
        self, code: int, ext: dict[str, str] | None = None, body: Any = b"", wire: Wire | None = None, **header: Any
    ) -> Command:
        """The answer to a request; a refusal is an answer, as the server makes it one."""
        data = body if isinstance(body, bytes) else fastjson.dumps(body)
        command = Command(code, opaque=9, ext=ext, body=data, **header)
        try:
            answer = self.routes[code](wire or Wire(), command)
            if inspect.isawaitable(answer):
                answer = await answer
        except ResponseError as error:
            return command.reply(error.code, remark=error.remark)
        assert answer is not None
        assert answer.opaque == 9
        return cast(Command, answer)

    def heartbeat(self, group: str, wire: Wire, client_id: str = "c1", *topics: str) -> None:
        subs = [SubscriptionData.build(topic, "*", sub_version=1) for topic in topics]
        self.consumers.register(group, Client(wire, client_id, "JAVA", 373, self.clock), subscriptions=subs)
