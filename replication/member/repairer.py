"""Repairs the log of a running member from other members' copies, and applies what can be read again.

known damage (`damage`) ─▶ repair ─┐
scrub: all sealed segments ────────┴─▶ Scrubber ─▶ repaired bytes ─▶ on_repaired: derived data is rebuilt
                                                                   ├▶ memberships in force again
                                                                   └▶ gaps that can be applied now
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tallystick.replication.ledger.recovery import LedgerError
from tallystick.replication.member.applier import Applier
from tallystick.replication.member.callbacks import Callbacks
from tallystick.replication.member.damage import LogDamage
from tallystick.replication.member.disk import MemberDisk
from tallystick.replication.member.errors import DiskError
from tallystick.replication.member.health import Health
from tallystick.replication.member.repair import Scrubber
from tallystick.replication.member.repair_task import Damage
from tallystick.replication.member.role_state import RoleState
from tallystick.replication.raft import Raft
from tallystick.replication.transport.shipping import Shipping
from tallystick.store._kernel import DamageError, EntryError


class Repairer:
    """Owns the scrubber and the rebuilds of data derived from repaired entries.

    `forget_range()`: bytes of the log that are kept in memory may be damaged."""

    def __init__(
        self,
        disk: MemberDisk,
        damage: LogDamage,
        applier: Applier,
        raft: Raft,
        roles: RoleState,
        shipping: Shipping,
        health: Health,
        callbacks: Callbacks,
        *,
        forget_range: Callable[[], None],
    ) -> None:
        self.scrubber = Scrubber(disk.folder, disk.door, disk.ledger, shipping, self._log_repaired)
        self._disk, self._damage, self._applier, self._raft = disk, damage, applier, raft
        self._roles, self._health, self._callbacks = roles, health, callbacks
        self._forget_range = forget_range
        self._deriving: list[Awaitable[None]] = []

    async def run(self) -> None:
        """Repairs known damage until it is cancelled."""
        await self._damage.task.run(self._repair, self._pass_over)

    async def scrub(self, bytes_per_second: float) -> int:
        """Reads all sealed segments and replaces damaged entries; returns their number. See `Scrubber.run`."""
        if self._health.stopped is not None:
            raise DiskError(self._health.stopped)
        self._forget_range()
        applier = self._applier
        return await self.scrubber.run(
            0, applier.committed_index, applier.committed_pos, self._peers(), bytes_per_second
        )

    async def try_scrub(self, bytes_per_second: float) -> None:
        """Scrubs, and reports an error: a later attempt may succeed."""
        try:
            await self.scrub(bytes_per_second)
        except (DiskError, LedgerError, EntryError, DamageError, OSError) as error:
            self._health.note(str(error))

    async def _repair(self, damage: Damage) -> int:
        self._forget_range()
        ledger = self._disk.ledger
        end_pos = min(damage.end_pos, ledger.log.flushed)
        repaired = await self.scrubber.run(damage.first, ledger.synced_index, end_pos, self._peers(), float("inf"))
        if not repaired:  # a reader believed it was damaged, and may have skipped it
            self._log_repaired(damage.pos, damage.end_pos)
        while self._deriving:
            await self._deriving.pop()
        return repaired

    def _log_repaired(self, pos: int, end_pos: int) -> None:
        """These bytes of the log are sound now."""
        derived = [callback(pos, end_pos) for callback in self._callbacks.on_repaired]
        self._deriving += [each for each in derived if each is not None]
        if self._disk.unread and self._disk.read_repaired_memberships():
            self._raft.memberships_read(self._disk.memberships)
        if self._applier.special.gaps:
            self._applier.special.rescan()

    def _pass_over(self, damage: Damage, reason: str) -> bool:
        """No member has a sound copy. If a member leads, its state contains these entries, so this member
        does not skip them. If no member can lead, this member skips them, and the group continues without them."""
        disk = self._disk
        if self._roles.leader is not None:
            return False
        if disk.lacks_membership:
            newest = max((entry.index for entry in disk.memberships), default=-1)
            if newest < max(disk.unread) or newest > self._applier.committed_index:
                return False  # it is unknown which members must agree
            disk.unread.clear()
        self._damage.give_up(damage.first, reason)
        return True

    def _peers(self) -> list[int]:
        """Other members, the leader first."""
        return sorted(self._damage.other_members(), key=lambda member: (member != self._roles.leader, member))
