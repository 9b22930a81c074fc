"""Delayed messages and open transactions are found by units: wrong ones are set right first, or waited for."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from derived_lab import files, patch, saved, started
from engine_lab import HOST, message, records_of, until

from tallystick.node.broker.services.delay import DelayLevels, to_schedule
from tallystick.node.broker.services.half import to_half, to_op
from tallystick.node.broker.services.schedule import LevelQueue
from tallystick.node.broker.services.transaction_check import Ask, CheckRound, CheckRules, HalfLinks
from tallystick.node.broker.tables.topics import HALF_TOPIC, OPERATION_TOPIC, SCHEDULE_TOPIC
from tallystick.store.engine import queue_repair
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.findings import FindingKind
from tallystick.store.formats.queue_format import UNIT

LEVELS = DelayLevels([1000, 3000])
LATE_MS = 1 << 60
COUNT = 8
QUEUE = f"{SCHEDULE_TOPIC}/0"


@pytest.fixture(params=[False, True], ids=["plain", "group"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MessageStore]:
    """Delayed messages "0" to "7" of one level, between others."""
    async with started(tmp_path, request.param) as store:
        for number in range(COUNT):
            delayed = message(b"%d" % number, topic="T", properties="DELAY\x011\x02")
            assert (await store.writes.put(to_schedule(delayed, LEVELS))).status.stored
            assert (await store.writes.put(message(b"other", topic="O"))).status.stored
        await saved(store)
        yield store


def worker(store: MessageStore) -> LevelQueue:
    return LevelQueue(store, 1, 1000, {})


async def deliver_all(queue: LevelQueue) -> None:
    for _ in range(1000):
        if queue.offset == COUNT:
            return
        await queue.step(LATE_MS)
        await asyncio.sleep(0.001)
    pytest.fail(f"delivery stands at {queue.offset}")


def delivered(store: MessageStore) -> list[bytes]:
    return [record.body for record in records_of(store.reads.get_message("T", 0, 0, 32).body)]


def copy_unit(root: Path, source: tuple[str, int], to: int) -> None:
    at = source[1] * UNIT.size
    patch(files(root, QUEUE)[0], to * UNIT.size, files(root, source[0])[0].read_bytes()[at : at + UNIT.size])


SOURCES = [(QUEUE, 1), (QUEUE, 6), ("O/0", 4)]


@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("inline", [True, False], ids=["at once", "on a thread"])
async def test_each_delayed_message_is_delivered_once(
    store: MessageStore, source: tuple[str, int], inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not inline:
        monkeypatch.setattr(queue_repair, "_INLINE_BYTES", 0)
    copy_unit(store.root, source, 4)
    queue = worker(store)
    await deliver_all(queue)
    assert sorted(delivered(store)) == [b"%d" % number for number in range(COUNT)]
    assert queue.passed_over == 0
    wanted = {FindingKind.DAMAGE, FindingKind.REBUILT}
    await until(lambda: {each.kind for each in store.findings.listed()} == wanted, "the repair is reported")


async def test_a_unit_that_is_being_repaired_is_waited_for(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.queue_repair, "look_at", lambda *_: False)
    patch(files(store.root, QUEUE)[0], 4 * UNIT.size, bytes(UNIT.size))
    queue = worker(store)
    for _ in range(20):
        await queue.step(LATE_MS)
    assert (queue.offset, queue.passed_over) == (4, 0)
    monkeypatch.undo()
    await deliver_all(queue)
    assert delivered(store) == [b"%d" % number for number in range(COUNT)]


async def test_a_lost_message_is_passed_over_at_once(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    """A placeholder has position 0, where another record begins: that one is not delivered in its place."""
    patch(files(store.root, QUEUE)[0], 4 * UNIT.size, UNIT.pack(0, 0x7FFFFFFF, 0))
    queue = worker(store)
    await queue.step(LATE_MS)
    assert (queue.offset, queue.passed_over) == (COUNT, 1)
    assert delivered(store) == [b"%d" % number for number in range(COUNT) if number != 4]
    assert "is lost from the log" in caplog.text


async def test_times_are_of_the_right_record(store: MessageStore) -> None:
    times = [store.reads.store_time(SCHEDULE_TOPIC, 0, offset) for offset in range(COUNT)]
    copy_unit(store.root, (QUEUE, 1), 4)
    assert [store.reads.store_time(SCHEDULE_TOPIC, 0, offset) for offset in range(COUNT)] == times
    patch(files(store.root, QUEUE)[0], 5 * UNIT.size, UNIT.pack(0, 0x7FFFFFFF, 0))
    assert store.reads.store_time(SCHEDULE_TOPIC, 0, 5) == -1


# -- transactions ------------------------------------------------------------------------------------------------------

HALVES = 6
RULES = CheckRules(now_ms=LATE_MS, timeout_ms=1000, max_checks=15, reserved_ms=LATE_MS, aged_ms=0)


@pytest.fixture(params=[False, True], ids=["plain", "group"])
async def halves(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MessageStore]:
    """Six half messages that were ended, but for the third one, by one op record each."""
    async with started(tmp_path, request.param) as store:
        for number in range(HALVES):
            names = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"K{number}"}
            assert (await store.writes.put(to_half(message(b"%d" % number, topic="T"), names))).status.stored
        for number in (0, 1, 3, 4, 5):
            assert (await store.writes.put(to_op(0, number, HOST, 1))).status.stored
        await saved(store)
        yield store


def asked(store: MessageStore) -> tuple[list[int], CheckRound]:
    """The halves that a round after a restart asks about, and the round."""
    check = CheckRound(store, 0, 0, RULES, HalfLinks())
    return [step.offset for step in check.steps() if isinstance(step, Ask)], check


def move_unit(root: Path, queue: str, source: int, to: int) -> None:
    path = files(root, f"{queue}/0")[0]
    patch(path, to * UNIT.size, path.read_bytes()[source * UNIT.size : (source + 1) * UNIT.size])


@pytest.mark.parametrize("queue", [HALF_TOPIC, OPERATION_TOPIC])
@pytest.mark.parametrize(("source", "to"), [(0, 2), (4, 2), (2, 1), (3, 4)])
async def test_a_round_looks_at_each_half_once(halves: MessageStore, queue: str, source: int, to: int) -> None:
    move_unit(halves.root, queue, source, to)
    offsets, check = asked(halves)
    assert (offsets, check.unreadable) == ([2], 0)
    assert (check.half_offset, check.op_offset) == (HALVES, HALVES - 1)


@pytest.mark.parametrize("queue", [HALF_TOPIC, OPERATION_TOPIC])
@pytest.mark.parametrize("at", range(5))
async def test_a_round_waits_for_a_unit_that_is_being_repaired(
    halves: MessageStore, queue: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halves.queue_repair, "look_at", lambda *_: False)
    path = files(halves.root, f"{queue}/0")[0]
    right = path.read_bytes()[at * UNIT.size : (at + 1) * UNIT.size]
    patch(path, at * UNIT.size, bytes(UNIT.size))
    offsets, check = asked(halves)
    assert set(offsets) <= {2} and check.unreadable == 0
    if queue == OPERATION_TOPIC:
        assert check.op_offset <= at
    elif at == 2:
        assert check.half_offset == at  # the others are ended, and passed without being read
    monkeypatch.undo()
    offsets, check = asked(halves)
    assert (offsets, check.half_offset, check.op_offset) == ([2], HALVES, HALVES - 1)
    assert path.read_bytes()[at * UNIT.size : (at + 1) * UNIT.size] == right
