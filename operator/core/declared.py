"""What a resource declares on brokers, such as a Topic or a User: its phase, and why it is not fulfilled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """The phase in `status.phase`."""

    PENDING = "Pending"
    READY = "Ready"
    REFUSED = "Refused"
    DELETING = "Deleting"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a declaration is not fulfilled. `message` is for users."""

    phase: Phase
    reason: str
    message: str
