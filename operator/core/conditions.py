"""Conditions of a resource, as every status of the operator contains them.

A condition has a reason, which does not change between versions, and a message for humans. `lastTransitionTime` changes
only with the status. Messages contain no exact byte counts or durations, so that an unchanged state is not written
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.operator.core.kube import Json
from tallystick.operator.core.times import timestamp

MAX_MESSAGE = 1000


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: bool | None
    """None: unknown."""
    reason: str
    message: str = ""


def merged(
    previous: Iterable[Mapping[str, Any]], now: float, generation: int, found: Iterable[Condition]
) -> list[Json]:
    """Returns conditions in the format of the API. A condition with an unchanged status keeps its transition time."""
    before = {each.get("type"): each for each in previous}
    listed = []
    for condition in found:
        status = "Unknown" if condition.status is None else str(condition.status)
        old = before.get(condition.type) or {}
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        listed.append(
            {
                "type": condition.type,
                "status": status,
                "reason": condition.reason,
                "message": condition.message[:MAX_MESSAGE],
                "lastTransitionTime": since or timestamp(now),
                "observedGeneration": generation,
            }
        )
    return listed
