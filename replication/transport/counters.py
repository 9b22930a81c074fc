"""Counters of a transport for metrics: numbers that only rise, for each peer, lane and direction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SentCounters:
    """One lane to one peer. The counters continue across connections."""

    frames: int = 0
    bytes: int = 0
    """Passed to the connection, including headers, and including what a lost connection had not sent."""
    dropped_unconnected: int = 0
    """Messages that were refused because there was no connection."""
    dropped_full: int = 0
    """Messages that were refused because too much was unsent (`control_queue_bytes`, `bulk_queue_bytes`)."""
    connects: int = 0
    """Successful handshakes; all but the first are reconnects."""
    failures: int = 0
    """Failed attempts, and lost connections."""
    last_error: str = ""
    """Reason of the last failure; it stays when the lane is connected again."""


@dataclass(slots=True)
class ReceivedCounters:
    """One lane from one peer."""

    frames: int = 0
    bytes: int = 0
    connects: int = 0
    failures: int = 0
    """Connections that this member closed: because of invalid data, or because a newer one replaced them."""
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """The present state of one lane to a peer."""

    connected: bool
    queued_bytes: int
    """Passed to the connection and not sent yet."""
    sent: SentCounters
