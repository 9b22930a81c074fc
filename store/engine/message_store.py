"""The message store of one node: a commit log, its derived files, and the services that maintain them.

    put, feed -> Appender -> log segments -> Dispatcher -> ConsumeQueues, index
    get, query                <- ConsumeQueues, index -> log bytes, copied once

The engine combines the parts; each part makes its own decisions. `appender.py` decides when bytes are written, flushed
and answered, `dispatcher.py` when derived files are updated, `upkeep.py` what is flushed, created in advance and
deleted periodically, and `recovery.py` where the log ends after a start. Everything runs on one event loop; threads
wait for the disk.

Invariants: dispatched <= written; answered <= flushed (SYNC_FLUSH) or written (ASYNC_FLUSH); nothing behind the written
end is ever read. A store that refuses puts (full disk, failed flush) still serves every read.

With a replicated log (`replica.py`) the group decides instead of the disk: dispatched, read and answered <= committed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tallystick.store._kernel import DamageError, Dispatch, Door, Log
from tallystick.store._kernel import key_hash as index_key_hash
from tallystick.store.clock import wall_ms
from tallystick.store.engine import abort
from tallystick.store.engine.appender import Answers, Appender
from tallystick.store.engine.dispatcher import Dispatcher
from tallystick.store.engine.index_repair import IndexRepair
from tallystick.store.engine.inherited import sync_files
from tallystick.store.engine.lock import FolderLostError, StoreLock
from tallystick.store.engine.media import MediaWatch
from tallystick.store.engine.queue_repair import QueueRepair
from tallystick.store.engine.recovery import KeptLog, Recovered, open_dispatch, recover
from tallystick.store.engine.replica import Replica
from tallystick.store.engine.scrub import Scrub, Sealed, idle_io_priority
from tallystick.store.engine.upkeep import Upkeep
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import FindingKind
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES
from tallystick.store.formats.message import (
    GetResult,
    GetStatus,
    Host,
    Message,
    MessageBatch,
    PutResult,
    PutStatus,
    QueryResult,
)
from tallystick.store.formats.message_id import encode_message_id
from tallystick.store.formats.properties import CLUSTER
from tallystick.store.formats.record import store_timestamp
from tallystick.store.settings import BrokerRole, FlushDiskType, SettingsError, StoreSettings

_logger = logging.getLogger("tallystick.store")

# The store refuses these settings instead of ignoring them: a user who sets them relies on a second copy.
_REFUSED = (("duplicationEnable", False), ("haMasterAddress", ""))
_USE_A_GROUP = "use a replicated group (enableDLegerCommitLog) for copies on other machines"
# One read compares at most so many wrong places with the log; the reader returns for the rest.
_MOST_LOOKS = 256
_PLACED_BYTES = 36
"""Size of the head of a record, up to and including its position."""
T = TypeVar("T")
_GET_STATUSES = tuple(GetStatus)


class MessageStore:
    """One open store. `open` creates it, `close` ends it. Call all methods on the event loop that opened it."""

    def __init__(
        self,
        settings: StoreSettings,
        door: Door,
        lock: StoreLock,
        log: Log,
        dispatch: Dispatch,
        recovered: Recovered,
        store_host: Host,
        executor: ThreadPoolExecutor,
        replica: Replica | None = None,
        findings: FindingLog | None = None,
    ) -> None:
        self.findings = findings or FindingLog(settings.root)
        """The faults found in the store's files, for people."""
        self.settings = settings
        self.replica = replica
        self._committed = recovered.committed_pos
        self._serving = replica is None
        self._group_refusal: str | None = None
        self._count_from: dict[tuple[str, int], int] = {}
        self.door = door
        self.root = settings.root
        self.recovered = recovered
        self.store_host = store_host
        self.log = log
        self._lock = lock
        self._dispatch = dispatch
        self._executor = executor
        self._upkeep_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="upkeep")
        self._scrub_executor = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="scrub", initializer=idle_io_priority
        )
        self._writers: dict[int, Callable[[bytes], None]] = {}
        self._open = True
        self._hot = False
        self._no_segment: tuple[OSError, int] | None = None  # why the log could not grow beyond this position
        self._damaged = 0
        self._waits_for_repair: set[tuple[str, int]] = set()
        self._deriving: set[asyncio.Task[None]] = set()
        self.dispatcher = Dispatcher(dispatch, executor, self._upkeep_executor, settings.dispatchMaxBytes)
        self.appender = Appender(
            log,
            settings,
            deliver=self.deliver,
            on_written=self._on_written,
            on_idle=self.look_again,
            replica=replica,
        )
        self.media = MediaWatch(self.findings, settings.root, settings.log_folder, settings.mappedFileSizeCommitLog)
        self.queue_repair = QueueRepair(self, dispatch)
        self.index_repair = IndexRepair(self, dispatch, self._scrub_executor)
        self.scrub = Scrub(
            settings.root,
            door,
            dispatch,
            self.findings,
            self.media,
            self._sealed,
            self._scrub_executor,
            log_folder=settings.log_folder,
            segment_bytes=settings.mappedFileSizeCommitLog,
            entry_header_bytes=0 if replica is None else ENTRY_HEADER_BYTES,
            bytes_per_second=settings.scrubBytesPerSecond,
            repair=self.queue_repair.repair,
            index_again=self.index_repair.make_again,
        )
        self.upkeep = Upkeep(self, dispatch, recovered)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._memory_bytes = memory * settings.accessMessageInMemoryMaxRatio // 100
        self._limits = (
            settings.maxTransferBytesOnMessageInMemory,
            settings.maxTransferCountOnMessageInMemory,
            settings.maxTransferBytesOnMessageInDisk,
            settings.maxTransferCountOnMessageInDisk,
        )
        self._correct_offsets = settings.brokerRole is not BrokerRole.SLAVE or settings.offsetCheckInSlave

    # -- life ----------------------------------------------------------------------------------------------------------

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

        `cluster` is added to every message that arrives through `feed`, `region` and `trace_on` to its answer. With
        `replica`, the log and these three come from the replica, and the store begins as a follower: see `commit`,
        `take_lead`, `serve`. `lock`: the lock of this folder, taken before the replica's log was recovered; it is
        released with the store, or if this method fails. `on_progress(pos, end)` is called on another thread with the
        position of recovery in the log and the position where it will end. `findings`: of the process; gets all faults
        that recovery and later checks find. Raises SettingsError if a setting cannot be used, StoreLockedError if
        another process has the store open, DamageError if a file has an invalid form; OSError.
        """
        settings.validate()
        for key, unset in _REFUSED:
            if getattr(settings, key) != unset:
                raise SettingsError(key, f"{getattr(settings, key)!r} is not supported: {_USE_A_GROUP}")
        if settings.brokerRole is BrokerRole.SYNC_MASTER:
            raise SettingsError("brokerRole", f"SYNC_MASTER is not supported: {_USE_A_GROUP}")
        if settings.enableDLegerCommitLog != (replica is not None):
            raise SettingsError("enableDLegerCommitLog", "must be true with a replicated log, and only then")
        door = door or Door()
        root = settings.root
        log_folder = settings.log_folder
        for folder in (root, log_folder):
            door.mkdir(str(folder))
            door.keep_fs(str(folder))
        lock = lock or StoreLock.acquire(root, door)
        findings = findings or FindingLog(root)
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dispatch")
        try:
            dispatch = open_dispatch(door, root, log_folder, settings, 0 if replica is None else ENTRY_HEADER_BYTES)
            kept = None if replica is None else KeptLog(replica.log.written, replica.committed_pos)
            recovered = await asyncio.get_running_loop().run_in_executor(
                executor,
                lambda: recover(root, settings, dispatch, door, kept=kept, on_progress=on_progress, findings=findings),
            )
            if kept is None and not recovered.clean and settings.flushDiskType is FlushDiskType.SYNC_FLUSH:
                await asyncio.get_running_loop().run_in_executor(executor, sync_files, door, log_folder)
            # Only now: recovery needs to know how the last stop was. After a clean shutdown it changes nothing.
            abort.mark_open(root, door)
            if replica is not None:
                log = replica.log
            else:
                log = Log(
                    door,
                    str(log_folder),
                    segment_bytes=settings.mappedFileSizeCommitLog,
                    max_message_bytes=settings.maxMessageSize,
                    store_host=store_host.encode(),
                    suffix=f"{CLUSTER}\x01{cluster}\x02".encode(),
                    region=region,
                    trace_on=trace_on,
                )
                log.start(recovered.end_pos, recovered.store_timestamp_ms)
            for topic, queue_id, _, max_offset, _, _ in dispatch.queues():
                log.set_next_offset(topic, queue_id, max_offset)
            store = cls(settings, door, lock, log, dispatch, recovered, store_host, executor, replica, findings)
        except BaseException:
            executor.shutdown()
            lock.release()
            raise
        store._start()
        return store

    def _start(self) -> None:
        self.appender.start()
        self.dispatcher.start()
        self.upkeep.start()
        if self.replica is not None:
            self.dispatcher.advance(self._committed)
        self.set_hot(self._serving)

    async def close(self) -> None:
        """Refuses new puts, writes, flushes and dispatches the rest, and marks the shutdown as clean."""
        if not self._open:
            return
        self._open = False
        self.log.set_hot(False)
        await asyncio.gather(*self._deriving, return_exceptions=True)
        await self.queue_repair.close()
        await self.index_repair.close()
        try:
            await self.upkeep.stop()
            await self.appender.close()
            await self.dispatcher.close()
            orderly = self.appender.failure is None and self.dispatcher.failure is None
            await self.run_upkeep(lambda: self.upkeep.finish(orderly))
        finally:
            self._executor.shutdown()
            self._upkeep_executor.shutdown()
            self._scrub_executor.shutdown()
            self._lock.release()

    def _sealed(self) -> Sealed:
        """Segments that are full, durable, dispatched and committed."""
        end = min(self.readable_end, self.log.flushed, self._dispatch.position)
        return Sealed(self.min_pos, end - end % self.settings.mappedFileSizeCommitLog)

    def set_hot(self, hot: bool) -> None:
        """Sets whether the kernel stores plain sends itself. It never does while puts are refused."""
        self._hot = hot
        self.log.set_hot(hot and self._open and self.writable and not self.is_busy)

    def look_again(self) -> None:
        """Checks again whether puts are refused."""
        self.set_hot(self._hot)

    async def check_folder(self) -> None:
        """Checks that the store's folder was not removed or replaced."""
        if not self._open or isinstance(self.appender.failure, FolderLostError):
            return
        try:
            await asyncio.to_thread(self._lock.check)
        except FolderLostError as error:
            self.appender.fail(error)

    async def flush(self) -> None:
        """Returns when all earlier puts are durable. Raises OSError if that is impossible."""
        await self.upkeep.sync_inherited()
        await self.appender.flush()

    async def run_between_turns(self, work: Callable[[], T]) -> T:
        """Runs `work` on the dispatch thread, so that nothing is dispatched meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def run_upkeep(self, work: Callable[[], T]) -> T:
        """Runs `work` on the thread that writes and syncs derived files; dispatch continues meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._upkeep_executor, work)

    # -- connections that use `feed` -----------------------------------------------------------------------------------

    def attach(self, born_host: Host, write: Callable[[bytes], None]) -> int:
        """Adds a connection whose bytes go to `feed`. `write` gets the answers that the log creates itself."""
        connection = self.log.connect(born_host.encode())
        self._writers[connection] = write
        return connection

    def detach(self, connection: int) -> None:
        """The connection is closed: drops answers that still wait for the disk."""
        self.log.disconnect(connection)
        self._writers.pop(connection, None)

    def feed(self, connection: int, chunk: bytes) -> tuple[list[tuple[int, bytes, bytes]] | None, str | None]:
        """Stores the plain sends among the frames of a chunk. Returns the other frames, and why the stream is invalid,
        if it is."""
        served, cold, fault = self.log.feed(connection, chunk, wall_ms())
        if served:
            self.appender.kick()
        return cold, fault

    def unfinished(self, connection: int) -> int:
        """Number of bytes that are kept of this connection's incomplete frame."""
        return self.log.unfinished(connection)

    def deliver(self, answers: Answers) -> None:
        """Writes answers of the kernel's log to their connections; skips closed ones. A replicated log that drops
        staged records also uses it."""
        for connection, data in answers:
            write = self._writers.get(connection)
            if write is not None:
                write(data)

    def _on_written(self, written: int) -> None:
        if self.replica is None:
            self.dispatcher.advance(written)
        self.upkeep.on_written(written)

    # -- a replicated log ----------------------------------------------------------------------------------------------

    @property
    def readable_end(self) -> int:
        """The end of the part of the log that is dispatched and served: the written or the committed end (R4)."""
        return self.log.written if self.replica is None else min(self._committed, self.log.written)

    def commit(self, pos: int) -> None:
        """The group has committed the log up to `pos`: dispatches it for reads, and answers the waiting senders."""
        self._committed = max(self._committed, pos)
        self.dispatcher.advance(self.readable_end)
        self.appender.commit(pos)

    def take_lead(self, term: int) -> None:
        """This member leads from now on: it appends entries of `term` behind all entries of the log, committed or not
        (B3). `serve` enables puts. Raises EntryError if the log is damaged."""
        assert self.replica is not None
        # The order matters: records that are dispatched meanwhile are read twice, and none is omitted.
        first_index = self.replica.first_index_behind(self._dispatch.position)
        self.log.reset_offsets()
        for (name, queue_id), offset in self._count_from.items():
            self.log.set_next_offset(name.encode(), queue_id, offset)
        for topic, queue_id, _, max_offset, _, _ in self._dispatch.queues():
            if max_offset > 0:
                self.log.set_next_offset(topic, queue_id, max_offset)
        self.log.take_offsets(first_index)
        self.log.set_term(term)

    def count_from(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Queues without records continue at these offsets: their records were before the start of this log (L11)."""
        self._count_from = dict(ends)

    def ends_before(self, pos: int) -> dict[tuple[str, int], int]:
        """The next offsets of queues without a record at or behind `pos`, by topic and queue id."""
        ends = dict(self._count_from)
        for topic, queue_id, _, max_offset, _, max_pos in self._dispatch.queues():
            if max_offset > 0 and max_pos <= pos:
                ends[topic.decode(), queue_id] = max_offset
            elif max_offset > 0:
                ends.pop((topic.decode(), queue_id), None)
        return ends

    def serve(self, serving: bool) -> None:
        """Sets whether this member accepts puts: a leader that is ready does (S11)."""
        self._serving = serving
        self.set_hot(serving)

    def refuse_messages(self, reason: str | None) -> None:
        """Sets why the group of this leader has too little room for messages; None if it has enough. Other entries are
        not affected."""
        if reason != self._group_refusal:
            self._group_refusal = reason
            self.look_again()

    def give_up(self, code: int, status: PutStatus) -> None:
        """Leadership is lost: answers all that wait for a commit with `code` or `status` for "outcome unknown" (B2)."""
        self.serve(False)
        self.appender.give_up(code, status)

    def take_repaired(self, pos: int, end: int) -> Awaitable[None]:
        """The bytes [pos, end) of the log were damaged and are sound now: reads them from the disk again, and adds
        missing records to queues and index. The result is done afterwards; errors are reported."""
        segment_bytes = self.settings.mappedFileSizeCommitLog
        for start in range(pos - pos % segment_bytes, end, segment_bytes):
            self._dispatch.forget_log_segment(start)
        task = asyncio.get_running_loop().create_task(self._derive_again(pos, end), name="derive-again")
        self._deriving.add(task)
        task.add_done_callback(self._deriving.discard)
        return task

    async def _derive_again(self, pos: int, end: int) -> None:
        try:
            if self._open and pos < self._dispatch.position:
                await self.run_between_turns(lambda: self.queue_repair.derive_again(pos, end))
        except (OSError, DamageError) as error:
            _logger.error("queues cannot be compared with repaired bytes %d to %d of the log: %s", pos, end, error)
        self.dispatcher.advance(self.readable_end)
        waiting = list(self._waits_for_repair)
        self._waits_for_repair.clear()
        if waiting and self.on_arrival is not None:
            self.on_arrival(waiting)

    async def look_at_media(self) -> None:
        """Reports what reads could not get from the disk since the last call, and starts repairs where possible."""
        if not self.media.is_due:
            return
        ranges, index = await self.run_upkeep(self.media.look)
        if index:
            await self.run_between_turns(self.dispatcher.index_again)
            self.dispatcher.advance(self.readable_end)
            self.findings.add(FindingKind.REBUILT, self.root / "index", "a page of it could not be read")
        for pos, end in ranges:
            self.media.tell(pos, end)

    def forget_cut(self, was_end: int) -> None:
        """The log was truncated; before, it ended at `was_end`. Releases maps of segments that were replaced.

        Queues and index contain only committed records, which are never truncated (S7), so they do not change (B4)."""
        end = self.log.written
        assert self._dispatch.position <= end, "what was dispatched was committed"
        segment_bytes = self.settings.mappedFileSizeCommitLog
        for start in range(end - end % segment_bytes, was_end, segment_bytes):
            self._dispatch.forget_log_segment(start)

    # -- puts ----------------------------------------------------------------------------------------------------------

    async def put(self, message: Message) -> PutResult:
        """Appends one message. Returns when it is as durable as the settings and its WAIT property require."""
        refused = self._refused()
        if refused is not None:
            return refused
        try:
            pos, size, queue_offset, stored_ms = self.log.append(
                message.topic.encode(errors="surrogateescape"),
                message.queue_id,
                message.body,
                message.properties.encode(errors="surrogateescape"),
                now_ms=wall_ms(),
                born_timestamp=message.born_timestamp_ms,
                born_host=message.born_host.encode(),
                flag=message.flag,
                sys_flag=message.sys_flag,
                reconsume_times=message.reconsume_times,
                prepared_offset=message.prepared_transaction_offset,
                store_host=None if message.store_host is None else message.store_host.encode(),
            )
        except (ValueError, OSError) as error:
            return self._put_error(error)
        status = await self.appender.stored(pos + size, flushed=_waits(message.properties))
        message_id = encode_message_id(message.store_host or self.store_host, pos)
        return self._put_result(status, pos, size, queue_offset, message_id, stored_ms)

    async def put_batch(self, batch: MessageBatch) -> PutResult:
        """Appends all messages of a batch, or no message."""
        refused = self._refused()
        if refused is not None:
            return refused
        try:
            positions, size, queue_offset, stored_ms = self.log.append_batch(
                batch.topic.encode(errors="surrogateescape"),
                batch.queue_id,
                batch.body,
                batch.properties.encode(errors="surrogateescape"),
                now_ms=wall_ms(),
                born_timestamp=batch.born_timestamp_ms,
                born_host=batch.born_host.encode(),
                sys_flag=batch.sys_flag,
                reconsume_times=batch.reconsume_times,
            )
            end = self.log.staged
        except (ValueError, OSError) as error:
            return self._put_error(error)
        status = await self.appender.stored(end, flushed=_waits(batch.properties))
        ids = ",".join(encode_message_id(self.store_host, pos) for pos in positions)
        return self._put_result(status, positions[0], size, queue_offset, ids, stored_ms, len(positions))

    def _put_result(
        self,
        status: PutStatus,
        pos: int,
        size: int,
        queue_offset: int,
        message_id: str,
        stored_ms: int,
        count: int = 1,
    ) -> PutResult:
        if not status.stored:
            return PutResult(status, detail=self.trouble() or "the log could not be written")
        return PutResult(status, pos, size, queue_offset, message_id, stored_ms, count)

    def _put_error(self, error: ValueError | OSError) -> PutResult:
        if isinstance(error, OSError):
            self._no_segment = error, self.log.staged
            # Nothing was stored, and another member may have room.
            failed = PutStatus.CREATE_MAPEDFILE_FAILED if self.replica is None else PutStatus.SERVICE_NOT_AVAILABLE
            return PutResult(failed, detail=str(error))
        return PutResult(PutStatus.MESSAGE_ILLEGAL, detail=str(error))

    def _refused(self) -> PutResult | None:
        reason = self.refusal()
        if reason is not None:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, detail=reason)
        if self.is_busy:
            return PutResult(PutStatus.OS_PAGECACHE_BUSY, detail="the page cache does not accept writes in time")
        return None

    @property
    def is_busy(self) -> bool:
        """Whether a recent write to the log took longer than `osPageCacheBusyTimeOutMills`."""
        return self.appender.busy

    @property
    def writable(self) -> bool:
        return self.refusal() is None

    def failure(self) -> str | None:
        """The error that only a restart can repair; None without one."""
        failure = self.appender.failure
        if failure is not None:
            return str(failure) if isinstance(failure, FolderLostError) else f"the log could not be flushed: {failure}"
        return self.dispatcher.failure

    def trouble(self) -> str | None:
        """Why a put would fail now, or failed last; None if puts work. `/readyz` shows it.

        This is more than `refusal`: after a put that found no room, or whose write failed, the next one still tries.
        """
        refusal = self.refusal()
        if refusal is not None:
            return refusal
        if self.appender.write_failure is not None:
            return f"the log cannot be written: {self.appender.write_failure}"
        if self._no_segment is not None:
            error, staged = self._no_segment
            room = self.settings.mappedFileSizeCommitLog
            if self.log.staged == staged and (error.errno != errno.ENOSPC or self.upkeep.free_bytes < room):
                return f"the log cannot be extended: {error}"
        return None

    def no_room(self) -> str | None:
        """Why derived files cannot be written to the disk; None if they can."""
        return self.dispatcher.refusal or self.upkeep.refusal()

    def refusal(self) -> str | None:
        """Why puts are refused now; None if they are not."""
        if not self._open:
            return "the store is shut down"
        if self.settings.brokerRole is BrokerRole.SLAVE:
            return "the store is a slave's"
        if not self._serving:
            return "this member does not lead its group"
        if self.appender.failure is not None:
            return self.failure()
        return self._group_refusal or self.no_room()

    # -- reads ---------------------------------------------------------------------------------------------------------

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        codes: frozenset[int] | None = None,
        accept: Callable[[int, bytes], bool] | None = None,
    ) -> GetResult:
        """Records of a queue from `offset` on, as many as RocketMQ returns in one answer.

        `codes`: accepted tag hashes (None: all). `accept(tags_code, properties)` makes the final decision per record.
        """
        name = topic.encode(errors="surrogatepass")
        found = self._get(name, queue_id, offset, max_messages, codes, accept)
        if found[0] != 0 and offset >= found[3] and self.dispatcher.catch_up():
            # Acknowledged messages can be read, even if they were not dispatched yet.
            found = self._get(name, queue_id, offset, max_messages, codes, accept)
        looks = 0
        while found[7] >= 0 and looks < _MOST_LOOKS and self.queue_repair.look_at(name, queue_id, found[7]):
            looks += 1
            found = self._get(name, queue_id, offset, max_messages, codes, accept)
        if self._dispatch.damaged > self._damaged:
            self._damaged = self._dispatch.damaged
            met = self._dispatch.take_damaged()
            for pos, size in met:
                self.media.met(pos, size)
            if any(self.media.is_being_repaired(pos) for pos, _ in met):
                # The copy of another member will replace it soon: the reader waits before it.
                self._waits_for_repair.add((topic, queue_id))
                found = self._get(name, queue_id, offset, max_messages, codes, accept, stop_at_damage=True)
                self._damaged = self._dispatch.damaged
                self._dispatch.take_damaged()
        status, next_offset, minimum, maximum, count, body, behind, _ = found
        return GetResult(_GET_STATUSES[status], next_offset, minimum, maximum, count, body, behind)

    def get_frame(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        codes: frozenset[int] | None,
        opaque: int,
        suggested: int,
    ) -> tuple[bytes, int, int] | None:
        """The result of `get_message` as the frame that answers a pull, with the number and bytes of its records.

        None unless all records are sound and in memory: then use `get_message`.
        `opaque`: the pull's; `suggested`: the broker id from which to pull next.
        """
        return self._dispatch.get_frame(
            topic.encode(errors="surrogatepass"),
            queue_id,
            offset,
            max_messages,
            codes,
            self.readable_end,
            self._memory_bytes,
            self._limits,
            opaque,
            suggested,
        )

    def _get(
        self,
        topic: bytes,
        queue_id: int,
        offset: int,
        max_messages: int,
        codes: frozenset[int] | None,
        accept: Callable[[int, bytes], bool] | None,
        *,
        stop_at_damage: bool = False,
    ) -> tuple[int, int, int, int, int, bytes, bool, int]:
        return self._dispatch.get(
            topic,
            queue_id,
            offset,
            max_messages,
            codes,
            self.readable_end,
            self._memory_bytes,
            self._limits,
            # A follower that is behind knows no better offset than the reader. The same applies to a new leader whose
            # queues lack a part of the log: it would send readers back to the beginning of the queue.
            self._correct_offsets and (self.replica is None or (self._serving and not self.dispatcher.behind_bytes)),
            accept,
            stop_at_damage,
            stop_at_wrong=not stop_at_damage,
        )

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the next message of the queue; 0 if there is no such queue."""
        self.dispatcher.catch_up()
        return self._dispatch.offsets(topic.encode(), queue_id)[1]

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the oldest message that is not deleted; 0 if there is no such queue."""
        return self._dispatch.offsets(topic.encode(), queue_id)[0]

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The offset of the message stored at that time, or nearest to it.

        Each unit that the search meets is compared with the record that it leads to, and a wrong one with the log. A
        unit that is still being compared, and a message that is lost or damaged, is passed over: then the offset may
        be an earlier one, never a later one.
        """
        self.dispatcher.catch_up()
        name = topic.encode()
        for _ in range(_MOST_LOOKS):
            offset, wrong = self._dispatch.offset_by_time(name, queue_id, timestamp_ms, stop_at_wrong=True)
            if wrong < 0:
                return offset
            # Has it compared and written again, and reports the record if that is damaged.
            if not self.usable_units(topic, queue_id, wrong, 1):
                break
        return self._dispatch.offset_by_time(name, queue_id, timestamp_ms)[0]

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time (ms) of one message; -1 if there is none."""
        units = self.usable_units(topic, queue_id, offset, 1)
        record = self.message_at(units[0][0]) if units else None
        return -1 if record is None else store_timestamp(record)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Store time (ms) of a queue's oldest message; -1 if there is none."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def message_at(self, pos: int) -> bytes | None:
        """The record that begins at byte `pos` of the log; None if no sound record begins there. A damaged one is
        reported, and a group repairs it."""
        record = self._dispatch.record_at(pos, self.readable_end) if pos >= 0 else None
        if record is None and (size := self._damaged_at(pos)):
            self.media.met(pos, size)
        return record

    def _damaged_at(self, pos: int) -> int:
        """Returns the bytes to report of a damaged record at `pos`; 0 if no record states that it begins there.

        Clients choose the positions in message ids, so the place itself must say that a record begins there. The size
        in the record may be damaged, too: it counts only if another record begins behind it, or the log ends.
        """
        if not self.min_pos <= pos or not self._begins_at(pos):
            return 0
        head = self._dispatch.log_bytes(pos, 4)
        size = 0 if head is None else int.from_bytes(head)
        header = 0 if self.replica is None else ENTRY_HEADER_BYTES
        is_sound = pos + size == self.readable_end or self._begins_at(pos + size + header)
        return size if size > _PLACED_BYTES and is_sound else _PLACED_BYTES

    def _begins_at(self, pos: int) -> bool:
        """Whether the bytes at `pos` are those of a record that states this position."""
        if pos > self.readable_end - _PLACED_BYTES:
            return False
        head = self._dispatch.log_bytes(pos, _PLACED_BYTES)
        return head is not None and int.from_bytes(head[-8:]) == pos

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Records stored in [begin_ms, end_ms] whose key may be `key`: by hash, ascending by position."""
        self.dispatcher.catch_up()
        hashed = index_key_hash(f"{topic}#{key}".encode(errors="surrogatepass"))
        limit = min(max_count, self.settings.maxMsgsNumBatch)
        positions, updated_ms, updated_pos = self._dispatch.lookup(hashed, limit, begin_ms, end_ms)
        return QueryResult(updated_ms, updated_pos, self.index_repair.records(hashed, positions))

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """ConsumeQueue units (pos, size, tags_code) from `offset` on, fewer at the end."""
        self.dispatcher.catch_up()
        return self._dispatch.units(topic.encode(), queue_id, offset, count)

    def usable_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Like `units`, but each is compared with its record, for callers that read the records.

        Ends before a unit that is being compared with the log, or whose record a group repairs: call it again later. A
        message that is lost or permanently damaged is (-1, 0, 0).
        """
        self.dispatcher.catch_up()
        name = topic.encode()
        units, wrong, damaged = self._dispatch.usable_units(name, queue_id, offset, count)
        looks = 0
        while wrong >= 0 and looks < _MOST_LOOKS and self.queue_repair.look_at(name, queue_id, wrong):
            looks += 1
            units, wrong, damaged = self._dispatch.usable_units(name, queue_id, offset, count)
        for at, pos, size in damaged:
            self.media.met(pos, size)
            if self.media.is_being_repaired(pos):
                return units[: at - offset]
        return units

    def queues(self) -> list[tuple[str, int]]:
        """Every (topic, queue id) that has a ConsumeQueue."""
        return [(topic.decode(), queue_id) for topic, queue_id, *_ in self._dispatch.queues()]

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the message is so near to the log's end that it is probably still in the page cache."""
        units = self.units(topic, queue_id, offset, 1)
        return bool(units) and self.log.written - units[0][0] <= self._memory_bytes

    # -- arrivals ------------------------------------------------------------------------------------------------------

    @property
    def on_arrival(self) -> Callable[[list[tuple[str, int]]], None] | None:
        """The callback that gets the watched queues that grew, after dispatch."""
        return self.dispatcher.on_arrival

    @on_arrival.setter
    def on_arrival(self, call: Callable[[list[tuple[str, int]]], None] | None) -> None:
        self.dispatcher.on_arrival = call

    def watch(self, topic: str, queue_id: int) -> None:
        """Reports arrivals in this queue from now on."""
        self._dispatch.watch(topic.encode(), queue_id)

    def unwatch(self, topic: str, queue_id: int) -> None:
        """Stops reporting arrivals in this queue."""
        self._dispatch.unwatch(topic.encode(), queue_id)

    # -- topics --------------------------------------------------------------------------------------------------------

    def set_topic(self, topic: str, queues: int) -> None:
        """Lets `feed` store plain sends to queues [0, queues) of this topic; 0 for no queue."""
        self.log.set_topic(topic.encode(), queues)

    def remove_topic(self, topic: str) -> None:
        """Deletes the topic's ConsumeQueues. Its records stay in the log until their segments are deleted."""
        # Dispatching a pending record would create the queue again, with an offset that a new topic must not use.
        self.appender.write()
        self.dispatcher.finish()
        self.log.forget_topic(topic.encode())
        self._dispatch.remove_topic(topic.encode())
        self.upkeep.save_soon()

    async def save_progress(self) -> None:
        """Returns when removed ConsumeQueues stay removed after a kill. A failure is logged."""
        await self.upkeep.save_now()

    def clean_unused_topics(self, keep: set[str]) -> dict[str, int]:
        """Deletes the ConsumeQueues of topics that are not in `keep` and have no message left in the log.

        Returns the other topics with their number of messages. The schedule topic always stays.
        """
        self.appender.write()
        self.dispatcher.finish()
        stay = self.unknown_topics(keep)
        for topic in {topic for topic, _ in self.queues()} - keep - stay.keys() - {"SCHEDULE_TOPIC_XXXX"}:
            self.remove_topic(topic)
        return stay

    def unknown_topics(self, known: set[str]) -> dict[str, int]:
        """Topics not in `known` with their number of messages in the log, if they have any. Without the schedule
        topic."""
        found: dict[str, int] = {}
        for name, _, min_offset, max_offset, _, max_pos in self._dispatch.queues():
            topic = name.decode()
            if (
                topic not in known
                and topic != "SCHEDULE_TOPIC_XXXX"
                and max_offset > min_offset
                and max_pos > self.min_pos
            ):
                found[topic] = found.get(topic, 0) + max_offset - min_offset
        return found

    def clean_expired_queues(self) -> int:
        """Deletes ConsumeQueue and index files for records before the log's start. Returns the number of files."""
        removed = self._dispatch.delete_below(self.min_pos)
        self.upkeep.save_soon()
        return removed

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def min_pos(self) -> int:
        """Position of the first byte of the log that is not deleted."""
        return self.upkeep.min_pos

    @property
    def max_pos(self) -> int:
        """Position where the readable part of the log ends."""
        return self.readable_end

    @property
    def flushed_pos(self) -> int:
        return self.log.flushed

    @property
    def dispatched_pos(self) -> int:
        return self._dispatch.position

    @property
    def damaged_records(self) -> int:
        """Number of reads that found a damaged record, which was not served."""
        return self._dispatch.damaged

    @property
    def dispatch_behind_bytes(self) -> int:
        return self.dispatcher.behind_bytes

    def runtime_info(self) -> dict[str, str]:
        """The entries of the store in GET_BROKER_RUNTIME_INFO, as text."""
        return self.upkeep.runtime_info()


def _waits(properties: str) -> bool:
    """Whether the sender of a message waits for the disk (`waitStoreMsgOK`, property WAIT)."""
    return not properties.startswith("WAIT\x01false") and "\x02WAIT\x01false" not in properties
