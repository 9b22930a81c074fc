"""The state of a process at any time: the body of GET /node, for an operator's status.

`phase` is one word for what the process is doing; `reason` is a text that says why it is not ready:

    starting  waiting-for-name  recovering          the broker has not started; `recovery` has its progress
    waiting-to-join  electing  catching-up          a member that does not serve its group yet, or no longer;
                                                    catching-up: also a slave that does not follow its master closely
    ready  unready                                  it serves; it does not (disk, too much that is not committed)
    stopping  failed                                it ends; only a restart can help

Only the leader knows how far a follower is behind: `peers`. `slaves` has RocketMQ's slaves of a broker without a group:
those that are connected, and why others were refused (`Refusal`). `copy` has the state of a slave: its `state` is
`following`, `copying` or a problem (`CopyProblem`), or `promoted`. `findings` are the problems that this process found
in its files since its start, and what it did about them, also before the broker exists. `tls` has the fingerprints of
the certificates in use: what clients are shown (`server`), what own connections trust (`client`), and what members of
the group show each other and trust (`member`).
"""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tallystick.node.http.admin_api import AdminView
from tallystick.replication.durable import DiskState
from tallystick.store.clock import wall_ms
from tallystick.store.engine.cleaning import used_part

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.broker.group.group_role import BrokerGroup
    from tallystick.node.core.configuration import Settings
    from tallystick.node.core.settings import BrokerSettings
    from tallystick.node.core.starting import StartProgress
    from tallystick.node.nameserver.server import NameServer
    from tallystick.node.tls.process import ProcessTls
    from tallystick.store.finding_log import FindingLog


def node_routes(view: AdminView) -> list[web.RouteDef]:
    """The route."""

    async def show(request: web.Request) -> web.Response:
        return web.json_response(view.node())

    return [web.get("/node", show)]


class ProcessClock:
    """When this process started, for people (ms since 1970), and its age (seconds)."""

    def __init__(self) -> None:
        self.started_ms = wall_ms()
        self._begin_s = time.monotonic()

    def to_json(self) -> dict[str, Any]:
        return {
            "version": version("tallystick"),
            "startedAt": self.started_ms,
            "uptimeSeconds": round(time.monotonic() - self._begin_s, 3),
        }


def nameserver_json(
    nameserver: NameServer | None, clock: ProcessClock, tls: ProcessTls, *, stopping: bool
) -> dict[str, Any]:
    """For a process that is only a name server."""
    phase = "stopping" if stopping else "starting" if nameserver is None else "ready"
    routes = None if nameserver is None else nameserver.routes
    return {
        "kind": "nameserver",
        **clock.to_json(),
        "phase": phase,
        "reason": None if phase == "ready" else phase,
        "brokers": 0 if routes is None else routes.address_count,
        "topics": 0 if routes is None else len(routes.topics()),
        "access": None if nameserver is None else nameserver.access_json(),
        "tls": tls.to_json(),
    }


def broker_json(
    settings: Settings,
    broker: Broker | None,
    start: StartProgress,
    clock: ProcessClock,
    findings: FindingLog,
    tls: ProcessTls,
    *,
    stopping: bool,
) -> dict[str, Any]:
    """For a process with a broker, which is None until it has started."""
    phase, reason = _phase(broker, start, stopping)
    mine = settings.broker if broker is None else broker.settings
    group = None if broker is None else broker.group
    return {
        "kind": "broker",
        **clock.to_json(),
        "phase": phase,
        "reason": reason,
        "cluster": mine.brokerClusterName,
        "group": mine.brokerName,
        "member": _member(settings) if group is None else group.number,
        "address": f"{mine.brokerIP1}:{mine.listenPort}",
        "externalAddress": mine.externalAddress,
        **_role(broker, group),
        "recovery": start.to_json() if broker is None else None,
        "peers": [] if group is None else _peers(group),
        "slaves": None if broker is None or broker.slaves is None else broker.slaves.to_json(),
        "copy": None if broker is None or broker.copying is None else broker.copying.to_json(),
        "disk": _disk(settings, broker),
        "store": None if broker is None else _store(broker),
        "timers": None if broker is None else broker.timers.to_json(),
        "scrub": None if broker is None else broker.store.scrub.to_json(),
        "access": None if broker is None or broker.access is None else broker.access.to_json(),
        "tls": {**tls.to_json(), **_member_tls(mine, group)},
        "findings": findings.to_json(),
        "unrepaired": [] if group is None else _unrepaired(group),
        "recovered": None if group is None else _recovered(group),
        "lastError": "" if broker is None else _last_error(broker),
    }


def _member_tls(settings: BrokerSettings, group: BrokerGroup | None) -> dict[str, Any]:
    mode = settings.groupTlsMode.name if settings.groupTlsCa else "disabled"
    return {"memberMode": mode, "member": None if group is None else group.member.tls_json()}


def _phase(broker: Broker | None, start: StartProgress, stopping: bool) -> tuple[str, str | None]:
    failure = None if broker is None else broker.failure()
    if failure is not None:
        return "failed", failure
    if stopping:
        return "stopping", "stopping"
    if broker is None:
        return start.phase, start.reason()
    reason, group = broker.unready(), broker.group
    if reason is None:
        return "ready", None
    if broker.copying is not None and not broker.copying.is_master:
        return "catching-up", reason
    if group is None or group.leads:
        return "unready", reason
    if not group.is_member:
        return "waiting-to-join", reason
    if group.member.leader in (None, group.number):
        return "electing", reason
    return "catching-up", reason


def _member(settings: Settings) -> int | None:
    """According to the settings, which may be wrong: that is reported elsewhere."""
    number = settings.store.dLegerSelfId.removeprefix("n")
    return int(number) if settings.store.enableDLegerCommitLog and number.isdecimal() else None


def _role(broker: Broker | None, group: BrokerGroup | None) -> dict[str, Any]:
    if group is None:
        follows = broker is not None and broker.copying is not None and not broker.copying.is_master
        return {"role": "none" if broker is None else "slave" if follows else "leader", "term": 0, "leader": None}
    status = group.status()
    if group.leads:
        role = "leader"
    elif not group.is_member:
        role = "none"
    else:
        role = "learner" if group.number in status.learners else "follower"
    return {"role": role, "term": status.term, "leader": status.leader}


def _unrepaired(group: BrokerGroup) -> list[dict[str, Any]]:
    """Damage of the member's log for which no other member has sent a sound copy yet."""
    return [
        {
            "firstEntry": each.first,
            "pos": each.pos,
            "end": each.end_pos,
            "noCopy": each.no_copy,
            "reason": each.reason,
        }
        for each in group.status().unrepaired
    ]


def _recovered(group: BrokerGroup) -> dict[str, Any] | None:
    """That the member was made the only voter of its group by force, and what it knew before."""
    found = group.status().recovered
    if found is None:
        return None
    before = found.before
    return {
        "reason": found.reason,
        "at": found.at_ms,
        "term": found.term,
        "lastEntry": before.last_index,
        "lastTerm": before.last_term,
        "committedEntry": before.commit_index,
        "lastStoreTimestamp": before.last_store_ms,
        "voters": before.voters,
    }


def _peers(group: BrokerGroup) -> list[dict[str, Any]]:
    return [
        {
            "member": peer.member,
            "voter": peer.voter,
            "connected": peer.connected,
            "lagBytes": peer.lag_bytes,
            "disk": None if peer.disk is None else peer.disk.name.lower(),
        }
        for peer in group.status().peers
    ]


def _disk(settings: Settings, broker: Broker | None) -> dict[str, Any]:
    path = settings.store.log_folder
    error = None if broker is None else _disk_error(broker)
    found: dict[str, Any] = {"path": str(path), "totalBytes": None, "freeBytes": None, "usedRatio": None}
    try:
        stat = os.statvfs(_existing(path))
    except OSError as problem:
        error = error or f"{path}: {problem.strerror}"
    else:
        total, free, used = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize, used_part(_existing(path))
        ratio = None if used is None else round(used, 4)
        found |= {"totalBytes": total, "freeBytes": free, "usedRatio": ratio}
    return found | {"healthy": error is None, "error": error}


def _disk_error(broker: Broker) -> str | None:
    error = broker.store.admission.failure() or broker.store.admission.no_room()
    if error is None and broker.group is not None:
        status = broker.group.status()
        if status.disk is not DiskState.OK:
            error = status.last_error or f"the disk is {status.disk.name.lower()}"
    return error


def _existing(path: Path) -> Path:
    """The nearest existing folder above: before the first start the own folder does not exist."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), path)


def _store(broker: Broker) -> dict[str, Any]:
    store = broker.store
    return {
        "firstPos": store.min_pos,
        "lastPos": store.max_pos,
        "flushedPos": store.flushed_pos,
        "committedPos": store.readable_end,
        "dispatchBehindBytes": store.figures.dispatch_behind_bytes,
    }


def _last_error(broker: Broker) -> str:
    known = broker.failure() or (broker.group.status().last_error if broker.group is not None else "")
    return known or broker.last_save_error
