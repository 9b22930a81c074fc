"""The settings of the transport. The names contain the units: milliseconds and bytes. `validate` checks them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tallystick.replication.transport.frames import MESSAGE_MAX_BYTES
from tallystick.store.settings import SettingsError


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Certificates of this member, as PEM files. Both sides of a connection present one and verify the other's.

    The files can change at any time, also through a replaced symbolic link: later handshakes use the new files, and
    open connections continue. If new files cannot be loaded, the previous ones stay in use.
    """

    ca: Path
    """The authorities that must have issued a peer's certificate."""
    certificate: Path
    """This member's certificate, with the chain to its authority."""
    key: Path
    """The private key of the certificate, not encrypted."""
    peer_name: str | None = None
    """The name that a peer's certificate must contain, with `{cluster}`, `{group}` and `{member}` replaced, such as
    `n{member}.{group}.{cluster}`. None: each certificate of the authorities is valid for each member."""
    calls_plain: bool = False
    """Connect to other members without TLS. For a group that begins to use TLS while it runs: not all accept it yet."""
    accepts_plain: bool = False
    """Accept members without TLS too. For the same purpose: not all use it yet."""
    check_interval_ms: int = 5_000
    """How often the files are checked. They are also checked before each handshake; this check detects early that
    new files are invalid, while the old ones still work."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Limits and times of one member's connections. Members can differ, except in `payload_max_bytes`."""

    payload_max_bytes: int = 16 << 20
    """Largest payload of a frame. It must be the same at every member, and at least the size of the largest entry of
    the log: a member closes each connection that announces a larger payload."""
    control_queue_bytes: int = 1 << 20
    """Limit of unsent bytes for a peer on its control lane; above it, messages are refused. A vote or heartbeat behind
    so many bytes would be useless."""
    bulk_queue_bytes: int = 32 << 20
    """The same for its bulk lane; one frame can exceed it. If it is below the core's `max_inflight_bytes`, appends are
    refused that the core considers sent, and the core waits for answers that never come."""
    connect_timeout_ms: int = 2_000
    """For the look-up of the name, the connection and TLS together."""
    handshake_timeout_ms: int = 2_000
    """For the peer's first frame. Until then a connection has no name and no rights."""
    reconnect_first_ms: int = 50
    """Wait before the first new attempt; it doubles with each failure."""
    reconnect_max_ms: int = 1_000
    """Longest wait between attempts, and therefore until peers detect that a member has returned."""
    reconnect_nowhere_ms: int = 5_000
    """The same while the peer's name has no address: the member may not exist yet, and each attempt costs the name
    service a look-up."""
    silence_timeout_ms: int = 3_000
    """A connection ends if its bytes are not acknowledged for so long. A broken network has no other sign, and TCP
    alone would resend at doubling intervals, so that it would not recover until some time after the network did."""
    connections_max: int = 64
    """Limit of connections from peers, including those without a name; above it, new ones are closed at once. A group
    of five needs eight."""
    ship_bytes_per_second: int = 64 << 20
    """Limit for all members together that fetch whole segments: appends need the disk and the network too."""
    ship_chunk_bytes: int = 512 << 10
    """Bytes of a file per request."""

    def validate(self) -> None:
        """Raises SettingsError for a value that cannot work."""
        for key in self.__dataclass_fields__:
            if getattr(self, key) <= 0:
                raise SettingsError(key, f"must be positive, not {getattr(self, key)}")
        if self.silence_timeout_ms > 3_600_000:
            raise SettingsError("silence_timeout_ms", "must be at most an hour")
        if self.payload_max_bytes > 1 << 30:
            raise SettingsError("payload_max_bytes", "must be at most 1 GiB")
        if self.ship_chunk_bytes > self.payload_max_bytes:
            raise SettingsError("ship_chunk_bytes", "must be at most payload_max_bytes")
        if self.control_queue_bytes < MESSAGE_MAX_BYTES:
            raise SettingsError("control_queue_bytes", f"must be at least {MESSAGE_MAX_BYTES}, the size of a message")
        if self.reconnect_max_ms < self.reconnect_first_ms:
            raise SettingsError("reconnect_max_ms", "must be at least reconnect_first_ms")
        if self.reconnect_nowhere_ms < self.reconnect_first_ms:
            raise SettingsError("reconnect_nowhere_ms", "must be at least reconnect_first_ms")
