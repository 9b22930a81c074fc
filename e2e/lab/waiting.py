"""Waits for what a group under load is to come to, on threads of their own where that asks members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from lab.group import Group, Member
from lab.group_load import Clients
from lab.processes import ProcessError

WHOLE_S = 90.0
_SERVE_S = 30.0
_LOOK_S = 0.02


async def whole(group: Group) -> float:
    """Until the group is; how long that took. ProcessError: too long."""
    return await asyncio.to_thread(group.wait, group.is_whole, WHOLE_S, "the group is complete again")


async def leader_of(group: Group) -> Member:
    """The leader of a complete group. ProcessError: it has no leader."""
    leader = await asyncio.to_thread(group.leader)
    if leader is None:
        raise ProcessError("no member says that it leads, and the group was whole just now")
    return leader


async def served_again(group: Group, clients: Clients, since_s: float, what: str) -> float:
    """Seconds from that moment to the end of the first acknowledged send that was begun after it. ProcessError."""
    while (at_s := clients.served_again(since_s)) is None:
        if time.monotonic() - since_s > _SERVE_S:
            raise ProcessError(f"{what}: no send was acknowledged for {_SERVE_S:g} s; see {group.folder}")
        await asyncio.to_thread(group.look_at_processes)
        await asyncio.sleep(_LOOK_S)
    return at_s - since_s


async def until(group: Group, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Until it holds, while no process ends by itself. ProcessError."""
    begin_s = time.monotonic()
    while not await asyncio.to_thread(condition):
        await asyncio.to_thread(group.look_at_processes)
        if time.monotonic() - begin_s > timeout_s:
            raise ProcessError(f"timed out after {timeout_s:g} s: {what}; see {group.folder}")
        await asyncio.sleep(0.1)
