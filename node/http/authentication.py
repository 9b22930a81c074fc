"""Who may use the HTTP port: tokens, and requests that a browser sends for a page of another site.

A page in a browser can send requests to every address that its user reaches, also to loopback. Requests without a
token are therefore checked for what a browser adds and a page cannot change:

    Sec-Fetch-Site    the browser says that another site sends the request
    Origin            the page is not of this port; browsers send it with each request that can change something
    Host              the page's own name, which its DNS server now resolves to this address (DNS rebinding)

A request with a valid token comes from a caller who knows the token, which no page does. Probes and metrics are open to
all, and change nothing.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from tallystick.node.core.admin_token import TokenFile
from tallystick.node.core.settings import HttpSettings, is_loopback
from tallystick.node.http.json_api import failed, refused
from tallystick.node.http.store_files_api import PATH as STORE_PATH

OPEN = ("/healthz", "/readyz", "/metrics")
"""Paths for every caller that reaches the port."""
PRIVATE_SUFFIXES = ("localhost", "local", "internal", "svc", "svc.cluster.local", "home.arpa", "test")
"""Last parts of names that cannot be registered, so that no page on the Internet has one (RFC 6761, 6762, 8375)."""
FAILURES, FAILURE_WINDOW_S = 20, 60.0
"""Wrong tokens of an address in a time. Further ones are answered with 429 and not compared, until the time is over."""
_MOST_ADDRESSES = 4096

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Authentication:
    """Decides about each request, as a middleware.

    `tokens` open all paths, `read_tokens` only `/store`. None: there is no such file.
    """

    def __init__(
        self,
        settings: HttpSettings,
        tokens: TokenFile | None,
        read_tokens: TokenFile | None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens, self._read_tokens = tokens, read_tokens
        self._is_closed = is_closed(settings)
        self._hosts = known_hosts(settings)
        self.failures = Failures(now_s)
        """Wrong tokens and passwords."""
        self.decides_itself: Callable[[str], bool] = lambda _: False
        """Whether the handler of a path decides who may use it: see `console.py`."""

    @web.middleware
    async def middleware(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        is_open = request.path in OPEN or self.decides_itself(request.path)
        refusal = None if is_open else self._refusal(request)
        return await handler(request) if refusal is None else refusal

    def _refusal(self, request: web.Request) -> web.Response | None:
        """Returns the answer to a request that is refused; None: it is served."""
        reads = request.path == STORE_PATH or request.path.startswith(STORE_PATH + "/")
        asked = [file for file in (self._tokens, self._read_tokens if reads else None) if file is not None]
        given = request.headers.get("Authorization")
        if asked:
            return self._unauthorized(request, asked, given, reads)
        if self._is_closed:
            return failed(
                403, "the port listens on an address that others reach: set http.adminTokenFile, or http.open = true"
            )
        if reason := foreign(request, self._hosts):
            return failed(403, reason)
        return None

    def _unauthorized(
        self, request: web.Request, asked: list[TokenFile], given: str | None, reads: bool
    ) -> web.Response | None:
        remote = request.remote or ""
        if given is not None and (wait_s := self.failures.wait_s(remote)):
            answer = failed(429, f"{FAILURES} wrong tokens came from {remote}: retry in {wait_s} s")
            answer.headers["Retry-After"] = str(wait_s)
            return answer
        if any(file.admits(given) for file in asked):
            return None
        if self._read_tokens is not None and not reads and self._read_tokens.admits(given):
            return failed(403, f"this token is only valid for {STORE_PATH}")
        if given is not None:
            self.failures.add(remote)
        refusal = failed(401, "a valid token is required: Authorization: Bearer ...")
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal


def is_closed(settings: HttpSettings) -> bool:
    """Whether the port has no tokens and others reach it, so that it serves only what is open to all."""
    return not (settings.adminTokenFile or settings.open or is_loopback(settings.host))


class Failures:
    """Counts wrong tokens by address. `now_s`: a clock in seconds."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._found: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Begin of the window, and failures in it; the newest window is the last one."""

    def add(self, address: str) -> None:
        begin_s, count = self._window(address)
        if not count:
            self._found.pop(address, None)
            while len(self._found) >= _MOST_ADDRESSES:
                self._found.popitem(last=False)
        self._found[address] = (begin_s, count + 1)

    def wait_s(self, address: str) -> int:
        """Returns for how many seconds the address is refused; 0: it is not."""
        begin_s, count = self._window(address)
        return 0 if count < FAILURES else max(1, round(begin_s + FAILURE_WINDOW_S - self._now_s()))

    def _window(self, address: str) -> tuple[float, int]:
        now_s = self._now_s()
        begin_s, count = self._found.get(address, (now_s, 0))
        return (now_s, 0) if now_s - begin_s >= FAILURE_WINDOW_S else (begin_s, count)


def foreign(request: web.Request, hosts: frozenset[str] | set[str]) -> str:
    """Returns why a request may come from a page of another site; empty: it does not.

    `hosts`: names of this machine, in lower case.
    """
    if reason := cross_site(request):
        return reason
    name = host_name(request.headers.get("Host", ""))
    if not is_private(name) and name not in hosts:
        return f"{name or 'an empty Host'} is not a name of this machine: add it to http.allowedHosts"
    return ""


def cross_site(request: web.Request) -> str:
    """Returns why a page of another site sent the request, as its browser says; empty: none did."""
    site = request.headers.get("Sec-Fetch-Site", "none")
    if site not in ("none", "same-origin"):
        return f"a page of another site sent the request (Sec-Fetch-Site: {site})"
    origin, host = request.headers.get("Origin"), request.headers.get("Host", "")
    if origin is not None and _netloc(origin) != host.lower():
        return f"a page of another origin sent the request (Origin: {origin})"
    return ""


def _netloc(origin: str) -> str | None:
    """Host and port of an origin, in lower case; None: it is not valid."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def host_name(host: str) -> str:
    """Returns the name or address in a header `Host`, in lower case; empty: it is not valid."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower().rstrip(".")
    except ValueError:
        return ""


def is_private(name: str) -> bool:
    """Whether no public DNS server can resolve the name: it is an address, has no dot, or ends like a private one."""
    if not name:
        return False
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return "." not in name or name.endswith(tuple(f".{suffix}" for suffix in PRIVATE_SUFFIXES))
    return True


def known_hosts(settings: HttpSettings) -> set[str]:
    """Returns the names of this machine for requests without a token, in lower case."""
    return own_hosts() | {name.strip().lower() for name in settings.allowedHosts.split(",") if name.strip()}


def own_hosts() -> set[str]:
    """Returns the names of this machine that it knows without asking a DNS server."""
    return {socket.gethostname().lower()}


@web.middleware
async def json_bodies(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Requires JSON as the body: a page cannot send it to another site unless that site agrees."""
    if request.body_exists and request.content_type != "application/json":
        reason = f"the body must have the header Content-Type: application/json, not {request.content_type}"
        return refused(request, 415, reason)
    return await handler(request)


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Adds headers that tell browsers to do nothing with the answer."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
