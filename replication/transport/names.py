"""Resolves host names to addresses; one slow name does not delay the others.

The event loop's own look-ups share a few threads (four, with uvloop). A resolver that does not answer blocks each of
them for seconds, so a few unresolvable names were enough to keep a member from all the others. Here each name has its
own thread while it is resolved, and only one: concurrent callers get the same answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading


class Names:
    """For one event loop. The system's resolver decides how long a look-up takes: limit the wait for it."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """All addresses of a host, in the system's order; at least one. socket.gaierror; UnicodeError: an invalid
        name."""
        if _is_address(host):
            return [host]
        found = self._under_way.get(host)
        if found is None:
            loop = asyncio.get_running_loop()
            found = self._under_way[host] = loop.create_future()
            found.add_done_callback(lambda future: self._done(host, future))
            # A daemon thread: the end of a process must not wait for a resolver.
            threading.Thread(target=_look_up, args=(loop, host, found), name=f"look-up-{host}", daemon=True).start()
        return await asyncio.shield(found)

    def _done(self, host: str, future: asyncio.Future[list[str]]) -> None:
        del self._under_way[host]
        if not future.cancelled():
            future.exception()  # read: the caller may be gone


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(loop: asyncio.AbstractEventLoop, host: str, future: asyncio.Future[list[str]]) -> None:
    problem: Exception | None = None
    found: list[str] = []
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        found = list(dict.fromkeys(str(row[4][0]) for row in rows))
    except Exception as error:  # report any failure to the waiters
        problem = error

    def tell() -> None:
        if future.done():
            return
        if problem is not None:
            future.set_exception(problem)
        else:
            future.set_result(found)

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:
        pass  # the loop is closed, and no caller waits
