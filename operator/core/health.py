"""The HTTP port of the operator: /healthz, /readyz, /metrics.

The operator is healthy while it makes progress: no key is due or running for longer than a few passes may take, and
passes end. An operator on standby has no work; it is healthy and ready.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from tallystick.operator.core.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Pulse:
    """The input of the health check at one moment. Times are in seconds."""

    leads: bool
    keys: int = 0
    longest_wait: float = 0.0
    last_pass_age: float | None = None
    """None: no pass has ended yet."""


def trouble(pulse: Pulse, limit_seconds: float) -> str:
    """Returns why the process must be restarted; empty: it is healthy."""
    if not pulse.leads or not pulse.keys:
        return ""
    if pulse.longest_wait > limit_seconds:
        return f"a reconciliation has been due or running for {pulse.longest_wait:.0f} s"
    if pulse.last_pass_age is not None and pulse.last_pass_age > limit_seconds:
        return f"the last reconciliation ended {pulse.last_pass_age:.0f} s ago"
    return ""


def application(metrics: Metrics, pulse: Callable[[], Pulse], limit_seconds: float) -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        reason = trouble(pulse(), limit_seconds)
        return web.Response(text=f"{reason or 'ok'}\n", status=500 if reason else 200)

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="leader\n" if pulse().leads else "standby\n")

    async def show(_: web.Request) -> web.Response:
        now = pulse()
        metrics.leads.set(int(now.leads))
        metrics.queue.set(now.keys)
        metrics.waiting.set(now.longest_wait)
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show)])
    return app


@asynccontextmanager
async def serving(app: web.Application, port: int) -> AsyncIterator[int]:
    """Serves an application on all addresses and yields the port. OSError: the port is in use."""
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, port=port)
        await site.start()
        server = site._server
        sockets = getattr(server, "sockets", None) or ()
        yield next((each.getsockname()[1] for each in sockets), port)
    finally:
        await runner.cleanup()
