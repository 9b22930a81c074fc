"""Names of hosts that may have no address yet: in Kubernetes a Service is made a moment before its name is known."""

from __future__ import annotations

import asyncio
import logging

from tallystick.replication.transport.names import Names
from tallystick.store.settings import SettingsError

_logger = logging.getLogger("tallystick")

_LOOKUP_S = 5.0  # of one attempt; the system's own limit may be half a minute
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.1, 2.0
_TELL_S = 10.0


async def wait_for_address(key: str, name: str, wait_ms: int, stop: asyncio.Event) -> None:
    """Returns when `name` has an address, or `stop` is set.

    SettingsError names `key`: it had none for `wait_ms`. The first failure is logged, then one line each 10 s.
    """
    loop, names = asyncio.get_running_loop(), Names()
    begin_s = loop.time()
    pause_s, tell_at_s = _PAUSE_FIRST_S, begin_s
    while (problem := await _problem(names, name)) is not None and not stop.is_set():
        now_s = loop.time()
        left_s = begin_s + wait_ms / 1000 - now_s
        if left_s <= 0:
            raise SettingsError(key, f"{name!r} has no address: {problem}")
        if now_s >= tell_at_s:
            _logger.warning("%s %r has no address yet (%s): waiting for %.0f s more", key, name, problem, left_s)
            tell_at_s = now_s + _TELL_S
        try:
            async with asyncio.timeout(min(pause_s, left_s)):
                await stop.wait()
        except TimeoutError:
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)


async def _problem(names: Names, name: str) -> str | None:
    """Why the name has no address; None: it has one."""
    try:
        async with asyncio.timeout(_LOOKUP_S):
            await names.addresses(name)
    except TimeoutError:
        return f"no answer within {_LOOKUP_S:g} s"
    except (OSError, UnicodeError) as error:  # UnicodeError: it cannot be the name of a host
        return getattr(error, "strerror", None) or str(error)
    return None
