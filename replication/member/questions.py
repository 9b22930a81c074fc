"""Requests to the core that are answered later: to transfer leadership, to change the members, to confirm a read.

Each request gets an answer, also when the member stops meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from tallystick.replication.effects import (
    AppendOwn,
    ChangeRefused,
    Effect,
    ReadFailed,
    ReadReady,
    TransferEnded,
    TransferResult,
)
from tallystick.replication.member.applier import Applier
from tallystick.replication.member.core_calls import CoreCalls
from tallystick.replication.member.errors import ChangeError, MemberError, ReadError, TransferError
from tallystick.replication.member.health import Health
from tallystick.replication.member.role_state import RoleState
from tallystick.replication.membership import Change
from tallystick.replication.raft import Raft


class Questions:
    """Owns the requests that are not answered yet.

    `write_staged()`: writes what was accepted: it must be in the log when leadership or the members change."""

    def __init__(
        self,
        raft: Raft,
        calls: CoreCalls,
        applier: Applier,
        roles: RoleState,
        health: Health,
        write_staged: Callable[[], None],
    ) -> None:
        self._raft, self._calls, self._applier = raft, calls, applier
        self._roles, self._health, self._write_staged = roles, health, write_staged
        self._reads: dict[int, asyncio.Future[int]] = {}
        self._tokens = count(1)
        self._transfer: asyncio.Future[TransferEnded] | None = None

    def give_up(self, reason: str) -> None:
        """The member stops: all waiting callers get an error."""
        for read in self._reads.values():
            _fail(read, ReadError(reason))
        self._reads.clear()
        if self._transfer is not None:
            self.transfer_ended(TransferEnded(None, TransferResult.NOT_LEADER, None))

    # -- transfer ------------------------------------------------------------------------------------------------------

    async def transfer(self, target: int | None) -> int:
        """See `Member.transfer`."""
        if self._health.stopped is not None:
            raise TransferError(TransferResult.NOT_LEADER, target, self._roles.leader)
        self._write_staged()
        future: asyncio.Future[TransferEnded] = asyncio.get_running_loop().create_future()
        self._calls.call(self._begin_transfer, target, future)
        ended = await future
        if ended.result is not TransferResult.DONE:
            raise TransferError(ended.result, ended.target, ended.leader)
        assert ended.leader is not None
        return ended.leader

    def _begin_transfer(
        self, now: float, target: int | None, future: asyncio.Future[TransferEnded]
    ) -> Sequence[Effect]:
        effects = self._raft.transfer(now, target)
        for effect in effects:
            if isinstance(effect, TransferEnded):  # refused; another transfer may be in progress
                _give(future, effect)
                return [other for other in effects if other is not effect]
        self._transfer = future
        return effects

    def transfer_ended(self, effect: TransferEnded) -> None:
        """Handles the effect. It is ignored if no caller of this object requested the transfer."""
        if self._transfer is not None:
            future, self._transfer = self._transfer, None
            _give(future, effect)

    # -- members -------------------------------------------------------------------------------------------------------

    async def change(self, change: Change) -> int:
        """See `Member.change`."""
        if self._health.stopped is not None:
            raise ChangeError(self._health.stopped)
        self._write_staged()
        future: asyncio.Future[tuple[int, asyncio.Future[None]]] = asyncio.get_running_loop().create_future()
        self._calls.call(self._begin_change, change, future)
        index, done = await future
        await done
        return index

    def _begin_change(
        self, now: float, change: Change, future: asyncio.Future[tuple[int, asyncio.Future[None]]]
    ) -> Sequence[Effect]:
        effects = self._raft.change_membership(now, change)
        for effect in effects:
            if isinstance(effect, ChangeRefused):
                _fail(future, ChangeError(effect.reason))
                return []
            if isinstance(effect, AppendOwn):
                _give(future, (effect.index, self._applier.waiters.add(effect.index)))
        return effects

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def read(self) -> int:
        """See `Member.read`."""
        if self._health.stopped is not None:
            raise ReadError(self._health.stopped)
        index = await self._read_index()
        if index > self._applier.committed_index:
            await self._applier.when_applied(index)
        return self._applier.committed_pos

    async def _read_index(self) -> int:
        """An index up to which everything was committed at the time of this call (R1, R2). Raises ReadError."""
        token = next(self._tokens)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reads[token] = future
        self._calls.call(self._raft.read, token)
        return await future

    def read_ready(self, effect: ReadReady) -> None:
        """Handles the effect."""
        if (future := self._reads.pop(effect.token, None)) is not None:
            _give(future, effect.index)

    def read_failed(self, effect: ReadFailed) -> None:
        """Handles the effect."""
        if (future := self._reads.pop(effect.token, None)) is not None:
            _fail(future, ReadError("no majority, or no leader, confirmed an index"))


def _give(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: MemberError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # the caller may be gone: then nothing reads the exception
