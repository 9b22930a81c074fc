"""Whether this process may lock memory: RLIMIT_MEMLOCK, and the capability that overrides it."""

from __future__ import annotations

import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CAP_IPC_LOCK = 14


def forbidden(size_bytes: int, status: Path = _STATUS) -> str:
    """Returns why the process may not lock so many bytes; empty: it may."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY or limit >= size_bytes or _has_capability(status):
        return ""
    return (
        f"the process may lock {limit} bytes (RLIMIT_MEMLOCK), and the buffers take up to {size_bytes}. Raise the "
        "limit (ulimit -l, LimitMEMLOCK), or lower transientStorePoolSize"
    )


def _has_capability(status: Path) -> bool:
    for line in status.read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    return False
