"""What names of topics and groups mean. Source: TopicValidator, MixAll of RocketMQ 4.8.0 and 5.5.0."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tallystick.admin.models import TopicConfig, TopicKind

RETRY_PREFIX, DEAD_LETTER_PREFIX = "%RETRY%", "%DLQ%"
TRACE_TOPIC, AUDIT_TOPIC = "RMQ_SYS_TRACE_TOPIC", "rmq_sys_audit"
TOOLS_GROUP = "TOOLS_CONSUMER"
"""A group that every broker knows, for pulls of tools."""

_SYSTEM_PREFIXES = ("rmq_sys_", "RMQ_SYS_")
_SYSTEM_TOPICS = frozenset(
    (
        *("TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
        *("TRANS_CHECK_MAX_TIME_TOPIC", "DefaultHeartBeatSyncerTopic"),
    )
)
_SYSTEM_GROUPS = frozenset(
    (
        *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "__MONITOR_CONSUMER", "DEFAULT_CONSUMER"),
        *("CID_ONS-HTTP-PROXY", "CID_ONSAPI_OWNER", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_PULL"),
    )
)
_OF_ATTRIBUTE = {"DELAY": TopicKind.DELAY, "FIFO": TopicKind.ORDERED, "TRANSACTION": TopicKind.TRANSACTION}


def topic_kind(name: str, config: TopicConfig, brokers: Collection[str]) -> TopicKind:
    """Returns what a topic is for. `brokers`: the names of clusters and brokers, which are topics as well."""
    if name.startswith(RETRY_PREFIX):
        return TopicKind.RETRY
    if name.startswith(DEAD_LETTER_PREFIX):
        return TopicKind.DEAD_LETTER
    if name in _SYSTEM_TOPICS or name in brokers or name.startswith(_SYSTEM_PREFIXES):
        return TopicKind.SYSTEM
    if name.endswith("_REPLY_TOPIC") and name.removesuffix("_REPLY_TOPIC") in brokers:
        return TopicKind.SYSTEM
    if config.order:
        return TopicKind.ORDERED
    return _OF_ATTRIBUTE.get(_message_type(config.attributes), TopicKind.NORMAL)


def _message_type(attributes: Mapping[str, str]) -> str:
    return attributes.get("message.type", "").upper()


def is_hidden(kind: TopicKind) -> bool:
    """Whether brokers made the topic, so that people see it only if they ask for it."""
    return kind in (TopicKind.SYSTEM, TopicKind.RETRY, TopicKind.DEAD_LETTER)


def is_system_group(name: str) -> bool:
    """Whether a group belongs to brokers or tools."""
    return name in _SYSTEM_GROUPS or name.startswith("CID_RMQ_SYS_")
