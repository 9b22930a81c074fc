"""The port for slaves over real sockets: copies, cuts, refusals, strangers, SYNC_MASTER, and what the broker tells."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slave import Slave, log_bytes

from tallystick.node.broker.broker import Broker
from tallystick.node.broker.slaves import server as slave_server
from tallystick.node.broker.slaves.link import UNSENT_BYTES
from tallystick.node.broker.slaves.server import SlaveServer
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.http.metrics import SLAVE_METRICS
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.store.formats.message import Message, PutStatus
from tallystick.store.setting import SettingsError
from tallystick.store.settings import BrokerRole, FlushDiskType, StoreSettings

BROKER = BrokerSettings(
    brokerIP1="127.0.0.1", bindAddress="127.0.0.1", listenPort=0, brokerName="b", vipListenerEnable=False
)
SEGMENT = 1 << 16


def small(root: Path, **changes: Any) -> StoreSettings:
    sizes: dict[str, Any] = {"mappedFileSizeCommitLog": SEGMENT, "maxHashSlotNum": 100, "maxIndexNum": 400}
    sizes |= {"diskSpaceWarningLevelRatio": 1.0, "diskSpaceCleanForciblyRatio": 1.0}
    return StoreSettings(str(root), **(sizes | changes))


@asynccontextmanager
async def master(root: Path, **changes: Any) -> AsyncIterator[Broker]:
    broker = await Broker.start(BROKER, small(root, **changes))
    try:
        yield broker
    finally:
        await broker.stop()


def slaves_of(broker: Broker) -> SlaveServer:
    assert broker.slaves is not None
    return broker.slaves


async def fill(broker: Broker, count: int, seed: int = 1, size: int = 1500) -> None:
    dice = random.Random(seed)
    puts = [broker.store.writes.put(Message("T", n % 4, dice.randbytes(dice.randrange(size)))) for n in range(count)]
    assert all(result.status.stored for result in await asyncio.gather(*puts))


async def same(broker: Broker, slave: Slave) -> None:
    """The slave gets the whole log, byte for byte."""
    end = broker.store.log.written
    await slave.has(end)
    assert bytes(slave.log) == log_bytes(broker.store.settings.commit_log_folder, slave.begin, end)


async def until_stored(broker: Broker) -> None:
    """All connected slaves have the log."""
    async with asyncio.timeout(30):
        while any(each.behind_bytes for each in slaves_of(broker).states()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_slaves_get_the_same_bytes_while_messages_come(tmp_path: Path, flush: FlushDiskType) -> None:
    async with master(tmp_path, flushDiskType=flush) as broker:
        port = slaves_of(broker).port
        empty = await Slave().connect(port)
        await fill(broker, 200)
        whole = await Slave().connect(port, 1)
        newest = await Slave().connect(port)
        await fill(broker, 100, seed=2)
        for slave in (empty, newest):
            await same(broker, slave)
        await whole.has(broker.store.log.written)
        assert empty.begin == 0 and newest.begin > 0 and newest.begin % SEGMENT == 0
        assert whole.begin == 1 and whole.log == empty.log[1:]
        assert all(size <= 32 << 10 for slave in (empty, whole) for _, size in slave.parts)
        await until_stored(broker)
        assert [each.stored_pos for each in slaves_of(broker).states()] == [broker.store.log.written] * 3


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(cuts=st.lists(st.integers(0, 40_000), min_size=1, max_size=8), seed=st.integers(0, 999))
def test_a_connection_that_is_cut_at_any_byte_is_continued(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], seed: int
) -> None:
    async def story() -> None:
        async with master(tmp_path_factory.mktemp("master"), haTransferBatchSize=5000) as broker:
            slave = Slave()
            for number, cut in enumerate(cuts):
                await fill(broker, 10, seed=seed + number)
                await slave.connect(slaves_of(broker).port, after=cut)
                await fill(broker, 5, seed=seed - number)
                if cut < 3000:
                    await slave.ended()  # it gets at least that much
                else:
                    await slave.cut()
            await slave.connect(slaves_of(broker).port)
            await same(broker, slave)

    asyncio.run(story())


async def test_a_slave_continues_after_the_master_was_restarted(tmp_path: Path) -> None:
    slave = Slave()
    for round_ in range(3):
        async with master(tmp_path) as broker:
            await slave.connect(slaves_of(broker).port)
            await fill(broker, 60, seed=round_)
            await same(broker, slave)
        await slave.ended()


@pytest.mark.parametrize("asked", [10_000_000, -1])
async def test_a_slave_of_another_log_is_refused_and_named(tmp_path: Path, asked: int) -> None:
    async with master(tmp_path) as broker:
        await fill(broker, 10)
        for _ in range(3):
            slave = await Slave().connect(slaves_of(broker).port, asked)
            await slave.ended()
            assert not slave.parts
        (row,) = slaves_of(broker).to_json()["refused"]
        assert (
            row["state"] == ("ahead" if asked > 0 else "invalid") and row["host"] == "127.0.0.1" and row["times"] == 3
        )
        assert str(asked) in row["reason"]
        assert not slaves_of(broker).states()


async def test_a_slave_with_bytes_that_the_master_lost_gets_no_others(tmp_path: Path) -> None:
    """After a power loss of a master with ASYNC_FLUSH, its log grows again past the end of the slave's."""
    async with master(tmp_path) as broker:
        await fill(broker, 10)
        end = broker.store.log.written
    async with master(tmp_path) as broker:
        await fill(broker, 10, seed=2)
        slave = await Slave().connect(slaves_of(broker).port, end + 1)
        await slave.ended()
        assert not slave.parts and slaves_of(broker).to_json()["refused"][0]["state"] == "ahead"
        sound = await Slave(end).connect(slaves_of(broker).port)
        await same(broker, sound)


async def test_a_slave_that_needs_deleted_segments_is_refused(tmp_path: Path) -> None:
    async with master(tmp_path) as broker:
        await fill(broker, 400)
        broker.store.upkeep.min_pos = SEGMENT
        slave = await Slave().connect(slaves_of(broker).port, SEGMENT - 1)
        await slave.ended()
        assert not slave.parts and slaves_of(broker).to_json()["refused"][0]["state"] == "deleted"


async def test_a_segment_that_cannot_be_read_closes_the_connection_and_no_more(tmp_path: Path) -> None:
    async with master(tmp_path) as broker:
        await fill(broker, 400)
        broker.store.dispatcher.finish()  # dispatch reads the file as well
        first = broker.store.settings.commit_log_folder / f"{0:020}"
        aside = first.rename(tmp_path / "aside")
        slave = await Slave().connect(slaves_of(broker).port, 1)
        await slave.ended()
        assert slaves_of(broker).to_json()["refused"][0]["state"] == "unreadable"
        aside.rename(first)
        await slave.connect(slaves_of(broker).port, 1)
        await slave.has(broker.store.log.written)


async def test_a_slave_that_reports_more_than_it_was_sent_is_disconnected(tmp_path: Path) -> None:
    async with master(tmp_path, brokerRole=BrokerRole.SYNC_MASTER) as broker:
        slave = await Slave().connect(slaves_of(broker).port)
        slave.reports = False
        await fill(broker, 1)
        slave.send(struct.pack(">q", 1 << 40))
        await slave.ended()
        assert slaves_of(broker).to_json()["refused"][0]["state"] == "invalid"
        assert (await broker.store.writes.put(Message("T", 0, b""))).status is PutStatus.SLAVE_NOT_AVAILABLE


async def test_strangers_are_closed_and_cost_nobody_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_server, "MOST_CONNECTIONS", 8)
    times = {"haHousekeepingInterval": 200, "haSendHeartbeatInterval": 50}
    async with master(tmp_path, brokerRole=BrokerRole.SYNC_MASTER, **times) as broker:
        port = slaves_of(broker).port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        put = await broker.store.writes.put(Message("T", 0, b"x"))
        assert put.status is PutStatus.SLAVE_NOT_AVAILABLE, "a connection that says nothing is no slave"
        dice = random.Random(1)
        for _ in range(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(dice.choice([b"GET / HTTP/1.1\r\n\r\n", dice.randbytes(dice.randrange(1, 99)), b"\xff" * 8]))
            writer.close()
        slave = await Slave().connect(port)
        await fill(broker, 20)
        await same(broker, slave)
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 30) == b"", "closed without an answer"
            writer.close()
        await until_stored(broker)
        assert len(slaves_of(broker).states()) == 1 and not slave.closed.is_set()
        assert len(slaves_of(broker).to_json()["refused"]) <= 5


@pytest.mark.parametrize(
    ("allowed", "is_served"),
    [
        ("", True),
        ("127.0.0.1", True),
        ("10.0.0.0/8, 127.0.0.0/8", True),
        ("127.0.0.{1,2}", True),
        ("10.0.0.0/8", False),
    ],
)
async def test_only_slaves_of_allowed_addresses_get_the_log(tmp_path: Path, allowed: str, is_served: bool) -> None:
    settings = replace(BROKER, haAllowedAddresses=allowed)
    settings.validate()
    broker = await Broker.start(settings, small(tmp_path))
    try:
        await fill(broker, 5)
        slave = await Slave().connect(slaves_of(broker).port)
        if is_served:
            await same(broker, slave)
        else:
            await slave.ended()
            assert not slave.log
            assert slaves_of(broker).to_json()["refused"][0]["state"] == "foreign"
    finally:
        await broker.stop()


@pytest.mark.parametrize("wrong", ["10.0.0.0/33", "here", "10.0.0.{1,2"])
def test_a_wrong_list_of_slaves_stops_the_start(wrong: str) -> None:
    with pytest.raises(SettingsError, match="haAllowedAddresses"):
        replace(BROKER, haAllowedAddresses=wrong).validate()


@pytest.mark.parametrize("allowed", ["", "127.0.0.1"])
async def test_access_control_closes_the_port_for_slaves_without_a_list(tmp_path: Path, allowed: str) -> None:
    (tmp_path / "plain_acl.yml").write_text("accounts: []\n")
    settings = replace(BROKER, aclEnable=True, aclFile=str(tmp_path / "plain_acl.yml"), haAllowedAddresses=allowed)
    broker = await Broker.start(settings, small(tmp_path / "store"))
    try:
        assert (broker.slaves is not None) == bool(allowed)
    finally:
        await broker.stop()
    if not allowed:
        with pytest.raises(SettingsError, match="haAllowedAddresses"):
            await Broker.start(settings, small(tmp_path / "store", brokerRole=BrokerRole.SYNC_MASTER))


async def test_a_full_port_refuses_another_slave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_server, "MOST_CONNECTIONS", 2)
    async with master(tmp_path) as broker:
        slaves = [await Slave().connect(slaves_of(broker).port) for _ in range(2)]
        async with asyncio.timeout(30):
            while len(slaves_of(broker).states()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        more = await Slave().connect(slaves_of(broker).port)
        await more.ended()
        assert slaves_of(broker).to_json()["refused"][0]["state"] == "too-many"
        await fill(broker, 5)
        for slave in slaves:
            await same(broker, slave)


async def test_a_slave_that_reads_nothing_takes_bounded_memory_and_delays_no_other(tmp_path: Path) -> None:
    async with master(tmp_path, mappedFileSizeCommitLog=4 << 20) as broker:
        port = slaves_of(broker).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        reader.feed_data(b"x" * 16)  # it reads no further
        writer.write(struct.pack(">q", 0))
        for number in range(8):
            await fill(broker, 40, seed=number, size=100_000)
        slave = await Slave().connect(port, 1)
        await slave.has(broker.store.log.written)
        for link in slaves_of(broker).slaves:
            assert link._transport is not None
            assert link._transport.get_write_buffer_size() <= 2 * UNSENT_BYTES + (64 << 10)
        assert max(each.behind_bytes for each in slaves_of(broker).states()) > 4 << 20
        writer.transport.abort()


async def test_heartbeats_go_both_ways_and_silence_ends_the_connection(tmp_path: Path) -> None:
    times = {"haHousekeepingInterval": 400, "haSendHeartbeatInterval": 40}
    async with master(tmp_path, **times) as broker:
        await fill(broker, 3)
        slave = await Slave().connect(slaves_of(broker).port)
        end = broker.store.log.written
        async with asyncio.timeout(30):
            while slave.parts.count((end, 0)) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not slave.closed.is_set(), "its answers to heartbeats keep the connection"
        slave.reports = False
        await slave.ended()
        assert slaves_of(broker).to_json()["refused"][0]["state"] == "silent"


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_a_sync_master_acknowledges_what_a_slave_has(tmp_path: Path, flush: FlushDiskType) -> None:
    role = BrokerRole.SYNC_MASTER
    async with master(tmp_path, brokerRole=role, flushDiskType=flush, syncFlushTimeout=30_000) as broker:
        put = broker.store.writes.put
        assert (await put(Message("T", 0, b"1"))).status is PutStatus.SLAVE_NOT_AVAILABLE
        slave = await Slave().connect(slaves_of(broker).port)
        await slave.has(broker.store.log.written)
        await until_stored(broker)
        for number in range(50):
            result = await put(Message("T", 0, b"%d" % number))
            assert result.status is PutStatus.PUT_OK
            assert slave.end >= result.pos + result.size, "acknowledged, so the slave has it"
        await slave.cut()
        async with asyncio.timeout(30):
            while slaves_of(broker).states():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert (await put(Message("T", 0, b"3"))).status is PutStatus.SLAVE_NOT_AVAILABLE


async def test_a_slave_that_reports_nothing_is_waited_for_in_vain(tmp_path: Path) -> None:
    async with master(tmp_path, brokerRole=BrokerRole.SYNC_MASTER, syncFlushTimeout=50) as broker:
        slave = await Slave().connect(slaves_of(broker).port)
        slave.reports = False
        async with asyncio.timeout(30):
            while not slaves_of(broker).states():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert (await broker.store.writes.put(Message("T", 0, b""))).status is PutStatus.FLUSH_SLAVE_TIMEOUT


async def test_an_orderly_stop_gives_a_slave_the_rest(tmp_path: Path) -> None:
    async with master(tmp_path) as broker:
        slave = await Slave().connect(slaves_of(broker).port)
        await slave.has(0)
        await fill(broker, 300)
        end, folder = broker.store.log.written, broker.store.settings.commit_log_folder
    await slave.ended()
    assert slave.end == end and bytes(slave.log) == log_bytes(folder, 0, end)


# -- what the broker tells ---------------------------------------------------------------------------------------------


async def test_the_tools_and_the_metrics_see_the_slaves(tmp_path: Path) -> None:
    async with master(tmp_path) as broker:
        slave = await Slave().connect(slaves_of(broker).port)
        await fill(broker, 5)
        await same(broker, slave)
        await until_stored(broker)
        client = RemotingClient(name="test")
        address = f"127.0.0.1:{broker.advertised.port}"
        answer = await client.call(address, Command(RequestCode.GET_BROKER_HA_STATUS), 10)
        await client.close()
        body = json.loads(answer.body)
        (row,) = body["haConnectionInfo"]
        assert body["inSyncSlaveNums"] == 1 and body["master"] is True
        assert row["slaveAckOffset"] == row["transferFromWhere"] == broker.store.log.written and row["diff"] == 0
        (mine,) = slaves_of(broker).to_json()["connected"]
        assert mine["storedPos"] == broker.store.log.written and mine["behindBytes"] == 0 and mine["askedPos"] == 0
        values = {each.name: each.read(slaves_of(broker)) for each in SLAVE_METRICS}
        assert values["tally_slaves"] == 1 and values["tally_slave_sent_bytes_total"] == len(slave.log)
        assert broker.registration.ha_address == f"127.0.0.1:{slaves_of(broker).port}"
        assert broker.configuration()["haListenPort"] == str(slaves_of(broker).port)


async def test_without_a_port_nothing_is_registered(tmp_path: Path) -> None:
    async with master(tmp_path, haListenPort=0) as broker:
        assert broker.slaves is None and broker.registration.ha_address == ""


async def test_the_default_port_is_the_next_one_and_is_not_worth_a_failed_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from ports import free_port

    port = free_port()
    settings = replace(BROKER, listenPort=port, brokerIP2="127.0.0.2")
    broker = await Broker.start(settings, small(tmp_path / "a"))
    assert slaves_of(broker).port == port + 1 and broker.registration.ha_address == f"127.0.0.2:{port + 1}"
    await broker.stop()
    taken = await asyncio.start_server(lambda _, __: None, "127.0.0.1", port + 1)
    broker = await Broker.start(settings, small(tmp_path / "b"))
    assert broker.slaves is None and "no slave can connect" in caplog.text
    await broker.stop()
    for changes in ({"haListenPort": port + 1}, {"brokerRole": BrokerRole.SYNC_MASTER}):
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port + 1}"):
            await Broker.start(settings, small(tmp_path / "c", **changes))
    taken.close()
