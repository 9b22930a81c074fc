"""`rebuild`: builds ConsumeQueues and index of a store from its log, and compares them with those of the broker.

The kernel's dispatcher builds them, with the broker's rules. Settings that the files do not contain are determined from
the present queues, or given. The result is never written into the store: the operator of the broker installs it while
the broker is stopped. `rebuild_compare.py` describes the comparison, also with the store of a running broker.

    no output               built in a temporary folder, compared, removed
    a folder for all        built in another folder, then renamed: out/<source>/consumequeue/..., index/...
    a folder of the driver  built where the volume is; the bytes that are not zero are sent to the driver in pieces
    a bucket                built where the volume is, uploaded as out/<source>/<path>.zst: an index file is 420 MB of
                            mostly zeros, and an object has no holes

Extensions of queues are built if the store has them, with the tags codes and times of the log, and without bit maps:
a bit map says which consumers' filters accept a message, and the log does not contain the filters. Without a bit map a
broker evaluates the filter on the message; an empty bit map would hide the message.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tallystick.spark.index_files import geometry_of
from tallystick.spark.jobs.audit import LAG_MS, last_store_ms
from tallystick.spark.jobs.findings import SETTLED
from tallystick.spark.jobs.job import CLEAN, DAMAGE, DIFFERENCES, SETTINGS, Job, OutputUse, Summary
from tallystick.spark.jobs.rebuild_compare import Comparison, Snapshot, compare
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs import ASIDE, FolderOutput, Output
from tallystick.spark.planning import PlanTask, plan_tasks, volume_of
from tallystick.spark.presence import bring, bring_folder, release
from tallystick.spark.runner import Runner
from tallystick.spark.volume import Volume, VolumeError, open_volume
from tallystick.store import _kernel
from tallystick.store.engine.recovery import log_layout, open_dispatch
from tallystick.store.formats.queue_format import INDEX_HEADER, IndexHeader
from tallystick.store.settings import StoreSettings
from tallystick.store.verify.dump import overridden, settings_of

PIECE_BYTES = 8 << 20
"""Bytes, not counting zeros, that a task sends to the driver at a time."""
_BLOCK_BYTES = 64 << 10
_FRAME_BYTES = 4 << 20
_STEP_BYTES = 64 << 20
_LOOKS = 5
_ZEROS = bytes(_BLOCK_BYTES)
_CLAIMS = "_tally/rebuilding"


@dataclass(frozen=True)
class Rebuilt:
    """`same`, `differing`, `missing`: files of the store that equal the rebuilt ones, differ, or do not exist;
    `beyond`: files without any rebuilt units or entries. `behind`: units and entries that the newest records of an open
    store do not have yet."""

    source: str
    folder: str | None
    records: int
    begin: int
    end: int
    bound: int
    stopped: str | None
    skipped: int
    files: int
    same: int
    differing: list[str]
    missing: list[str]
    beyond: int
    behind: dict[str, int]
    compared: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BuildTask:
    """`token`: of this run; `place`: folder to build it in, None: a temporary one; `keep`: for pieces."""

    of: PlanTask
    settings: tuple[tuple[str, str], ...]
    lag_ms: int
    token: str
    place: str | None
    keep: bool

    @property
    def source(self) -> str:
        return self.of.source


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [begin, end) of a file that was built from [log_begin, log_bound) of the log, with these settings."""

    task: BuildTask
    chosen: StoreSettings
    log_begin: int
    log_bound: int
    name: str
    begin: int
    end: int

    @property
    def source(self) -> str:
        return self.task.source


Files = list[tuple[str, int, list[tuple[int, int]]]]
"""Name, size, and the ranges that are not zeros, in pieces of about `PIECE_BYTES`."""


@dataclass(frozen=True, slots=True)
class Built:
    """`files`: the files that are kept for pieces."""

    rebuilt: Rebuilt
    chosen: StoreSettings
    files: Files


def run(
    options: ReadOptions,
    runner: Runner,
    output: Output | None,
    settings: Mapping[str, str] | None = None,
    lag_ms: int = LAG_MS,
) -> dict[str, Any]:
    """Rebuilds each store. OptionError: the output lies in a store, or already has files at the place of a result;
    VolumeError, OSError, DamageError, SettingsError, OutputError."""
    if output is not None:
        for source in options.sources():
            _prepare(output, source.source, Path(source.root))
        output.clear_aside()
    # Either the tasks write to the output themselves, or their files are sent to the driver.
    shared = output if output is not None and output.shared else None
    carried_to = output if shared is None else None
    planned = plan_tasks(options)
    # First, in a separate task: a store that is read over HTTP has the state that was settled when its task began.
    volumes = runner(volume_of, planned)
    tasks = [
        BuildTask(
            of=replace(task, committed=volume.bound),
            settings=tuple((settings or {}).items()),
            lag_ms=lag_ms,
            token=uuid.uuid4().hex,
            place=str(shared.folder) if isinstance(shared, FolderOutput) else None,
            keep=carried_to is not None,
        )
        for task, volume in zip(planned, volumes, strict=True)
    ]
    try:
        built = runner(partial(build, output=shared), tasks)
        if carried_to is not None:
            _carry(runner, carried_to, tasks, built)
    finally:
        if carried_to is not None:
            runner(forget, tasks)
    if output is not None:
        for task in tasks:
            output.remove(_claim(task.source))
    summaries = [replace(each.rebuilt, folder=_place(output, each.rebuilt.source)) for each in built]
    return {
        "job": "rebuild",
        "out": None if output is None else output.place,
        "volumes": [asdict(each) for each in summaries],
    }


def folder_name(source: str) -> str:
    """The place of a source's results in the output."""
    return source.strip("/").replace("/", "_")


def _place(output: Output | None, source: str) -> str | None:
    return None if output is None else f"{output.place}/{folder_name(source)}"


def _claim(source: str) -> str:
    return f"{_CLAIMS}/{folder_name(source)}"


def _prepare(output: Output, source: str, root: Path) -> None:
    """Checks that the place of the result is free. A claim marks the files of a killed run, which are removed."""
    if isinstance(output, FolderOutput) and output.folder.resolve().is_relative_to(root.resolve()):
        raise OptionError("out", f"{output.place} is within the store {root}")
    there = output.names(folder_name(source))
    if output.read(_claim(source)) is not None:
        for name in there:
            output.remove(name)
    elif there:
        raise OptionError("out", f"{output.place}/{folder_name(source)} is not empty")
    output.write(_claim(source), b"")


# -- a task ------------------------------------------------------------------------------------------------------------


def build(task: BuildTask, output: Output | None) -> Built:
    """Builds and compares one store's files, and moves them to the output, if it can be reached from here."""
    with _building(task) as folder:
        rebuilt, chosen = _built(task, folder)
        files: Files = []
        if task.keep:
            files = [(name, (folder / name).stat().st_size, _stretches(folder / name)) for name in _names(folder)]
            _kept_in(task).parent.mkdir(parents=True, exist_ok=True)
            folder.rename(_kept_in(task))
        elif task.place is not None:
            target = Path(task.place) / folder_name(task.source)
            for empty, _, _ in os.walk(target, topdown=False):
                Path(empty).rmdir()  # it had no files at the beginning
            folder.rename(target)
        elif output is not None:
            for name in _names(folder):
                with output.create(f"{folder_name(task.source)}/{name}.zst") as file:
                    for frame in _compressed(folder / name):
                        file.write(frame)
        return Built(rebuilt, chosen, files)


def _built(task: BuildTask, folder: Path) -> tuple[Rebuilt, StoreSettings]:
    for _ in range(_LOOKS):
        volume, chosen = volume_of(task.of), _chosen(task)
        stats = _made(volume, chosen, folder)
        comparison = compare(folder, Path(volume.root), _snapshot(volume, task.lag_ms, chosen.enableConsumeQueueExt))
        if _chosen(task) == chosen and (stats.end >= volume.bound or _log_begin(volume) <= volume.begin):
            return _rebuilt(volume, stats, comparison), chosen
        # Retention removed the beginning while it was read, so the files may be incomplete. Or the store is so new that
        # the first file that determines a size was created in the meantime.
        for path in folder.iterdir():
            shutil.rmtree(path)
    raise VolumeError(f"{task.of.of.root}: its files change faster than its log is read")


@contextmanager
def _building(task: BuildTask) -> Iterator[Path]:
    """A folder that is removed afterwards, unless it was renamed."""
    parent = None if task.place is None else Path(task.place) / ASIDE
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"rebuild-{task.token}-", dir=parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Stats:
    records: int = 0
    skipped: int = 0
    end: int = 0
    stopped: str | None = None


def _made(volume: Volume, chosen: StoreSettings, folder: Path) -> _Stats:
    """Builds queues and index in `folder`."""
    if len({file.entry_header_bytes for file in volume.files}) > 1:
        raise VolumeError(
            f"{volume.root}: a log that was continued in dledger's layout consists of two logs and cannot be rebuilt"
        )
    stats = _dispatched(volume, chosen, folder)
    _name_index_files(folder)
    return stats


def _chosen(task: BuildTask) -> StoreSettings:
    return overridden(_settings_of(Path(task.of.of.root)), dict(task.settings))


def _pinned(task: BuildTask, begin: int, bound: int) -> Volume:
    volume = open_volume(Path(task.of.of.root), task.source, bound)
    if (volume.begin, volume.bound) != (begin, bound):
        raise VolumeError(
            f"{volume.root} has [{volume.begin}, {volume.bound}) of its log, [{begin}, {bound}) is needed"
        )
    return volume


def _log_begin(volume: Volume) -> int:
    return next((file.start for file in volume.files if Path(file.path).exists()), volume.bound)


def _settings_of(root: Path) -> StoreSettings:
    """As `settings_of`, for an open store, whose newest index file may change during the read."""
    bring_folder(root / "index")
    chosen = settings_of(root)
    for _ in range(_LOOKS):
        geometry = geometry_of(sorted(root.glob("index/*")))
        if geometry is not None:
            return replace(chosen, maxHashSlotNum=geometry.slots, maxIndexNum=geometry.entries)
    return chosen


def _dispatched(volume: Volume, chosen: StoreSettings, folder: Path) -> _Stats:
    log_folder, entry_header_bytes = log_layout(Path(volume.root), chosen)
    dispatch = open_dispatch(_kernel.Door(), folder, log_folder, chosen, entry_header_bytes)
    dispatch.load()
    dispatch.start(volume.begin)
    stats = _Stats()
    while dispatch.position < volume.bound:
        before = dispatch.position
        _bring_log(volume, before)
        result = dispatch.run(volume.bound, _STEP_BYTES)
        stats.records, stats.skipped = stats.records + result.records, stats.skipped + len(result.skipped)
        stats.stopped = result.stopped
        if result.stopped is not None or dispatch.position == before:
            break
    stats.end = dispatch.position
    if stats.end < volume.bound and stats.stopped is None:
        stats.stopped = f"the log has nothing at {stats.end}"
    dispatch.write_out()
    dispatch.sync()
    return stats


def _bring_log(volume: Volume, pos: int) -> None:
    """The bytes that one step reads, and one record of the largest size."""
    for file in volume.files:
        begin, end = max(file.start, pos), min(file.end, pos + 2 * _STEP_BYTES, volume.bound)
        if file.start < pos:
            release(file.path, 0, min(file.end, pos) - file.start)
        if begin < end:
            try:
                bring(file.path, begin - file.start, end - file.start)
            except FileNotFoundError:
                return  # expired: the dispatcher will not find it either


def _snapshot(volume: Volume, lag_ms: int, extended: bool) -> Snapshot:
    settled = SETTLED if not (Path(volume.root) / "abort").exists() else last_store_ms(volume) - lag_ms
    return Snapshot(volume, settled, extended)


def _rebuilt(volume: Volume, stats: _Stats, found: Comparison) -> Rebuilt:
    return Rebuilt(
        source=volume.source,
        folder=None,
        records=stats.records,
        begin=volume.begin,
        end=stats.end,
        bound=volume.bound,
        stopped=stats.stopped,
        skipped=stats.skipped,
        files=found.same + len(found.differing) + len(found.missing),
        same=found.same,
        differing=found.differing,
        missing=found.missing,
        beyond=found.beyond,
        behind=found.behind,
        compared=found.compared(),
    )


def _name_index_files(folder: Path) -> None:
    """Named by the time of their first record, not of their creation: another attempt creates the same names."""
    last, renamed = "", []
    for path in sorted(folder.glob("index/*")):
        with path.open("rb") as file:
            begin_ms = IndexHeader(*INDEX_HEADER.unpack(file.read(INDEX_HEADER.size))).begin_timestamp_ms
        name = datetime.fromtimestamp(max(0, min(begin_ms, 253402300799999)) / 1000, UTC).strftime("%Y%m%d%H%M%S%f")[
            :17
        ]
        last = max(name, f"{int(last or 0) + 1:017d}")
        aside = path.with_name(f"new-{last}")
        path.rename(aside)
        renamed.append(aside)
    for path in renamed:
        path.rename(path.with_name(path.name.removeprefix("new-")))


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _blocks(path: Path, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, bytes) of the blocks of [begin, end) that are not all zeros; holes are not read."""
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        end = length if end is None else min(end, length)
        while begin < end:
            try:
                begin = max(begin, os.lseek(file.fileno(), begin, os.SEEK_DATA) // _BLOCK_BYTES * _BLOCK_BYTES)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return  # the rest is a hole
            if begin >= end:
                return
            block = os.pread(file.fileno(), min(_BLOCK_BYTES, end - begin), begin)
            if block != _ZEROS[: len(block)]:
                yield begin, block
            begin += _BLOCK_BYTES


def _stretches(path: Path) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    held = 0
    for at, block in _blocks(path):
        if not found or held + len(block) > PIECE_BYTES:
            found.append((at, at + len(block)))
            held = 0
        found[-1] = found[-1][0], at + len(block)
        held += len(block)
    return found


def _compressed(path: Path) -> Iterator[bytes]:
    """Frames of zstd: one after the other they make up the file."""
    codec = pa.Codec("zstd")
    with path.open("rb") as file:
        while block := file.read(_FRAME_BYTES):
            yield codec.compress(block, asbytes=True)


# -- through the driver ------------------------------------------------------------------------------------------------


def _carry(runner: Runner, output: Output, tasks: Sequence[BuildTask], built: Sequence[Built]) -> None:
    pieces = [
        Piece(task, each.chosen, each.rebuilt.begin, each.rebuilt.bound, name, begin, end)
        for task, each in zip(tasks, built, strict=True)
        for name, _, stretches in each.files
        for begin, end in stretches
    ]
    results = runner.stream(blocks_of, pieces)
    for task, each in zip(tasks, built, strict=True):
        for name, length, stretches in each.files:
            with output.create(f"{folder_name(task.source)}/{name}") as file:
                for _ in stretches:
                    for at, block in next(results):
                        file.seek(at)
                        file.write(block)
                file.truncate(length)


def blocks_of(piece: Piece) -> list[tuple[int, bytes]]:
    """Returns the parts of the piece that are not zeros. Builds the files again if another worker built them before."""
    kept = _kept_in(piece.task)
    if not kept.exists():
        with _building(piece.task) as folder:
            _made(_pinned(piece.task, piece.log_begin, piece.log_bound), piece.chosen, folder)
            kept.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(kept)
    return list(_blocks(kept / piece.name, piece.begin, piece.end))


def _kept_in(task: BuildTask) -> Path:
    return Path(tempfile.gettempdir()) / f"tally-rebuild-{task.token}" / folder_name(task.source)


def forget(task: BuildTask) -> None:
    """Removes the files that were kept for pieces. A worker's temporary folder is removed with the worker anyway."""
    shutil.rmtree(_kept_in(task).parent, ignore_errors=True)


# -- the report --------------------------------------------------------------------------------------------------------


def _rebuild_text(summary: Summary) -> str:
    lines = []
    for each in summary["volumes"]:
        place = f" into {each['folder']}" if each["folder"] else ""
        lines.append(f"{each['source']}: {each['records']:,} records up to {each['end']:,}{place}")
        lines.append(f"  {each['same']} of {each['files']} files are equal to those of the store")
        lines += [f"  differs: {name}" for name in each["differing"]]
        lines += [f"  not in the store: {name}" for name in each["missing"]]
        lines += [f"  behind: {count:,} {what}" for what, count in each["behind"].items()]
        compared = each["compared"]
        words = "every byte" if compared["to_the_byte"] else "the part below the bound that is not expired"
        counts = f"{compared['queue_units']:,} queue units, {compared['index_entries']:,} index entries"
        lines.append(f"  compared: {words}; {counts}")
        if each["stopped"]:
            lines.append(f"  stopped: {each['stopped']}")
    return "\n".join(lines)


def _verdict(summary: Summary) -> str:
    if any(each["stopped"] or each["skipped"] for each in summary["volumes"]):
        return DAMAGE
    return DIFFERENCES if any(each["differing"] or each["missing"] for each in summary["volumes"]) else CLEAN


def _figures(summary: Summary) -> dict[str, int]:
    volumes = summary["volumes"]
    return {
        "records": sum(each["records"] for each in volumes),
        "files": sum(each["files"] for each in volumes),
        "differing": sum(len(each["differing"]) + len(each["missing"]) for each in volumes),
    }


def _message(summary: Summary, figures: Mapping[str, int]) -> str:
    differ = f", {figures['differing']:,} differ" if figures["differing"] else ""
    return f"{figures['files']:,} files rebuilt of {figures['records']:,} records{differ}"


JOB = Job(
    name="rebuild",
    help="build queues and index from the log in another place, and compare them with those of the store",
    run=lambda call: run(call.options, call.runner, call.output, call.arguments["settings"]),
    text=_rebuild_text,
    figures=_figures,
    message=_message,
    arguments=(SETTINGS,),
    output=OutputUse.OPTIONAL,
    output_help="folder or s3://bucket/prefix for the result; without it the job only compares",
    verdict=_verdict,
)
