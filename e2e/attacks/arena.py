"""What every attack gets: a folder, a scale, a place for problems and figures.

An attack is a coroutine `run(arena)`. It starts real processes, disturbs them, and checks what a client sees. A broken
guarantee is a *problem*: the run fails and keeps its folder. A measurement is a *figure*; it does not affect the
result.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lab.ledger import Problems
from lab.listing import check_verify
from lab.places import HOST
from lab.tally import Tally


class SkippedError(Exception):
    """This attack cannot run on this machine; the text says what is missing."""


class Arena:
    """The environment of one attack. `scale`: 1.0 is the full size; smaller numbers are for trying the attack
    itself."""

    def __init__(self, name: str, work: Path, scale: float) -> None:
        self.name, self.work, self.scale = name, work, scale
        self.problems = Problems()
        self.figures: dict[str, Any] = {}
        self._began = time.monotonic()

    def say(self, what: str) -> None:
        """A line of progress."""
        print(f"{time.monotonic() - self._began:7.1f} s  {self.name}: {what}", file=sys.stderr, flush=True)

    def figure(self, name: str, value: Any) -> None:
        """Notes a measurement, with its unit in the name."""
        self.figures[name] = value
        self.say(f"{name}: {value}")

    def check(self, holds: bool, otherwise: str) -> bool:
        """Notes a problem unless the condition holds."""
        if not holds:
            self.problems.add(f"{self.name}: {otherwise}")
            self.say(f"PROBLEM: {otherwise}")
        return holds

    def check_store(self, store: Path, what: str) -> None:
        """Notes a problem if `tally store verify` finds damage in the store of a stopped broker."""
        found = Problems()
        check_verify(store, found)
        self.check(not found.count, f"{what}: {found.lines()}")

    def scaled(self, count: int, least: int = 1) -> int:
        """`count` at this scale."""
        return max(least, int(count * self.scale))


def resident_mib(pid: int) -> float:
    """Memory of a process in RAM (VmRSS), in MiB. 0: the process has ended."""
    return _status_mib(pid, "VmRSS:")


def private_mib(pid: int) -> float:
    """Anonymous memory of a process (RssAnon), in MiB: mapped page cache does not count."""
    return _status_mib(pid, "RssAnon:")


def _status_mib(pid: int, field: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith(field)), 0.0)


def ask(port: int, path: str, timeout_s: float = 5.0) -> tuple[int, str]:
    """Status and text of an HTTP answer; status 0: there was no answer, and the text says why."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=timeout_s) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError as error:
        return 0, str(error)


def metric(tally: Tally, name: str) -> float:
    """The sum of a metric's series. 0 if there is none."""
    _, text = ask(tally.http_port, "/metrics", 30)
    lines = (line for line in text.splitlines() if line.startswith((name + " ", name + "{")))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def node(tally: Tally) -> dict[str, Any]:
    """Returns the state of the process (`GET /node`); empty: it did not answer."""
    status, text = ask(tally.http_port, "/node")
    found: dict[str, Any] = json.loads(text) if status == 200 else {}
    return found


def disk_bytes(folder: Path) -> int:
    """Blocks that the files in a folder take."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


async def until(holds: Callable[[], bool | Awaitable[bool]], timeout_s: float, look_s: float = 0.05) -> float | None:
    """Seconds until the condition holds; None: it did not hold in time."""
    begin_s = time.monotonic()
    while time.monotonic() - begin_s < timeout_s:
        found = holds()
        if found if isinstance(found, bool) else await found:
            return time.monotonic() - begin_s
        await asyncio.sleep(look_s)
    return None
