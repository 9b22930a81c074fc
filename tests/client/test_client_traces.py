"""Message traces in RocketMQ's topic. `make client-lab ONLY=traces` compares them with those of the Java client."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tallystick.client import Client, ClientError, Message, Observer, Outcome, Sending, SendResult, Start, Stored
from tallystick.client.observing.observer import SendEnd
from tallystick.client.observing.records import Record
from tallystick.client.producing import trace_topic
from tallystick.client.producing.trace_topic import LIMIT_RECORDS, TRACE_TOPIC, TraceTopic
from tallystick.client.testing import Broker

PATIENCE_S = 60.0


async def records(client: Client, count: int, topic: str = TRACE_TOPIC) -> tuple[list[list[str]], list[Stored]]:
    """The first records of a topic of traces, by type and time, and the messages that have them."""
    pull = client.pull(topic)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            messages = []
            for queue in await pull.queues():
                pulled = await pull.fetch(queue, 0, count=1000)
                messages += pulled.messages
            found = [text.split("\x01") for each in messages for text in each.body.decode().split("\x02")[:-1]]
            if len(found) >= count:
                return sorted(found), messages
            await asyncio.sleep(0.05)


async def test_a_send_and_its_processing_leave_three_records() -> None:
    async with Broker(traceTopicEnable=True) as broker, Client(broker.nameserver, client_id="me") as client:
        async with client.producer("pg", trace=True) as producer:
            sent = await producer.send("T", b"hello", tag="A", keys=["k1", "k2"])
        async with client.consumer("g", "T", start=Start.FIRST, trace=True) as consumer:
            async for message in consumer:
                async with message.process():
                    pass
                break
        (pub, after, before), messages = await records(client, 3)
    key = sent.unique_key
    assert pub[:1] + pub[2:9] == ["Pub", "DefaultRegion", "pg", "T", key, "A", "k1 k2", broker.address]
    assert pub[9] == "5" and pub[10].isdecimal() and pub[11:] == ["0", sent.message_id, "true", "me"]
    assert before[0] == "SubBefore" and before[3] == "g" and before[5:] == [key, "0", "k1 k2", "me"]
    assert after[:3] == ["SubAfter", before[4], key] and after[4:7] == ["true", "k1 k2", "0"] and after[8:] == ["g"]
    assert all(set(each.keys) == {key, "k1", "k2"} for each in messages), "a query by key finds the trace"


async def test_a_failed_message_has_its_own_code_and_so_has_one_that_is_settled_without_process() -> None:
    async with Broker(traceTopicEnable=True) as broker, Client(broker.nameserver) as client:
        producer = client.producer("pg")
        for body in (b"raises", b"sent back", b"acknowledged"):
            await producer.send("T", body)
        codes = {}
        async with client.consumer("g", "T", start=Start.FIRST, trace=True) as consumer:
            for _ in range(3):
                message = await anext(consumer)
                codes[message.unique_key] = message.body
                if message.body == b"raises":
                    async with message.process():
                        raise ValueError
                elif message.body == b"sent back":
                    async with message.process():
                        await message.retry()
                else:
                    await message.ack()
        found, _ = await records(client, 6)
    ends = {codes[each[2]]: (each[4], each[6]) for each in found if each[0] == "SubAfter"}
    assert ends == {b"raises": ("false", "2"), b"sent back": ("false", "4"), b"acknowledged": ("true", "0")}


async def test_a_transaction_leaves_records_of_its_begin_and_its_end() -> None:
    async def check(_: Stored) -> Outcome:
        return Outcome.COMMIT

    async with Broker(traceTopicEnable=True) as broker, Client(broker.nameserver) as client:
        producer = client.transactional("tg", check=check, trace=True)
        async with producer, producer.begin("T", b"x", keys="k", tag="A") as transaction:
            transaction.outcome = Outcome.ROLLBACK
        (end, pub), _ = await records(client, 2)
    assert pub[11] == "1", "a half message"
    key = transaction.unique_key
    assert end[:1] + end[2:8] == ["EndTransaction", "DefaultRegion", "tg", "T", key, "A", "k"]
    assert end[8:] == [broker.address, "2", key, "ROLLBACK_MESSAGE", "false"]


async def test_batches_and_messages_in_the_background_are_traced_in_another_topic() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        async with client.producer("pg", trace="Traces", coalesce=True) as producer:
            await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
            await producer.send_nowait("T", b"3", delay_level=1)
        found, _ = await records(client, 3, "Traces")
    assert sorted(each[11] for each in found) == ["0", "0", "3"], "the kinds: two normal ones, one with a delay"


async def test_a_broker_that_wants_no_traces_gets_none() -> None:
    async with Broker(traceOn=False, traceTopicEnable=True) as broker, Client(broker.nameserver) as client:
        async with client.producer("pg", trace=True) as producer:
            assert (await producer.send("T", b"x")).region is None
        pull = client.pull(TRACE_TOPIC)
        assert [await pull.range(queue) for queue in await pull.queues()] == [(0, 0)]


class Sink:
    """Takes trace messages, if it may."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.may = asyncio.Event()
        self.error: ClientError | None = None

    async def send(self, message: Message) -> None:
        await self.may.wait()
        if self.error is not None:
            raise self.error
        self.messages.append(message)


async def test_traces_that_cannot_be_stored_are_bounded_and_delay_nothing() -> None:
    async with Client("127.0.0.1:1") as client:
        sink = Sink()
        events: list[str] = []
        client._session._on_event = lambda event: events.append(event.detail)
        traces = TraceTopic(client._session, "Traces", sink.send)
        for number in range(LIMIT_RECORDS + 10):
            traces._add(Record("r", f"{number}\x02", (f"key-{number}",)))
        assert traces.dropped == 10 and len(events) == 1, "the first one is reported"
        sink.may.set()
        await traces.close()
        texts = b"".join(message.body for message in sink.messages).decode().split("\x02")[:-1]
        assert texts == [str(number) for number in range(LIMIT_RECORDS)]
        assert all(len(" ".join(message.keys)) <= 16_000 for message in sink.messages), "keys are properties"
        sink.error = ClientError("no broker")
        traces._add(Record("r", "x\x02", ()))
        await traces.close()
        assert traces.dropped == 11


async def test_a_key_of_a_foreign_client_does_not_break_the_trace() -> None:
    made = trace_topic._message("T", [Record("r", "text", ("a\udcff",))])
    assert made.body == b"text" and made.keys == ["a\udcff"]


class Broken(Observer):
    def sending(self, what: Sending) -> SendEnd | None:
        raise ValueError("a bug")


class Ends(Observer):
    def __init__(self) -> None:
        self.ends: list[Any] = []

    def sending(self, what: Sending) -> SendEnd | None:
        def end(results: Sequence[SendResult], error: BaseException | None) -> None:
            self.ends.append((what.messages[0].topic, len(results), type(error)))

        return end


async def test_an_observer_with_a_bug_breaks_no_message_and_no_other_observer(caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends()
    async with Broker() as broker, Client(broker.nameserver, observers=[Broken(), ends]) as client:
        producer = client.producer("pg")
        await producer.send("T", b"x")
        await producer.send_nowait("T", b"x")
        with pytest.raises(ClientError):
            await producer.send("T", b"")
        with pytest.raises(ClientError):
            producer.send_nowait("T", b"")
    none, error = type(None), "ConfigurationError"
    assert [(topic, count) for topic, count, _ in ends.ends] == [("T", 1), ("T", 1), ("T", 0), ("T", 0)]
    assert [kind if kind is none else kind.__name__ for *_, kind in ends.ends] == [none, none, error, error]
    assert "a bug" in caplog.text
