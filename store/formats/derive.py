"""Rules that derive queue units and index entries from a record. A slow twin of the kernel's code, for tools and tests.

Source: CommitLog.checkMessageAndReturnSize, ConsumeQueue and IndexService of RocketMQ 4.8.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallystick.store import _kernel
from tallystick.store.formats.message import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)
from tallystick.store.formats.properties import DELAY, KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY
from tallystick.store.formats.record import Record

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
IMPOSSIBLE_MS = 1 << 43
"""A store time from the year 2248 on."""
_UNKNOWN_LEVEL_DELAY_MS = 1000


def has_queue_unit(record: Record) -> bool:
    """Whether the record gets a unit: prepared and rolled-back records do not."""
    return record.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT)


def delay_level(record: Record, properties: Mapping[str, str]) -> int:
    """The level of a delayed message that waits in the schedule topic; 0 for other messages."""
    text = properties.get(DELAY)
    if record.topic != SCHEDULE_TOPIC or text is None:
        return 0
    try:
        return max(0, int(text))
    except ValueError:
        return 0


def tags_code(record: Record, properties: Mapping[str, str], delays_ms: Sequence[int]) -> int:
    """The hash of the tag; 0 without a tag; for a delayed message the delivery time. `delays_ms[i]` is level i + 1."""
    level = min(delay_level(record, properties), len(delays_ms))
    if level > 0:
        return record.store_timestamp_ms + delays_ms[level - 1]
    if delay_level(record, properties) > 0:
        return record.store_timestamp_ms + _UNKNOWN_LEVEL_DELAY_MS
    tag = properties.get(TAGS)
    return _kernel.string_hash(tag.encode("utf-8", "surrogateescape")) if tag else 0


def index_keys(record: Record, properties: Mapping[str, str]) -> list[str]:
    """The keys for which the index gets entries, in this order; a key can occur twice.

    A record with an impossible store time has none: damage changed its header, and an index file that began with it
    would hide all later entries from a search by time.
    """
    if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return []
    if not 0 <= record.store_timestamp_ms < IMPOSSIBLE_MS:
        return []
    unique = properties.get(UNIQ_KEY)
    return ([unique] if unique else []) + [key for key in properties.get(KEYS, "").split(KEY_SEPARATOR) if key]


def index_hash(topic: str, key: str) -> int:
    """The hash that the index stores for a key."""
    return _kernel.key_hash(f"{topic}#{key}".encode("utf-8", "surrogateescape"))
