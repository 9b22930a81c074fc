"""The way to the nodes: tokens, three kinds of "no", and finding who leads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tallystick.operator.core import node_api
from tallystick.operator.core.admin_token import KEY_NAME, AdminTokens, load_key
from tallystick.operator.core.node_api import NodeApi, NodeName, NodeRefusedError, UnauthorizedError, UnreachableError

NODES = [NodeName("shop", "orders", 0, member) for member in range(3)]


class Group:
    """Three nodes behind one server, by the first part of the path. `leads`: who does; `asked`: who was."""

    def __init__(self) -> None:
        self.connections: set[Any] = set()
        self.leads: int | None = 1
        self.asked: list[int] = []
        self.says: dict[int, int | None] = {}
        self.token = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        member = int(request.match_info["node"].rpartition("-")[2])
        self.asked.append(member)
        self.token = request.headers.get("Authorization", "")
        self.connections.add(request.transport.get_extra_info("peername") if request.transport else None)
        if request.path.endswith("/denied"):
            return web.json_response({"error": "no such token"}, status=401)
        if request.path.endswith("/rubbish"):
            return web.Response(text="<html>")
        if request.path.endswith("/long"):
            return web.Response(body=b"x" * 100)
        if request.method != "GET" and member != self.leads:
            told = self.says.get(member, self.leads)
            return web.json_response({"error": "does not lead", "leader": told}, status=409)
        return web.json_response({"member": member, "body": await request.json() if request.can_read_body else None})


@pytest.fixture
async def lab() -> AsyncIterator[tuple[Group, NodeApi]]:
    group, app = Group(), web.Application()
    app.router.add_route("*", "/{node}/{path:.*}", group.handle)
    runner = web.AppRunner(app, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    async with node_api.node_session() as session:
        yield group, NodeApi(session, f"http://127.0.0.1:{port}/{{namespace}}-{{node}}", AdminTokens(b"k" * 32))
    await runner.cleanup()


async def test_a_question_carries_the_clusters_token(lab: tuple[Group, NodeApi]) -> None:
    group, api = lab
    assert await api.ask(NODES[2], "GET", "/group") == {"member": 2, "body": None}
    assert group.token == f"Bearer {AdminTokens(b'k' * 32)('shop', 'orders')}"
    assert AdminTokens(b"k" * 32)("shop", "other") not in group.token


async def test_every_request_goes_to_the_present_leader(lab: tuple[Group, NodeApi]) -> None:
    """Seen in a cluster: a connection that was kept was answered 404 long after its node had restarted."""
    group, api = lab
    for _ in range(3):
        await api.ask(NODES[0], "GET", "/group")
    assert len(group.connections) == 3


async def test_a_change_is_made_at_the_leader_and_the_next_one_at_once(lab: tuple[Group, NodeApi]) -> None:
    group, api = lab
    assert (await api.at_leader(NODES, "PUT", "/topics/t", {"a": 1}))["body"] == {"a": 1}
    assert group.asked == [0, 1]
    await api.at_leader(NODES, "PUT", "/topics/t", {})
    assert group.asked == [0, 1, 1]


async def test_nodes_that_name_each_other_are_asked_once_each(lab: tuple[Group, NodeApi]) -> None:
    group, api = lab
    group.leads, group.says = None, {0: 1, 1: 2, 2: 0}
    with pytest.raises(NodeRefusedError) as caught:
        await api.at_leader(NODES, "PUT", "/topics/t", {})
    assert group.asked == [0, 1, 2]
    assert caught.value.status == 409


async def test_a_leader_that_refuses_is_believed(lab: tuple[Group, NodeApi]) -> None:
    group, api = lab
    group.says = {0: 0}
    with pytest.raises(NodeRefusedError, match="orders-0-0: does not lead"):
        await api.at_leader(NODES, "PUT", "/topics/t", {})
    assert group.asked == [0]


async def test_kinds_of_no(lab: tuple[Group, NodeApi], monkeypatch: pytest.MonkeyPatch) -> None:
    _, api = lab
    with pytest.raises(UnauthorizedError, match="no such token"):
        await api.ask(NODES[0], "GET", "/denied")
    with pytest.raises(NodeRefusedError, match="not JSON"):
        await api.ask(NODES[0], "GET", "/rubbish")
    monkeypatch.setattr(node_api, "MAX_ANSWER_BYTES", 50)
    with pytest.raises(NodeRefusedError, match="too long"):
        await api.ask(NODES[0], "GET", "/long")


async def test_no_process_answers() -> None:
    async with aiohttp.ClientSession() as session:
        api = NodeApi(session, "http://127.0.0.1:1/{node}", lambda namespace, cluster: "t")
        with pytest.raises(UnreachableError):
            await api.at_leader(NODES, "GET", "/group", timeout_seconds=5)


async def test_one_key_for_operators_that_come_at_once() -> None:
    from simulated_api import SimulatedApi
    from simulated_cluster import InlineKube

    api = SimulatedApi(lambda: 0.0)
    one, two = await load_key(InlineKube(api), "system"), await load_key(InlineKube(api), "system")
    assert one == two and len(one) == 32
    body: dict[str, Any] = api.objects["secrets", "system", KEY_NAME]
    body["data"] = {"key": "c2hvcnQ="}
    with pytest.raises(ValueError, match="delete it"):
        await load_key(InlineKube(api), "system")
