"""The scanner against a slow, obvious reader: random logs, random damage, random batches."""

from __future__ import annotations

import math
import struct
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scan_twin import Scanned, scan

from tallystick.spark.columns import SCHEMA
from tallystick.spark.scan import SplitScan, Sums, Wanted
from tallystick.spark.splits import Split
from tallystick.store.formats.ledger_format import EntryHeader
from tallystick.store.formats.message import Host
from tallystick.store.formats.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, Record

BLANK = b"\xcb\xd4\x31\x94"
START = 8192
HOUR_MS = 3_600_000

hosts = st.builds(
    Host,
    st.sampled_from(["10.0.0.1", "255.255.255.255", "0.0.0.0", "::1", "2001:db8::9", "::ffff:1.2.3.4", "::1.2.3.4"]),
    st.integers(0, 2**32 - 1),
)
names = st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"x", b"", b"TAGSX", b"\xff", b"KEY", "标".encode()])
names |= st.integers(0, 30).map(lambda number: b"n%d" % number)
values = st.sampled_from([b"a", b"", b"k1 k2  k3", b"\xe6\xa0", b"v\1", b"\1v", b"a\1b", "标签".encode(), b"z" * 40])
properties = st.lists(st.tuples(names, values), max_size=50).flatmap(
    lambda pairs: st.sampled_from(
        [
            b"".join(name + b"\1" + value + b"\2" for name, value in pairs),
            b"\2".join(b"\1".join(pair) for pair in pairs),
        ]
    )
)
records = st.builds(
    Record,
    topic=st.sampled_from(["T", "TopicTest", "%RETRY%g", "主题", "t\udcff"]),
    queue_id=st.integers(-1, 3),
    body=st.sampled_from([b"", b"hello", b"\xda\xa3\x20\xa7" * 5, bytes(300), bytes(range(256)) * 4]),
    properties=properties.map(lambda text: text.decode("utf-8", "surrogateescape")),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.sampled_from([0, 1, 4, 8, 12, 0x730]),
    queue_offset=st.integers(0, 5),
    born_timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    born_host=hosts,
    store_timestamp_ms=st.sampled_from([0, 1000, 2000, 2**63 - 1]),
    store_host=hosts,
    reconsume_times=st.integers(0, 20),
    prepared_transaction_offset=st.integers(0, 2**40),
    magic=st.sampled_from([MESSAGE_MAGIC, MESSAGE_MAGIC_V2]),
)
LAYOUTS = (0, 48)


def laid_out(found: list[Record], header: int, filler: int) -> bytes:
    """One file with these records, and a filler of `filler` bytes behind them (0: none)."""
    data = b""
    for index, record in enumerate(found):
        pos = START + len(data)
        body = record._replace(pos=pos + header).encode()
        if header:
            data += EntryHeader(1, 48 + len(body), index, 0, pos, 0, 0, 0, len(body)).encode()
        data += body
    if header and len(found) % 3 == 1:
        data += EntryHeader(1, 48, len(found), 0, START + len(data), 0, 0, 0, 0).encode()
    if filler:
        head = struct.pack(">i", filler) + BLANK if not header else struct.pack(">ii", -1, filler)
        data += head + b"\xee" * (filler - 8)
    return data


def scanned(path: str, data: bytes, header: int, wanted: Wanted = Wanted(), **options: Any) -> Scanned:  # noqa: B008
    split = Split("n0", path, START, START + len(data), START, START + len(data), header)
    one = SplitScan(split, SCHEMA.names, wanted, **options)
    rows = [row for batch in one for row in batch.to_pylist()]
    return Scanned(rows, one.records, [(damage.position, damage.size) for damage in one.damage])


def twin(data: bytes, header: int, check_crc: bool) -> Scanned:
    end = START + len(data)
    return scan(data, file_start=START, file_end=end, begin=START, header=header, check_crc=check_crc, source="n0")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("scan") / f"{START:020d}")


def written(path: str, data: bytes) -> None:
    with open(path, "wb") as file:  # noqa: PTH123 -- a Path per example is half of the run
        file.write(data)


@settings(max_examples=150)
@given(
    st.lists(records, min_size=1, max_size=6),
    st.sampled_from(LAYOUTS),
    st.sampled_from([0, 8, 9, 200]),
    st.integers(1, 3),
    st.integers(1, 400),
)
def test_sound_logs_are_read_alike(
    path: str, found: list[Record], header: int, filler: int, max_rows: int, max_bytes: int
) -> None:
    data = laid_out(found, header, filler)
    written(path, data)
    ours = scanned(path, data, header, check_crc=True, max_rows=max_rows, max_bytes=max_bytes)
    assert ours == twin(data, header, True)
    assert (ours.records, ours.damage) == (len(found), [])


def summed(rows: list[dict[str, Any]]) -> tuple[Counter[Any], Counter[Any], Counter[Any]]:
    """(counts and bytes by group and name, messages by bucket of size, by producer) of rows."""
    groups: Counter[Any] = Counter()
    for row in rows:
        stored = row["store_timestamp_ms"]
        hour = stored // HOUR_MS if stored >= 0 else -(-stored // HOUR_MS)  # towards zero
        key = (row["topic"], row["queue_id"], row["tags"] or "", hour * HOUR_MS)
        groups[key, "messages"] += 1
        groups[key, "bytes"] += row["size"]
        groups[key, "body_bytes"] += row["body_bytes"]
    sizes = Counter((row["topic"], math.floor(16 * math.log2(row["size"]))) for row in rows)
    producers = Counter((row["topic"], row["born_host"].rpartition(":")[0]) for row in rows)
    return +groups, sizes, producers


def of_tables(sums: Sums) -> tuple[Counter[Any], Counter[Any], Counter[Any]]:
    groups: Counter[Any] = Counter()
    for row in sums.groups.to_pylist():
        key = (row["topic"], row["queue_id"], row["tags"], row["hour_ms"])
        for name in ("messages", "bytes", "body_bytes"):
            groups[key, name] += row[name]
    sizes: Counter[Any] = Counter()
    for row in sums.sizes.to_pylist():
        sizes[row["topic"], row["bucket"]] += row["messages"]
    producers: Counter[Any] = Counter()
    for row in sums.producers.to_pylist():
        producers[row["topic"], row["address"]] += row["messages"]
    return +groups, sizes, producers


@settings(max_examples=200)
@given(
    st.lists(records, max_size=20),
    st.sampled_from(LAYOUTS),
    st.sampled_from([Wanted(), Wanted(topics=("T",)), Wanted(queues=(0, 1))]),
    st.integers(-(2**40), 2**40),
    st.booleans(),
)
def test_sums_are_those_of_the_rows(
    path: str, found: list[Record], header: int, wanted: Wanted, apart_ms: int, ends_early: bool
) -> None:
    spread = [each._replace(store_timestamp_ms=apart_ms * index) for index, each in enumerate(found)]
    data = laid_out(spread, header, 16)
    data = data[:-1] if ends_early else data
    written(path, data)
    split = Split("n0", path, START, START + len(data), START, START + len(data), header)
    by_rows = scanned(path, data, header, wanted)
    scan = SplitScan(split, (), wanted)
    sums = scan.sums()
    assert sums is not None and of_tables(sums) == summed(by_rows.rows)
    assert (scan.records, [(each.position, each.size) for each in scan.damage]) == (by_rows.records, by_rows.damage)


edits = st.lists(
    st.tuples(st.floats(0, 0.9999), st.sampled_from([b"\0", b"\xff", b"\x7f", b"\0" * 8, b"\xda\xa3\x20\xa7", b"zz"])),
    min_size=1,
    max_size=4,
)


@settings(max_examples=400)
@given(st.lists(records, min_size=1, max_size=6), st.sampled_from(LAYOUTS), edits, st.booleans(), st.floats(0, 1))
@example([Record("T", 0, b"a"), Record("T", 0, b"b")], 0, [(0.0, b"\0" * 8)], True, 1.0)
@example([Record("T", 0, b"")] * 3, 48, [(0.09375, b"\xff")], True, 1.0)  # a chain CRC
@example([Record("T", 0, b"")] * 3, 48, [(0.1, b"\xff")], True, 1.0)  # a body CRC
def test_damage_is_named_alike(
    path: str, found: list[Record], header: int, changes: list[tuple[float, bytes]], check_crc: bool, keep: float
) -> None:
    sound = laid_out(found, header, 16)
    data = bytearray(sound)
    for place, change in changes:
        at = int(place * len(data))
        data[at : at + len(change)] = change
    cut = bytes(data[: max(1, int(keep * len(data)))])
    written(path, cut)
    ours, theirs = scanned(path, cut, header, check_crc=check_crc), twin(cut, header, check_crc)
    assert ours == theirs


@settings(max_examples=150)
@given(
    st.lists(records, min_size=1, max_size=8),
    st.sampled_from(LAYOUTS),
    st.none() | st.lists(st.sampled_from(["T", "主题", "X"]), max_size=2).map(tuple),
    st.none() | st.lists(st.integers(-1, 3), max_size=2).map(tuple),
    st.none() | st.tuples(st.integers(0, 3), st.integers(2, 5)),
    st.none() | st.tuples(st.integers(0, 1500), st.sampled_from([1000, 2000, 2**63 - 1])),
    st.none() | st.lists(st.sampled_from(["a", "k1", "k3", "k", "标签"]), max_size=2).map(tuple),
)
def test_filters_take_what_a_look_at_the_row_takes(
    path: str, found: list[Record], header: int, topics: Any, queues: Any, offsets: Any, times: Any, keys: Any
) -> None:
    data = laid_out(found, header, 8)
    written(path, data)

    def taken(row: dict[str, Any]) -> bool:
        return (
            (topics is None or row["topic"] in topics)
            and (queues is None or row["queue_id"] in queues)
            and (offsets is None or offsets[0] <= row["queue_offset"] <= offsets[1])
            and (times is None or times[0] <= row["store_timestamp_ms"] <= times[1])
            and (keys is None or any(key in keys for key in [row["unique_key"], *row["keys"]]))
        )

    ours = scanned(path, data, header, Wanted(topics, queues, offsets, times, keys))
    assert ours.rows == [row for row in twin(data, header, False).rows if taken(row)]
    assert ours.records == len(found)


def test_records_larger_than_a_piece_and_across_pieces(path: str) -> None:
    bodies = [bytes([n % 251]) * size for n, size in enumerate([10, 700_000, 5, 600_000, 2_000_000, *[999] * 800])]
    for header in LAYOUTS:
        data = laid_out([Record("T", 0, body) for body in bodies], header, 64)
        written(path, data)
        ours = scanned(path, data, header, check_crc=True)
        assert [row["body"] for row in ours.rows] == bodies
        assert ours.damage == []


def test_a_record_copied_into_a_body_is_no_boundary_even_behind_damage(path: str) -> None:
    """Only a record that names its own place is one: a body may hold a copy of a log."""
    inner = Record("T", 0, b"inner", pos=7).encode()
    data = bytearray(laid_out([Record("T", 0, b"x" + inner), Record("T", 0, b"next")], 0, 8))
    data[4:8] = b"\0\0\0\1"  # the outer record's magic is gone
    written(path, bytes(data))
    ours = scanned(path, bytes(data), 0)
    assert [row["body"] for row in ours.rows] == [b"next"]
    assert len(ours.damage) == 1


def test_columns_come_as_asked_and_in_that_order(path: str) -> None:
    data = laid_out([Record("T", 1, b"a")], 0, 8)
    written(path, data)
    split = Split("", path, START, START + len(data), START, START + len(data), 0)
    (batch,) = SplitScan(split, ["size", "topic"])
    assert batch.schema.names == ["size", "topic"]
    (batch,) = SplitScan(split, [])
    assert batch.num_rows == 1, "a count needs no columns"
    with pytest.raises(ValueError, match="no column"):
        list(SplitScan(split, ["boody"]))
    (batch,) = SplitScan(split, SCHEMA.names)
    assert batch.schema.equals(SCHEMA), batch.schema


def test_a_missing_or_short_file_is_reported(path: str, tmp_path: Any) -> None:
    data = laid_out([Record("T", 1, b"a" * 5000)], 0, 8)
    gone = SplitScan(Split("", str(tmp_path / "none"), START, START + 500, START, START + 500, 0), ["size"])
    assert list(gone) == []
    assert [(damage.position, damage.size, damage.reason) for damage in gone.damage] == [
        (START, 500, "expired before it was read")
    ]
    written(path, data[:4000])
    with pytest.raises(Exception, match="ends within"):
        list(SplitScan(Split("", path, START, START + len(data), START, START + len(data), 0), ["size"]))


@pytest.mark.parametrize("header", LAYOUTS)
def test_a_record_that_names_another_place_is_damage(path: str, header: int) -> None:
    data = bytearray(laid_out([Record("T", 0, b"first"), Record("T", 0, b"next")], header, 8))
    data[header + 35] ^= 1
    written(path, bytes(data))
    ours, theirs = scanned(path, bytes(data), header), twin(bytes(data), header, False)
    assert [row["body"] for row in ours.rows] == [b"next"]
    assert ours == theirs and ours.damage[0][0] == START
