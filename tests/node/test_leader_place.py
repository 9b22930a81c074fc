"""Where a leader is, as the log says it; and what a leader puts there before it hands over."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_broker import MemoryFile
from fake_member import FakeMember
from own_parts import OwnParts

from tallystick.node.broker.group.group_role import BrokerGroup
from tallystick.node.broker.group.leader_place import LeaderPlace
from tallystick.node.broker.tables.offsets import ConsumerOffsets
from tallystick.node.broker.tables.topics import TopicTable
from tallystick.node.core.settings import UNDECIDED, BrokerSettings
from tallystick.replication.effects import Role, TransferResult
from tallystick.replication.member.errors import TransferError
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store._kernel import Door


class Timer:
    """A leader's timer that says what it did in its last step."""

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self._offsets = offsets
        self.runs = False

    async def start(self) -> None:
        self.runs = True

    def halt(self) -> None: ...

    async def stop(self) -> None:
        await asyncio.sleep(0)
        if self.runs:
            self.runs = False
            self._offsets.commit("timer", "T", 0, 77)


class NoStore(OwnParts):
    """A store in which nothing is stored."""

    @property
    def media(self) -> Any:
        return SimpleNamespace(on_damage=[], is_being_repaired=None)

    @property
    def recovered(self) -> Any:
        return SimpleNamespace(damaged_ranges=list)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


class One:
    """A member as a broker. Keeps to `GroupedBroker`."""

    def __init__(self, tmp_path: Path, number: int) -> None:
        self.settings = replace(BrokerSettings(brokerIP1="127.0.0.1", brokerName="b"), brokerId=UNDECIDED)
        self.topics = TopicTable(MemoryFile(), self.settings, lambda: 1)
        self.offsets = ConsumerOffsets(MemoryFile())
        self.member = FakeMember(number)
        self.store = NoStore()
        self.timer = Timer(self.offsets)
        self.changes = 0
        self.group = BrokerGroup(
            self,  # type: ignore[arg-type]
            self.member,  # type: ignore[arg-type]
            ReplicatedTables(),
            [(self.topics, MemoryFile()), (self.offsets, MemoryFile())],
            [self.timer],
            door=Door(),
            folder=tmp_path,
            address=f"10.0.0.{number}:10911",
        )
        self.group.on_change.append(self._changed)
        self.group.start()

    def _changed(self) -> None:
        self.changes += 1

    def take_role(self, broker_id: int, term: int) -> None: ...

    def serve(self, serving: bool) -> None: ...

    def tell_name_servers_soon(self) -> None: ...

    async def leave_name_servers(self) -> None: ...


@pytest.fixture
async def pair(tmp_path: Path) -> Any:
    made = One(tmp_path / "a", 0), One(tmp_path / "b", 1)
    yield made
    for one in made:
        await one.group.stop()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def replicate(leader: One, follower: One) -> None:
    leader.member.commit()
    follower.member.replicate(leader.member.log, leader.member.committed_index)


async def test_a_follower_learns_from_the_log_where_the_leader_is(pair: tuple[One, One]) -> None:
    leader, follower = pair
    follower.member.follow(3, 0)
    leader.member.lead(3)
    assert follower.group.place() is None, "it has not said so yet"
    before = follower.changes
    replicate(leader, follower)
    place = follower.group.place()
    assert place is not None
    assert (place.term, place.member, place.address) == (3, 0, "10.0.0.0:10911")
    assert place.key == leader.group.key != follower.group.key
    assert follower.changes > before, "who waits for it is told"
    assert leader.group.place() is None, "it leads itself"


async def test_a_leader_tells_the_others_at_once_that_its_place_is_committed(pair: tuple[One, One]) -> None:
    """With the next heartbeat they would know it, too: a tenth of a second later, for which all sends wait."""
    leader, follower = pair
    rounds: list[int] = []

    async def read() -> int:
        rounds.append(leader.member.committed_index)
        return leader.member.committed_index

    leader.member.read = follower.member.read = read  # type: ignore[method-assign]
    leader.member.lead(3)
    await settle()
    assert rounds == [], "it is not committed yet"
    replicate(leader, follower)
    await settle()
    assert rounds == [leader.member.committed_index], "the leader did, the follower did not"


async def test_where_an_older_leader_was_says_nothing(pair: tuple[One, One]) -> None:
    leader, follower = pair
    leader.member.lead(3)
    follower.member.follow(3, 0)
    replicate(leader, follower)
    follower.member.follow(4, None)
    assert follower.group.place() is None
    follower.member.follow(4, 0)
    assert follower.group.place() is None, "the same member may have been restarted in between, with another key"


async def test_a_leader_that_lost_before_it_was_committed_is_nowhere(pair: tuple[One, One]) -> None:
    leader, _ = pair
    leader.member.lead(3)
    leader.member.follow(4, 1)
    assert leader.group.place() is None


async def test_a_table_without_a_place_is_empty_and_keeps_to_its_form() -> None:
    table = LeaderPlace(2, "10.0.0.2:10911")
    assert table.to_json() == {"leaders": {}}
    table.announce(5)
    other = LeaderPlace(1, "")
    other.take(table.to_json())
    assert other.place == table.place
    other.take({"leaders": {"another": {"of": "a later version"}}})
    assert other.place is None
    with pytest.raises((KeyError, TypeError)):
        other.take({"leaders": {"leader": {"term": 1}}})


async def test_a_leader_hands_over_with_all_that_it_knows(pair: tuple[One, One]) -> None:
    """Offsets are staged once a second: those of the last second, and of the timers' last step, go in before."""
    leader, follower = pair
    leader.member.lead(3)
    await settle()
    assert leader.timer.runs
    leader.offsets.commit("cg", "T", 0, 41)
    assert await leader.group.transfer(1) == 1
    ((target, length),) = leader.member.transfers
    assert (target, length) == (1, len(leader.member.log))
    replicate(leader, follower)
    assert follower.offsets.query("cg", "T", 0) == 41
    assert follower.offsets.query("timer", "T", 0) == 77
    await settle()
    assert not leader.timer.runs


async def test_the_timers_of_a_leader_that_could_not_hand_over_run_again(pair: tuple[One, One]) -> None:
    leader, _ = pair
    leader.member.lead(3)
    await settle()
    leader.member.transfer_error = TransferError(TransferResult.TIMED_OUT, 1, 0)
    with pytest.raises(TransferError):
        await leader.group.transfer(1)
    await settle()
    assert leader.timer.runs


async def test_a_follower_hands_over_nothing_and_says_so_as_its_member_does(pair: tuple[One, One]) -> None:
    leader, _ = pair
    leader.member.transfer_error = TransferError(TransferResult.NOT_LEADER, 1, None)
    with pytest.raises(TransferError):
        await leader.group.transfer(1)
    assert leader.member.role is Role.FOLLOWER


async def test_who_may_wait(pair: tuple[One, One]) -> None:
    leader, follower = pair
    follower.member.follow(1, None)
    assert not follower.group.hopeless(), "a member will lead"
    leader.member.lead(1)
    assert not leader.group.hopeless()
    leader.member.full = True
    assert leader.group.hopeless(), "a disk is full for longer than requests wait"
    for fatal in leader.member.on_fatal:
        fatal("the disk failed")
    assert leader.group.hopeless()
