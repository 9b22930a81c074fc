"""Bit maps of SQL92 filters: dispatch writes RocketMQ's, and pulls skip by them only messages that do not match."""

from __future__ import annotations

import json
import lzma
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_lab import HOST, kill, message, opened, records_of, small

from tallystick.node.broker.services.bit_maps import BitMaps
from tallystick.node.broker.tables.filters import ConsumerFilterTable, FilterData
from tallystick.node.broker.tables.subscriptions import SQL92, SubscriptionData
from tallystick.node.core.settings import BrokerSettings
from tallystick.store._kernel import BitTest, Dispatch, Door
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.findings import FindingKind
from tallystick.store.formats.message import GetStatus
from tallystick.store.settings import StoreSettings
from tallystick.store.verify.report import verify

LIMITS = (1 << 30, 1 << 20, 1 << 30, 1 << 20)
EXT_BYTES = 1024
EXPRESSIONS = ("n > 5", "n BETWEEN 2 AND 4", "color = 'red'", "color IS NULL", "n = 3 OR color = 'blue'", "TRUE")


class MemoryFile:
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def load(self) -> Any:
        return self.value

    def save(self, value: Any) -> None:
        self.value = json.loads(json.dumps(value))


def filter_table(stored: Any = None) -> ConsumerFilterTable:
    return ConsumerFilterTable(MemoryFile(stored), BrokerSettings(), lambda: 1_000_000)


def subscribe(table: ConsumerFilterTable, group: str, expression: str, version: int, topic: str = "T") -> None:
    table.register(group, [SubscriptionData.build(topic, expression, SQL92, version)])


def extended(root: Path, **changes: Any) -> StoreSettings:
    return small(root, enableConsumeQueueExt=True, mappedFileSizeConsumeQueueExt=EXT_BYTES, **changes)


class Filters:
    """A table of filters whose bit maps the store calculates."""

    def __init__(self, store: MessageStore, stored: Any = None) -> None:
        self.store = store
        self.table = filter_table(stored)
        self.maps = BitMaps(self.table, store)
        self.maps.start(wanted=True)
        self.read = 0

    def of(self, group: str) -> FilterData:
        data = self.table.get("T", group)
        assert data is not None
        return data

    def pull(self, group: str, *, by_bits: bool = True) -> list[int]:
        """The offsets that the group gets; `read`: how many records were read and evaluated for that."""
        wanted, self.read = self.of(group).filter, 0
        assert wanted.accept is not None
        accept = wanted.accept

        def counting(code: int, stored: bytes) -> bool:
            self.read += 1
            return accept(code, stored)

        at, found = self.store.queues.min_offset("T", 0), []
        while at < self.store.queues.max_offset("T", 0):
            bits = wanted.bits if by_bits else None
            result = self.store.reads.get_message("T", 0, at, 32, accept=counting, bits=bits)
            assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING)
            found += [record.queue_offset for record in records_of(result.body)]
            at = result.next_begin_offset
        return found


async def send(store: MessageStore, count: int, dice: random.Random) -> None:
    for _ in range(count):
        color = dice.choice(("", "color\x01red\x02", "color\x01blue\x02"))
        await store.writes.put(message(b"body", properties=f"n\x01{dice.randrange(10)}\x02{color}"))
    store.dispatcher.finish()


# RocketMQ's bytes


def test_queues_and_bit_maps_are_rocketmqs_byte_for_byte(golden: Callable[[str], Path], golden_folder: Path) -> None:
    with lzma.open(golden_folder / "cqext" / "expected.json.xz") as file:
        end = json.load(file)["opened"]["maxPhyOffset"]
    root = golden("cqext")
    wrote = {path.relative_to(root): path.read_bytes() for path in sorted(root.glob("consumequeue*/*/*/*"))}
    assert len(wrote) == 6
    for name in ("consumequeue", "consumequeue_ext"):
        shutil.rmtree(root / name)
    dispatch = Dispatch(
        Door(),
        str(root),
        str(root / "commitlog"),
        log_segment_bytes=1 << 20,
        queue_segment_bytes=6000,
        index_slots=500,
        index_entries=2000,
        index_enabled=False,
        ext_segment_bytes=4096,
    )
    dispatch.load()
    maps = BitMaps(filter_table(json.loads((root / "config" / "consumerFilter.json").read_bytes())), None)
    dispatch.set_filters([b"GoldExt"], maps.calculate, maps.require)
    dispatch.run(end, 5000)  # in several runs
    while dispatch.position < end:
        dispatch.run(end, 5000)
    dispatch.write_out()
    ours = {path.relative_to(root): path.read_bytes() for path in sorted(root.glob("consumequeue*/*/*/*"))}
    assert ours == wrote


def test_the_saved_filters_are_rocketmqs(golden: Callable[[str], Path]) -> None:
    stored = json.loads((golden("cqext") / "config" / "consumerFilter.json").read_bytes())
    assert filter_table(stored).to_json() == stored


# Pulls


async def test_a_pull_reads_only_messages_that_may_match(tmp_path: Path) -> None:
    async with opened(extended(tmp_path)) as store:
        filters = Filters(store)
        subscribe(filters.table, "g", "n > 7", 1)
        subscribe(filters.table, "other", "n < 2", 1)
        await send(store, 200, random.Random(1))
        plain = filters.pull("g", by_bits=False)
        assert filters.read == 200 and 0 < len(plain) < 100
        assert filters.pull("g") == plain
        assert len(plain) <= filters.read < len(plain) + 10


@pytest.mark.parametrize("seed", range(12))
async def test_no_matching_message_is_skipped(tmp_path: Path, seed: int) -> None:
    """Filters come, change and go, with clocks that say nothing; the process ends in any way; settings change."""
    dice = random.Random(seed)
    stored: Any = None
    version = 0
    for _ in range(4):
        has_ext, calculates = dice.random() < 0.8, dice.random() < 0.8
        store = await MessageStore.open(
            small(tmp_path, enableConsumeQueueExt=has_ext, mappedFileSizeConsumeQueueExt=EXT_BYTES), store_host=HOST
        )
        filters = Filters(store, stored)
        if not calculates:
            filters.maps.stop()
        for _ in range(12):
            match dice.randrange(5):
                case 0 | 1:
                    await send(store, dice.randrange(20), dice)
                case 2:
                    version += 1
                    subscribe(filters.table, f"g{dice.randrange(3)}", dice.choice(EXPRESSIONS), version)
                case 3:
                    filters.table.unregister(f"g{dice.randrange(3)}")
                case _:
                    # As the table of an earlier time, or of another member of a group
                    stored = dice.choice((stored, filters.table.to_json()))
            for data in filters.table.of_topic("T"):
                assert filters.pull(data.consumer_group) == filters.pull(data.consumer_group, by_bits=False)
        if dice.random() < 0.5:
            await kill(store)
        else:
            await store.close()
    assert verify(tmp_path).sound


async def test_a_start_does_not_use_bits_of_an_earlier_one(tmp_path: Path) -> None:
    """The saved table may be older than the bits: here a group's next expression was not saved before the kill."""
    async with opened(extended(tmp_path)) as store:
        filters = Filters(store)
        subscribe(filters.table, "g", "n > 5", 1)
        saved = filters.table.to_json()
        subscribe(filters.table, "g", "n < 2", 2)
        await send(store, 50, random.Random(1))
    async with opened(extended(tmp_path)) as store:
        filters = Filters(store, saved)
        plain = filters.pull("g", by_bits=False)
        assert plain and filters.pull("g") == plain


async def test_bits_of_another_expression_of_the_group_are_not_used(tmp_path: Path) -> None:
    async with opened(extended(tmp_path)) as store:
        filters = Filters(store)
        subscribe(filters.table, "g", "n > 5", 1)
        await send(store, 50, random.Random(1))
        subscribe(filters.table, "g", "n < 2", 2)
        await send(store, 50, random.Random(2))
        plain = filters.pull("g", by_bits=False)
        assert plain and filters.pull("g") == plain
        assert filters.read < 100


async def test_a_filter_that_comes_during_a_run_counts_from_its_end(tmp_path: Path) -> None:
    async with opened(extended(tmp_path)) as store:
        filters = Filters(store)
        subscribe(filters.table, "a", "n > 5", 1)
        seen: list[bool] = []

        def late(records: list[tuple[bytes, bytes]]) -> list[bytes]:
            maps = filters.maps.calculate(records)  # without the filter that comes now
            if not seen:
                seen.append(True)
                subscribe(filters.table, "g", "n >= 0", 1)
                store.queues.set_filters([b"T"], late, filters.maps.require)
            return maps

        store.queues.set_filters([b"T"], late, filters.maps.require)
        await send(store, 50, random.Random(1))
        plain = filters.pull("g", by_bits=False)
        assert seen and plain and filters.pull("g") == plain


async def test_an_error_of_the_evaluation_costs_bit_maps_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", met.append)
    async with opened(extended(tmp_path)) as store:
        filters = Filters(store)
        subscribe(filters.table, "g", "n > 5", 1)

        def failing(records: list[tuple[bytes, bytes]]) -> list[bytes]:
            raise RuntimeError("no")

        store.queues.set_filters([b"T"], failing, filters.maps.require)
        await send(store, 20, random.Random(1))
        assert met and filters.pull("g") == filters.pull("g", by_bits=False)


def test_bits_outside_of_a_map_are_refused() -> None:
    with pytest.raises(ValueError, match="outside of a map of 14 bytes"):
        BitTest([112], 14, 0)


# Damage


async def test_a_scrub_finds_a_lost_bit_and_the_unit_is_written_again(tmp_path: Path) -> None:
    async with opened(extended(tmp_path)) as store:
        filters = Filters(store)
        subscribe(filters.table, "g", "n > 5", 1)
        await send(store, 100, random.Random(1))
        plain = filters.pull("g", by_bits=False)
        store._dispatch.write_out()
        unit = store.reads.units("T", 0, plain[3], 1)[0]
        place = unit[2] + (1 << 63)
        file = tmp_path / "consumequeue_ext" / "T" / "0" / f"{place // EXT_BYTES * EXT_BYTES:020}"
        data = bytearray(file.read_bytes())
        at = place % EXT_BYTES
        data[at + 20 : at + 34] = bytes(14)
        file.write_bytes(data)
        assert plain[3] not in filters.pull("g"), "its bits are lost"
        subscribe(filters.table, "late", "n >= 0", 1)  # its bits are in no map of these messages
        assert not store.findings.listed()
        await store.flush()  # a scrub reads what is durable
        await store.scrub._pass()
        assert filters.pull("g") == plain
        assert store.reads.units("T", 0, plain[3], 1)[0][2] == 0, "the plain tags code"
        found = [each for each in store.findings.listed() if each.kind is FindingKind.REBUILT]
        assert len(found) == 1
