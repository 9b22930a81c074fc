"""Transactions: each end with its checks, each step of a round of checks, and whole runs from a seed."""

import asyncio
import random
from collections import Counter

import pytest
from fake_broker import FakeBroker, FakeChannel, MemoryFile
from fake_store import Clock, FakeStore

from tallystick.node.broker.processors.send import SendProcessor
from tallystick.node.broker.processors.transaction import TransactionProcessor
from tallystick.node.broker.services.transaction_check import HalfLinks
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.remoting.command import FLAG_ONEWAY, Command, ResponseError
from tallystick.store.formats.message import Message, PutStatus
from tallystick.store.formats.record import Record

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF, OP, DISCARDED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP = "CID_RMQ_SYS_TRANS"


def make(store: FakeStore | None = None, offset_file: MemoryFile | None = None) -> FakeBroker:
    broker = FakeBroker(store=store, offset_file=offset_file)
    broker.topics.update(TopicConfig("T", 4, 4))
    return broker


@pytest.fixture
def broker() -> FakeBroker:
    return make()


async def send_half(broker: FakeBroker, key: str = "K1", more: str = "") -> Record:
    text = f"TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01{key}\x02{more}"
    ext = {"a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "2", "f": "4", "g": str(broker.now_ms()), "h": "9"}
    command = Command(310, ext={**ext, "i": text}, body=key.encode())
    answer = await SendProcessor(broker).send(FakeChannel(), command)  # type: ignore[arg-type]
    assert answer.code == 0
    return Record.decode(broker.store.reads.message_at(int(answer.ext["msgId"][16:], 16)))


def end_command(pos: int, offset: int, decision: int, *, flag: int = 0, **changes: str) -> Command:
    ext = {
        "producerGroup": "pg",
        "tranStateTableOffset": str(offset),
        "commitLogOffset": str(pos),
        "commitOrRollback": str(decision),
        "fromTransactionCheck": "false",
        "msgId": "K1",
    }
    return Command(37, flag=flag, ext={**ext, **changes})


async def end(broker: FakeBroker, half: Record, decision: int, **changes):
    command = end_command(half.pos, half.queue_offset, decision, **changes)
    return await TransactionProcessor(broker).routes()[37](FakeChannel(), command)  # type: ignore[arg-type, misc]


async def check(broker: FakeBroker, after_ms: int = 60_000) -> None:
    broker.clock.advance(after_ms)
    await broker.transactions.check(broker.now_ms())


def keys(broker: FakeBroker, topic: str) -> list[str]:
    return [record.property_table()["UNIQ_KEY"] for record in broker.store.records(topic)]


def ops(broker: FakeBroker) -> list[int]:
    return [int(record.body) for record in broker.store.records(OP)]


class TestEnd:
    async def test_a_commit(self, broker):
        half = await send_half(broker)
        assert (await end(broker, half, COMMIT)).code == 0
        (record,) = broker.store.records("T", 2)
        assert (record.sys_flag, record.prepared_transaction_offset, record.queue_offset) == (8, half.pos, 0)
        assert (record.body, record.flag, record.properties) == (half.body, 9, half.properties)
        (op,) = broker.store.records(OP)
        assert (op.body, op.properties, op.born_host) == (b"0", "WAIT\x01true\x02TAGS\x01d\x02", broker.host)

    async def test_a_rollback(self, broker):
        await end(broker, await send_half(broker), ROLLBACK)
        assert not broker.store.records("T") and ops(broker) == [0]

    async def test_unknown_changes_nothing(self, broker):
        half = await send_half(broker)
        assert await end(broker, half, UNKNOWN, flag=FLAG_ONEWAY) is None
        assert len(broker.store.records()) == 1

    async def test_a_commit_with_a_delay_waits_from_then_on(self, broker):
        await end(broker, await send_half(broker, more="DELAY\x011\x02"), COMMIT)
        (record,) = broker.store.records("SCHEDULE_TOPIC_XXXX")
        assert record.property_table()["REAL_TOPIC"] == "T" and record.sys_flag == 8

    async def test_the_first_end_holds(self, broker):
        half = await send_half(broker)
        await asyncio.gather(end(broker, half, COMMIT), end(broker, half, COMMIT), end(broker, half, ROLLBACK))
        await end(broker, half, COMMIT)
        assert len(broker.store.records("T")) == 1 and ops(broker) == [0]

    async def test_a_commit_that_cannot_be_stored_leaves_the_transaction_open(self, broker):
        half = await send_half(broker)
        broker.store.refuse(PutStatus.SERVICE_NOT_AVAILABLE)
        with pytest.raises(ResponseError, match="SERVICE_NOT_AVAILABLE"):
            await end(broker, half, COMMIT)
        assert not ops(broker)
        await end(broker, half, COMMIT)
        assert keys(broker, "T") == ["K1"] and ops(broker) == [0]

    async def test_an_op_record_that_cannot_be_stored_is_stored_before_the_next_round(self, broker):
        half = await send_half(broker)
        real, calls = broker.store.writes.put, []

        async def put(message: Message):
            calls.append(message.topic)
            if calls == ["T", OP]:
                broker.store.refuse(PutStatus.SERVICE_NOT_AVAILABLE)
            return await real(message)

        broker.store.writes.put = put
        await end(broker, half, COMMIT)
        assert not ops(broker)
        channel = broker.producer("pg")
        await check(broker)
        assert ops(broker) == [0] and not channel.sent and keys(broker, "T") == ["K1"]

    @pytest.mark.parametrize(
        ("changes", "remark"),
        [
            ({"producerGroup": "other"}, "The producer group wrong"),
            ({"tranStateTableOffset": "1"}, "The transaction state table offset wrong"),
            ({"commitLogOffset": "1"}, "find prepared transaction message failed"),
            ({"commitLogOffset": "-1"}, "find prepared transaction message failed"),
            ({"commitLogOffset": "x"}, "no 64-bit number"),
        ],
    )
    async def test_ends_that_name_no_half_message_of_theirs(self, broker, changes, remark):
        half = await send_half(broker)
        with pytest.raises(ResponseError, match=remark):
            await end(broker, half, COMMIT, **changes)
        assert len(broker.store.records()) == 1

    async def test_a_record_that_is_no_half_message(self, broker):
        result = await broker.store.writes.put(
            Message("T", 0, b"", "PGROUP\x01pg\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02")
        )
        with pytest.raises(ResponseError, match="find prepared"):
            await TransactionProcessor(broker).end(FakeChannel(), end_command(result.pos, 0, COMMIT))  # type: ignore[arg-type]

    async def test_a_slave_ends_nothing(self, broker):
        half = await send_half(broker)
        broker.change(brokerId=1)
        with pytest.raises(ResponseError) as caught:
            await end(broker, half, COMMIT)
        assert caught.value.code == 11


class TestCheck:
    async def test_the_producer_is_asked_about_a_copy_with_the_real_topic(self, broker):
        half = await send_half(broker)
        channel = broker.producer("pg")
        await check(broker)
        copy = broker.store.records(HALF)[1]
        (asked,) = channel.sent
        assert (asked.code, asked.is_oneway) == (39, True)
        assert asked.ext == {
            "commitLogOffset": str(copy.pos),
            "tranStateTableOffset": "1",
            "msgId": "K1",
            "transactionId": "K1",
            "offsetMsgId": copy.message_id,
        }
        record = Record.decode(asked.body)
        assert (record.topic, record.queue_id, record.body, record.flag) == ("T", 2, half.body, 9)
        assert copy.property_table()["TRANSACTION_CHECK_TIMES"] == "1"
        assert broker.offsets.query(GROUP, HALF, 0) == 1

    async def test_what_is_young_ends_the_round(self, broker):
        broker.producer("pg")
        await send_half(broker)
        await check(broker, 5_999)
        assert len(broker.store.records(HALF)) == 1
        await check(broker, 1)
        assert len(broker.store.records(HALF)) == 2

    async def test_what_was_stored_since_the_round_began_is_left_alone(self, broker):
        half = await send_half(broker)
        aged = Message(HALF, 0, b"", half.properties, born_timestamp_ms=broker.now_ms() - 3600_000)
        await broker.store.writes.put(aged)
        broker.clock.advance(-1)
        await broker.transactions.check(broker.now_ms())
        assert len(broker.store.records(HALF)) == 2

    async def test_a_producer_whose_clock_is_ahead_is_asked_at_once(self, broker):
        broker.clock.advance(3600_000)
        await send_half(broker)
        broker.clock.advance(-3600_000 + 1)
        broker.store._log.clear()  # stored by our clock, born by another
        broker.store._units.clear()
        broker.store.max_pos = 0
        text = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02UNIQ_KEY\x01K1\x02"
        await broker.store.writes.put(Message(HALF, 0, b"", text, born_timestamp_ms=broker.now_ms() + 3600_000))
        channel = broker.producer("pg")
        await check(broker, 1)
        assert len(channel.sent) == 1

    async def test_what_has_ended_is_passed_and_both_offsets_follow(self, broker):
        halves = [await send_half(broker, f"K{n}") for n in range(100)]
        for half in random.Random(1).sample(halves, 100):
            await end(broker, half, COMMIT)
        await check(broker)
        assert broker.offsets.query(GROUP, HALF, 0) == 100
        assert broker.offsets.query(GROUP, OP, 0) == 100
        assert len(broker.store.records(HALF)) == 100

    async def test_the_op_offset_waits_for_the_half_offset(self, broker):
        halves = [await send_half(broker, f"K{n}") for n in range(3)]
        broker.clock.advance(59_000)
        halves += [await send_half(broker, f"K{n}") for n in (3, 4)]
        for number in (1, 4, 2):
            await end(broker, halves[number], COMMIT)
        await check(broker, 1000)  # asks about 0, stops at 3
        assert broker.offsets.query(GROUP, HALF, 0) == 3
        assert broker.offsets.query(GROUP, OP, 0) == 1
        await check(broker)
        assert broker.offsets.query(GROUP, OP, 0) == 3

    async def test_asked_as_often_as_allowed_then_discarded(self, broker):
        broker.change(transactionCheckMax=3)
        channel = broker.producer("pg")
        half = await send_half(broker)
        for _ in range(10):
            await check(broker)
        assert len(channel.sent) == 3 and broker.transactions.discarded == 1
        (given_up,) = broker.store.records(DISCARDED)
        assert given_up.body == half.body and broker.topics.get(DISCARDED) is not None
        assert broker.offsets.query(GROUP, HALF, 0) == 4

    async def test_older_than_the_log_is_kept(self, broker):
        channel = broker.producer("pg")
        await send_half(broker)
        await check(broker, 72 * 3600_000 + 1)
        assert not channel.sent and len(broker.store.records(DISCARDED)) == 1

    async def test_a_half_message_that_belongs_nowhere(self, broker):
        await broker.store.writes.put(Message(HALF, 0, b"x", "TRAN_MSG\x01true\x02"))
        await check(broker)
        assert len(broker.store.records(DISCARDED)) == 1

    async def test_no_producer_is_there_to_be_asked(self, broker):
        await send_half(broker)
        await check(broker)
        assert broker.transactions.without_producer == 1
        channel = broker.producer("pg")
        await check(broker)
        assert len(channel.sent) == 1

    async def test_a_store_that_refuses_leaves_all_as_it_is(self, broker):
        channel = broker.producer("pg")
        await send_half(broker)
        broker.store.refuse(PutStatus.SERVICE_NOT_AVAILABLE)
        await check(broker)
        assert not channel.sent and broker.offsets.query(GROUP, HALF, 0) == 0
        await check(broker)
        assert len(channel.sent) == 1

    async def test_a_messages_own_time_protects_it(self, broker):
        channel = broker.producer("pg")
        half = await send_half(broker, more="CHECK_IMMUNITY_TIME_IN_SECONDS\x01100\x02")
        await check(broker)
        copy = broker.store.records(HALF)[1]
        assert copy.property_table()["TRAN_PREPARED_QUEUE_OFFSET"] == "0" and not channel.sent
        assert "TRANSACTION_CHECK_TIMES" not in copy.property_table()
        await end(broker, half, COMMIT)  # its producer knows only the first one
        for _ in range(3):
            await check(broker)
        assert not channel.sent and keys(broker, "T") == ["K1"]

    async def test_after_its_own_time_it_is_asked_about(self, broker):
        channel = broker.producer("pg")
        await send_half(broker, more="CHECK_IMMUNITY_TIME_IN_SECONDS\x01100\x02")
        await check(broker)
        await check(broker)
        assert len(channel.sent) == 1

    async def test_the_end_of_the_first_copy_ends_the_second(self, broker):
        channel = broker.producer("pg")
        half = await send_half(broker)
        await check(broker)
        await end(broker, half, COMMIT)
        await TransactionProcessor(broker).end(FakeChannel(), answer_to(channel.sent[0], COMMIT))  # type: ignore[arg-type]
        for _ in range(3):
            await check(broker)
        assert keys(broker, "T") == ["K1"] and len(channel.sent) == 1

    async def test_an_end_that_comes_while_the_copy_is_on_its_way(self, broker):
        channel = broker.producer("pg")
        half = await send_half(broker)
        broker.clock.advance(60_000)
        await asyncio.gather(broker.transactions.check(broker.now_ms()), end(broker, half, COMMIT))
        for _ in range(3):
            await check(broker)
        for asked in channel.sent:
            await TransactionProcessor(broker).end(FakeChannel(), answer_to(asked, COMMIT))  # type: ignore[arg-type]
        assert keys(broker, "T") == ["K1"]

    async def test_copies_are_known_after_a_restart(self):
        offsets = MemoryFile()
        broker = make(offset_file=offsets)
        half = await send_half(broker)
        broker.producer("pg")
        await check(broker)
        broker = make(broker.store, offsets)  # the offsets were not written: the round begins with the first one again
        channel = broker.producer("pg")
        await check(broker)
        assert len(channel.sent) == 1, "the first half has a copy: only that is asked about"
        await end(broker, half, COMMIT)
        await TransactionProcessor(broker).end(FakeChannel(), answer_to(channel.sent[0], COMMIT))  # type: ignore[arg-type]
        assert keys(broker, "T") == ["K1"]

    async def test_copies_behind_a_half_that_is_being_repaired_are_waited_for(self):
        """Without them the first half would be asked about as well, and committed twice."""
        broker = make()
        half = await send_half(broker)
        await send_half(broker, "K2")
        broker.producer("pg")
        await check(broker)
        broker = make(broker.store)
        channel = broker.producer("pg")
        store, real = broker.store, broker.store.reads.usable_units
        store.reads.usable_units = lambda topic, queue_id, offset, count: real(topic, queue_id, offset, count)[
            : 1 - offset
        ]
        await check(broker)
        assert not channel.sent
        store.reads.usable_units = real
        await check(broker)
        assert [asked.ext["msgId"] for asked in channel.sent] == ["K1", "K2"]
        await end(broker, half, COMMIT)
        for asked in channel.sent:
            await TransactionProcessor(broker).end(FakeChannel(), answer_to(asked, COMMIT))  # type: ignore[arg-type]
        assert sorted(keys(broker, "T")) == ["K1", "K2"]

    async def test_offsets_are_committed_when_what_they_stand_on_is_flushed(self):
        broker = make(FakeStore(Clock(), auto_flush=False))
        await end(broker, await send_half(broker), COMMIT)
        await check(broker)
        await end(broker, await send_half(broker, "K2"), COMMIT)
        await check(broker)
        assert broker.offsets.query(GROUP, HALF, 0) == -1
        broker.store.flush()
        broker.transactions.settle()
        assert broker.offsets.query(GROUP, HALF, 0) == 2

    async def test_records_that_cannot_be_read_are_passed(self, broker, caplog):
        channel = broker.producer("pg")
        broken = await send_half(broker, "K1")
        await send_half(broker, "K2")
        broker.store.damage(broken.pos)
        await check(broker)
        assert [asked.ext["msgId"] for asked in channel.sent] == ["K2"]
        assert "1 half messages could not be read" in caplog.text

    async def test_a_queue_whose_beginning_was_deleted(self, broker):
        for n in range(3):
            half = await send_half(broker, f"K{n}")
        broker.store.trim(half.pos)
        channel = broker.producer("pg")
        await check(broker)
        assert [asked.ext["msgId"] for asked in channel.sent] == ["K2"]

    async def test_the_timer_continues_after_a_failed_round(self, broker, caplog):
        broker.change(transactionCheckInterval=1)
        rounds = []

        async def failing(now_ms: int) -> None:
            rounds.append(now_ms)
            if len(rounds) == 3:
                done.set()
            raise RuntimeError("broken")

        done = asyncio.Event()
        broker.transactions.check = failing
        await broker.transactions.start()
        async with asyncio.timeout(10):
            await done.wait()
        await broker.transactions.stop()
        assert "a round of transaction checks failed" in caplog.text
        assert broker.topics.get(HALF).write_queue_nums == 1


def answer_to(asked: Command, decision: int) -> Command:
    """What a producer answers to CHECK_TRANSACTION_STATE."""
    ext = asked.ext
    return end_command(
        int(ext["commitLogOffset"]),
        int(ext["tranStateTableOffset"]),
        decision,
        flag=FLAG_ONEWAY,
        fromTransactionCheck="true",
    )


def test_a_half_and_its_copies_are_one():
    links = HalfLinks()
    for offset, copy in ((3, 7), (7, 9)):
        links.replace(offset, copy)
    assert [links.first(offset) for offset in (3, 7, 9, 8)] == [3, 3, 3, 8]
    assert [links.newest(offset) for offset in (3, 7, 9, 8)] == [9, 9, 9, 8]
    assert [links.is_done(offset) for offset in (3, 7, 9)] == [True, True, False]
    assert links.begin(7) and not links.begin(3) and links.is_ending(9)
    links.settle(7, ended=False)
    assert links.begin(9)
    links.settle(9, ended=True)
    assert all(links.is_ended(offset) and not links.begin(offset) for offset in (3, 7, 9))


def test_links_forget_the_oldest():
    links = HalfLinks(limit=2)
    for offset in range(3):
        links.end(offset)
        links.replace(offset, offset + 10)
    assert [links.is_ended(offset) for offset in range(3)] == [False, True, True]
    assert [links.newest(offset) for offset in range(3)] == [0, 11, 12]


class Run:
    """A broker, a producer with a will for each transaction, and a world that loses and repeats messages."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.offsets = MemoryFile()
        self.store = FakeStore(Clock())
        self.will: dict[str, int] = {}
        self.ends: list[Command] = []
        self.asked: Counter[str] = Counter()
        self.boot()

    def boot(self) -> None:
        self.broker = make(self.store, self.offsets)
        self.broker.change(transactionCheckMax=4)
        self.channel = self.broker.producer("pg")

    async def begin(self) -> None:
        key = f"K{len(self.will)}"
        self.will[key] = self.random.choice((COMMIT, COMMIT, ROLLBACK, UNKNOWN))
        immune = f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{self.random.choice((10, 200))}\x02"
        half = await send_half(self.broker, key, immune if self.random.random() < 0.2 else "")
        if self.random.random() < 0.6:
            self.ends.append(end_command(half.pos, half.queue_offset, self.will[key], flag=FLAG_ONEWAY))

    async def deliver_end(self) -> None:
        if self.ends:
            command = self.ends.pop(self.random.randrange(len(self.ends)))
            if self.random.random() < 0.2:
                self.ends.append(command)
            await TransactionProcessor(self.broker).end(FakeChannel(), command)  # type: ignore[arg-type]

    async def check(self, after_ms: int | None = None) -> None:
        await check(self.broker, after_ms or self.random.choice((3_000, 10_000, 60_000)))
        for asked in self.channel.sent:
            key = asked.ext["msgId"]
            self.asked[key] += 1
            if self.random.random() < 0.7:  # the others are lost, or the producer does not know yet
                self.ends.append(answer_to(asked, self.will[key]))
        self.channel.sent.clear()

    async def restart(self) -> None:
        if self.random.random() < 0.5:  # else: the offsets of some seconds are forgotten
            self.broker.offsets.persist()
        self.boot()

    async def finish(self) -> None:
        """Until all is decided: the longest immunity, and four checks."""
        for _ in range(10):
            await self.check(60_000)
            while self.ends:
                await self.deliver_end()

    async def play(self, steps: int) -> None:
        actions = [self.begin] * 4 + [self.deliver_end] * 5 + [self.check] * 2
        for _ in range(steps):
            await self.random.choice(actions)()


@pytest.mark.parametrize("seed", range(60))
async def test_committed_once_rolled_back_never_and_the_rest_given_up(seed):
    run = Run(seed)
    await run.play(80)
    await run.finish()
    visible = Counter(keys(run.broker, "T"))
    given_up = Counter(keys(run.broker, DISCARDED))
    committed = {key for key, will in run.will.items() if will == COMMIT}
    assert visible.keys() <= committed
    assert set(visible.values()) <= {1}
    # A transaction whose every answer was lost is given up; it may still be committed by an end that comes later.
    assert committed <= visible.keys() | given_up.keys()
    assert {key for key, will in run.will.items() if will == UNKNOWN} <= given_up.keys()
    assert set(given_up.values()) <= {1}
    assert max(run.asked.values(), default=0) <= 4


@pytest.mark.parametrize("seed", range(30))
async def test_restarts_lose_no_commit_and_show_no_rollback(seed):
    run = Run(seed)
    for _ in range(4):
        await run.play(25)
        await run.restart()
    await run.finish()
    visible = set(keys(run.broker, "T"))
    committed = {key for key, will in run.will.items() if will == COMMIT}
    assert visible <= committed
    assert committed <= visible | set(keys(run.broker, DISCARDED))


class TestClocksThatJump:
    async def test_a_half_from_the_future_does_not_block_others(self, broker):
        channel = broker.producer("pg")
        broker.clock.advance(3600_000)
        await send_half(broker, "K1")
        broker.clock.advance(-3600_000)
        await send_half(broker, "K2")
        await check(broker, 6_000)
        assert [command.ext["transactionId"] for command in channel.sent] == ["K1", "K2"]

    async def test_a_clock_that_jumps_forward_gives_up_no_transaction(self, broker):
        channel = broker.producer("pg")
        await send_half(broker)
        steady_ms = broker.steady_ms()
        broker.steady_ms = lambda: steady_ms + 6_000
        await check(broker, 10 * 24 * 3600_000)
        assert len(channel.sent) == 1
        assert not broker.store.records("TRANS_CHECK_MAX_TIME_TOPIC")
