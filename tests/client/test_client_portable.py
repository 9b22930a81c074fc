"""The client without what only Unix has: it is installed on Windows and macOS as well."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.testing import Broker

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, json, logging, os, signal, socket, ssl, sys, tempfile, uuid, zoneinfo
import multiprocessing, subprocess
import orjson
loop = asyncio.new_event_loop()  # this one is Unix's; the client gets no more of it than its methods
for name in ("fcntl", "grp", "posix", "pwd", "resource", "termios", "uvloop"):
    sys.modules[name] = None  # an import fails
for name in ("fork", "getuid", "geteuid", "getgid", "eventfd", "fdatasync", "posix_fallocate", "uname"):
    delattr(os, name)
for name in ("AF_UNIX", "SO_REUSEPORT", "socketpair"):
    delattr(socket, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1"):
    delattr(signal, name)
del asyncio.unix_events
sys.platform = "win32"
from importlib import import_module
for name in sys.argv[2:]:
    import_module(name)
from tallystick.client import Client, Start
from tallystick.client.sync import Client as SyncClient
asyncio.BaseEventLoop.add_signal_handler = None
async def main():
    async with Client(sys.argv[1]) as client:
        await client.producer("pg").send("T", b"hello")
        options = {"broadcast": True, "offsets_file": tempfile.mkdtemp() + "/offsets.json"}
        async with client.consumer("g", "T", start=Start.FIRST, **options) as consumer:
            message = await anext(consumer)
            async with message.process():
                print(message.body)
loop.run_until_complete(main())
"""
NEEDED_BY_TESTS_ONLY = {"fixtures", "testing"}


def modules() -> list[str]:
    """All modules of the client that applications import."""
    found = []
    for path in sorted((ROOT / "client").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if not NEEDED_BY_TESTS_ONLY.intersection(parts) and "build" not in parts and parts[-1] != "otel":
            found.append(".".join(("tallystick", *parts)).removesuffix(".__init__"))
    return found


@pytest.mark.process
async def test_the_client_works_without_what_only_unix_has() -> None:
    async with Broker() as broker:
        command = [sys.executable, "-c", PROGRAM, broker.nameserver, *modules()]
        shown = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    assert shown.stdout == "b'hello'\n", shown.stderr
