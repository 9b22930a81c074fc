"""What a member of a group is, and in which order it becomes that."""

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
from tallystick.node.broker.tables.saving import NotReplicatedError
from tallystick.node.broker.tables.topics import TopicConfig, TopicTable
from tallystick.node.core.settings import UNDECIDED, BrokerSettings
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store._kernel import Door
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.formats.message import PutStatus


class Notes(list[str]):
    """What happened, in order."""


class NotingStore(OwnParts):
    """The side of `MessageStore` that a group drives."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.serving = False
        self.committed = 0
        self.dispatched_pos = 0
        self.full: str | None = None
        self.media = SimpleNamespace(on_damage=[], is_being_repaired=None)
        self.recovered = SimpleNamespace(damaged_ranges=list)

    def no_room(self) -> str | None:
        return self.full

    def commit(self, pos: int) -> None:
        self.committed = self.dispatched_pos = max(self.committed, pos)

    def take_lead(self, term: int) -> None:
        self._notes.append(f"take lead {term}")

    def take_repaired(self, pos: int, end: int) -> None: ...

    def refuse_messages(self, reason: str | None) -> None:
        self.refused = reason

    def serve(self, serving: bool) -> None:
        if serving is not self.serving:
            self._notes.append("serve" if serving else "serve no more")
        self.serving = serving

    def give_up(self, code: int, status: PutStatus) -> None:
        self._notes.append(f"unknown {code} {status.name}")

    def forget_cut(self, was_end: int) -> None: ...

    def remove_topic(self, topic: str) -> None:
        self._notes.append(f"queues of {topic} go at {self.committed}")

    def deliver(self, answers: Any) -> None: ...


class NotingService:
    """A timer of the leader's. `gate`: its last step takes until that is set."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.gate = asyncio.Event()
        self.gate.set()

    async def start(self) -> None:
        self._notes.append("timer starts")

    def halt(self) -> None:
        self._notes.append("timer halts")

    async def stop(self) -> None:
        await self.gate.wait()
        self._notes.append("timer ended")


class One:
    """A member as a broker that notes what becomes of it. Keeps to `GroupedBroker`."""

    def __init__(self, tmp_path: Path, number: int = 1) -> None:
        self.notes = Notes()
        self.settings = replace(BrokerSettings(brokerIP1="127.0.0.1", brokerName="b"), brokerId=UNDECIDED)
        self.store = NotingStore(self.notes)
        self.topics = TopicTable(MemoryFile(), self.settings, lambda: 1)
        self.member = FakeMember(number)
        self.timer = NotingService(self.notes)
        self.group = BrokerGroup(
            self,  # type: ignore[arg-type]
            self.member,  # type: ignore[arg-type]
            ReplicatedTables(),
            [(self.topics, MemoryFile())],
            [self.timer],
            door=Door(),
            folder=tmp_path,
        )
        self.group.start()

    def take_role(self, broker_id: int, term: int) -> None:
        self.settings = replace(self.settings, brokerId=broker_id)
        self.notes.append(f"id {broker_id} of term {term}")

    def serve(self, serving: bool) -> None:
        self.store.group.serve(serving)

    def tell_name_servers_soon(self) -> None:
        self.notes.append(f"tell {self.settings.brokerId}")

    async def leave_name_servers(self) -> None:
        self.notes.append("leave")
        self.settings = replace(self.settings, brokerId=UNDECIDED)

    async def settle(self) -> Notes:
        """What happened since the last look, once everything is done."""
        for _ in range(20):
            await asyncio.sleep(0)
        notes = Notes(self.notes)
        self.notes.clear()
        return notes


@pytest.fixture
async def one(tmp_path: Path) -> Any:
    made = One(tmp_path)
    yield made
    made.timer.gate.set()
    await made.group.stop()


async def test_a_member_has_no_role_until_a_leader_is_known(one: One) -> None:
    one.member.follow(1, None)
    assert await one.settle() == ["tell -1"], "which registers nowhere"
    one.member.follow(1, 0)
    assert await one.settle() == ["id 2 of term 1", "tell 2"]
    assert one.group.refusal() == "this member is a follower, n0 leads"


async def test_a_leader_serves_when_it_is_ready_and_registers_behind_that(one: One) -> None:
    one.member.lead(3)
    notes = await one.settle()
    assert notes == ["take lead 3", "id 0 of term 3", "serve", "timer starts", "tell 0"]
    assert one.group.refusal() is None


async def test_its_topics_are_in_the_log_before_it_serves(one: One) -> None:
    seen: list[int] = []
    serve = one.store.group.serve
    one.store.group.serve = lambda serving: (seen.append(len(one.member.log)), serve(serving))[1]  # type: ignore[func-returns-value]
    one.member.lead(1)
    assert any(entry.kind is EntryKind.METADATA for entry in one.member.log[: min(seen)])


async def test_all_work_ends_before_the_loss_of_leadership_is_visible(one: One) -> None:
    """B7, and B2 for those who wait."""
    one.member.lead(3)
    one.member.commit()
    await one.settle()
    one.topics.update(TopicConfig("lost", 1, 1))
    one.timer.gate.clear()
    one.member.follow(4, 0)
    assert one.notes == ["serve no more", "timer halts", "id 2 of term 4", "unknown 1 UNKNOWN_ERROR"], "in the callback"
    assert "lost" not in one.topics
    notes = await one.settle()
    assert not any(note.startswith("tell") for note in notes), "a timer is still at its last step"
    one.timer.gate.set()
    assert await one.settle() == ["timer ended", "tell 2"]


async def test_leadership_that_returns_at_once_starts_new_timers(one: One) -> None:
    one.member.lead(3)
    await one.settle()
    one.member.follow(4, None)
    one.member.lead(5)
    notes = await one.settle()
    assert notes[-3:] == ["timer ended", "timer starts", "tell 0"]


async def test_a_leader_that_takes_no_more_serves_again_when_it_does(one: One) -> None:
    one.member.lead(1)
    await one.settle()
    one.member.full = True
    for told in one.member.on_accepting:
        told(False)
    assert "too much is not committed" in str(one.group.refusal())
    one.topics.update(TopicConfig("waits", 1, 1))
    with pytest.raises(NotReplicatedError):
        await one.topics.saved()
    one.member.full = False
    for told in one.member.on_accepting:
        told(True)
    assert await one.settle() == ["serve no more", "serve"]
    assert b"waits" in one.member.log[-1].body


async def test_a_follower_drops_the_queues_of_a_topic_where_the_log_says_so(tmp_path: Path) -> None:
    leader, follower = One(tmp_path / "a", 0), One(tmp_path / "b", 1)
    follower.member.follow(1, 0)
    leader.member.lead(1)
    leader.topics.update(TopicConfig("T", 1, 1))
    leader.topics.delete("T")
    where = len(leader.member.log) - 1
    leader.member.commit()
    await follower.settle()
    follower.member.replicate(leader.member.log, leader.member.committed_index)
    assert follower.notes == [f"queues of T go at {where}"], "what came before is dispatched, and nothing behind"
    for one in (leader, follower):
        await one.group.stop()


async def test_a_start_does_not_drop_the_queues_of_a_topic_that_was_made_again(tmp_path: Path) -> None:
    leader, follower = One(tmp_path / "a", 0), One(tmp_path / "b", 1)
    leader.member.lead(1)
    leader.topics.update(TopicConfig("T", 1, 1))
    leader.topics.delete("T")
    leader.topics.update(TopicConfig("T", 1, 1))
    leader.member.commit()
    follower.store.dispatched_pos = len(leader.member.log)  # as found on its disk
    follower.member.replicate(leader.member.log, leader.member.committed_index)
    assert not any("queues" in note for note in follower.notes)
    for one in (leader, follower):
        await one.group.stop()


async def test_a_removed_member_is_no_longer_found(one: One) -> None:
    one.member.follow(1, 0)
    await one.settle()
    one.member.removed = True
    for removed in one.member.on_removed:
        removed(17)  # others told it: its own log ends before that entry
    assert await one.settle() == ["leave"]
    assert "a member of the group" in str(one.group.unready())
    one.member.removed = False
    assert one.group.is_member, "let in again"


async def test_a_member_that_must_stop_reports_it(one: One) -> None:
    told: list[str] = []
    one.group.on_fatal.append(told.append)
    one.member.lead(1)
    await one.settle()
    for fatal in one.member.on_fatal:
        fatal("the disk failed")
    assert told == ["the disk failed"]
    assert not one.group.leads
    assert "the disk failed" in str(one.group.unready())
    assert "the disk failed" in str(one.group.refusal())


async def test_a_store_without_room_is_the_groups_business(one: One) -> None:
    one.group.look_at_disk()
    assert one.member.told_low == []
    one.store.full = "queues cannot be extended"
    one.group.look_at_disk()
    one.group.look_at_disk()
    one.store.full = "index cannot be extended"
    one.group.look_at_disk()
    one.store.full = None
    one.group.look_at_disk()
    one.group.look_at_disk()
    assert one.member.told_low == ["queues cannot be extended", None], "told once when it begins, once when it ends"
