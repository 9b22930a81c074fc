"""A ConsumeQueue unit that leads to another record than that of its place is set right from the log, not served.

Unit n of a queue names the record of the queue's topic and id whose queue offset is n. Only queues that are shifted as
a whole, as RocketMQ leaves them when it lost units, are served as they are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random

import pytest
from derived_lab import Sent, check_reads, files, patch, saved, send, started
from engine_lab import records_of

from tallystick.store._kernel import key_hash
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.findings import FindingKind
from tallystick.store.formats.queue_format import BLANK_UNIT_SIZE, UNIT

KINDS = [pytest.param(False, id="plain"), pytest.param(True, id="group")]
COUNT = 14
ROOM = 16
"""Units of a file."""


@asynccontextmanager
async def filled(root: Path, group: bool) -> AsyncIterator[tuple[MessageStore, list[Sent], list[int]]]:
    """Two queues of two topics with messages in turns, all written; the bytes of the log that are called damaged."""
    told: list[int] = []
    async with started(root, group) as store:
        store.media.on_damage.append(lambda pos, end: told.extend(range(pos, end)))
        sent = []
        for number in range(COUNT):
            for topic, queue in (("A", 0), ("A", 1), ("B", 0)):
                sent.append(await send(store, topic, queue, number * 10 + len(topic) + queue))
        await saved(store)
        yield store, sent, told


def units_of(root: Path, queue: str) -> list[bytes]:
    data = b"".join(path.read_bytes() for path in files(root, queue))
    return [data[at : at + UNIT.size] for at in range(0, COUNT * UNIT.size, UNIT.size)]


def put_units(root: Path, queue: str, units: list[bytes]) -> None:
    for place, unit in enumerate(units):
        patch(files(root, queue)[place // ROOM], place % ROOM * UNIT.size, unit)


def bodies(store: MessageStore, topic: str, queue: int, step: int, codes: frozenset[int] | None = None) -> list[bytes]:
    """What a consumer gets that reads the queue from its begin, `step` messages at once."""
    read, at = [], 0
    while at < store.queues.max_offset(topic, queue):
        found = store.reads.get_message(topic, queue, at, step, codes=codes)
        read += [record.body for record in records_of(found.body)]
        assert found.next_begin_offset > at, found
        at = found.next_begin_offset
    return read


def check_all(store: MessageStore, root: Path, sent: list[Sent], before: dict[str, list[bytes]], step: int) -> None:
    for name in before:
        topic, _, queue = name.partition("/")
        wanted = [each.body for each in sent if (each.topic, each.queue) == (topic, int(queue))]
        assert bodies(store, topic, int(queue), step) == wanted, name
    assert {name: units_of(root, name) for name in before} == before


SWAPS: dict[str, Callable[[list[bytes], list[bytes]], list[bytes]]] = {
    "one unit back": lambda units, _: [*units[:5], units[3], *units[6:]],
    "one unit ahead": lambda units, _: [*units[:5], units[9], *units[6:]],
    "the next unit": lambda units, _: [*units[:5], units[6], *units[6:]],
    "the unit before": lambda units, _: [*units[:5], units[4], *units[6:]],
    "the first unit": lambda units, _: [units[1], *units[1:]],
    "the last unit": lambda units, _: [*units[:-1], units[-2]],
    "two units change places": lambda units, _: [*units[:5], units[8], *units[6:8], units[5], *units[9:]],
    "a block from behind": lambda units, _: [*units[:2], *units[7:12], *units[7:]],
    "a block from before": lambda units, _: [*units[:7], *units[2:7], *units[12:]],
    "a block at the begin": lambda units, _: [*units[6:10], *units[4:]],
    "a block at the end": lambda units, _: [*units[:8], *units[2:8]],
    "all of them backwards": lambda units, _: units[::-1],
    "a unit of another queue": lambda units, other: [*units[:5], other[5], *units[6:]],
    "a block of another queue": lambda units, other: [*units[:5], *other[5:9], *units[9:]],
    "all of another queue": lambda _, other: other,
}


@pytest.mark.parametrize("group", KINDS)
@pytest.mark.parametrize("step", [1, 5, 32])
@pytest.mark.parametrize("other", ["A/1", "B/0"])
@pytest.mark.parametrize("swap", SWAPS)
async def test_a_reader_gets_each_message_once(tmp_path: Path, swap: str, other: str, step: int, group: bool) -> None:
    async with filled(tmp_path, group) as (store, sent, told):
        before = {name: units_of(tmp_path, name) for name in ("A/0", "A/1", "B/0")}
        put_units(tmp_path, "A/0", SWAPS[swap](before["A/0"], before[other]))
        check_all(store, tmp_path, sent, before, step)
        assert told == []  # the log is not to blame
        found = {(each.kind, each.file.split("/")[0]) for each in store.findings.listed()}
        assert found == {(FindingKind.DAMAGE, "consumequeue"), (FindingKind.REBUILT, "consumequeue")}
        check_reads(store, sent)


@pytest.mark.parametrize("seed", range(30))
async def test_any_exchange_of_units_is_found(tmp_path: Path, seed: int) -> None:
    dice = Random(seed)
    async with filled(tmp_path, bool(seed % 2)) as (store, sent, told):
        before = {name: units_of(tmp_path, name) for name in ("A/0", "A/1", "B/0")}
        for _ in range(dice.choice((1, 1, 2, 4))):
            to, source = dice.choice(sorted(before)), dice.choice(sorted(before))
            size = dice.choice((1, 1, 2, 5, COUNT))
            at, other = dice.randrange(COUNT - size + 1), dice.randrange(COUNT - size + 1)
            units = units_of(tmp_path, to)
            put_units(tmp_path, to, units[:at] + before[source][other : other + size] + units[at + size :])
        check_all(store, tmp_path, sent, before, dice.choice((1, 3, 32)))
        assert told == []


@pytest.mark.parametrize("swap", ["one unit back", "one unit ahead", "a block from behind", "two units change places"])
async def test_a_wrong_unit_that_a_filter_refuses_hides_nothing(tmp_path: Path, swap: str) -> None:
    """Only the units around it show that it is wrong: the records of what a filter refuses are not read."""
    async with started(tmp_path, False) as store:
        wanted = []
        for number in range(COUNT):
            tag = b"yes" if number % 2 else b"no"
            await send(store, "A", 0, number, tag.decode())
            if number % 2:
                wanted.append(number)
        await saved(store)
        before = units_of(tmp_path, "A/0")
        put_units(tmp_path, "A/0", SWAPS[swap](before, before))
        got = bodies(store, "A", 0, 32, frozenset({key_hash(b"yes")}))
        assert [int(body[:4]) for body in got] == wanted


@pytest.mark.parametrize("other", ["A/1", "B/0"])
async def test_a_sound_record_is_not_blamed_for_a_lost_one(tmp_path: Path, other: str) -> None:
    """The record is damaged, and its unit leads to a sound one of another queue, between those around it."""
    async with filled(tmp_path, False) as (store, sent, told):
        ((pos, size, _),) = store.reads.units("A", 0, 5, 1)
        units, others = units_of(tmp_path, "A/0"), units_of(tmp_path, other)
        patch(next((tmp_path / "commitlog").glob(f"{pos - pos % 4096:020}")), pos % 4096 + 4, b"\xee" * 4)
        put_units(tmp_path, "A/0", [*units[:5], others[5], *units[6:]])
        mine = [each for each in sent if (each.topic, each.queue) == ("A", 0)]
        assert bodies(store, "A", 0, 32) == [each.body for each in mine if each.offset != 5]
        assert told and set(told) <= set(range(pos, pos + size))
        assert UNIT.unpack(units_of(tmp_path, "A/0")[5]) == (0, 2**31 - 1, 0)


# -- the search for a time ---------------------------------------------------------------------------------------------

_TIMES = range(1_600_000_000_000 - 50, 1_600_000_000_000 + 100 * 3 * COUNT, 37)


@pytest.fixture
def spaced_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is stored 100 ms after the one before it."""
    times = count(1_600_000_000_000, 100)
    monkeypatch.setattr("tallystick.store.engine.writes.wall_ms", lambda: next(times))


def by_time(store: MessageStore, queue: str) -> list[int]:
    topic, _, number = queue.partition("/")
    return [store.reads.offset_by_time(topic, int(number), time_ms) for time_ms in _TIMES]


@pytest.mark.parametrize("group", KINDS)
@pytest.mark.parametrize("other", ["A/1", "B/0"])
@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.usefixtures("spaced_times")
async def test_a_search_by_time_finds_the_same_offsets(tmp_path: Path, swap: str, other: str, group: bool) -> None:
    """What it meets is set right, so that the consumer gets the message that was stored at the time."""
    async with filled(tmp_path, group) as (store, _, told):
        before = {name: units_of(tmp_path, name) for name in ("A/0", other)}
        wanted = by_time(store, "A/0")
        assert set(wanted) == set(range(COUNT))
        put_units(tmp_path, "A/0", SWAPS[swap](before["A/0"], before[other]))
        assert by_time(store, "A/0") == wanted
        assert told == []


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.usefixtures("spaced_times")
async def test_a_search_by_time_skips_no_message_behind_damage(tmp_path: Path, seed: int) -> None:
    """Records and their units are damaged: an earlier offset brings messages twice, a later one skips sound ones."""
    dice = Random(seed)
    async with filled(tmp_path, False) as (store, _, _):
        wanted = by_time(store, "A/0")
        units, others = units_of(tmp_path, "A/0"), units_of(tmp_path, "B/0")
        damaged = set(dice.sample(range(COUNT), dice.choice((1, 2, 5, COUNT))))
        for offset in damaged:
            ((pos, _, _),) = store.reads.units("A", 0, offset, 1)
            patch(next((tmp_path / "commitlog").glob(f"{pos - pos % 4096:020}")), pos % 4096 + 4, b"\xee" * 4)
            if dice.random() < 0.5:
                units[offset] = dice.choice((others[offset], bytes(UNIT.size), b"\xff" * UNIT.size, units[0]))
        put_units(tmp_path, "A/0", units)
        for found, right in zip(by_time(store, "A/0"), wanted, strict=True):
            assert found <= right or set(range(right, found)) <= damaged, (found, right, damaged)
        reported = {finding.kind for finding in store.findings.listed()}
        assert FindingKind.DAMAGE in reported or damaged == set()


@pytest.mark.parametrize("group", KINDS)
@pytest.mark.usefixtures("spaced_times")
async def test_a_search_by_time_skips_no_message_before_placeholders(tmp_path: Path, group: bool) -> None:
    """They tell no time. The search continues before them."""
    async with filled(tmp_path, group) as (store, _, _):
        first_ms = next(time_ms for time_ms in _TIMES if time_ms > 1_600_000_000_000)
        blank = UNIT.pack(0, BLANK_UNIT_SIZE, 0)
        for kept in reversed(range(1, COUNT)):
            put_units(tmp_path, "A/0", units_of(tmp_path, "A/0")[:kept] + [blank] * (COUNT - kept))
            assert store.reads.offset_by_time("A", 0, first_ms) == 0, kept


# -- queues that RocketMQ shifted --------------------------------------------------------------------------------------


def rewrite_offsets(root: Path, store: MessageStore, shift: Callable[[int], int]) -> None:
    """Gives the records of queue A/0 other queue offsets in the log: no CRC covers them."""
    for place, (pos, _, _) in enumerate(store.reads.units("A", 0, 0, COUNT)):
        segment = next((root / "commitlog").glob(f"{pos - pos % 4096:020}"))
        patch(segment, pos % 4096 + 20, shift(place).to_bytes(8))


HISTORIES: dict[str, Callable[[int], int]] = {
    "from the begin": lambda place: place + 7,
    "from a place on": lambda place: place + 3 * (place >= 6),
    "for a while": lambda place: place + 2 * (4 <= place < 9),
    "twice": lambda place: place + 3 * (place >= 4) + 2 * (place >= 9),
    "back": lambda place: place - 2 * (place >= 6),
    "a queue that counts from 0 again": lambda place: place - 6 * (place >= 6),
    "a single 0": lambda place: place if place != 6 else 0,
}


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("step", [1, 5, 32])
async def test_a_shifted_queue_is_served_as_it_is(tmp_path: Path, history: str, step: int) -> None:
    async with filled(tmp_path, False) as (store, sent, told):
        before = units_of(tmp_path, "A/0")
        rewrite_offsets(tmp_path, store, HISTORIES[history])
        assert bodies(store, "A", 0, step) == [each.body for each in sent if (each.topic, each.queue) == ("A", 0)]
        assert units_of(tmp_path, "A/0") == before
        assert told == [] and store.findings.listed() == []


@pytest.mark.parametrize("history", ["from the begin", "from a place on", "back"])
@pytest.mark.parametrize("swap", ["two units back", "three units ahead", "a unit of another queue", "zeros"])
async def test_a_wrong_unit_in_a_shifted_queue_is_set_right(tmp_path: Path, history: str, swap: str) -> None:
    async with filled(tmp_path, False) as (store, sent, told):
        before = {name: units_of(tmp_path, name) for name in ("A/0", "B/0")}
        rewrite_offsets(tmp_path, store, HISTORIES[history])
        at = 9
        wrong = {
            "two units back": before["A/0"][at - 2],
            "three units ahead": before["A/0"][at + 3],
            "a unit of another queue": before["B/0"][at],
            "zeros": bytes(UNIT.size),
        }[swap]
        put_units(tmp_path, "A/0", [*before["A/0"][:at], wrong, *before["A/0"][at + 1 :]])
        check_all(store, tmp_path, sent, before, 5)
        assert told == []


async def test_a_single_record_with_another_offset_is_damage(tmp_path: Path) -> None:
    """As a rebuild has it: that record is a stray. Its unit is right, so the log is named."""
    async with filled(tmp_path, False) as (store, sent, told):
        before = units_of(tmp_path, "A/0")
        ((pos, size, _),) = store.reads.units("A", 0, 5, 1)
        rewrite_offsets(tmp_path, store, lambda place: place + 4 * (place == 5))
        mine = [each for each in sent if (each.topic, each.queue) == ("A", 0)]
        assert bodies(store, "A", 0, 32) == [each.body for each in mine if each.offset != 5]
        assert set(told) == set(range(pos, pos + size))
        assert units_of(tmp_path, "A/0") == before
