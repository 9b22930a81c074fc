"""`tally console`: the console and the REST interface of any cluster, also one of RocketMQ, in a separate process."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Iterator
from typing import Any

from tallystick.node.access.opening import read_credentials
from tallystick.node.commands.admin_command import add_cluster_options
from tallystick.node.commands.tls_options import tls_context
from tallystick.node.core.logs import FORMATS, LEVELS
from tallystick.node.core.settings import HttpSettings, is_loopback
from tallystick.store.setting import SettingsError


def add_parsers(commands: Any) -> None:
    """Adds `console`."""
    console = commands.add_parser("console", help="serve the web console and the REST interface of a running cluster")
    console.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    console.add_argument("--port", type=int, default=8090, help="port to listen on (8090; 0: any free one)")
    console.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="file with one token per line; a log-in or a request needs one of them. Required with --credentials, and "
        "with an address that others reach",
    )
    console.add_argument(
        "--allowed-hosts", default="", metavar="NAMES", help="names of this machine in URLs, separated by commas"
    )
    console.add_argument("--log-level", choices=LEVELS, default="INFO", help="lowest level of lines to log (INFO)")
    console.add_argument("--log-format", choices=FORMATS, default="text", help="format of log lines (text)")
    add_cluster_options(console)
    console.set_defaults(call=_console)


def _console(args: argparse.Namespace) -> int:
    settings = HttpSettings(
        host=args.host, port=args.port, adminTokenFile=args.token_file, allowedHosts=args.allowed_hosts
    )
    settings.validate()
    if not args.token_file and not is_loopback(args.host):
        raise SettingsError("--token-file", f"is required, because others reach {args.host}")
    if not args.token_file and args.credentials:
        raise SettingsError(
            "--token-file", "is required with --credentials: every user of this machine could act as its account"
        )
    # Imported late, as in `tally run`: it loads the HTTP server.
    import uvloop

    uvloop.run(_serve(args, settings))
    return 0


async def _serve(args: argparse.Namespace, settings: HttpSettings) -> None:
    from tallystick.node.core import logs
    from tallystick.node.http.console import ConsoleView, console_url
    from tallystick.node.http.exposition import Form
    from tallystick.node.http.process_metrics import MemoryMetrics
    from tallystick.node.http.server import HttpServer, Probes
    from tallystick.store import memory_budget
    from tallystick.store.formats.message import Host

    logs.configure(args.log_level, args.log_format)
    memory_budget.PROCESS.limit = memory_budget.default_limit()
    context = tls_context(args)
    known = read_credentials("--credentials", args.credentials) if args.credentials else None
    memory = MemoryMetrics(memory_budget.PROCESS)

    def metrics(form: Form) -> Iterator[str]:
        yield from memory.pieces(form)
        yield form.end

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = HttpServer(
        settings,
        Probes(lambda: None, lambda: None, metrics),
        console=ConsoleView(lambda: args.nameserver, lambda: known, context, lambda: None),
    )
    port = await server.start()
    print(f"console {console_url(Host(args.host, port), settings)} of the cluster at {args.nameserver}", flush=True)
    try:
        await stop.wait()
    finally:
        await server.stop()
