"""Unique keys of messages, in the layout of RocketMQ's clients.

  bytes  field
  4, 16  address of this machine
      2  process
      4  a random number in place of the hash of Java's class loader: several clients of a process stay apart
      4  milliseconds since the month began, in local time
      2  counter

Source: MessageClientIDSetter of RocketMQ 4.8.0.
"""

from __future__ import annotations

import os
import random
import socket
import time


class UniqueKeys:
    """Makes keys of 32 upper-case hexadecimal digits (56 with an IPv6 address)."""

    def __init__(self, ip: str = "") -> None:
        self._prefix = (_packed(ip) + os.getpid().to_bytes(4, "big")[2:] + random.randbytes(4)).hex().upper()
        self._counter = random.randrange(1 << 16)
        self._begin_ms = self._end_ms = 0

    def next(self) -> str:
        """Returns a new key."""
        now_ms = time.time_ns() // 1_000_000
        if not self._begin_ms <= now_ms < self._end_ms:
            self._begin_ms, self._end_ms = _month(now_ms)
        self._counter = (self._counter + 1) & 0xFFFF
        return f"{self._prefix}{(now_ms - self._begin_ms) & 0xFFFFFFFF:08X}{self._counter:04X}"


def _month(now_ms: int) -> tuple[int, int]:
    """Returns when the present month began, and when the next one begins."""
    now = time.localtime(now_ms / 1000)
    begin = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    years, month = divmod(now.tm_mon, 12)
    end = time.mktime((now.tm_year + years, month + 1, 1, 0, 0, 0, 0, 0, -1))
    return int(begin * 1000), int(end * 1000)


def _packed(ip: str) -> bytes:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, ip)
        except OSError:
            continue
    return int(time.time()).to_bytes(8, "big")[4:]  # as RocketMQ's clients do without an address
