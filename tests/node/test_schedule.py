"""Delayed messages: never early, in order, none lost, whatever the store refuses and wherever it crashes."""

import asyncio

import pytest
from fake_broker import FakeBroker, MemoryFile
from fake_store import Clock, FakeStore
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tallystick.node.broker.services.delay import DelayLevels, to_schedule
from tallystick.node.broker.services.schedule import (
    CORRECTION_MS,
    MAX_TRIES,
    RETRY_MS,
    WINDOW,
    DelayOffsets,
    Due,
    due,
    idle_ms,
)
from tallystick.store.formats.message import Message, PutStatus
from tallystick.store.settings import StoreSettings

SETTINGS = StoreSettings(messageDelayLevel="1s 3s 1m")
LEVELS = DelayLevels(SETTINGS.delay_levels_ms())


def make(store: FakeStore | None = None, file: MemoryFile | None = None) -> FakeBroker:
    return FakeBroker(store=store or FakeStore(Clock(), settings=SETTINGS), delay_file=file)


async def send(broker: FakeBroker, level: int, body: bytes = b"x", queue_id: int = 0) -> None:
    message = Message("T", queue_id, body, f"DELAY\x01{level}\x02TAGS\x01A\x02")
    assert (await broker.store.writes.put(to_schedule(message, LEVELS))).status.stored


def bodies(broker: FakeBroker) -> list[bytes]:
    return [record.body for record in broker.store.records("T")]


class TestDue:
    def test_by_example(self):
        assert due([], 100, 10) == Due(0, -1)
        assert due([90, 100, 101, 102], 100, 10) == Due(2, 1)
        assert due([90, 100], 100, 10) == Due(2, -1)
        set_back = 110 + CORRECTION_MS + 1
        assert due([set_back, 105], 100, 10) == Due(1, 5), "a time further away than the delay: the clock was set back"
        assert due([set_back - 1], 100, 10) == Due(0, CORRECTION_MS + 10), "a clock that was corrected"

    @given(
        st.lists(st.integers(0, 200) | st.integers(CORRECTION_MS, CORRECTION_MS + 200)),
        st.integers(0, 200),
        st.integers(1, 50),
    )
    def test_as_its_slow_twin(self, times, now, delay):
        corrected = [now if at > now + delay + CORRECTION_MS else at for at in times]
        count = next((index for index, at in enumerate(corrected) if at > now), len(times))
        assert due(times, now, delay).count == count
        if count < len(times):
            assert due(times, now, delay).wait_ms == times[count] - now

    def test_an_empty_queue_is_checked_before_a_new_message_can_be_due(self):
        assert [idle_ms(delay) for delay in (1, 1000, 5000, 7_200_000)] == [10, 100, 500, 1000]


class TestOneLevel:
    async def test_a_message_comes_at_its_time_with_all_it_had(self):
        broker = make()
        await send(broker, 2, queue_id=1)
        queue, clock = broker.schedule.queues[1], broker.clock
        assert await queue.step(clock.now_ms) == 3000
        clock.advance(2999)
        assert await queue.step(clock.now_ms) == 1
        assert not bodies(broker)
        clock.advance(1)
        assert await queue.step(clock.now_ms) == 0
        (record,) = broker.store.records("T", 1)
        assert record.property_table() == {"DELAY": "2", "TAGS": "A", "REAL_TOPIC": "T", "REAL_QID": "1"}
        assert await queue.step(clock.now_ms) == idle_ms(3000)
        assert broker.schedule.runtime_info() == {"scheduleMessageOffset_2": "1,1"}

    async def test_many_are_delivered_in_windows(self):
        broker = make()
        for n in range(WINDOW + 5):
            await send(broker, 1, str(n).encode())
        broker.clock.advance(1000)
        queue = broker.schedule.queues[0]
        assert await queue.step(broker.clock.now_ms) == 0
        assert len(bodies(broker)) == WINDOW
        await queue.step(broker.clock.now_ms)
        assert bodies(broker) == [str(n).encode() for n in range(WINDOW + 5)]

    async def test_what_the_store_refuses_is_tried_again_and_nothing_else_twice(self):
        broker = make()
        for n in range(3):
            await send(broker, 1, str(n).encode())
        broker.clock.advance(1000)
        queue = broker.schedule.queues[0]
        broker.store.refuse(PutStatus.OS_PAGECACHE_BUSY)
        assert await queue.step(broker.clock.now_ms) == RETRY_MS
        assert (bodies(broker), queue.offset) == ([b"1", b"2"], 0)
        await queue.step(broker.clock.now_ms)
        assert (bodies(broker), queue.offset) == ([b"1", b"2", b"0"], 3)

    async def test_a_store_that_refuses_for_an_hour_loses_nothing(self):
        broker = make()
        await send(broker, 1)
        broker.clock.advance(1000)
        queue = broker.schedule.queues[0]
        for _ in range(360):
            broker.store.refuse(PutStatus.SERVICE_NOT_AVAILABLE)
            assert await queue.step(broker.clock.now_ms) == RETRY_MS
        await queue.step(broker.clock.now_ms)
        assert bodies(broker) == [b"x"]

    @pytest.mark.parametrize("status", [PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT])
    async def test_stored_is_delivered(self, status):
        broker = make()
        await send(broker, 1)
        broker.clock.advance(1000)
        broker.store.refuse(status)
        await broker.schedule.queues[0].step(broker.clock.now_ms)
        await broker.schedule.queues[0].step(broker.clock.now_ms)
        assert bodies(broker) == [b"x"]

    @pytest.mark.parametrize("how", ["damaged", "illegal"])
    async def test_one_that_can_never_be_delivered_holds_up_the_others_for_a_minute_only(self, how):
        broker = make()
        await send(broker, 1, b"bad")
        await send(broker, 1, b"good")
        broker.clock.advance(1000)
        queue = broker.schedule.queues[0]
        if how == "damaged":
            broker.store.damage(0)
        for _ in range(MAX_TRIES):
            if how == "illegal":
                broker.store.refuse(PutStatus.MESSAGE_ILLEGAL)
            await queue.step(broker.clock.now_ms)
        await queue.step(broker.clock.now_ms)
        assert (bodies(broker), queue.offset, queue.passed_over) == ([b"good"], 2, 1)

    @pytest.mark.parametrize(
        "text", ["DELAY\x011\x02", "DELAY\x011\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02"]
    )
    async def test_one_that_belongs_nowhere_is_passed_over_at_once(self, text):
        broker = make()
        await broker.store.writes.put(Message("SCHEDULE_TOPIC_XXXX", 0, b"x", text))
        broker.clock.advance(1000)
        await broker.schedule.queues[0].step(broker.clock.now_ms)
        assert (len(broker.store.records()), broker.schedule.queues[0].offset) == (1, 1)

    async def test_messages_whose_log_was_deleted_are_skipped(self):
        broker = make()
        for n in range(3):
            await send(broker, 1, str(n).encode())
        broker.store.trim(broker.store.records()[2].pos)
        broker.clock.advance(1000)
        await broker.schedule.queues[0].step(broker.clock.now_ms)
        assert (bodies(broker), broker.schedule.queues[0].offset) == ([b"2"], 3)

    async def test_an_address_of_an_extension_file_is_no_time(self):
        broker = make()
        await send(broker, 2)
        units = broker.store._units["SCHEDULE_TOPIC_XXXX", 1]
        units[0] = (units[0][0], units[0][1], -(2**63))
        assert await broker.schedule.queues[1].step(broker.clock.now_ms) == 3000


class TestOffsets:
    async def test_they_are_read_and_written_as_rocketmq_does(self):
        file = MemoryFile({"offsetTable": {"1": 0, 3: 5}})
        offsets = DelayOffsets(file)
        assert offsets.offsets == {1: 0, 3: 5}
        offsets.offsets[1] = 2
        offsets.note(10, 10)
        offsets.persist()
        assert file.value == {"offsetTable": {1: 2, 3: 5}}

    async def test_only_what_is_flushed_is_written(self):
        file = MemoryFile()
        offsets = DelayOffsets(file)
        offsets.offsets[1] = 1
        offsets.note(100, 50)
        offsets.offsets[1] = 2
        offsets.note(200, 99)
        offsets.persist()
        assert file.value is None
        offsets.note(300, 100)  # confirms the first picture, takes the next
        offsets.persist()
        assert file.value == {"offsetTable": {1: 1}}
        offsets.note(300, 300)
        offsets.persist()
        assert file.value == {"offsetTable": {1: 2}}

    async def test_a_table_that_does_not_change_is_not_written_again(self):
        file = MemoryFile()
        offsets = DelayOffsets(file)
        for _ in range(3):
            offsets.note(1, 1)
            offsets.persist()
        assert file.saves == 0


async def test_a_service_that_stops_in_the_middle_of_a_delivery_does_not_forget_it():
    file = MemoryFile()
    broker = make(file=file)
    await send(broker, 1)
    broker.clock.advance(1000)
    await broker.schedule.start()
    while not bodies(broker):  # noqa: ASYNC110  # the moment when the worker is in the middle of its step
        await asyncio.sleep(0)
    await broker.schedule.stop()
    assert file.value == {"offsetTable": {1: 1}}


async def test_a_disk_that_takes_no_offsets_does_not_stop_the_service():
    file = MemoryFile()
    broker = make(file=file)
    await send(broker, 1)
    broker.clock.advance(1000)
    file.broken = True
    await broker.schedule.queues[0].step(broker.clock.now_ms)
    await broker.schedule.stop()
    file.broken = False
    broker.schedule.persist()
    assert file.value == {"offsetTable": {1: 1}}


class DelayedMessagesArriveAtLeastOnce(RuleBasedStateMachine):
    """A list of what was sent is the model; the store may refuse, lose its unflushed end, and start again."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.file = MemoryFile()
        self.store = FakeStore(Clock(), settings=SETTINGS, auto_flush=False)
        self.count = 0
        self.start()

    def start(self) -> None:
        self.broker = make(self.store, self.file)

    @rule(level=st.integers(1, 3), count=st.integers(1, 5))
    def send(self, level: int, count: int) -> None:
        self.store.accept()
        for _ in range(count):
            self.loop.run_until_complete(send(self.broker, level, str(self.count).encode()))
            self.count += 1

    @rule(ms=st.sampled_from([1, 500, 1000, 3000, 61_000]))
    def wait(self, ms: int) -> None:
        self.store.clock.advance(ms)

    @rule(level=st.integers(1, 3))
    def work(self, level: int) -> None:
        self.loop.run_until_complete(self.broker.schedule.queues[level - 1].step(self.store.clock.now_ms))

    @rule(
        status=st.sampled_from([PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.FLUSH_DISK_TIMEOUT]),
        times=st.integers(1, 4),
    )
    def refuse(self, status: PutStatus, times: int) -> None:
        self.store.refuse(status, times)

    @rule()
    def flush(self) -> None:
        self.store.flush()

    @rule()
    def persist(self) -> None:
        self.broker.schedule.persist()

    @rule()
    def crash(self) -> None:
        self.store.crash()
        self.start()

    @rule()
    def restart_in_order(self) -> None:
        self.store.flush()
        self.broker.schedule.persist()
        self.broker.schedule.persist()  # an older picture may have been waiting
        offsets = dict(self.broker.schedule.offsets.offsets)
        self.start()
        assert self.broker.schedule.offsets.offsets == offsets, "nothing is delivered twice after an orderly end"

    @invariant()
    def nothing_is_early(self) -> None:
        if not hasattr(self, "store"):
            return
        sent = {record.body: record for record in self.store.records("SCHEDULE_TOPIC_XXXX")}
        for record in self.store.records("T"):
            original = sent[record.body]
            delay = LEVELS.delay_ms(original.queue_id + 1)
            assert record.store_timestamp_ms >= original.store_timestamp_ms + delay

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        self.store.accept()
        self.store.clock.advance(61_000)
        for queue in self.broker.schedule.queues:
            for _ in range(50):
                self.loop.run_until_complete(queue.step(self.store.clock.now_ms))
        sent = {record.body for record in self.store.records("SCHEDULE_TOPIC_XXXX")}
        assert {record.body for record in self.store.records("T")} == sent, "something was lost"
        self.loop.close()


DelayedMessagesArriveAtLeastOnce.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestDelayedMessagesArriveAtLeastOnce = DelayedMessagesArriveAtLeastOnce.TestCase


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2000)), max_size=30), st.integers(300, 5000))
@settings(max_examples=50)
def test_each_level_keeps_its_order(sends, pace_ms):
    async def run() -> None:
        broker = make()
        for n, (level, pause_ms) in enumerate(sends):
            broker.clock.advance(pause_ms)
            await send(broker, level, b"%d:%d" % (level, n))
        while sum(queue.offset for queue in broker.schedule.queues) < len(sends):
            broker.clock.advance(pace_ms)
            for queue in broker.schedule.queues:
                await queue.step(broker.clock.now_ms)
        for level in range(1, 4):
            numbers = [int(body.split(b":")[1]) for body in bodies(broker) if body.startswith(b"%d:" % level)]
            assert numbers == [n for n, (one, _) in enumerate(sends) if one == level]

    asyncio.run(run())
