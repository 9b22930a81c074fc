"""The interfaces of broker and store that request processors use.

Processors get a `BrokerContext` instead of a `Broker`, so tests can use small fakes with the same interface. The
protocols are structural: `Broker` and `MessageStore` do not inherit from them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tallystick.store.formats.message import UNLIMITED, GetResult, Host, Message, MessageBatch, PutResult, QueryResult

if TYPE_CHECKING:
    import ssl

    from tallystick.node.broker.access import BrokerAccess
    from tallystick.node.broker.services.holds import HoldTable
    from tallystick.node.broker.services.schedule import ScheduleService
    from tallystick.node.broker.services.stats import BrokerStats
    from tallystick.node.broker.services.timers import TimerService
    from tallystick.node.broker.services.transactions import TransactionService
    from tallystick.node.broker.slaves.server import SlaveState
    from tallystick.node.broker.tables.clients import ConsumerTable, ProducerTable
    from tallystick.node.broker.tables.consumer_groups import SubscriptionGroupTable
    from tallystick.node.broker.tables.filters import ConsumerFilterTable
    from tallystick.node.broker.tables.first_offsets import FirstOffsets
    from tallystick.node.broker.tables.locks import QueueLocks
    from tallystick.node.broker.tables.offsets import ConsumerOffsets
    from tallystick.node.broker.tables.pulled import PulledOffsets
    from tallystick.node.broker.tables.topics import TopicTable
    from tallystick.node.core.settings import BrokerSettings
    from tallystick.node.remoting.request_times import RequestTimes
    from tallystick.replication.member.status import PeerProgress
    from tallystick.store._kernel import BitTest, ExtensionUnit
    from tallystick.store.engine.timers import Timers
    from tallystick.store.settings import StoreSettings


class WritesView(Protocol):
    """The puts of the store."""

    async def put(self, message: Message) -> PutResult:
        """Appends a message and waits as the flush settings require. A full or failed disk is a status, not an
        error."""

    async def put_all(self, messages: Sequence[Message], *, makes_room: bool = False) -> list[PutResult]:
        """Appends messages, each by itself, and waits once for all. If the last one cannot be stored, all have its
        result. `makes_room`: do it on a full disk, too."""

    async def put_batch(self, batch: MessageBatch) -> PutResult:
        """Does the same for a batch: all its messages are stored, or none."""


class ReadsView(Protocol):
    """The reads of the store."""

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        codes: frozenset[int] | None = None,
        accept: Callable[[int, bytes], bool] | None = None,
        bits: BitTest | None = None,
        most_accepts: int = UNLIMITED,
    ) -> GetResult:
        """Returns records of a queue from `offset` on. `codes`: accepted hashes of tags (None: all).
        `accept(tags_code, properties)`: whether one record is accepted. `bits`: of the filter in bit maps.
        `most_accepts`: how many records `accept` tests at most."""

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
    ) -> tuple[bytes, int, int, int] | None:
        """Returns what `get_message` finds as the frame of an answer to a pull, with number and bytes of the
        records, and the offset that follows.

        None: the answer is not simply sound records that are in memory."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Returns the offset of the message that was stored at that time, or of the one nearest to it."""

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Returns the store time (ms) of one message; -1 if it does not exist."""

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Returns the store time (ms) of a queue's oldest message; -1 if the queue is empty."""

    def message_at(self, pos: int) -> bytes | None:
        """Returns the record that begins at `pos`; None if no record begins there."""

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Returns the records that have a key with the hash of `key`, newest first."""

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Returns ConsumeQueue units (pos, size, tags_code) from `offset` on, fewer at the end of the queue."""

    def extension_unit(self, topic: str, queue_id: int, address: int) -> ExtensionUnit | None:
        """Returns the extension of a unit whose tags code is this address; None if there is none."""

    def usable_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Returns units that were compared with their records. It stops before a unit that is being repaired; a lost
        record has the unit (-1, 0, 0)."""

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Returns whether the message is so near the end of the log that it is probably in the page cache."""


class QueuesView(Protocol):
    """The ConsumeQueues of the store as a whole."""

    def names(self) -> list[tuple[str, int]]:
        """Returns every (topic, queue id) that has a ConsumeQueue."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Returns the offset that the next message will get; 0 for a queue that does not exist."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Returns the offset of the oldest message that is kept; 0 for a queue that does not exist."""

    def watch(self, topic: str, queue_id: int) -> None:
        """Starts to report new messages of this queue."""

    def unwatch(self, topic: str, queue_id: int) -> None:
        """Stops reporting new messages of this queue."""

    def remove_topic(self, topic: str) -> None:
        """Deletes the ConsumeQueues of a topic. Its messages stay in the log until the log is cleaned."""

    async def save_progress(self) -> None:
        """Waits until the removal of ConsumeQueues survives a kill."""

    def clean_unused_topics(self, keep: set[str]) -> dict[str, int]:
        """Deletes the ConsumeQueues of topics that are not in `keep` and have no message in the log. Returns how many
        messages each of the others has; these ConsumeQueues stay."""

    def delete_expired_segments(self) -> None:
        """Deletes expired segments of the log soon, at any hour."""

    def clean_expired_queues(self) -> int:
        """Deletes files that only name records before the begin of the log. Returns the number of files."""


class ExpiryView(Protocol):
    """Expiry by topic, as processors use it: `services.expiry.ExpiryService`."""

    @property
    def offsets(self) -> FirstOffsets:
        """Where queues begin because messages expired."""


class AdmissionView(Protocol):
    """Whether the store accepts puts."""

    def refusal(self) -> str | None:
        """Returns why the store refuses puts now (full disk, failed log); None: it accepts them."""

    @property
    def writable(self) -> bool:
        """Whether the store accepts puts now."""


class FiguresView(Protocol):
    """The figures of the store."""

    def runtime_info(self) -> dict[str, str]:
        """Returns the store's keys of GET_BROKER_RUNTIME_INFO."""

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that are written but not dispatched."""


class StoreView(Protocol):
    """The message store, as processors use it. All methods are called on the event loop's thread.

    Offsets count messages of one queue; `pos` counts bytes of the log.
    """

    @property
    def settings(self) -> StoreSettings: ...

    @property
    def writes(self) -> WritesView: ...

    @property
    def reads(self) -> ReadsView: ...

    @property
    def queues(self) -> QueuesView: ...

    @property
    def admission(self) -> AdmissionView: ...

    @property
    def figures(self) -> FiguresView: ...

    @property
    def min_pos(self) -> int:
        """Position of the first byte of the log that is kept."""

    @property
    def max_pos(self) -> int:
        """Position of the end of the log."""

    @property
    def flushed_pos(self) -> int:
        """All bytes of the log before this position are on disk."""

    @property
    def staged_pos(self) -> int:
        """Position of the end of the log, with what is not written yet."""

    @property
    def timers(self) -> Timers | None:
        """The messages that wait for their time; None: timers are switched off."""

    @property
    def dispatched_pos(self) -> int:
        """All messages before this position are in ConsumeQueues and index."""


class GroupView(Protocol):
    """A replicated group, as processors use it."""

    leads: bool
    """Whether this member leads."""

    def peers(self) -> Sequence[PeerProgress]:
        """Returns the other members, with what this one knows of them."""

    def runtime_info(self) -> dict[str, str]:
        """Returns the group's keys of GET_BROKER_RUNTIME_INFO: role, term and leader."""


class SlavesView(Protocol):
    """The port for slaves, as processors use it."""

    def states(self) -> Sequence[SlaveState]:
        """Returns the connected slaves."""


class QuotasView(Protocol):
    """Quotas, as processors use them: `quotas.Quotas`."""

    def check_new_topics(self, user: str, names: Collection[str]) -> None:
        """ResponseError 16: the user has created as many topics as it may."""

    def identified(self, connection: Any, user: str, client_id: str) -> None:
        """A heartbeat says who the client of a connection is."""

    def delivered(self, connection: Any, user: str, messages: int, size_bytes: int) -> None:
        """Messages were sent to a consumer of this user."""

    def admits_pull(self, connection: Any, user: str) -> bool:
        """Whether client and user may pull now; takes the request from both if they may."""


class BrokerContext(Protocol):
    """The broker, as processors use it."""

    @property
    def settings(self) -> BrokerSettings:
        """The settings. UPDATE_BROKER_CONFIG replaces the whole object: read it again for each request."""

    @property
    def store(self) -> StoreView: ...

    @property
    def topics(self) -> TopicTable: ...

    @property
    def groups(self) -> SubscriptionGroupTable: ...

    @property
    def offsets(self) -> ConsumerOffsets: ...

    @property
    def pulled(self) -> PulledOffsets: ...

    @property
    def request_times(self) -> RequestTimes: ...

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
    def timers(self) -> TimerService: ...

    @property
    def transactions(self) -> TransactionService: ...

    @property
    def expiry(self) -> ExpiryView: ...

    @property
    def access(self) -> BrokerAccess | None:
        """Accounts and checks of requests; None: the broker checks nothing."""

    @property
    def quotas(self) -> QuotasView:
        """What users and clients may do per second."""

    @property
    def group(self) -> GroupView | None:
        """The replicated group of the broker; None: it is not a member of a group."""

    @property
    def slaves(self) -> SlavesView | None:
        """The port for slaves; None: the broker has none."""

    @property
    def host(self) -> Host:
        """The advertised address. Records have it as their store host."""

    def client_context(self) -> ssl.SSLContext | None:
        """TLS of a new connection to a name server, a member or a master; None: without TLS."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970."""

    def steady_ms(self) -> int:
        """Milliseconds of a clock that cannot be set: for leases and timeouts."""

    def describe(self) -> dict[str, Any] | None:
        """Returns the state of the process (`GET /node`); None: it has no description."""

    def register_soon(self) -> None:
        """Registers changed topics with the name servers at the next turn of the event loop."""

    def count_puts(self) -> None:
        """Adds the messages that the kernel stored to `stats`. Call it before reading them."""

    def change_settings(self, changes: dict[str, str]) -> None:
        """Applies settings, given as text, and saves them (UPDATE_BROKER_CONFIG).

        SettingsError: a setting is unknown or has a wrong value. Then nothing changed.
        """

    def configuration(self) -> dict[str, str]:
        """Returns all settings of broker and store as text, for GET_BROKER_CONFIG. None of them is secret."""
