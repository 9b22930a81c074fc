"""A wall clock that a run can set for one process, while it runs.

A shared object of a few lines is preloaded. It adds an offset, read from a mapped file at each call, to CLOCK_REALTIME
and to nothing else: the monotonic clock, the system's timers and the times of files stay true. A process sees the same
when the wall clock is set.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
from pathlib import Path

from attacks.arena import SkippedError

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long long *offset;
static int (*true_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    true_clock = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("CLOCK_OFFSET_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) offset = map;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    if (!true_clock) true_clock = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = true_clock(id, now);
    if (failed || !offset || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return failed;
    long long ns = (long long)now->tv_sec * 1000000000LL + now->tv_nsec + *offset;
    now->tv_sec = ns / 1000000000LL;
    now->tv_nsec = ns % 1000000000LL;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (where) *where = found.tv_sec;
    return found.tv_sec;
}
"""


def compile_shim(folder: Path, name: str, source: str) -> Path:
    """A shared object for LD_PRELOAD, made of this C program. SkippedError: there is no C compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    program, shim = folder / f"{name}.c", folder / f"{name}.so"
    program.write_text(source)
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(shim), str(program), "-ldl"]
    try:
        subprocess.run(command, check=True)
    except OSError as error:
        raise SkippedError(f"the {name} shim cannot be compiled: {error}") from error
    return shim


class WallClock:
    """Controls the wall clock of the processes that are started with `env`."""

    def __init__(self, folder: Path) -> None:
        """Compiles the shared object into `folder`. SkippedError: there is no C compiler."""
        shim, offset = compile_shim(folder, "clock", _SOURCE), folder / "offset"
        offset.write_bytes(bytes(8))
        with offset.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)
        self.env = {"LD_PRELOAD": str(shim), "CLOCK_OFFSET_FILE": str(offset)}
        self.offset_s = 0.0

    def set(self, offset_s: float) -> None:
        """From now on the wall clock is ahead of the true one by this number of seconds (negative: behind)."""
        self.offset_s = offset_s
        self._map[:8] = struct.pack("<q", int(offset_s * 1e9))
