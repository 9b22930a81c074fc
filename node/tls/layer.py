"""TLS of one accepted connection, between the transport of its socket and the protocol that it serves.

    socket's transport ──data_received──▶ TlsLayer ──data_received──▶ protocol       whole chunks of plain bytes
                       ◀─────write─────            ◀─────write──────                 gathered for a turn of the loop

It is the transport of that protocol. `ssl.SSLObject` does the protocol of TLS in memory (OpenSSL). Everything that a
peer can make it hold has a limit: ciphertext is at most one chunk of the socket's transport and one record, a handshake
has at most `_HANDSHAKE_MAX_BYTES`, and answers of the TLS protocol itself, which a peer does not read, have at most
`_OWN_MAX_BYTES`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any, Protocol, cast

from tallystick.node.tls.handshakes import Handshakes
from tallystick.store.limited_log import LimitedLog

_HANDSHAKE_MAX_BYTES = 128 << 10
"""A chain of certificates has a few kilobytes."""
_OWN_MAX_BYTES = 256 << 10
_CHUNK_BYTES = 256 << 10
_RECORD_BYTES = 16 << 10
_RECORD_HEAD = 5  # type, version, length
_RECORD_TYPES = range(20, 24)
_RECORD_MAX_BYTES = _RECORD_BYTES + 2048
"""Of the encrypted record."""
_GATHERED_BYTES = 128 << 10
"""Plain bytes that are encrypted before the turn ends, so that a large answer is not held twice."""

_PLAIN = memoryview(bytearray(_CHUNK_BYTES + _RECORD_BYTES))
"""Where records are decrypted, for all connections: its content is copied before another one is decrypted."""


class Encryptable(Protocol):
    """A protocol whose connection can turn out to use TLS."""

    def encrypted(self, transport: asyncio.Transport) -> None:
        """Called before the first `data_received`: `transport` takes the place of the one of `connection_made`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, error: Exception | None, /) -> None: ...


class TlsLayer(asyncio.Transport, asyncio.Protocol):
    """See above. The handshake begins with the first `data_received`."""

    def __init__(
        self,
        raw: asyncio.Transport,
        inner: Encryptable,
        context: ssl.SSLContext,
        handshakes: Handshakes,
        log: LimitedLog,
    ) -> None:
        super().__init__()
        peer = raw.get_extra_info("peername")
        self.address = str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) else "unknown"
        self._id = f"{self.address}:{peer[1]}" if isinstance(peer, tuple) else self.address
        self._raw = raw
        self._inner = inner
        self._context = context
        self._handshakes = handshakes
        self._log = log
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl: ssl.SSLObject | None = None
        """From the first turn of the handshake to the end of the connection: most of the memory of TLS."""
        self._is_open = False
        self._is_closed = False
        self._is_waiting = False  # for its turn in the handshake
        self._is_stepping = False  # in the thread of the handshakes, to which `_incoming` and `_ssl` belong then
        self._arrived = bytearray()
        """What came for the next step of the handshake."""
        self._step_error: ssl.SSLError | None = None
        self._handshake_bytes = 0
        self._read_paused = False
        self._own_bytes = 0  # that OpenSSL wrote for itself since the peer had read everything
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._flush_call: asyncio.Handle | None = None
        handshakes.begin(self)

    # --- the handshake ---

    def before_step(self) -> None:
        """See `Handshake`. What arrives from now on is for the next step."""
        self._is_stepping = True
        size = _whole_records(self._arrived)
        self._incoming.write(memoryview(self._arrived)[:size].tobytes())
        del self._arrived[:size]
        self._handshake_bytes += size
        self._step_error = None

    def step(self) -> None:
        """See `Handshake`."""
        try:
            if self._ssl is None:
                self._ssl = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._ssl.do_handshake()
        except ssl.SSLError as error:
            self._step_error = error

    def stepped(self) -> None:
        """See `Handshake`."""
        self._is_waiting = self._is_stepping = False
        error = self._step_error
        if self._is_closed:
            self._ssl = None
        elif isinstance(error, ssl.SSLWantReadError):
            self._send_own()
            if self._handshake_bytes > _HANDSHAKE_MAX_BYTES:
                self.fail(f"a handshake of more than {_HANDSHAKE_MAX_BYTES} bytes")
                return
            self._raw.resume_reading()
            self._wait_for_records()
        elif error is not None:
            self._send_own()
            self.fail(_words(error))
        else:
            self._is_open = True
            self._handshakes.end(self, completed=True)
            self._incoming.write(bytes(self._arrived))
            self._arrived.clear()
            self._send_own()
            self._flush()
            if not self._read_paused:
                self._raw.resume_reading()
            if self._incoming.pending:
                self._read()

    def _wait_for_records(self) -> None:
        """Waits for a turn if there is something to do in it: a byte at a time is not worth one."""
        if _whole_records(self._arrived):
            self._is_waiting = True
            self._handshakes.ready(self)

    def fail(self, reason: str) -> None:
        """Ends the connection because of its peer. Before, alerts for the peer are sent."""
        if self._is_closed:
            return
        kind = "tls" if self._is_open else "tls handshake"
        self._log.warning(kind, "TLS with %s failed: %s", self._id, reason)
        self._is_closed = True
        self._handshakes.end(self, completed=False)
        self._raw.close()

    # --- the protocol of the socket's transport ---

    def data_received(self, data: bytes) -> None:
        """Called with received ciphertext."""
        if self._is_closed:
            return
        if self._is_open:
            self._incoming.write(data)
            self._read()
            return
        self._arrived += data
        if self._is_waiting:
            self._raw.pause_reading()  # the rest waits in the socket
        else:
            self._wait_for_records()

    def eof_received(self) -> None:
        """Called when the peer sends no more. TLS has no half-closed connections."""
        if self._is_open:
            self.close()

    def pause_writing(self) -> None:
        """Called when the peer reads too slowly."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Called when the peer has read."""
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Called when the socket is closed."""
        self._is_closed = True
        self._handshakes.end(self, completed=False)
        self._gathered.clear()
        self._arrived.clear()
        if not self._is_stepping:
            self._ssl = None
        self._inner.connection_lost(error)

    # --- the transport of the inner protocol ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends bytes, with all others of this turn of the event loop."""
        if self._is_closed:
            return
        self._gathered.append(data if isinstance(data, bytes) else bytes(data))
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= _GATHERED_BYTES:
            self._flush()
        elif self._flush_call is None:
            self._flush_call = asyncio.get_running_loop().call_soon(self._flush_soon)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Sends several."""
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        """Sends what is written and the end of the TLS connection, then closes the socket."""
        if self._is_closed:
            return
        self._flush()
        if self._is_open and not self._is_closed and self._ssl is not None:
            try:
                self._ssl.unwrap()
            except ssl.SSLError:
                pass  # the peer's own close_notify is not awaited
            self._send_own()
        self._is_closed = True
        self._handshakes.end(self, completed=False)
        self._raw.close()

    def abort(self) -> None:
        """Closes the socket at once."""
        self._is_closed = True
        self._handshakes.end(self, completed=False)
        self._raw.abort()

    def is_closing(self) -> bool:
        """Whether nothing can be sent."""
        return self._is_closed or self._raw.is_closing()

    def pause_reading(self) -> None:
        """No `data_received` of the inner protocol from now on."""
        self._read_paused = True
        if not self.is_closing():
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """The opposite."""
        self._read_paused = False
        if not self.is_closing():
            self._raw.resume_reading()
            if self._is_open and self._incoming.pending:
                asyncio.get_running_loop().call_soon(self._read)

    def is_reading(self) -> bool:
        """Whether the inner protocol gets data."""
        return not self._read_paused and self._raw.is_reading()

    def get_write_buffer_size(self) -> int:
        """Bytes that are not sent."""
        return self._gathered_bytes + self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.WriteTransport`."""
        self._raw.set_write_buffer_limits(high, low)

    def can_write_eof(self) -> bool:
        """TLS has no half-closed connections."""
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`; also `peercert`, `ssl_object` and `sslcontext`."""
        if name == "peercert":
            return None if self._ssl is None else self._ssl.getpeercert()
        if name == "ssl_object":
            return self._ssl
        if name == "sslcontext":
            return self._context
        return self._raw.get_extra_info(name, default)

    # --- inside ---

    def _read(self) -> None:
        """Decrypts what arrived, and gives it to the inner protocol in chunks."""
        if self._ssl is None:
            return
        incoming, read = self._incoming, self._ssl.read
        while not (self._read_paused or self._is_closed):
            filled = 0
            is_ended, failed = False, ""
            try:
                while filled < _CHUNK_BYTES:
                    count = read(_RECORD_BYTES, _PLAIN[filled:])
                    if not count:
                        is_ended = True  # by close_notify
                        break
                    filled += cast(int, count)
                    if not incoming.pending:
                        break
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                failed = _words(error)
            data = bytes(_PLAIN[:filled])
            self._send_own()  # answers to key updates, alerts
            if data:
                self._inner.data_received(data)
            if failed:
                self.fail(failed)
            elif is_ended:
                self.close()
            elif filled < _CHUNK_BYTES:
                return

    def _send_own(self) -> None:
        """Sends what OpenSSL wrote for itself."""
        if not self._outgoing.pending:
            return
        if not self._raw.get_write_buffer_size():
            self._own_bytes = 0
        self._own_bytes += self._outgoing.pending
        self._send()
        if self._own_bytes > _OWN_MAX_BYTES:
            self._log.warning("tls", "TLS with %s failed: it does not read the answers of the protocol", self._id)
            self.abort()

    def _send(self) -> None:
        try:
            self._raw.write(self._outgoing.read())
        except RuntimeError:  # uvloop's transport raises after its socket failed, before it calls connection_lost
            self._is_closed = True

    def _flush_soon(self) -> None:
        self._flush_call = None
        self._flush()

    def _flush(self) -> None:
        """Encrypts and sends what is gathered."""
        if not (self._is_open and self._gathered) or self._is_closed or self._ssl is None:
            return
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        rest = memoryview(gathered[0] if len(gathered) == 1 else b"".join(gathered))
        try:
            while rest:
                rest = rest[self._ssl.write(rest) :]
        except ssl.SSLError as error:
            self.fail(_words(error))
            return
        self._send()


def _whole_records(data: bytearray) -> int:
    """Size of the complete records at the begin of `data`; all of it, if OpenSSL will refuse the next one."""
    at = 0
    while len(data) - at >= _RECORD_HEAD:
        size = int.from_bytes(data[at + 3 : at + 5], "big")
        if data[at] not in _RECORD_TYPES or size > _RECORD_MAX_BYTES:
            return len(data)
        if len(data) - at < _RECORD_HEAD + size:
            break
        at += _RECORD_HEAD + size
    return at


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
