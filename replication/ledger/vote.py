"""The file `tally-vote`: who this member is, its term and vote, and whether it may have forgotten some of that.

It is replaced as a whole: written beside, synced, renamed over, the folder synced. So a crash leaves the old record or
the new one, and `save` returns when the new one is durable (D1). The record is bound to the log beside it by a random
id that both files carry: a member whose log was emptied, or taken from elsewhere, is told (S14).

big-endian:

offset  size  field
     0     8  "TALLYVT2"
     8    16  store id: random, the same as in the log's mark
    24     8  term
    32     8  voted for, in that term; -1: nobody
    40     4  member
    44     4  doubt: 0 none, 1 entries, 2 votes may be forgotten (`durable.Doubt`)
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
from tallystick.replication.durable import Doubt, HardState
from tallystick.replication.ledger.mark import LedgerMark

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
    """Whose disk it is. Fixed when the member is made; another one finds the disk not its own."""

    cluster_id: str
    group: str
    member: int


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """What the file says."""

    identity: Identity
    store_id: bytes
    term: int = 0
    voted_for: int | None = None
    doubt: Doubt = Doubt.NONE
    membership_index: int = -1
    """Of the newest membership that was ever in the log: a log that was cut by damage may have lost it."""

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.voted_for)

    @property
    def reachable(self) -> bool:
        """Whether a group can have got to this term. An older version believed, and saved, whatever it was told."""
        return 0 <= self.term <= TERM_MAX

    def encode(self) -> bytes:
        vote = -1 if self.voted_for is None else self.voted_for
        data = _HEAD.pack(
            _MAGIC, self.store_id, self.term, vote, self.identity.member, self.doubt, self.membership_index
        )
        for text in (self.identity.cluster_id.encode(), self.identity.group.encode()):
            data += _LENGTH.pack(len(text)) + text
        return data + _CRC.pack(zlib.crc32(data))

    @classmethod
    def load(cls, folder: Path) -> VoteRecord | None:
        """The record in `folder`; None: there is none, or it is not sound. OSError: the disk."""
        try:
            return cls.decode((folder / FILE_NAME).read_bytes())
        except FileNotFoundError:
            return None

    @classmethod
    def decode(cls, data: bytes) -> VoteRecord | None:
        """None: it is not sound."""
        body = data[: -_CRC.size]
        if not data.startswith(_MAGIC) or len(body) < _HEAD.size or data[-_CRC.size :] != _CRC.pack(zlib.crc32(body)):
            return None
        _, store_id, term, vote, member, doubt, membership_index = _HEAD.unpack_from(body)
        texts, at = [], _HEAD.size
        for _ in range(2):
            (length,) = _LENGTH.unpack_from(body, at)
            at += _LENGTH.size
            texts.append(body[at : at + length].decode())
            at += length
        identity, voted_for = Identity(texts[0], texts[1], member), None if vote < 0 else vote
        return cls(identity, store_id, term, voted_for, Doubt(doubt), membership_index)


class VoteFile:
    """One member's. `record` is what is durable. Its calls block for syncs: a few milliseconds each."""

    def __init__(self, folder: Path, door: Door, record: VoteRecord) -> None:
        self.record = record
        self._folder, self._door = folder, door

    @classmethod
    def open(cls, folder: Path, door: Door, identity: Identity, *, new_member: bool) -> VoteFile:
        """Reads the record of `identity` in `folder`, or makes the first one.

        `new_member`: this identity has never run before, so an empty disk is what it should have. Otherwise a missing
        record means a disk that was emptied: the new one says so (`Doubt.VOTES`), and goes on saying so until
        `readmit`. A record whose log is gone, or is another one, is in doubt as well (`Doubt.LOG`). Call before the
        log is opened, and open the log with `record.store_id`.
        VoteError: the record is damaged, or another member's. OSError.
        """
        path = folder / FILE_NAME
        mark = LedgerMark.load(folder)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            # Also of a new member: a log without a vote is a disk of which a part was lost.
            doubt = Doubt.NONE if new_member and mark is None else Doubt.VOTES
            store_id = mark.store_id if mark is not None else secrets.token_bytes(16)
            file = cls(folder, door, VoteRecord(identity, store_id, doubt=doubt))
            file._replace(file.record)
            return file
        record = VoteRecord.decode(data)
        if record is None:
            raise VoteError(path, "the record of term and vote is damaged: this member may have voted, and cannot tell")
        if record.identity != identity:
            raise VoteError(path, f"this is the disk of {record.identity}, not of {identity}")
        file = cls(folder, door, record)
        # Term 0: it never took part, and died between making this file and the log.
        if (mark is None and record.term > 0) or (mark is not None and mark.store_id != record.store_id):
            file.doubt(Doubt.LOG)
        return file

    def save(self, term: int, voted_for: int | None) -> None:
        """Makes term and vote durable, in one record. ValueError: they go back (S1). OSError: nothing is known of the
        disk's state any more."""
        old = self.record
        if term < old.term or (term == old.term and old.voted_for not in (None, voted_for)):
            raise ValueError(f"term {term}, vote {voted_for} after term {old.term}, vote {old.voted_for}")
        if (term, voted_for) != (old.term, old.voted_for):
            self._replace(replace(old, term=term, voted_for=voted_for))

    def note_membership(self, index: int) -> None:
        """The newest membership in the log is that of entry `index`: durable when it returns. OSError.

        In doubt the log is being fetched anew, with the memberships of the past: what is noted only rises then.
        """
        if self.record.doubt:
            index = max(index, self.record.membership_index)
        if index != self.record.membership_index:
            self._replace(replace(self.record, membership_index=index))

    def doubt(self, doubt: Doubt) -> None:
        """This member may have forgotten something: durable until `readmit`. The graver of two doubts stays."""
        if doubt > self.record.doubt:
            self._replace(replace(self.record, doubt=doubt))

    def heal_term(self, log_term: int) -> None:
        """Replaces a term that no group can reach (`VoteRecord.reachable`). OSError.

        `log_term`: of the log's last entry. The member's last true term is not known, but it was reached by elections
        since that entry, of which there were fewer than TERM_JUMP_MAX. A term that is higher by so much is one in which
        this member never voted, and near enough to the others' terms to be believed.
        """
        self._replace(replace(self.record, term=max(log_term, 0) + TERM_JUMP_MAX, voted_for=None))

    def readmit(self, membership_index: int) -> None:
        """The group has let this member in again: no doubt is left, and the log has the membership that it should."""
        if self.record.doubt is not Doubt.NONE:
            self._replace(replace(self.record, doubt=Doubt.NONE, membership_index=membership_index))

    def _replace(self, record: VoteRecord) -> None:
        path, temporary = self._folder / FILE_NAME, self._folder / (FILE_NAME + ".tmp")
        self._door.mkdir(self._folder)
        self._door.write_file(temporary, record.encode())
        self._door.rename(temporary, path)
        self._door.sync_dir(self._folder)
        self.record = record
