"""Tables of a group's members: followers have the leader's changes; no member keeps an uncommitted change."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from fake_broker import MemoryFile
from fake_member import Entry, FakeMember

from tallystick.node.broker.group.replicated import GroupTables
from tallystick.node.broker.services.schedule import DelayOffsets
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup, SubscriptionGroupTable
from tallystick.node.broker.tables.offsets import ConsumerOffsets
from tallystick.node.broker.tables.saving import FollowsError, NotReplicatedError
from tallystick.node.broker.tables.topics import TopicConfig, TopicTable
from tallystick.node.core.settings import BrokerSettings
from tallystick.replication.metadata import entry, snapshot
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store._kernel import Door
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.tables import JsonTable

SETTINGS = BrokerSettings(brokerIP1="127.0.0.1", brokerName="broker-a", brokerClusterName="C1")


class One:
    """One member with its tables; `folder` outlives it."""

    def __init__(self, folder: Path, number: int = 0, topics_file: Any = None) -> None:
        self.folder = folder
        door = Door()
        self.clock_ms = 1_000 + number  # members' clocks differ: what they write must not
        self.member = FakeMember(number)
        self.topics = TopicTable(MemoryFile(topics_file), SETTINGS, lambda: self.clock_ms)
        self.groups = SubscriptionGroupTable(MemoryFile(), SETTINGS, lambda: self.clock_ms)
        self.offsets = ConsumerOffsets(MemoryFile())
        self.delays = DelayOffsets(MemoryFile())
        self.tables = (self.topics, self.groups, self.offsets, self.delays)
        self.changed_topics: list[str] = []
        self.topics.on_change.append(self.changed_topics.append)
        self.group = GroupTables(
            self.member,
            snapshot.load(folder) or ReplicatedTables(),
            [(table, JsonTable(door, folder / table.what)) for table in self.tables],
            door=door,
            folder=folder,
        )
        self.member.on_apply.append(self.group.on_apply)
        self.member.on_ready.append(lambda term: self.group.on_ready())
        self.member.on_role.append(lambda role, term, leader: None if leader == number else self.group.on_lost())

    def pictures(self) -> dict[str, Any]:
        return {table.what: table.picture() for table in self.tables}

    def metadata(self) -> list[entry.TablePatch]:
        """What METADATA entries of the log say."""
        return [entry.decode(each.body) for each in self.member.log if each.kind is EntryKind.METADATA]


class Trio:
    """Three members; `sync` makes the followers' logs the leader's, and commits all of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.members = [One(tmp_path / f"n{number}", number) for number in range(3)]
        self.term = 0

    def lead(self, number: int) -> One:
        self.term += 1
        for one in self.members:
            if one.member.number != number:
                one.member.follow(self.term, number)
        leader = self.members[number]
        leader.member.lead(self.term)
        return leader

    def sync(self, leader: One, *followers: int) -> None:
        leader.member.commit()
        for number in followers or range(3):
            one = self.members[number]
            if one is not leader:
                one.member.replicate(list(leader.member.log), leader.member.committed_index)


async def test_followers_have_what_the_leader_changed(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    leader = trio.lead(0)
    leader.topics.update(TopicConfig("orders", 4, 4))
    leader.groups.update(SubscriptionGroup("g", retry_max_times=3))
    leader.offsets.commit("g", "orders", 2, 77)
    leader.delays.offsets[3] = 5
    leader.delays.note(10, 10)
    saved = asyncio.gather(*(table.saved() for table in leader.tables))
    await asyncio.sleep(0)
    trio.sync(leader)
    await saved
    for follower in trio.members[1:]:
        assert follower.pictures() == leader.pictures()
        assert "orders" in follower.changed_topics
        assert follower.offsets.query("g", "orders", 2) == 77
        assert follower.offsets.groups_of("orders") == {"g"}
        assert follower.delays.offsets == {3: 5}
    leader.topics.delete("orders")
    trio.sync(leader)
    assert all("orders" not in one.topics for one in trio.members)


async def test_a_topic_is_in_the_log_before_what_is_sent_to_it(tmp_path: Path) -> None:
    leader = Trio(tmp_path).lead(0)
    before = len(leader.member.log)
    assert leader.topics.create_on_send("orders", "TBW102", 4) is not None
    leader.member.propose(EntryKind.MESSAGE, b"the message")
    kinds = [each.kind for each in leader.member.log[before:]]
    assert kinds == [EntryKind.METADATA, EntryKind.MESSAGE]
    (table, patch) = leader.metadata()[-1]
    assert (table, list(patch["topicConfigTable"])) == ("topics.json", ["orders"]), "the changed row and no other"


async def test_offsets_wait_for_their_time_and_go_out_together(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    leader = trio.lead(0)
    before = len(leader.member.log)
    for number in range(1000):
        leader.offsets.commit("g", f"T{number % 10}", number % 4, number)
    assert len(leader.member.log) == before
    saved = asyncio.ensure_future(leader.offsets.saved())
    await asyncio.sleep(0)
    assert len(leader.member.log) == before + 1
    assert not saved.done()
    trio.sync(leader)
    await saved


async def test_the_first_leader_of_a_group_brings_its_own_topics(tmp_path: Path) -> None:
    """A broker that ran alone becomes the first member of a group: what it had in its files is the group's."""
    trio = Trio(tmp_path)
    kept = {"topicConfigTable": {"old": TopicConfig("old", 3, 3).to_json()}, "dataVersion": {"counter": 9}}
    trio.members[1] = One(tmp_path / "n1", 1, kept)
    leader = trio.lead(1)
    trio.sync(leader)
    assert all(one.topics.get("old") == TopicConfig("old", 3, 3) for one in trio.members)
    assert all(one.topics.data_version.counter == 9 for one in trio.members)


async def test_rows_that_only_a_followers_files_had_are_dropped_with_the_groups_first_tables(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    kept = {"topicConfigTable": {"only-here": TopicConfig("only-here", 3, 3).to_json()}}
    trio.members[1] = One(tmp_path / "n1", 1, kept)
    leader = trio.lead(0)
    trio.sync(leader)
    assert trio.members[1].pictures() == leader.pictures()


async def test_uncommitted_changes_are_dropped_when_leadership_is_lost(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    old = trio.lead(0)
    old.topics.update(TopicConfig("kept", 1, 1))
    old.offsets.commit("g", "kept", 0, 5)
    trio.sync(old)
    old.topics.update(TopicConfig("lost", 1, 1))
    old.topics.delete("kept")
    old.offsets.commit("g", "kept", 0, 9)
    waiting = asyncio.ensure_future(old.topics.saved())
    await asyncio.sleep(0)
    old.changed_topics.clear()
    new = trio.lead(2)
    with pytest.raises(NotReplicatedError):
        await waiting
    assert ("lost" in old.topics, "kept" in old.topics) == (False, True)
    assert {"lost", "kept"} <= set(old.changed_topics), "hot topics follow"
    trio.sync(new)
    assert old.pictures() == new.pictures()
    assert old.offsets.query("g", "kept", 0) == -1, "offsets that were never staged are consumed again"


async def test_a_follower_changes_nothing(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    leader = trio.lead(0)
    trio.sync(leader)
    follower = trio.members[1]
    before = follower.pictures()
    follower.offsets.commit("g", "T", 0, 5)
    assert follower.groups.get("anyone") is not None, "a consumer may read from a follower"
    assert follower.topics.create_on_send_back("%RETRY%anyone", 1) is not None
    for change in (
        lambda: follower.topics.update(TopicConfig("T", 1, 1)),
        lambda: follower.topics.delete("T"),
        lambda: follower.groups.update(SubscriptionGroup("g")),
        lambda: follower.groups.delete("g"),
        lambda: follower.offsets.remove_topic("T"),
    ):
        with pytest.raises(FollowsError):
            change()
    assert follower.pictures() == before
    await asyncio.gather(*(table.saved() for table in follower.tables))
    assert not any(each.term for each in follower.member.log if each not in leader.member.log)


async def test_what_a_busy_group_refuses_is_staged_when_it_accepts_again(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    leader = trio.lead(0)
    leader.member.full = True
    leader.topics.update(TopicConfig("waits", 1, 1))
    with pytest.raises(NotReplicatedError):
        await leader.topics.saved()
    leader.member.full = False
    assert leader.group.stage_all()
    trio.sync(leader)
    assert "waits" in trio.members[1].topics


async def test_a_change_of_many_entries_of_which_some_are_refused_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio = Trio(tmp_path)
    leader = trio.lead(0)
    for number in range(20_000):
        leader.offsets.commit("g", f"topic-{number}", 0, 10**15 + number)
    leader.member.refuse_after = 1
    with pytest.raises(NotReplicatedError):
        await leader.offsets.saved()
    leader.member.refuse_after, leader.member.full = None, False
    saved = asyncio.ensure_future(leader.offsets.saved())
    await asyncio.sleep(0)
    assert len(leader.metadata()) > 3
    trio.sync(leader)
    await saved
    assert trio.members[2].pictures() == leader.pictures()


async def test_files_equal_rocketmqs_and_a_start_continues_from_the_index_in_the_snapshot(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    leader = trio.lead(0)
    leader.offsets.commit("g", "orders", 2, 77)
    saved = asyncio.ensure_future(leader.offsets.saved())
    await asyncio.sleep(0)
    trio.sync(leader)
    await saved
    follower = trio.members[1]
    await follower.group.save()
    assert follower.group.saved_index == len(leader.member.log) - 1
    assert JsonTable(Door(), follower.folder / "consumerOffset.json").load() == {"offsetTable": {"orders@g": {2: 77}}}
    assert set(JsonTable(Door(), follower.folder / "topics.json").load() or {}) == {"topicConfigTable", "dataVersion"}
    again = One(follower.folder, 1)
    assert again.pictures() == follower.pictures()
    assert again.group.committed.applied_index == follower.group.saved_index


async def test_tables_of_a_member_that_was_far_behind_are_replaced(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    leader = trio.lead(0)
    leader.topics.update(TopicConfig("orders", 4, 4))
    trio.sync(leader, 1)
    behind = trio.members[2]
    assert behind.group.restore(leader.group.encoded()) == leader.member.committed_index
    assert "orders" not in behind.topics, "live tables change on the loop's thread, when the log is replaced"
    behind.group.on_installed()
    assert behind.pictures() == leader.pictures()
    assert "orders" in behind.changed_topics
    assert One(behind.folder, 2).pictures() == leader.pictures()


@pytest.mark.parametrize("seed", range(30))
async def test_any_history_leaves_all_members_with_the_same_tables(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    trio = Trio(tmp_path)
    leader = trio.lead(0)
    trio.sync(leader)
    for _ in range(60):
        name = f"T{dice.randrange(5)}"
        match dice.randrange(8):
            case 0:
                leader.topics.update(TopicConfig(name, dice.randrange(1, 9), 1))
            case 1:
                leader.topics.delete(name)
                leader.offsets.remove_topic(name)
            case 2:
                leader.groups.get(f"g{dice.randrange(5)}")
            case 3:
                leader.groups.delete(f"g{dice.randrange(5)}")
            case 4 | 5:
                leader.offsets.commit(f"g{dice.randrange(3)}", name, dice.randrange(3), dice.randrange(100))
            case 6:
                trio.sync(leader, *dice.sample(range(3), dice.randrange(1, 3)))
            case 7:
                # The next leader is one that has all that is committed; what else it has counts, the rest is cut.
                have = [one for one in trio.members if len(one.member.log) > leader.member.committed_index]
                other = dice.choice(have)
                if other is not leader:
                    other.member.commit(leader.member.committed_index)
                    leader = trio.lead(other.member.number)
                    trio.sync(leader)
        assert leader.group.leads
    for table in leader.tables:
        leader.group.changed(table)
    flushed = asyncio.gather(*(table.saved() for table in leader.tables))
    await asyncio.sleep(0)
    trio.sync(leader)
    await flushed
    expected = leader.pictures()
    for one in trio.members:
        assert one.pictures() == expected
        assert one.group.committed == leader.group.committed
        assert {name: one.group.committed.picture(name) for name in expected} == expected
    assert isinstance(leader.member.log[0], Entry)
