"""The content of messages: bodies that a client compressed, damaged ones, and ones that would fill the memory."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from tallystick.spark.columns import check_requested, schema_of, time_of
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.scan import DamageMetError, SplitScan
from tallystick.spark.splits import Split
from tallystick.store.formats.record import Record

ZLIB, LZ4, ZSTD = 3 << 8 | 1, 1 << 8 | 1, 2 << 8 | 1
CODECS = {1: "zlib", ZLIB: "zlib", LZ4: "lz4", ZSTD: "zstd"}
COLUMNS = ("queue_offset", "body", "content", "content_error")


def compressed(flag: int, content: bytes) -> bytes:
    """With another implementation than the scanner's."""
    if CODECS[flag] == "zlib":
        return zlib.compress(content)
    packed: bytes = pa.Codec(CODECS[flag]).compress(content, asbytes=True)
    return packed


def split_of(folder: Path, bodies: list[tuple[int, bytes]]) -> Split:
    """A log with one record for each body and its `sys_flag`."""
    data = b""
    for number, (flag, body) in enumerate(bodies):
        data += Record("T", 0, body=body, sys_flag=flag, queue_offset=number, pos=len(data)).encode()
    path = folder / f"{0:020d}"
    path.write_bytes(data)
    return Split("a", str(path), 0, len(data), 0, len(data), 0)


def contents(scan: SplitScan) -> list[bytes | None]:
    return [value for batch in scan for value in batch.column("content").to_pylist()]


@pytest.mark.parametrize("flag", CODECS)
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_000, 3_000_000])
def test_a_compressed_body_becomes_its_content(tmp_path: Path, flag: int, size: int) -> None:
    for content in (bytes(size), random.Random(size).randbytes(size)):
        body = compressed(flag, content)
        scan = SplitScan(split_of(tmp_path, [(0, content), (flag, body), (flag, body)]), COLUMNS, check_crc=True)
        rows = [row for batch in scan for row in batch.to_pylist()]
        assert [row["content"] for row in rows] == [content] * 3
        assert [row["body"] for row in rows] == [content, body, body], "as it is stored"
        assert (scan.unread, scan.damaged) == (0, 0)


@pytest.mark.parametrize("flag", CODECS)
def test_a_body_of_several_frames(tmp_path: Path, flag: int) -> None:
    """Java's streams of LZ4 and Zstandard write and read several; zlib's ignores what follows the first."""
    body = compressed(flag, b"one") + compressed(flag, b"two")
    expected = b"one" if CODECS[flag] == "zlib" else b"onetwo"
    assert contents(SplitScan(split_of(tmp_path, [(flag, body)]), COLUMNS)) == [expected]


@pytest.mark.parametrize("flag", CODECS)
def test_a_damaged_body_has_no_content_and_a_reason(tmp_path: Path, flag: int) -> None:
    body = compressed(flag, random.Random(1).randbytes(5000))
    for wrong in (b"", body[:3], body[: len(body) // 2], body[:-1], b"not compressed", bytes(50)):
        split = split_of(tmp_path, [(0, b"before"), (flag, wrong), (flag, body)])
        scan = SplitScan(split, COLUMNS, check_crc=True)
        rows = [row for batch in scan for row in batch.to_pylist()]
        assert [row["content"] is None for row in rows] == [False, True, False], wrong
        assert [row["content_error"] is None for row in rows] == [True, False, True], wrong
        assert rows[1]["body"] == wrong, "the stored bytes remain available"
        assert (scan.unread, scan.damaged) == (1, 0), "the log is sound"
        with pytest.raises(DamageMetError, match=rf"{split.path}: \d+ bytes at position 98: .*body"):
            contents(SplitScan(split, COLUMNS, fail_fast=True))


def test_an_unknown_compression_is_named(tmp_path: Path) -> None:
    scan = SplitScan(split_of(tmp_path, [(4 << 8 | 1, b"x")]), ["content_error"])
    assert [batch.to_pylist() for batch in scan] == [[{"content_error": "the body has an unknown type of compression"}]]


@pytest.mark.parametrize("flag", CODECS)
def test_a_content_beyond_the_limit_is_refused(tmp_path: Path, flag: int) -> None:
    """The limit itself is allowed. A bomb of a gigabyte takes no gigabyte."""
    split = split_of(tmp_path, [(flag, compressed(flag, bytes(size))) for size in (70_000, 69_999, 70_001, 20_000_000)])
    scan = SplitScan(split, COLUMNS, max_content_bytes=70_000)
    assert [None if each is None else len(each) for each in contents(scan)] == [70_000, 69_999, None, None]
    assert {place.reason for place in scan.unread_places} == {"the decompressed body is larger than the limit"}


def test_batches_are_limited_by_their_contents(tmp_path: Path) -> None:
    split = split_of(tmp_path, [(1, zlib.compress(bytes(1 << 20)))] * 20)
    batches = list(SplitScan(split, ["content"], max_bytes=4 << 20))
    assert [batch.num_rows for batch in batches] == [4] * 5


def test_bodies_without_content_are_counted_beyond_the_list(tmp_path: Path) -> None:
    scan = SplitScan(split_of(tmp_path, [(1, b"no")] * 1500), ["content"], max_rows=700)
    assert contents(scan) == [None] * 1500
    assert (scan.unread, len(scan.unread_places)) == (1500, 1000)


def test_nothing_is_decompressed_unless_the_content_is_asked_for(tmp_path: Path) -> None:
    scan = SplitScan(split_of(tmp_path, [(1, b"no")]), ["body", "sys_flag"], fail_fast=True)
    assert [row["body"] for batch in scan for row in batch.to_pylist()] == [b"no"]


def test_the_options_of_the_content() -> None:
    options = ReadOptions.parse({"path": "/x", "columns": "topic,content", "maxContentBytes": "1000"})
    assert (options.columns, options.max_content_bytes, options.check_crc) == (("topic", "content"), 1000, True)
    assert "content" not in ReadOptions.parse({"path": "/x", "columns": "*"}).columns
    for wrong in ("0", "x", str(1 << 31)):
        with pytest.raises(OptionError, match="maxContentBytes"):
            ReadOptions.parse({"path": "/x", "maxContentBytes": wrong})


def test_milliseconds_become_timestamps() -> None:
    values = [0, 1_700_000_000_123, -1, 253_402_300_799_999, 253_402_300_800_000, -(2**63), 2**63 - 1]
    times = time_of(pa.array(values, pa.int64()))
    assert times.cast(pa.int64()).to_pylist() == [0, 1_700_000_000_123_000, -1000, 253_402_300_799_999_000, *[None] * 3]
    check_requested(schema_of(["store_timestamp_ms", "size"]).set(0, pa.field("store_timestamp_ms", times.type)))
    with pytest.raises(ValueError, match="queue_offset is bigint, and cannot be read as another type"):
        check_requested(pa.schema([("queue_offset", times.type)]))
