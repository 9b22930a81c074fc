"""ConsumeQueues that are rebuilt over damaged records: unit n names the record whose queue offset is n.

Topic, queue id and queue offset of a record are covered by no CRC. Each test lays out a log, damages records and
derived files, recovers, and compares the queues with the twin in `rebuild_twin`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from derived_twin import write_log
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from rebuild_twin import BLANK, Held, Laid, Place, complaints

from tallystick.store._kernel import Dispatch, Door
from tallystick.store.engine.recovery import Recovered, open_dispatch, recover
from tallystick.store.findings import FindingKind
from tallystick.store.formats.progress import lock_time_ns
from tallystick.store.formats.queue_table import QueueTable
from tallystick.store.formats.record import Record, RecordError
from tallystick.store.settings import StoreSettings

SEGMENT = 4096
BORN_MS = 1_600_000_000_000
FAR = 1 << 47


class Lab:
    """A store whose log is written by hand and whose derived files the kernel made of it."""

    def __init__(self, root: Path, places: list[tuple[str, int, int]], *, table_at: int | None = None) -> None:
        """`places`: topic, queue and offset of each record. `table_at`: the table of ends is written behind so many
        records; None: there is no table."""
        self.root = root
        self.settings = StoreSettings(
            storePathRootDir=str(root),
            mappedFileSizeCommitLog=SEGMENT,
            mappedFileSizeConsumeQueue=200,
            maxHashSlotNum=7,
            maxIndexNum=64,
        )
        self.log = root / "commitlog"
        records = [
            Record(topic, queue, b"%04d" % i * (i % 9 + 1), queue_offset=offset, store_timestamp_ms=BORN_MS + i)
            for i, (topic, queue, offset) in enumerate(places)
        ]
        placed, self.end = write_log(self.log, records, SEGMENT)
        self.records = [record for _, record in placed]
        (root / "abort").touch()
        (root / "lock").write_bytes(b"lock")
        dispatch = self.dispatch()
        dispatch.load()
        for count in sorted({len(places)} | ({table_at} if table_at is not None else set())):
            dispatch.run(self.records[count].pos if count < len(places) else self.end, 1 << 40)
            if count == table_at:
                pos, *_, rows = dispatch.written_point(with_table=True)
                QueueTable(pos, lock_time_ns(root), 0, 200, (), rows).save(Door(), root)
        dispatch.write_out()
        self.broken: set[int] = set()

    def dispatch(self) -> Dispatch:
        return open_dispatch(Door(), self.root, self.log, self.settings, 0)

    def patch(self, number: int, at: int, data: bytes) -> None:
        """Writes over bytes of one record."""
        pos = self.records[number].pos + at
        with (self.log / f"{pos - pos % SEGMENT:020}").open("r+b") as file:
            file.seek(pos % SEGMENT)
            file.write(data)

    def flip(self, number: int, at: int, bit: int) -> None:
        pos = self.records[number].pos + at
        byte = (self.log / f"{pos - pos % SEGMENT:020}").read_bytes()[pos % SEGMENT]
        self.patch(number, at, bytes([byte ^ 1 << bit]))

    def claim_offset(self, number: int, offset: int) -> None:
        self.patch(number, 20, offset.to_bytes(8, "big", signed=True))

    def claim_queue(self, number: int, queue: int) -> None:
        self.patch(number, 12, queue.to_bytes(4, "big", signed=True))

    def claim_topic(self, number: int, topic: bytes) -> None:
        record = self.records[number]
        assert len(topic) == len(record.topic)
        self.patch(number, record.size - 2 - len(topic), topic)

    def remove_queues(self, *names: str) -> None:
        for name in names or ("",):
            shutil.rmtree(self.root / "consumequeue" / name)

    def laid(self) -> list[Laid]:
        """What the log holds now."""
        return [self._laid(record) for record in self.records]

    def _laid(self, record: Record) -> Laid:
        data = (self.log / f"{record.pos - record.pos % SEGMENT:020}").read_bytes()[record.pos % SEGMENT :]
        place = Place(record.topic.encode(), record.queue_id, record.queue_offset)
        try:
            now = Record.decode(data)
        except RecordError:
            return Laid(record.pos, record.size, place, None)
        if now.pos != record.pos or now.size != record.size:
            return Laid(record.pos, record.size, place, None)
        claim = Place(now.topic.encode(errors="surrogateescape"), now.queue_id, now.queue_offset)
        return Laid(record.pos, record.size, place, claim)

    def recover(self) -> tuple[Recovered, dict[tuple[bytes, int], Held]]:
        dispatch = self.dispatch()
        found = recover(self.root, self.settings, dispatch, Door())
        return found, {
            row[:2]: Held(row[2], dispatch.units(row[0], row[1], row[2], row[3] - row[2]))
            for row in dispatch.queues()
            if row[3] > 0
        }

    def ends(self, count: int | None = None) -> dict[tuple[bytes, int], int]:
        """The next offset of each queue behind the first `count` records."""
        return {
            (record.topic.encode(), record.queue_id): record.queue_offset + 1
            for record in self.records[: len(self.records) if count is None else count]
        }


def row_of(count: int, topic: str = "T", queue: int = 0, first: int = 0) -> list[tuple[str, int, int]]:
    return [(topic, queue, first + i) for i in range(count)]


def offsets_of(lab: Lab, held: Held) -> list[int | None]:
    """For each unit the queue offset that its record was put with; None for a placeholder."""
    by_pos = {record.pos: record.queue_offset for record in lab.records}
    return [None if unit == BLANK else by_pos[unit[0]] for unit in held.units]


T0 = (b"T", 0)
ALL_TABLES = pytest.mark.parametrize("table_at", [None, 0, 12, 20], ids=["no table", "empty", "older", "of the end"])


@ALL_TABLES
@pytest.mark.parametrize("offset", [FAR, -1, 2**62, 3, 9], ids=["far", "negative", "farther", "taken", "near"])
@pytest.mark.parametrize("number", [5, 16, 19], ids=["early", "late", "last"])
def test_a_wrong_queue_offset_shifts_nothing(tmp_path: Path, number: int, offset: int, table_at: int | None) -> None:
    lab = Lab(tmp_path, row_of(20), table_at=table_at)
    lab.claim_offset(number, offset)
    lab.remove_queues()
    found, queues = lab.recover()
    expected = [None if i == number else i for i in range(20)]
    held = queues[T0]
    assert offsets_of(lab, held)[: held.end] == expected, "the damaged record has no unit, and its place is kept"
    stray = [each for each in found.findings if each.kind is FindingKind.DAMAGE and each.pos == lab.records[number].pos]
    assert stray, "the damaged record is reported"


@ALL_TABLES
def test_several_damaged_records_in_a_row_leave_a_gap(tmp_path: Path, table_at: int | None) -> None:
    lab = Lab(tmp_path, row_of(20), table_at=table_at)
    for number in (6, 7, 8, 15, 16):
        lab.claim_offset(number, FAR + number)
    lab.remove_queues()
    _, queues = lab.recover()
    assert offsets_of(lab, queues[T0]) == [None if i in (6, 7, 8, 15, 16) else i for i in range(20)]


@ALL_TABLES
@pytest.mark.parametrize("queue", [1, 0x4000_0000, -1], ids=["existing", "unknown", "negative"])
def test_a_wrong_queue_id_changes_no_other_queue(tmp_path: Path, queue: int, table_at: int | None) -> None:
    places = [place for i in range(10) for place in (("T", 0, i + 3), ("T", 1, i))]
    lab = Lab(tmp_path, [("T", 0, i) for i in range(3)] + places, table_at=table_at)
    lab.claim_queue(11, queue)
    assert lab.records[11].queue_offset == 7, "queue 1 is at 4"
    lab.remove_queues()
    _, queues = lab.recover()
    assert offsets_of(lab, queues[T0]) == [None if i == 7 else i for i in range(13)]
    assert offsets_of(lab, queues[b"T", 1]) == list(range(10))
    assert complaints(lab.laid(), {key: queues[key] for key in lab.ends()}, lab.ends(), True) == []


@ALL_TABLES
@pytest.mark.parametrize("each", [1, 10], ids=["a queue of one", "a queue of ten"])
def test_a_wrong_last_unit_makes_no_sound_record_a_damaged_one(tmp_path: Path, each: int, table_at: int | None) -> None:
    """The queue seems to end earlier in the log, so its records are dispatched again and meet their own units."""
    places = [("T", 1, i) for i in range(20 - each)] + row_of(each)
    lab = Lab(tmp_path, places, table_at=table_at)
    with (tmp_path / "consumequeue" / "T" / "0" / f"{0:020}").open("r+b") as file:
        file.seek((each - 1) * 20)
        file.write(lab.records[3].pos.to_bytes(8, "big"))
    found, queues = lab.recover()
    assert offsets_of(lab, queues[T0]) == list(range(each))
    assert offsets_of(lab, queues[b"T", 1]) == list(range(20 - each))
    assert not [finding for finding in found.findings if finding.kind is FindingKind.DAMAGE], "no record is damaged"


@ALL_TABLES
def test_a_wrong_topic_leaves_a_placeholder(tmp_path: Path, table_at: int | None) -> None:
    lab = Lab(tmp_path, row_of(20), table_at=table_at)
    lab.claim_topic(9, b"\xd4")
    lab.remove_queues()
    _, queues = lab.recover()
    assert offsets_of(lab, queues[T0]) == [None if i == 9 else i for i in range(20)]


@pytest.mark.parametrize("table_at", [None, 12], ids=["no table", "older"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda lab: lab.patch(19, 28, b"\xee" * 8),
        lambda lab: lab.patch(19, 4, b"\0"),
        lambda lab: lab.claim_queue(19, 7),
        lambda lab: lab.claim_topic(19, b"\xd4"),
    ],
    ids=["position", "magic", "queue id", "topic"],
)
@pytest.mark.parametrize("removed", [False, True], ids=["queues there", "queues removed"])
def test_the_offset_of_a_damaged_last_record_is_not_given_out_again(
    tmp_path: Path, damage: Callable[[Lab], None], removed: bool, table_at: int | None, request: pytest.FixtureRequest
) -> None:
    """The record is the queue's last one, and records of another queue follow."""
    lab = Lab(tmp_path, row_of(20) + row_of(3, "U"), table_at=table_at)
    damage(lab)
    if removed:
        if request.node.callspec.id.split("-")[1] in ("queue id", "topic"):
            pytest.skip("neither queue nor log has a trace of such a record")
        lab.remove_queues("T")
    _, queues = lab.recover()
    assert queues[T0].end == 20
    assert offsets_of(lab, queues[T0])[:19] == list(range(19))


def test_a_topic_that_was_created_again_has_its_new_records_alone(tmp_path: Path) -> None:
    lab = Lab(tmp_path, row_of(20) + row_of(6))
    lab.remove_queues()
    _, queues = lab.recover()
    assert [unit[0] for unit in queues[T0].units] == [record.pos for record in lab.records[20:]]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_new_life_may_be_short(tmp_path: Path, count: int) -> None:
    lab = Lab(tmp_path, row_of(20) + row_of(count))
    lab.remove_queues()
    _, queues = lab.recover()
    assert [unit[0] for unit in queues[T0].units] == [record.pos for record in lab.records[20:]]


def test_an_offset_0_that_the_table_does_not_know_is_damage(tmp_path: Path) -> None:
    lab = Lab(tmp_path, row_of(17), table_at=16)
    lab.claim_offset(16, 0)
    lab.remove_queues()
    _, queues = lab.recover()
    assert offsets_of(lab, queues[T0]) == [*range(16), None]


def test_a_queue_whose_first_records_were_deleted_begins_where_its_records_agree(tmp_path: Path) -> None:
    lab = Lab(tmp_path, row_of(60) + row_of(10, "U"), table_at=70)
    first = next(i for i, record in enumerate(lab.records) if record.pos >= SEGMENT)
    (lab.log / f"{0:020}").unlink()
    lab.claim_offset(first, 0)
    lab.remove_queues()
    _, queues = lab.recover()
    held = queues[T0]
    assert (held.first, held.end) == (first + 1, 60)
    assert offsets_of(lab, held) == list(range(first + 1, 60))


# -- random logs and damage --------------------------------------------------------------------------------------------

HEAD = [4, 8, 12, 13, 14, 15, 20, 21, 24, 26, 27, 28, 35, 90]


@settings(max_examples=150)
@example(seed=791)  # two damaged records: one is the reason for an offset that is missing before it
@given(seed=st.integers(0, 2**40))
def test_rebuilt_queues_are_those_of_the_twin(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    chance = random.Random(seed)
    names = [("T", 0), ("T", 1), ("T", 2), ("U", 0)]
    weights = [chance.choice([1, 4, 20]) for _ in names]
    order = chance.choices(names, weights, k=chance.randrange(5, 90))
    counts: dict[tuple[str, int], int] = {}
    places = []
    for name in order:
        counts[name] = counts.get(name, -1) + 1
        places.append((*name, counts[name]))
    lab = Lab(tmp_path_factory.mktemp("store"), places, table_at=len(places))
    for number in chance.sample(range(len(places)), min(chance.choice([1, 1, 2, 3]), len(places))):
        lab.flip(number, chance.choice(HEAD), chance.randrange(8))
    if chance.random() < 0.5:
        (lab.root / "abort").unlink()
    if chance.random() < 0.5 or ("T", 0) not in counts:
        lab.remove_queues()
    else:
        lab.remove_queues(chance.choice(["T", "T/0"]))
    damaged = [each for each in lab.laid() if each.claim != each.place]
    # A damaged record that claims the place of another damaged one fills its gap: nothing says that it is wrong there.
    assume(not {each.claim for each in damaged} & {each.place for each in damaged})
    _, queues = lab.recover()
    ends = lab.ends()
    assert complaints(lab.laid(), {key: held for key, held in queues.items() if key in ends}, ends, True) == []
    shutil.rmtree(lab.root)


def test_the_twin_finds_what_is_wrong() -> None:
    place = Place(b"T", 0, 0)
    log = [Laid(0, 100, place, place), Laid(100, 100, place._replace(offset=1), place._replace(offset=1))]
    good = {T0: Held(0, [(0, 100, 0), (100, 100, 0)])}
    assert complaints(log, good, {T0: 2}, True) == []
    for wrong in (
        Held(0, [(100, 100, 0), (0, 100, 0)]),
        Held(0, [(0, 100, 0)]),
        Held(0, [(0, 100, 0), (100, 100, 0), BLANK]),
        Held(1, [(100, 100, 0)]),
        Held(0, [(0, 100, 0), BLANK]),
    ):
        assert complaints(log, {T0: wrong}, {T0: 2}, True), wrong
