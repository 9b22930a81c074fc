"""When the log is flushed to disk: RocketMQ's flush services as decisions over positions and times.

SYNC_FLUSH flushes as soon as something is written, and acknowledges after the flush (group commit: the next flush
covers everything that was written while one ran). ASYNC_FLUSH acknowledges what is written, and flushes by pages and
time. Source: reference `CommitLog.FlushRealTimeService`, `GroupCommitService`, `CommitRealTimeService`.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE_BYTES = 4096


@dataclass(slots=True)
class PageFlush:
    """Flushes when `least_pages` pages are unflushed, and every `thorough_interval_ms` if any byte is.

    The same rule applies to the flush of the log, the flush of the queues, and the commit of the transient store pool.
    """

    least_pages: int
    thorough_interval_ms: int
    last_thorough_ms: int = 0

    def due(self, now_ms: int, written: int, flushed: int) -> bool:
        """Whether to flush now. Notes a thorough flush as done at `now_ms`, even if there is nothing to flush."""
        if now_ms >= self.last_thorough_ms + self.thorough_interval_ms:
            self.last_thorough_ms = now_ms
            return written > flushed
        if self.least_pages <= 0:
            return written > flushed
        return written // PAGE_BYTES - flushed // PAGE_BYTES >= self.least_pages
