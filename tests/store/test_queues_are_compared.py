"""What a store derives from its log is whole again after damage, and no queue offset is given out twice.

The model is the list of puts with the offsets that they returned. Each case takes a copy of a store with real files,
closed in order or copied while it was open (which is what a kill leaves), damages derived files, and opens it. Then:

- each message whose record the log still has is read at the offset that its put returned, and found by its key;
- the next put in each queue gets the offset behind the last one;
- a finding names the file or its folder, unless nothing had to be rebuilt;
- after an orderly close `verify` finds no damage.

Cases are (name, damage, finding): the finding's kind and the beginning of its file's name, or None.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_lab import message, opened, records_of, small, until

from tallystick.store._kernel import Door
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.findings import Finding, FindingKind
from tallystick.store.formats.message import GetStatus
from tallystick.store.formats.progress import FILE_NAME as MARK
from tallystick.store.formats.queue_format import UNIT
from tallystick.store.formats.queue_table import FILE_NAME as TABLE
from tallystick.store.formats.queue_table import QueueTable
from tallystick.store.settings import StoreSettings
from tallystick.store.verify.report import verify

HOURS_MS = 3_600_000
FILE_BYTES = 20 * 16
QUEUE = "consumequeue/A/0"
COUNTS = {("A", 0): 70, ("A", 1): 40, ("B", 0): 20}
OLD = ("OLD", 0)
"""A queue all of whose records lie in the log's first segment."""


class Put(NamedTuple):
    topic: str
    queue: int
    offset: int
    pos: int
    body: bytes
    key: str


class Made(NamedTuple):
    root: Path
    puts: list[Put]


Damage = Callable[[Path], None]
Expected = tuple[FindingKind, str] | None


def chosen(root: Path) -> StoreSettings:
    timers = ("flushIntervalConsumeQueue", "cleanResourceInterval", "flushCommitLogThoroughInterval")
    return small(
        root, fileReservedTime=1, deleteWhen="", deleteCommitLogFilesInterval=0, **dict.fromkeys(timers, HOURS_MS)
    )


async def put(store: MessageStore, topic: str, queue: int, number: int) -> Put:
    body = b"%04d" % number + b"." * (number * 7 % 90)
    result = await store.writes.put(message(body, topic=topic, queue=queue, properties=f"KEYS\x01k{number}\x02"))
    assert result.status.stored
    return Put(topic, queue, result.queue_offset, result.pos, body, f"k{number}")


async def make(folder: Path, *, kill: bool, delete: bool) -> Made:
    """`delete`: the first two segments of the log are deleted by retention."""
    root, copy = folder / "made", folder / "copy"
    order = [queue for queue, count in COUNTS.items() for _ in range(count)]
    random.Random(7).shuffle(order)
    async with opened(chosen(root)) as store:
        store.upkeep._cleaner._used = lambda path: 0.5
        puts = [await put(store, *OLD, n) for n in range(3)]
        puts += [await put(store, *queue, n) for n, queue in enumerate(order[:90], 3)]
        await store.upkeep.save(thorough=True)
        if delete:
            old_s = 1_600_000_000
            async with asyncio.timeout(60):
                while store.min_pos < 2 * 4096:  # a thread that still uses a segment keeps it until the next pass
                    for start in range(store.min_pos, 2 * 4096, 4096):
                        os.utime(root / "commitlog" / f"{start:020}", (old_s, old_s))
                    store.upkeep._cleaner.ask()
                    await store.upkeep.clean()
            assert store.min_pos == 2 * 4096
        puts += [await put(store, *queue, n) for n, queue in enumerate(order[90:], 93)]
        await store.flush()
        await until(lambda: store._dispatch.position >= store.readable_end, "the log was never dispatched")
        await (
            store.queues.save_progress()
        )  # also what a kill leaves has all units: of a damaged record nothing else tells
        if kill:
            shutil.copytree(root, copy)  # with times: the table is bound to that of `lock`
    return Made(copy if kill else root, [each for each in puts if not delete or each.pos >= 2 * 4096])


ENDS = ["closed", "killed", "closed, log begins later", "killed, log begins later"]


@pytest.fixture(scope="module")
def made_stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    return {
        end: asyncio.run(make(tmp_path_factory.mktemp("store"), kill="killed" in end, delete="later" in end))
        for end in ENDS
    }


@pytest.fixture(params=ENDS)
def made(request: pytest.FixtureRequest, made_stores: dict[str, Made], tmp_path: Path) -> Made:
    original = made_stores[request.param]
    return original._replace(root=Path(shutil.copytree(original.root, tmp_path / "store")))


# -- what is asked of a store that was opened again --------------------------------------------------------------------


def check_reads(store: MessageStore, puts: list[Put]) -> None:
    for each in puts:
        found = store.reads.get_message(each.topic, each.queue, each.offset, 1)
        place = each.topic, each.queue, each.offset
        assert found.status is GetStatus.FOUND, (place, found.status)
        (record,) = records_of(found.body)
        assert (*place, each.pos, each.body) == (
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.pos,
            record.body,
        )


def check_keys(store: MessageStore, puts: list[Put]) -> None:
    for each in puts:
        bodies = [
            records_of(record)[0].body for record in store.reads.query(each.topic, each.key, 100, 0, 2**62).records
        ]
        assert each.body in bodies, each.key


async def check_next(store: MessageStore) -> list[Put]:
    """Each queue, also one without a record, continues behind the last offset that it gave out."""
    new: list[Any] = []
    for (topic, queue), count in (COUNTS | {OLD: 3}).items():
        new.append(await put(store, topic, queue, 9000 + len(new)))
        assert new[-1].offset == count, (topic, queue)
    return new


async def check_all(made: Made, expected: Expected) -> None:
    async with opened(chosen(made.root)) as store:
        check_reads(store, made.puts)
        check_keys(store, made.puts)
        check_reads(store, await check_next(store))
        if expected is not None:
            assert_found(store.findings.listed(), *expected)
    assert [str(each) for each in verify(made.root).damage] == []
    async with opened(chosen(made.root)) as store:
        check_reads(store, made.puts)
        assert store.findings.listed() == []


def assert_found(findings: list[Finding], kind: FindingKind, file: str) -> None:
    assert any(each.kind is kind and each.file.startswith(file) for each in findings), findings


# -- damage ------------------------------------------------------------------------------------------------------------


def files(root: Path, queue: str = QUEUE) -> list[Path]:
    found = sorted((root / queue).iterdir())
    assert len(found) >= 3, "a first, a middle and a last one"
    return found


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def remove(*names: str) -> Damage:
    def damage(root: Path) -> None:
        for name in names:
            path = root / name
            assert path.exists(), name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def remove_file(number: int) -> Damage:
    return lambda root: files(root)[number].unlink()


def unit_in_middle(position: int, size: int) -> Damage:
    return lambda root: patch(files(root)[1], 20 * 5, UNIT.pack(position, size, 0))


def strange_unit(root: Path) -> None:
    """A unit of another queue, whole."""
    patch(files(root)[1], 20 * 5, files(root, "consumequeue/A/1")[1].read_bytes()[20 * 5 : 20 * 6])


def behind_the_last(root: Path) -> None:
    last = files(root)[-1]
    assert last.name == f"{4 * FILE_BYTES:020}", "70 units end in the fifth file"
    patch(last, 20 * 6, UNIT.pack(1 << 40, 200, 0))


def index_file(root: Path) -> Path:
    return sorted((root / "index").iterdir())[0]


def table_of_another_store(root: Path) -> None:
    table = QueueTable.load(root)
    assert table is not None
    table._replace(lock_ns=table.lock_ns + 1).save(Door(), root)


def both(*damages: Damage) -> Damage:
    def damage(root: Path) -> None:
        for each in damages:
            each(root)

    return damage


REBUILT = FindingKind.REBUILT
ZEROS_AT_THE_END: Damage = lambda root: patch(files(root)[-1], 20 * 2, bytes(20 * 4))  # noqa: E731
DAMAGES: list[tuple[str, Damage, Expected]] = [
    ("nothing", lambda root: None, None),
    ("hole of zeros in the first file", lambda root: patch(files(root)[0], 20 * 12, bytes(20 * 4)), (REBUILT, QUEUE)),
    ("hole of zeros in a middle file", lambda root: patch(files(root)[1], 20 * 3, bytes(20 * 9)), (REBUILT, QUEUE)),
    ("zeros in all of a middle file", lambda root: patch(files(root)[1], 0, bytes(FILE_BYTES)), (REBUILT, QUEUE)),
    ("zeros at the end of a queue", ZEROS_AT_THE_END, None),
    ("first file removed", remove_file(0), (REBUILT, QUEUE)),
    ("middle file removed", remove_file(1), (REBUILT, QUEUE)),
    ("last file removed", remove_file(-1), None),
    ("queue folder removed", remove(QUEUE), (REBUILT, QUEUE)),
    ("all queues removed", remove("consumequeue"), (REBUILT, QUEUE)),
    ("file truncated", lambda root: os.truncate(files(root)[1], 130), (REBUILT, QUEUE)),
    ("file emptied", lambda root: os.truncate(files(root)[1], 0), (REBUILT, QUEUE)),
    ("rubbish behind a file", lambda root: patch(files(root)[1], FILE_BYTES, b"x" * 33), (REBUILT, QUEUE)),
    ("rubbish unit behind the last one", behind_the_last, None),
    ("unit behind the log's end", unit_in_middle(1 << 40, 200), (REBUILT, QUEUE)),
    ("unit with a negative size", unit_in_middle(4096, -5), (REBUILT, QUEUE)),
    ("unit with an impossible size", unit_in_middle(4096, 1 << 30), (REBUILT, QUEUE)),
    ("unit of another queue", strange_unit, (REBUILT, QUEUE)),
    ("index removed", remove("index"), (REBUILT, "index")),
    ("index file truncated", lambda root: os.truncate(index_file(root), 100), (REBUILT, "index")),
    ("index file removed", lambda root: index_file(root).unlink(), (REBUILT, "index")),
    ("table removed", remove(TABLE), None),
    ("table damaged", lambda root: patch(root / TABLE, 20, b"\xff\xff"), None),
    ("table of another store", table_of_another_store, None),
    ("mark removed", remove(MARK), None),
    ("mark damaged", lambda root: patch(root / MARK, 30, b"\xff\xff\xff"), None),
    ("mark and all queues removed", both(remove(MARK), remove("consumequeue")), (REBUILT, QUEUE)),
    ("mark and a queue removed", both(remove(MARK), remove(QUEUE)), (REBUILT, QUEUE)),
    ("mark and a middle file removed", both(remove(MARK), remove_file(1)), (REBUILT, QUEUE)),
    ("table and a queue removed", both(remove(TABLE), remove(QUEUE)), (REBUILT, QUEUE)),
    ("table and a middle file removed", both(remove(TABLE), remove_file(1)), (REBUILT, QUEUE)),
    ("table removed and zeros at the end of a queue", both(remove(TABLE), ZEROS_AT_THE_END), (REBUILT, QUEUE)),
    ("table and a last file removed", both(remove(TABLE), remove_file(-1)), (REBUILT, QUEUE)),
    ("queue without a record removed", remove("consumequeue/OLD"), (REBUILT, "consumequeue/OLD")),
]


@pytest.mark.parametrize(("damage", "expected"), [pytest.param(*rest, id=name) for name, *rest in DAMAGES])
async def test_what_was_put_is_read_at_its_offset(damage: Damage, expected: Expected, made: Made) -> None:
    damage(made.root)
    await check_all(made, expected)


# -- damage of the log after a kill: what follows is kept --------------------------------------------------------------

LOG_DAMAGES = [
    pytest.param(0, 4, id="size"),
    pytest.param(4, 4, id="magic"),
    pytest.param(8, 4, id="CRC"),
    pytest.param(28, 8, id="position"),
    pytest.param(0, 120, id="all of the head"),
]


@pytest.mark.parametrize(("at", "size"), LOG_DAMAGES)
@pytest.mark.parametrize("number", [100, 110, 131], ids=["early", "middle", "last but one"])
async def test_records_behind_damage_keep_their_offsets(
    at: int, size: int, number: int, made_stores: dict[str, Made], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(made_stores["killed"].root, tmp_path / "store"))
    (root / MARK).unlink()  # it would have the start read nothing before its position
    puts = made_stores["killed"].puts
    bad = puts[number]
    patch(root / "commitlog" / f"{bad.pos - bad.pos % 4096:020}", bad.pos % 4096 + at, b"\xee" * size)
    rest = [each for each in puts if each is not bad]
    async with opened(chosen(root)) as store:
        check_reads(store, rest)
        assert_found(store.findings.listed(), FindingKind.DAMAGE, "commitlog")
        check_reads(store, await check_next(store))
    async with opened(chosen(root)) as store:
        check_reads(store, rest)


# -- the table ---------------------------------------------------------------------------------------------------------


def table() -> QueueTable:
    return QueueTable(4711, 12, 4096, 320, (("20260101000000000", 99), ("20260102000000000", 1 << 40)), b"rows" * 9)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert QueueTable.load(tmp_path) is None
    table().save(Door(), tmp_path)
    assert QueueTable.load(tmp_path) == table()
    assert [path.name for path in tmp_path.iterdir()] == [TABLE]


def test_a_table_with_a_wrong_byte_or_length_is_invalid() -> None:
    data = table().encode()
    for at in range(len(data)):
        assert QueueTable.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None
        assert QueueTable.decode(data[:at]) is None
    assert QueueTable.decode(data + b"\0") is None


# -- the repair --------------------------------------------------------------------------------------------------------


async def test_the_repair_writes_wrong_units_again_in_their_place(made_stores: dict[str, Made], tmp_path: Path) -> None:
    root = Path(shutil.copytree(made_stores["closed"].root, tmp_path / "store"))
    whole = files(root)[1].read_bytes()
    async with opened(chosen(root)) as store:
        patch(files(root)[1], 20 * 3, bytes(20 * 4))
        assert not store.queue_repair.repair(b"A", 0, 70), "the queue has no such offset"
        assert not store.queue_repair.repair(b"A", 9, 0), "there is no such queue"
        assert not store.queue_repair.repair(b"A", 0, 20, 1), "more than a byte of the log has to be read"
        assert files(root)[1].read_bytes() != whole and store.findings.listed() == []
        assert store.queue_repair.repair(b"A", 0, 20)
        await store.upkeep.save(thorough=True)
        assert files(root)[1].read_bytes() == whole
        kinds = [(each.kind, each.file) for each in store.findings.listed()]
        name = f"{QUEUE}/{FILE_BYTES:020}"
        assert kinds == [(FindingKind.DAMAGE, name), (REBUILT, name)]


async def test_a_check_of_the_log_sets_queues_right(made_stores: dict[str, Made], tmp_path: Path) -> None:
    root = Path(shutil.copytree(made_stores["closed"].root, tmp_path / "store"))
    whole = files(root)[1].read_bytes()
    async with opened(chosen(root)) as store:
        strange_unit(root)
        found = store.queue_repair.check_range(0, store.max_pos, 1 << 30)
        assert (found.pos, found.records, found.damage) == (store.max_pos, 133, [])
        assert [each[:3] for each in found.wrong] == [(b"A", 0, 21)]
        await store.upkeep.save(thorough=True)
        assert files(root)[1].read_bytes() == whole
        assert store.queue_repair.check_range(0, store.max_pos, 1 << 30).wrong == []
