"""What is known to be damaged in a member's log, from the moment it is opened.

    unreadable membership ─┐
    gap in what to apply  ─┼─▶ finding, and the list of the repair task
    report of a reader    ─┘

`repairer` fetches these bytes from other members while the member runs.
"""

from __future__ import annotations

import logging

from tallystick.replication.member.disk import MemberDisk
from tallystick.replication.member.health import NOT_STARTED, Health
from tallystick.replication.member.repair_task import RepairTask
from tallystick.replication.member.special import Gap, SpecialEntries
from tallystick.store.findings import FindingKind
from tallystick.store.formats.segment_files import segment_name

_logger = logging.getLogger("tallystick.replication")


class LogDamage:
    """Owns the list of damage (`task`), and decides whether the log can be read as far as a leader must read it."""

    def __init__(self, member: int, disk: MemberDisk, special: SpecialEntries, health: Health) -> None:
        self.addressed: frozenset[int] = frozenset()
        """The members that have an address."""
        self.task = RepairTask(disk.ledger, health.note)
        self._member = member
        self._disk = disk
        self._special = special
        self._health = health
        for index in disk.unread:
            self._add_membership(index)
        for gap in list(special.gaps):
            self.add_gap(gap)

    @property
    def unreadable(self) -> str | None:
        """See `Member.unreadable`."""
        if self._disk.lacks_membership:
            index = self._disk.unread[-1]
            return f"entry {index}, which holds the members of the group, is damaged and is being fetched again"
        if self._special.gaps:
            gap = self._special.gaps[0]
            return f"entries {gap.first} to {gap.sound - 1} of the log are damaged and are being fetched again"
        return "a part of the log is damaged and is being fetched again" if self.task.blocked else None

    def other_members(self) -> list[int]:
        """The members that may have a sound copy."""
        known = {self._member}
        entries = self._disk.memberships
        if entries:
            known |= entries[-1].membership.members
        if self._disk.unread:  # the members are not known: ask every member that has an address
            known = known.union(*(entry.membership.members for entry in entries), self.addressed)
        return sorted(known - {self._member})

    def add(self, pos: int, end_pos: int, *, blocks: bool) -> None:
        """See `Member.damaged`."""
        if self._health.stopped in (None, NOT_STARTED) and self.other_members():
            self.task.add(pos, end_pos, blocks=blocks)

    def add_gap(self, gap: Gap) -> None:
        """Handles entries that cannot be read and are therefore not applied."""
        ledger, sound = self._disk.ledger, gap.sound
        end = ledger.pos_of(sound) if sound <= ledger.last_index else ledger.log.written
        if self.other_members() or self._disk.lacks_membership:
            self._report(
                gap.pos,
                end,
                f"entry {gap.first} is damaged ({gap.reason}); entries {gap.first} to {sound - 1} are fetched from "
                "another member, and until then this member applies no later entries and does not lead",
            )
            self.task.add(gap.pos, end, blocks=True)
        else:
            self.give_up(gap.first, "this is the only member")

    def give_up(self, first: int, why: str) -> None:
        """Skips the gap that begins with entry `first`: no member has its entries."""
        folder = self._disk.ledger.folder / "data"
        for gap, kept in self._special.give_up(first):
            lost = "are lost, with their changes of the tables"
            what = "are used, although their headers cannot be verified" if kept else lost
            reason = f"entries {gap.first} to {gap.sound - 1} {what}: {why}"
            self._disk.ledger.findings.add(FindingKind.DAMAGE, folder, reason, offset=gap.pos)
            _logger.critical("n%d skips damaged entries of its log: %s", self._member, reason)

    def _add_membership(self, index: int) -> None:
        """Fetches a damaged membership. A member that does not know it does not lead until then."""
        ledger = self._disk.ledger
        try:
            pos, end = ledger.pos_of(index), ledger.end_of(index)
        except KeyError:
            self._health.note(f"entry {index}, which holds the members of the group, is not in the index of the log")
            return
        lacks = self._disk.lacks_membership
        self._report(
            pos,
            end,
            f"entry {index}, which holds the members of the group, is damaged; it is fetched from another member"
            + (", and until then this member does not lead" if lacks else ""),
        )
        self.task.add(pos, end, blocks=lacks)

    def _report(self, pos: int, end: int, reason: str) -> None:
        ledger = self._disk.ledger
        path = ledger.folder / "data" / segment_name(pos - pos % ledger.segment_bytes)
        ledger.findings.add(
            FindingKind.DAMAGE, path, reason, offset=pos % ledger.segment_bytes, size=end - pos, pos=pos
        )
