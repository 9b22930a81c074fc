"""The background reader of the log: what it finds, what it leaves alone, and that it continues after a restart."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from page_cache import resident

from tallystick.store._kernel import SegmentScrub
from tallystick.store.engine import scrub as scrub_module
from tallystick.store.engine.media import MediaWatch
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.engine.scrub import ScrubState, Sealed
from tallystick.store.findings import Finding, FindingKind
from tallystick.store.formats.message import Host, Message
from tallystick.store.formats.properties import KEYS
from tallystick.store.formats.segment_files import segment_name
from tallystick.store.settings import StoreSettings
from tallystick.store.verify.report import verify

HOST = Host("127.0.0.1", 10911)
SEGMENT = 1 << 16


def settings(root: Path, rate: int) -> StoreSettings:
    return StoreSettings(
        storePathRootDir=str(root),
        mappedFileSizeCommitLog=SEGMENT,
        mappedFileSizeConsumeQueue=2000,
        maxHashSlotNum=50,
        maxIndexNum=200,
        scrubBytesPerSecond=rate,
    )


@asynccontextmanager
async def opened(root: Path, rate: int = 1 << 40) -> AsyncIterator[MessageStore]:
    store = await MessageStore.open(settings(root, rate), store_host=HOST)
    try:
        yield store
    finally:
        await asyncio.wait_for(store.close(), 10)


async def fill(root: Path, count: int = 200) -> list[int]:
    """A store that was closed; the positions of its records."""
    async with opened(root, 0) as store:
        puts = [
            await store.writes.put(Message("T", n % 2, b"body %06d" % n * 150, f"{KEYS}\x01k{n}\x02TAGS\x01a\x02"))
            for n in range(count)
        ]
    return [put.pos for put in puts]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  (nothing tells of the end of a pass)
            await asyncio.sleep(0.02)


async def scrubbed(root: Path) -> list[Finding]:
    """What one whole pass finds in a store."""
    (root / "tally-scrub").unlink(missing_ok=True)
    async with opened(root) as store:
        await until(lambda: store.scrub.state.last_ended_ms > 0)
        assert store.scrub.total_bytes == store.scrub.state.last_bytes > 0
        assert store.scrub.to_json()["lastPassEndedAt"] is not None
        return [each for each in store.findings.listed() if each.kind is FindingKind.DAMAGE]


def spoil(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


async def test_a_sound_store_has_no_findings(tmp_path: Path) -> None:
    await fill(tmp_path)
    assert await scrubbed(tmp_path) == []


async def test_a_changed_byte_of_a_body_is_found_with_its_place(tmp_path: Path) -> None:
    positions = await fill(tmp_path)
    pos = next(pos for pos in positions if pos > SEGMENT + 9000)
    spoil(tmp_path / "commitlog" / segment_name(SEGMENT), pos - SEGMENT + 600, b"?")
    (found,) = await scrubbed(tmp_path)
    assert (found.file, found.offset, found.pos) == (f"commitlog/{segment_name(SEGMENT)}", pos - SEGMENT, pos)
    assert found.reason == "body CRC differs" and found.size > 1500


async def test_damage_is_handed_on_to_what_repairs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(MediaWatch, "tell", lambda self, pos, end: told.append((pos, end)))
    positions = await fill(tmp_path)
    pos = next(pos for pos in positions if pos > SEGMENT + 9000)
    spoil(tmp_path / "commitlog" / segment_name(SEGMENT), pos - SEGMENT + 600, b"?")
    (found,) = await scrubbed(tmp_path)
    assert told == [(pos, pos + found.size)]


async def test_damage_of_a_deleted_segment_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = await fill(tmp_path)
    pos = next(pos for pos in positions if pos > SEGMENT + 9000)
    async with opened(tmp_path) as store:
        await until(lambda: store.scrub.state.last_ended_ms > 0)
        spoil(tmp_path / "commitlog" / segment_name(SEGMENT), pos - SEGMENT + 600, b"?")
        sealed = store.scrub._sealed()
        monkeypatch.setattr(store.scrub, "_sealed", lambda: Sealed(2 * SEGMENT, sealed.end))
        await store.scrub._segment(SEGMENT)
        assert store.findings.listed() == []
        monkeypatch.setattr(store.scrub, "_sealed", lambda: sealed)
        await store.scrub._segment(SEGMENT)
        assert [each.pos for each in store.findings.listed()] == [pos]


async def test_a_unit_that_names_something_else_is_found_and_written_again(tmp_path: Path) -> None:
    await fill(tmp_path)
    path = tmp_path / "consumequeue" / "T" / "1" / segment_name(0)
    before = path.read_bytes()
    spoil(path, 20 * 7, (12).to_bytes(8))
    (found,) = await scrubbed(tmp_path)
    assert found.file == f"consumequeue/T/1/{segment_name(0)}" and found.offset == 20 * 7
    assert path.read_bytes() == before
    assert await scrubbed(tmp_path) == []


async def test_a_unit_that_cannot_be_written_again_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(tmp_path)
    spoil(tmp_path / "consumequeue" / "T" / "1" / segment_name(0), 20 * 7, (12).to_bytes(8))
    monkeypatch.setattr("tallystick.store.engine.queue_repair.QueueRepair.repair", lambda *_: False)
    (found,) = await scrubbed(tmp_path)
    assert found.file == "consumequeue/T/1" and found.offset == 20 * 7
    assert "queue offset 7 names" in found.reason


def index_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "index").iterdir())[number]


SLOTS, ENTRIES = 50, 200
ENTRY_AT = 40 + 4 * SLOTS
INDEX = {
    "the position of an entry": (ENTRY_AT + 20 * 9 + 4, bytes(8)),
    "a position behind the log": (ENTRY_AT + 20 * 9 + 4, (1 << 40).to_bytes(8)),
    "the position of another record": (ENTRY_AT + 20 * 9 + 4, None),
    "the hash of an entry": (ENTRY_AT + 20 * 9, b"\0\1\2\3"),
    "a hash below zero": (ENTRY_AT + 20 * 9, b"\xff\1\2\3"),
    "the time of an entry": (ENTRY_AT + 20 * 9 + 12, b"\0\0\1\0"),
    "the chain of an entry": (ENTRY_AT + 20 * 9 + 16, b"\0\0\0\3"),
    "a slot": (40 + 4 * 7, b"\0\0\0\x63"),
    "an empty slot": (40, bytes(4 * SLOTS)),
    "the header": (0, b"\1" * 8),
    "the count of slots": (32, b"\0\0\0\1"),
}


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("what", INDEX)
async def test_damage_of_an_index_file_is_found_and_the_file_made_again(tmp_path: Path, what: str, number: int) -> None:
    """The first file is full, new entries go to the last one."""
    positions = await fill(tmp_path, 300)
    at, data = INDEX[what]
    async with opened(tmp_path, 0) as store:
        await by_hand(store)
        path = index_file(tmp_path, number)
        whole = path.read_bytes()
        spoil(path, at, positions[-20].to_bytes(8) if data is None and number == 0 else data or bytes(8))
        found = await one_pass(store)
        assert [(each.kind, each.file) for each in found] == [
            (FindingKind.DAMAGE, f"index/{path.name}"),
            (FindingKind.REBUILT, f"index/{path.name}"),
        ]
        assert store.findings.counts()[FindingKind.DAMAGE] == 1
        for n in range(300):
            assert [record[28:36] for record in store.reads.query("T", f"k{n}", 10, 0, 1 << 60).records], n
        if number == 0:  # behind a file that is kept, its last record has entries in both
            assert index_file(tmp_path).read_bytes()[ENTRY_AT:] == whole[ENTRY_AT:]
        assert await one_pass(store) == found, "the next pass finds nothing more"
    assert verify(tmp_path).sound
    assert await scrubbed(tmp_path) == []


async def by_hand(store: MessageStore) -> None:
    """The store scrubs when it is told to (`one_pass`), and nothing else looks at its index files."""
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "look-at-index"))
    for task in asyncio.all_tasks():
        if task.get_name() == "scrub":
            task.cancel()
    store.scrub._setting = 1 << 40
    store.scrub.state = ScrubState()  # a pass before this one may have ended without its last note


async def one_pass(store: MessageStore) -> list[Finding]:
    """All findings of the store after one more pass."""
    await store.scrub._pass()
    store.dispatcher.finish()
    return store.findings.listed()


async def test_a_missing_index_file_is_rebuilt(tmp_path: Path) -> None:
    await fill(tmp_path)
    async with opened(tmp_path, 0) as store:
        await by_hand(store)
        index_file(tmp_path).unlink()
        found = await one_pass(store)
        assert [each.reason for each in found] == ["the index file is missing", found[1].reason]
        assert len(store.reads.query("T", "k3", 10, 0, 1 << 60).records) == 1
    assert verify(tmp_path).sound


async def test_damage_of_the_log_is_no_damage_of_the_index(tmp_path: Path) -> None:
    """The entry is right; a group repairs the record."""
    positions = await fill(tmp_path)
    pos = next(pos for pos in positions if pos > SEGMENT + 9000)
    spoil(tmp_path / "commitlog" / segment_name(SEGMENT), pos - SEGMENT + 600, b"?")
    before = index_file(tmp_path).name
    assert len(await scrubbed(tmp_path)) == 1
    assert index_file(tmp_path).name == before


async def test_entries_that_come_while_an_index_file_is_read_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path, 130)
    monkeypatch.setattr(scrub_module, "_CHUNK_BYTES", 1)
    async with opened(tmp_path, 0) as store:
        await by_hand(store)

        async def puts(first: int) -> None:
            for n in range(first, first + 5):
                await store.writes.put(Message("T", n % 2, b"body %06d" % n * 150, f"{KEYS}\x01k{n}\x02TAGS\x01a\x02"))
            store.dispatcher.finish()

        number = 130
        pause = store.scrub._pause

        async def paused(read: int, begin_s: float) -> None:
            nonlocal number
            if in_index and number < 600:
                await puts(number)
                number += 5
            await pause(read, begin_s)

        in_index, index = False, store.scrub._index

        async def scrubbed_index() -> None:
            nonlocal in_index
            in_index = True
            await index()

        monkeypatch.setattr(store.scrub, "_index", scrubbed_index)

        monkeypatch.setattr(store.scrub, "_pause", paused)
        assert await one_pass(store) == []
        assert number >= 140


async def test_bytes_of_log_and_index_are_counted_and_paused_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path)
    told: list[int] = []
    async with opened(tmp_path, 0) as store:
        await by_hand(store)

        async def paused(read: int, begin_s: float) -> None:
            told.append(read)

        monkeypatch.setattr(store.scrub, "_pause", paused)
        assert await one_pass(store) == []
        index_bytes = sum(path.stat().st_size for path in (tmp_path / "index").iterdir())
        sealed = store.scrub._sealed()
        assert sum(told) == store.scrub.total_bytes > (sealed.end - sealed.begin) + index_bytes // 2


EXTENDED: dict[str, Any] = {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 2048}


@pytest.mark.parametrize(
    ("at", "data"),
    [(20 * 7, b"\0\0"), (20 * 7 + 2, b"\0" * 8), (20 * 7 + 18, b"\1\0"), (None, b"")],
    ids=["size", "tags code", "bit map", "no file"],
)
async def test_a_damaged_extension_is_found_and_its_units_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int | None, data: bytes
) -> None:
    extended = settings
    monkeypatch.setitem(globals(), "settings", lambda root, rate: replace(extended(root, rate), **EXTENDED))
    await fill(tmp_path, 300)
    path = tmp_path / "consumequeue_ext" / "T" / "1" / segment_name(0)
    assert path.stat().st_size == 2048 and await scrubbed(tmp_path) == []
    async with opened(tmp_path, 0) as store:
        await by_hand(store)
        spoil(path, at, data) if at is not None else path.unlink()
        assert not verify(tmp_path).sound
        found = await one_pass(store)
        assert {each.kind for each in found} == {FindingKind.DAMAGE, FindingKind.REBUILT}
        assert {each.file.rsplit("/", 1)[0] for each in found} == {"consumequeue/T/1"}
        assert await one_pass(store) == found
    assert verify(tmp_path).sound


async def test_a_unit_with_another_tags_code_is_written_again(tmp_path: Path) -> None:
    await fill(tmp_path)
    path = tmp_path / "consumequeue" / "T" / "1" / segment_name(0)
    before = path.read_bytes()
    spoil(path, 20 * 7 + 12, (12).to_bytes(8))
    (found,) = await scrubbed(tmp_path)
    assert found.offset == 20 * 7 and path.read_bytes() == before


async def test_a_topic_that_was_made_again_is_no_damage(tmp_path: Path) -> None:
    await fill(tmp_path, 100)
    async with opened(tmp_path, 0) as store:
        store.queues.remove_topic("T")
        for n in range(100):
            assert (await store.writes.put(Message("T", n % 2, b"again %06d" % n * 150))).status.stored
    assert await scrubbed(tmp_path) == []


async def test_a_pass_continues_after_a_restart(tmp_path: Path) -> None:
    await fill(tmp_path)
    async with opened(tmp_path, SEGMENT * 4) as store:
        await until(lambda: ScrubState.load(tmp_path / "tally-scrub").pos >= 2 * SEGMENT)
    kept = ScrubState.load(tmp_path / "tally-scrub")
    assert kept.pos >= 2 * SEGMENT and kept.pass_began_ms > 0 and kept.last_ended_ms == 0
    async with opened(tmp_path) as store:
        await until(lambda: store.scrub.state.last_ended_ms > 0)
        assert store.scrub.total_bytes < store.scrub.state.last_bytes
        assert store.scrub.state.last_began_ms == kept.pass_began_ms
        assert not store.scrub._due(), "the next pass begins in a week"
        store.scrub.state.last_began_ms += 2 * scrub_module.WEEK_S * 1000
        assert store.scrub._due(), "the clock was set back since, so the end of the week is unknown: a pass must be due"


def test_a_damaged_progress_file_is_a_new_beginning(tmp_path: Path) -> None:
    path = tmp_path / "tally-scrub"
    below_zero = json.dumps(asdict(ScrubState(pos=-SEGMENT))).encode()
    for content in (b"", b"{", b"[]", b'{"pos": 1}', b'{"pos": "x"}', b"\xff\xfe", below_zero):
        path.write_bytes(content)
        assert ScrubState.load(path) == ScrubState()


async def test_the_rate_follows_the_size_unless_it_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(tmp_path)
    async with opened(tmp_path, -1) as store:
        assert store.scrub.bytes_per_second == scrub_module.LEAST_RATE
        monkeypatch.setattr(store.scrub, "_sealed", lambda: scrub_module.Sealed(0, 1 << 40))
        assert store.scrub.bytes_per_second == 4 * (1 << 40) // (7 * 86_400)
    async with opened(tmp_path, 0) as store:
        assert not store.scrub.enabled and store.scrub.bytes_per_second == 0
    with pytest.raises(ValueError, match="scrubBytesPerSecond"):
        replace(settings(tmp_path, 0), scrubBytesPerSecond=-2).validate()


async def test_the_page_cache_is_left_as_it_was(disk_path: Path) -> None:
    await fill(disk_path)
    # A copy: pages that the store still maps do not leave the memory.
    path = Path(shutil.copyfile(disk_path / "commitlog" / segment_name(SEGMENT), disk_path / "copy"))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(descriptor, 2 * mmap.PAGESIZE, 4 * mmap.PAGESIZE)
    before = resident(path)
    scrub = SegmentScrub(path, SEGMENT, SEGMENT, 2 * SEGMENT, 0)
    if not any(before) or all(before) or not scrub.direct:
        os.close(descriptor)
        pytest.skip("this file system keeps all its files in memory, or has no O_DIRECT")
    while not scrub.step(1 << 14)[0]:
        pass
    assert scrub.records > 0 and resident(path) == before
    os.close(descriptor)


async def test_the_pages_of_an_index_file_are_left_as_they_were(disk_path: Path) -> None:
    await fill(disk_path, 300)
    async with opened(disk_path, 0) as store:
        await by_hand(store)
        path = index_file(disk_path)  # a full one, which is not mapped until a search for a key
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        before = resident(path)
        if all(before):
            pytest.skip("this file system keeps all its files in memory")
        assert await one_pass(store) == [] and resident(path) == before
