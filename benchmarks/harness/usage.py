"""What processes and the machine have used so far, from /proc: CPU seconds, anonymous memory, and foreign load.

Foreign CPU of an interval = user, nice, system and stolen time of all processors (/proc/stat)
                           - this process, its children and the broker under test
                           - the kernel's own threads (write-back of the broker's data is part of the broker's load).
A machine that others use makes a row noisy, and only a number beside the row tells the reader.
Source: proc(5). Times there are in ticks of 1/SC_CLK_TCK seconds: good to 10 ms, so intervals of seconds.
"""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_KTHREADD = 2  # the parent of every kernel thread
_PROC = Path("/proc")


class ProcessStat(NamedTuple):
    """One line of /proc/PID/stat: parent, CPU seconds of the process and of the children it has waited for."""

    pid: int
    parent: int
    own_cpu_s: float
    children_cpu_s: float
    started_ticks: int

    @property
    def cpu_s(self) -> float:
        """CPU seconds, waited-for children included."""
        return self.own_cpu_s + self.children_cpu_s


def parse_stat(line: str) -> ProcessStat:
    """Reads a line of /proc/PID/stat. The name in it may contain blanks and brackets: it ends at the last bracket."""
    pid, _, rest = line.partition(" ")
    fields = rest[rest.rindex(")") + 2 :].split()
    user, system, children_user, children_system = (int(text) for text in fields[11:15])
    return ProcessStat(
        int(pid),
        int(fields[1]),
        (user + system) / _TICKS,
        (children_user + children_system) / _TICKS,
        int(fields[19]),
    )


def process_stat(pid: int) -> ProcessStat | None:
    """The process now, None when it is gone."""
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def all_processes() -> list[ProcessStat]:
    """Every process that is there; those that end while we read are left out."""
    stats = (process_stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [stat for stat in stats if stat is not None]


def with_descendants(roots: Iterable[int], processes: list[ProcessStat]) -> list[ProcessStat]:
    """The processes with these ids and everything below them."""
    wanted = set(roots)
    grown = True
    while grown:
        below = {stat.pid for stat in processes if stat.parent in wanted}
        grown = not below <= wanted
        wanted |= below
    return [stat for stat in processes if stat.pid in wanted]


def cpu_seconds(roots: Iterable[int]) -> float:
    """CPU seconds of these processes and everything below them, ended and waited-for children included."""
    return sum(stat.cpu_s for stat in with_descendants(roots, all_processes()))


def anonymous_bytes(roots: Iterable[int]) -> int:
    """RssAnon of these processes and everything below them: memory that the files on disk do not back."""
    total = 0
    for stat in with_descendants(roots, all_processes()):
        try:
            status = (_PROC / str(stat.pid) / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended since: it holds nothing now
        total += sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))
    return total


def seconds_since_start(pid: int) -> float | None:
    """How long ago this process was started, in seconds (10 ms exact); None when it is gone."""
    stat = process_stat(pid)
    if stat is None:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started_ticks / _TICKS


def busy_seconds(stat: str) -> float:
    """Seconds that all processors together were busy or stolen, from the text of /proc/stat; interrupts left out."""
    fields = [int(text) for text in stat.splitlines()[0].split()[1:]]
    user, nice, system, steal = fields[0], fields[1], fields[2], fields[7]
    return (user + nice + system + steal) / _TICKS


class Snapshot(NamedTuple):
    """One moment: the clock, the machine's busy time, the broker's CPU and everything that is not foreign."""

    at: float
    busy_s: float
    broker_cpu_s: float
    own_cpu_s: float
    kernel_cpu_s: Mapping[int, float]
    """CPU seconds of each kernel thread. One that ends takes along all that it ever used: a sum would jump back."""

    @classmethod
    def take(cls, broker: Iterable[int], helpers: Iterable[int] = ()) -> "Snapshot":
        """Now. `broker`: processes under test; `helpers`: others of ours that are not our children (a name server)."""
        processes = all_processes()
        broker_cpu_s = sum(stat.cpu_s for stat in with_descendants(broker, processes))
        helpers_cpu_s = sum(stat.cpu_s for stat in with_descendants(helpers, processes))
        return cls(
            time.monotonic(),
            busy_seconds((_PROC / "stat").read_text()),
            broker_cpu_s,
            broker_cpu_s + helpers_cpu_s + sum(os.times()[:4]),
            {stat.pid: stat.own_cpu_s for stat in processes if _KTHREADD in (stat.pid, stat.parent)},
        )

    def foreign_cores(self, earlier: "Snapshot") -> float:
        """Cores that others used since `earlier`, on average; rounding of ticks never makes it negative."""
        seconds = self.at - earlier.at
        kernel = sum(used - earlier.kernel_cpu_s.get(pid, 0.0) for pid, used in self.kernel_cpu_s.items())
        ours = self.own_cpu_s - earlier.own_cpu_s + kernel
        return max(0.0, (self.busy_s - earlier.busy_s - ours) / seconds) if seconds > 0 else 0.0
