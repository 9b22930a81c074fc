"""A leadership that is being handed over (T1 to T7), and when one is handed over unasked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Transfer:
    """From when it was taken up until somebody else is known to lead, or the deadline has passed (T4)."""

    target: int
    deadline: float
    told: bool = False
    """TimeoutNow was sent: the target had everything (T2)."""
