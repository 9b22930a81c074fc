"""A broker registers with name servers of which one does not answer, as after the loss of its machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fake_broker import MemoryFile
from ports import free_ports

from tallystick.node.broker.services.registration import Registration
from tallystick.node.broker.tables.topics import TopicConfig, TopicTable
from tallystick.node.core.client import ClusterClient, RequestRefusedError
from tallystick.node.core.settings import BrokerSettings, NameServerSettings
from tallystick.node.nameserver.server import NameServer
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.store import fastjson
from tallystick.store.formats.message import Host

WAITING_S = 60
"""A request without an answer: longer than any of these tests may take."""


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A server that accepts connections and answers nothing: its address, and whether a request came."""
    reached = asyncio.Event()
    writers = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while await reader.read(1 << 16):
            reached.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", reached
    finally:
        for writer in writers:
            writer.close()
        server.close()


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[tuple[Registration, TopicTable, str, asyncio.Event]]:
    """A registration with the silent server and a name server, in this order; the address of the second one."""
    (port,) = free_ports(1)
    server = NameServer(NameServerSettings(port, "127.0.0.1", str(folder / "kvConfig.json")))
    await server.start()
    client = RemotingClient()
    async with silent() as (nowhere, reached):
        settings = BrokerSettings(
            brokerIP1="10.0.0.1",
            brokerName="a",
            brokerId=1,
            namesrvAddr=f"{nowhere};127.0.0.1:{port}",
            registerBrokerTimeoutMills=WAITING_S * 1000,
            autoCreateTopicEnable=False,
        )
        topics = TopicTable(MemoryFile(), settings, lambda: 1)
        registration = Registration(client, Host("10.0.0.1", 1001), topics, settings)
        try:
            yield registration, topics, f"127.0.0.1:{port}", reached
        finally:
            await client.close()  # requests in progress fail
            await registration.stop()
            await server.stop()


@asynccontextmanager
async def members(nameserver: str) -> AsyncIterator[Callable[[int, int], Registration]]:
    """Members of a group that register with this name server, each over its own connection, by their number and id.
    They wait for a successor as long as a test may take."""
    clients: list[RemotingClient] = []
    registrations: list[Registration] = []

    def member(number: int, broker_id: int) -> Registration:
        client = RemotingClient(
            {RequestCode.ARE_YOU_THERE: lambda connection, request: registration.answer(connection, request)}
        )
        settings = BrokerSettings(
            brokerName="a", brokerId=broker_id, namesrvAddr=nameserver, autoCreateTopicEnable=False
        )
        topics = TopicTable(MemoryFile(), settings, lambda: 1)
        host = Host("10.0.0.1", 1000 + number)
        registration = Registration(client, host, topics, settings, successor_s=WAITING_S)
        registration.term = 1
        clients.append(client)
        registrations.append(registration)
        return registration

    try:
        yield member
    finally:
        for client in clients:
            await client.close()
        for registration in registrations:
            registration.asked_by(nameserver)  # a stop does not wait
            await registration.stop()


def take(registration: Registration, broker_id: int, term: int) -> None:
    """As after an election."""
    registration.settings, registration.term = replace(registration.settings, brokerId=broker_id), term
    registration.begin()


async def until_told(nameserver: str, expected: dict[int, str]) -> None:
    """Until the name server has these brokers of the name, by their ids. TimeoutError."""
    async with asyncio.timeout(WAITING_S / 2), ClusterClient(nameserver) as client:
        while True:
            answer = await client.call(nameserver, RequestCode.GET_BROKER_CLUSTER_INFO, {})
            if fastjson.loads(answer.body)["brokerAddrTable"].get("a", {}).get("brokerAddrs") == expected:
                return
            await asyncio.sleep(0.01)


async def until_known(nameserver: str, topic: str) -> None:
    """Until the name server has a route for the topic. TimeoutError."""
    async with asyncio.timeout(WAITING_S / 2), ClusterClient(nameserver) as client:
        while True:
            try:
                await client.call(nameserver, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                return
            except RequestRefusedError:
                await asyncio.sleep(0.01)


async def test_a_silent_name_server_does_not_delay_the_next_role_at_another(tmp_path: Path) -> None:
    async with world(tmp_path) as (registration, _, nameserver, reached):
        registration.begin()
        await until_told(nameserver, {1: "10.0.0.1:1001"})
        await reached.wait()
        registration.settings, registration.term = replace(registration.settings, brokerId=0), 2
        registration.begin()
        await until_told(nameserver, {0: "10.0.0.1:1001"})


async def test_a_silent_name_server_delays_no_start_and_no_change(tmp_path: Path) -> None:
    async with world(tmp_path) as (registration, topics, nameserver, reached):
        registration.settings = replace(registration.settings, brokerId=0)  # topics are those of masters
        async with asyncio.timeout(WAITING_S / 2):
            await registration.start()
            await reached.wait()
        for name in ("first", "second"):
            topics.update(TopicConfig(name, 1, 1))
            registration.soon()
            await until_known(nameserver, name)


async def test_changes_while_a_name_server_is_silent_take_one_request(tmp_path: Path) -> None:
    async with world(tmp_path) as (registration, _, nameserver, _reached):
        first = registration.begin()
        while nameserver not in registration._told_ids:  # noqa: ASYNC110 -- its request has the state of this moment
            await asyncio.sleep(0)
        registration.settings, registration.term = replace(registration.settings, brokerId=0), 2
        again = [registration.begin() for _ in range(100)]
        assert all(each[0] is first[0] for each in again)
        await first[1]
        assert len(registration._registering) == 1, "the silent one"
        await until_told(nameserver, {0: "10.0.0.1:1001"})


async def brokers(client: ClusterClient, nameserver: str) -> dict[int, str]:
    """The brokers of the name, by their ids."""
    answer = await client.call(nameserver, RequestCode.GET_BROKER_CLUSTER_INFO, {})
    found: dict[int, str] = fastjson.loads(answer.body)["brokerAddrTable"].get("a", {}).get("brokerAddrs", {})
    return found


async def stays_master(client: ClusterClient, nameserver: str) -> None:
    """The first member is the master in each of some answers."""
    for _ in range(20):
        assert (await brokers(client, nameserver))[0] == "10.0.0.1:1000"


async def test_a_former_leader_stays_the_master_until_its_successor_registers(tmp_path: Path) -> None:
    """RocketMQ's producer fails at once while a name has no master, until it requests its routes again."""
    async with world(tmp_path) as (_, _, nameserver, _), members(nameserver) as member:
        former, successor, third = member(0, 0), member(1, 2), member(2, 3)
        for each in (former, successor, third):
            await asyncio.wait(each.begin())
        async with ClusterClient(nameserver) as client:
            take(former, 1, 2)
            take(third, 3, 2)
            await stays_master(client, nameserver)
            take(successor, 0, 2)
            found = await brokers(client, nameserver)
            while found[0] == "10.0.0.1:1000":
                found = await brokers(client, nameserver)
        assert found[0] == "10.0.0.1:1001"
        await until_told(nameserver, {0: "10.0.0.1:1001", 1: "10.0.0.1:1000", 3: "10.0.0.1:1002"})


async def test_a_former_leader_that_learns_late_of_its_successor_does_not_wait(tmp_path: Path) -> None:
    async with world(tmp_path) as (_, _, nameserver, _), members(nameserver) as member:
        former, successor = member(0, 0), member(1, 2)
        for each in (former, successor):
            await asyncio.wait(each.begin())
        take(successor, 0, 2)
        while nameserver not in former._asked_s:  # noqa: ASYNC110 -- the name server asks it
            await asyncio.sleep(0)
        await until_told(nameserver, {0: "10.0.0.1:1000"})
        take(former, 1, 2)
        await until_told(nameserver, {0: "10.0.0.1:1001", 1: "10.0.0.1:1000"})


async def test_a_question_about_an_earlier_place_does_not_end_the_wait(tmp_path: Path) -> None:
    async with world(tmp_path) as (_, _, nameserver, _), members(nameserver) as member:
        former = member(0, 0)
        former.asked_by(nameserver)
        await asyncio.wait(former.begin())
        take(former, 1, 2)
        async with ClusterClient(nameserver) as client:
            await stays_master(client, nameserver)


async def test_a_former_leader_that_stops_waits_for_its_successor(tmp_path: Path) -> None:
    async with world(tmp_path) as (_, _, nameserver, _), members(nameserver) as member:
        former, successor = member(0, 0), member(1, 2)
        for each in (former, successor):
            await asyncio.wait(each.begin())
        take(former, 1, 2)
        async with asyncio.TaskGroup() as group, ClusterClient(nameserver) as client:
            group.create_task(former.stop())
            await stays_master(client, nameserver)
            take(successor, 0, 2)
        await until_told(nameserver, {0: "10.0.0.1:1001"})


async def test_a_leader_that_is_elected_again_waits_no_longer(tmp_path: Path) -> None:
    async with world(tmp_path) as (_, _, nameserver, _), members(nameserver) as member:
        leader = member(0, 0)
        await asyncio.wait(leader.begin())
        take(leader, 1, 2)
        (waiting,) = leader.begin()
        take(leader, 0, 3)
        assert await waiting
        await until_told(nameserver, {0: "10.0.0.1:1000"})


async def test_a_name_server_that_does_not_ask_is_told_after_a_time(tmp_path: Path) -> None:
    """RocketMQ's name server replaces the address of the former leader without a question."""
    async with world(tmp_path) as (_, _, nameserver, _), members(nameserver) as member:
        former = member(0, 0)
        await asyncio.wait(former.begin())
        former._successor_s = 0.01
        take(former, 1, 2)
        await until_told(nameserver, {1: "10.0.0.1:1000"})
