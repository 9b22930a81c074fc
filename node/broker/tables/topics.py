"""The topics of a broker: their queues, their permissions, and the file `config/topics.json`.

A topic is created by an administrator (17); by the first send to an unknown name, if the model topic that it names
allows inheritance (TBW102 by default); or by the broker for retries and dead letters. The data version counts every
change; name servers compare it to decide whether to read the table again.

A send waits until the row of its topic is durable (`gate`, `open_queues`): a message without a topic cannot be read.

A name becomes a folder below `consumequeue/`: every way to create a topic checks it first.

Source: TopicConfig, TopicConfigManager, TopicValidator of RocketMQ 4.8.0; the file's shape is in the golden stores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tallystick.node.access.access_log import AUDIT_TOPIC
from tallystick.node.broker.tables import topic_attributes
from tallystick.node.broker.tables.saving import ReplicatedTable, TableFile, rows
from tallystick.node.core.settings import PERMISSION_INHERIT, PERMISSION_READ, PERMISSION_WRITE, BrokerSettings
from tallystick.store.tables import DataVersion

if TYPE_CHECKING:
    from typing import Self

RETRY_PREFIX, DLQ_PREFIX, SYSTEM_PREFIX = "%RETRY%", "%DLQ%", "rmq_sys_"
AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OPERATION_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        HALF_TOPIC,
        OPERATION_TOPIC,
        CHECK_MAX_TOPIC,
        TRACE_TOPIC,
    }
)
"""Topics that no administrator can create or delete, in any broker. See `TopicTable.is_system`."""

SYS_FLAG_UNIT, SYS_FLAG_UNIT_SUB = 1, 2
READ_WRITE = PERMISSION_READ | PERMISSION_WRITE
MAX_TOPIC_LENGTH = 127  # given by the format: a record has one signed byte for it
MAX_QUEUE_NUMS = 65535  # chosen by tallystick: RocketMQ accepts any number, and all routes grow
SCHEDULE_QUEUE_NUMS = 18
BENCHMARK_QUEUE_NUMS = 1024

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def validate_topic_name(name: str | None) -> str | None:
    """Why this is not a valid topic name, in RocketMQ's words; None if it is valid."""
    if not name or not name.strip():
        return "The specified topic is blank."
    if not _NAME.fullmatch(name):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(name) > MAX_TOPIC_LENGTH:
        return f"The specified topic is longer than topic max length {MAX_TOPIC_LENGTH}."
    return None


def retry_topic(group: str) -> str:
    """The topic for messages that `group` could not consume, to be retried."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic for messages that `group` finally failed to consume: its dead letters."""
    return DLQ_PREFIX + group


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic. `perm`: bits 1 inherit, 2 write, 4 read; `topic_sys_flag`: bits 1 unit, 2 subscribed by units.
    `retention_hours`: its messages expire after this time; 0: with their segments. `attributes`: others of RocketMQ 5.
    `owner`: the user that created it; empty: unknown.
    """

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = READ_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    retention_hours: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    owner: str = ""

    @property
    def readable(self) -> bool:
        return bool(self.perm & PERMISSION_READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & PERMISSION_WRITE)

    def problem(self) -> str | None:
        """Why this topic is invalid: its name, its numbers of queues or its permission; None if it is valid."""
        problem = validate_topic_name(self.topic_name)
        for what, count in (("readQueueNums", self.read_queue_nums), ("writeQueueNums", self.write_queue_nums)):
            if not 0 <= count <= MAX_QUEUE_NUMS:
                problem = problem or f"{what} of a topic is 0 to {MAX_QUEUE_NUMS}, not {count}"
        if not 0 <= self.perm <= 15:
            problem = problem or f"perm {self.perm} of a topic is no combination of 1, 2, 4 and 8"
        return problem or topic_attributes.retention_problem(self.retention_hours)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """From the object in topics.json and in registrations; missing fields get their defaults.

        Raises ValueError or TypeError if it is not a topic configuration.
        """
        name = value.get("topicName")
        if not isinstance(name, str):
            raise ValueError(f"a topic configuration without a name: {dict(value)!r:.200}")
        numbers = {
            field: int(value[key])
            for key, field in (
                ("readQueueNums", "read_queue_nums"),
                ("writeQueueNums", "write_queue_nums"),
                ("perm", "perm"),
                ("topicSysFlag", "topic_sys_flag"),
            )
            if value.get(key) is not None
        }
        hours, others = topic_attributes.of_row(value.get("attributes"))
        return cls(
            name,
            topic_filter_type=str(value.get("topicFilterType") or "SINGLE_TAG"),
            order=bool(value.get("order")),
            retention_hours=hours,
            attributes=others,
            owner=str(value.get("owner") or ""),
            **numbers,
        )

    def to_json(self) -> dict[str, Any]:
        attributes = topic_attributes.to_row(self.retention_hours, self.attributes)
        return {
            **({"attributes": attributes} if attributes else {}),  # RocketMQ 4.8 does not know them, and ignores them
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
            **({"owner": self.owner} if self.owner else {}),  # RocketMQ does not know it, and ignores it
        }


def system_topics(settings: BrokerSettings) -> list[TopicConfig]:
    """The topics that a broker with these settings has from the beginning."""
    wide = READ_WRITE | PERMISSION_INHERIT

    def own(name: str, nums: int, perm: int = READ_WRITE) -> TopicConfig:
        return TopicConfig(name, nums, nums, perm)

    topics = [own(SELF_TEST_TOPIC, 1)]
    if settings.autoCreateTopicEnable:
        topics.append(own(AUTO_CREATE_TOPIC, settings.defaultTopicQueueNums, wide))
    topics += [
        own(BENCHMARK_TOPIC, BENCHMARK_QUEUE_NUMS),
        own(settings.brokerClusterName, 16, wide if settings.clusterTopicEnable else PERMISSION_INHERIT),
        own(settings.brokerName, 1, wide if settings.brokerTopicEnable else PERMISSION_INHERIT),
        own(OFFSET_MOVED_EVENT, 1),
        own(SCHEDULE_TOPIC, SCHEDULE_QUEUE_NUMS),
        own(settings.brokerClusterName + REPLY_TOPIC_SUFFIX, 1),
    ]
    if settings.traceTopicEnable:
        topics.append(own(settings.msgTraceTopicName, 1))
    return topics


class TopicTable(ReplicatedTable):
    """All topics of this broker. `on_change` gets the name of each topic that is created, changed or deleted."""

    what = "topics.json"
    rows_field = "topicConfigTable"
    at_once = True

    def __init__(self, file: TableFile, settings: BrokerSettings, now_ms: Callable[[], int]) -> None:
        """The system topics, then the content of `file`. Raises ValueError if it is not a table of topics."""
        super().__init__(file)
        self.settings = settings  # see `settings_changed`
        self._now_ms = now_ms
        self.on_change: list[Callable[[str], None]] = []
        self._safe_queues: dict[str, int] = {}
        self.gate.on_open.append(self._opened)
        boot = system_topics(settings)
        self._system = SYSTEM_TOPICS | {config.topic_name for config in boot}
        self._boot = {config.topic_name: config for config in boot}
        self._topics = dict(self._boot)
        self.data_version = DataVersion(0, now_ms())
        stored = file.load()
        if stored is None:
            self.changed()
            return
        table = rows(stored, "topicConfigTable")
        # The stored row has priority: an administrator may have changed a system topic's permissions.
        self._topics.update((name, TopicConfig.from_json(value)) for name, value in table.items())
        if stored.get("dataVersion"):
            self.data_version = DataVersion.from_json(stored["dataVersion"])
        if self._topics.keys() - table.keys():
            self.changed()

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Uses other settings from now on. TBW102 gets the number of queues that a changed setting asks for."""
        before, self.settings = self.settings, settings
        model = self._topics.get(AUTO_CREATE_TOPIC)
        count = settings.defaultTopicQueueNums
        if model is None and settings.autoCreateTopicEnable:
            self._put(TopicConfig(AUTO_CREATE_TOPIC, count, count, READ_WRITE | PERMISSION_INHERIT))
        elif model is not None and count != before.defaultTopicQueueNums:
            self._put(replace(model, read_queue_nums=count, write_queue_nums=count))

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def get(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    def items(self) -> Iterable[tuple[str, TopicConfig]]:
        return self._topics.items()

    def open_queues(self, name: str) -> int:
        """Sends to queues [0, this number) of a topic need not wait at the gate.

        While a change of the topic is not durable, these are the queues that exist in every state that a kill can
        leave: none of a new topic, the old ones of a topic that gets more.
        """
        config = self._topics.get(name)
        if config is None:
            return 0
        return _queues(config) if self.gate.is_open(name) else self._safe_queues.get(name, 0)

    def is_system(self, name: str) -> bool:
        """Whether it is RocketMQ's own topic, or has the name of this broker or its cluster."""
        return name in self._system or name.startswith(SYSTEM_PREFIX)

    def system_names(self) -> list[str]:
        return sorted(self._system | ({AUDIT_TOPIC} & self._topics.keys()))

    def update(self, *configs: TopicConfig) -> None:
        """Creates or replaces topics, all or none of them. Raises ValueError if one of them is invalid."""
        self.must_lead()
        for config in configs:
            if problem := config.problem():
                raise ValueError(problem)
        self._put(*configs)

    def delete(self, name: str) -> bool:
        """Deletes a topic; False if it does not exist. Raises ValueError if this broker is a follower."""
        self.must_lead()
        if self._topics.pop(name, None) is None:
            return False
        self._safe_queues[name] = 0
        self._note(name)
        return True

    def create_on_send(
        self, name: str, default_topic: str, queue_nums: int, topic_sys_flag: int = 0, owner: str = ""
    ) -> TopicConfig | None:
        """The topic for a send to `name`: the existing one, or a new one modelled on `default_topic`; None if not
        allowed.

        `queue_nums` is what the client requests; the model's number of write queues is the limit.
        """
        if (known := self._topics.get(name)) is not None:
            return known
        if validate_topic_name(name) is not None:
            return None
        model = self._topics.get(default_topic)
        if model is None or not model.perm & PERMISSION_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self.settings.autoCreateTopicEnable:
            return None  # TBW102 may be in the file from a time when it was enabled
        count = max(0, min(queue_nums, model.write_queue_nums))
        perm = model.perm & ~PERMISSION_INHERIT
        config = TopicConfig(name, count, count, perm, model.topic_filter_type, topic_sys_flag, owner=owner)
        self._put(config)
        return config

    def create_on_send_back(
        self, name: str, queue_nums: int, perm: int = READ_WRITE, topic_sys_flag: int = 0
    ) -> TopicConfig | None:
        """A topic that the broker itself needs (retries, dead letters, transactions): the existing or a new one.

        None if the name is not a valid topic name, for example because the group's name is too long.
        """
        if (known := self._topics.get(name)) is not None:
            return known
        if validate_topic_name(name) is not None:
            return None
        config = TopicConfig(name, queue_nums, queue_nums, perm, topic_sys_flag=topic_sys_flag)
        self._put(config)
        return config

    def to_json(self) -> dict[str, Any]:
        """The file's content, and the answer to GET_ALL_TOPIC_CONFIG."""
        return {
            "dataVersion": self.data_version.to_json(),
            "topicConfigTable": {name: config.to_json() for name, config in self._topics.items()},
        }

    def row_names(self) -> Collection[str]:
        return self._topics.keys()

    def row_json(self, name: str) -> dict[str, Any] | None:
        config = self._topics.get(name)
        return None if config is None else config.to_json()

    def head_json(self) -> dict[str, Any]:
        return {"dataVersion": self.data_version.to_json()}

    def take_row(self, name: str, row: Any) -> None:
        config = TopicConfig.from_json(row) if row is not None else self._boot.get(name)
        if config is None:
            self._topics.pop(name, None)
        else:
            self._topics[name] = config
        self._tell(name)

    def take_head(self, picture: Mapping[str, Any]) -> None:
        if picture.get("dataVersion"):
            self.data_version = DataVersion.from_json(picture["dataVersion"])

    def _put(self, *configs: TopicConfig) -> None:
        if self.follows or not configs:
            return  # the caller can continue as if it existed; the leader creates it for all members
        for config in configs:
            # Before it is replaced: the file has at least this much of it.
            self._safe_queues[config.topic_name] = min(self.open_queues(config.topic_name), _queues(config))
            self._topics[config.topic_name] = config
        self._note(*(config.topic_name for config in configs))

    def _opened(self, name: str) -> None:
        self._safe_queues.pop(name, None)

    def _note(self, *names: str) -> None:
        self.data_version = self.data_version.next(self._now_ms())
        self.changed(*names)
        self.save_soon()
        for name in names:
            self._tell(name)

    def _tell(self, name: str) -> None:
        for listener in self.on_change:
            listener(name)


def _queues(config: TopicConfig) -> int:
    return max(config.read_queue_nums, config.write_queue_nums)
