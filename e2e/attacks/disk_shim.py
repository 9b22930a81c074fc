"""Errors of the disk for the files of one folder, which a run switches on and off while the process runs.

A preloaded shared object answers calls with EIO when their file lies in that folder and the kind of call is switched
on. Everything else reaches the system. The process sees what a file system with bad blocks under one folder does.
"""

from __future__ import annotations

import enum
import mmap
from pathlib import Path

from attacks.clock_shim import compile_shim

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

static volatile unsigned char *failing;
static const char *part;
enum { OPEN = 1, WRITE = 2, SYNC = 4, RENAME = 8 };

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DISK_ERRORS_FILE");
    part = getenv("DISK_ERRORS_FOLDER");
    int file = path && part ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(0, 1, PROT_READ, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) failing = map;
}

static int path_fails(int kind, const char *path) {
    if (!failing || !(*failing & kind) || !path || !strstr(path, part)) return 0;
    errno = EIO;
    return 1;
}

static int fails(int kind, int file) {
    if (!failing || !(*failing & kind)) return 0;
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
int rename(const char *from, const char *to) {
    NEXT(rename);
    return path_fails(RENAME, to) ? -1 : next(from, to);
}
int open64(const char *path, int flags, ...) {
    NEXT(open64);
    va_list rest;
    va_start(rest, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    if ((flags & (O_CREAT | O_WRONLY | O_RDWR)) && path_fails(OPEN, path)) return -1;
    return next(path, flags, mode);
}
int open(const char *path, int flags, ...) {
    NEXT(open);
    va_list rest;
    va_start(rest, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    if ((flags & (O_CREAT | O_WRONLY | O_RDWR)) && path_fails(OPEN, path)) return -1;
    return next(path, flags, mode);
}
"""


class Call(enum.IntFlag):
    """Kinds of calls that fail."""

    NONE = 0
    OPEN = 1
    """To open a file for writing."""
    WRITE = 2
    SYNC = 4
    RENAME = 8


class DiskErrors:
    """Errors of the processes that are started with `env`, for files whose path contains `folder`."""

    def __init__(self, work: Path, folder: str) -> None:
        """Compiles the shared object into `work`. SkippedError: there is no C compiler."""
        shim = compile_shim(work, "disk", _SOURCE)
        switch = work / "switch"
        switch.write_bytes(bytes(1))
        with switch.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 1)
        self.env = {"LD_PRELOAD": str(shim), "DISK_ERRORS_FILE": str(switch), "DISK_ERRORS_FOLDER": folder}

    def fail(self, calls: Call) -> None:
        """From now on these calls fail with EIO, and no others."""
        self._map[0] = int(calls)
