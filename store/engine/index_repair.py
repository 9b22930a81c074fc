"""Repairs index files while the store is in use: a file that does not agree with the log is rebuilt.

    query ── an entry that leads to no record with the key ──┐
    start ── chains of entries that do not hold together ────┤
    scrub ── anything that is wrong in a file ───────────────┴──▶ distrust ──▶ the file and those behind it go, and are
                                                                               dispatched again

An entry is a hash, a position and a time. A search trusts none of them: it checks that the record has a key with the
requested hash. But a search cannot notice an entry that it does not reach because a slot, a link or a hash changed.
Such a change breaks a chain of the file. Therefore each file is checked once after a start, in the background. This
check also compares the times in the header, which a search by time uses, with the records of the first and the last
entry.

Findings: DAMAGE for the file, REBUILT for the files that are rebuilt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.store._kernel import DamageError, IndexChains
from tallystick.store.findings import FindingKind
from tallystick.store.formats.derive import index_hash, index_keys
from tallystick.store.formats.record import Record, RecordError, store_timestamp

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch
    from tallystick.store.engine.dispatcher import Dispatcher
    from tallystick.store.engine.durability import Durability
    from tallystick.store.engine.threads import Threads
    from tallystick.store.finding_log import FindingLog
    from tallystick.store.settings import StoreSettings

_HEAD_BYTES = 36
_STEP_BYTES = 4 << 20
"""Of an index file that are read between two looks at whether the store stops."""
_logger = logging.getLogger("tallystick.store")


class IndexRepair:
    """Repairs the index of one open store, on its event loop.

    `min_pos`: returns the position of the first byte of the log that is not deleted. `message_at(pos)`: the record
    there, or None.
    """

    def __init__(
        self,
        settings: StoreSettings,
        dispatch: Dispatch,
        dispatcher: Dispatcher,
        durability: Durability,
        threads: Threads,
        findings: FindingLog,
        *,
        min_pos: Callable[[], int],
        message_at: Callable[[int], bytes | None],
    ) -> None:
        self._folder = settings.root / "index"
        self._slots = settings.maxHashSlotNum
        self._dispatch = dispatch
        self._dispatcher = dispatcher
        self._durability = durability
        self._threads = threads
        self._findings = findings
        self._min_pos = min_pos
        self._message_at = message_at
        self._suspects: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def records(self, hashed: int, positions: list[int]) -> list[bytes]:
        """The records at these positions that have a key with this hash, ascending. Entries with other records are
        wrong, and their files are rebuilt soon."""
        found = []
        for pos in sorted(set(positions)):
            data = self._message_at(pos)
            if data is not None and _has_key(data, hashed):
                found.append(data)
            elif data is not None or self._is_no_place(pos):
                self._suspect(hashed, pos)
        return found

    def _is_no_place(self, pos: int) -> bool:
        """Whether no record begins there, not even a damaged or deleted one."""
        if pos < self._min_pos():
            return False
        end = self._durability.readable_end
        head = self._dispatch.log_bytes(pos, _HEAD_BYTES) if pos + _HEAD_BYTES <= end else b""
        return head is not None and head[28:] != pos.to_bytes(8)

    def _suspect(self, hashed: int, pos: int) -> None:
        try:
            name = self._dispatch.index_file_of(hashed, pos)
        except (OSError, DamageError) as error:
            _logger.warning("cannot read the index: %s", error)
            return
        if name is not None:
            self._distrust(name, f"an entry leads to byte {pos} of the log, where no record with its key begins")

    def _distrust(self, name: str, reason: str) -> None:
        if name in self._suspects:
            return
        self._suspects.add(name)
        task = asyncio.get_running_loop().create_task(self.make_again(name, reason), name="repair-index")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def make_again(self, name: str, reason: str) -> None:
        """The file `name` is wrong because of `reason`: removes it and all later ones, and dispatch builds them again.
        Reports that. A failure is logged."""
        try:
            if await self._threads.run_between_turns(lambda: self._dispatch.distrust_index(name)):
                path = self._folder / name
                self._findings.add(FindingKind.DAMAGE, path, reason)
                self._findings.add(FindingKind.REBUILT, path, "this file and the later ones, from the log")
                self._dispatcher.advance(self._durability.readable_end)
        except (OSError, DamageError) as error:
            _logger.warning("cannot rebuild index file %s: %s", name, error)
        finally:
            self._suspects.discard(name)

    async def look_at_all(self) -> None:
        """Checks the chains of all files."""
        files = self._dispatch.index_files()
        for name, begin_ms, end_ms, begin_pos, end_pos, _, count in files:
            if count > 1 and not (self._stored_at(begin_pos, begin_ms) and self._stored_at(end_pos, end_ms)):
                self._distrust(name, "a time in its header is not that of its first or last entry")
                return
        for place, (name, *_, count) in enumerate(files):
            growing = place + 1 == len(files)
            try:
                listed, faults = await self._chain_faults(str(self._folder / name), count, growing)
            except (OSError, DamageError) as error:
                _logger.warning("cannot check index file %s: %s", name, error)
                continue
            if faults:
                self._distrust(name, f"{listed[0][1]}; {faults} faults in all")
                return  # later files are rebuilt as well

    async def _chain_faults(self, path: str, count: int, growing: bool) -> tuple[list[tuple[int, str]], int]:
        """As the kernel's function, in steps: a stop waits for one of them, not for a file."""
        chains = IndexChains(path, self._slots, count, growing, True)
        loop = asyncio.get_running_loop()
        while not await loop.run_in_executor(self._threads.scrub, chains.step, _STEP_BYTES):
            pass
        return chains.faults()

    def _stored_at(self, pos: int, time_ms: int) -> bool:
        """Whether the record at `pos` has this store time, or cannot be read."""
        data = self._message_at(pos) if pos >= self._min_pos() else None
        return data is None or store_timestamp(data) == time_ms

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _has_key(data: bytes, hashed: int) -> bool:
    try:
        record = Record.decode(data)
    except RecordError:
        return False
    return hashed in {index_hash(record.topic, key) for key in index_keys(record, record.property_table())}
