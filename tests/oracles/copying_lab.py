"""A name server, a master as RocketMQ has it, and a tallystick slave, for the tests of copying and promotion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rocketmq_master import LogMaker, RocketmqMaster, RocketmqNameServer
from slave import log_bytes

from tallystick.node.broker.broker import Broker
from tallystick.node.broker.copying import follower as follower_module
from tallystick.node.broker.copying.follower import Follower
from tallystick.node.core.settings import BrokerSettings, NameServerSettings
from tallystick.node.nameserver.server import NameServer
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.store import fastjson
from tallystick.store._kernel import Door
from tallystick.store.settings import BrokerRole, StoreSettings

SEGMENT = 1 << 16
BROKER = BrokerSettings(
    brokerIP1="127.0.0.1", bindAddress="127.0.0.1", listenPort=0, brokerName="b", brokerId=1, vipListenerEnable=False
)


def hurry(monkeypatch: Any) -> None:
    """Shortens pauses that only spare other programs."""
    monkeypatch.setattr(follower_module, "_RETRY_S", 0.02)
    monkeypatch.setattr(follower_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(follower_module, "_EXTENT_PERIOD_MS", 20)
    monkeypatch.setattr(follower_module, "PERIOD_S", 0.05)
    monkeypatch.setattr(follower_module, "_OTHERS_PERIOD_S", 0.05)


def small(root: Path, **changes: Any) -> StoreSettings:
    sizes: dict[str, Any] = {"mappedFileSizeCommitLog": SEGMENT, "maxHashSlotNum": 100, "maxIndexNum": 4000}
    sizes |= {"diskSpaceWarningLevelRatio": 1.0, "diskSpaceCleanForciblyRatio": 1.0}
    return StoreSettings(str(root), brokerRole=BrokerRole.SLAVE, **(sizes | changes))


@dataclass
class World:
    """A name server, a master, and the folder of a slave."""

    folder: Path
    nameserver: NameServer
    address: str
    maker: LogMaker
    master: RocketmqMaster

    @asynccontextmanager
    async def slave(self, *, door: Door | None = None, **changes: Any) -> AsyncIterator[Broker]:
        broker_changes = {key: changes.pop(key) for key in ("brokerId", "brokerName") if key in changes}
        broker = await Broker.start(
            replace(BROKER, namesrvAddr=self.address, **broker_changes), small(self.folder / "slave", **changes), door
        )
        try:
            yield broker
        finally:
            await broker.stop()

    @property
    def copied(self) -> bytes:
        """The bytes of the slave's segments."""
        return log_bytes(self.folder / "slave" / "commitlog", 0, self.master.end)

    async def registered(self) -> dict[int, str]:
        client = RemotingClient(name="test")
        answer = await client.call(self.address, Command(RequestCode.GET_BROKER_CLUSTER_INFO), 10)
        await client.close(grace_s=0)
        table: dict[int, str] = fastjson.loads(answer.body)["brokerAddrTable"].get("b", {}).get("brokerAddrs", {})
        return {int(number): address for number, address in table.items()}


@asynccontextmanager
async def world(folder: Path, messages: int = 300) -> AsyncIterator[World]:
    nameserver = NameServer(NameServerSettings(0, "127.0.0.1", str(folder / "kv.json")))
    address = f"127.0.0.1:{await nameserver.start()}"
    maker = LogMaker(folder / "made", SEGMENT)
    log = maker.add(messages) if messages else b""
    master = await RocketmqMaster(log, SEGMENT).start(address)
    try:
        yield World(folder, nameserver, address, maker, master)
    finally:
        await master.close()
        await nameserver.stop()


def follower_of(broker: Broker) -> Follower:
    assert broker.copying is not None
    return broker.copying.follower


async def until(condition: Callable[[], Any]) -> None:
    """Returns when something has become true. TimeoutError."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # the conditions are of the code under test, which sets no events
            await asyncio.sleep(0.005)


async def copied(broker: Broker, master: RocketmqMaster) -> None:
    """Returns when the slave has the log and the tables."""
    found = follower_of(broker)
    await until(lambda: found.log.end == master.end and found.log.is_settled and found.unready() is None)


async def stuck(broker: Broker, problem: str) -> str:
    """Returns the reason when the slave has this problem."""
    found = follower_of(broker)
    await until(lambda: found.state == problem)
    return found.reason


@asynccontextmanager
async def rocketmq_nameserver(w: World) -> AsyncIterator[tuple[World, RocketmqNameServer]]:
    """The same world for brokers that also know a name server as RocketMQ has it."""
    nameserver = await RocketmqNameServer().start()
    try:
        yield replace(w, address=f"{w.address};{nameserver.address}"), nameserver
    finally:
        await nameserver.close()


@asynccontextmanager
async def another_slave(w: World, nameserver: RocketmqNameServer, number: int) -> AsyncIterator[RocketmqMaster]:
    """Another slave of the master, as RocketMQ has it, which registers at this name server."""
    other = RocketmqMaster(w.master.log, SEGMENT)
    other.settings |= {"brokerRole": "SLAVE", "brokerId": str(number)}
    await other.start(nameserver.address)
    try:
        yield other
    finally:
        await other.close()


async def send(broker: Broker, queue_id: int, *, topic: str = "T") -> tuple[int, int]:
    """Code and queue offset of a send by the network."""
    client = RemotingClient(name="test")
    ext = {
        "producerGroup": "p", "topic": topic, "queueId": str(queue_id), "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "",
    }  # fmt: skip
    try:
        command = Command(RequestCode.SEND_MESSAGE, ext=ext, body=b"new")
        answer = await client.call(str(broker.advertised), command, 20)
    finally:
        await client.close(grace_s=0)
    return answer.code, int((answer.ext or {}).get("queueOffset", -1))


def tables(n: int) -> dict[int, dict[str, Any]]:
    """The tables of a master, in two versions: only the first one has topic U."""
    row = {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    return {
        RequestCode.GET_ALL_TOPIC_CONFIG: {
            "topicConfigTable": {"T": row, **({"U": row | {"topicName": "U"}} if n == 1 else {})},
            "dataVersion": {"counter": n, "timestamp": 1},
        },
        RequestCode.GET_ALL_CONSUMER_OFFSET: {"offsetTable": {"T@g": {0: 5 + n, 1: 7}}},
        RequestCode.GET_ALL_DELAY_OFFSET: {"offsetTable": {3: 4 + n}},
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {
            "subscriptionGroupTable": {"g": {"groupName": "g", "retryMaxTimes": 2 + n}},
            "dataVersion": {"counter": n, "timestamp": 1},
        },
    }
