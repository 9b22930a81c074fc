"""Opens the files of a store: locks the folder, recovers log, queues and index, and opens the log for appends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.store.engine import abort
from tallystick.store.engine.lock import StoreLock
from tallystick.store.engine.recovery import Recovered, RecoveryError, open_dispatch, recover
from tallystick.store.engine.restoring import why_incomplete
from tallystick.store.engine.threads import Threads
from tallystick.store.settings import SettingsError, StoreSettings, refuse_unsupported

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, Door, Log
    from tallystick.store.engine.durability import LogSource
    from tallystick.store.finding_log import FindingLog


@dataclass(frozen=True, slots=True)
class Opened:
    """The files of a store that were opened, and the threads on which they were recovered."""

    settings: StoreSettings
    door: Door
    source: LogSource
    lock: StoreLock
    threads: Threads
    findings: FindingLog
    dispatch: Dispatch
    recovered: Recovered
    log: Log


def check_settings(settings: StoreSettings, *, is_replicated: bool) -> None:
    """Raises SettingsError if a setting cannot be used."""
    settings.validate()
    refuse_unsupported(settings)
    if settings.enableDLegerCommitLog != is_replicated:
        raise SettingsError("enableDLegerCommitLog", "must be true with a replicated log, and only then")


async def open_files(
    settings: StoreSettings,
    door: Door,
    source: LogSource,
    findings: FindingLog,
    *,
    lock: StoreLock | None,
    on_progress: Callable[[int, int], None] | None,
) -> Opened:
    """See `MessageStore.open` for arguments and errors. The lock is released if this function fails."""
    root, log_folder = settings.root, settings.log_folder
    if reason := why_incomplete(root):
        raise RecoveryError(root, reason)
    for folder in (root, log_folder):
        door.mkdir(str(folder))
        door.keep_fs(str(folder))
    lock = lock or StoreLock.acquire(root, door)
    threads = Threads()
    try:
        dispatch = open_dispatch(door, root, log_folder, settings, source.entry_header_bytes)
        kept = source.kept

        def run() -> Recovered:
            recovered = recover(root, settings, dispatch, door, kept=kept, on_progress=on_progress, findings=findings)
            source.sync_inherited(recovered)
            return recovered

        recovered = await asyncio.get_running_loop().run_in_executor(threads.dispatch, run)
        # Only now: recovery needs to know how the last stop was. After a clean shutdown it changes nothing.
        abort.mark_open(root, door)
        log = source.open(recovered)
        for topic, queue_id, _, max_offset, _, _ in dispatch.queues():
            log.set_next_offset(topic, queue_id, max_offset)
    except BaseException:
        threads.shutdown()
        lock.release()
        raise
    return Opened(settings, door, source, lock, threads, findings, dispatch, recovered, log)
