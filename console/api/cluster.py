"""Handlers: clusters, brokers, replicated groups, settings, the audit, and the live figures."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from tallystick.console.api.changes import done
from tallystick.console.api.events import GoneError
from tallystick.console.api.interface import Call, Handler


async def list_clusters(call: Call) -> Any:
    return await call.admin.clusters.list()


async def get_figures(call: Call) -> Any:
    return await call.admin.clusters.figures()


async def stream_events(call: Call) -> Any:
    assert call.backend is not None, "the operation needs a role"
    with call.services.listeners.take():
        stream = call.stream()
        try:
            await stream.begin()
            async with aclosing(call.backend.live.events()) as events:
                while True:
                    coming = asyncio.ensure_future(anext(events))
                    try:
                        while not await stream.wait(coming):
                            pass
                    finally:
                        coming.cancel()
                        await asyncio.gather(coming, return_exceptions=True)
                    event = coming.result()
                    await stream.send(event.name, event.data)
        except GoneError:
            pass
        return stream.response


async def list_brokers(call: Call) -> Any:
    return await call.admin.brokers.list()


async def get_broker(call: Call) -> Any:
    return await call.admin.brokers.get(call["address"])


async def set_write_permission(call: Call) -> Any:
    brokers = call.admin.brokers
    change = brokers.restore_write_permission if call.body["allowed"] else brokers.wipe_write_permission
    return done(await change(call["name"], dry_run=call.dry_run))


async def list_settings(call: Call) -> Any:
    return await call.admin.config.settings(call["cluster"])


async def change_settings(call: Call) -> Any:
    return done(await call.admin.config.set(call["address"], call.body, dry_run=call.dry_run))


async def list_raft_groups(call: Call) -> Any:
    return await call.admin.raft.groups()


async def transfer_leadership(call: Call) -> Any:
    return done(await call.admin.raft.transfer(call["name"], call.body.get("member"), dry_run=call.dry_run))


async def add_member(call: Call) -> Any:
    learner = call.body.get("learner", False)
    return done(await call.admin.raft.add(call["name"], call.body["member"], learner=learner, dry_run=call.dry_run))


async def remove_member(call: Call) -> Any:
    return done(await call.admin.raft.remove(call["name"], call["member"], dry_run=call.dry_run))


async def list_audit(call: Call) -> Any:
    return await call.admin.audit.lines(cursor=call["cursor"], limit=call["limit"])


HANDLERS: dict[str, Handler] = {
    "listClusters": list_clusters,
    "getFigures": get_figures,
    "streamEvents": stream_events,
    "listBrokers": list_brokers,
    "getBroker": get_broker,
    "setWritePermission": set_write_permission,
    "listSettings": list_settings,
    "changeSettings": change_settings,
    "listRaftGroups": list_raft_groups,
    "transferLeadership": transfer_leadership,
    "addMember": add_member,
    "removeMember": remove_member,
    "listAudit": list_audit,
}
