"""A member of a replicated group, for the process that runs it: it is opened, then started, then stopped.

    open ──▶ MemberDisk (`disk`, recovered by `opening`)      what a restart finds again
             Applier    (`applier`)                           what is committed and applied, and who waits for it
             LogDamage  (`damage`)                            what cannot be read
             Health     (`health`)                            why it does not run, and its last error
    start ─▶ Driver     (`driver`)                            the core, and the parts that run beside it

The user opens a member, adds callbacks, and starts it. The member calls the callbacks on the event loop between
effects. They must not block. They can call any method except `stop`; the core handles their requests after the
effects.

A member is the `store.engine.replica.Replica` of the store on its log. Open the member, then the store, then start the
member with the store's appender. Stop the member, then close the store, which closes the member's log.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.effects import Role, TransferResult
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.member.applier import Applier
from tallystick.replication.member.callbacks import Callbacks
from tallystick.replication.member.damage import LogDamage
from tallystick.replication.member.disk import MemberDisk
from tallystick.replication.member.driver import Driver
from tallystick.replication.member.errors import (
    ChangeError,
    DiskError,
    NotAcceptingError,
    OutcomeUnknownError,
    ReadError,
    TransferError,
)
from tallystick.replication.member.health import CLOSED, NOT_STARTED, Health
from tallystick.replication.member.log_writer import Appending
from tallystick.replication.member.opening import open_disk
from tallystick.replication.member.room import Room
from tallystick.replication.member.settings import MemberSettings
from tallystick.replication.member.special import SpecialEntries
from tallystick.replication.member.status import GroupStatus, status_of
from tallystick.replication.membership import Change, Membership
from tallystick.replication.transport.handshake import Identity
from tallystick.replication.transport.peer_lane import Address
from tallystick.store.clock import wall_ms
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.formats.progress import boot_id as machine_boot_id
from tallystick.store.settings import FlushDiskType

if TYPE_CHECKING:
    from tallystick.store._kernel import Door, LedgerLog


class Member(Callbacks):
    """Use it in this order: `open`, append to its callbacks, `start`, `stop`. All methods must be called on the event
    loop's thread, except those that say otherwise.

    It owns the parts that are listed above, and does nothing itself."""

    def __init__(
        self,
        identity: Identity,
        settings: MemberSettings,
        disk: MemberDisk,
        special: SpecialEntries,
        *,
        applied_index: int,
        snapshot: Callable[[], bytes],
        restore: Callable[[bytes], int],
    ) -> None:
        """Use `open` instead."""
        super().__init__()
        self.identity = identity
        self.settings = settings
        self.ledger: Ledger = disk.ledger
        """Its `log` takes the feeds and appends of a leader that is `accepting`; call `staged` afterwards."""
        self._disk = disk
        self._health = Health(identity.member)
        self._applier = Applier(
            disk.ledger,
            special,
            self,
            applied_index=applied_index,
            snapshot=snapshot,
            restore=restore,
            on_gap=lambda gap: self._damage.add_gap(gap),
        )
        self._damage = LogDamage(identity.member, disk, special, self._health)
        self._room = Room(disk.ledger.folder, disk.ledger.segment_bytes, settings.min_free_bytes)
        self._driver: Driver | None = None
        self.saved_index: Callable[[], int] | None = None
        """Returns the last entry whose effect is in the caller's saved state: entries behind it are kept (D10). Called
        on any thread. None: the caller's state is not built from the log."""

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
        """Recovers the disk of `identity` in `folder`. Nothing is sent or received before `start`.

        `open_ledger(store_id)`: calls `Ledger.open` with that folder and door; it runs on a thread.
        `bootstrap`: the first membership of a new group. Pass it when the group is created, and never again: it states
        that this identity never ran before, so that an empty disk is correct (M8, S14). It is ignored if the disk
        already has a member. Without it, a member with an empty disk waits to be added or readmitted.
        `applied_index`: the last entry that `on_apply` applied to the state that the caller kept (S12).
        `snapshot()`: returns the applied state as bytes, with its applied index, for a member that is too far behind
        (L11). `restore(blob)`: durably replaces the state by such a snapshot and returns its applied index; it may
        raise OSError. `boot_id`: identifies this boot of the machine; by default the machine's own id.

        Raises DiskError, VoteError, LedgerError, EntryError, OSError or SettingsError.
        """
        settings.validate()

        def recover() -> tuple[MemberDisk, SpecialEntries]:
            disk = open_disk(
                folder,
                door,
                identity,
                open_ledger,
                bootstrap=bootstrap,
                asynchronous=settings.flush is FlushDiskType.ASYNC_FLUSH,
                boot_id=machine_boot_id() if boot_id is None else boot_id,
            )
            if applied_index < disk.ledger.base.index and disk.ledger.base.index >= 0:
                begin = disk.ledger.first_index
                raise DiskError(f"the state is applied up to {applied_index}, but the log begins at entry {begin}")
            special = SpecialEntries(disk.ledger)
            special.find(min(applied_index, disk.ledger.committed_hint) + 1)
            return disk, special

        disk, special = await asyncio.to_thread(recover)
        return cls(identity, settings, disk, special, applied_index=applied_index, snapshot=snapshot, restore=restore)

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(
        self,
        sockets: Sequence[socket.socket],
        addresses: Mapping[int, Address],
        *,
        appending: Appending | None = None,
    ) -> None:
        """Applies what is known to be committed, listens at the bound sockets (which it owns from now on), and takes
        part.

        `appending`: the object that writes and syncs the log and calls `log_written`, `log_synced` and `log_failed`:
        the appender of a store on this log. None: the member writes the log itself. Raises TlsError, or ValueError for
        a port out of range.
        """
        self._driver = Driver(
            self.identity, self.settings, self._disk, self._applier, self._damage, self._room, self._health, self,
            appending,
        )  # fmt: skip
        self._driver.start(sockets)
        self.set_addresses(addresses)
        self._driver.upkeep.start()

    async def stop(self, *, transfer: bool = True) -> None:
        """Transfers leadership if this member leads (T7), makes everything durable, and notes a clean stop. OSError.

        With a store's appender, the store makes it durable, and calls `close` when it is closed after this.
        """
        if self._driver is not None:
            sound = await self._driver.stop(transfer=transfer)
            if not sound or self._driver.log.writer is None:
                return
        self.ledger.log.abandon(self.settings.abandon_code, CLOSED, wall_ms())
        await asyncio.to_thread(self.ledger.close, self.committed_index)

    async def abort(self) -> None:
        """Drops everything like a killed process: nothing is written, synced or sent afterwards.

        Returns when none of its threads uses the disk any longer.
        """
        if self._driver is not None:
            await self._driver.abort()

    def set_addresses(self, addresses: Mapping[int, Address]) -> None:
        """Sets the addresses of members and of possible future members. Raises ValueError for a port out of range."""
        self._running.connections.transport.set_peers(addresses)
        self._damage.addressed = frozenset(addresses)

    @property
    def _running(self) -> Driver:
        assert self._driver is not None, "the member was started"
        return self._driver

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return Role.FOLLOWER if self._driver is None else self._driver.roles.role

    @property
    def leader(self) -> int | None:
        """The current leader, as far as this member knows."""
        return None if self._driver is None else self._driver.roles.leader

    @property
    def possible_loss(self) -> PossibleLoss:
        """What this member may have lost, as noted on its disk."""
        return self._disk.vote.record.possible_loss

    @property
    def disk_state(self) -> DiskState:
        return DiskState.OK if self._driver is None else self._driver.raft.disk_state

    @property
    def last_error(self) -> str:
        """The last error, as a text for people; empty if there was none."""
        return self._health.last_error

    @property
    def refused_ranges(self) -> int:
        """Number of appends that were dropped because their entries are damaged, or differ from the announced ones."""
        return self._health.refused_ranges

    @property
    def committed_index(self) -> int:
        """The last entry that is committed and applied, as far as this member knows."""
        return self._applier.committed_index

    @property
    def committed_pos(self) -> int:
        """The position of the byte behind that entry."""
        return self._applier.committed_pos

    @property
    def unreadable(self) -> str | None:
        """Why this member does not lead in any case: a part of its log cannot be read. None if all of it can."""
        return self._damage.unreadable

    def status(self) -> GroupStatus:
        """The state of this member and of its group, for operators. The member was started."""
        return status_of(
            self.identity, self._running, self.ledger, self._applier, self._damage, self._health, self._disk.recovered
        )

    def tls_json(self) -> dict[str, Any] | None:
        """The certificates that it uses for other members, as JSON; None: members use no TLS."""
        return None if self._driver is None else self._driver.connections.transport.tls_json()

    # -- proposals -----------------------------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        """Whether feeds and proposals can be staged now (B8). Valid for this turn of the event loop."""
        return self._driver is not None and self._driver.roles.accepting

    def message_refusal(self) -> str | None:
        """Why a leader should accept no messages although it accepts the group's own entries: too few members have
        enough disk space. None if enough members have it."""
        return None if self._driver is None else self._driver.roles.message_refusal()

    def staged(self) -> None:
        """Entries were staged in the kernel's log: they are written and replicated at the end of this turn."""
        self._running.log.staged()

    def propose(self, kind: EntryKind, body: bytes) -> int:
        """Stages an entry of the kind METADATA at once and returns its index. Raises NotAcceptingError."""
        assert kind is EntryKind.METADATA, "messages are fed or appended to the log; only the core appends other kinds"
        if self._driver is None:
            raise NotAcceptingError(NOT_STARTED, None)
        return self._driver.log.propose(kind, body)

    async def committed(self, index: int) -> None:
        """Returns when this entry, which was staged under this leadership, is committed and applied.

        Raises OutcomeUnknownError, or NotAcceptingError if it could not be written.
        """
        if index > self._applier.committed_index:
            if self._health.stopped is not None or not self._running.roles.awaits_commit:
                raise OutcomeUnknownError("leadership was lost")
            await self._applier.waiters.add(index)

    # -- the group -----------------------------------------------------------------------------------------------------

    async def transfer(self, target: int | None = None) -> int:
        """Transfers leadership to `target`, or to the voter with the longest log; returns the new leader.
        TransferError."""
        if self._driver is None:
            raise TransferError(TransferResult.NOT_LEADER, target, None)
        return await self._driver.questions.transfer(target)

    async def change(self, change: Change) -> int:
        """Changes the membership by one member; returns the index of its entry once it is committed.

        Raises ChangeError if it is not possible now, or OutcomeUnknownError.
        """
        if self._driver is None:
            raise ChangeError(NOT_STARTED)
        return await self._driver.questions.change(change)

    async def read(self) -> int:
        """Waits until everything that was committed before this call is applied here; returns the committed position
        (R1, R2). Raises ReadError.
        """
        if self._driver is None:
            raise ReadError(NOT_STARTED)
        return await self._driver.questions.read()

    # -- damage --------------------------------------------------------------------------------------------------------

    async def scrub(self, bytes_per_second: int | None = None) -> int:
        """Reads all sealed segments again and replaces damaged entries by another member's (D8); returns their number.

        Raises DiskError for damage that no member could repair.
        """
        if self._driver is None:
            raise DiskError(NOT_STARTED)
        return await self._driver.repairer.scrub(bytes_per_second or self.settings.scrub_bytes_per_second)

    def damaged(self, pos: int, end_pos: int, *, blocks: bool = False) -> None:
        """The bytes [pos, end_pos) of the log were found damaged: the member fetches them from another member, at once
        and until it succeeds. Can be called before `start`.

        `blocks`: what was derived from the log may lack the damaged part, so this member does not lead until then.
        """
        self._damage.add(pos, end_pos, blocks=blocks)

    def is_being_repaired(self, pos: int) -> bool:
        """Whether byte `pos` of the log is in a range that is being fetched from another member."""
        return self._damage.task.covers(pos)

    # -- the replica of the store on the log ---------------------------------------------------------------------------

    @property
    def log(self) -> LedgerLog:
        return self.ledger.log

    @property
    def begin_pos(self) -> int:
        """The position of the first byte of the log."""
        return self.ledger.base.pos

    def first_index_behind(self, pos: int) -> int:
        """Index of the first entry that ends behind `pos`; if there is no such entry, the next index."""
        return self.ledger.index_of(pos) + 1

    def log_written(self) -> None:
        """More of what was staged is written. Called by the object that writes the log."""
        if self._driver is not None:  # a failed start closes a member that never started
            self._driver.log.log_written()

    def log_synced(self) -> None:
        """More of what was written is durable."""
        if self._driver is not None:
            self._driver.log.log_synced()

    def log_failed(self, error: OSError, *, final: bool) -> None:
        """A write failed, and what was staged is dropped. `final`: a sync failed, and nothing will be durable again."""
        if self._driver is not None:
            self._driver.log.log_failed(error, final=final)

    def disk_low(self, reason: str | None) -> None:
        """The store above the log accepts no more messages, because its disk has too little space for them or for the
        files that are derived from them. `reason` says why; None: there is enough space again.

        A leader transfers its leadership to a member with more space. Without such a member it stays leader: the
        group's own entries are small, and offsets, locks and administration need them (L10).
        """
        self._room.reported = reason
        if self._driver is not None and self._health.stopped is None:
            self._driver.upkeep.look_for_room()

    def save_mark(self) -> None:
        """Notes how far the log is durable and committed. Can run on any thread; blocks. OSError: the old mark
        stays."""
        if self._driver is not None:
            self._driver.upkeep.save_mark()

    def keep_from(self) -> int:
        """The position from which the log is needed: by entries that are not applied or not saved here, or by a member
        that catches up. Can run on any thread."""
        pos = self._applier.committed_pos if self._driver is None else self._driver.keep_from()
        if self.saved_index is None:
            return pos
        index = max(self.saved_index(), self.ledger.base.index)
        return min(pos, self.ledger.end_of(min(index, self.ledger.last_index)))

    def release_before(self, pos: int) -> None:
        """The log begins at `pos`, a segment's start, from now on (D10); the caller has checked that nothing before it
        is needed. `Ledger.delete_released` removes the files.

        Can run on any thread; blocks for syncs. Raises ValueError or OSError.
        """
        self._disk.release_before(pos)

    def close(self, orderly: bool) -> None:
        """Notes a clean stop in the log's mark, if `orderly` and the disk is sound. The member was stopped. Blocks.
        OSError."""
        if orderly and self.disk_state is not DiskState.FAILED:
            self.ledger.close(self.committed_index)
