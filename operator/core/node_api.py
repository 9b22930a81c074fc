"""A client of the HTTP API of broker nodes: JSON, authenticated with the token of the cluster.

Every member answers reads. Only the leader of a group accepts changes; other members reject them and name the leader
(409 with `leader`). The client remembers the last leader, so most changes need one request.
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
"""Limit of concurrent connections to all nodes; further requests wait."""


@dataclass(frozen=True, slots=True, order=True)
class NodeName:
    """One member of one group of a cluster."""

    namespace: str
    cluster: str
    group: int
    member: int

    def __str__(self) -> str:
        """Returns the name of its BrokerNode, StatefulSet and Service."""
        return f"{self.cluster}-{self.group}-{self.member}"


@dataclass(frozen=True, slots=True, order=True)
class NameServerName:
    """One name server of a cluster."""

    namespace: str
    cluster: str
    number: int

    def __str__(self) -> str:
        """Returns its DNS name within the namespace."""
        server = f"{self.cluster}-nameserver"
        return f"{server}-{self.number}.{server}-headless"


class NodeError(Exception):
    """A request to a node failed.

    NodeError
      UnreachableError      no response in time; the change may have been made
      NodeRefusedError      the node rejected the request, with a reason
        UnauthorizedError   the node rejected the token
    """


class UnreachableError(NodeError):
    pass


class NodeRefusedError(NodeError):
    """`status`: the HTTP status; `leader`: the leader of the group that the node knows, None: unknown."""

    def __init__(self, message: str, *, status: int, leader: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.leader = leader


class UnauthorizedError(NodeRefusedError):
    pass


def node_session() -> aiohttp.ClientSession:
    """Returns a session with a new connection for each request.

    A reused connection through a Service could stay on the old process of a restarted node.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=MAX_CONNECTIONS))


class NodeApi:
    """Sends requests to nodes. `token(namespace, cluster)` returns the token of a cluster."""

    def __init__(self, session: aiohttp.ClientSession, url_template: str, token: Callable[[str, str], str]) -> None:
        self._session = session
        self._url_template = url_template
        self._token = token
        self._leaders: dict[tuple[str, str, int], int] = {}

    async def ask(
        self,
        node: NodeName | NameServerName,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_seconds: float = 5.0,
    ) -> Any:
        """Returns the JSON of the response, None for an empty one. It may raise any NodeError."""
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
        """Sends a request to the leader of the group with the members `nodes`, following the leader that members name.

        Each member is asked at most once; the last error is raised. After an UnreachableError the next members are
        asked, so a change must be idempotent.
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


def _understood(node: NodeName | NameServerName, about: str, status: int, content: bytes) -> Any:
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
    """Returns the results of awaitables, with NodeErrors as values. Other errors are raised."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, NodeError):
            raise result
    return list(results)
