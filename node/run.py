"""The processes of `tally run`, `tally broker` and `tally nameserver`: they start and end in order.

HTTP comes first and goes last, so that probes are answered while a long log is recovered and while everything ends.
SIGTERM and SIGINT stop a process in order; a second one ends it at once. A member of a replicated group that must not
continue ends the process with status 1. If a member installed a snapshot, its broker is opened again on it. One line
for people goes to standard output when everything serves; logs go to standard error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import uvloop

from tallystick.node.access.opening import read_credentials
from tallystick.node.access.policies import Rules
from tallystick.node.broker.broker import Broker
from tallystick.node.broker.group.group_role import BrokerGroup
from tallystick.node.core import logs, service_manager
from tallystick.node.core.addresses import wait_for_address
from tallystick.node.core.configuration import Settings
from tallystick.node.core.starting import WAITING, StartProgress, StartStoppedError
from tallystick.node.http.admin_api import AdminView
from tallystick.node.http.console import ConsoleView, console_url
from tallystick.node.http.exposition import Form
from tallystick.node.http.metrics import BrokerMetrics
from tallystick.node.http.node_api import ProcessClock, broker_json, nameserver_json
from tallystick.node.http.process_metrics import MemoryMetrics, NameServerMetrics, TlsMetrics
from tallystick.node.http.server import HttpServer, Probes
from tallystick.node.nameserver.server import NameServer
from tallystick.node.tls.process import ProcessTls
from tallystick.store import memory_budget
from tallystick.store.finding_log import FindingLog
from tallystick.store.formats.message import Host

_logger = logging.getLogger("tallystick")
_NOT_FOR_OTHERS = 0o027
"""New files have at most the mode 0640, and folders 0750: messages are not for all users of the machine. Jobs that read
a store belong to its user or group. A stricter umask of the caller stays."""
_ORDER = ("name server", "external name server", "broker", "http")  # in which a person asks for the places


def run(settings: Settings, *, with_nameserver: bool, with_broker: bool) -> int:
    """Runs until a signal comes; the exit code. Errors of the start are the caller's to show."""
    own = settings.broker if with_broker else settings.nameserver
    logs.configure(own.logLevel, own.logFormat)
    for line in settings.without_effect:
        _logger.warning("%s", line)
    _raise_file_limit()
    os.umask(os.umask(_NOT_FOR_OTHERS) | _NOT_FOR_OTHERS)
    process = _Process(settings)
    uvloop.run(process.serve(with_nameserver, with_broker))
    return process.exit_status


class _Process:
    """What runs in this process, and what its probes see of it meanwhile."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._begin = time.perf_counter()
        self._clock = ProcessClock()
        self._progress = StartProgress()
        self._with_broker = False
        self._http: Host | None = None
        self._nameserver: NameServer | None = None
        self._stop = asyncio.Event()
        self._ready = False
        self._broker: Broker | None = None
        self._metrics: BrokerMetrics | None = None
        self._findings = FindingLog(settings.store.root)
        self._nameserver_metrics: NameServerMetrics | None = None
        self._memory_metrics = MemoryMetrics(memory_budget.PROCESS)
        self._tls = ProcessTls(settings.tls)
        self._tls_metrics = TlsMetrics(self._tls)
        self._nameservers = ""
        self._again = False
        self.exit_status = 0

    async def serve(self, with_nameserver: bool, with_broker: bool) -> None:
        """Starts, waits for a signal, ends."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        settings, self._with_broker = self._settings, with_broker
        chosen = (settings.broker if with_broker else settings.nameserver).connectionMemoryBytes
        memory_budget.PROCESS.limit = chosen or memory_budget.default_limit()
        places: dict[str, Host] = {}
        async with AsyncExitStack() as stack:  # ends in the opposite order
            await stack.enter_async_context(self._tls.watching())
            if settings.http.port >= 0:
                probes = Probes(self._unhealthy, self._unready, self._metrics_page)
                admin = AdminView(lambda: self._broker, self._absent, self._node)
                http = HttpServer(settings.http, probes, self._group, admin, self._tls, self._console(settings))
                places["http"] = self._http = Host(settings.http.host, await http.start())
                stack.push_async_callback(http.stop)
            if with_nameserver:
                nameserver = NameServer(settings.nameserver, findings=self._findings, tls=self._tls)
                places["name server"] = Host(settings.nameserver.bindAddress, await nameserver.start())
                if settings.nameserver.externalListenPort:
                    external = Host(settings.nameserver.bindAddress, settings.nameserver.externalListenPort)
                    places["external name server"] = external
                self._nameserver, self._nameserver_metrics = nameserver, NameServerMetrics(nameserver)
                stack.push_async_callback(_timed, "name server", nameserver.stop)
                settings = _registered_with(places["name server"], settings)
            self._nameservers = settings.broker.namesrvAddr if with_broker else str(places["name server"])
            if with_broker:
                self._progress.enter(WAITING)
                broker = settings.broker
                await wait_for_address("brokerIP1", broker.brokerIP1, broker.addressWaitMills, self._stop)
            if with_broker and not self._stop.is_set():
                try:
                    self._broker = await self._start_broker(settings)
                except StartStoppedError as stopped:
                    _logger.info("a signal interrupted the start (%s): the next start recovers the store", stopped)
                    return
                stack.push_async_callback(_timed, "broker", self._stop_broker)
                places["broker"] = self._broker.host
                if not settings.broker.namesrvAddr:
                    _logger.warning("namesrvAddr is empty: this broker registers nowhere, and no client finds it")
            self._ready = True
            if not self._stop.is_set():  # a signal may have come while the store was recovered
                named = ", ".join(f"{name} {places[name]}" for name in _ORDER if name in places)
                print(f"tally is ready in {time.perf_counter() - self._begin:.2f} s: {named}", flush=True)
                if self._http is not None and settings.http.console:
                    print(f"console {console_url(self._http, settings.http)}", flush=True)
                service_manager.notify(service_manager.READY)
                await self._stop.wait()
                while self._again:
                    await self._start_again(settings)
                    await self._stop.wait()
            _logger.info("stopping")
            service_manager.notify(service_manager.STOPPING)

    async def _start_broker(self, settings: Settings) -> Broker:
        broker = await Broker.start(
            settings.broker, settings.store, progress=self._progress, findings=self._findings, tls=self._tls
        )
        broker.http = _reached_at(self._http, broker.advertised)
        broker.describe = self._node
        self._metrics = BrokerMetrics(broker)
        if broker.settings.logLevel != settings.broker.logLevel:  # it was changed while an earlier process ran
            logs.set_level(broker.settings.logLevel)
        broker.on_restart.append(self._on_restart)
        if broker.group is not None:
            broker.group.on_fatal.append(self._on_fatal)
            broker.group.on_restart.append(self._on_restart)
            if broker.group.fatal is not None:
                self._on_fatal(broker.group.fatal)
        return broker

    async def _stop_broker(self) -> None:
        if self._broker is not None:
            await self._broker.stop()

    async def _start_again(self, settings: Settings) -> None:
        self._again = self._ready = False
        self._stop.clear()
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.stop()
        try:
            self._broker = await self._start_broker(settings)
        except StartStoppedError:
            return
        self._ready = True

    def _group(self) -> BrokerGroup | None:
        return self._broker.group if self._broker is not None else None

    def _on_fatal(self, reason: str) -> None:
        self.exit_status = 1
        self._again = False
        self._stop.set()

    def _on_restart(self) -> None:
        if not self._stop.is_set():
            self._again = True
            self._stop.set()

    def _on_signal(self) -> None:
        if self._stop.is_set() and not self._again:
            os._exit(130)  # asked twice: not in order, as after a kill; the next start recovers
        self._again = False
        self._stop.set()
        self._progress.stop()

    def _unready(self) -> str | None:
        if self._stop.is_set():
            return "stopping"
        if not self._ready:
            return self._progress.reason() if self._with_broker else "starting"
        return self._broker.unready() if self._broker is not None else None

    def _absent(self) -> str:
        """Why there is no broker, for those who ask it for something."""
        return (self._unready() or "starting") if self._with_broker else "this process is only a name server"

    def _node(self) -> dict[str, Any]:
        stopping = self._stop.is_set()
        if self._with_broker:
            return broker_json(
                self._settings, self._broker, self._progress, self._clock, self._findings, self._tls, stopping=stopping
            )
        return nameserver_json(self._nameserver, self._clock, self._tls, stopping=stopping)

    def _console(self, settings: Settings) -> ConsoleView:
        file = settings.broker.aclCredentialsFile
        known = read_credentials("aclCredentialsFile", file) if file else None
        return ConsoleView(lambda: self._nameservers, lambda: known, self._tls.client_context, self._rules)

    def _rules(self) -> Mapping[str, Rules] | None:
        """The users of access control. A process that is starting has none, and admits none."""
        if self._with_broker:
            if self._broker is not None:
                access = self._broker.access
                return None if access is None else access.control.accounts.rules
            return {} if self._settings.broker.aclEnable else None
        if self._nameserver is None or self._nameserver.access is None:
            return {} if self._settings.nameserver.aclEnable else None
        return self._nameserver.access.accounts.rules

    def _unhealthy(self) -> str | None:
        failure = self._broker.failure() if self._broker is not None else None
        return failure and f"the process must be restarted: {failure}"

    def _metrics_page(self, form: Form) -> Iterator[str]:
        parts = (self._metrics, self._nameserver_metrics, self._memory_metrics, self._tls_metrics)
        for part in parts:
            if part is not None:
                yield from part.pieces(form)
        yield form.end


def _registered_with(nameserver: Host, settings: Settings) -> Settings:
    """The settings of a broker that registers with the name server beside it, unless it was told of others."""
    if settings.broker.namesrvAddr:
        return settings
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    near = Host(loopback.get(nameserver.ip, nameserver.ip), nameserver.port)
    return replace(settings, broker=replace(settings.broker, namesrvAddr=str(near)))


def _reached_at(http: Host | None, advertised: Host) -> Host | None:
    """Where others reach the HTTP port: at the advertised address, if it listens at all addresses."""
    return Host(advertised.ip, http.port) if http is not None and http.ip in ("0.0.0.0", "::") else http


async def _timed(what: str, stop: Callable[[], Awaitable[None]]) -> None:
    begin = time.perf_counter()
    await stop()
    _logger.info("%s stopped in %.2f s", what, time.perf_counter() - begin)


def _raise_file_limit() -> None:
    """As many open files as the system lets us have: a queue, a segment and a connection take one each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
