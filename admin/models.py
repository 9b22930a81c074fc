"""What the admin core returns. All classes are frozen dataclasses of plain values, so that each face can show them.

`json_of` gives them as JSON: field names in camelCase, enumerations as their values. Times are milliseconds since 1970
(`_ms`), sizes bytes (`_bytes`), rates per second (`_per_s`). None means: not known, or not applicable; a reason stands
beside it where there is one.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


def json_of(value: Any) -> Any:
    """Returns a model, or a container of models, as values that JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {camel_case(each.name): json_of(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): json_of(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_of(each) for each in value]
    return value


def camel_case(name: str) -> str:
    """Returns a Python name as JSON has it: `last_update_ms` becomes `lastUpdateMs`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be read. A list with problems is incomplete."""

    subject: str
    """The server, the topic, or the group."""
    reason: str


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """A part of a long list. `cursor`: for the next part; None at the end."""

    items: list[Item]
    cursor: str | None = None
    problems: list[Problem] = field(default_factory=list)


# --- clusters and brokers ---


class Role(enum.Enum):
    """The role of a broker. `MASTER` and `SLAVE` are RocketMQ's; the others are those of a member of a Raft group."""

    MASTER = "master"
    SLAVE = "slave"
    LEADER = "leader"
    FOLLOWER = "follower"
    LEARNER = "learner"
    CANDIDATE = "candidate"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second, over the last ten seconds or so; RocketMQ's brokers report them."""

    in_per_s: float = 0.0
    out_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of a broker's log. `used_ratio` is from 0 to 1."""

    used_ratio: float | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker process. A broker of RocketMQ has no `node`."""

    cluster: str
    name: str
    id: int
    address: str
    role: Role
    reachable: bool
    problem: str | None = None
    """Why it is not reachable, or not ready."""
    version: str = ""
    is_tallystick: bool = False
    started_ms: int | None = None
    rates: Rates = Rates()
    messages_today_in: int | None = None
    messages_today_out: int | None = None
    disk: Disk = Disk()
    runtime: dict[str, str] = field(default_factory=dict)
    """RocketMQ's runtime information, as the broker sends it."""
    node: dict[str, Any] | None = None
    """The state of a tallystick node: the body of `GET /node`; see docs/operation.md."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The brokers that register with one cluster name."""

    name: str
    brokers: list[Broker]


@dataclass(frozen=True, slots=True)
class RaftMember:
    """A member of a replicated group. `lag_bytes`: how far it is behind the leader's log, as the leader knows."""

    id: int
    address: str | None
    role: Role
    voter: bool
    connected: bool | None
    lag_bytes: int | None
    disk: str | None
    phase: str | None
    """What its process does: see `GET /node`."""
    recovery: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RaftGroup:
    """A replicated group of tallystick: brokers that share a name and a log."""

    name: str
    cluster: str
    term: int
    leader: int | None
    committed: int | None
    """The position of the log up to which a majority has fsynced, in bytes."""
    members: list[RaftMember]
    problem: str | None = None


# --- topics ---


class TopicKind(enum.Enum):
    """What a topic is for, by its name and attributes."""

    NORMAL = "normal"
    ORDERED = "ordered"
    DELAY = "delay"
    TRANSACTION = "transaction"
    RETRY = "retry"
    DEAD_LETTER = "deadLetter"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of a topic at a broker. `perm` is a sum of 4 (read) and 2 (write)."""

    read_queues: int = 8
    write_queues: int = 8
    perm: int = 6
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic in a list. `configs` by broker name; they should be alike, `agree` says if they are."""

    name: str
    kind: TopicKind
    clusters: list[str]
    configs: dict[str, TopicConfig]
    agree: bool
    messages: int | None = None
    """Messages that can be read now: the sum of max - min over all queues."""
    rates: Rates = Rates()
    etag: str = ""
    owner: str | None = None
    """The Kubernetes resource that manages it, such as `Topic shop/orders`; None: none is known."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The offsets of one queue: messages from `min` to `max` - 1 can be read."""

    broker: str
    queue: int
    min: int
    max: int
    last_update_ms: int | None


@dataclass(frozen=True, slots=True)
class Connection:
    """A client at a broker."""

    client_id: str
    address: str
    language: str
    version: str
    brokers: list[str]


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """A topic with its queues and clients. `producers` by producer group, as far as brokers report them."""

    topic: Topic
    queues: list[QueueRange]
    producers: dict[str, list[Connection]]
    consumer_groups: list[str]
    problems: list[Problem]


# --- consumer groups ---


class GroupState(enum.Enum):
    """`OFFLINE`: no member is connected."""

    ONLINE = "online"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The configuration of a consumer group at a broker."""

    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queues: int = 1
    max_retries: int = 16


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group in a list. `lag`: messages that are stored and not consumed; `lag_s`: the age of the oldest
    of them in seconds."""

    name: str
    state: GroupState
    members: int
    topics: list[str]
    lag: int | None
    lag_s: float | None
    mode: str | None = None
    """clustering, broadcasting."""
    out_per_s: float = 0.0
    disagrees: bool = False
    """Members have different subscriptions: some of them get no messages, or the wrong ones."""
    dead_letters: int | None = None
    configs: dict[str, GroupConfig] = field(default_factory=dict)
    etag: str = ""
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The progress of a group in one queue. `consumer_offset` None: it has not committed one."""

    topic: str
    broker: str
    queue: int
    broker_offset: int
    consumer_offset: int | None
    lag: int
    lag_s: float | None
    last_consumed_ms: int | None
    client_id: str | None


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member of a group reads."""

    topic: str
    expression: str
    kind: str
    """TAG or SQL92."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a consumer group."""

    connection: Connection
    subscriptions: list[Subscription]
    queues: int | None = None


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Members of one group with different subscriptions to a topic: client ids by expression."""

    topic: str
    expressions: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class GroupDetail:
    """A consumer group with the lag of each queue, its members, and where their subscriptions disagree."""

    group: ConsumerGroup
    queues: list[QueueLag]
    members: list[GroupMember]
    disagreements: list[Disagreement]
    problems: list[Problem]


# --- messages ---


@dataclass(frozen=True, slots=True)
class MessageSummary:
    """A stored message. `id` has the broker's address and the position in its log; `unique_key` is the client's."""

    id: str
    unique_key: str
    topic: str
    broker: str
    queue: int
    offset: int
    tag: str
    keys: list[str]
    size_bytes: int
    born_ms: int
    stored_ms: int
    born_host: str
    store_host: str
    retries: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message with its content. `body` is base64; `text` is the body as UTF-8 if it is that."""

    summary: MessageSummary
    properties: dict[str, str]
    body: str
    text: str | None
    body_crc_ok: bool


class DeadLetters(NamedTuple):
    """The number of messages that a group finally failed to consume."""

    group: str
    messages: int


class Consumption(enum.Enum):
    """Whether a group consumed a message, as far as its offsets show."""

    CONSUMED = "consumed"
    FILTERED = "filtered"
    NOT_CONSUMED = "notConsumed"
    OFFLINE = "offline"
    PULLED = "pulled"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Track:
    """What a consumer group did with a message."""

    group: str
    state: Consumption
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TraceStep:
    """A step in the life of a message, from the trace topic or from the store. `kind`: sent, stored, delivered,
    consumed, failed, sentBack, deadLetter, transactionEnded."""

    kind: str
    at_ms: int
    duration_ms: int | None
    client: str
    group: str
    success: bool | None
    detail: str = ""


# --- changes ---


class StepState(enum.Enum):
    """`PLANNED`: a dry run, or the step was not reached."""

    PLANNED = "planned"
    DONE = "done"
    UNCHANGED = "unchanged"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Step:
    """A change at one server: what `before` becomes `after`."""

    target: str
    action: str
    before: Any
    after: Any
    state: StepState
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """The result of a change, or with `dry_run` what it would do."""

    dry_run: bool
    steps: list[Step]

    @property
    def ok(self) -> bool:
        """Whether no step failed."""
        return not any(step.state is StepState.FAILED for step in self.steps)


class OffsetKind(enum.Enum):
    """What the number of an `OffsetTarget` means."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    OFFSET = "offset"
    SHIFT = "shift"


@dataclass(frozen=True, slots=True)
class OffsetTarget:
    """Where a group continues in each queue. `value`: milliseconds since 1970, an offset, or by how many messages the
    group goes forward (back, if it is negative). Targets outside of a queue become its begin or its end."""

    kind: OffsetKind
    value: int = 0

    @classmethod
    def earliest(cls) -> OffsetTarget:
        """With the oldest message that is kept."""
        return cls(OffsetKind.EARLIEST)

    @classmethod
    def latest(cls) -> OffsetTarget:
        """With the next message that is stored."""
        return cls(OffsetKind.LATEST)

    @classmethod
    def timestamp(cls, at_ms: int) -> OffsetTarget:
        """With the first message that was stored at this time or later; RocketMQ 4 may take the one before."""
        return cls(OffsetKind.TIMESTAMP, at_ms)

    @classmethod
    def offset(cls, offset: int) -> OffsetTarget:
        """With this offset in each queue."""
        return cls(OffsetKind.OFFSET, offset)

    @classmethod
    def shift(cls, messages: int) -> OffsetTarget:
        """This number of messages behind the present offset."""
        return cls(OffsetKind.SHIFT, messages)


@dataclass(frozen=True, slots=True)
class OffsetStep:
    """The new offset of a group in one queue."""

    topic: str
    broker: str
    queue: int
    before: int | None
    after: int
    min: int
    max: int
    state: StepState
    error: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The result of a reset or a clone. `online`: members were told, and go on from the new offsets."""

    dry_run: bool
    online: bool
    steps: list[OffsetStep]


@dataclass(frozen=True, slots=True)
class Resent:
    """What became of one message that was sent again."""

    message_id: str
    state: StepState
    new_message_id: str | None
    target: str
    """The topic, or the client that consumed it."""
    error: str | None = None


# --- configuration, figures, and the audit log ---


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a broker. `values` by address; `agree`: all brokers have the same. `per_broker`: it is meant to
    differ, such as an address."""

    name: str
    values: dict[str, str | None]
    agree: bool
    per_broker: bool


@dataclass(frozen=True, slots=True)
class Figures:
    """The live figures of a cluster at one time, for charts."""

    at_ms: int
    in_per_s: float
    out_per_s: float
    topics: dict[str, Rates]
    lags: dict[str, int]
    """By consumer group."""
    disks: dict[str, float]
    """The used part by broker address, from 0 to 1."""
    problems: list[Problem]


@dataclass(frozen=True, slots=True)
class AuditLine:
    """A change or a refusal, from the topic `rmq_sys_audit`."""

    at_ms: int
    broker: str
    user: str
    source: str
    action: str
    resource: str
    allowed: bool
    fields: dict[str, Any]
