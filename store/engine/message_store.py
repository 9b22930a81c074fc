"""The message store of one node: a commit log, its derived files, and the services that maintain them.

    Writes, Connections -> Appender -> log segments -> Dispatcher -> ConsumeQueues, index
    Reads                           <- ConsumeQueues, index -> log bytes, copied once

The store only combines the parts; callers use the parts, and each makes its own decisions. `opening.py` opens the files
and `recovery.py` decides where the log ends after a start, `admission.py` decides whether puts are accepted,
`appender.py` when bytes are written and flushed, `durability.py` when that makes them safe, `dispatcher.py` when
derived files are updated, and `upkeep.py` what is flushed, created in advance and deleted periodically. Everything runs
on one event loop; threads wait for the disk.

Invariants: dispatched <= written; answered <= flushed (SYNC_FLUSH) or written (ASYNC_FLUSH); nothing behind the written
end is ever read. A store that refuses puts (full disk, failed flush) still serves every read.

With a replicated log (`replica.py`) the group decides instead of the disk (`group_commit.py`): dispatched, read and
answered <= committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tallystick.store._kernel import Door
from tallystick.store.engine.admission import Admission
from tallystick.store.engine.appender import Appender
from tallystick.store.engine.connections import Connections
from tallystick.store.engine.copies import Copies
from tallystick.store.engine.dispatcher import Dispatcher
from tallystick.store.engine.durability import LogParts, LogSource
from tallystick.store.engine.expiry import Expiry
from tallystick.store.engine.figures import Figures
from tallystick.store.engine.group_commit import GroupCommit, ReplicaLog
from tallystick.store.engine.index_repair import IndexRepair
from tallystick.store.engine.local_flush import LocalFlush
from tallystick.store.engine.lock import FolderLostError, StoreLock
from tallystick.store.engine.log_repair import LogRepair
from tallystick.store.engine.media import MediaWatch
from tallystick.store.engine.opening import Opened, check_settings, open_files
from tallystick.store.engine.own_log import OwnLog
from tallystick.store.engine.pace import Pace
from tallystick.store.engine.preallocation import Preallocator
from tallystick.store.engine.queue_repair import QueueRepair
from tallystick.store.engine.queues import Queues
from tallystick.store.engine.reads import Reads
from tallystick.store.engine.replica import Replica
from tallystick.store.engine.scrub import Scrub, Sealed
from tallystick.store.engine.timers import TOPIC as TIMER_TOPIC
from tallystick.store.engine.timers import Timers
from tallystick.store.engine.upkeep import Chore, Upkeep
from tallystick.store.engine.writes import Writes
from tallystick.store.finding_log import FindingLog
from tallystick.store.formats.message import Host, PutStatus
from tallystick.store.settings import SettingsInUse, StoreSettings

_FOLDER_INTERVAL_MS = 1000
_MEDIA_INTERVAL_MS = 500  # it compares two numbers, unless a read failed

_logger = logging.getLogger("tallystick.store")


class MessageStore:
    """One open store: owns its parts, their order at start and stop, and the lock of the folder.

    `open` creates it, `close` ends it. Call all methods, also those of the parts, on the event loop that opened it.
    """

    def __init__(self, opened: Opened, store_host: Host) -> None:
        self.findings = opened.findings
        """The faults found in the store's files, for people."""
        self.settings = settings = SettingsInUse.of(opened.settings)
        """The settings; `change_settings` changes this object, which all parts have."""
        self.door = opened.door
        self.root = settings.root
        self.recovered = recovered = opened.recovered
        self.store_host = store_host
        self.log = log = opened.log
        self.threads = threads = opened.threads
        self._lock = opened.lock
        self._dispatch = dispatch = opened.dispatch
        entry_header_bytes = opened.source.entry_header_bytes
        self.connections = Connections(log)
        self.dispatcher = Dispatcher(dispatch, threads.dispatch, threads.upkeep, settings.dispatchMaxBytes)
        self._pace = pace = Pace()
        parts = LogParts(settings, log, dispatch, self.dispatcher, recovered, self.connections.deliver)
        self.durability = opened.source.durability(parts)
        preallocator = Preallocator(self.door, settings, recovered.end_pos)
        self.appender = Appender(
            log,
            settings,
            self.durability,
            deliver=self.connections.deliver,
            on_written=preallocator.reach,
            on_idle=lambda: self.admission.look_again(),
            pace=pace,
        )
        self.connections.on_staged = self.appender.kick
        self.media = MediaWatch(self.findings, settings.root, settings.log_folder, settings.mappedFileSizeCommitLog)
        self.upkeep = Upkeep(
            settings,
            self.door,
            log,
            dispatch,
            self.durability,
            threads,
            recovered,
            preallocator,
            pace,
            on_disk_checked=lambda: self.admission.look_again(),
        )
        self._make_repairs()
        self.scrub = self._new_scrub(entry_header_bytes)
        self.admission = Admission(settings, log, self.durability, self.appender, self.dispatcher, self.upkeep)
        self.writes = Writes(
            log,
            self.admission,
            self.appender,
            self.durability,
            store_host,
            took=lambda ms, status: self.figures.put_times.add(ms, acknowledged=status is PutStatus.PUT_OK),
        )
        self.reads = Reads(
            settings,
            log,
            dispatch,
            self.dispatcher,
            self.durability,
            media=self.media,
            queue_repair=self.queue_repair,
            index_repair=self.index_repair,
            log_repair=self.log_repair,
            entry_header_bytes=entry_header_bytes,
            min_pos=self._first_pos,
        )
        self.queues = Queues(log, dispatch, self.dispatcher, self.appender, self.upkeep)
        self._make_expiry_and_figures(entry_header_bytes)
        self.timers = self._make_timers() if settings.timerWheelEnable else None

    def _make_expiry_and_figures(self, entry_header_bytes: int) -> None:
        self.expiry = Expiry(self._dispatch, self.threads, self.upkeep.age_now_ms)
        self.figures = Figures(
            self.settings,
            self.log,
            self._dispatch,
            self.dispatcher,
            self.durability,
            self.reads,
            self.upkeep,
            entry_header_bytes=entry_header_bytes,
        )

    def _make_timers(self) -> Timers:
        """The messages that wait for their time. A store with `timerWheelEnable=false` has none of this."""
        timers = Timers(self.settings, self.door, self._dispatch, self.threads, self.findings, self._first_pos)
        self.dispatcher.on_progress = timers.dispatched
        self.log_repair.on_derived = timers.derived_again
        self.upkeep.timers = timers
        return timers

    def _make_repairs(self) -> None:
        settings, dispatch, dispatcher, durability = self.settings, self._dispatch, self.dispatcher, self.durability
        self.queue_repair = QueueRepair(settings, dispatch, dispatcher, self.media, self.findings, self._first_pos)
        self.index_repair = IndexRepair(
            settings,
            dispatch,
            dispatcher,
            durability,
            self.threads,
            self.findings,
            min_pos=self._first_pos,
            message_at=lambda pos: self.reads.message_at(pos),
        )
        self.log_repair = LogRepair(
            settings,
            dispatch,
            dispatcher,
            durability,
            self.threads,
            self.media,
            self.findings,
            self.queue_repair,
            is_open=lambda: self.admission.is_open,
        )

    def _first_pos(self) -> int:
        return self.upkeep.min_pos

    def _new_scrub(self, entry_header_bytes: int) -> Scrub:
        settings = self.settings
        return Scrub(
            settings.root,
            self.door,
            self._dispatch,
            self.findings,
            self.media,
            self._sealed,
            self.threads.scrub,
            log_folder=settings.log_folder,
            segment_bytes=settings.mappedFileSizeCommitLog,
            entry_header_bytes=entry_header_bytes,
            bytes_per_second=settings.scrubBytesPerSecond,
            repair=self.queue_repair.repair,
            index_again=self.index_repair.make_again,
        )

    @classmethod
    async def open(
        cls,
        settings: StoreSettings,
        *,
        store_host: Host,
        cluster: str = "DefaultCluster",
        region: str = "DefaultRegion",
        trace_on: bool = True,
        door: Door | None = None,
        replica: Replica | None = None,
        lock: StoreLock | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        findings: FindingLog | None = None,
    ) -> MessageStore:
        """Locks the folder, recovers its files, dispatches the rest of the log and starts all services.

        `cluster` is added to every message that arrives through `Connections.feed`, `region` and `trace_on` to its
        answer. With `replica`, the log and these three come from the replica, and the store begins as a follower: see
        `GroupCommit`. `lock`: the lock of this folder, taken before the replica's log was recovered; it is
        released with the store, or if this method fails. `on_progress(pos, end)` is called on another thread with the
        position of recovery in the log and the position where it will end. `findings`: of the process; gets all faults
        that recovery and later checks find. Raises SettingsError if a setting cannot be used, StoreLockedError if
        another process has the store open, DamageError if a file has an invalid form; OSError.
        """
        door = door or Door()
        source: LogSource
        if replica is None:
            source = OwnLog(settings, door, store_host=store_host, cluster=cluster, region=region, trace_on=trace_on)
        else:
            source = ReplicaLog(replica)
        check_settings(settings, is_replicated=source.is_replicated)
        findings = findings or FindingLog(settings.root)
        opened = await open_files(settings, door, source, findings, lock=lock, on_progress=on_progress)
        try:
            store = cls(opened, store_host)
            await opened.threads.run_upkeep(store._open_timers)
        except BaseException:
            opened.threads.shutdown()
            opened.lock.release()
            raise
        store._start()
        return store

    def _open_timers(self) -> None:
        if self.timers is not None:
            self.timers.open()
            return
        first, end = self._dispatch.offsets(TIMER_TOPIC.encode(), 0)
        if end > first:
            _logger.warning(
                "timerWheelEnable is false: messages in %s that still wait for their time are not delivered, and"
                " nothing keeps their segments (%d messages, delivered ones included)",
                TIMER_TOPIC,
                end - first,
            )

    def _start(self) -> None:
        self.appender.start()
        self.dispatcher.start()
        self.upkeep.start(
            (
                Chore("check-folder", lambda: _FOLDER_INTERVAL_MS, self.check_folder),
                Chore("look-at-media", lambda: _MEDIA_INTERVAL_MS, self.log_repair.look),
            ),
            {"scrub": self.scrub.run(), "look-at-index": self.index_repair.look_at_all()},
        )
        if self.timers is not None:
            self.timers.start()
        self.durability.start(self.admission)

    async def close(self) -> None:
        """Refuses new puts, writes, flushes and dispatches the rest, and marks the shutdown as clean."""
        if not self.admission.is_open:
            return
        self.admission.close()
        await self.log_repair.close()
        await self.queue_repair.close()
        await self.index_repair.close()
        try:
            await self.upkeep.stop()
            await self.appender.close()
            await self.dispatcher.close()
            if self.timers is not None:
                await self.timers.stop()
            orderly = self.appender.failure is None and self.dispatcher.failure is None
            await self.threads.run_upkeep(lambda: self.upkeep.finish(orderly))
        finally:
            self.threads.shutdown()
            self._lock.release()

    async def check_folder(self) -> None:
        """Checks that the store's folder was not removed or replaced."""
        if not self.admission.is_open or isinstance(self.appender.failure, FolderLostError):
            return
        try:
            await asyncio.to_thread(self._lock.check)
        except FolderLostError as error:
            self.appender.fail(error)

    def change_settings(self, changed: StoreSettings) -> None:
        """Uses other settings from now on. The caller has checked them; only settings that can be changed differ."""
        self.settings.take(changed)
        self.log.set_max_message_bytes(changed.maxMessageSize)
        for part in (self.appender, self.upkeep, self.reads):
            part.settings_changed()
        self._pace.wake()

    async def flush(self) -> None:
        """Returns when all earlier puts are durable. Raises OSError if that is impossible."""
        await self.upkeep.sync_inherited()
        await self.appender.flush()

    def _sealed(self) -> Sealed:
        """Segments that are full, durable, dispatched and committed."""
        end = min(self.readable_end, self.log.flushed, self._dispatch.position)
        return Sealed(self.min_pos, end - end % self.settings.mappedFileSizeCommitLog)

    @property
    def group(self) -> GroupCommit:
        """What a group decides about its log. Only for a store that was opened with a replica."""
        assert isinstance(self.durability, GroupCommit), "the store was opened with a replica"
        return self.durability

    @property
    def copies(self) -> Copies | None:
        """What slaves have of the log, and may get; None in a replicated group, which has members instead."""
        return self.durability.copies if isinstance(self.durability, LocalFlush) else None

    # -- positions in the log ------------------------------------------------------------------------------------------

    @property
    def min_pos(self) -> int:
        """Position of the first byte of the log that is not deleted."""
        return self.upkeep.min_pos

    @property
    def readable_end(self) -> int:
        """The end of the part of the log that is dispatched and served: the written or the committed end (R4)."""
        return self.durability.readable_end

    @property
    def max_pos(self) -> int:
        """Position where the readable part of the log ends."""
        return self.durability.readable_end

    @property
    def flushed_pos(self) -> int:
        """All bytes of the log before this position are on the disk."""
        return self.log.flushed

    @property
    def staged_pos(self) -> int:
        """Position where the log ends, with what is not written yet."""
        return self.log.staged

    @property
    def dispatched_pos(self) -> int:
        """All messages before this position are in ConsumeQueues and index."""
        return self._dispatch.position
