"""The settings of a member: the times of its core, the limits of its transport, and when an entry counts as safe."""

from __future__ import annotations

from dataclasses import dataclass, field

from tallystick.replication.settings import RaftSettings
from tallystick.replication.transport.settings import TlsSettings, TransportSettings
from tallystick.store.settings import FlushDiskType, SettingsError


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Times are in seconds, sizes in bytes. The values do not change while a member runs."""

    raft: RaftSettings = field(default_factory=RaftSettings)
    transport: TransportSettings = field(default_factory=TransportSettings)
    tls: TlsSettings | None = None
    flush: FlushDiskType = FlushDiskType.SYNC_FLUSH
    """When an entry counts for a majority: when it is synced, or (ASYNC_FLUSH) when it is written. With ASYNC_FLUSH,
    acknowledged entries are lost if a majority loses power at once (D9)."""
    async_flush_interval_seconds: float = 0.5
    """ASYNC_FLUSH: time between two syncs."""
    max_uncommitted_bytes: int = 64 << 20
    """Limit for a leader's entries that are staged or written but not committed. Above it, proposals are refused
    until half of it is committed (B8). A value below the amount that one sync covers reduces throughput."""
    mark_interval_seconds: float = 1.0
    """Time between two checks of the disk's space. Also the time between two marks of how far the log is durable and
    committed: a start after a crash reads the log behind the mark."""
    min_free_bytes: int = 64 << 20
    """A disk that was full counts as usable again with one free segment and this much more."""
    scrub_first_seconds: float = 60.0
    """Time from the start to the first scrub: the member reads its sealed segments again and repairs damage."""
    scrub_interval_seconds: float = 86_400.0
    """Time between two scrubs. Damage that stays undetected can coincide with damage at another member."""
    scrub_bytes_per_second: int = 32 << 20
    """Read rate of a scrub."""
    outcome_grace_seconds: float = 3.0
    """After a transfer, the successor has this time to commit the proposals in progress."""
    abandon_code: int = 14
    """The protocol's code in answers to sends that were accepted and never written: SERVICE_NOT_AVAILABLE, which makes
    a client try another broker. Source: RocketMQ 4.8.0, DefaultMQProducerImpl.sendDefaultImpl."""

    def validate(self) -> None:
        """Raises SettingsError for a value that cannot work; its `key` names the setting."""
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
