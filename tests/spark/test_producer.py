"""The sink's producer against a scripted broker: lost answers, refusals of both kinds, brokers that move or vanish."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.server import RemotingServer
from tallystick.spark.outgoing import KeyMaker, messages_of
from tallystick.spark.producer import Producer, SendError, Sent, Target
from tallystick.store import fastjson
from tallystick.store.formats import properties

Answer = Callable[["Broker", Command], int | None]


class Broker:
    """A broker and its name server. `answer` returns the code for a send; None: the connection breaks instead of an
    answer. `stored`: (queue, unique key) of each message that was answered as stored, in order."""

    def __init__(self, answer: Answer = lambda broker, command: 0, queues: int = 4) -> None:
        self.answer, self.queues = answer, queues
        self.requests: list[Command] = []
        self.stored: list[tuple[int, str]] = []
        self.most_at_a_time = 0
        self._running: dict[str, int] = {}
        self.port = 0

    async def send(self, connection: Any, command: Command) -> Command | None:
        self.requests.append(command)
        queue = (command.ext or {})["e"]
        self._running[queue] = self._running.get(queue, 0) + 1
        self.most_at_a_time = max(self.most_at_a_time, self._running[queue])
        await asyncio.sleep(0)
        self._running[queue] -= 1
        code = self.answer(self, command)
        if code is None:
            connection.close()
            return None
        if code in (0, 10, 11, 12):
            self.stored += [(int(queue), key) for key in keys_of(command)]
        return command.reply(code, remark="because", ext={"msgId": "x", "queueId": queue, "queueOffset": "0"})

    async def route(self, connection: Any, command: Command) -> Command:
        if (command.ext or {})["topic"] != "T":
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
        data = {"brokerName": "b", "brokerAddrs": {"0": f"127.0.0.1:{self.port}"}, "cluster": "c"}
        row = {"brokerName": "b", "perm": 6, "readQueueNums": 1, "writeQueueNums": self.queues, "topicSynFlag": 0}
        return command.reply(0, body=fastjson.dumps({"brokerDatas": [data], "queueDatas": [row]}))


def keys_of(command: Command) -> list[str]:
    if command.code == RequestCode.SEND_MESSAGE_V2:
        return [properties.decode((command.ext or {})["i"])["UNIQ_KEY"]]
    found, at = [], 0
    while at < len(command.body):
        size, _, _, _, body_bytes = struct.unpack_from(">iiiii", command.body, at)
        text = command.body[at + 22 + body_bytes : at + size].decode()
        found.append(properties.decode(text)["UNIQ_KEY"])
        at += size
    return found


@asynccontextmanager
async def serving(broker: Broker) -> AsyncIterator[Target]:
    routes: dict[int, Any] = {RequestCode.GET_ROUTEINFO_BY_TOPIC: broker.route}
    routes |= dict.fromkeys((RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE), broker.send)
    server = RemotingServer(routes)
    broker.port = await server.start("127.0.0.1", 0)
    try:
        yield Target(f"127.0.0.1:{broker.port}", None, "g", 2000, 30.0, 30.0)
    finally:
        await server.stop(0)


def rows(count: int, topic: str = "T", **columns: Any) -> Any:
    batch = pa.record_batch({"body": pa.array([b"x" * 100] * count), **columns})
    return messages_of(batch, KeyMaker("w", "", 0), 0, topic)


def all_keys(count: int) -> list[str]:
    return [message.unique_key for message in rows(count)]


async def sent(target: Target, messages: Any) -> Sent:
    async with Producer(target) as producer:
        await producer.send(messages)
        await producer.flush()
        return producer.sent


async def test_every_message_is_stored_once_in_batches_over_all_queues() -> None:
    async with serving(broker := Broker()) as target:
        assert await sent(target, rows(1000)) == Sent(1000, len(broker.requests), 0, 0)
    assert sorted(key for _, key in broker.stored) == all_keys(1000)
    assert {queue for queue, _ in broker.stored} == {0, 1, 2, 3}
    assert all(len(command.body) <= 2000 for command in broker.requests)
    assert len(broker.requests) < 120 and broker.most_at_a_time == 1


async def test_messages_with_one_order_key_are_in_one_queue_in_order_also_over_lost_answers() -> None:
    """The queue is that of Java's hash: "key-1" has 101943363."""
    failures = iter([None, 2, 0, None, 14, 215, 1])
    async with serving(broker := Broker(lambda broker, command: next(failures, 0))) as target:
        names = pa.array([f"key-{number % 3}" for number in range(300)])
        result = await sent(target, rows(300, order_key=names))
    by_key: dict[str, list[tuple[int, str]]] = {}
    for queue, key in broker.stored:
        by_key.setdefault(f"key-{int(key[-10:], 16) % 3}", []).append((queue, key))
    assert {name: {queue for queue, _ in found} for name, found in by_key.items()} == {
        "key-0": {101943362 % 4}, "key-1": {101943363 % 4}, "key-2": {101943364 % 4},
    }  # fmt: skip
    first_times = [list(dict.fromkeys(found)) for found in by_key.values()]
    assert all(found == sorted(found) for found in first_times)
    assert sum(map(len, first_times)) == 300
    # A connection that breaks takes the answers for other queues with it.
    assert len(broker.stored) - 300 <= result.doubled < 300 and result.doubled > 0


async def test_a_repeated_request_counts_as_possibly_doubled_only_without_an_answer() -> None:
    busy = iter([2, 14, 215])
    async with serving(Broker(lambda broker, command: next(busy, 0))) as target:
        assert (await sent(target, rows(10))).doubled == 0
    lost = iter([None])
    async with serving(broker := Broker(lambda broker, command: next(lost, 0))) as target:
        assert await sent(target, rows(10)) == Sent(10, 1, 10, 0)
    assert keys_of(broker.requests[0]) == keys_of(broker.requests[1]), "the same unique keys again"


async def test_messages_that_are_stored_but_not_synced_are_counted() -> None:
    async with serving(broker := Broker(lambda broker, command: 10 + len(broker.requests) % 3)) as target:
        assert (await sent(target, rows(50))).unsynced == 50
    assert len(broker.stored) == 50


async def test_the_illegal_message_of_a_batch_is_named_and_its_neighbours_are_stored() -> None:
    wrong = all_keys(16)[11]

    def refuse(broker: Broker, command: Command) -> int:
        return ResponseCode.MESSAGE_ILLEGAL if wrong in keys_of(command) else 0

    async with serving(broker := Broker(refuse, queues=1)) as target:
        with pytest.raises(SendError, match=rf"because \(code 13\): the message {wrong} of topic T were not confirmed"):
            await sent(target, rows(16))
    assert [key for _, key in broker.stored] == all_keys(11)


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST])
async def test_a_final_refusal_ends_the_task_at_once(code: int) -> None:
    async with serving(broker := Broker(lambda broker, command: code)) as target:
        with pytest.raises(SendError, match=f"because .code {code}.: 5 messages, .* of topic T were not confirmed$"):
            await sent(target, rows(5))
    assert len(broker.requests) == 1


async def test_a_topic_that_does_not_exist_is_named() -> None:
    async with serving(Broker()) as target:
        with pytest.raises(SendError, match=r"topic Nothing: .*no such topic"):
            await sent(target, rows(5, "Nothing"))
    async with serving(Broker(queues=0)) as target:
        with pytest.raises(SendError, match="topic T has no queue that may be written"):
            await sent(target, rows(5))


async def test_repeating_ends_with_the_time_and_says_that_the_result_is_unknown() -> None:
    async with serving(broker := Broker(lambda broker, command: None)) as target:
        with pytest.raises(SendError, match=r"for 0.3 s: 5 messages, .* were not confirmed, and may have been stored"):
            await sent(replace(target, retry_s=0.3), rows(5))
    assert len(broker.requests) >= 2
    async with serving(Broker(lambda broker, command: 2)) as target:
        with pytest.raises(SendError, match=r"for 0 s: 5 messages, .* were not confirmed$"):
            await sent(replace(target, retry_s=0), rows(5))


async def test_without_a_name_server_the_task_ends_after_the_time() -> None:
    with pytest.raises(SendError, match="topic T: no name server answers"):
        await sent(Target("127.0.0.1:1", None, "g", 2000, 1.0, 0.1), rows(5))


async def test_delayed_messages_are_sent_alone() -> None:
    async with serving(broker := Broker()) as target:
        levels = pa.array([number % 2 * 3 for number in range(200)])
        assert (await sent(target, rows(200, delay_level=levels))).messages == 200
    alone = [command for command in broker.requests if command.code == RequestCode.SEND_MESSAGE_V2]
    levels_sent = [properties.decode((command.ext or {})["i"]).get("DELAY") for command in alone]
    assert levels_sent.count("3") == 100, "the others may be the rest of a batch"
    assert sorted(key for _, key in broker.stored) == all_keys(200)


async def test_a_message_larger_than_a_batch_is_sent_alone() -> None:
    batch = pa.record_batch({"body": pa.array([b"a", b"x" * 5000, b"b"])})
    async with serving(broker := Broker(queues=1)) as target:
        await sent(target, messages_of(batch, KeyMaker("w", "", 0), 0, "T"))
    assert [len(keys_of(command)) for command in broker.requests] == [1, 1, 1]
    assert [key for _, key in broker.stored] == all_keys(3)
