"""The file `tally-vote`: the member's identity, its term and vote, and whether it may have lost some of that.

The file is replaced as a whole: written beside, synced, renamed, and the folder synced. A crash therefore leaves the
old record or the new one, and `save` returns when the new one is durable (D1). A random id in both files binds the
record to the log beside it: a member detects that its log was emptied, or replaced by another one (S14).

big-endian:

offset  size  field
     0     8  "TALLYVT2"
     8    16  store id: random, the same as in the log's mark
    24     8  term
    32     8  voted for, in that term; -1: no vote
    40     4  member
    44     4  what may be lost: 0 nothing, 1 entries, 2 votes as well (`durable.PossibleLoss`)
    48     8  index of the newest membership that was ever in the log; -1: the group's first
    56     2  bytes of the cluster id, then the cluster id, UTF-8
           2  bytes of the group's name, then the name, UTF-8
           4  CRC-32 of the bytes before
"""

from __future__ import annotations

import secrets
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.replication.bounds import TERM_JUMP_MAX, TERM_MAX
from tallystick.replication.durable import HardState, PossibleLoss
from tallystick.replication.ledger.mark import LedgerMark
from tallystick.store.replace_file import replace_file

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

FILE_NAME = "tally-vote"

_MAGIC = b"TALLYVT2"
_HEAD = struct.Struct(">8s16sqqiiq")
_LENGTH = struct.Struct(">H")
_CRC = struct.Struct(">I")
assert _HEAD.size == 56, "fixed by every record already on disk"


class VoteError(Exception):
    """The file cannot be used; `path` is its name. A member that cannot read its vote must not vote (S1)."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Identity:
    """The member to which the disk belongs. It never changes; another member refuses the disk."""

    cluster_id: str
    group: str
    member: int


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """The content of the file."""

    identity: Identity
    store_id: bytes
    term: int = 0
    voted_for: int | None = None
    possible_loss: PossibleLoss = PossibleLoss.NONE
    membership_index: int = -1
    """Index of the newest membership that was ever in the log: a log that damage shortened may have lost it."""

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.voted_for)

    @property
    def reachable(self) -> bool:
        """Whether a group can have reached this term. An older version believed and saved any term that it received."""
        return 0 <= self.term <= TERM_MAX

    def encode(self) -> bytes:
        vote = -1 if self.voted_for is None else self.voted_for
        data = _HEAD.pack(
            _MAGIC, self.store_id, self.term, vote, self.identity.member, self.possible_loss, self.membership_index
        )
        for text in (self.identity.cluster_id.encode(), self.identity.group.encode()):
            data += _LENGTH.pack(len(text)) + text
        return data + _CRC.pack(zlib.crc32(data))

    @classmethod
    def load(cls, folder: Path) -> VoteRecord | None:
        """The record in `folder`; None if there is none, or it is damaged. Raises OSError."""
        try:
            return cls.decode((folder / FILE_NAME).read_bytes())
        except FileNotFoundError:
            return None

    @classmethod
    def decode(cls, data: bytes) -> VoteRecord | None:
        """The record; None if it is damaged."""
        body = data[: -_CRC.size]
        if not data.startswith(_MAGIC) or len(body) < _HEAD.size or data[-_CRC.size :] != _CRC.pack(zlib.crc32(body)):
            return None
        _, store_id, term, vote, member, loss, membership_index = _HEAD.unpack_from(body)
        texts, at = [], _HEAD.size
        for _ in range(2):
            (length,) = _LENGTH.unpack_from(body, at)
            at += _LENGTH.size
            texts.append(body[at : at + length].decode())
            at += length
        identity, voted_for = Identity(texts[0], texts[1], member), None if vote < 0 else vote
        return cls(identity, store_id, term, voted_for, PossibleLoss(loss), membership_index)


class VoteFile:
    """One member's vote file. `record` is what is durable. Its calls block for syncs: a few milliseconds each."""

    def __init__(self, folder: Path, door: Door, record: VoteRecord) -> None:
        self.record = record
        self._folder, self._door = folder, door

    @classmethod
    def open(cls, folder: Path, door: Door, identity: Identity, *, new_member: bool) -> VoteFile:
        """Reads the record of `identity` in `folder`, or creates the first one.

        `new_member`: this identity has never run before, so an empty disk is correct. Otherwise a missing record means
        that the disk was emptied: the new record notes it (`PossibleLoss.VOTES`) until `readmit`. If the log is missing
        or has another store id, the record notes `PossibleLoss.LOG`. Call this before the log is opened, and open the
        log with `record.store_id`. Raises VoteError if the record is damaged or belongs to another member; OSError.
        """
        path = folder / FILE_NAME
        mark = LedgerMark.load(folder)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            # Also for a new member: a log without a vote file means that part of the disk was lost.
            loss = PossibleLoss.NONE if new_member and mark is None else PossibleLoss.VOTES
            store_id = mark.store_id if mark is not None else secrets.token_bytes(16)
            file = cls(folder, door, VoteRecord(identity, store_id, possible_loss=loss))
            file._replace(file.record)
            return file
        record = VoteRecord.decode(data)
        if record is None:
            raise VoteError(path, "the record of term and vote is damaged: it is unknown whether this member voted")
        if record.identity != identity:
            raise VoteError(path, f"this is the disk of {record.identity}, not of {identity}")
        file = cls(folder, door, record)
        # Term 0: the member never took part, and its creation was interrupted between this file and the log.
        if (mark is None and record.term > 0) or (mark is not None and mark.store_id != record.store_id):
            file.note_loss(PossibleLoss.LOG)
        return file

    def save(self, term: int, voted_for: int | None) -> None:
        """Makes term and vote durable, in one record. Raises ValueError if they would go back (S1). OSError: the state
        on the disk is unknown."""
        old = self.record
        if term < old.term or (term == old.term and old.voted_for not in (None, voted_for)):
            raise ValueError(f"term {term}, vote {voted_for} after term {old.term}, vote {old.voted_for}")
        if (term, voted_for) != (old.term, old.voted_for):
            self._replace(replace(old, term=term, voted_for=voted_for))

    def take_over(self, term: int, voted_for: int | None, log_term: int) -> None:
        """Continues the term and vote of dledger, if its term is higher. Raises OSError.

        Its members may have entries of that term, and an entry is identified by its term (S1, S13). dledger's file is
        also written from this one (`Ledger.save_mark`), and then it is not ahead. It has no CRC: a term that the group
        cannot have reached since `log_term`, the one of the log's last entry, is not believed (`heal_term`)."""
        if self.record.term < term < max(self.record.term, log_term, 0) + TERM_JUMP_MAX:
            self.save(term, voted_for)

    def note_membership(self, index: int) -> None:
        """Durably notes that entry `index` is the newest membership in the log. Raises OSError.

        A member that may have lost data fetches its log again, with old memberships: until it is readmitted, the noted
        index only rises.
        """
        if self.record.possible_loss:
            index = max(index, self.record.membership_index)
        if index != self.record.membership_index:
            self._replace(replace(self.record, membership_index=index))

    def note_loss(self, loss: PossibleLoss) -> None:
        """Durably notes that this member may have lost something, until `readmit`. The more serious loss stays."""
        if loss > self.record.possible_loss:
            self._replace(replace(self.record, possible_loss=loss))

    def heal_term(self, log_term: int) -> None:
        """Replaces a term that no group can reach (`VoteRecord.reachable`). Raises OSError.

        `log_term`: the term of the log's last entry. The member's last valid term is unknown, but elections since that
        entry reached it, and there were fewer than TERM_JUMP_MAX of them. The member has never voted in a term that is
        higher by this amount, and it is close enough to the terms of the others to be believed.
        """
        self._replace(replace(self.record, term=max(log_term, 0) + TERM_JUMP_MAX, voted_for=None))

    def readmit(self, membership_index: int) -> None:
        """The group has readmitted this member: it has all that it acknowledged, and the right membership."""
        if self.record.possible_loss is not PossibleLoss.NONE:
            self._replace(replace(self.record, possible_loss=PossibleLoss.NONE, membership_index=membership_index))

    def _replace(self, record: VoteRecord) -> None:
        self._door.mkdir(self._folder)
        replace_file(self._door, self._folder / FILE_NAME, record.encode())
        self.record = record
