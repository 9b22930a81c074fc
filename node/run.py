"""The processes of `tally run`, `broker` and `nameserver`: start in order, one line when ready, end in order.

SIGTERM and SIGINT end a process in order; a second one ends it at once. The line for people goes to standard output
when everything serves; logs go to standard error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from tallystick.node.broker.broker import Broker
from tallystick.node.configuration import Settings
from tallystick.node.http import HttpServer, Probes
from tallystick.node.metrics import BrokerMetrics
from tallystick.node.nameserver.server import NameServer
from tallystick.node.settings import HttpSettings, NameServerSettings

_logger = logging.getLogger("tallystick")


def run(settings: Settings, *, with_nameserver: bool, with_broker: bool) -> int:
    """Runs until a signal comes; the exit code. Errors of the start are the caller's to show."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _raise_file_limit()
    uvloop.run(_serve(settings, with_nameserver, with_broker))
    return 0


async def _serve(settings: Settings, with_nameserver: bool, with_broker: bool) -> None:
    begin = time.perf_counter()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop)
    places: list[str] = []
    # Ends in the opposite order: HTTP first, so that probes say no, then the broker, then the name server.
    async with AsyncExitStack() as stack:
        broker: Broker | None = None
        if with_nameserver:
            port = await _start_nameserver(settings.nameserver, stack)
            places.append(f"name server {settings.nameserver.bindAddress}:{port}")
        if with_broker:
            broker = await Broker.start(settings.broker, settings.store)
            stack.push_async_callback(_timed, "broker", broker.stop)
            places.append(f"broker {broker.host}")
        if settings.http.port >= 0:
            port = await _start_http(settings.http, _probes(broker, stop), stack)
            places.append(f"http {settings.http.host}:{port}")
        print(f"tally is ready in {time.perf_counter() - begin:.2f} s: {', '.join(places)}", flush=True)
        await stop.wait()
        _logger.info("stopping")


async def _start_nameserver(settings: NameServerSettings, stack: AsyncExitStack) -> int:
    server = NameServer(settings)
    port = await server.start()
    stack.push_async_callback(_timed, "name server", server.stop)
    return port


async def _start_http(settings: HttpSettings, probes: Probes, stack: AsyncExitStack) -> int:
    server = HttpServer(settings, probes)
    port = await server.start()
    stack.push_async_callback(server.stop)
    return port


def _probes(broker: Broker | None, stop: asyncio.Event) -> Probes:
    def ready() -> str | None:
        if stop.is_set():
            return "stopping"
        return broker.store.refusal() if broker is not None else None

    def healthy() -> str | None:
        failure = broker.store.failure() if broker is not None else None
        return failure and f"only a restart can help: {failure}"

    def metrics() -> bytes:
        return BrokerMetrics(broker).text() if broker is not None else b""

    return Probes(healthy, ready, metrics)


async def _timed(what: str, stop: Callable[[], Awaitable[None]]) -> None:
    begin = time.perf_counter()
    await stop()
    _logger.info("%s stopped in %.2f s", what, time.perf_counter() - begin)


def _on_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(130)  # asked twice: not in order, as after a kill; the next start recovers
    stop.set()


def _raise_file_limit() -> None:
    """As many open files as the system lets us have: a queue, a segment and a connection take one each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def default_store(folder: Path) -> dict[str, str]:
    """Where `tally run --dir` keeps things, as presets of `configuration.load`."""
    return {
        "store.storePathRootDir": str(folder / "store"),
        "nameserver.kvConfigPath": str(folder / "nameserver" / "kvConfig.json"),
    }
