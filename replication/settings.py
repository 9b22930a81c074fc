"""What a group's consensus may be told. All members of a group should have the same, `lease_reads` must be the same."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.store.settings import SettingsError


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Times in seconds, sizes in bytes. They hold from start to stop."""

    heartbeat_interval_seconds: float = 0.1
    """Between two rounds of heartbeats of a leader. Too long, and one lost packet makes an election."""
    election_timeout_seconds: float = 1.0
    """T. Silence of the leader after which a member stands for election, drawn from [T, 2T) anew each time (L1); how
    long voters stick to a leader (L5); how long a leader goes on without a majority (L4); the time a transfer has (T4).
    At least ten times a round trip and a slow fsync, or members are elected away for being busy."""
    max_append_bytes: int = 1 << 20
    """Entries of one append request, as they lie on disk (one larger entry goes alone)."""
    max_inflight_bytes: int = 32 << 20
    """Entries sent to one member and not yet answered. What is beyond waits in the log (L7)."""
    append_timeout_seconds: float = 1.0
    """Without an answer for so long, what was sent is held for lost: the leader probes. Below the time of a slow fsync
    this sends everything twice."""
    install_timeout_seconds: float = 60.0
    """Without an answer for so long, a base is sent again to a member behind the log's start (L11)."""
    promote_within_bytes: int = 4 << 20
    """A learner may become a voter when it lacks no more than this (M5)."""
    transfer_within_bytes: int = 32 << 20
    """Leadership is handed only to a member that lacks no more than this; more is refused at once (T2)."""
    lease_reads: bool = False
    """Answer reads of the leader without asking, as long as a majority has promised not to elect another (R3).
    It trusts clocks to run equally fast within `clock_drift`."""
    clock_drift: float = 0.1
    """By what fraction one member's clock may run faster than another's; for `lease_reads`."""
    preferred_leader: int | None = None
    """Member to which leadership goes back by itself (T6). None: whoever leads, leads."""
    preferred_after_seconds: float = 30.0
    """The preferred leader must have been healthy and close behind for so long."""
    preferred_retry_seconds: float = 300.0
    """After an attempt that failed, none for so long."""

    def validate(self) -> None:
        """SettingsError: a value that cannot work; `key` says which."""
        for key in (
            "heartbeat_interval_seconds",
            "election_timeout_seconds",
            "append_timeout_seconds",
            "install_timeout_seconds",
            "max_append_bytes",
            "max_inflight_bytes",
            "promote_within_bytes",
            "transfer_within_bytes",
        ):
            if getattr(self, key) <= 0:
                raise SettingsError(key, "must be above 0")
        if self.election_timeout_seconds < 2 * self.heartbeat_interval_seconds:
            raise SettingsError("election_timeout_seconds", "must be at least two heartbeat intervals")
        if self.max_inflight_bytes < self.max_append_bytes:
            raise SettingsError("max_inflight_bytes", "must be at least max_append_bytes")
        if not 0 <= self.clock_drift < 1:
            raise SettingsError("clock_drift", "must be in [0, 1)")
