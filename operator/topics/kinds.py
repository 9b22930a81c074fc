"""The two kinds as values: their path in the admin API, valid names, and reserved names of RocketMQ.

Sources: TopicValidator, TopicConfigManager, SubscriptionGroupManager of RocketMQ 4.8.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tallystick.operator.topics.settings import ConsumerGroupSettings, Settings, TopicSettings

S = TypeVar("S", bound=Settings)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_SYSTEM_TOPIC_PREFIX = "rmq_sys_"
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
_SYSTEM_TOPICS = frozenset(
    {
        *("TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
        *("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"),
        "RMQ_SYS_TRACE_TOPIC",
    }
)
_SYSTEM_GROUPS = frozenset(
    {
        *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY"),
        *("CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"),
    }
)


@dataclass(frozen=True, slots=True)
class Kind(Generic[S]):
    """One kind of resource, and its object on a broker."""

    kind: str
    path: str
    """Path in the HTTP admin API of brokers."""
    plural: str
    """Field of the response with the list of objects."""
    noun: str
    name_field: str
    """Field of the spec with the name on the brokers, if it differs from metadata.name."""
    finalizer: str
    system_reason: str
    max_name_bytes: int
    """The name of a consumer group is part of the name of its retry topic."""
    from_spec: Callable[[str, Mapping[str, Any]], S]
    from_wire: Callable[[Mapping[str, Any]], S]
    system: Callable[[str, str], str]
    """(name, cluster) -> why the name is reserved; empty: it is not."""
    figures: tuple[str, ...]
    """Counters of one object. DeleteIfEmpty uses the first one."""
    made_by_brokers: Callable[[S], bool]
    """Whether these are the settings that a broker creates for an unknown name."""

    def name_problem(self, name: str) -> str:
        """Returns why a name is invalid; empty: it is valid."""
        if not _NAME.fullmatch(name):
            return (
                f"{name!r} is not a valid {self.noun} name: use letters, digits, _ - % | (set spec.{self.name_field})"
            )
        if len(name) > self.max_name_bytes:
            return f"a {self.noun} name can have at most {self.max_name_bytes} characters, this one has {len(name)}"
        return ""


def group_name(cluster: str, number: int) -> str:
    """Returns the name of a broker group: RocketMQ's brokerName."""
    return f"{cluster}-{number}"


def _system_topic(name: str, cluster: str) -> str:
    if name in _SYSTEM_TOPICS or name.startswith(_SYSTEM_TOPIC_PREFIX):
        return f"{name} is a system topic of RocketMQ"
    if name in (cluster, f"{cluster}_REPLY_TOPIC"):
        return f"{name} is reserved: brokers use a topic with the name of their cluster"
    if re.fullmatch(re.escape(cluster) + r"-\d{1,2}", name):
        return f"{name} is reserved: brokers use a topic with the name of their group"
    return ""


def _system_group(name: str, cluster: str) -> str:
    known = name in _SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIX)
    return f"{name} is a system consumer group of RocketMQ" if known else ""


TOPIC = Kind(
    kind="Topic",
    path="/topics",
    plural="topics",
    noun="topic",
    name_field="topicName",
    finalizer="tallystick.dev/topic",
    system_reason="SystemTopic",
    max_name_bytes=127,
    from_spec=TopicSettings.from_spec,
    from_wire=TopicSettings.from_wire,
    system=_system_topic,
    figures=("messages",),
    made_by_brokers=lambda found: False,  # a producer can create it, but it then contains messages
)
CONSUMER_GROUP = Kind(
    kind="ConsumerGroup",
    path="/consumergroups",
    plural="consumergroups",
    noun="consumer group",
    name_field="groupName",
    finalizer="tallystick.dev/consumergroup",
    system_reason="SystemGroup",
    max_name_bytes=120,
    from_spec=ConsumerGroupSettings.from_spec,
    from_wire=ConsumerGroupSettings.from_wire,
    system=_system_group,
    figures=("clients", "lag"),
    made_by_brokers=lambda found: found == ConsumerGroupSettings(found.name),
)
