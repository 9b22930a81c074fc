"""Reads one split: Arrow batches of its messages, and what was met that is none. No Spark in it.

The loop over messages is the kernel's and runs without the GIL; here a batch of thousands is one step. A file that is
gone has expired between the plan and the read: that is reported with the damage, by its own words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tallystick.spark.presence import Segments, bring
from tallystick.spark.splits import Split
from tallystick.store._kernel import MessageScan

EXPIRED = "expired before it was read"
Int64Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages; None: any. Ranges are inclusive on both sides, times are those of storing."""

    topics: tuple[str, ...] | None = None
    queues: tuple[int, ...] | None = None
    queue_offsets: Int64Range | None = None
    store_times_ms: Int64Range | None = None
    keys: tuple[str, ...] | None = None
    """The unique key or one of the keys is among them."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a log file that are no record: `position` in the log, `size` up to where reading went on."""

    source: str
    file: str
    position: int
    size: int
    reason: str


class DamageMetError(Exception):
    """Damage was met, and the reader was told to stop at it (mode FAILFAST)."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(f"{damage.file}: {damage.size} bytes at position {damage.position}: {damage.reason}")
        self.damage = damage


def has_expired(split: Split) -> bool:
    """Whether its file was removed as the oldest ones are: neither it nor one before it is left."""
    path = Path(split.path)
    if path.exists():
        return False
    starts = Segments(path.parent).starts
    # An older log that dledger went on with expires as a whole.
    return starts[0] > split.file_start if starts else any(path.parent.parent.glob("dledger-*/data/*"))


class _Exported:
    """What the kernel hands over, in the form that pyarrow takes."""

    def __init__(self, capsules: tuple[object, object]) -> None:
        self._capsules = capsules

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._capsules


def table_of(capsules: tuple[object, object]) -> pa.Table:
    """The rows that the kernel hands over as capsules of Arrow's C data interface (schema, array)."""
    return pa.Table.from_batches([pa.record_batch(_Exported(capsules))])


@dataclass(frozen=True, slots=True)
class Sums:
    """What messages come to, as tables of few rows.

    groups     topic, queue_id, tags ("": none), hour_ms (the hour of storing): messages, bytes, body_bytes
    sizes      topic, bucket: messages; one of n bytes is in bucket floor(16 * log2(n))
    producers  topic, address (of who sent it, without the port): messages
    """

    groups: pa.Table
    sizes: pa.Table
    producers: pa.Table


class SplitScan:
    """The batches of one split, or their sums; read once.

    `records` (wanted or not), `damaged` and `damage` grow as it goes. `check_crc`: of every body, wanted or not.
    OSError; DamageError: the file ends early.
    """

    def __init__(
        self,
        split: Split,
        columns: Sequence[str],
        wanted: Wanted = Wanted(),
        *,
        check_crc: bool = False,
        fail_fast: bool = False,
        max_rows: int = 1 << 16,
        max_bytes: int = 1 << 24,
    ) -> None:
        self.split = split
        self.records = 0
        self.damaged = 0
        self.damage: list[Damage] = []
        self._columns = list(columns)
        self._wanted = wanted
        self._check_crc = check_crc
        self._fail_fast = fail_fast
        self._limits = (max_rows, max_bytes)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if (scan := self._opened()) is None:
            return
        while True:
            exported = scan.next_batch()
            self._passed(scan)
            if exported is None:
                return
            yield pa.record_batch(_Exported(exported))

    def sums(self) -> Sums | None:
        """What its messages come to, without a row for each. None: the file has expired, and is in `damage`."""
        if (scan := self._opened()) is None:
            return None
        tables = scan.sums()
        self._passed(scan)
        return Sums(*(table_of(each) for each in tables))

    def _opened(self) -> MessageScan | None:
        """None: the file has expired, which is in `damage` now."""
        split, wanted = self.split, self._wanted
        try:
            bring(split.path, split.begin - split.file_start, split.end - split.file_start)
            return MessageScan(
                split.path,
                file_start=split.file_start,
                file_end=split.file_end,
                begin=split.begin,
                end=split.end,
                columns=self._columns,
                entry_header_bytes=split.entry_header_bytes,
                check_crc=self._check_crc,
                source=split.source,
                topics=_encoded(wanted.topics),
                queues=None if wanted.queues is None else list(wanted.queues),
                queue_offsets=wanted.queue_offsets,
                store_times_ms=wanted.store_times_ms,
                keys=_encoded(wanted.keys),
                max_rows=self._limits[0],
                max_bytes=self._limits[1],
            )
        except FileNotFoundError:
            self._met([(split.begin, split.bytes, EXPIRED)], 1)
            return None

    def _passed(self, scan: MessageScan) -> None:
        self.records = scan.records
        if scan.damaged > self.damaged:
            self._met(scan.damage[len(self.damage) :], scan.damaged)

    def _met(self, more: list[tuple[int, int, str]], damaged: int) -> None:
        self.damaged = damaged
        self.damage += [Damage(self.split.source, self.split.path, *place) for place in more]
        if self._fail_fast:
            raise DamageMetError(self.damage[0])


def _encoded(texts: tuple[str, ...] | None) -> list[bytes] | None:
    return None if texts is None else [text.encode() for text in texts]
