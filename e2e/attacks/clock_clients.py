"""Requests that depend on the broker's clock: locks, held pulls, delayed messages, transactions, heartbeats."""

from __future__ import annotations

import asyncio
import time

from attacks.traffic import GROUP, send_command

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import FLAG_ONEWAY, Command
from tallystick.node.remoting.connection import Connection
from tallystick.store import fastjson
from tallystick.store.formats import properties
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_PREPARED

TOPIC, HELD_TOPIC, LATER_TOPIC = "clock", "clock-held", "clock-later"
DELAY_LEVEL, DELAY_S = 2, 5.0
_ANSWER_S = 30.0


class ClockClients:
    """One connection of a consumer and producer that sends one heartbeat, and its requests."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.client = RemotingClient({RequestCode.CHECK_TRANSACTION_STATE: self._on_check}, name="clock")
        self.checked: dict[str, float] = {}
        """Half messages that the broker checked, with the (monotonic) time of the first check."""

    async def heartbeat(self) -> None:
        """Sends a heartbeat."""
        subscription = {"topic": TOPIC, "subString": "*", "expressionType": "TAG", "subVersion": 0}
        consumer = {
            "groupName": "clock-readers",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [subscription],
        }
        body = {"clientID": "clock-1", "consumerDataSet": [consumer], "producerDataSet": [{"groupName": GROUP}]}
        await self._call(Command(RequestCode.HEART_BEAT, body=fastjson.dumps(body)))

    async def is_known(self) -> bool:
        """Whether the broker has the client of the last heartbeat in its group."""
        command = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": "clock-readers"})
        answer = await self.client.call(self.broker, command, _ANSWER_S)
        return answer.code == 0 and b"clock-1" in answer.body

    async def lock(self, client_id: str, queue_id: int = 0) -> bool:
        """Whether this client gets the lock of a queue, or has it."""
        queue = {"brokerName": "broker-a", "topic": TOPIC, "queueId": queue_id}
        body = {"clientId": client_id, "consumerGroup": "clock-readers", "mqSet": [queue]}
        answer = await self._call(Command(RequestCode.LOCK_BATCH_MQ, body=fastjson.dumps(body)))
        return bool(fastjson.loads(answer.body)["lockOKMQSet"])

    async def held_pull(self, wait_s: float) -> float:
        """Pulls from an empty queue; returns the seconds until the answer."""
        begin_s = time.monotonic()
        async with ClusterClient("", timeout_s=_ANSWER_S * 2) as client:
            await client.pull(QueueAddress(HELD_TOPIC, "", self.broker, 0), 0, group=GROUP, wait_s=wait_s)
        return time.monotonic() - begin_s

    async def later(self, name: str) -> None:
        """Sends a delayed message. AssertionError: it was refused."""
        command = send_command(LATER_TOPIC, 0, f"{name}|".encode(), {properties.DELAY: str(DELAY_LEVEL)})
        assert (await self._call(command)).code == 0

    async def half(self, name: str) -> None:
        """Sends a half message that is not ended until the broker asks. AssertionError: it was refused."""
        pairs = {properties.TRAN_MSG: "true", properties.PGROUP: GROUP, properties.UNIQ_KEY: name}
        command = send_command(LATER_TOPIC, 0, f"{name}|".encode(), pairs)
        assert command.ext is not None
        command.ext["f"] = str(TRANSACTION_PREPARED)
        assert (await self._call(command)).code == 0

    async def _on_check(self, connection: Connection, command: Command) -> None:
        ext = command.ext or {}
        name = ext["transactionId"]
        self.checked.setdefault(name, time.monotonic())
        fields = {
            "producerGroup": GROUP,
            "tranStateTableOffset": ext["tranStateTableOffset"],
            "commitLogOffset": ext["commitLogOffset"],
            "commitOrRollback": str(TRANSACTION_COMMIT),
            "fromTransactionCheck": "true",
            "msgId": name,
            "transactionId": name,
        }
        connection.oneway(Command(RequestCode.END_TRANSACTION, flag=FLAG_ONEWAY, ext=fields))

    async def _call(self, command: Command) -> Command:
        answer = await self.client.call(self.broker, command, _ANSWER_S)
        assert answer.code == 0, f"refused with {answer.code} {answer.remark}"
        return answer

    async def close(self) -> None:
        await self.client.close(grace_s=0.0)


class Arrivals:
    """The time at which each message of `LATER_TOPIC` arrived, by its id; monotonic seconds."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self.came: dict[str, list[float]] = {}

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        at = 0
        async with ClusterClient("", timeout_s=_ANSWER_S) as client:
            queue = QueueAddress(LATER_TOPIC, "", self._broker, 0)
            while True:
                pulled = await client.pull(queue, at, group=GROUP)
                for record in pulled.records:
                    self.came.setdefault(record.body.split(b"|")[0].decode(), []).append(time.monotonic())
                at = pulled.next_offset
                if not pulled.records:
                    await asyncio.sleep(0.05)
