"""One member of a group at work: the core decides, this carries out, on one event loop.

    feed, append ─▶ kernel log ─ staged() ─▶ one write_out a turn ─▶ sync thread ─▶ Raft.synced ─┐
                                                  └─▶ Raft.appended ─▶ sends                     ├─▶ effects, in order
    transport ───────────────────────────────────────────────────────▶ Raft.step ────────────────┤
    timer at `Raft.deadline` ────────────────────────────────────────▶ Raft.tick ────────────────┘

Whoever builds on it opens a member, adds callbacks, and starts it. Callbacks are called on the loop, between effects;
they must not block, and may call anything here but `close`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.replication.durable import EntryKind
from tallystick.replication.effects import Role
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.member.settings import MemberSettings
from tallystick.replication.member.status import GroupStatus
from tallystick.replication.membership import Change, Membership
from tallystick.replication.transport.handshake import Identity
from tallystick.replication.transport.peer_lane import Address

if TYPE_CHECKING:
    from tallystick.store._kernel import Door


class Member:
    """Open it, add to its callbacks, `start` it, `close` it. All methods belong to the event loop's thread."""

    on_role: list[Callable[[Role, int, int | None], None]]
    """(role, term, leader). Before a new leader's first entry is staged: derive queue offsets from the whole log here
    (B3). When leadership is lost: stop what only a leader runs (B7)."""
    on_ready: list[Callable[[int], None]]
    """(term): this leader has committed an entry of its own, and all before it is applied (S11)."""
    on_accepting: list[Callable[[bool], None]]
    """Whether `accepting` is true now: let the kernel's `feed` serve sends or not (`Log.set_hot`)."""
    on_commit: list[Callable[[int], None]]
    """(pos): the log is committed up to this byte. Answers of sends below may go: `Log.release(pos)`."""
    on_apply: list[Callable[[int, EntryKind, bytes], None]]
    """(index, kind, body) of committed entries that are no messages, in order, each once, before `on_commit`."""
    on_truncate: list[Callable[[int], None]]
    """(pos): the log ends at this byte now, what was behind is gone. Counters roll back (B3)."""
    on_unknown: list[Callable[[], None]]
    """What this member took in as a leader and has not committed: nobody knows what becomes of it. Answer all sends
    that wait with "unknown" (`Log.expire`, B2). After a transfer, not before its grace is over."""
    on_refused: list[Callable[[list[tuple[int, bytes]]], None]]
    """(answers) of the kernel's `abandon`: sends that were staged and not written. Deliver them."""
    on_installed: list[Callable[[int, int], None]]
    """(index, pos): the log begins anew behind this entry, at this byte; the snapshot was taken over before."""
    on_fatal: list[Callable[[str], None]]
    """(reason): the member stopped for good; its disk is kept as it is. End the process."""
    on_removed: list[Callable[[int], None]]
    """(index): the committed membership of this entry leaves this member out: stop it (M6, M7)."""

    ledger: Ledger
    """Its `log` takes the feeds and appends of a leader that is `accepting`; tell `staged` afterwards."""

    @classmethod
    async def open(
        cls,
        folder: Path,
        door: Door,
        identity: Identity,
        settings: MemberSettings,
        open_ledger: Callable[[bytes], Ledger],
        *,
        bootstrap: Membership | None = None,
        applied_index: int = -1,
        snapshot: Callable[[], bytes] = bytes,
        restore: Callable[[bytes], int] = lambda blob: -1,
        boot_id: bytes | None = None,
    ) -> Member:
        """Recovers the disk of `identity` in `folder`; nothing is sent or received before `start`.

        `open_ledger(store_id)`: `Ledger.open` of that folder and door; called on a thread.
        `bootstrap`: the first membership of a new group. Give it to its members when the group is made, never again: it
        says that this identity never ran before, so that an empty disk is what it should have (M8, S14). On a disk that
        has a member already it is passed over. A disk that is empty without it waits to be let in, or readmitted.
        `applied_index`: up to where `on_apply` was called for the state that was kept (S12).
        `snapshot()`: the applied state as bytes, with its applied index, for a member that is too far behind (L11).
        `restore(blob)`: makes such a state durable in place of its own, and returns its applied index.
        DiskError, VoteError, LedgerError, OSError, SettingsError, TlsError.
        """
        raise NotImplementedError

    async def start(self, sockets: Sequence[socket.socket], addresses: Mapping[int, Address]) -> None:
        """Applies what is known to be committed, listens at bound sockets (ours from here on), and takes part."""
        raise NotImplementedError

    async def close(self, *, transfer: bool = True) -> None:
        """Hands leadership over if it leads (T7), makes all durable, and notes that the end was in order. OSError."""
        raise NotImplementedError

    def abort(self) -> None:
        """Drops everything as a killed process would: nothing is written, synced or said any more."""
        raise NotImplementedError

    def set_addresses(self, addresses: Mapping[int, Address]) -> None:
        """Where members are, those that may become members included. ValueError: a port out of range."""
        raise NotImplementedError

    # -- the log -------------------------------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        """Whether feeds and proposals may be staged now (B8). Ask in the same turn of the loop."""
        raise NotImplementedError

    def staged(self) -> None:
        """Something was staged in the kernel's log: it is written and replicated at the end of this turn."""
        raise NotImplementedError

    def propose(self, kind: EntryKind, body: bytes) -> int:
        """Stages an entry at once; its index. NotAcceptingError."""
        raise NotImplementedError

    async def committed(self, index: int) -> None:
        """Returns when this entry, staged under this leadership, is committed and applied. OutcomeUnknownError."""
        raise NotImplementedError

    @property
    def committed_index(self) -> int:
        """Entries up to here are committed and applied, as far as this member knows."""
        raise NotImplementedError

    @property
    def committed_pos(self) -> int:
        """The byte behind that entry."""
        raise NotImplementedError

    def release_before(self, pos: int) -> int:
        """The log begins at `pos`, a segment's begin, from now on (D10); the caller has looked that nothing before is
        needed. Returns the new first index. Blocks for a sync; the files go with `Ledger.delete_released`. ValueError.
        """
        raise NotImplementedError

    # -- the group -----------------------------------------------------------------------------------------------------

    async def transfer(self, target: int | None = None) -> int:
        """Hands leadership to `target`, or to whoever is furthest; returns the new leader. TransferError."""
        raise NotImplementedError

    async def change(self, change: Change) -> int:
        """Changes the membership by one member; returns the index of its entry once committed.

        ChangeError: it cannot be made now. OutcomeUnknownError.
        """
        raise NotImplementedError

    async def read(self) -> int:
        """Returns when all that was committed before this call is applied here; the committed pos then (R1, R2).

        ReadError.
        """
        raise NotImplementedError

    async def scrub(self) -> int:
        """Reads all committed entries again, and fetches damaged ones from another member (D8); how many were mended.

        DiskError: a damage that no member could mend.
        """
        raise NotImplementedError

    def status(self) -> GroupStatus:
        """For operators."""
        raise NotImplementedError
