"""A name server's second port, for clients outside of the brokers' network; and what brokers tell it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_broker import MemoryFile
from ports import free_ports

from tallystick.node.broker.services.registration import Registration
from tallystick.node.broker.tables.topics import TopicConfig, TopicTable
from tallystick.node.core.settings import UNDECIDED, BrokerSettings, NameServerSettings
from tallystick.node.nameserver.server import NameServer
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.server import Connection
from tallystick.store import fastjson
from tallystick.store.formats.message import Host
from tallystick.store.settings import SettingsError


class OneBroker:
    """A broker's requests to name servers, over a separate connection."""

    def __init__(self, nameservers: str, name: str, broker_id: int, port: int, external: str, *topics: str) -> None:
        self.settings = BrokerSettings(
            brokerIP1="10.0.0.1",
            brokerName=name,
            brokerClusterName="C",
            brokerId=broker_id,
            listenPort=port,
            namesrvAddr=nameservers,
            externalAddress=external,
            autoCreateTopicEnable=False,
        )
        self.client = RemotingClient()
        table = TopicTable(MemoryFile(), self.settings, lambda: 1)
        table.update(*(TopicConfig(topic, 2, 2) for topic in topics))
        self.registration = Registration(self.client, Host("10.0.0.1", port), table, self.settings)

    async def become(self, broker_id: int, term: int) -> None:
        self.registration.settings = replace(self.registration.settings, brokerId=broker_id)
        self.registration.term = term
        await self.registration.register_all()


class World:
    def __init__(self, folder: Path) -> None:
        inside, outside = free_ports(2)
        settings = NameServerSettings(
            inside, "127.0.0.1", str(folder / "kvConfig.json"), externalListenPort=outside, orderMessageEnable=True
        )
        self.server = NameServer(settings)
        self.inside, self.outside = f"127.0.0.1:{inside}", f"127.0.0.1:{outside}"
        self.client = RemotingClient()
        self.brokers: list[OneBroker] = []

    async def broker(self, name: str, broker_id: int, port: int, external: str, *topics: str) -> OneBroker:
        broker = OneBroker(self.inside, name, broker_id, port, external, *topics)
        self.brokers.append(broker)
        assert await broker.registration.register_all() == 1
        return broker

    async def ask(self, address: str, code: RequestCode, ext: dict[str, str] | None = None) -> Command:
        return await self.client.call(address, Command(code, ext=ext))

    async def route(self, address: str, topic: str) -> Any:
        answer = await self.ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return fastjson.loads(answer.body) if answer.code == 0 else answer.code

    async def clusters(self, address: str) -> tuple[dict[str, dict[int, str]], dict[str, list[str]]]:
        answer = fastjson.loads((await self.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)).body)
        return {name: row["brokerAddrs"] for name, row in answer["brokerAddrTable"].items()}, answer["clusterAddrTable"]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    await world.server.start()
    yield world
    for client in (world.client, *(broker.client for broker in world.brokers)):
        await client.close()
    await world.server.stop()


async def test_each_port_has_its_addresses(world: World) -> None:
    await world.broker("a", 0, 1001, "203.0.113.7:30001", "T")
    await world.broker("a", 2, 1002, "203.0.113.7:30002", "T")
    inside, outside = [await world.route(place, "T") for place in (world.inside, world.outside)]
    assert inside["brokerDatas"][0]["brokerAddrs"] == {0: "10.0.0.1:1001", 2: "10.0.0.1:1002"}
    assert outside["brokerDatas"][0]["brokerAddrs"] == {0: "203.0.113.7:30001", 2: "203.0.113.7:30002"}
    assert outside["queueDatas"] == inside["queueDatas"]
    assert outside.keys() == inside.keys(), "the order's configuration too"
    assert (await world.clusters(world.outside))[0] == {"a": {0: "203.0.113.7:30001", 2: "203.0.113.7:30002"}}
    assert (await world.clusters(world.inside))[0] == {"a": {0: "10.0.0.1:1001", 2: "10.0.0.1:1002"}}


async def test_an_unreachable_broker_is_omitted_outside(world: World) -> None:
    await world.broker("a", 0, 1001, "", "T", "only-a")
    await world.broker("b", 0, 1002, "b.example:30002", "T")
    await world.broker("b", 1, 1003, "", "T")
    outside = await world.route(world.outside, "T")
    assert [(row["brokerName"], row["brokerAddrs"]) for row in outside["brokerDatas"]] == [
        ("b", {0: "b.example:30002"})
    ]
    assert [row["brokerName"] for row in outside["queueDatas"]] == ["b"], "queues without a broker are no use"
    assert await world.route(world.outside, "only-a") == ResponseCode.TOPIC_NOT_EXIST
    assert await world.route(world.outside, "nobody's") == ResponseCode.TOPIC_NOT_EXIST
    assert await world.clusters(world.outside) == ({"b": {0: "b.example:30002"}}, {"C": ["b"]})
    assert (await world.clusters(world.inside))[1] == {"C": ["a", "b"]}
    topics = await world.ask(world.outside, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert "only-a" in fastjson.loads(topics.body)["topicList"], "all else is the same"


async def test_a_change_of_leadership_is_seen_at_both(world: World) -> None:
    first = await world.broker("g", UNDECIDED + 1, 1001, "x:1", "T")
    second = await world.broker("g", 2, 1002, "x:2", "T")
    await first.become(0, 1)
    await second.become(0, 2)
    await first.become(1, 2)
    assert (await world.clusters(world.outside))[0] == {"g": {0: "x:2", 1: "x:1"}}
    assert (await world.clusters(world.inside))[0] == {"g": {0: "10.0.0.1:1002", 1: "10.0.0.1:1001"}}
    await second.registration.stop()
    assert (await world.clusters(world.outside))[0] == {"g": {1: "x:1"}}


async def test_a_stopped_broker_is_unregistered_in_any_role(world: World) -> None:
    """Its leadership is lost while it stops: what it was told to tell must not bring it back."""
    broker = await world.broker("g", 0, 1001, "x:1", "T")
    broker.registration.settings = replace(broker.settings, brokerId=1)  # and no name server knows that yet
    goodbyes: list[str] = []
    unregister = world.server.server.routes[RequestCode.UNREGISTER_BROKER]

    def noted(connection: Connection, request: Command) -> Any:
        goodbyes.append((request.ext or {})["brokerId"])
        return unregister(connection, request)

    world.server.server.routes[RequestCode.UNREGISTER_BROKER] = noted
    await broker.registration.stop()
    assert await world.clusters(world.inside) == ({}, {})
    assert goodbyes == ["0"], "RocketMQ's name servers forget an address only under the id that it has there"
    await broker.become(1, 2)
    assert await world.clusters(world.inside) == ({}, {})


async def test_a_hello_that_is_under_way_does_not_outlive_the_goodbye(world: World) -> None:
    broker = await world.broker("g", 1, 1001, "x:1", "T")
    hello = asyncio.create_task(broker.become(0, 3))
    await asyncio.sleep(0)
    await asyncio.gather(broker.registration.stop(), hello)
    assert await world.clusters(world.inside) == ({}, {})


async def test_a_port_that_is_taken_ends_the_start_whole(tmp_path: Path) -> None:
    inside, outside = free_ports(2)
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", outside)
    settings = NameServerSettings(inside, "127.0.0.1", str(tmp_path / "kv.json"), externalListenPort=outside)
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{outside}"):
        await NameServer(settings).start()
    taken.close()
    await taken.wait_closed()
    again = NameServer(settings)
    assert await again.start() == inside
    await again.stop()


@pytest.mark.parametrize("address", ["host", "host:", ":1", "host:70000", "a:1;b:2"])
def test_an_external_address_is_one_place(address: str) -> None:
    with pytest.raises(SettingsError) as refused:
        BrokerSettings(externalAddress=address).validate()
    assert refused.value.key == "externalAddress"


def test_two_ports_are_two(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        NameServerSettings(externalListenPort=9876).validate()
    assert refused.value.key == "externalListenPort"


async def test_name_servers_of_clients_outside_have_the_external_address(world: World, tmp_path: Path) -> None:
    """RocketMQ's name servers know one address of a broker."""
    other = NameServer(NameServerSettings(0, "127.0.0.1", str(tmp_path / "other.json")))
    outside = f"127.0.0.1:{await other.start()}"
    broker = OneBroker(world.inside, "g", 0, 1001, "203.0.113.7:30001", "T")
    world.brokers.append(broker)
    broker.registration.settings = replace(broker.settings, externalNamesrvAddr=outside)
    broker.registration.settings.validate()
    try:
        assert await broker.registration.register_all() == 2
        assert (await world.clusters(outside))[0] == {"g": {0: "203.0.113.7:30001"}}
        assert (await world.clusters(world.inside))[0] == {"g": {0: "10.0.0.1:1001"}}
        await broker.registration.stop()
        assert await world.clusters(outside) == await world.clusters(world.inside) == ({}, {})
    finally:
        await other.stop()


@pytest.mark.parametrize("changes", [{}, {"externalAddress": "x:1", "externalNamesrvAddr": "host"}])
def test_a_name_server_of_clients_outside_needs_an_external_address(changes: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as refused:
        BrokerSettings(**{"externalNamesrvAddr": "a:1", **changes}).validate()  # type: ignore[arg-type]
    assert refused.value.key == "externalNamesrvAddr"
