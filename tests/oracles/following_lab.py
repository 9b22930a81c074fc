"""A group of members in this process that follows a master as RocketMQ has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from copying_lab import BROKER, World, small, until
from ports import free_ports

from tallystick.node.broker.broker import Broker
from tallystick.node.broker.copying.group_copy import GroupCopy
from tallystick.replication.member.errors import TransferError
from tallystick.store._kernel import Door
from tallystick.store.formats.record import Record
from tallystick.store.settings import BrokerRole

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_BLANK = bytes.fromhex("cbd43194")


class Followers:
    """The members of a group."""

    def __init__(self, w: World, folder: Path, count: int, role: BrokerRole, **changes: Any) -> None:
        self.role = role
        """Of members that are started later."""
        self.w, self.folder, self._changes = w, folder, changes
        peers = free_ports(count)
        self._peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(peers))
        self._ports = free_ports(count)
        self.members: dict[int, Broker] = {}

    async def start(self, number: int, *, door: Door | None = None) -> Broker:
        """Starts a member, again or for the first time."""
        settings = replace(
            BROKER, namesrvAddr=self.w.address, brokerId=0, listenPort=self._ports[number], groupBootstrap=True,
            groupElectionTimeoutMills=500, groupHeartbeatMills=50,
        )  # fmt: skip
        own = {"dLegerPeers": self._peers, "dLegerSelfId": f"n{number}", "dLegerGroup": "b"} | self._changes
        store = small(self.folder / f"n{number}", enableDLegerCommitLog=True, **own)
        store = replace(store, brokerRole=self.role)
        self.members[number] = await Broker.start(settings, store, door)
        return self.members[number]

    async def stop(self, number: int) -> None:
        """Stops a member in order."""
        await self.members.pop(number).stop()

    async def leader(self) -> Broker:
        """The member that leads, as soon as one does."""
        await until(lambda: any(_leads(each) for each in self.members.values()))
        return next(each for each in self.members.values() if _leads(each))

    async def pass_on(self) -> Broker:
        """Makes another member the leader. A transfer that a busy machine does not do in time is asked for again."""
        old = await self.leader()
        while _leads(old):
            assert old.group is not None
            with contextlib.suppress(TransferError):
                await old.group.transfer(next(n for n, each in self.members.items() if each is not old))
        return await self.leader()


def _leads(broker: Broker) -> bool:
    return broker.group is not None and broker.group.leads


def copy_of(broker: Broker) -> GroupCopy:
    """The copy of a member."""
    assert isinstance(broker.copying, GroupCopy)
    return broker.copying


@asynccontextmanager
async def followers(
    w: World, folder: Path, count: int = 1, *, role: BrokerRole = BrokerRole.SLAVE, **changes: Any
) -> AsyncIterator[Followers]:
    """A group that is started, with its leader elected."""
    group = Followers(w, folder, count, role, **changes)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_stop_all, group)
        for number in range(count):
            await group.start(number)
        await group.leader()
        yield group


async def _stop_all(group: Followers) -> None:
    for number in list(group.members):
        with contextlib.suppress(asyncio.CancelledError):
            await group.stop(number)


async def followed(broker: Broker, w: World) -> None:
    """Returns when this leader has the log and the tables, committed and dispatched."""
    await until(lambda: _has_followed(broker, w))


async def followed_by_leader(group: Followers, w: World) -> Broker:
    """The leader that has the log and the tables. On a busy machine another one may be elected while this waits."""
    await until(lambda: any(_leads(each) and _has_followed(each, w) for each in group.members.values()))
    return next(each for each in group.members.values() if _leads(each))


def _has_followed(broker: Broker, w: World) -> bool:
    return copy_of(broker).copies and broker.unready() is None and caught_up(broker, w)


def caught_up(broker: Broker, w: World) -> bool:
    """Whether this leader has the whole log of the master, committed and dispatched."""
    log = copy_of(broker).follower.log
    return log.end == w.master.end and log.is_settled


def queue_of(broker: Broker, topic: str, queue_id: int) -> list[Record]:
    """All messages of a queue, as readers get them."""
    found, offset = [], broker.store.queues.min_offset(topic, queue_id)
    while offset < broker.store.queues.max_offset(topic, queue_id):
        found.append(Record.decode(broker.store.reads.get_message(topic, queue_id, offset, 1).body))
        offset += 1
    return found


def masters_records(log: bytes, begin: int = 0) -> list[Record]:
    """The records of a master's log from `begin` on."""
    found, pos = [], begin
    while pos < len(log):
        size = int.from_bytes(log[pos : pos + 4])
        if log[pos + 4 : pos + 8] != _BLANK:
            found.append(Record.decode(log[pos : pos + size]))
        pos += size
    return found


def check_queues(broker: Broker, log: bytes, begin: int = 0) -> None:
    """Asserts that the queues have each record of the master's log once, in order, at its offset, and as it was."""
    expected: dict[tuple[str, int], list[Record]] = {}
    for record in masters_records(log, begin):
        expected.setdefault((record.topic, record.queue_id), []).append(record)
    for (topic, queue_id), theirs in expected.items():
        ours = queue_of(broker, topic, queue_id)
        assert [each.queue_offset for each in ours] == [each.queue_offset for each in theirs], (topic, queue_id)
        for own, their in zip(ours, theirs, strict=True):
            assert _anywhere(own) == _anywhere(their)


def check_references(broker: Broker, log: bytes) -> int:
    """Asserts that each end of a transaction names its half message, also here; returns how many there are."""
    theirs = {record.pos: record for record in masters_records(log)}
    ends = [(each.queue_offset, each.prepared_transaction_offset) for each in theirs.values() if each.sys_flag == 8]
    ours = {record.queue_offset: record for record in queue_of(broker, "T", 0)}
    halves = {record.pos: record.body for record in queue_of(broker, HALF_TOPIC, 0)}
    for offset, reference in ends:
        assert halves[ours[offset].prepared_transaction_offset] == theirs[reference].body
    return len(ends)


def _anywhere(record: Record) -> Record:
    """The record without the positions in it."""
    return record._replace(pos=0, prepared_transaction_offset=0)
