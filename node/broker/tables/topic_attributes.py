"""Attributes of topics: names with texts, as requests and tables of RocketMQ 5 have them.

A request changes attributes: `+name=value` sets one, `-name` removes one, and others stay as they are. The only
attribute that has a meaning here is `retention.hours`; RocketMQ has none with this name. Others have no effect, as in
RocketMQ 4.8, which does not know attributes: a request with them is accepted, and they are not stored. Those in a table
that RocketMQ 5 wrote stay there.

Source of the form: AttributeParser and AttributeUtil of RocketMQ 5.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

RETENTION = "retention.hours"
MAX_RETENTION_HOURS = 87_600
"""Ten years, chosen by tallystick."""

_NUMBER = re.compile(r"[0-9]{1,9}")


def retention_problem(hours: int) -> str | None:
    """Why this is not a retention; None if it is one. 0: the topic has none."""
    if 0 <= hours <= MAX_RETENTION_HOURS:
        return None
    return f"{RETENTION} of a topic is 0 to {MAX_RETENTION_HOURS}, not {hours}; 0: the topic has none"


def hours_of(text: str) -> int:
    """A retention given as text. Raises ValueError."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(
            f"{RETENTION} of a topic is a number from 0 to {MAX_RETENTION_HOURS}, not {text!r:.100};"
            " 0: the topic has none"
        )
    hours = int(text)
    if problem := retention_problem(hours):
        raise ValueError(problem)
    return hours


def parse_changes(text: str) -> dict[str, str]:
    """The changes in a header field such as `+retention.hours=24,-message.type`. Raises ValueError."""
    changes: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, separator, value = part.partition("=")
        # As RocketMQ's tool: a value if and only if the attribute is set.
        if name[:1] not in ("+", "-") or bool(separator) is (name[:1] == "-"):
            raise ValueError(f"an attribute is changed by +name=value or -name, not by {part!r:.100}")
        if name in changes:
            raise ValueError(f"the attribute {name[1:]!r:.100} is changed twice")
        changes[name] = value
    return changes


def retention_after(hours: int, changes: Mapping[Any, Any]) -> int:
    """The retention after such changes of a topic that has `hours` now. Raises ValueError."""
    if RETENTION in changes:
        raise ValueError(f"an attribute is changed by +name=value or -name, not by {RETENTION!r}")
    sets, removes = "+" + RETENTION in changes, "-" + RETENTION in changes
    if sets and removes:
        raise ValueError(f"the attribute {RETENTION!r} is changed twice")
    if sets:
        return hours_of(str(changes["+" + RETENTION]))
    return 0 if removes else hours


def of_row(value: Any) -> tuple[int, tuple[tuple[str, str], ...]]:
    """The retention and the other attributes of a topic in a table. A wrong retention stays among the others and
    has no effect: it must not make the table unreadable."""
    pairs = {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}
    try:
        hours = hours_of(pairs.get(RETENTION, "0"))
        pairs.pop(RETENTION, None)
    except ValueError:
        hours = 0
    return hours, tuple(sorted(pairs.items()))


def to_row(hours: int, others: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The attributes as a table has them; empty if there is none."""
    return dict(sorted([*others, *([(RETENTION, str(hours))] if hours else [])]))
