"""What a request processor may use of its broker, and of the store behind it.

Processors take a `BrokerContext`, never the broker itself: the attributes here are the whole of their world, so a test
hands them small fakes that keep the same contract. Both protocols are structural; `Broker` and `MessageStore` need not
name them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tallystick.store.message import GetResult, Host, Message, MessageBatch, PutResult, QueryResult

if TYPE_CHECKING:
    from tallystick.node.broker.clients import ConsumerTable, ProducerTable
    from tallystick.node.broker.filters import ConsumerFilterTable
    from tallystick.node.broker.groups import SubscriptionGroupTable
    from tallystick.node.broker.holds import HoldTable
    from tallystick.node.broker.locks import QueueLocks
    from tallystick.node.broker.offsets import ConsumerOffsets
    from tallystick.node.broker.schedule import ScheduleService
    from tallystick.node.broker.stats import BrokerStats
    from tallystick.node.broker.topics import TopicTable
    from tallystick.node.broker.transactions import TransactionService
    from tallystick.node.settings import BrokerSettings
    from tallystick.store.settings import StoreSettings


class StoreView(Protocol):
    """The message store as processors see it. All of it is called on the event loop's thread.

    Offsets count messages of one queue; `pos` counts bytes of the log.
    """

    settings: StoreSettings

    async def put(self, message: Message) -> PutResult:
        """Append one message and wait as its flush settings ask. A full or failed disk is a status, no exception."""

    async def put_batch(self, batch: MessageBatch) -> PutResult:
        """The same for a client's batch: stored together or not at all."""

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        codes: frozenset[int] | None = None,
        accept: Callable[[int, bytes], bool] | None = None,
    ) -> GetResult:
        """Records of a queue from `offset` on. `codes`: tag hashes that pass (None: all);
        `accept(tags_code, properties)`: the same for one record."""

    def get_frame(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        codes: frozenset[int] | None,
        opaque: int,
        suggested: int,
    ) -> tuple[bytes, int, int] | None:
        """What `get_message` finds as the frame that answers a pull, with its count and bytes of records.

        None where more than records in memory, all of them sound, is to be told."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Offset the next message will get; 0 for a queue that does not exist."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Offset of the oldest message kept; 0 for a queue that does not exist."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Offset of the message stored at that time, or of its nearer neighbour."""

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time (ms) of one message; -1 if there is none."""

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Store time (ms) of a queue's oldest message; -1 if there is none."""

    def message_at(self, pos: int) -> bytes | None:
        """The whole record that begins at `pos`; None if none begins there."""

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Records whose key has the hash of `key`, newest first."""

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """ConsumeQueue units (pos, size, tags_code) from `offset` on, fewer at the end."""

    def usable_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """As `units`, compared with their records; ends in front of one to wait for, (-1, 0, 0) for what is lost."""

    def queues(self) -> list[tuple[str, int]]:
        """Every (topic, queue id) that has a ConsumeQueue."""

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """The message lies so near the log's end that it is probably still in the page cache."""

    def watch(self, topic: str, queue_id: int) -> None:
        """Report arrivals in this queue."""

    def unwatch(self, topic: str, queue_id: int) -> None:
        """No longer report arrivals in this queue."""

    def remove_topic(self, topic: str) -> None:
        """Delete the ConsumeQueues of a topic. Its messages stay in the log until that is cleaned."""

    async def save_progress(self) -> None:
        """Return when a kill does not bring back ConsumeQueues that were removed."""

    def clean_unused_topics(self, keep: set[str]) -> dict[str, int]:
        """Delete the ConsumeQueues of topics not in `keep` that have no message left in the log; how many messages each
        of the others has, which stay."""

    def clean_expired_queues(self) -> int:
        """Delete ConsumeQueues that point only below the log's beginning; how many queues went."""

    def refusal(self) -> str | None:
        """Why puts are refused now (full disk, failed log); None: they are not."""

    def runtime_info(self) -> dict[str, str]:
        """The store's part of GET_BROKER_RUNTIME_INFO."""

    @property
    def writable(self) -> bool:
        """Puts are taken now."""

    @property
    def min_pos(self) -> int:
        """First byte of the log that is kept."""

    @property
    def max_pos(self) -> int:
        """End of the log in bytes."""

    @property
    def flushed_pos(self) -> int:
        """All below is on disk."""

    @property
    def dispatched_pos(self) -> int:
        """All below is in ConsumeQueues and index."""

    @property
    def dispatch_behind_bytes(self) -> int:
        """Written but not dispatched."""


class GroupView(Protocol):
    """A replicated group as processors see it."""

    def runtime_info(self) -> dict[str, str]:
        """The group's part of GET_BROKER_RUNTIME_INFO: role, term and leader."""


class BrokerContext(Protocol):
    """The broker as processors see it."""

    @property
    def settings(self) -> BrokerSettings:
        """May be replaced as a whole (UPDATE_BROKER_CONFIG): read it again for each request."""

    @property
    def store(self) -> StoreView: ...

    @property
    def topics(self) -> TopicTable: ...

    @property
    def groups(self) -> SubscriptionGroupTable: ...

    @property
    def offsets(self) -> ConsumerOffsets: ...

    @property
    def producers(self) -> ProducerTable: ...

    @property
    def consumers(self) -> ConsumerTable: ...

    @property
    def locks(self) -> QueueLocks: ...

    @property
    def holds(self) -> HoldTable: ...

    @property
    def filters(self) -> ConsumerFilterTable: ...

    @property
    def stats(self) -> BrokerStats: ...

    @property
    def schedule(self) -> ScheduleService: ...

    @property
    def transactions(self) -> TransactionService: ...

    @property
    def group(self) -> GroupView | None:
        """The replicated group it belongs to; None: it is alone."""

    @property
    def host(self) -> Host:
        """The advertised address, written as store host of records."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970."""

    def steady_ms(self) -> int:
        """Milliseconds of a clock that nobody can set: for leases and patience."""

    def register_soon(self) -> None:
        """Tell the name servers about changed topics at the next turn of the loop."""

    def count_puts(self) -> None:
        """Bring what the kernel stored by itself into `stats`, before they are read."""

    def change_settings(self, changes: dict[str, str]) -> None:
        """Apply settings given as text to `settings` and keep them (UPDATE_BROKER_CONFIG).

        SettingsError names a key that is unknown or wrong; then nothing was changed.
        """

    def configuration(self) -> dict[str, str]:
        """Every setting of broker and store as text, for GET_BROKER_CONFIG. No secrets."""
