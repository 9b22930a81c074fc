"""The known damage of a member's log, and the task that repairs it.

    start: entries that cannot be read (gaps) ──┐
    start: damage in what queues were built of ─┤                       ┌─▶ repaired: dropped
    a read or the scrub found a damaged record ─┼─▶ Damage ─▶ run ──────┤
    a range that could not be sent ─────────────┘      ▲                ├─▶ failed: again after 0.5 s, 1 s, ... 30 s,
                                                       └────────────────┤     or when a member connects
                                                                        └─▶ no member has it: `hopeless` decides

A repair begins at once and is retried until it succeeds. Damage that `blocks` prevents this member from leading: its
applied state, or its queues, may lack something that all other members have.

All methods must be called on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.recovery import LedgerError
from tallystick.replication.member.errors import DiskError, NoCopyError, UnrepairableError
from tallystick.replication.member.status import Unrepaired
from tallystick.store._kernel import DamageError, EntryError

_AGAIN_S = 0.5
_MOST_AGAIN_S = 30.0
_HOPELESS_AFTER = 3
"""All members must answer this often that they have no sound copy: one may be repairing its own at the moment."""
_PATIENT_TRIES = 9
"""Readers wait at the damage for about two minutes. Then they skip it, while the repair is still retried."""
_SOUND_S = 60.0
"""Entries that were read and found sound are not read again for each reader that reports them, for so long."""


@dataclass(slots=True)
class Damage:
    """Entries from `first` on, up to byte `end_pos`, are or may be damaged."""

    first: int
    pos: int
    end_pos: int
    blocks: bool
    tries: int = 0
    unrepairable: int = 0
    no_copy: int = 0
    """How often in a row all members answered that they have no sound copy, or lack the entry."""
    due: float = 0.0
    reason: str = ""
    """Why the last attempt failed."""


class RepairTask:
    """Owns the list of known damage. `note(text)`: reports a text for people."""

    def __init__(self, ledger: Ledger, note: Callable[[str], None]) -> None:
        self.on_changed: Callable[[], None] = lambda: None
        """`blocked` or the known damage may have changed."""
        self._ledger = ledger
        self._note = note
        self._known: dict[int, Damage] = {}
        self._was_sound: dict[int, float] = {}  # by first entry: when it was read and was sound
        self._wake = asyncio.Event()

    @property
    def blocked(self) -> bool:
        """Whether damage is known that prevents this member from leading."""
        return any(damage.blocks for damage in self._known.values())

    def unrepaired(self) -> tuple[Unrepaired, ...]:
        """The damage that could not be repaired so far."""
        return tuple(
            Unrepaired(each.first, each.pos, each.end_pos, each.reason, each.no_copy >= _HOPELESS_AFTER)
            for each in self.damages
            if each.tries
        )

    @property
    def damages(self) -> list[Damage]:
        """All known damage by position, for operators and tests."""
        return sorted(self._known.values(), key=lambda damage: damage.pos)

    def covers(self, pos: int) -> bool:
        """Whether byte `pos` of the log is in a range that is being repaired, with a chance of success."""
        return any(
            damage.pos <= pos < damage.end_pos and damage.tries < _PATIENT_TRIES and not damage.unrepairable
            for damage in self._known.values()
        )

    def add(self, pos: int, end_pos: int, *, blocks: bool = False) -> None:
        """The bytes [pos, end_pos) of the log are damaged. A repeated call changes nothing."""
        ledger = self._ledger
        try:
            first = max(ledger.index_of(pos) + 1, ledger.first_index)
            begin = ledger.pos_of(first) if first <= ledger.last_index else pos
        except (LedgerError, EntryError, DamageError, KeyError, OSError) as error:
            self._note(f"cannot find the entry at byte {pos} of the log: {error}")
            return
        known = self._known.get(first)
        if known is None and time.monotonic() - self._was_sound.get(first, float("-inf")) < _SOUND_S:
            return
        if known is None:
            self._known[first] = Damage(first, min(begin, pos), end_pos, blocks)
            self._wake.set()
        elif end_pos > known.end_pos or (blocks and not known.blocks):
            known.end_pos, known.blocks = max(end_pos, known.end_pos), blocks or known.blocks
        else:
            return
        self.on_changed()

    def cut(self, last_kept: int, pos: int) -> None:
        """The log was truncated behind this entry, at `pos`: the damage behind it is dropped."""
        if not self._known:
            return
        self._known = {first: damage for first, damage in self._known.items() if first <= last_kept}
        for damage in self._known.values():
            damage.end_pos = min(damage.end_pos, pos)
        self.on_changed()

    def forget(self) -> None:
        """Drops all damage: the member installed a snapshot, so nothing of the old log is left."""
        self._known.clear()
        self.on_changed()

    def try_now(self) -> None:
        """A member connected: it may have what is needed."""
        for damage in self._known.values():
            damage.due = 0.0
        self._wake.set()

    async def run(self, repair: Callable[[Damage], Awaitable[int]], hopeless: Callable[[Damage, str], bool]) -> None:
        """Repairs until it is cancelled.

        `repair(damage)`: reads and repairs the entries, and returns how many it repaired. `hopeless(damage, reason)`:
        all members answered several times that they have no sound copy; it returns whether to accept the damage (it
        then no longer blocks).
        """
        while True:
            self._wake.clear()
            damage = min(self._known.values(), key=lambda each: each.due, default=None)
            wait_s = None if damage is None else damage.due - time.monotonic()
            if damage is None or (wait_s is not None and wait_s > 0):
                try:
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            await self._try(damage, repair, hopeless)

    async def _try(
        self,
        damage: Damage,
        repair: Callable[[Damage], Awaitable[int]],
        hopeless: Callable[[Damage, str], bool],
    ) -> None:
        try:
            repaired = await repair(damage)
        except (DiskError, LedgerError, EntryError, DamageError, OSError) as error:
            if damage.tries == 0 or isinstance(error, UnrepairableError) != bool(damage.unrepairable):
                self._note(str(error))
            damage.unrepairable = damage.unrepairable + 1 if isinstance(error, UnrepairableError) else 0
            damage.no_copy = damage.no_copy + 1 if isinstance(error, NoCopyError) else 0
            damage.reason = str(error)
            if damage.no_copy == _HOPELESS_AFTER:
                self._note(
                    f"no other member has a sound copy of entry {damage.first}, bytes {damage.pos} to {damage.end_pos} "
                    f"of the log; trying again every {_MOST_AGAIN_S:.0f} s: {error}"
                )
            damage.due = time.monotonic() + min(_AGAIN_S * 2**damage.tries, _MOST_AGAIN_S)
            damage.tries = min(damage.tries + 1, 20)
            if damage.unrepairable >= _HOPELESS_AFTER and damage.blocks and hopeless(damage, str(error)):
                damage.blocks = False
                self.on_changed()
        else:
            if self._known.get(damage.first) is damage:
                del self._known[damage.first]
            if not repaired:
                self._was_sound = {damage.first: time.monotonic(), **_newest(self._was_sound)}
            self.on_changed()


def _newest(read: dict[int, float]) -> dict[int, float]:
    """The times that are recent enough to count."""
    now = time.monotonic()
    return {first: at for first, at in read.items() if now - at < _SOUND_S}
