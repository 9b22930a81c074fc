"""The log of a slave: takes the bytes of its master's log, and becomes an ordinary log when the slave is promoted.

    master's log ── append ──▶ staged ─▶ written ─▶ dispatched, flushed          as every log
                                    own ──▶ the next put continues every queue   the slave was promoted

Only whole and sound records are staged, at the place that they have in the master's log. So the two logs are the same
bytes up to the end of this one, and the copy continues there after every interruption.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.store.engine.local_flush import LocalFlush
from tallystick.store.formats.segment_files import read_segment

if TYPE_CHECKING:
    from tallystick.store.engine.message_store import MessageStore

CHECKED_AGAIN_BYTES = 64 << 10
"""The end of the log that is compared with the master's before the copy continues. On a line that is cut often, what is
compared is received again each time."""
CHECKED_BYTES = 1 << 20
"""The same for the first time after a start."""
CHECKED_AFTER_KILL_BYTES = 64 << 20
"""The same after a start that followed a kill or a power loss: what was not synced may be lost or zeros."""


class LogCopy:
    """The log of `store`, which has the role SLAVE."""

    def __init__(self, store: MessageStore) -> None:
        assert isinstance(store.durability, LocalFlush), "a group replicates in another way"
        self._store = store
        self._local = store.durability
        self._log = store.log

    # -- what is here --------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Position where the log ends, with what is not written yet."""
        return self._log.staged

    @property
    def safe_end(self) -> int:
        """The log is safe up to here: synced with SYNC_FLUSH, else written. This is reported to the master."""
        return self._local.copies.sendable

    @property
    def is_empty(self) -> bool:
        """Whether there is no record."""
        return self._log.staged == self._store.min_pos

    @property
    def is_settled(self) -> bool:
        """Whether everything that was staged is written and dispatched."""
        return self._log.staged == self._log.written == self._store.dispatched_pos

    def compare_from(self, *, again: bool) -> int:
        """From here on the log is compared with the master's: its end, and what recovery found to be damaged. `again`:
        it was compared since the start."""
        recovered = self._store.recovered
        if again:
            return max(self._store.min_pos, self._log.written - CHECKED_AGAIN_BYTES)
        size = CHECKED_BYTES if recovered.clean else CHECKED_AFTER_KILL_BYTES
        damaged = [pos for pos, _ in recovered.damaged_ranges()]
        return max(self._store.min_pos, min([self._log.written - size, *damaged]))

    def read(self, pos: int, size: int) -> bytes:
        """Written bytes of the log, fewer than `size` where a segment ends. OSError."""
        settings = self._store.settings
        return read_segment(settings.log_folder, settings.mappedFileSizeCommitLog, pos, size)

    # -- while it is a slave -------------------------------------------------------------------------------------------

    def append(self, data: bytes) -> tuple[int, int, str | None]:
        """Stages the whole records at the start of `data`, which continues the log. The number of bytes taken, the size
        of the next record as far as it is known, and why that one is not a record (None: it may be one).

        OSError: the log cannot be extended; earlier records of `data` may be in it.
        """
        try:
            return self._log.append_copied(data)
        finally:
            self._store.appender.kick()

    def write(self) -> None:
        """Writes what is staged, also after a write that failed. `trouble` tells whether it succeeded."""
        self._store.appender.write()

    def trouble(self) -> str | None:
        """Why nothing can be stored: a failure, or too little room on the disk; None if it can be."""
        admission, appender = self._store.admission, self._store.appender
        failure = admission.failure()
        if failure is not None:
            return failure
        if appender.write_failure is not None:
            return f"the log cannot be written: {appender.write_failure}"
        return admission.no_room()

    def keep_from(self, pos: int) -> None:
        """The master has deleted everything before `pos`: so may the slave."""
        self._local.kept_from = pos

    # -- promotion -----------------------------------------------------------------------------------------------------

    def own(self) -> None:
        """From now on the log is this store's: the next put continues each queue behind its last copied record.

        The log must be settled. Slaves may have it up to its end: they copied it from the same master.
        """
        assert self.is_settled, "a record that is not dispatched would get its queue offset again"
        self._store.queues.continue_all()
        copies = self._local.copies
        copies.begin = copies.sent = self._log.written
        self._local.kept_from = None
