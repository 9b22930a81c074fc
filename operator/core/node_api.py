"""The HTTP API of broker nodes, with the cluster's token: JSON in, JSON out, and three kinds of "no".

Reads are asked of every member; changes are for a group's leader, which others name when they refuse (409 with
`leader`). Who led last is remembered, so that a change is mostly one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

MAX_ANSWER_BYTES = 8 << 20
MAX_CONNECTIONS = 64
"""At once, to all nodes together; more wait."""


@dataclass(frozen=True, slots=True, order=True)
class NodeName:
    """One member of one group of a cluster."""

    namespace: str
    cluster: str
    group: int
    member: int

    def __str__(self) -> str:
        """What its BrokerNode, StatefulSet and Service are called."""
        return f"{self.cluster}-{self.group}-{self.member}"


class NodeError(Exception):
    """A node did not do it.

    NodeError
      UnreachableError      there was no answer, or none in time: it may be done or not
      NodeRefusedError      it says no, with its reason
        UnauthorizedError   it does not know our token
    """


class UnreachableError(NodeError):
    pass


class NodeRefusedError(NodeError):
    """`status`: HTTP's; `leader`: who leads the group as far as the node knows, None: it does not say."""

    def __init__(self, message: str, *, status: int, leader: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.leader = leader


class UnauthorizedError(NodeRefusedError):
    pass


def node_session() -> aiohttp.ClientSession:
    """A connection for each request: one through a Service stays with the process that took it, whoever runs there
    by now, and a node that was asked while it started went on to answer as one that starts."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=MAX_CONNECTIONS))


class NodeApi:
    """Asks nodes. `token(namespace, cluster)`: what they want to see."""

    def __init__(self, session: aiohttp.ClientSession, url_template: str, token: Callable[[str, str], str]) -> None:
        self._session = session
        self._url_template = url_template
        self._token = token
        self._leaders: dict[tuple[str, str, int], int] = {}

    async def ask(
        self, node: NodeName, method: str, path: str, body: Any = None, *, timeout_seconds: float = 5.0
    ) -> Any:
        """The JSON of the answer (None: it has none). Every NodeError."""
        base = self._url_template.format(node=node, namespace=node.namespace)
        headers = {"Authorization": f"Bearer {self._token(node.namespace, node.cluster)}"}
        data = None if body is None else orjson.dumps(body)
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method, base + path, data=data, headers=headers, timeout=aiohttp.ClientTimeout(timeout_seconds)
            ) as answer:
                content = bytearray()
                async for chunk in answer.content.iter_any():
                    content += chunk
                    if len(content) > MAX_ANSWER_BYTES:
                        raise NodeRefusedError(
                            f"{node}: {method} {path}: the response is too long", status=answer.status
                        )
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"{node}: {method} {path}: {reason}") from error
        return _understood(node, f"{method} {path}", status, bytes(content))

    async def at_leader(
        self,
        nodes: Sequence[NodeName],
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_seconds: float = 5.0,
    ) -> Any:
        """Asks the leader of the group whose members `nodes` are; who says that another one leads is believed.

        Nobody is asked twice, so this ends; the last error is the one that is raised. After an UnreachableError
        nobody else is asked to *change* something unless a member names itself as leader by taking it: changes have to
        be such that doing them twice is doing them once.
        """
        if not nodes:
            raise UnreachableError(f"{method} {path}: the group has no members")
        group = (nodes[0].namespace, nodes[0].cluster, nodes[0].group)
        waiting = {node.member: node for node in nodes}
        following = self._leaders.get(group)
        last: NodeError | None = None
        while waiting:
            member = following if following in waiting else next(iter(waiting))
            node = waiting.pop(member)
            try:
                answer = await self.ask(node, method, path, body, timeout_seconds=timeout_seconds)
            except NodeRefusedError as error:
                last, following = error, error.leader
                if error.status not in (409, 503) or error.leader == member:
                    self._leaders[group] = member
                    raise
            except UnreachableError as error:
                last, following = error, None
            else:
                self._leaders[group] = member
                return answer
        self._leaders.pop(group, None)
        assert last is not None
        raise last


def _understood(node: NodeName, about: str, status: int, content: bytes) -> Any:
    try:
        answer = orjson.loads(content) if content else None
    except ValueError as error:
        if 200 <= status < 300:
            raise NodeRefusedError(f"{node}: {about}: the response is not JSON", status=status) from error
        answer = {"error": content[:200].decode(errors="replace").strip()}
    if 200 <= status < 300:
        return answer
    said = answer if isinstance(answer, dict) else {}
    reason, leader = str(said.get("error") or f"HTTP status {status}"), said.get("leader")
    kind = UnauthorizedError if status == 401 else NodeRefusedError
    raise kind(f"{node}: {reason}", status=status, leader=leader if isinstance(leader, int) else None)


async def every(calls: Sequence[Any]) -> list[Any]:
    """Results of awaitables that may fail with NodeError, errors among them as values; any other error is raised."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, NodeError):
            raise result
    return list(results)
