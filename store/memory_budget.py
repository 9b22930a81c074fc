"""One limit for the memory that all connections of a process hold: unfinished frames, unsent bytes, request bodies.

Each connection has its own limits, but twenty thousand connections below their limits can need more memory than the
machine has. Therefore all connections also *charge* what they hold to one budget. While the sum exceeds the limit, the
budget closes the connections that hold most.

    charge(holder, bytes) ── sum within the limit ──▶ nothing happens
                          └─ sum above it ──────────▶ cut the oldest holder of the largest size class, until it fits

A charge is O(1): holders are sorted into size classes by powers of two; within a class they keep the order in which
they entered it. So the largest holder is found to within a factor of two. Holders with `keep` (links between members of
a group) count, but are cut only when no other holder is left.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Protocol

from tallystick.store.limited_log import LimitedLog

_logger = logging.getLogger("tallystick.store.memory")
_CGROUPS = Path("/sys/fs/cgroup")
_V2, _V1 = "memory.max", "memory.limit_in_bytes"
MIN_LIMIT = 32 << 20
"""Two frames of the largest size: with less, no client could send one."""


class Holder(Protocol):
    """A connection that holds memory."""

    def cut(self) -> None:
        """Releases all of it at once: closes the connection."""


class MemoryBudget:
    """`limit`: bytes that all holders may hold together."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = default_limit() if limit is None else limit
        self.used = 0
        """Bytes that are charged now."""
        self.cut_count = 0
        """Holders that were cut."""
        self._held: dict[Holder, int] = {}
        self._classes: list[dict[Holder, None]] = [{} for _ in range(64)]  # by bit length of the bytes
        self._kept: dict[Holder, int] = {}
        self._log = LimitedLog(_logger, time.monotonic)

    def charge(self, holder: Holder, held: int, *, keep: bool = False) -> None:
        """Notes that `holder` holds `held` bytes now. Can cut holders, including this one.

        `keep`: cut it only when no other holder is left.
        """
        table = self._kept if keep else self._held
        before = table.get(holder, 0)
        if held == before:
            return
        self.used += held - before
        if held:
            table[holder] = held
        else:
            del table[holder]
        if not keep and held.bit_length() != before.bit_length():
            self._classes[before.bit_length()].pop(holder, None)
            if held:
                self._classes[held.bit_length()][holder] = None
        if self.used > self.limit and held > before:
            self._cut_until_it_fits()

    def _cut_until_it_fits(self) -> None:
        while self.used > self.limit:
            holder = self._largest()
            if holder is None:
                return
            held = self._held.get(holder, 0) or self._kept.get(holder, 0)
            self.cut_count += 1
            self._log.warning(
                "cut",
                "closed a connection that holds %d bytes: all connections hold %d, the limit is %d (%s)",
                *(held, self.used, self.limit, holder),
            )
            self._forget(holder)
            holder.cut()
            self._forget(holder)  # it may have charged again while it was cut

    def _largest(self) -> Holder | None:
        for members in reversed(self._classes):
            if members:
                return next(iter(members))
        return max(self._kept, key=self._kept.__getitem__, default=None)

    def _forget(self, holder: Holder) -> None:
        held = self._held.pop(holder, 0)
        self._classes[held.bit_length()].pop(holder, None)
        self.used -= held + self._kept.pop(holder, 0)


def default_limit(cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """A quarter of the memory that this process may use: of the smallest limit of its cgroups, or of the whole
    machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(MIN_LIMIT, min([memory, *_cgroup_limits(cgroups, own)]) // 4)


def _cgroup_limits(cgroups: Path, own: Path) -> list[int]:
    """The limits of this process's cgroup and its parents, versions 2 and 1. In a container its cgroup is mounted at
    the top."""
    try:
        rows = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, path in (row for row in rows if len(row) == 3):
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (cgroups / "memory", _V1) if controllers else (cgroups, _V2)
        folder = root / path.strip("/")
        for each in (folder, *folder.parents):
            if each == root.parent:
                break
            try:
                found.append(int((each / name).read_text()))
            except (OSError, ValueError):
                continue  # no such file, or "max"
    return [limit for limit in found if limit > 0]


PROCESS = MemoryBudget()
"""The budget of this process. A node's settings change its limit at the start."""
