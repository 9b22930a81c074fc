"""Reads the sealed part of the log and its index again, at low priority, to find damage while another copy exists.

    a chunk: the kernel reads past the page cache, checks CRCs, entries, ConsumeQueue units and their extensions, then
             the entries of the index                                                              ─▶ findings
                                         damage of the log ─▶ a group repairs it from another member (`media.on_damage`)
                                         wrong units       ─▶ written again from the log (`queue_repair`)
                                         index files       ─▶ made again from the log (`index_repair`)

Disks can corrupt bytes that are never read. A plain store and a member of a group both run one `Scrub`.

- **Rate.** A pass begins a week after the last one began. By default it reads 4 * size / week bytes a second, at least
  256 KiB: it takes half a week at most, which leaves time for a broker that was stopped. (The log is read twice: once
  for itself, once for the index.) `scrubBytesPerSecond` sets another rate; 0 switches scrubbing off.
- **Priority.** A separate thread with the idle class of I/O (ioprio_set), chunks of 256 KiB without the GIL, and a
  pause after each chunk.
- **Page cache.** The kernel reads with O_DIRECT. Pages that are in memory stay there, and none are added.
- **Progress** is kept in the file `tally-scrub` after each segment, so that a broker that is restarted daily finishes
  its passes. Index files are read after the last segment, each as a whole, because a check of the chains needs all
  entries. A broker that is stopped meanwhile begins with the first index file again. The check needs 4 bytes of memory
  per slot.

Segments that are not sealed (full, durable, dispatched, in a group committed) are read by the next start.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import platform
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.store._kernel import DamageError, IndexScrub, SegmentScrub
from tallystick.store.clock import wall_ms
from tallystick.store.findings import FindingKind
from tallystick.store.formats.segment_files import segment_name
from tallystick.store.limited_log import RepeatedError
from tallystick.store.replace_file import replace_file

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, Door
    from tallystick.store.engine.media import MediaWatch
    from tallystick.store.finding_log import FindingLog

FILE_NAME = "tally-scrub"
WEEK_S = 7 * 86_400
LEAST_RATE = 256 << 10
_CHUNK_BYTES = 256 << 10
_IDLE_S = 60.0  # pause before the next check whether there is something to read
_SYS_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IDLE_CLASS = 3 << 13

_logger = logging.getLogger("tallystick.store")


@dataclass(slots=True)
class ScrubState:
    """The progress that survives restarts. Positions are bytes in the log, times are ms since 1970; 0: never."""

    pos: int = 0
    """The pass continues here."""
    since_ms: int = 0
    """When the first pass of this store began."""
    pass_began_ms: int = 0
    """When the current pass began; 0 between two passes."""
    last_began_ms: int = 0
    last_ended_ms: int = 0
    last_bytes: int = 0
    pass_bytes: int = 0

    @classmethod
    def load(cls, path: Path) -> ScrubState:
        """Loads the file. If it is missing or damaged, a new pass begins."""
        try:
            kept = json.loads(path.read_bytes())
            state = cls(**{name: int(kept[name]) for name in cls.__slots__})
        except (OSError, ValueError, KeyError, TypeError):
            return cls()
        return state if min(asdict(state).values()) >= 0 else cls()


@dataclass(frozen=True, slots=True)
class Sealed:
    """The part of the log to read: complete segments in [begin, end)."""

    begin: int
    end: int


class Scrub:
    """The scrub of one store. `sealed()` returns the sealed part of the log; it is called on the event loop."""

    def __init__(
        self,
        root: Path,
        door: Door,
        dispatch: Dispatch,
        findings: FindingLog,
        media: MediaWatch,
        sealed: Callable[[], Sealed],
        executor: Executor,
        *,
        log_folder: Path,
        segment_bytes: int,
        entry_header_bytes: int,
        bytes_per_second: int,
        repair: Callable[[bytes, int, int], bool],
        index_again: Callable[[str, str], Awaitable[None]],
    ) -> None:
        """`bytes_per_second`: as the setting `scrubBytesPerSecond`. `executor`: a separate thread.

        `repair(topic, queue, offset)`: compares units with the log, writes wrong ones again and reports that. It
        returns False if it could not, and is called on the executor. `index_again(name, reason)`: builds this index
        file and all later ones again, and reports that. It is called on the event loop.
        """
        self._path = root / FILE_NAME
        self._root = root
        self._door = door
        self._dispatch = dispatch
        self._findings = findings
        self._media = media
        self._sealed = sealed
        self._executor = executor
        self._folder = log_folder
        self._segment_bytes = segment_bytes
        self._header_bytes = entry_header_bytes
        self._setting = bytes_per_second
        self._repair = repair
        self._index_again = index_again
        self._damaged: list[tuple[int, int]] = []  # of the log, in this pass of this process
        self.state = ScrubState.load(self._path)
        self._unrepaired: set[tuple[bytes, int]] = set()
        self.total_bytes = 0
        """Bytes read since the process started."""

    @property
    def enabled(self) -> bool:
        return self._setting != 0

    @property
    def bytes_per_second(self) -> int:
        """The current rate in bytes per second; 0 if scrubbing is off."""
        if self._setting >= 0:
            return self._setting
        sealed = self._sealed()
        return max(LEAST_RATE, 4 * (sealed.end - sealed.begin) // WEEK_S)

    @property
    def age_seconds(self) -> float:
        """Seconds since the last complete pass ended, or since the first one began; 0 before the first pass."""
        since = self.state.last_ended_ms or self.state.since_ms
        return max(0.0, (wall_ms() - since) / 1000) if since else 0.0

    def to_json(self) -> dict[str, Any]:
        """The object for GET /node."""
        sealed = self._sealed()
        return {
            "enabled": self.enabled,
            "bytesPerSecond": self.bytes_per_second,
            "pos": self.state.pos,
            "endPos": sealed.end,
            "passBeganAt": self.state.pass_began_ms or None,
            "lastPassEndedAt": self.state.last_ended_ms or None,
            "lastPassBytes": self.state.last_bytes,
        }

    async def run(self) -> None:
        """Reads until it is cancelled."""
        errors = RepeatedError(_logger, "scrub of the log failed, retrying", (OSError, DamageError))
        while self.enabled:
            if self._due() and await errors.attempt(self._pass):
                continue
            await asyncio.sleep(_IDLE_S)

    def _due(self) -> bool:
        sealed, state = self._sealed(), self.state
        if sealed.end <= sealed.begin:
            return False
        return bool(state.pass_began_ms) or not 0 <= wall_ms() - state.last_began_ms < WEEK_S * 1000

    async def _pass(self) -> None:
        """Reads the rest of a pass, up to the sealed end at that time."""
        state = self.state
        if not state.pass_began_ms:
            state.pass_began_ms = wall_ms()
            state.since_ms = state.since_ms or state.pass_began_ms
            state.pos = state.pass_bytes = 0
            self._damaged.clear()
            await self._in_thread(self._save)
        while (sealed := self._sealed()).end > (start := max(state.pos, sealed.begin)):
            start -= start % self._segment_bytes
            await self._segment(start)
            state.pos = start + self._segment_bytes
            await self._in_thread(self._save)
        await self._index()
        state.last_began_ms, state.last_ended_ms, state.last_bytes = state.pass_began_ms, wall_ms(), state.pass_bytes
        state.pos = state.pass_began_ms = state.pass_bytes = 0
        await self._in_thread(self._save)
        _logger.info("scrubbed the log: %d bytes, findings so far: %s", state.last_bytes, self._findings.counts())

    async def _segment(self, start: int) -> None:
        path = self._folder / segment_name(start)
        end = start + self._segment_bytes
        try:
            scrub = await self._in_thread(lambda: SegmentScrub(path, start, start, end, self._header_bytes))
        except FileNotFoundError:
            return  # deleted meanwhile
        done = False
        while not done:
            begin_s, before = time.monotonic(), scrub.pos + scrub.ext_read
            done, damage, differs = await self._in_thread(lambda: scrub.step(_CHUNK_BYTES, self._dispatch))
            read = scrub.pos + scrub.ext_read - before
            self._count(read)
            if start >= self._sealed().begin:  # else the segment was deleted meanwhile, and its units with it
                for at, size, reason in damage:
                    self._findings.add(FindingKind.DAMAGE, path, reason, offset=at - start, size=size, pos=at)
                    self._media.tell(at, at + size)
                    self._damaged.append((at, at + size))
                for topic, queue, offset, reason in differs:
                    await self._queue_differs(topic, queue, offset, reason)
            await self._pause(read, begin_s)

    async def _index(self) -> None:
        """Checks all index files, oldest first. Those behind a damaged one are rebuilt with it, and read later."""
        folder = self._root / "index"
        for name in [file.name for file in self._dispatch.index_files()]:
            fault = await self._index_file(folder, name)
            if fault is not None:
                await self._index_again(name, fault)
                return

    async def _index_file(self, folder: Path, name: str) -> str | None:
        """The first fault; None if there is none, or the file is not in use now."""
        fault = None
        try:
            scrub = await self._in_thread(lambda: IndexScrub(folder, name, self._dispatch))
            done = False
            while not done and fault is None:
                begin_s, before, sealed = time.monotonic(), scrub.read, self._sealed()
                step = partial(scrub.step, _CHUNK_BYTES, sealed.begin, sealed.end)
                done, faults = await self._in_thread(step)
                fault = next((f"{reason} (byte {at})" for at, pos, reason in faults if self._is_of_index(pos)), None)
                read = scrub.read - before
                self._count(read)
                await self._pause(read, begin_s)
        except FileNotFoundError:
            fault = "the index file is missing"
        except ValueError:
            pass  # it is no longer in use
        return fault if any(file.name == name for file in self._dispatch.index_files()) else None

    def _is_of_index(self, pos: int) -> bool:
        """Whether an entry is wrong that leads to byte `pos` of the log, where no sound record begins. It is not if the
        log is damaged there: a group repairs the record. -1: the entry is wrong, whatever the log has."""
        return pos < 0 or (pos >= self._sealed().begin and not any(begin <= pos < end for begin, end in self._damaged))

    def _count(self, read: int) -> None:
        self.total_bytes += read
        self.state.pass_bytes += read

    async def _pause(self, read: int, begin_s: float) -> None:
        await asyncio.sleep(max(0.0, read / self.bytes_per_second - (time.monotonic() - begin_s)))

    async def _queue_differs(self, topic: bytes, queue: int, offset: int, reason: str) -> None:
        reported = (topic, queue) in self._unrepaired
        try:
            if not reported and await self._in_thread(lambda: self._repair(topic, queue, offset)):
                return
        except (OSError, DamageError) as error:
            reason = f"{reason} ({error})"
        # A file is missing or too short. The next start builds the queue again, so one finding is enough until then.
        self._unrepaired.add((topic, queue))
        if reported:
            return
        folder = self._root / "consumequeue" / topic.decode(errors="replace") / str(queue)
        self._findings.add(FindingKind.DAMAGE, folder, f"queue offset {offset} {reason}", offset=offset * 20, size=20)

    def _save(self) -> None:
        data = json.dumps(asdict(self.state)).encode()
        replace_file(self._door, self._path, data, durable=False)  # a pass that was lost is made again

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def idle_io_priority() -> None:
    """Gives the reads of this thread the lowest priority. Does nothing if the system does not support or allow it."""
    number = _SYS_IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, _IDLE_CLASS)  # 1: a thread, 0: this one
