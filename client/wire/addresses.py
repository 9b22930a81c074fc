"""Addresses of servers as text, and why one cannot be reached. Without I/O."""

from __future__ import annotations

import os
import socket
import ssl

_WITHOUT_TEXT = "the server closed the connection"
"""What asyncio's errors without a number mean: during a handshake of TLS, that the server may have no TLS."""
NOT_AN_ADDRESS = "is not an address of the form host:port"


def host_and_port(address: str) -> tuple[str, int] | None:
    """Returns host and port of "host:port" or "[::1]:port"; None: the text is not an address."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return host.strip("[]"), int(port)


def reason_of(error: OSError) -> str:
    """Returns the system's text of an error of a connection: asyncio's repeats the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error) or _WITHOUT_TEXT
    return os.strerror(error.errno)
