"""Which messages of a topic a consumer wants, as brokers understand it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tallystick.client.core.errors import ConfigurationError
from tallystick.client.wire.java_hash import string_hash


@dataclass(frozen=True)
class Tags:
    """Messages with one of these tags; without an argument, all messages.

    A tag compares as a whole. Members of a group must all have the same filter.
    """

    tags: tuple[str, ...]

    def __init__(self, *tags: str) -> None:
        wanted = [part.strip() for tag in tags for part in tag.split("||")]
        if not all(wanted):
            raise ConfigurationError("a tag is empty")
        object.__setattr__(self, "tags", tuple(dict.fromkeys(tag for tag in wanted if tag != "*")))

    def matches(self, tag: str | None) -> bool:
        """Whether a message is wanted. The broker compares hashes only, and two tags may share one."""
        return not self.tags or tag in self.tags

    @property
    def text(self) -> str:
        """The expression of the filter."""
        return " || ".join(self.tags) or "*"

    kind = "TAG"


@dataclass(frozen=True)
class Sql:
    """Messages whose properties fulfil a condition, such as `Sql("a > 5 AND b IS NOT NULL")`. The broker evaluates it,
    and must allow it (`enablePropertyFilter`)."""

    text: str
    kind = "SQL92"


Filter = Tags | Sql
ALL = Tags()


def subscription(topic: str, where: Filter, version: int | None = None) -> dict[str, Any]:
    """Returns the form of a filter in heartbeats. `version`: milliseconds; a broker takes the newest."""
    tags = list(where.tags) if isinstance(where, Tags) else []
    return {
        "classFilterMode": False,
        "codeSet": [string_hash(tag) for tag in tags],
        "expressionType": where.kind,
        "subString": where.text,
        "subVersion": version if version is not None else time.time_ns() // 1_000_000,
        "tagsSet": tags,
        "topic": topic,
    }
