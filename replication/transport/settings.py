"""What the transport may be told. Times are milliseconds and sizes bytes, as the names say; `validate` checks them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tallystick.replication.transport.frames import MESSAGE_MAX_BYTES
from tallystick.store.settings import SettingsError


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Certificates of this member, as PEM files. Both sides of a connection show one and verify the other's.

    The files may change at any time, also by a swapped symbolic link: handshakes that begin afterwards use the new
    ones, connections that are open go on. Files that do not load leave the ones before in use.
    """

    ca: Path
    """Authorities that a peer's certificate must come from."""
    certificate: Path
    """Our certificate and what leads from it to the authority."""
    key: Path
    """Its private key, not encrypted."""
    peer_name: str | None = None
    """The name that a peer's certificate must carry, with `{cluster}`, `{group}` and `{member}` filled in, such as
    `n{member}.{group}.{cluster}`. None: every certificate of the authorities may speak for every member."""
    check_interval_ms: int = 5_000
    """How often the files are looked at. They are looked at before each handshake too: this one finds out early that
    new files are broken, while the old ones still serve."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Limits and times of one member's connections; each member chooses its own, payload_max_bytes excepted."""

    payload_max_bytes: int = 16 << 20
    """Largest payload of a frame. The same at every member, and not below the largest entry of the log: a member that
    is told less closes the connection when more is announced, each time again."""
    control_queue_bytes: int = 1 << 20
    """Unsent bytes for a peer on its control lane, above which messages are refused. A vote or heartbeat that waits
    behind so much is of no use any more."""
    bulk_queue_bytes: int = 32 << 20
    """The same on its bulk lane; one frame may go beyond it. Below the core's `max_inflight_bytes` appends are refused
    that the core holds for sent, and it waits for their answers in vain."""
    connect_timeout_ms: int = 2_000
    """For name, connection and TLS together."""
    handshake_timeout_ms: int = 2_000
    """For the peer's first frame. Until then a connection has neither name nor rights."""
    reconnect_first_ms: int = 50
    """Wait before the first new attempt; it doubles with each one that fails."""
    reconnect_max_ms: int = 1_000
    """Longest wait between attempts; so long may a member that came back go unnoticed by its peers."""
    reconnect_nowhere_ms: int = 5_000
    """The same while the peer's name has no address: it may be of a member that is yet to come, and each attempt costs
    others a look-up."""
    silence_timeout_ms: int = 3_000
    """Bytes that are not acknowledged for so long end the connection. A cut cable shows by nothing else; and TCP on
    its own sends anew at doubling intervals, so that a long cut would last even longer than it is."""
    connections_max: int = 64
    """Connections from peers, those without a name included; above, new ones are closed at once. A group of five
    needs eight."""
    ship_bytes_per_second: int = 64 << 20
    """What members that fetch whole segments take from us, all together: appends need the disk and the network too."""
    ship_chunk_bytes: int = 512 << 10
    """Bytes of a file asked for at a time."""

    def validate(self) -> None:
        """SettingsError: a value that cannot work."""
        for key in self.__dataclass_fields__:
            if getattr(self, key) <= 0:
                raise SettingsError(key, f"must be positive, not {getattr(self, key)}")
        if self.silence_timeout_ms > 3_600_000:
            raise SettingsError("silence_timeout_ms", "an hour is the longest")
        if self.payload_max_bytes > 1 << 30:
            raise SettingsError("payload_max_bytes", "a frame holds 1 GiB at most")
        if self.ship_chunk_bytes > self.payload_max_bytes:
            raise SettingsError("ship_chunk_bytes", "a chunk must fit into payload_max_bytes")
        if self.control_queue_bytes < MESSAGE_MAX_BYTES:
            raise SettingsError("control_queue_bytes", f"one message may take {MESSAGE_MAX_BYTES} bytes")
        if self.reconnect_max_ms < self.reconnect_first_ms:
            raise SettingsError("reconnect_max_ms", "is below reconnect_first_ms")
        if self.reconnect_nowhere_ms < self.reconnect_first_ms:
            raise SettingsError("reconnect_nowhere_ms", "is below reconnect_first_ms")
