"""The replicated groups of tallystick: brokers that share a name and a log."""

from __future__ import annotations

from typing import Any

import orjson

from tallystick.admin.brokers import is_tallystick, state_of
from tallystick.admin.changing import Planned, carry_out
from tallystick.admin.models import Change, RaftGroup, RaftMember, Role
from tallystick.admin.servers import Place, Question, Servers, Topology
from tallystick.client import ClientError, NotFound
from tallystick.client.wire.codes import RequestCode, ResponseCode

_ROLES = {role.value: role for role in Role}
State = dict[str, Any]


class Raft:
    """The replicated groups of all clusters that the name servers know. A member that is not registered, because it is
    away or not a member yet, is known by what the others say."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def groups(self) -> list[RaftGroup]:
        """Returns all groups. Brokers of RocketMQ, and brokers without a group, are not here. ClientError: no name
        server answers."""
        question = self._servers.question()
        topology = await question.topology()
        states = await _states(question, topology)
        found = []
        for name in dict.fromkeys(place.name for place in topology.places):
            mine = {
                place: state for place, state in states.items() if place.name == name and state["group"] is not None
            }
            if mine:
                found.append(_group(name, mine))
        return found

    async def transfer(self, group: str, member: int | None = None, *, dry_run: bool = False) -> Change:
        """Transfers the leadership of a group to a member; None: to the one with the longest log. NotFound: there is no
        such group. ClientError: no name server answers."""
        ext = {} if member is None else {"target": str(member)}
        after = None if member is None else {"leader": member}
        return await self._change(group, "transfer", ext, after, dry_run)

    async def add(self, group: str, member: int, learner: bool = False, *, dry_run: bool = False) -> Change:
        """Adds a member: as a learner, or, one step for each call, as a learner that becomes a voter. Call it again
        until the step has the role. Errors as in `transfer`."""
        role = "learner" if learner else "voter"
        after = {"member": member, "role": role}
        return await self._change(group, "add", {"member": str(member), "role": role}, after, dry_run)

    async def remove(self, group: str, member: int, *, dry_run: bool = False) -> Change:
        """Removes a member. Errors as in `transfer`."""
        return await self._change(group, "remove", {"member": str(member)}, {"member": None}, dry_run)

    async def _change(self, group: str, action: str, ext: dict[str, str], after: Any, dry_run: bool) -> Change:
        question = self._servers.question()
        topology = await question.topology()
        places = topology.named(group)
        if not places:
            raise NotFound("name server", ResponseCode.QUERY_NOT_FOUND, f"there is no group {group}")
        leader = next((place for place in places if place.id == 0), None)
        if leader is None:
            plan = Planned(group, action, None, after, None, "the group has no leader now")
            return await carry_out([plan], dry_run=dry_run)
        before, problem = await _before(question, leader)

        async def work() -> Any:
            answer = await question.ask(leader, RequestCode.CHANGE_GROUP, {"action": action, **ext})
            return orjson.loads(answer.body)

        return await carry_out([Planned(leader.address, action, before, after, work, problem)], dry_run=dry_run)


async def _before(question: Question, leader: Place) -> tuple[Any, str | None]:
    """The members as the leader knows them, or why the group cannot be changed."""
    try:
        if not await is_tallystick(question, leader):
            return None, "it is a broker of RocketMQ"
        state = (await state_of(question, leader))["group"]
    except ClientError as error:
        return None, str(error)
    if state is None:
        return None, "the broker is not in a replicated group"
    return {"leader": state["leader"], "voters": state["voters"], "learners": state["learners"]}, None


async def _states(question: Question, topology: Topology) -> dict[Place, State]:
    """The states of all brokers of tallystick that answer."""

    async def state(place: Place) -> State:
        if not await is_tallystick(question, place):
            return {"node": None, "group": None}
        return await state_of(question, place)

    return await question.each(topology.places, state)


def _group(name: str, states: dict[Place, State]) -> RaftGroup:
    """What the leader says, or without one the member with the highest term."""
    newest = max(states.values(), key=lambda state: (state["group"]["broker"]["leads"], state["group"]["term"]))
    view, store = newest["group"], (newest["node"] or {}).get("store") or {}
    of_member = {state["group"]["member"]: state for state in states.values()}
    place = next(iter(states))
    leads = view["broker"]["leads"]
    peers = {peer["member"]: peer for peer in view["peers"]}
    numbers = sorted({*view["voters"], *view["learners"], *of_member, *peers})
    return RaftGroup(
        name,
        place.cluster,
        view["term"],
        view["leader"],
        store.get("committedPos"),
        [_member(number, view, peers.get(number), of_member.get(number), states) for number in numbers],
        None if leads else "no member that answers leads",
    )


def _member(
    number: int, view: State, peer: State | None, state: State | None, states: dict[Place, State]
) -> RaftMember:
    """`view`: of the leader; `peer`: its row of this member, None for itself; `state`: of the member itself."""
    own = None if state is None else state["group"]
    node = None if state is None else state["node"]
    place = next((place for place, each in states.items() if each is state), None)
    address = place.address if place is not None else _address(peer)
    role = Role.UNKNOWN
    if own is not None:
        role = Role.LEARNER if number in view["learners"] else _ROLES.get(str(own["role"]), Role.UNKNOWN)
    return RaftMember(
        number,
        address,
        Role.LEADER if own is not None and own["broker"]["leads"] else role,
        number in view["voters"],
        True if peer is None else peer["connected"],
        0 if own is not None and own["broker"]["leads"] else None if peer is None else peer["lag_bytes"],
        (own or {}).get("disk") if peer is None else peer["disk"],
        None if node is None else node.get("phase"),
        None if node is None else node.get("recovery"),
    )


def _address(peer: State | None) -> str | None:
    return None if peer is None or peer["address"] is None else f"{peer['address'][0]}:{peer['address'][1]}"
