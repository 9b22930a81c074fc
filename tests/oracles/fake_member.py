"""A member of a replicated group without disk, network or election: the test says who leads and what is committed.

It keeps the contract of `tallystick.replication.member.member.Member` as far as tables and roles use it: entries are
staged in order, applied once in order and before `on_commit`; who waits for one is told when leadership is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

from tallystick.replication.durable import DiskState
from tallystick.replication.effects import Role
from tallystick.replication.member.errors import MemberError, NotAcceptingError, OutcomeUnknownError
from tallystick.store.formats.ledger_format import EntryKind


class Entry(NamedTuple):
    term: int
    kind: EntryKind
    body: bytes


class FakeMember:
    """`log` is this member's own; `follow` makes it another's. `full`: proposals are refused, as under load."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.identity = SimpleNamespace(member=number)
        self.ledger = SimpleNamespace(pos_of=lambda index: index, first_index=0)
        self.log: list[Entry] = []
        self.committed_index = -1
        self.role = Role.FOLLOWER
        self.term = 0
        self.leader: int | None = None
        self.ready = False
        self.full = False
        self.refuse_after: int | None = None
        self.removed = False
        self.told_low: list[str | None] = []
        self.no_messages: str | None = None
        self.voters: tuple[int, ...] = (0, 1, 2)
        self.membership_index = -1
        self.transfers: list[tuple[int | None, int]] = []
        """Where to, and how long the log was then."""
        self.transfer_error: MemberError | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.on_role: list[Callable[[Role, int, int | None], None]] = []
        self.on_ready: list[Callable[[int], None]] = []
        self.on_accepting: list[Callable[[bool], None]] = []
        self.on_commit: list[Callable[[int], None]] = []
        self.on_apply: list[Callable[[int, EntryKind, bytes], object]] = []
        self.on_truncate: list[Callable[[int, int], None]] = []
        self.on_unknown: list[Callable[[], None]] = []
        self.on_refused: list[Callable[[list[tuple[int, bytes]]], None]] = []
        self.on_abandoned: list[Callable[[int], None]] = []
        self.on_installed: list[Callable[[int, int], None]] = []
        self.on_fatal: list[Callable[[str], None]] = []
        self.on_removed: list[Callable[[int], None]] = []
        self.on_repaired: list[Callable[..., None]] = []

    # -- what a broker calls -------------------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        return self.ready and not self.full

    def propose(self, kind: EntryKind, body: bytes) -> int:
        if self.refuse_after == 0:
            self.full = True
        if not self.accepting:
            raise NotAcceptingError("told so by a test", self.leader)
        if self.refuse_after is not None:
            self.refuse_after -= 1
        self.log.append(Entry(self.term, kind, body))
        return len(self.log) - 1

    async def committed(self, index: int) -> None:
        if index <= self.committed_index:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((index, done))
        await done

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(
            voters=self.voters,
            learners=(),
            membership_index=self.membership_index,
            transfer_target=None,
            removed=self.removed,
            disk=DiskState.FULL if self.full else DiskState.OK,
        )

    async def transfer(self, target: int | None = None) -> int:
        self.transfers.append((target, len(self.log)))
        if self.transfer_error is not None:
            raise self.transfer_error
        leader = (self.number + 1) % 3 if target is None else target
        self.follow(self.term + 1, leader)
        return leader

    unreadable: str | None = None

    def damaged(self, pos: int, end_pos: int, *, blocks: bool = False) -> None: ...

    def is_being_repaired(self, pos: int) -> bool:
        return False

    def disk_low(self, reason: str | None) -> None:
        self.told_low.append(reason)

    def message_refusal(self) -> str | None:
        return self.no_messages

    async def read(self) -> int:
        return self.committed_index + 1

    async def stop(self, *, transfer: bool = True) -> None:
        self.follow(self.term, None)

    # -- what a test says ----------------------------------------------------------------------------------------------

    def lead(self, term: int) -> None:
        """Elected, and the first entry of the term committed: all before is applied then (S11)."""
        self._take_role(Role.LEADER, term, self.number)
        self.log.append(Entry(term, EntryKind.NO_OP, b""))
        self.commit()
        self.ready = True
        for ready in self.on_ready:
            ready(term)
        self._tell_accepting()

    def follow(self, term: int, leader: int | None) -> None:
        """Another member leads, or no member: a held leadership is lost."""
        led = self.role is Role.LEADER
        self.ready = False
        if led:
            self._tell_accepting()
        self._take_role(Role.FOLLOWER, term, leader)
        if led:
            waiters, self._waiters = self._waiters, []
            for _, done in waiters:
                done.set_exception(OutcomeUnknownError("leadership was lost"))
            for unknown in self.on_unknown:
                unknown()

    def replicate(self, log: list[Entry], committed_index: int) -> None:
        """As a follower: what differs is cut, the rest is taken, and what is committed is applied."""
        same = 0
        while same < min(len(log), len(self.log)) and log[same] == self.log[same]:
            same += 1
        assert same > self.committed_index, "what is committed is never cut (S7)"
        if same < len(self.log):
            was_end = len(self.log)
            del self.log[same:]
            for truncate in self.on_truncate:
                truncate(same, was_end)
        self.log += log[same:]
        self.commit(committed_index)

    def abandon(self, last_index: int) -> None:
        """The disk took nothing behind this entry: what was staged is dropped, and this member continues to lead."""
        del self.log[last_index + 1 :]
        for abandoned in self.on_abandoned:
            abandoned(last_index)

    def commit(self, index: int | None = None) -> None:
        """Committed up to here (None: all there is), and applied."""
        for number in range(self.committed_index + 1, (len(self.log) if index is None else index + 1)):
            entry = self.log[number]
            self.committed_index = number
            if entry.kind is not EntryKind.MESSAGE:
                for apply in self.on_apply:
                    apply(number, entry.kind, entry.body)
        for commit in self.on_commit:
            commit(self.committed_index + 1)
        waiting, self._waiters = self._waiters, []
        for number, done in waiting:
            if number > self.committed_index:
                self._waiters.append((number, done))
            elif not done.done():
                done.set_result(None)

    def _take_role(self, role: Role, term: int, leader: int | None) -> None:
        self.role, self.term, self.leader = role, term, leader
        for changed in self.on_role:
            changed(role, term, leader)

    def _tell_accepting(self) -> None:
        for accepting in self.on_accepting:
            accepting(self.accepting)
