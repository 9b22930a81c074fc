"""`Brokers` over the HTTP admin API of the nodes.

Only the leader of a group is read: a follower may not have applied a new topic yet, which would look like a missing
topic. Only a leader accepts changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from tallystick.operator.core.node_api import NodeApi, NodeError, NodeName, NodeRefusedError
from tallystick.operator.topics.kinds import Kind, S
from tallystick.operator.topics.ports import MAX_BATCH, GroupAddress, InUseError, RefusedError, SilentError

WRITE_SECONDS = 15.0
ASK_SECONDS = 3.0


class NodeBrokers:
    """Brokers, through the client for nodes."""

    def __init__(self, nodes: NodeApi) -> None:
        self._nodes = nodes

    async def read(self, kind: Kind[S], group: GroupAddress) -> Mapping[str, S]:
        leader = await self._leader(group)
        try:
            answer = await self._nodes.ask(leader, "GET", kind.path)
            return {row["name"]: kind.from_wire(row) for row in answer[kind.plural]}
        except NodeError as error:
            raise _told(error) from error
        except (KeyError, TypeError, ValueError) as error:
            raise SilentError(f"{leader} returned an invalid response: {error!r}") from error

    async def write(self, kind: Kind[S], group: GroupAddress, settings: Sequence[S]) -> Mapping[str, str]:
        assert 0 < len(settings) <= MAX_BATCH
        body = [each.to_wire() for each in settings]
        try:
            answer = await self._nodes.at_leader(
                _members(group), "POST", kind.path, body, timeout_seconds=WRITE_SECONDS
            )
            results = {row["name"]: row for row in answer["results"]}
        except NodeError as error:
            raise _told(error) from error
        except (KeyError, TypeError) as error:
            raise SilentError(f"{group.name} returned an invalid response: {error!r}") from error
        return {
            each.name: str(results.get(each.name, {}).get("error") or "the broker gave no reason")
            for each in settings
            if results.get(each.name, {}).get("result", "refused") == "refused"
        }

    async def delete(self, kind: Kind[S], group: GroupAddress, name: str, *, if_empty: bool) -> None:
        path = _path(kind, name) + ("?ifEmpty=true" if if_empty else "")
        try:
            await self._nodes.at_leader(_members(group), "DELETE", path, timeout_seconds=WRITE_SECONDS)
        except NodeRefusedError as error:
            if error.status == 412:
                raise InUseError(str(error)) from error
            if error.status != 404:
                raise _told(error) from error
        except NodeError as error:
            raise _told(error) from error

    async def figures(self, kind: Kind[S], group: GroupAddress, name: str) -> Mapping[str, int]:
        leader = await self._leader(group)
        try:
            answer = await self._nodes.ask(leader, "GET", _path(kind, name))
            return {key: int(answer[key]) for key in kind.figures}
        except NodeRefusedError as error:
            if error.status == 404:
                return {}
            raise _told(error) from error
        except NodeError as error:
            raise _told(error) from error
        except (KeyError, TypeError, ValueError) as error:
            raise SilentError(f"{leader} returned an invalid response: {error!r}") from error

    async def _leader(self, group: GroupAddress) -> NodeName:
        """Returns the member that reports to be the ready leader. SilentError: no member does."""
        waiting = {node.member: node for node in _members(group)}
        following: int | None = None
        said = "no member was asked"
        while waiting:
            node = waiting.pop(following if following in waiting else next(iter(waiting)))
            try:
                answer = await self._nodes.ask(node, "GET", "/group", timeout_seconds=ASK_SECONDS)
            except NodeError as error:
                said, following = str(error), None
                continue
            if answer.get("broker", {}).get("leads"):
                return node
            following = answer.get("leader")
            said = f"{node} is not a ready leader"
        raise SilentError(f"{group.name} has no reachable leader: {said}")


def _members(group: GroupAddress) -> list[NodeName]:
    """Returns the members of a group. The last leader is first, also if it is being removed."""
    nodes = [NodeName(group.namespace, group.cluster, group.number, member) for member in range(group.members)]
    number = group.leader.rpartition("-")[2]
    if group.leader and number.isdecimal():
        leader = NodeName(group.namespace, group.cluster, group.number, int(number))
        nodes = [leader, *(node for node in nodes if node != leader)]
    return nodes


def _path(kind: Kind[S], name: str) -> str:
    return f"{kind.path}/{quote(name, safe='')}"


def _told(error: NodeError) -> RefusedError | SilentError:
    """Converts an error of a node. 400: the broker rejects the change permanently. Other errors are temporary."""
    if isinstance(error, NodeRefusedError) and error.status == 400:
        return RefusedError(str(error))
    return SilentError(str(error))
