"""When the log is flushed to disk: RocketMQ's flush services as decisions over positions and times.

SYNC_FLUSH flushes as soon as something is written and acknowledges behind the flush (group commit: whatever was
written while one flush ran is covered by the next). ASYNC_FLUSH acknowledges what is written and flushes by pages and
time. Source: reference `CommitLog.FlushRealTimeService`, `GroupCommitService`, `CommitRealTimeService`.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE_BYTES = 4096


@dataclass(slots=True)
class PageFlush:
    """Flush when `least_pages` pages are behind, or anything at all once `thorough_interval_ms` has passed.

    The same rule serves the flush of the log, the flush of the queues, and the commit of the transient store pool.
    """

    least_pages: int
    thorough_interval_ms: int
    last_thorough_ms: int = 0

    def due(self, now_ms: int, written: int, flushed: int) -> bool:
        """Whether to flush now. A thorough flush is noted as done at `now_ms`, also when there was nothing to flush."""
        if now_ms >= self.last_thorough_ms + self.thorough_interval_ms:
            self.last_thorough_ms = now_ms
            return written > flushed
        if self.least_pages <= 0:
            return written > flushed
        return written // PAGE_BYTES - flushed // PAGE_BYTES >= self.least_pages
