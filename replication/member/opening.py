"""Opens a member's disk: who it is, its vote, its log, and what it may have forgotten.

The order matters after a crash halfway: the origin is durable before the vote's record, so that a member whose making
was interrupted is made again, and the record before the log, so that a log without a record is a disk that lost a part.

What puts a member in doubt, until the group readmits it:

    the record of its vote is gone (an emptied disk)            VOTES, by `VoteFile`            S14
    its log is gone, or another one                             LOG, by `VoteFile`              S14
    its log is damaged before entries that were durable         LOG; the rest is given up and fetched again     D8
    it acknowledged before syncing, and the power went          LOG                             D9

A membership that cannot be read puts nobody in doubt: its member has the entry, and fetches the bytes again (L12).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.replication.durable import Doubt
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.mark import Flags, LedgerMark
from tallystick.replication.ledger.recovery import LedgerError
from tallystick.replication.ledger.vote import Identity as DiskIdentity
from tallystick.replication.ledger.vote import VoteFile
from tallystick.replication.member.errors import DiskError
from tallystick.replication.member.origin import Origin
from tallystick.replication.member.special import body_of
from tallystick.replication.membership import Membership, MembershipEntry, MembershipError
from tallystick.replication.transport.handshake import Identity
from tallystick.store._kernel import DamageError, EntryError
from tallystick.store.findings import FindingKind
from tallystick.store.ledger_format import GROUP_LOG_TOPIC, EntryKind
from tallystick.store.message import NOWHERE
from tallystick.store.progress import NO_BOOT_ID
from tallystick.store.segment_files import segment_name

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

_logger = logging.getLogger("tallystick.replication")

# Fixed: entry 0 of a new group is made by every member for itself and has to be the same everywhere. RocketMQ takes a
# store time of 0 for "no record".
_BOOTSTRAP_TERM = 0
_BOOTSTRAP_MS = 1


@dataclass(slots=True)
class MemberDisk:
    """What was found, or made."""

    vote: VoteFile
    ledger: Ledger
    origin: Origin
    memberships: list[MembershipEntry]
    """That of the origin and those in the log behind it, oldest first, as far as they can be read."""
    damaged_memberships: list[int]
    """Indexes of damaged ones, in rising order: another member has to give them."""


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
    """Blocks. See the module's head, and `Member.open`. DiskError, VoteError, LedgerError, EntryError, OSError."""
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
    if origin.asynchronous and last_mark is not None and _lost_power_unclean(last_mark, boot_id):
        vote.doubt(Doubt.LOG)
    if ledger.damage is not None:
        _give_up_damaged(ledger, vote, origin)
    if origin.asynchronous is not asynchronous:
        origin = Origin(origin.entry, asynchronous)
        origin.save(door, folder)
    if origin.entry is not None and origin.entry.index == -1 and ledger.first_index == 0 and ledger.last_index == -1:
        _write_first_entry(ledger, origin.entry.membership)
    memberships, damaged = memberships_of(ledger, origin.entry)
    if memberships or damaged:  # written before a crash, and not noted yet
        vote.note_membership(max([*damaged, *(entry.index for entry in memberships)]))
    return MemberDisk(vote, ledger, origin, memberships, damaged)


def _heal_term(ledger: Ledger, vote: VoteFile) -> None:
    term, log_term = vote.record.term, ledger.term_of(ledger.last_index) or 0
    vote.heal_term(log_term)
    _logger.error(
        "n%d: replaced the impossible term %d in the vote file by %d; the last entry of the log is of term %d",
        vote.record.identity.member, term, vote.record.term, log_term,
    )  # fmt: skip


def memberships_of(ledger: Ledger, origin: MembershipEntry | None) -> tuple[list[MembershipEntry], list[int]]:
    """What the core begins with, oldest first, and the indexes of those whose entries are damaged: what they say may be
    known all the same. Entries older than the origin are passed over."""
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
                membership = origin.membership  # entry 0 was made of it (M8)
        if membership is not None:
            found.append(MembershipEntry(index, membership))
    return found, damaged


def read_membership(ledger: Ledger, index: int) -> Membership | None:
    """The membership in an entry of the log; None: the entry is damaged."""
    try:
        return Membership.decode(body_of(ledger.record_of(index)))
    except (EntryError, DamageError, LedgerError, MembershipError, OSError, KeyError, ValueError) as error:
        _logger.error("the membership in entry %d of the log cannot be read: %s", index, error)
        return None


def _lost_power_unclean(mark: LedgerMark, boot_id: bytes) -> bool:
    """What a killed process has written is there. Without boot ids nobody knows whether only the process died."""
    return Flags.CLEAN not in mark.flags and (mark.boot_id != boot_id or boot_id == NO_BOOT_ID)


def _give_up_damaged(ledger: Ledger, vote: VoteFile, origin: Origin) -> None:
    """Nothing of it is cut before the member is known to be in doubt: from then on it cannot count for what it lost."""
    damage = ledger.damage
    assert damage is not None
    known, damaged = memberships_of(ledger, origin.entry)
    entry = [] if damaged and (not known or damaged[-1] > known[-1].index) else known[-1:]
    alone = entry and entry[0].membership.voters == {vote.record.identity.member}
    if alone and vote.record.membership_index <= entry[0].index:  # else a newer one, which said more, is in the damage
        raise DiskError(
            f"entry {damage.index} at byte {damage.pos} of the log is damaged ({damage.reason}), entry "
            f"{damage.next_index} behind it is sound, and no other member has a copy: mend it, or cut it off by hand"
        )
    start = damage.pos - damage.pos % ledger.segment_bytes
    reason = f"entry {damage.index}: {damage.reason}; it and all entries behind it are fetched from another member"
    path = ledger.folder / "data" / segment_name(start)
    ledger.findings.add(FindingKind.DAMAGE, path, reason, offset=damage.pos - start, pos=damage.pos)
    _logger.error("n%d counts for no majority until its log is complete again", vote.record.identity.member)
    vote.doubt(Doubt.LOG)
    ledger.truncate(ledger.last_index)


def _write_first_entry(ledger: Ledger, membership: Membership) -> None:
    """The first membership as entry 0, so that whoever gets the log gets it too (M8).

    Every member makes it from what it was told; were they told different things, the chain of CRCs would tell.
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
    ledger.reopen()  # which finds it, with the membership inside
