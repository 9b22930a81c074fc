"""The client with a real broker of this process."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tallystick.client import (
    JSON,
    BufferFull,
    Client,
    ClientError,
    ClosedError,
    ConfigurationError,
    ConnectionFailed,
    Consumer,
    Delivery,
    Event,
    Message,
    NotFound,
    NotSupported,
    Outcome,
    Queue,
    Refused,
    SendResult,
    Sql,
    Start,
    Stored,
    Tags,
)
from tallystick.client.testing import Broker

PATIENCE_S = 60.0
"""For steps that take a second on an idle machine."""


async def collect(consumer: Consumer, count: int) -> list[Delivery]:
    """Receives and consumes messages."""
    found: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        async for message in consumer:
            async with message.process(reraise=True):
                found.append(message)
            if len(found) == count:
                return found
    raise AssertionError("the consumer ended")


async def until(condition: "asyncio.Event") -> None:
    async with asyncio.timeout(PATIENCE_S):
        await condition.wait()


async def max_offset(client: Client, broker: Broker, topic: str) -> int:
    """The offset that the next message of queue 0 gets, once all that are stored are dispatched."""
    answer = await client.ask(broker.address, 30, {"topic": topic, "queueId": "0"})
    return int((answer.ext or {})["offset"])


async def test_a_message_arrives_with_all_its_fields() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client, client.producer("pg") as producer:
        sent = await producer.send(
            "T", b"hello", tag="A", keys=["k1", "k2"], properties={"colour": "red"}, flag=7, queue=2
        )
        assert sent.queue == Queue("T", "broker-a", 2) and sent.offset == 0 and not sent.maybe_twice
        async with client.consumer("g", "T", start=Start.FIRST) as consumer:
            (message,) = await collect(consumer, 1)
        assert (message.body, message.tag, message.keys, message.flag) == (b"hello", "A", ["k1", "k2"], 7)
        assert message.properties["colour"] == "red"
        assert (message.unique_key, message.message_id) == (sent.unique_key, sent.message_id)
        assert (message.topic, message.broker, message.queue_id, message.offset) == ("T", "broker-a", 2, 0)
        assert message.attempts == 0 and message.is_settled
        assert abs(message.sent_at - datetime.now(UTC)) < timedelta(hours=1)
        pull = client.pull("T", group="g")
        assert await pull.committed(Queue("T", "broker-a", 2)) == 1, "closing the consumer commits"


async def test_the_binary_header_works_as_well() -> None:
    async with Broker() as broker, Client(broker.nameserver, header="rocketmq") as client:
        await client.producer("pg").send("T", b"hello")
        async with client.consumer("g", "T", start=Start.FIRST) as consumer:
            assert [each.body for each in await collect(consumer, 1)] == [b"hello"]


async def test_a_large_body_is_compressed_and_arrives_whole() -> None:
    body = b"0123456789" * 100_000
    async with Broker() as broker, Client(broker.nameserver) as client:
        await client.producer("pg").send("T", body)
        async with client.consumer("g", "T", start=Start.FIRST) as consumer:
            (message,) = await collect(consumer, 1)
    assert message.body == body and message.size < 20_000


async def test_values_are_encoded_by_a_codec() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        await client.producer("pg", codec=JSON).send("T", {"a": [1, "ä"]})
        async with client.consumer("g", "T", start=Start.FIRST, codec=JSON) as consumer:
            assert [each.value for each in await collect(consumer, 1)] == [{"a": [1, "ä"]}]


async def test_a_batch_is_stored_in_order_in_one_queue() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        producer = client.producer("pg", batch_bytes=4000)
        results = await producer.send_batch([Message("T", b"%d" % number, tag="A") for number in range(20)], queue=1)
        assert [each.offset for each in results] == list(range(20))
        messages: list[Stored] = []
        while len(messages) < 20:
            pulled = await client.pull("T").fetch(results[0].queue, len(messages), wait=PATIENCE_S)
            messages += pulled.messages
        assert [each.body for each in messages] == [b"%d" % number for number in range(20)]
        assert [each.message_id for each in messages] == [each.message_id for each in results]
        assert [each.unique_key for each in messages] == [each.unique_key for each in results]
        with pytest.raises(ConfigurationError, match="one topic"):
            await producer.send_batch([Message("T", b"x"), Message("U", b"x")])
        with pytest.raises(ConfigurationError, match="delay"):
            await producer.send_batch([Message("T", b"x", delay_level=1)])
        assert await producer.send_batch([]) == []


@pytest.mark.parametrize("coalesce", [False, True])
async def test_messages_with_an_order_key_stay_in_order(coalesce: bool) -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        producer = client.producer("pg", coalesce=coalesce)
        with pytest.raises(ConfigurationError, match="prepare"):
            producer.send_nowait("T", b"x", order_key="k")
        await producer.prepare("TBW102")
        await producer.send("T", b"first")
        await producer.prepare("T")
        futures = [producer.send_nowait("T", b"%d" % n, order_key=f"k{n % 3}") for n in range(300)]
        await producer.flush()
        results = [future.result() for future in futures]
        for key in range(3):
            mine = results[key::3]
            assert len({each.queue for each in mine}) == 1
            assert [each.offset for each in mine] == sorted(each.offset for each in mine)
        assert len({(each.queue, each.offset) for each in results}) == 300


async def test_messages_that_wait_take_limited_memory() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        producer = client.producer("pg", buffer_bytes=100_000)
        futures: list[asyncio.Future[SendResult]] = []
        full = 0
        while len(futures) < 500:
            try:
                futures.append(producer.send_nowait("T", b"x" * 1000))
            except BufferFull:
                full += 1
                await producer.room()
        await producer.flush()
        assert full > 0
        assert len({(each.result().queue, each.result().offset) for each in futures}) == 500


async def test_closing_a_producer_sends_what_waits() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        async with client.producer("pg", coalesce=True) as producer:
            await producer.send("T", b"first")
            futures = [producer.send_nowait("T", b"x") for _ in range(50)]
        assert all(future.result().offset >= 0 for future in futures)
        with pytest.raises(ClosedError):
            producer.send_nowait("T", b"x")


async def test_a_broker_without_timers_is_not_sent_a_delay() -> None:
    """It would deliver the message at once."""
    async with Broker(timerWheelEnable=False) as broker, Client(broker.nameserver) as client:
        producer = client.producer("pg")
        with pytest.raises(NotSupported, match="level"):
            await producer.send("T", b"x", delay=timedelta(hours=1))
    async with Broker(timerWheelEnable=True) as broker, Client(broker.nameserver) as client:
        assert (await client.producer("pg").send("T", b"x", delay=timedelta(hours=1))).offset >= 0


async def test_a_topic_that_nobody_may_create_is_not_found() -> None:
    async with Broker(autoCreateTopicEnable=False) as broker, Client(broker.nameserver) as client:
        with pytest.raises(NotFound, match="No topic route info"):
            await client.producer("pg").send("T", b"x")


async def test_a_consumer_filters() -> None:
    async with Broker(enablePropertyFilter=True) as broker, Client(broker.nameserver) as client:
        producer = client.producer("pg")
        for number in range(10):
            tag = ("Aa", "BB", "C")[number % 3]  # the first two have one hash
            await producer.send("T", b"%d" % number, tag=tag, properties={"n": str(number)})
        async with client.consumer("g1", "T", start=Start.FIRST, where=Tags("Aa")) as consumer:
            assert sorted(each.body for each in await collect(consumer, 4)) == [b"0", b"3", b"6", b"9"]
        async with client.consumer("g2", "T", start=Start.FIRST, where=Sql("n > 7")) as consumer:
            assert sorted(each.body for each in await collect(consumer, 2)) == [b"8", b"9"]
        with pytest.raises(Refused):
            await client.consumer("g3", "T", where=Sql("n >")).start()


async def test_a_failed_message_is_delivered_again_and_then_becomes_a_dead_letter() -> None:
    async with Broker(messageDelayLevel="1s 1s 1s 1s 1s") as broker, Client(broker.nameserver) as client:
        await client.producer("pg").send("T", b"bad", tag="A")
        attempts: list[int] = []
        async with client.consumer("g", "T", start=Start.FIRST, max_retries=2, where=Tags("A")) as consumer:
            async with asyncio.timeout(PATIENCE_S):
                async for message in consumer:
                    async with message.process():
                        attempts.append(message.attempts)
                        assert message.topic == "T"
                        raise ValueError("this message cannot be processed")
                    if len(attempts) == 3:
                        break
        assert attempts == [0, 1, 2]
        async with asyncio.timeout(PATIENCE_S):
            while await max_offset(client, broker, "%DLQ%g") != 1:
                await client.route("T")  # until the record is dispatched


async def test_exceptions_reach_the_caller_if_it_wants_them() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        await client.producer("pg").send("T", b"bad")
        async with client.consumer("g", "T", start=Start.FIRST) as consumer:
            message = await anext(consumer)
            with pytest.raises(ValueError, match="mine"):
                async with message.process(reraise=True):
                    raise ValueError("mine")
            assert message.is_settled, "it was sent back"


async def test_a_cancelled_block_hands_the_message_out_again() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        await client.producer("pg").send("T", b"x")
        async with client.consumer("g", "T", start=Start.FIRST) as consumer:
            entered = asyncio.Event()

            async def work() -> None:
                async with (await anext(consumer)).process():
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await until(entered)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            (again,) = await collect(consumer, 1)
            assert (again.body, again.attempts) == (b"x", 0)


async def test_a_message_that_is_not_settled_is_delivered_after_a_restart() -> None:
    async with Broker() as broker:
        async with Client(broker.nameserver) as client:
            for number in range(4):
                await client.producer("pg").send("T", b"%d" % number, queue=0)
            async with client.consumer("g", "T", start=Start.FIRST, drain=0.01) as consumer:
                messages = [await anext(consumer) for _ in range(4)]
                for number in (0, 2, 3):
                    await messages[number].ack()
        async with Client(broker.nameserver) as client, client.consumer("g", "T") as consumer:
            assert [each.body for each in await collect(consumer, 3)] == [b"1", b"2", b"3"]


async def test_not_more_messages_are_out_than_allowed() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        for number in range(6):
            await client.producer("pg").send("T", b"%d" % number)
        async with client.consumer("g", "T", start=Start.FIRST, concurrency=2, drain=0.01) as consumer:
            first, second = await anext(consumer), await anext(consumer)
            third = asyncio.create_task(anext(consumer))
            done, _ = await asyncio.wait({third}, timeout=0.2)
            assert not done
            await first.ack()
            assert (await third).body not in (first.body, second.body)


async def test_an_ordered_consumer_repeats_a_message_before_those_that_follow() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        producer = client.producer("pg")
        for number in range(8):
            await producer.send("T", b"%d" % number, queue=number % 2)
        seen: list[tuple[int, bytes, int]] = []
        async with client.consumer("g", "T", start=Start.FIRST, ordered=True) as consumer:
            async with asyncio.timeout(PATIENCE_S):
                async for message in consumer:
                    async with message.process():
                        seen.append((message.queue_id, message.body, message.attempts))
                        if message.body == b"2" and message.attempts == 0:
                            raise ValueError("once")
                    if len(seen) == 9:
                        break
        assert [each[1:] for each in seen if each[0] == 0] == [(b"0", 0), (b"2", 0), (b"2", 1), (b"4", 0), (b"6", 0)]
        assert [each[1] for each in seen if each[0] == 1] == [b"1", b"3", b"5", b"7"]


async def test_run_calls_a_function_for_each_message() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        for number in range(30):
            await client.producer("pg").send("T", b"%d" % number)
        found: list[bytes] = []
        at_once = most = 0
        done = asyncio.Event()

        async def handle(message: Delivery) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            found.append(message.body)
            if len(found) == 30:
                done.set()

        async with client.consumer("g", "T", start=Start.FIRST, concurrency=4) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            await until(done)
            await consumer.close()
            await running
        assert sorted(found, key=int) == [b"%d" % number for number in range(30)]
        assert 1 < most <= 4


async def test_batches_are_settled_together() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        await client.producer("pg").send_batch([Message("T", b"%d" % n) for n in range(40)], queue=0)
        found: list[bytes] = []
        async with client.consumer("g", "T", start=Start.FIRST, concurrency=16) as consumer:
            async with asyncio.timeout(PATIENCE_S):
                async for batch in consumer.batches(10):
                    assert 1 <= len(batch) <= 10
                    async with batch.process(reraise=True):
                        found += [each.body for each in batch]
                    assert all(each.is_settled for each in batch)
                    if len(found) == 40:
                        break
        assert found == [b"%d" % number for number in range(40)]


async def test_two_members_share_the_queues_and_take_them_over() -> None:
    events: list[Event] = []
    changed = asyncio.Event()

    def note(event: Event) -> None:
        events.append(event)
        changed.set()

    async def until_they_have(first: Consumer, second: Consumer | None, *counts: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (len(first.queues), len(second.queues) if second else 0) != counts:
                await changed.wait()
                changed.clear()

    async with Broker(defaultTopicQueueNums=4) as broker:  # noqa: SIM117
        async with Client(broker.nameserver, on_event=note) as one, Client(broker.nameserver, on_event=note) as other:
            producer = one.producer("pg")
            await producer.send("T", b"first")
            async with one.consumer("g", "T", start=Start.FIRST) as first:
                await collect(first, 1)
                assert len(first.queues) == 4
                async with other.consumer("g", "T", start=Start.FIRST) as second:
                    await until_they_have(first, second, 2, 2)
                    for number in range(40):
                        await producer.send("T", b"%d" % number)
                    got: Counter[bytes] = Counter()
                    for found in await asyncio.gather(collect(first, 20), collect(second, 20)):
                        got.update(each.body for each in found)
                    assert got == Counter(b"%d" % number for number in range(40)), "each once: nothing was moved"
                await until_they_have(first, None, 4, 0)
                await producer.send("T", b"last")
                assert [each.body for each in await collect(first, 1)] == [b"last"]
    assert {"assigned", "connected"} <= {event.kind for event in events}


async def test_one_client_has_one_consumer_of_a_group() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        await client.producer("pg").send("T", b"x")
        async with client.consumer("g", "T"):
            with pytest.raises(ValueError, match="another Client"):
                await client.consumer("g", "U").start()


async def test_pause_seek_and_resume() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        producer = client.producer("pg")
        for number in range(5):
            await producer.send("T", b"%d" % number, queue=0)
        queue = Queue("T", "broker-a", 0)
        async with client.consumer("g", "T", start=Start.FIRST, ordered=True) as consumer:
            assert [each.body for each in await collect(consumer, 5)] == [b"0", b"1", b"2", b"3", b"4"]
            consumer.pause()
            await consumer.seek(queue, 3)
            assert await client.pull("T", group="g").committed(queue) == 3
            waiting = asyncio.create_task(collect(consumer, 2))
            done, _ = await asyncio.wait({waiting}, timeout=0.2)
            assert not done, "the queue is still paused"
            consumer.resume([queue])
            assert [each.body for each in await waiting] == [b"3", b"4"]
            await consumer.seek(queue, Start.FIRST)
            assert [each.body for each in await collect(consumer, 1)] == [b"0"]
            with pytest.raises(ClosedError):
                await consumer.seek(Queue("T", "broker-a", 99), 0)


async def test_a_broadcast_keeps_its_offsets_in_a_file(tmp_path: Path) -> None:
    offsets = tmp_path / "folder" / "offsets.json"
    async with Broker() as broker:
        async with Client(broker.nameserver) as one, Client(broker.nameserver) as other:
            await one.producer("pg").send("T", b"0")
            with pytest.raises(ConfigurationError, match="offsets_file"):
                one.consumer("g", "T", broadcast=True)
            options = {"broadcast": True, "start": Start.FIRST}
            async with (
                one.consumer("g", "T", offsets_file=offsets, **options) as first,  # type: ignore[arg-type]
                other.consumer("g", "T", offsets_file=tmp_path / "other", **options) as second,  # type: ignore[arg-type]
            ):
                for consumer in (first, second):
                    assert [each.body for each in await collect(consumer, 1)] == [b"0"]
        async with Client(broker.nameserver) as client:
            await client.producer("pg").send("T", b"1")
            async with client.consumer("g", "T", broadcast=True, offsets_file=offsets) as consumer:
                assert [each.body for each in await collect(consumer, 1)] == [b"1"]
    offsets.write_text("{")
    async with Broker() as broker, Client(broker.nameserver) as client:
        with pytest.raises(ConfigurationError, match=r"offsets\.json"):
            client.consumer("g", "T", broadcast=True, offsets_file=offsets)


async def test_an_administrator_resets_the_offsets_of_a_consumer() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        for number in range(3):
            await client.producer("pg").send("T", b"%d" % number, queue=0)
        async with client.consumer("g", "T", start=Start.FIRST) as consumer:
            await collect(consumer, 3)
            await consumer.commit()
            ext = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
            await client.ask(broker.address, 222, ext)
            assert [each.body for each in await collect(consumer, 3)] == [b"0", b"1", b"2"]


async def test_a_broker_shows_the_state_of_a_consumer() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        await client.producer("pg").send("T", b"x", queue=0)
        async with client.consumer("g", "T", start=Start.FIRST, where=Tags("*")) as consumer:
            await collect(consumer, 1)
            answer = await client.ask(broker.address, 307, {"consumerGroup": "g", "clientId": client.id})
            assert b'"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"' in answer.body
            assert b'"commitOffset":1' in answer.body
            members = await client.ask(broker.address, 203, {"consumerGroup": "g"})
            assert client.id.encode() in members.body


async def test_a_request_is_replied_to() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client, Client(broker.nameserver) as server:
        await server.producer("pg").send("T", b"first")
        async with server.consumer("g", "T") as consumer:
            answering = asyncio.create_task(consumer.run(lambda m: server.producer("rg").reply(m, b"to " + m.body)))
            async with asyncio.timeout(PATIENCE_S), client.producer("pg") as producer:
                reply = await producer.request("T", b"you", timeout=PATIENCE_S)
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
    assert reply.body == b"to you"


async def test_a_request_without_a_reply_times_out() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client, client.producer("pg") as producer:
        with pytest.raises(TimeoutError):
            await producer.request("T", b"x", timeout=0.3)


async def test_transactions_end_with_their_block() -> None:
    async def check(message: Stored) -> Outcome:
        raise AssertionError("the ends of all transactions are known")

    async with Broker() as broker, Client(broker.nameserver) as client:
        await client.producer("pg").send("T", b"first", queue=0)
        with pytest.raises(ClosedError):
            async with client.transactional("other", check=check).begin("T", b"x"):
                pass
        async with client.transactional("tg", check=check) as producer:
            with pytest.raises(ConfigurationError, match="delay"):
                producer.begin("T", b"x", delay_level=1)
            async with producer.begin("T", b"committed", tag="A") as transaction:
                pass
            with pytest.raises(ValueError, match="the work failed"):
                async with producer.begin("T", b"rolled back"):
                    raise ValueError("the work failed")
            async with producer.begin("T", b"rolled back") as other:
                other.outcome = Outcome.ROLLBACK
            async with producer.begin("T", b"committed too"):
                pass
        async with client.consumer("g", "T", start=Start.FIRST) as consumer:
            found = await collect(consumer, 3)
        assert sorted(each.body for each in found) == [b"committed", b"committed too", b"first"]
        (message,) = [each for each in found if each.body == b"committed"]
        assert (message.unique_key, message.tag) == (transaction.unique_key, "A")


async def test_a_broker_asks_how_a_transaction_ended() -> None:
    asked: list[str | None] = []

    async def check(message: Stored) -> Outcome:
        asked.append(message.unique_key)
        assert message.topic == "T"
        return Outcome.COMMIT if message.body == b"yes" else Outcome.ROLLBACK

    early = Broker(transactionTimeOut=100, transactionCheckInterval=200)
    async with early as broker, Client(broker.nameserver) as client:
        await client.producer("pg").send("T", b"first")
        async with client.transactional("tg", check=check) as producer:
            keys = []
            for body in (b"no", b"yes"):
                async with producer.begin("T", body) as transaction:
                    transaction.outcome = Outcome.UNKNOWN
                keys.append(transaction.unique_key)
            async with client.consumer("g", "T", start=Start.FIRST) as consumer:
                assert sorted(each.body for each in await collect(consumer, 2)) == [b"first", b"yes"]
        assert set(asked) == set(keys)


async def test_a_client_outlives_a_restart_of_its_broker() -> None:
    events: list[Event] = []
    async with Broker() as broker, Client(broker.nameserver, on_event=events.append) as client:
        producer = client.producer("pg", timeout=PATIENCE_S)
        await producer.send("T", b"before")
        async with client.consumer("g", "T", start=Start.FIRST) as consumer:
            await collect(consumer, 1)
            await broker.stop_broker()
            sending = asyncio.create_task(producer.send("T", b"after"))
            await asyncio.sleep(0)
            await broker.start_broker()
            assert (await sending).offset >= 0
            assert b"after" in [each.body for each in await collect(consumer, 1)]
    assert {"disconnected", "reconnected"} <= {event.kind for event in events}


async def test_pulling_by_hand() -> None:
    async with Broker() as broker, Client(broker.nameserver) as client:
        for number in range(3):
            await client.producer("pg").send("T", b"%d" % number, queue=0, tag="AB"[number % 2])
        pull = client.pull("T", group="g", where=Tags("A"))
        (queue, *_) = await pull.queues()
        assert await pull.range(queue) == (0, 3)
        pulled = await pull.fetch(queue, 0)
        assert ([each.body for each in pulled.messages], pulled.next_offset) == ([b"0", b"2"], 3)
        assert not pulled.moved and (pulled.min_offset, pulled.max_offset) == (0, 3)
        assert (await pull.fetch(queue, 9)).moved
        assert await pull.committed(queue) is None
        await pull.commit(queue, 2)
        assert await pull.committed(queue) == 2
        assert await pull.offset_at(queue, datetime(2001, 1, 1, tzinfo=UTC)) == 0


async def test_a_name_server_that_is_away_is_passed_over() -> None:
    async with Broker() as broker, Client(f"127.0.0.1:1;{broker.nameserver};127.0.0.1:2") as client:
        for _ in range(3):
            await client.route("TBW102")
    async with Client("127.0.0.1:1", timeout=0.3) as client:
        with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"):
            await client.route("T")


async def test_a_client_is_used_once_and_checks_its_arguments() -> None:
    for wrong in (lambda: Client(""), lambda: Client("h:1", timeout=0), lambda: Client("h:1", header="x")):  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError):
            wrong()
    client = Client("127.0.0.1:1")
    async with client:
        pass
    with pytest.raises(ClosedError):
        await client.__aenter__()
    with pytest.raises(ClosedError):
        await client.route("T")


async def test_a_commit_that_is_late_does_not_overwrite_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit in the background saves one queue after the other. A consumer that is closed meanwhile commits too."""
    async with Broker() as broker, Client(broker.nameserver) as client, client.producer("pg") as producer:
        for queue in range(4):
            await producer.send("T", b"hello", queue=queue)
        async with client.consumer("g", "T", start=Start.FIRST) as consumer:
            progress = consumer._assignment._progress
            save, waits, go_on = progress.save, asyncio.Event(), asyncio.Event()

            async def one_by_one(offsets: dict[Queue, int]) -> dict[Queue, ClientError]:
                if not waits.is_set():
                    waits.set()
                    await go_on.wait()  # the first commit is on its way, with the offsets of its begin
                return await save(offsets)

            monkeypatch.setattr(progress, "save", one_by_one)
            late = asyncio.create_task(consumer.commit())
            await waits.wait()
            await collect(consumer, 4)
            closing = asyncio.create_task(consumer.close())
            for _ in range(100):
                await asyncio.sleep(0)
            go_on.set()
            await asyncio.gather(late, closing)
        pull = client.pull("T", group="g")
        assert [await pull.committed(Queue("T", "broker-a", queue)) for queue in range(4)] == [1, 1, 1, 1]
