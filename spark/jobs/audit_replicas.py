"""Compares the logs of the members of a group: the same positions must have the same bytes.

First each member gives the CRC of each MiB. Where they differ, members give the bytes themselves, and each different
range is reported with its record and field. With a majority the minority is named. Without one, all members are named:
the bytes do not show which of them is right.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tallystick.spark.jobs.findings import Difference, Findings
from tallystick.spark.presence import bring, release
from tallystick.spark.runner import Runner
from tallystick.spark.scan import SplitScan
from tallystick.spark.splits import Split
from tallystick.spark.volume import Volume
from tallystick.store.formats.record_fields import field_at

CHUNK_BYTES = 1 << 20
_DIGEST_BYTES = 256 << 20
_MOST_CHUNKS = 64
"""Chunks whose bytes are compared. The others are reported as a whole."""
_MOST_RANGES = 100
"""Different ranges that are reported for each chunk."""
_LARGEST_RECORD = 8 << 20
_SAME_BYTES = 4
"""Ranges with fewer equal bytes between them are one range: a flipped number can have some equal bytes."""

Chunk = tuple[int, int]
"""Positions [begin, end) of the log."""


@dataclass(frozen=True)
class ReplicaGroup:
    """Members with the same log, and the range that all of them have: from the greatest begin to the smallest bound.

    `empty`: members without anything below their bound, such as a member that was not added yet or has a new disk. The
    others are compared without them.
    """

    group: str | None
    volumes: tuple[Volume, ...]
    begin: int
    end: int
    empty: tuple[str, ...] = ()

    @property
    def sources(self) -> set[str]:
        return {volume.source for volume in self.volumes}


@dataclass(frozen=True)
class PlaceTask:
    """`ranges`: different bytes of a replica, as positions of the log, all in `piece`."""

    piece: Split
    ranges: tuple[tuple[int, int], ...]

    @property
    def source(self) -> str:
        return self.piece.source


def replica_groups(volumes: Iterable[Volume], groups: Mapping[str, str | None]) -> list[ReplicaGroup]:
    """The groups of several members. Stores in the plain layout are members of a group only if they are named so."""
    members: dict[str | None, list[Volume]] = {}
    empty: dict[str | None, list[str]] = {}
    for volume in volumes:
        if not volume.bytes:
            empty.setdefault(groups[volume.source], []).append(volume.source)
        elif volume.files[-1].entry_header_bytes or groups[volume.source] is not None:
            members.setdefault(groups[volume.source], []).append(volume)
    found = []
    for group, held in members.items():
        without = tuple(empty.get(group, ()))
        begin = max(each.begin for each in held)
        end = max(begin, min(each.bound for each in held)) if len(held) > 1 else begin
        if len(held) > 1 or without:
            found.append(ReplicaGroup(group, tuple(held), begin, end, without))
    return found


def compare(groups: Sequence[ReplicaGroup], runner: Runner) -> Findings:
    """Compares the members of each group."""
    digested = runner(digests, [task for each in groups for task in _pieces(each, _DIGEST_BYTES)])
    tasks: list[Split] = []
    findings = Findings()
    for group in groups:
        differing = _differing(each for each in digested if each[0] in group.sources)
        for chunk in differing[_MOST_CHUNKS:]:
            _add_chunk(findings, group, chunk)
        tasks += [piece for chunk in differing[:_MOST_CHUNKS] for piece in _pieces(group, CHUNK_BYTES, chunk)]
    places: list[PlaceTask] = []
    by_chunk: dict[tuple[str | None, Chunk], list[tuple[Split, bytes]]] = {}
    group_of = {source: group.group for group in groups for source in group.sources}
    for task, data in zip(tasks, runner(piece_bytes, tasks), strict=True):
        by_chunk.setdefault((group_of[task.source], (task.begin, task.end)), []).append((task, data))
    for held in by_chunk.values():
        places += wrong_places(held)
    return Findings.joined([findings, *runner(named, places)])


def _pieces(group: ReplicaGroup, size: int, chunk: Chunk | None = None) -> list[Split]:
    """Pieces of the members' files, with the same boundaries for all members."""
    begin, end = (group.begin, group.end) if chunk is None else chunk
    tasks = []
    for volume in group.volumes:
        for file in volume.files:
            low, stop = max(begin, file.start), min(end, file.end)
            while low < stop and not file.missing:
                high = min(stop, low - low % size + size)
                tasks.append(Split(volume.source, file.path, file.start, file.end, low, high, file.entry_header_bytes))
                low = high
    return tasks


def digests(task: Split) -> tuple[str, dict[Chunk, int]]:
    """(source, CRC-32 of the bytes of each chunk, which ends at a multiple of a MiB). Fewer: the file expired."""
    pos, found = task.begin, {}
    try:
        with Path(task.path).open("rb") as file:
            while pos < task.end:
                stop = min(task.end, pos - pos % CHUNK_BYTES + CHUNK_BYTES)
                begin, end = pos - task.file_start, stop - task.file_start
                bring(task.path, begin, end)
                file.seek(begin)
                found[pos, stop] = zlib.crc32(file.read(stop - pos))
                release(task.path, begin, end)
                pos = stop
    except FileNotFoundError:
        pass
    return task.source, found


def _differing(digested: Iterable[tuple[str, dict[Chunk, int]]]) -> list[Chunk]:
    """The chunks that do not have the same bytes in all members that have them."""
    values: dict[Chunk, set[int]] = {}
    for _, chunks in digested:
        for chunk, digest in chunks.items():
            values.setdefault(chunk, set()).add(digest)
    return sorted(chunk for chunk, held in values.items() if len(held) > 1)


def _add_chunk(findings: Findings, group: ReplicaGroup, chunk: Chunk) -> None:
    begin, end = chunk
    for volume in group.volumes:
        reason = f"bytes {begin} to {end} of the log differ between the members"
        findings.add(Difference(volume.source, "replicas", "", begin, reason, end - begin))


def piece_bytes(task: Split) -> bytes:
    """The bytes of a piece; fewer: the file expired."""
    begin, end = task.begin - task.file_start, task.end - task.file_start
    try:
        bring(task.path, begin, end)
        with Path(task.path).open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)
    except FileNotFoundError:
        return b""


def wrong_places(held: Sequence[tuple[Split, bytes]]) -> list[PlaceTask]:
    """Which ranges to report of which member. `held`: the bytes of one chunk, of each member that has it.

    With a majority for a range, the others are named, else all of them.
    """
    held = [(task, data) for task, data in held if len(data) == task.end - task.begin]
    ranges: dict[Split, list[tuple[int, int]]] = {}
    for begin, end in _different_ranges([data for _, data in held]):
        counts = Counter(data[begin:end] for _, data in held)
        usual, most = counts.most_common(1)[0]
        for task, data in held:
            if 2 * most <= len(held) or data[begin:end] != usual:
                ranges.setdefault(task, []).append((task.begin + begin, task.begin + end))
    return [PlaceTask(task, tuple(found)) for task, found in ranges.items()]


def _different_ranges(held: Sequence[bytes]) -> list[tuple[int, int]]:
    if len(held) < 2:
        return []
    first, ranges = held[0], list[tuple[int, int]]()
    for at in range(0, len(first), 4096):
        blocks = [data[at : at + 4096] for data in held]
        if all(block == blocks[0] for block in blocks):
            continue
        for number in range(len(blocks[0])):
            if any(block[number] != blocks[0][number] for block in blocks):
                pos = at + number
                if ranges and pos - ranges[-1][1] < _SAME_BYTES:
                    ranges[-1] = (ranges[-1][0], pos + 1)
                else:
                    ranges.append((pos, pos + 1))
        if len(ranges) > _MOST_RANGES:
            return [*ranges[: _MOST_RANGES - 1], (ranges[_MOST_RANGES - 1][0], len(first))]
    return ranges


def named(task: PlaceTask) -> Findings:
    """The different ranges of one member, with their records and fields."""
    piece, findings = task.piece, Findings()
    records = _records(piece, task.ranges)
    for begin, end in task.ranges:
        what = f"bytes {begin} to {end} of the log"
        for entry, size, said in records:
            if entry <= begin < entry + size:
                data = piece_bytes(replace(piece, begin=entry, end=entry + size))
                field = field_at(data, begin - entry, piece.entry_header_bytes)
                if field is not None:
                    what = f"the field {field.name} of the record at {entry + piece.entry_header_bytes} ({said})"
        reason = f"{what} differs between the members"
        at = begin - piece.file_start
        findings.add(Difference(piece.source, "replicas", piece.path, at, reason, end - begin))
    return findings


def _records(piece: Split, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int, str]]:
    """(position, bytes, description) of the records with these bytes; positions and sizes include the entries."""
    header = piece.entry_header_bytes
    # A file begins with a record, which the middle of a file may not.
    end = min(piece.file_end, piece.end + _LARGEST_RECORD)
    scan = SplitScan(
        replace(piece, begin=piece.file_start, end=end),
        ["physical_offset", "size", "topic", "queue_id", "queue_offset"],
    )
    found = []
    for batch in scan:
        for pos, size, topic, queue, offset in zip(*(column.to_pylist() for column in batch), strict=True):
            if any(pos - header <= begin < pos + size for begin, _ in ranges):
                found.append((pos - header, size + header, f"{topic} queue {queue}, offset {offset}"))
    return [*found, *((each.position, each.size, each.reason) for each in scan.damage)]
