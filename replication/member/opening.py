"""Opens a member's disk: its identity, its vote, its log, and what it may have lost.

The order of the writes matters for a crash between them. The origin is durable before the vote file, so a member whose
creation was interrupted is created again. The vote file is durable before the log, so a log without a vote file means
that part of the disk was lost.

A member may have lost data that it acknowledged (`PossibleLoss`), until the group readmits it, in these cases:

    its vote file is missing (an emptied disk)                  VOTES, by `VoteFile`            S14
    its log is missing, or another one                          LOG, by `VoteFile`              S14
    its log is damaged before sound entries                     LOG; the rest is dropped and fetched again      D8
    it acknowledged before the sync, and the machine lost power LOG                             D9

An unreadable membership is no such case: the member has the entry, and fetches its bytes again (L12).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.replication.durable import PossibleLoss
from tallystick.replication.ledger import dledger_files
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.mark import Flags, LedgerMark
from tallystick.replication.ledger.vote import Identity as DiskIdentity
from tallystick.replication.ledger.vote import VoteFile
from tallystick.replication.member.disk import MemberDisk, read_membership
from tallystick.replication.member.errors import DiskError
from tallystick.replication.member.origin import Origin
from tallystick.replication.member.recovered import Recovered
from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.transport.handshake import Identity
from tallystick.store.findings import FindingKind
from tallystick.store.formats.ledger_format import GROUP_LOG_TOPIC, EntryKind
from tallystick.store.formats.message import NOWHERE
from tallystick.store.formats.progress import NO_BOOT_ID
from tallystick.store.formats.segment_files import segment_name

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

_logger = logging.getLogger("tallystick.replication")

# Do not change: each member creates entry 0 of a new group itself, and it must be the same everywhere. For RocketMQ a
# store time of 0 means "no record".
_BOOTSTRAP_TERM = 0
_BOOTSTRAP_MS = 1


def open_disk(
    folder: Path,
    door: Door,
    identity: Identity,
    open_ledger: Callable[[bytes], Ledger],
    *,
    bootstrap: Membership | None,
    asynchronous: bool,
    boot_id: bytes,
) -> MemberDisk:
    """Opens or creates the disk; blocks. See the module's docstring and `Member.open`.

    Raises DiskError, VoteError, LedgerError, EntryError or OSError.
    """
    origin = Origin.load(folder)
    last_mark = LedgerMark.load(folder)
    if origin is None:
        entry = None if bootstrap is None else MembershipEntry(-1, bootstrap)
        origin = Origin(entry, asynchronous)
        origin.save(door, folder)
    who = DiskIdentity(identity.cluster, identity.group, identity.member)
    vote = VoteFile.open(folder, door, who, new_member=bootstrap is not None)
    ledger = open_ledger(vote.record.store_id)
    if not vote.record.reachable:
        _heal_term(ledger, vote)
    vote.take_over(*dledger_files.read_term(folder), ledger.term_of(ledger.last_index) or 0)
    if origin.asynchronous and last_mark is not None and lost_power_unclean(last_mark, boot_id):
        vote.note_loss(PossibleLoss.LOG)
    if ledger.damage is not None:
        _give_up_damaged(ledger, vote, origin)
    if origin.asynchronous is not asynchronous:
        origin = Origin(origin.entry, asynchronous)
        origin.save(door, folder)
    if origin.entry is not None and origin.entry.index == -1 and ledger.first_index == 0 and ledger.last_index == -1:
        _write_first_entry(ledger, origin.entry.membership)
    memberships, damaged = memberships_of(ledger, origin.entry)
    if memberships or damaged:  # written before a crash, but not noted
        vote.note_membership(max([*damaged, *(entry.index for entry in memberships)]))
    return MemberDisk(folder, door, vote, ledger, origin, memberships, damaged, _recovered(folder))


def _recovered(folder: Path) -> Recovered | None:
    """The note of a recovery by force, which each start logs."""
    found = Recovered.load(folder)
    if found is not None:
        _logger.warning("n%d was made the only voter of its group: %s", found.before.member, found)
    return found


def _heal_term(ledger: Ledger, vote: VoteFile) -> None:
    term, log_term = vote.record.term, ledger.term_of(ledger.last_index) or 0
    vote.heal_term(log_term)
    _logger.error(
        "n%d: replaced the impossible term %d in the vote file by %d; the last entry of the log is of term %d",
        vote.record.identity.member, term, vote.record.term, log_term,
    )  # fmt: skip


def memberships_of(ledger: Ledger, origin: MembershipEntry | None) -> tuple[list[MembershipEntry], list[int]]:
    """The memberships with which the core starts, oldest first, and the indexes of the damaged entries, whose content
    may be known from elsewhere. Entries older than the origin are ignored."""
    found: list[MembershipEntry] = [] if origin is None else [origin]
    damaged: list[int] = []
    for index in sorted(ledger.memberships):
        if index < ledger.first_index or (origin is not None and index <= origin.index):
            continue
        membership = read_membership(ledger, index)
        header = ledger.log.header(index)
        if membership is None or header is None or header[3] != EntryKind.MEMBERSHIP:
            damaged.append(index)
            if membership is None and index == 0 and origin is not None:
                membership = origin.membership  # entry 0 was created from it (M8)
        if membership is not None:
            found.append(MembershipEntry(index, membership))
    return found, damaged


def lost_power_unclean(mark: LedgerMark, boot_id: bytes) -> bool:
    """Whether a member that acknowledges before the sync may have lost entries (D9). What a killed process has written
    is there. Without boot ids it is unknown whether only the process ended."""
    return Flags.CLEAN not in mark.flags and (mark.boot_id != boot_id or boot_id == NO_BOOT_ID)


def _give_up_damaged(ledger: Ledger, vote: VoteFile, origin: Origin) -> None:
    """Notes the possible loss before anything is truncated: from then on the member does not count for lost entries."""
    damage = ledger.damage
    assert damage is not None
    known, damaged = memberships_of(ledger, origin.entry)
    entry = [] if damaged and (not known or damaged[-1] > known[-1].index) else known[-1:]
    alone = entry and entry[0].membership.voters == {vote.record.identity.member}
    alone = alone and vote.record.membership_index <= entry[0].index  # else a newer one is in the damage
    if alone and not damage.after_power_loss and not damage.at_end:
        raise DiskError(
            f"entry {damage.index} at byte {damage.pos} of the log is damaged ({damage.reason}), entry "
            f"{damage.next_index} after it is sound, and no other member has a copy: repair or truncate it by hand"
        )
    start = damage.pos - damage.pos % ledger.segment_bytes
    path = ledger.folder / "data" / segment_name(start)
    kind, reason = FindingKind.DAMAGE, f"entry {damage.index}: {damage.reason}"
    if damage.after_power_loss:
        kind = FindingKind.CUT
        reason = f"{reason}: the machine lost power, probably before this entry and the entries behind it were durable"
    elif alone:
        kind = FindingKind.CUT
        reason = f"{reason}: this is the last entry, and no other member has a copy"
    if not alone:
        reason = f"{reason}; it and all later entries are fetched from another member"
    ledger.findings.add(kind, path, reason, offset=damage.pos - start, pos=damage.pos)
    if not alone:
        _logger.error("n%d does not count for a majority until its log is complete", vote.record.identity.member)
        vote.note_loss(PossibleLoss.LOG)
    ledger.truncate(ledger.last_index)


def _write_first_entry(ledger: Ledger, membership: Membership) -> None:
    """Writes the first membership as entry 0, so that each member that gets the log gets it too (M8).

    Each member creates the entry from its configuration. If configurations differ, the chain of CRCs reveals it.
    """
    nowhere = NOWHERE.encode()
    log = ledger.log
    log.set_term(_BOOTSTRAP_TERM)
    log.append(
        GROUP_LOG_TOPIC.encode(), 0, membership.encode(), b"", now_ms=_BOOTSTRAP_MS, born_timestamp=_BOOTSTRAP_MS,
        born_host=nowhere, store_host=nowhere, kind=EntryKind.MEMBERSHIP,
    )  # fmt: skip
    log.write_out()
    log.sync()
    ledger.reopen()  # it finds the entry and its membership
