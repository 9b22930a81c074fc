"""Reads one split: Arrow batches of its messages, and the damage in it. Without Spark.

The loop over messages is in the kernel and runs without the GIL; one step here is a batch of thousands. A file that no
longer exists has expired between plan and read. That is reported with the damage, with a separate reason; so is a range
that no file had when the split was planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tallystick.spark import reads
from tallystick.spark.presence import Segments, bring, bringer
from tallystick.spark.splits import Split
from tallystick.store._kernel import MessageScan, RequiredUnits

CONTENT_BYTES = 64 << 20
"""Largest decompressed body, without the option `maxContentBytes`."""
EXPIRED = "expired before it was read"
Int64Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of messages; None: any. Ranges include both ends; times are store times."""

    topics: tuple[str, ...] | None = None
    queues: tuple[int, ...] | None = None
    queue_offsets: Int64Range | None = None
    store_times_ms: Int64Range | None = None
    keys: tuple[str, ...] | None = None
    """The message's unique key, or one of its keys, must be one of these."""
    tags: tuple[str, ...] | None = None
    """Only for what is left out before the scan; the scanner does not look at tags."""
    sources: tuple[str, ...] | None = None
    """Names of the stores to read at all."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a log file that are not a sound record, at `position` of the log; reading continued `size` bytes
    later."""

    source: str
    file: str
    position: int
    size: int
    reason: str


class DamageMetError(Exception):
    """The reader found damage in the mode FAILFAST."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(f"{damage.file}: {damage.size} bytes at position {damage.position}: {damage.reason}")
        self.damage = damage


def has_expired(split: Split) -> bool:
    """Returns whether the split's file expired: neither it nor an older file exists."""
    if split.missing:
        return False  # older files were there when the split was planned
    path = Path(split.path)
    if path.exists():
        return False
    starts = Segments(path.parent).starts
    # A plain log that dledger continued expires as a whole.
    return starts[0] > split.file_start if starts else any(path.parent.parent.glob("dledger-*/data/*"))


class _Exported:
    """The kernel's data in the form that pyarrow imports."""

    def __init__(self, capsules: tuple[object, object]) -> None:
        self._capsules = capsules

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._capsules


def table_of(capsules: tuple[object, object]) -> pa.Table:
    """Imports rows that the kernel exports as capsules of Arrow's C data interface (schema, array)."""
    return pa.Table.from_batches([pa.record_batch(_Exported(capsules))])


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of messages, as small tables.

    groups     topic, queue_id, tags ("": none), hour_ms (the hour of storing): messages, bytes, body_bytes
    sizes      topic, bucket: messages; one of n bytes is in bucket floor(16 * log2(n))
    producers  topic, address (of who sent it, without the port): messages
    """

    groups: pa.Table
    sizes: pa.Table
    producers: pa.Table


class SplitScan:
    """The batches of one split, or their sums. It can be read once.

    `records` (of the filter or not), `bytes_read`, `damaged` and `damage` grow while it is read. `check_crc`: checks
    every body, of the filter or not. `unread` and `unread_places`: rows whose body cannot be decompressed, if the
    columns ask for the content. OSError; DamageError: the file is too short.
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
        max_bytes: int = 1 << 22,
        max_content_bytes: int = CONTENT_BYTES,
    ) -> None:
        self.split = split
        self.records = 0
        self.bytes_read = 0
        self.damaged = 0
        self.damage: list[Damage] = []
        self._columns = list(columns)
        self._wanted = wanted
        self._check_crc = check_crc
        self._fail_fast = fail_fast
        self.unread = 0
        self.unread_places: list[Damage] = []
        self._limits = (max_rows, max_bytes, max_content_bytes)

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
        """Returns the sums of its messages. None: the file has expired, and is in `damage`."""
        if (scan := self._opened()) is None:
            return None
        tables = scan.sums()
        self._passed(scan)
        return Sums(*(table_of(each) for each in tables))

    def _opened(self) -> MessageScan | None:
        """Opens the split. None: the file has expired or is missing, and is now in `damage`."""
        split, wanted = self.split, self._wanted
        if split.missing:
            self._met([(split.begin, split.bytes, split.missing)], 1)
            return None
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
                max_content_bytes=self._limits[2],
            )
        except FileNotFoundError:
            self._met([(split.begin, split.bytes, EXPIRED)], 1)
            return None

    def _passed(self, scan: MessageScan) -> None:
        reads.add(scan.bytes_read - self.bytes_read, scan.records - self.records)
        self.records, self.bytes_read = scan.records, scan.bytes_read
        if scan.damaged > self.damaged:
            self._met(scan.damage[len(self.damage) :], scan.damaged)
        if scan.unread > self.unread:
            self.unread = scan.unread
            self.unread_places += self._placed(scan.unread_places[len(self.unread_places) :])
            if self._fail_fast:
                raise DamageMetError(self.unread_places[0])

    def _met(self, more: list[tuple[int, int, str]], damaged: int) -> None:
        self.damaged = damaged
        self.damage += self._placed(more)
        if self._fail_fast:
            raise DamageMetError(self.damage[0])

    def _placed(self, places: list[tuple[int, int, str]]) -> list[Damage]:
        return [Damage(self.split.source, self.split.path, *place) for place in places]


def units_of(scans: Sequence[SplitScan], root: Path, repairable_from: int, settled_ms: int) -> RequiredUnits | None:
    """Compares the records of splits, in the log's order, with the ConsumeQueues of the store in `root`.

    None: all files have expired or are missing. What expired or is missing is in the `damage` of its scan.
    """
    opened = [(scan, kernel) for scan in scans if (kernel := scan._opened()) is not None]
    if not opened:
        return None
    first, *later = [kernel for _, kernel in opened]
    units = first.units(root, later=later, repairable_from=repairable_from, settled_ms=settled_ms, bring=bringer())
    for scan, kernel in opened:
        scan._passed(kernel)
    return units


def _encoded(texts: tuple[str, ...] | None) -> list[bytes] | None:
    return None if texts is None else [text.encode() for text in texts]
