"""What a member may be told: its core's times, its transport's limits, and when an entry counts as safe."""

from __future__ import annotations

from dataclasses import dataclass, field

from tallystick.replication.settings import RaftSettings
from tallystick.replication.transport.settings import TlsSettings, TransportSettings
from tallystick.store.settings import FlushDiskType, SettingsError


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Times in seconds, sizes in bytes. They hold from start to stop."""

    raft: RaftSettings = field(default_factory=RaftSettings)
    transport: TransportSettings = field(default_factory=TransportSettings)
    tls: TlsSettings | None = None
    flush: FlushDiskType = FlushDiskType.SYNC_FLUSH
    """When an entry counts for a majority: when it is synced, or (ASYNC_FLUSH) when it is written. Asynchronously
    flushed, entries that were acknowledged are lost if a majority loses its power at once (D9)."""
    async_flush_interval_seconds: float = 0.5
    """ASYNC_FLUSH: between two syncs."""
    max_uncommitted_bytes: int = 64 << 20
    """Entries of a leader that are staged or written and not committed. Above, proposals are refused until half of it
    is committed (B8). Below what a sync takes in, it costs throughput."""
    mark_interval_seconds: float = 1.0
    """Between two looks at the disk's room, and two notes of how far the log is durable and committed: what a start
    after a crash has to read."""
    min_free_bytes: int = 64 << 20
    """A disk that was full counts as having room again with one segment and so much more free."""
    scrub_first_seconds: float = 60.0
    """So long after its start a member reads its sealed segments again for the first time, and mends what it can."""
    scrub_interval_seconds: float = 86_400.0
    """And so long after each time. Damage that is not found in time may meet damage at another member."""
    scrub_bytes_per_second: int = 32 << 20
    """How fast it reads then."""
    outcome_grace_seconds: float = 3.0
    """After leadership was handed over, proposals under way are given so long to be committed by the successor."""
    abandon_code: int = 14
    """Answer to sends that were taken in and never written, as a code of the protocol: SERVICE_NOT_AVAILABLE, with
    which a client tries another broker. Source: RocketMQ 4.8.0, DefaultMQProducerImpl.sendDefaultImpl."""

    def validate(self) -> None:
        """SettingsError: a value that cannot work; `key` says which."""
        self.raft.validate()
        self.transport.validate()
        for key in (
            "async_flush_interval_seconds",
            "max_uncommitted_bytes",
            "mark_interval_seconds",
            "outcome_grace_seconds",
            "scrub_first_seconds",
            "scrub_interval_seconds",
            "scrub_bytes_per_second",
        ):
            if getattr(self, key) <= 0:
                raise SettingsError(key, "must be above 0")
        if self.raft.max_append_bytes > self.transport.payload_max_bytes:
            raise SettingsError("raft.max_append_bytes", "must fit into transport.payload_max_bytes")
