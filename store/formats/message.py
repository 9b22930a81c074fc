"""The values of the store's interface: messages, and the results of puts and reads.

The statuses have RocketMQ's names (`PutMessageStatus`, `GetMessageStatus`), because remarks and logs contain them.
"""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, field

from tallystick.client.wire.host import Host
from tallystick.client.wire.sys_flag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    SysFlag,
)

__all__ = [
    "NOWHERE",
    "TRANSACTION_COMMIT",
    "TRANSACTION_MASK",
    "TRANSACTION_NONE",
    "TRANSACTION_PREPARED",
    "TRANSACTION_ROLLBACK",
    "GetResult",
    "GetStatus",
    "Host",
    "Message",
    "MessageBatch",
    "PutResult",
    "PutStatus",
    "QueryResult",
    "SysFlag",
]


NOWHERE = Host("127.0.0.1", 0)
"""The host of a message that was not sent over a network."""


@dataclass(slots=True)
class Message:
    """A message to store. The store adds positions, times and its own host.

    `properties` is the encoded form (`name\\x01value\\x02...`, see `properties.py`); `body` is stored as it is.
    `store_host` is set only for a message that the broker stores again (delayed, committed): it keeps the first host.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: str = ""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: Host = NOWHERE
    store_host: Host | None = None
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@dataclass(slots=True)
class MessageBatch:
    """Messages of one topic and queue in the client's batch encoding (`body`), stored together or not at all.

    `properties` (encoded) are appended to each message's own.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: str = ""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: Host = NOWHERE
    reconsume_times: int = 0


class PutStatus(enum.Enum):
    """The outcome of a put. FLUSH_DISK_TIMEOUT and the SLAVE statuses mean *stored*. NO_BUFFER: the transient store
    pool is full (`fastFailIfNoBufferInStorePool`)."""

    PUT_OK = enum.auto()
    FLUSH_DISK_TIMEOUT = enum.auto()
    FLUSH_SLAVE_TIMEOUT = enum.auto()
    SLAVE_NOT_AVAILABLE = enum.auto()
    SERVICE_NOT_AVAILABLE = enum.auto()
    CREATE_MAPEDFILE_FAILED = enum.auto()
    MESSAGE_ILLEGAL = enum.auto()
    PROPERTIES_SIZE_EXCEEDED = enum.auto()
    OS_PAGECACHE_BUSY = enum.auto()
    NO_BUFFER = enum.auto()
    UNKNOWN_ERROR = enum.auto()

    @property
    def stored(self) -> bool:
        """Whether the message is in the log, although perhaps not yet on as many disks as requested."""
        return self in _STORED


_STORED = frozenset(
    {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    }
)


@dataclass(slots=True)
class PutResult:
    """The result of one put. Positions and ids are valid only if `status.stored`.

    `pos`: byte position of the (first) record in the log; `size`: bytes of all records; `queue_offset`: of the first
    message; `message_id`: offset ids, comma-joined for a batch; `detail`: the reason of a failure, for the answer's
    remark.
    """

    status: PutStatus
    pos: int = -1
    size: int = 0
    queue_offset: int = -1
    message_id: str = ""
    store_timestamp_ms: int = 0
    count: int = 1
    detail: str = ""


UNLIMITED = sys.maxsize
"""As many as there are."""


class GetStatus(enum.Enum):
    FOUND = enum.auto()
    NO_MATCHED_MESSAGE = enum.auto()
    MESSAGE_WAS_REMOVING = enum.auto()
    OFFSET_FOUND_NULL = enum.auto()
    OFFSET_OVERFLOW_BADLY = enum.auto()
    OFFSET_OVERFLOW_ONE = enum.auto()
    OFFSET_TOO_SMALL = enum.auto()
    NO_MATCHED_LOGIC_QUEUE = enum.auto()
    NO_MESSAGE_IN_QUEUE = enum.auto()


@dataclass(slots=True)
class GetResult:
    """Records of one queue: `body` contains `count` records as in the log, without gaps.

    Offsets count messages of the queue; the reader continues at `next_begin_offset`.
    """

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    count: int = 0
    body: bytes = b""
    suggest_pulling_from_slave: bool = False


@dataclass(slots=True)
class QueryResult:
    """Records found by key. Hash collisions are included (the client compares keys)."""

    index_last_update_timestamp_ms: int = 0
    index_last_update_pos: int = 0
    records: list[bytes] = field(default_factory=list)
