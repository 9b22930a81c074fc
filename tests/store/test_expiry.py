"""Where the messages of a queue end that are older than a time, and queues that begin behind them."""

from __future__ import annotations

import asyncio
import bisect
import tempfile
from pathlib import Path
from typing import Any

import pytest
from aged_log import write_log
from derived_lab import HOURS_MS, TIMERS, patch, saved
from engine_lab import message, opened, read_queue, small
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.store.engine.expiry import QueueBegin, QueueCutoff
from tallystick.store.formats.message import GetStatus
from tallystick.store.verify.report import verify

T0 = 1_700_000_000_000
FIELDS = dict.fromkeys(TIMERS, HOURS_MS) | {"mappedFileSizeCommitLog": 1 << 16, "deleteWhen": ""}


def folder(records: int = 40, *, step_ms: int = 1000, queues: int = 1) -> tuple[Path, list]:
    root = Path(tempfile.mkdtemp())
    return root, write_log(
        root, [("T", at % queues, T0 + at * step_ms) for at in range(records)], segment_bytes=1 << 16
    )


def ends(times: list[int], cutoffs: list[int], first: int = 0) -> list[tuple[int, int, int]]:
    """What the search finds in a queue with these store times."""

    async def run() -> list[tuple[int, int, int]]:
        with tempfile.TemporaryDirectory() as name:
            write_log(Path(name), [("T", 3, time_ms) for time_ms in times], segment_bytes=1 << 16)
            async with opened(small(Path(name), **FIELDS)) as store:
                if first:
                    ((pos, _, _),) = store.reads.units("T", 3, first - 1, 1)
                    assert await store.expiry.begin_at([QueueBegin("T", 3, first, pos)]) == [True]
                found = []
                for cutoff in cutoffs:
                    (end,) = await store.expiry.search([QueueCutoff("T", 3, cutoff)])
                    units = store.reads.units("T", 3, end.offset - 1, 1)
                    assert end.last_pos == (units[0][0] if end.offset > first else -1)
                    found.append((end.offset, end.last_pos, end.next_ms))
                return found

    return asyncio.run(run())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=120), st.data())
def test_in_a_queue_with_growing_times_exactly_the_older_messages_end(gaps, data):
    times = [T0 + sum(gaps[: at + 1]) for at in range(len(gaps))]
    cutoffs = data.draw(st.lists(st.integers(T0 - 1, times[-1] + 1), min_size=1, max_size=8))
    first = data.draw(st.integers(0, len(times) - 1))
    for cutoff, (offset, _, next_ms) in zip(cutoffs, ends(times, cutoffs, first), strict=True):
        assert offset == max(first, bisect.bisect_left(times, cutoff))
        assert next_ms == (times[offset] if offset < len(times) else -1)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=120), st.integers(0, 301))
def test_where_clocks_went_back_an_older_message_stands_before_the_end_and_a_younger_one_behind(shifts, cut):
    times, cutoff = [T0 + shift for shift in shifts], T0 + cut
    ((offset, _, _),) = ends(times, [cutoff])
    assert offset == 0 or times[offset - 1] < cutoff
    assert offset == len(times) or times[offset] >= cutoff


def test_the_first_of_several_places_is_preferred():
    # The clock was an hour ahead, and was set back: both halves have a place with the cutoff.
    ahead = [T0 + at for at in range(50)]
    times = ahead + [T0 - 40 + at for at in range(100)]
    assert ends(times, [T0 + 20])[0][0] == 20


def test_messages_from_the_future_expire_with_the_older_ones_behind_them_or_keep_them():
    # A clock was a thousand years ahead, for one message or for many.
    assert ends([T0, T0 + 1, T0 + 10**12, T0 + 2, T0 + 3], [T0 + 100])[0][0] in (2, 5)
    assert ends([T0] * 5 + [T0 + 10**12] * 30 + [T0 + 5] * 5, [T0 + 100])[0][0] in (5, 40)


def test_a_queue_that_does_not_exist_has_no_end(tmp_path):
    async def run():
        async with opened(small(tmp_path, **FIELDS)) as store:
            assert [tuple(end) for end in await store.expiry.search([QueueCutoff("no", 0, T0)])] == [(0, -1, -1)]
            assert await store.expiry.begin_at([QueueBegin("no", 0, 1, 0)]) == [False]

    asyncio.run(run())


def test_a_queue_begins_later_for_every_reader():
    root, records = folder(40)

    async def run():
        async with opened(small(root, **FIELDS)) as store:
            begin = QueueBegin("T", 0, 25, records[24].pos)
            assert await store.expiry.begin_at([begin]) == [True]
            assert await store.expiry.begin_at([begin]) == [True]
            assert store.queues.min_offset("T", 0) == 25
            assert store.queues.max_offset("T", 0) == 40
            low = store.reads.get_message("T", 0, 24, 32)
            assert (low.status, low.next_begin_offset, low.min_offset) == (GetStatus.OFFSET_TOO_SMALL, 25, 25)
            assert len(read_queue(store)) == 15
            assert store.reads.earliest_store_time("T", 0) == records[25].store_timestamp_ms
            assert store.reads.offset_by_time("T", 0, 0) == 25
            assert store.reads.units("T", 0, 24, 1) == []
            beyond = store.reads.get_message("T", 0, 99, 32)
            assert (beyond.status, beyond.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 40)
            # Nothing of the files changed.
            audit = store._dispatch.audit(0, store.max_pos, 1 << 30)
            assert (audit.records, list(audit.damage), list(audit.wrong)) == (40, [], [])
            assert store.queues.clean_expired_queues() == 0
            assert store.queues.min_offset("T", 0) == 25

    asyncio.run(run())
    assert verify(root).sound


def test_a_queue_without_messages_begins_at_its_end_and_takes_new_ones():
    root, records = folder(8)

    async def run():
        async with opened(small(root, **FIELDS)) as store:
            assert await store.expiry.begin_at([QueueBegin("T", 0, 8, records[7].pos)]) == [True]
            assert store.expiry.extent("T", 0) == (8, 8)
            assert store.reads.earliest_store_time("T", 0) == -1
            at_end = store.reads.get_message("T", 0, 8, 32)
            assert (at_end.status, at_end.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 8)
            assert store.reads.offset_by_time("T", 0, T0) == store.reads.offset_by_time("T", 0, T0 + 10**9) == 8
            assert (await store.writes.put(message(b"new", topic="T"))).queue_offset == 8
            assert [record.body for record in read_queue(store)] == [b"new"]

    asyncio.run(run())


@pytest.mark.parametrize(("offset", "last"), [(25, 23), (25, 25), (41, 39), (0, 0), (1 << 62, 24), (26, 24)])
def test_a_queue_with_another_message_there_does_not_begin_later(offset, last):
    root, records = folder(40)

    async def run():
        async with opened(small(root, **FIELDS)) as store:
            pos = records[last].pos
            done = await store.expiry.begin_at([QueueBegin("T", 0, offset, pos)])
            assert done == [offset == 0], "each queue begins at 0 or behind it"
            assert store.queues.min_offset("T", 0) == 0

    asyncio.run(run())


def test_a_topic_that_was_deleted_and_created_again_begins_at_0():
    root, records = folder(40)

    async def run():
        async with opened(small(root, **FIELDS)) as store:
            begin = QueueBegin("T", 0, 2, records[1].pos)
            assert await store.expiry.begin_at([begin]) == [True]
            store.queues.remove_topic("T")
            for _ in range(5):
                await store.writes.put(message(b"again", topic="T"))
            await saved(store)
            assert store.queues.min_offset("T", 0) == 0
            assert await store.expiry.begin_at([begin]) == [False]
            assert len(read_queue(store)) == 5

    asyncio.run(run())


def test_what_the_log_deletes_counts_if_it_is_more():
    root, records = folder(1200, queues=2)  # several segments
    second = next(record for record in records if record.pos >= 1 << 16)

    async def run():
        async with opened(small(root, **FIELDS)) as store:
            await saved(store, thorough=True)
            mine = [record for record in records if record.queue_id == 0]
            assert await store.expiry.begin_at([QueueBegin("T", 0, 5, mine[4].pos)]) == [True]
            store._dispatch.correct_min_offsets(second.pos)
            wanted = sum(record.pos < second.pos for record in mine)
            assert store.queues.min_offset("T", 0) == wanted > 5
            # An expired begin below the log's is fulfilled, although nothing can be compared now.
            assert await store.expiry.begin_at([QueueBegin("T", 0, 6, 7)]) == [True]
            assert await store.expiry.begin_at([QueueBegin("T", 0, wanted + 9, mine[wanted + 8].pos)]) == [True]
            store._dispatch.delete_below(second.pos)
            assert store.queues.min_offset("T", 0) == wanted + 9

    asyncio.run(run())


@pytest.mark.parametrize("bad", [19, 20, 21])
def test_a_wrong_unit_is_no_answer(bad):
    """The search compares each unit with the record: one that leads elsewhere says nothing about its place."""
    root, records = folder(40)

    async def run():
        async with opened(small(root, **FIELDS)) as store:
            await saved(store, thorough=True)
        names = sorted((root / "consumequeue/T/0").iterdir())
        patch(names[bad // 16], bad % 16 * 20, records[39].pos.to_bytes(8, "big"))
        async with opened(small(root, **FIELDS)) as store:
            (end,) = await store.expiry.search([QueueCutoff("T", 0, records[20].store_timestamp_ms)])
            assert end.offset <= 20
            assert end.offset >= 19
            assert end.last_pos == records[end.offset - 1].pos

    asyncio.run(run())


def test_a_turn_ends_and_the_next_one_continues(monkeypatch):
    root, _ = folder(60, queues=30)

    async def run():
        async with opened(small(root, **FIELDS)) as store:
            monkeypatch.setattr("tallystick.store.engine.expiry.TURN_MS", 0)
            asked = [QueueCutoff("T", queue, T0 + 10**9) for queue in range(30)]
            found: list[Any] = []
            while len(found) < 30:
                turn = await store.expiry.search(asked[len(found) :])
                assert len(turn) == 1
                found += turn
            assert [end.offset for end in found] == [2] * 30
            begins = [QueueBegin("T", queue, 2, found[queue].last_pos) for queue in range(30)]
            assert await store.expiry.begin_at(begins) == [True]

    asyncio.run(run())
