"""A client of the HTTP API of broker nodes: JSON, authenticated with the token of the cluster.

Every member answers reads. Only the leader of a group accepts changes; other members reject them and name the leader
(409 with `leader`). The client remembers the last leader, so most changes need one request.
"""

from __future__ import annotations

import asyncio
import ssl
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


class Trust:
    """Which nodes serve TLS, and how their certificates are verified. The reconciler of clusters keeps it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[bytes, ssl.SSLContext | None, frozenset[str]]] = {}

    def set(self, namespace: str, cluster: str, authorities: bytes, nodes: frozenset[str]) -> None:
        """`authorities`: certificates as PEM, maybe none; `nodes`: the names of the nodes that serve TLS."""
        before = self._known.get((namespace, cluster))
        context = before[1] if before is not None and before[0] == authorities else _verifying(authorities)
        self._known[namespace, cluster] = authorities, context, nodes

    def forget(self, namespace: str, cluster: str) -> None:
        """Forgets a deleted cluster."""
        self._known.pop((namespace, cluster), None)

    def context(self, node: NodeName | NameServerName) -> ssl.SSLContext | None:
        """Returns the context of a connection to a node; None: without TLS.

        UnreachableError: whether it serves TLS is unknown, or its authority is. The token is not sent then.
        """
        known = self._known.get((node.namespace, node.cluster))
        if known is None:
            raise UnreachableError(f"{node}: the cluster was not observed yet")
        _, context, nodes = known
        if str(node) not in nodes:
            return None
        if context is None:
            raise UnreachableError(f"{node}: the authority of its certificate is unknown")
        return context


def _verifying(authorities: bytes) -> ssl.SSLContext | None:
    if not authorities.strip():
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii"))
    except (ssl.SSLError, UnicodeError, ValueError):
        return None
    return context


def node_session() -> aiohttp.ClientSession:
    """Returns a session with a new connection for each request.

    A reused connection through a Service could stay on the old process of a restarted node.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=MAX_CONNECTIONS))


class NodeApi:
    """Sends requests to nodes. `token(namespace, cluster)` returns the token of a cluster."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url_template: str,
        token: Callable[[str, str], str],
        trust: Trust | None = None,
    ) -> None:
        """`trust` None: no node serves TLS."""
        self._trust = trust
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
        context = None if self._trust is None else self._trust.context(node)
        if context is not None:
            base = "https:" + base.removeprefix("http:")
        headers = {"Authorization": f"Bearer {self._token(node.namespace, node.cluster)}"}
        data = None if body is None else orjson.dumps(body)
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method,
                base + path,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(timeout_seconds),
                ssl=context or True,
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
