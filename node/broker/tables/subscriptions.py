"""One group's subscription to one topic, as clients send it in heartbeats, pulls and config checks.

`sub_version` is the client's clock when it subscribed; the newer of two versions is valid. A tag expression has parts
that are separated by `||` and trimmed. The broker compares only the parts' hash codes (`code_set`), the client compares
the text.

Source: SubscriptionData, FilterAPI of RocketMQ 4.8.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.store._kernel import string_hash

TAG, SQL92 = "TAG", "SQL92"
SUB_ALL = "*"
MAX_CHARACTERS = 65_536  # of one subscription; RocketMQ has no such limit


class SubscriptionError(ValueError):
    """The expression is invalid or selects nothing."""


def is_tag_type(expression_type: str | None) -> bool:
    """No type means tags: old clients send no type."""
    return not expression_type or expression_type == TAG


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """What a group wants of a topic. Equality compares everything, including the version."""

    topic: str
    sub_string: str = SUB_ALL
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = TAG
    class_filter_mode: bool = False

    @classmethod
    def build(
        cls, topic: str, sub_string: str | None, expression_type: str | None = TAG, sub_version: int = 0
    ) -> SubscriptionData:
        """From an expression. SubscriptionError: not by tags and empty, or only separators."""
        if sub_string and len(sub_string) > MAX_CHARACTERS:
            raise SubscriptionError(f"a subscription of {len(sub_string)} characters, {MAX_CHARACTERS} are allowed")
        if not is_tag_type(expression_type):
            if not sub_string:
                raise SubscriptionError(f"an expression of type {expression_type} must not be empty")
            return cls(topic, sub_string, sub_version=sub_version, expression_type=str(expression_type))
        if not sub_string or sub_string == SUB_ALL:
            return cls(topic, sub_version=sub_version)
        tags = frozenset(filter(None, (part.strip() for part in sub_string.split("||"))))
        if not tags:
            raise SubscriptionError(f"no tag in {sub_string!r}")
        return cls(topic, sub_string, tags, frozenset(string_hash(tag.encode()) for tag in tags), sub_version)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SubscriptionData:
        """From a heartbeat's object; what is absent or null takes its default.

        ValueError, TypeError: not such an object.
        """
        topic = value.get("topic")
        if not isinstance(topic, str) or not topic:
            raise ValueError("a subscription without a topic")
        return cls(
            topic,
            value.get("subString") or SUB_ALL,
            frozenset(str(tag) for tag in value.get("tagsSet") or ()),
            frozenset(int(code) for code in value.get("codeSet") or ()),
            int(value.get("subVersion") or 0),
            value.get("expressionType") or TAG,
            bool(value.get("classFilterMode")),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": sorted(self.code_set),
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": sorted(self.tags_set),
            "topic": self.topic,
        }
