"""The index of timers: compared with a model over random work, kills and damaged files."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from engine_lab import HOST, SYNC, kill, message, opened, small, until

from tallystick.store._kernel import Door
from tallystick.store.clock import wall_ms
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.engine.timers import FOLDER, TOPIC
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record
from tallystick.store.verify.repair import StoreRepair

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def encoded(**names: object) -> str:
    return properties.encode({name: str(value) for name, value in names.items()})


async def add(store: MessageStore, key: str, due_ms: int, **more: object) -> int:
    """Stores a timer; returns its queue offset."""
    out = (due_ms - 1) // 1000 * 1000
    text = encoded(UNIQ_KEY=key, TIMER_DELIVER_MS=due_ms, TIMER_OUT_MS=out, REAL_TOPIC="T", REAL_QID=0, **more)
    result = await store.writes.put(message(b"x" * 50, topic=TOPIC, properties=text))
    assert result.status.stored
    return result.queue_offset


def origin(store: MessageStore, offset: int) -> str:
    ((pos, _, _),) = store.reads.units(TOPIC, 0, offset, 1)
    data = store.reads.message_at(pos)
    assert data is not None
    return f"{offset},{Record.decode(data).store_timestamp_ms}"


async def deliver(store: MessageStore, offset: int) -> None:
    text = encoded(TAGS="a", TIMER_ORIGIN=origin(store, offset))
    assert (await store.writes.put(message(b"d", properties=text))).status.stored


async def read(store: MessageStore) -> None:
    assert store.timers is not None
    await store.timers.reached(store.max_pos)


def pending(store: MessageStore) -> list[int]:
    assert store.timers is not None
    return store.timers.index.pending_from(-(2**63), 1 << 20)


def taken_in_order(store: MessageStore) -> list[tuple[int, int]]:
    """(time, offset) of all that pend, as the index returns them."""
    assert store.timers is not None
    rows = store.timers.index.take_due(2**62, 1 << 20)
    return [(due, offset) for offset, _, due in rows]


class Model:
    """What should pend: offset -> (time, key)."""

    def __init__(self) -> None:
        self.pending: dict[int, tuple[int, str]] = {}
        self.keys = 0

    def in_order(self) -> list[tuple[int, int]]:
        return sorted((due, offset) for offset, (due, _) in self.pending.items())


async def work(store: MessageStore, model: Model, rng: random.Random, steps: int) -> None:
    for _ in range(steps):
        dice = rng.random()
        if dice < 0.5 or not model.pending:
            due = NOW_MS + rng.randrange(3 * HOUR_MS)
            model.keys += 1
            key = f"K{model.keys}"
            model.pending[await add(store, key, due)] = (due, key)
            continue
        offset = rng.choice(sorted(model.pending))
        due, key = model.pending[offset]
        if dice < 0.7:
            await deliver(store, offset)
            del model.pending[offset]
        elif dice < 0.78:  # stored again
            again = await add(store, key, due, TIMER_ROLL_TIMES=1, TIMER_ORIGIN=origin(store, offset))
            model.pending[again] = model.pending.pop(offset)
        elif dice < 0.84:  # as RocketMQ 5 does it, by the key alone
            again = await add(store, key, due, TIMER_ROLL_TIMES=2)
            model.pending[again] = model.pending.pop(offset)
        elif dice < 0.92:
            more = {"TIMER_ORIGIN": origin(store, offset)} if rng.random() < 0.5 else {}
            await add(store, key, due, TIMER_DEL_UNIQKEY=key, **more)
            del model.pending[offset]
        elif dice < 0.96:
            await store.writes.put(message(bytes(rng.randrange(600))))
        else:  # a copy of the property in another message ends nothing
            text = encoded(TIMER_ORIGIN=f"{offset},{NOW_MS - 1}")
            await store.writes.put(message(b"copy", properties=text))


@pytest.mark.parametrize("seed", range(6))
async def test_the_index_is_what_the_log_says(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    settings = small(tmp_path, flushDiskType=SYNC)
    model = Model()
    for turn in range(6):
        store = await MessageStore.open(settings, store_host=HOST)
        assert store.timers is not None
        await read(store)
        assert pending(store) == sorted(model.pending), f"turn {turn}, after the start"
        await work(store, model, rng, 60)
        await read(store)
        assert pending(store) == sorted(model.pending)
        if rng.random() < 0.5:
            store.timers.index.save(store._dispatch)
            await work(store, model, rng, 15)
            await read(store)
        for offset, (due, key) in rng.sample(sorted(model.pending.items()), min(3, len(model.pending))):
            found = store.timers.index.find(key.encode(), due, due)
            assert [row[0] for row in found] == [offset]
        assert taken_in_order(store) == model.in_order()
        assert store.timers.index.take_due(2**62, 10) == []
        for offset in model.pending:
            store.timers.index.give_back(offset)
        assert taken_in_order(store) == model.in_order()
        store.timers.index.give_all_back()
        if rng.random() < 0.5:
            await kill(store)
        else:
            await store.close()
        files = sorted((tmp_path / FOLDER).glob("*")) if (tmp_path / FOLDER).exists() else []
        if files and rng.random() < 0.5:
            damage(rng, files)


def damage(rng: random.Random, files: Iterable[Path]) -> None:
    """Changes, cuts or removes a file of the index."""
    path = rng.choice(list(files))
    data = bytearray(path.read_bytes())
    kind = rng.randrange(3)
    if kind == 0 or not data:
        path.unlink()
    elif kind == 1:
        path.write_bytes(data[: rng.randrange(len(data))])
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


async def test_files_of_another_log_are_not_believed(tmp_path: Path) -> None:
    """The log lost its end with the power, and other messages are there now."""
    one, two = tmp_path / "one", tmp_path / "two"
    for root, count in ((one, 3), (two, 5)):
        async with opened(small(root)) as store:
            assert store.timers is not None
            for number in range(count):
                await add(store, f"{root.name}{number}", NOW_MS + number)
            await read(store)
    for path in (one / FOLDER).iterdir():
        (two / FOLDER / path.name).write_bytes(path.read_bytes())
    async with opened(small(two)) as store:
        await read(store)
        assert pending(store) == [0, 1, 2, 3, 4]


async def test_what_is_taken_stays_taken_while_the_log_is_read_again(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        timers = store.timers
        assert timers is not None
        first, second = await add(store, "A", NOW_MS), await add(store, "B", NOW_MS + 1)
        await read(store)
        assert [row[0] for row in timers.index.take_due(NOW_MS, 10)] == [first]
        timers.read_again()
        assert not timers.is_current
        await read(store)
        assert [row[0] for row in timers.index.take_due(NOW_MS + 5, 10)] == [second]
        await deliver(store, first)
        await read(store)
        assert pending(store) == [] and timers.index.counts()[0] == 1


async def test_segments_of_pending_messages_stay(tmp_path: Path) -> None:
    async with opened(small(tmp_path, fileReservedTime=0)) as store:
        timers = store.timers
        assert timers is not None
        first = await add(store, "A", wall_ms() + HOUR_MS)
        for _ in range(60):
            await store.writes.put(message(bytes(300)))
        await store.flush()
        await read(store)
        store.queues.delete_expired_segments()
        await store.upkeep.save(thorough=True)
        await store.upkeep.clean()
        assert store.min_pos == 0 and timers.wanted_pos > 4096
        rows, unreadable = timers.take_before(timers.wanted_pos, 10)
        assert ([row[0] for row in rows], unreadable) == ([first], [])
        again = await add(store, "A", wall_ms() + HOUR_MS, TIMER_ROLL_TIMES=1, TIMER_ORIGIN=origin(store, first))
        await read(store)
        await store.upkeep.save(thorough=True)
        await store.upkeep.clean()
        assert store.min_pos > 4096 and timers.wanted_pos == 0
        assert pending(store) == [again]
        assert timers.keep_from() > store.min_pos


async def test_nothing_pends_in_a_store_without_timers(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        for _ in range(50):
            await store.writes.put(message(bytes(300)))
        await read(store)
        assert store.timers is not None
        assert store.timers.index.pos == store.dispatched_pos and store.timers.index.next_due() is None
    assert not (tmp_path / FOLDER).exists()


async def test_many_entries_go_to_files_and_come_back_in_order(tmp_path: Path) -> None:
    """More than the index keeps in memory."""
    rng = random.Random(1)
    async with opened(small(tmp_path, mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=20 * 4096)) as store:
        assert store.timers is not None
        expected = []
        for turn in range(5):
            for number in range(200):
                due = NOW_MS + rng.randrange(1000)
                expected.append((due, await add(store, f"{turn}-{number}", due)))
            await read(store)
            assert store.timers.index.save(store._dispatch)
        runs = list((tmp_path / FOLDER).glob("run-*"))
        assert 1 <= len(runs) <= 6, runs  # merged, or not removed yet
        done = rng.sample(expected, 300)
        for _, offset in done:
            await deliver(store, offset)
        await read(store)
        assert taken_in_order(store) == sorted(set(expected) - set(done))


async def test_switched_off_it_says_what_is_not_delivered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(small(tmp_path)) as store:
        await add(store, "A", NOW_MS)
    async with opened(small(tmp_path, timerWheelEnable=False)) as store:
        assert store.timers is None
        assert "timerWheelEnable is false" in caplog.text
        assert TOPIC not in store.queues.clean_unused_topics(set())
        assert store.queues.max_offset(TOPIC, 0) == 1
    async with opened(small(tmp_path)) as store:
        await read(store)
        assert pending(store) == [0]
        await until(lambda: store.timers is not None and store.timers.is_current)


async def test_timers_that_rocketmq_delivered_before_are_not_delivered_again(tmp_path: Path) -> None:
    """Its checkpoint says which messages its wheel had, and up to which time it delivered them."""
    second = NOW_MS // 1000 * 1000
    async with opened(small(tmp_path)) as store:
        for number, due in enumerate((second + 1, second + 1000, second + 1001, second + 5000, second + 1)):
            await add(store, f"K{number}", due)
        await read(store)
        assert pending(store) == [0, 1, 2, 3, 4]
    config = tmp_path / "config"
    config.mkdir(exist_ok=True)
    # Delivered: what is rounded to `second`, of the first four messages.
    numbers = (second + 1000, 520, 4, 4)
    (config / "timercheck").write_bytes(b"".join(n.to_bytes(8, "big") for n in numbers) + bytes(4064))
    for _ in range(2):  # from the log, then from the files of the index
        async with opened(small(tmp_path)) as store:
            await read(store)
            assert pending(store) == [2, 3, 4]
    (config / "timercheck").write_bytes(b"torn")
    async with opened(small(tmp_path)) as store:
        await read(store)
        assert pending(store) == [0, 1, 2, 3, 4]


def found(store: MessageStore) -> list[tuple[str, str]]:
    return [(finding.kind.value, finding.file) for finding in store.findings.listed() if FOLDER in finding.file]


async def test_files_that_are_built_again_are_reported(tmp_path: Path) -> None:
    state = tmp_path / FOLDER / "state"
    async with opened(small(tmp_path)) as store:
        assert found(store) == []
        for number in range(3):
            await add(store, f"K{number}", NOW_MS + number)
        await read(store)
    async with opened(small(tmp_path)) as store:
        await read(store)
        assert found(store) == [] and pending(store) == [0, 1, 2]
    sound = state.read_bytes()
    for changed in (sound[:-1], b"", bytes([*sound[:40], sound[40] ^ 1, *sound[41:]]), None):
        if changed is None:
            state.unlink()
        else:
            state.write_bytes(changed)
        async with opened(small(tmp_path)) as store:
            await read(store)
            assert found(store) == [("rebuilt", FOLDER)]
            assert pending(store) == [0, 1, 2]
    next((tmp_path / FOLDER).glob("run-*")).unlink()
    async with opened(small(tmp_path)) as store:
        await read(store)
        assert found(store) == [("rebuilt", FOLDER)] and pending(store) == [0, 1, 2]


async def test_an_index_of_another_log_is_reported(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for root in (one, two):
        async with opened(small(root)) as store:
            await add(store, root.name, NOW_MS)
            await read(store)
    for path in (one / FOLDER).iterdir():
        (two / FOLDER / path.name).write_bytes(path.read_bytes())
    async with opened(small(two)) as store:
        assert found(store) == [("mark", FOLDER)]


async def test_what_ended_the_timers_of_a_segment_is_durable_before_the_segment_goes(tmp_path: Path) -> None:
    door = Door()
    async with opened(small(tmp_path, fileReservedTime=0, flushCommitLogThoroughInterval=3_600_000), door) as store:
        first = await add(store, "A", NOW_MS)
        for _ in range(60):
            await store.writes.put(message(bytes(300)))
        await store.flush()
        await read(store)
        await store.upkeep.save(thorough=True)
        await deliver(store, first)
        await read(store)
        assert store.flushed_pos < store.max_pos, "or this test shows nothing"
        store.queues.delete_expired_segments()
        door.fail("sync", "commitlog", 5)
        with pytest.raises(OSError):
            await store.upkeep.clean()
        assert (store.settings.log_folder / f"{0:020}").exists()
        door.heal()


async def test_bytes_that_are_readable_again_are_read(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        timers = store.timers
        assert timers is not None
        offset = await add(store, "A", NOW_MS)
        await read(store)
        assert timers.index.forget(offset) and pending(store) == []
        timers.derived_again(timers.index.pos)
        assert timers.is_current
        timers.derived_again(0)
        assert not timers.is_current
        await read(store)
        assert pending(store) == [offset]


async def test_records_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        timers = store.timers
        assert timers is not None
        await add(store, "A", NOW_MS)
        await add(store, "B", NOW_MS)
        await store.flush()
        await read(store)
        path = store.settings.log_folder / f"{0:020}"
        data = bytearray(path.read_bytes())
        data[data.index(b"xxxx")] ^= 1
        path.write_bytes(data)
        rows, unreadable = timers.take_before(store.max_pos, 10)
        assert ([row[0] for row in rows], unreadable) == ([1], [0])


async def test_a_repair_lets_the_index_be_built_again(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        await add(store, "A", NOW_MS)
        await read(store)
    (tmp_path / "consumequeue" / TOPIC / "0" / f"{0:020}").write_bytes(b"damaged " * 40)
    assert (tmp_path / FOLDER / "state").exists()
    with StoreRepair.opened(tmp_path) as repair:
        repair.run(repair.look(), None)
    assert not (tmp_path / FOLDER / "state").exists()
    async with opened(small(tmp_path)) as store:
        await read(store)
        assert pending(store) == [0]


async def test_a_full_disk_keeps_the_entries_in_memory(tmp_path: Path) -> None:
    door = Door()
    async with opened(small(tmp_path), door) as store:
        assert store.timers is not None
        for number in range(20):
            await add(store, f"K{number}", NOW_MS + number)
        await read(store)
        door.fail("write", FOLDER, 28)
        with pytest.raises(OSError):
            store.timers.index.save(store._dispatch)
        await store.timers._save()  # reports it
        assert taken_in_order(store) == [(NOW_MS + number, number) for number in range(20)]
        door.heal()
        assert store.timers.index.save(store._dispatch)
    async with opened(small(tmp_path)) as store:
        await read(store)
        assert found(store) == [] and pending(store) == list(range(20))
