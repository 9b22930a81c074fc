"""What an operator of Kubernetes asks over HTTP before and after a group takes the place of a RocketMQ master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from copying_lab import copied, hurry, tables, world
from following_lab import copy_of, followed, followers
from rocketmq_master import RocketmqNameServer

from tallystick.node.broker.broker import Broker
from tallystick.node.broker.copying import promotion as promotion_module
from tallystick.node.broker.copying.group_copy import GroupCopy
from tallystick.node.core.settings import HttpSettings
from tallystick.node.http.admin_api import AdminView
from tallystick.node.http.server import Probes, application
from tallystick.operator.clusters.adoption import copy_from, rehearsed, verified
from tallystick.operator.clusters.adoption_source import survey_of
from tallystick.operator.clusters.observed import AdoptionRow, Copy

LEVELS = "1s 5s"
BEARER = {"Authorization": "Bearer secret"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    monkeypatch.setattr(promotion_module, "STAYS_EQUAL_S", 0.05)


@asynccontextmanager
async def port(folder: Path, broker: Broker | None = None, *, with_token: bool = True) -> AsyncIterator[Any]:
    """Asks the HTTP port of a process: status and body."""
    file = folder / "token"
    file.write_text("secret")
    view = AdminView(lambda: broker, lambda: "this process is only a name server", dict)
    probes = Probes(lambda: None, lambda: None, lambda form: iter(()))
    app = application(probes, admin=view, settings=HttpSettings(adminTokenFile=str(file) if with_token else ""))

    async def ask(path: str, body: Any, headers: dict[str, str] = BEARER) -> tuple[int, Any]:
        async with client.post(path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async with TestClient(TestServer(app)) as client:
        yield ask


async def test_the_plan_has_what_decides_whether_a_master_can_be_replaced(tmp_path: Path) -> None:
    async with world(tmp_path) as w, port(tmp_path) as ask:
        w.master.tables = tables(1)
        w.master.settings |= {
            "messageDelayLevel": LEVELS,
            "aclEnable": "true",
            "autoCreateTopicEnable": "false",
        }
        status, body = await ask("/migration/plan", {"nameServers": f"127.0.0.1:1;{w.address}"})
        assert status == 200
        (row,) = body["brokers"]
        assert (row["broker"], row["master"], row["error"]) == ("b", w.master.address, "")
        (understood,) = survey_of(body)  # type: ignore[misc]  # by the operator
        assert (understood.name, understood.master, understood.log_bytes) == ("b", w.master.address, w.master.end)
        assert understood.settings["messageDelayLevel"] == LEVELS and understood.slaves == {}
        assert row["addresses"] == {"0": w.master.address} and row["cluster"] == "C"
        assert row["bytes"] == w.master.end and row["topics"] == 2 and row["obstacles"] == []
        assert any("aclEnable" in text for text in row["different"])
        assert row["settings"]["messageDelayLevel"] == LEVELS and row["settings"]["autoCreateTopicEnable"] == "false"
        assert row["defaults"]["messageDelayLevel"].startswith("1s 5s 10s")
        assert row["defaults"]["autoCreateTopicEnable"] == "true"


async def test_a_master_that_does_not_answer_is_a_row_with_its_error(tmp_path: Path) -> None:
    nameserver = await RocketmqNameServer().start()
    nameserver.addresses = {"b": {0: "127.0.0.1:1"}, "c": {1: "127.0.0.1:1"}}
    try:
        async with port(tmp_path) as ask:
            status, body = await ask("/migration/plan", {"nameServers": nameserver.address})
    finally:
        await nameserver.close()
    first, second = body["brokers"]
    assert status == 200 and "its master 127.0.0.1:1 does not answer" in first["error"]
    assert first["broker"] == "b" and "version" not in first
    assert second["error"] == "it has no master" and second["master"] is None


async def test_what_cannot_be_planned_is_refused_with_its_reason(tmp_path: Path) -> None:
    async with port(tmp_path) as ask:
        status, body = await ask("/migration/plan", {"nameServers": "127.0.0.1:1"})
        assert status == 502 and "no name server answers" in body["error"]
        assert (await ask("/migration/plan", {"nameServers": "127.0.0.1:1"}, {}))[0] == 401
        for wrong in ({}, {"nameServers": " "}, {"nameServers": 5}, {"nameServers": "a:1", "more": 1}, [1]):
            assert (await ask("/migration/plan", wrong))[0] == 400, wrong
        assert (await ask("/migration/plan", {"nameServers": ";".join(["a:1"] * 17)}))[0] == 400
        status, body = await ask("/migration/comparison", {})
        assert status == 503 and "only a name server" in body["error"]
    async with port(tmp_path, with_token=False) as ask:
        status, body = await ask("/migration/plan", {"nameServers": "127.0.0.1:1"})
        assert status == 403 and "adminTokenFile" in body["error"], "anyone could make it connect anywhere"


async def test_a_group_is_compared_with_the_master_that_it_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as w:
        w.master.tables = tables(1)
        async with w.slave(brokerId=9) as slave, followers(w, tmp_path) as group:
            leader = await group.leader()
            await followed(leader, w)
            await copied(slave, w.master)
            assert copy_of(leader).counterpart == w.master.address
            assert copy_of(leader).to_json()["fenced"] is False
            understood = copy_from({"copy": copy_of(leader).to_json()})
            assert understood == Copy("following", master=w.master.address, behind_bytes=0)
            # The master of this lab answers no pulls. The slave has the same log, and does.
            monkeypatch.setattr(GroupCopy, "counterpart", property(lambda _: str(slave.advertised)))
            async with port(tmp_path, leader) as ask:
                status, body = await ask("/migration/comparison", {"sample": 50})
                assert status == 200, body
                assert body["with"] == str(slave.advertised)
                assert "50 messages compared" in rehearsed(AdoptionRow(), body, 1.0).rehearsal
                assert "50 messages compared" in verified(AdoptionRow(), body, 1.0).verification
                assert (body["sampled"], body["behind"], body["problems"]) == (50, 0, []) and body["queues"] > 0
                for wrong in ({"sample": -1}, {"sample": 10_001}, {"sample": "5"}, {"sample": True}, {"x": 1}):
                    assert (await ask("/migration/comparison", wrong))[0] == 400, wrong
                await slave.stop()
                status, body = await ask("/migration/comparison", {"sample": 1})
                assert status == 502 and str(slave.advertised) in body["error"]


async def test_a_broker_without_a_master_compares_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as w, followers(w, tmp_path, 3) as group:
        leader = await group.leader()
        other = next(each for each in group.members.values() if each is not leader)
        async with port(tmp_path, other) as ask:
            status, body = await ask("/migration/comparison", {})
            assert status == 409 and body["leader"] == leader.group.number


async def test_a_fence_that_a_killed_promotion_left_is_shown(tmp_path: Path) -> None:
    async with world(tmp_path) as w, followers(w, tmp_path) as group:
        w.master.tables = tables(1)
        leader = await group.leader()
        await followed(leader, w)
        copy = copy_of(leader)
        fencing = promotion_module.Promotion(copy)
        await fencing._fence(copy.follower.master)
        assert copy.to_json()["fenced"] is True and w.master.settings["brokerRole"] == "SLAVE"
        await copy.take_back()
        assert copy.to_json()["fenced"] is False and w.master.settings["brokerRole"] == "ASYNC_MASTER"
        await copy.promote()
        assert copy_from({"copy": copy.to_json()}) == Copy("promoted")
        assert copy.to_json()["state"] == "promoted" and copy.counterpart == w.master.address


async def test_a_group_with_another_identity_takes_the_place_of_a_master(tmp_path: Path) -> None:
    """As the operator starts it: `dLegerGroup` is its own name, and brokerName alone is the master's."""
    async with world(tmp_path) as w, followers(w, tmp_path, dLegerGroup="orders-0") as group:
        w.master.tables = tables(1)
        leader = await group.leader()
        await followed(leader, w)
        assert leader.group is not None and leader.group.status().group == "orders-0"
        assert leader.settings.brokerName == w.master.name and leader.settings.brokerClusterName != "C"
        await copy_of(leader).promote()
        assert (await w.registered())[0] == str(leader.advertised)
