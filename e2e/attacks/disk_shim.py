"""Errors of the disk for the files of one folder, which a run switches on and off while the process runs.

A preloaded shared object answers calls with EIO when their file lies in that folder and the kind of call is switched
on, from the first such call or from a later one on. Everything else reaches the system, reads through a map too. The
process sees what a file system with bad blocks under one folder does.
"""

from __future__ import annotations

import enum
import mmap
import struct
from pathlib import Path

from attacks.clock_shim import compile_shim

_STATE = struct.Struct("iii")
"""The shared state: kinds of calls that fail, calls that succeed before, calls that failed."""
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

struct state { int kinds, spared, failed; };
static struct state *state;
static const char *part;
enum { OPEN = 1, WRITE = 2, SYNC = 4, RENAME = 8, READ = 16, REMOVE = 32, ALLOCATE = 64 };

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DISK_ERRORS_FILE");
    part = getenv("DISK_ERRORS_FOLDER");
    int file = path && part ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(0, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) state = map;
}

static int switched_on(int kind) { return state && (__atomic_load_n(&state->kinds, __ATOMIC_RELAXED) & kind); }

static int path_fails(int kind, const char *path) {
    if (!switched_on(kind) || !path || !strstr(path, part)) return 0;
    if (__atomic_load_n(&state->spared, __ATOMIC_RELAXED) > 0) {
        __atomic_sub_fetch(&state->spared, 1, __ATOMIC_RELAXED);
        return 0;
    }
    __atomic_add_fetch(&state->failed, 1, __ATOMIC_RELAXED);
    errno = EIO;
    return 1;
}

static int fails(int kind, int file) {
    if (!switched_on(kind)) return 0;
    char link[40], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return path_fails(kind, path);
}

#define NEXT(name) static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *bytes, size_t count) {
    NEXT(write);
    return fails(WRITE, file) ? -1 : next(file, bytes, count);
}
ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) {
    NEXT(pwrite64);
    return fails(WRITE, file) ? -1 : next(file, bytes, count, at);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    NEXT(writev);
    return fails(WRITE, file) ? -1 : next(file, parts, count);
}
int fsync(int file) {
    NEXT(fsync);
    return fails(SYNC, file) ? -1 : next(file);
}
int fdatasync(int file) {
    NEXT(fdatasync);
    return fails(SYNC, file) ? -1 : next(file);
}
ssize_t read(int file, void *bytes, size_t count) {
    NEXT(read);
    return fails(READ, file) ? -1 : next(file, bytes, count);
}
ssize_t pread64(int file, void *bytes, size_t count, off_t at) {
    NEXT(pread64);
    return fails(READ, file) ? -1 : next(file, bytes, count, at);
}
int fallocate64(int file, int mode, off_t at, off_t count) {
    NEXT(fallocate64);
    return fails(ALLOCATE, file) ? -1 : next(file, mode, at, count);
}
ssize_t preadv2(int file, const struct iovec *parts, int count, off_t at, int flags) {
    NEXT(preadv2);
    return fails(READ, file) ? -1 : next(file, parts, count, at, flags);
}
int posix_fallocate(int file, off_t at, off_t count) {
    NEXT(posix_fallocate);
    return fails(ALLOCATE, file) ? EIO : next(file, at, count);
}
int posix_fallocate64(int file, off_t at, off_t count) {
    NEXT(posix_fallocate64);
    return fails(ALLOCATE, file) ? EIO : next(file, at, count);
}
int ftruncate64(int file, off_t size) {
    NEXT(ftruncate64);
    return fails(ALLOCATE, file) ? -1 : next(file, size);
}
int unlink(const char *path) {
    NEXT(unlink);
    return path_fails(REMOVE, path) ? -1 : next(path);
}
int rename(const char *from, const char *to) {
    NEXT(rename);
    return path_fails(RENAME, to) ? -1 : next(from, to);
}
#define OPENS(name) \
int name(const char *path, int flags, ...) { \
    NEXT(name); \
    va_list rest; \
    va_start(rest, flags); \
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; \
    va_end(rest); \
    if ((flags & (O_CREAT | O_WRONLY | O_RDWR)) && path_fails(OPEN, path)) return -1; \
    return next(path, flags, mode); \
}
OPENS(open64)
OPENS(open)
"""


class Call(enum.IntFlag):
    """Kinds of calls that fail."""

    NONE = 0
    OPEN = 1
    """To open a file for writing."""
    WRITE = 2
    SYNC = 4
    RENAME = 8
    READ = 16
    """To read, other than through a map."""
    REMOVE = 32
    ALLOCATE = 64
    """To give a file its length or its blocks."""


class DiskErrors:
    """Errors of the processes that are started with `env`, for files whose path contains `folder`."""

    def __init__(self, work: Path, folder: str) -> None:
        """Compiles the shared object into `work`. SkippedError: there is no C compiler."""
        shim = compile_shim(work, "disk", _SOURCE)
        switch = work / "switch"
        switch.write_bytes(bytes(_STATE.size))
        with switch.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _STATE.size)
        self.env = {"LD_PRELOAD": str(shim), "DISK_ERRORS_FILE": str(switch), "DISK_ERRORS_FOLDER": folder}

    def fail(self, calls: Call, *, spared: int = 0) -> None:
        """From now on these calls fail with EIO, and no others; the first `spared` of them succeed."""
        self._map[: _STATE.size] = _STATE.pack(int(calls), spared, 0)

    @property
    def failed(self) -> int:
        """How many calls have failed since `fail`."""
        failed: int = _STATE.unpack(self._map[: _STATE.size])[2]
        return failed
