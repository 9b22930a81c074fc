"""What a transport did, for metrics: plain numbers that only grow, for each peer, lane and direction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SentCounters:
    """One lane to one peer. The lane keeps them while connections come and go."""

    frames: int = 0
    bytes: int = 0
    """Handed to the connection, headers included; what a lost connection had not sent yet is in it."""
    dropped_unconnected: int = 0
    """Messages refused because there was no connection."""
    dropped_full: int = 0
    """Messages refused because too much was unsent (`control_queue_bytes`, `bulk_queue_bytes`)."""
    connects: int = 0
    """Handshakes that succeeded; all but the first are reconnects."""
    failures: int = 0
    """Attempts that failed, and connections that were lost."""
    last_error: str = ""
    """Of the last failure; it stays when the lane is connected again."""


@dataclass(slots=True)
class ReceivedCounters:
    """One lane from one peer."""

    frames: int = 0
    bytes: int = 0
    connects: int = 0
    failures: int = 0
    """Connections that we ended, because of what came or because a newer one took their place."""
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One lane to a peer, as it is now."""

    connected: bool
    queued_bytes: int
    """Handed to the connection and not sent yet."""
    sent: SentCounters
