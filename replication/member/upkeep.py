"""What a running member does from time to time, whether or not anything happens in its group.

    each mark interval      save how far the log is durable; look for space on the disk; take the reserve again
    each scrub interval     read all sealed segments again
    each flush interval     sync the log, if entries count before they are synced

A store on the log saves the mark, scrubs and syncs by itself.
"""

from __future__ import annotations

import asyncio

from tallystick.replication.durable import DiskState
from tallystick.replication.member.applier import Applier
from tallystick.replication.member.disk import MemberDisk
from tallystick.replication.member.health import Health
from tallystick.replication.member.log_driver import LogDriver
from tallystick.replication.member.log_writer import LogWriter
from tallystick.replication.member.repairer import Repairer
from tallystick.replication.member.room import Room
from tallystick.replication.member.settings import MemberSettings
from tallystick.replication.member.snapshot_transfer import SnapshotSender
from tallystick.replication.raft import Raft
from tallystick.store.settings import FlushDiskType


class Upkeep:
    """Owns the member's tasks. `start` begins them, `cancel` and then `ended` end them."""

    def __init__(
        self,
        settings: MemberSettings,
        disk: MemberDisk,
        raft: Raft,
        room: Room,
        applier: Applier,
        log_driver: LogDriver,
        repairer: Repairer,
        snapshots: SnapshotSender,
        health: Health,
    ) -> None:
        self._settings, self._disk, self._raft, self._room, self._applier = settings, disk, raft, room, applier
        self._log, self._log_driver, self._repairer = disk.ledger.log, log_driver, repairer
        self._snapshots, self._health = snapshots, health
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop, writer = asyncio.get_running_loop(), self._log_driver.writer
        self._tasks.append(loop.create_task(self._keep_marks(), name="group-marks"))
        self._tasks.append(loop.create_task(self._repairer.run(), name="repair-log"))
        if writer is not None:  # otherwise the store on the log scrubs it and reports damage
            self._tasks.append(loop.create_task(self._scrub_now_and_then(), name="group-scrub"))
            if self._settings.flush is FlushDiskType.ASYNC_FLUSH:
                self._tasks.append(loop.create_task(self._flush_now_and_then(writer), name="group-flush"))

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Returns when all tasks have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def look_for_room(self) -> None:
        """Compares the space of the disk with the state that the core knows. It tries a log that could not be written
        again when there is enough space."""
        state, written = self._raft.disk_state, self._log.written
        if state is DiskState.FAILED or (state is DiskState.FULL and not self._room.for_log(written)):
            return
        reason = self._room.shortage(written, was_low=state is not DiskState.OK)
        wanted = DiskState.OK if reason is None else DiskState.LOW
        if wanted is not state:
            self._log_driver.enter(wanted, reason)

    def save_mark(self) -> None:
        """See `Member.save_mark`."""
        with self._disk.saving:
            if self._health.stopped is None:
                self._disk.ledger.save_mark(self._applier.committed_index)

    def wait_for_mark(self) -> None:
        """Returns when no thread saves a mark any longer; blocks. Saving it cannot be cancelled."""
        with self._disk.saving:
            pass

    async def _keep_marks(self) -> None:
        """Notes how far the log is durable and committed, and checks whether a full disk has space again."""
        noted = None
        while True:
            await asyncio.sleep(self._settings.mark_interval_seconds)
            self.look_for_room()
            self._disk.keep_reserve()
            self._snapshots.withdraw_from_matched(self._raft.match_indexes)
            state = (self._log.flushed_index, self._applier.committed_index)
            if self._log_driver.writer is None or state == noted:
                continue
            try:
                await asyncio.to_thread(self.save_mark)
                noted = state
            except OSError as error:  # the previous mark is still valid
                self._health.note_failure(error)

    async def _scrub_now_and_then(self) -> None:
        await asyncio.sleep(self._settings.scrub_first_seconds)
        while True:
            await self._repairer.try_scrub(self._settings.scrub_bytes_per_second)
            await asyncio.sleep(self._settings.scrub_interval_seconds)

    async def _flush_now_and_then(self, writer: LogWriter) -> None:
        while True:
            await asyncio.sleep(self._settings.async_flush_interval_seconds)
            if self._log.flushed < self._log.written:
                writer.request_sync()
