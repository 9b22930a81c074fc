"""The brokers of a cluster: roles, rates, disks, and the permission to write to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson

from tallystick.admin.changing import Planned, carry_out
from tallystick.admin.models import Broker, Change, Disk, Rates, Role
from tallystick.admin.servers import Place, Question, Servers
from tallystick.client import ClientError, NotFound, ProtocolError
from tallystick.client.wire.codes import RequestCode, ResponseCode

VERSION_KEY = "tallystickVersion"
"""The runtime information of tallystick's brokers has it."""
_ROLES = {role.value: role for role in Role}
_CAPACITY = re.compile(r"Total : ([0-9.]+) (\w+), Free : ([0-9.]+) (\w+)")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Brokers:
    """The brokers of all clusters that the name servers know."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def list(self) -> list[Broker]:
        """Returns all brokers that are registered. One that does not answer is not `reachable`. ClientError: no name
        server answers."""
        question = self._servers.question()
        topology = await question.topology()
        found = await question.each(topology.places, lambda place: describe(question, place))
        return list(found.values())

    async def get(self, address: str) -> Broker:
        """Returns one broker. NotFound: no broker with this address is registered. ClientError."""
        question = self._servers.question()
        return await describe(question, await registered(question, address))

    async def wipe_write_permission(self, name: str, *, dry_run: bool = False) -> Change:
        """Lets name servers tell producers to send nothing to a broker, so that it can be stopped when its messages are
        consumed. NotFound: there is no such broker. ClientError: no name server answers."""
        return await self._permit(name, RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipe write permission", dry_run)

    async def restore_write_permission(self, name: str, *, dry_run: bool = False) -> Change:
        """Undoes `wipe_write_permission`. Name servers of RocketMQ before 4.9 cannot do it: there, restart the broker.
        Errors as above."""
        return await self._permit(name, RequestCode.ADD_WRITE_PERM_OF_BROKER, "restore write permission", dry_run)

    async def _permit(self, name: str, code: int, action: str, dry_run: bool) -> Change:
        question = self._servers.question()
        if not (await question.topology()).named(name):
            raise NotFound("name server", ResponseCode.QUERY_NOT_FOUND, f"no broker has the name {name}")

        async def write(nameserver: str) -> dict[str, int]:
            fields = (await question.ask(nameserver, code, {"brokerName": name})).ext or {}
            return {"topics": int(fields.get("wipeTopicCount") or fields.get("addTopicCount") or 0)}

        plans = [
            Planned(address, action, None, {"broker": name}, partial(write, address))
            for address in self._servers.nameservers
        ]
        return await carry_out(plans, dry_run=dry_run)


async def registered(question: Question, address: str) -> Place:
    """Returns the broker that is registered with this address. NotFound, ClientError."""
    place = (await question.topology()).at(address)
    if place is None:
        raise NotFound("name server", ResponseCode.QUERY_NOT_FOUND, f"no broker has the address {address}")
    return place


async def runtime_of(question: Question, place: Place) -> dict[str, str]:
    """Returns the runtime information of a broker. ClientError."""
    table = (await question.table(place, RequestCode.GET_BROKER_RUNTIME_INFO)).get("table") or {}
    return {str(name): str(value) for name, value in table.items()}


async def is_tallystick(question: Question, place: Place) -> bool:
    """Whether a broker is tallystick's. ClientError."""
    return VERSION_KEY in await runtime_of(question, place)


async def describe(question: Question, place: Place) -> Broker:
    """Returns what a broker says about itself. It raises nothing: `problem` has the reason."""
    role = Role.MASTER if place.id == 0 else Role.SLAVE
    try:
        runtime = await runtime_of(question, place)
    except ClientError as error:
        reason = str(error).removeprefix(f"{place.address}: ")
        return Broker(*place[:4], role=role, reachable=False, problem=reason)
    ours = VERSION_KEY in runtime
    node, problem = None, None
    if ours:
        try:
            node = (await state_of(question, place))["node"]
        except ClientError as error:
            problem = f"its state cannot be read: {error}"
    return Broker(
        *place[:4],
        role=_role(role, runtime, node),
        reachable=True,
        problem=problem if node is None else node.get("reason"),
        version=runtime[VERSION_KEY] if ours else _rocketmq_version(runtime),
        is_tallystick=ours,
        started_ms=_number(runtime, "bootTimestamp"),
        rates=Rates(_rate(runtime, "putTps"), _rate(runtime, "getTransferedTps")),
        messages_today_in=_today(runtime, "Put"),
        messages_today_out=_today(runtime, "Get"),
        disk=_disk(runtime, node),
        runtime=runtime,
        node=node,
    )


async def state_of(question: Question, place: Place) -> dict[str, Any]:
    """Returns the state of a tallystick broker: `node` and `group`, as `GET /node` and `GET /group` have them; each can
    be None. ClientError. Ask only brokers of tallystick: RocketMQ 4 does not answer."""
    answer = await question.ask(place, RequestCode.DESCRIBE_NODE)
    try:
        found = orjson.loads(answer.body)
        return {"node": found["node"], "group": found["group"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"the state of {place} cannot be read: {error}", address=place.address) from error


def _role(default: Role, runtime: Mapping[str, str], node: Mapping[str, Any] | None) -> Role:
    if "groupMember" not in runtime:
        return default
    if node is not None and node.get("role") == Role.LEARNER.value:
        return Role.LEARNER
    return _ROLES.get(runtime.get("groupRole", ""), Role.UNKNOWN)


def _rocketmq_version(runtime: Mapping[str, str]) -> str:
    return runtime.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".")


def _number(runtime: Mapping[str, str], key: str) -> int | None:
    text = runtime.get(key, "")
    return int(text) if text.removeprefix("-").isdecimal() else None


def _rate(runtime: Mapping[str, str], key: str) -> float:
    """The first of three numbers: over about ten seconds."""
    try:
        return float(runtime.get(key, "0").split()[0])
    except (ValueError, IndexError):
        return 0.0


def _today(runtime: Mapping[str, str], what: str) -> int | None:
    now, morning = _number(runtime, f"msg{what}TotalTodayNow"), _number(runtime, f"msg{what}TotalTodayMorning")
    return None if now is None or morning is None else now - morning


def _disk(runtime: Mapping[str, str], node: Mapping[str, Any] | None) -> Disk:
    if node is not None and node.get("disk"):
        disk = node["disk"]
        return Disk(disk.get("usedRatio"), disk.get("totalBytes"), disk.get("freeBytes"), disk.get("error"))
    ratio = runtime.get("commitLogDiskRatio", "")
    try:
        used = float(ratio.split()[0]) if ratio else None
    except ValueError:
        used = None
    found = _CAPACITY.search(runtime.get("commitLogDirCapacity", ""))
    if found is None:
        return Disk(used)
    total, free = (float(found[at]) * _UNITS.get(found[at + 1], 0) for at in (1, 3))
    return Disk(used, int(total) or None, int(free) if total else None)
