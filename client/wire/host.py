"""Hosts in records and message ids."""

from __future__ import annotations

import socket
from typing import NamedTuple


class Host(NamedTuple):
    """An address in a record: IPv4 or IPv6 text, and a port."""

    ip: str
    port: int

    def encode(self) -> bytes:
        """8 bytes (IPv4) or 20 bytes (IPv6): the address, then the port as a 4-byte integer, big-endian."""
        family = socket.AF_INET6 if ":" in self.ip else socket.AF_INET
        return socket.inet_pton(family, self.ip) + self.port.to_bytes(4, "big")

    @classmethod
    def decode(cls, data: bytes) -> Host:
        """The inverse of `encode`. Raises ValueError unless `data` has 8 or 20 bytes."""
        if len(data) not in (8, 20):
            raise ValueError(f"a host has 8 or 20 bytes, not {len(data)}")
        family = socket.AF_INET if len(data) == 8 else socket.AF_INET6
        return cls(socket.inet_ntop(family, data[:-4]), int.from_bytes(data[-4:], "big"))

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"
