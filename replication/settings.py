"""Settings of the consensus. All members of a group should have equal values; `lease_reads` must be equal."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.store.settings import SettingsError


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Times are in seconds, sizes in bytes. The values do not change while a member runs."""

    heartbeat_interval_seconds: float = 0.1
    """Interval between two rounds of heartbeats of a leader. If it is too long, one lost packet causes an election."""
    election_timeout_seconds: float = 1.0
    """T. It determines four times. A follower stands for election after a silence of the leader in [T, 2T), with a new
    random value each time (L1). Voters that hear a leader ignore vote requests for T (L5). A leader without a majority
    steps down after T (L4). A transfer that takes longer than T ends (T4). T should be at least ten times the sum of a
    round trip and a slow fsync; otherwise a busy leader loses its leadership.
    """
    max_append_bytes: int = 1 << 20
    """Size on disk of the entries of one append request (a larger entry is sent alone)."""
    max_inflight_bytes: int = 32 << 20
    """Size of the entries that were sent to one member and are not answered yet. The rest waits in the log (L7)."""
    append_timeout_seconds: float = 1.0
    """If no answer arrives within this time, the leader considers the request lost and probes. A value below the time
    of a slow fsync makes the leader send everything twice."""
    install_timeout_seconds: float = 60.0
    """If no answer arrives within this time, the leader sends the snapshot again to a member behind its log's start
    (L11)."""
    promote_within_bytes: int = 4 << 20
    """A learner can become a voter when it lacks at most this much (M5)."""
    transfer_within_bytes: int = 32 << 20
    """The leader hands over only to a member that lacks at most this much; otherwise it refuses the transfer (T2)."""
    lease_reads: bool = False
    """The leader answers reads without a round of heartbeats while a majority has promised not to elect another leader
    (R3). This relies on clocks whose rates differ by at most `clock_drift`."""
    clock_drift: float = 0.1
    """The fraction by which one member's clock can run faster than another's. Used by `lease_reads`."""
    preferred_leader: int | None = None
    """The member that gets leadership back automatically (T6). None: no member is preferred."""
    preferred_after_seconds: float = 30.0
    """How long the preferred leader must have been healthy and close to the log's end before the transfer."""
    preferred_retry_seconds: float = 300.0
    """Time between a failed attempt and the next one."""

    def validate(self) -> None:
        """Raises SettingsError for a value that cannot work; its `key` names the setting."""
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
