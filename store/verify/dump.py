"""Lists the content of a store in the same form as RocketMQ's classes, to prove that both read a store equally.

The store is opened as by a broker (load, recovery, dispatch), by default on a copy, because opening a store changes it.
The listing has the form of `opened` in the golden data: the state right after recovery, every message with all its
fields, every filler, every queue with its units, and the answers of a slave to queries by key, by time and by offset (a
slave does not correct offsets that are out of range).

The sizes of files are determined from the files; other settings (the delay levels) come from the settings.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tallystick.store._kernel import Door
from tallystick.store.engine.lock import StoreLock
from tallystick.store.engine.recovery import Recovered, log_layout, open_dispatch, recover
from tallystick.store.engine.restoring import check_complete
from tallystick.store.formats.file_sizes import FileSizes
from tallystick.store.formats.ledger_format import UNIT_BYTES, IndexUnit
from tallystick.store.formats.mapped import ReadMap
from tallystick.store.formats.queue_format import INDEX_HEADER, IndexGeometry
from tallystick.store.formats.segment_files import SegmentFiles
from tallystick.store.settings import BrokerRole, FlushDiskType, SettingsError, StoreSettings
from tallystick.store.verify.listing import Json, Listing, after_load


def dump(root: Path, overrides: Mapping[str, str] | None = None, *, in_place: bool = False) -> Json:
    """The listing of the store in `root`: {"format", "settings", "opened"}.

    `overrides`: settings by RocketMQ's names, as text; they take precedence over values from the files. `in_place`:
    opens the store itself, which recovers it. Raises SettingsError, StoreLockedError, IncompleteStoreError,
    RecoveryError, DamageError or OSError if the store cannot be opened.
    """
    check_complete(root)
    with ExitStack() as stack:
        door = Door()
        if in_place:
            stack.callback(StoreLock.acquire(root, door).release)
        else:
            root = stack.enter_context(_copy_of(root))
        chosen = overridden(settings_of(root), overrides or {})
        log_folder, entry_header_bytes = log_layout(root, chosen)
        dispatch = open_dispatch(door, root, log_folder, chosen, entry_header_bytes)
        committed = committed_end(log_folder) if entry_header_bytes else None
        loaded: Json = {}

        def on_loaded(found: Recovered) -> None:
            loaded.update(after_load(dispatch, found.min_pos, found.end_pos if committed is None else committed))

        found = recover(root, chosen, dispatch, door, on_loaded=on_loaded)
        dispatch.write_out()
        # Only now: recovery removes and truncates segments.
        log = stack.enter_context(SegmentFiles(log_folder, chosen.mappedFileSizeCommitLog))
        listing = Listing(chosen, dispatch, found, log, entry_header_bytes, committed)
        return {"format": 1, "settings": _settings_json(chosen), "opened": listing.opened(loaded)}


def settings_of(root: Path) -> StoreSettings:
    """Settings for the store in `root`: its folders, and the sizes of its files."""
    ledger = next(iter(sorted(root.glob("dledger-*/data"))), None)
    changes: dict[str, Any] = {"storePathRootDir": str(root), "storePathCommitLog": str(root / "commitlog")}
    if ledger is not None:
        changes |= {"enableDLegerCommitLog": True, "dLegerSelfId": ledger.parent.name.removeprefix("dledger-")}
    sizes = FileSizes.of(root)
    extension_bytes = sizes.extension_bytes
    if sizes.log_segment_bytes:
        changes["mappedFileSizeCommitLog"] = sizes.log_segment_bytes
    if sizes.queue_segment_bytes:
        changes["mappedFileSizeConsumeQueue"] = sizes.queue_segment_bytes
    if sizes.index is not None:
        return replace(
            _with_extension(StoreSettings(), extension_bytes),
            **changes,
            maxHashSlotNum=sizes.index.slots,
            maxIndexNum=sizes.index.entries,
        )
    for path in sorted(root.glob("index/*")):
        if path.stat().st_size < INDEX_HEADER.size:
            continue
        with ReadMap(path) as data:
            geometry = IndexGeometry.of_file(data)
        if geometry is not None:
            changes |= {"maxHashSlotNum": geometry.slots, "maxIndexNum": geometry.entries}
            break
    return replace(_with_extension(StoreSettings(), extension_bytes), **changes)


def _with_extension(settings: StoreSettings, file_bytes: int | None) -> StoreSettings:
    if not file_bytes:
        return settings
    return replace(settings, enableConsumeQueueExt=True, mappedFileSizeConsumeQueueExt=file_bytes)


def overridden(settings: StoreSettings, overrides: Mapping[str, str]) -> StoreSettings:
    """`settings` with values given as text. Raises SettingsError for one that is unknown or wrong."""
    kinds = {item.name: str(item.type) for item in fields(settings)}
    changes: dict[str, Any] = {}
    for key, text in overrides.items():
        try:
            match kinds.get(key):
                case None:
                    raise SettingsError(key, "there is no such setting")
                case "int":
                    changes[key] = int(text)
                case "float":
                    changes[key] = float(text)
                case "bool":
                    changes[key] = {"true": True, "false": False}[text.lower()]
                case "FlushDiskType":
                    changes[key] = FlushDiskType[text]
                case "BrokerRole":
                    changes[key] = BrokerRole[text]
                case _:
                    changes[key] = text
        except (ValueError, KeyError) as error:
            if isinstance(error, SettingsError):
                raise
            raise SettingsError(key, f"must be {kinds[key]}, not {text!r}") from error
    chosen = replace(settings, **changes)
    chosen.validate()
    return chosen


def _settings_json(settings: StoreSettings) -> Json:
    names = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
    more = (
        "enableConsumeQueueExt",
        "mappedFileSizeConsumeQueueExt",
        "bitMapLengthConsumeQueueExt",
        "messageDelayLevel",
    )
    ledger = settings.dLegerSelfId if settings.enableDLegerCommitLog else None
    return {name: getattr(settings, name) for name in (*names, *more, "messageDelayLevel")} | {"dledger": ledger}


@contextmanager
def _copy_of(root: Path) -> Iterator[Path]:
    """A copy in a temporary folder. It keeps holes, and modification times, because a search by time uses them."""
    with tempfile.TemporaryDirectory(prefix="tally-dump-") as folder:
        target = Path(folder) / "store"
        shutil.copytree(root, target, copy_function=_copy_sparse)
        yield target


def _copy_sparse(source: str, target: str) -> None:
    block_bytes = 1 << 16
    with Path(source).open("rb") as reader, Path(target).open("wb") as writer:
        while block := reader.read(block_bytes):
            if block.strip(b"\0"):
                writer.write(block)
            else:
                writer.seek(len(block), os.SEEK_CUR)
        writer.truncate(writer.tell())
    shutil.copystat(source, target)


def committed_end(log_folder: Path) -> int | None:
    """The commit position in dledger's own checkpoint; None without such a file, or if it contains no entry.

    RocketMQ opens a member of a group with the log below it. The rest follows when the group has a leader.
    """
    try:
        text = (log_folder.parent / "checkpoint").read_text()
    except FileNotFoundError:
        return None
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    committed_index = int(fields.get("committedIndex", -1))
    with SegmentFiles(log_folder.parent / "index") as index:
        data = index.read(committed_index * UNIT_BYTES, UNIT_BYTES) if committed_index >= 0 else None
    if data is None:
        return None
    unit = IndexUnit.decode(data)
    return unit.pos + unit.size
