"""Expiry by topic: the attribute, the service beside a slow twin, requests about expired messages."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_broker import MemoryFile, TableBroker

from tallystick.node.broker.processors.query import QueryProcessor
from tallystick.node.broker.services.expiry import HOUR_MS, STEP_MS, ExpiryService, cutoff
from tallystick.node.broker.tables.first_offsets import First, FirstOffsets
from tallystick.node.broker.tables.topic_attributes import (
    MAX_RETENTION_HOURS,
    hours_of,
    parse_changes,
    retention_after,
)
from tallystick.node.broker.tables.topics import TopicConfig, TopicTable
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.store import fastjson
from tallystick.store.formats.message import QueryResult
from tallystick.store.formats.record import Record
from tallystick.store.settings import StoreSettings

NOW = 1_800_000_000_000
TOPIC_FIELDS = {
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


# -- the attribute ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", {}),
        ("+retention.hours=24", {"+retention.hours": "24"}),
        ("-retention.hours", {"-retention.hours": ""}),
        ("+a=b,-c", {"+a": "b", "-c": ""}),
        ("+a=", {"+a": ""}),
        ("+a=b=c", {"+a": "b=c"}),
    ],
)
def test_changes_of_attributes_are_read_as_the_tool_writes_them(text, changes):
    assert parse_changes(text) == changes


@pytest.mark.parametrize("text", ["a=b", "+a", "-a=b", "+a=1,+a=2", ",", "+a=b,", " +a=b"])
def test_other_forms_are_refused(text):
    with pytest.raises(ValueError, match="attribute"):
        parse_changes(text)


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.5", "24h", " 24", "1e3", "87601", "9" * 40, "\u0663"])
def test_a_retention_that_is_none_is_refused_with_its_range(text):
    with pytest.raises(ValueError, match=f"retention.hours of a topic is .*0 to {MAX_RETENTION_HOURS}"):
        hours_of(text)


def test_a_change_sets_removes_or_leaves_the_retention():
    assert retention_after(5, {}) == 5
    assert retention_after(5, {"+message.type": "NORMAL"}) == 5
    assert retention_after(5, {"+retention.hours": "7"}) == 7
    assert retention_after(5, {"+retention.hours": "0"}) == 0
    assert retention_after(5, {"-retention.hours": ""}) == 0
    for wrong in ({"retention.hours": "7"}, {"+retention.hours": "7", "-retention.hours": ""}):
        with pytest.raises(ValueError, match=r"retention\.hours"):
            retention_after(5, wrong)


def test_a_row_without_attributes_is_as_before_and_others_stay():
    assert "attributes" not in TopicConfig("T").to_json()
    row = TopicConfig("T", retention_hours=24).to_json()
    assert row["attributes"] == {"retention.hours": "24"}
    assert TopicConfig.from_json(row) == TopicConfig("T", retention_hours=24)
    foreign = row | {"attributes": {"message.type": "FIFO", "retention.hours": "3"}}
    config = TopicConfig.from_json(foreign)
    assert (config.retention_hours, config.to_json()) == (3, foreign)
    wrong = row | {"attributes": {"retention.hours": "soon"}}
    config = TopicConfig.from_json(wrong)
    assert (config.retention_hours, config.to_json()) == (0, wrong), "it must not make the table unreadable"


def test_the_tools_set_and_remove_it():
    async def run() -> None:
        broker = TableBroker()

        async def update(attributes: str | None = None, **fields: str) -> Command:
            ext = TOPIC_FIELDS | {"topic": "T"} | fields | ({} if attributes is None else {"attributes": attributes})
            return await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)

        assert (await update("+retention.hours=24")).remark is None
        assert broker.topics.get("T").retention_hours == 24
        await update(writeQueueNums="8")
        assert broker.topics.get("T").retention_hours == 24, "a tool of 4.8 does not know the attribute, and keeps it"
        assert broker.topics.get("T").write_queue_nums == 8
        for wrong in ("+retention.hours=-1", "+retention.hours=99999", "retention.hours=4"):
            refused = await update(wrong)
            assert refused.code == 1
            assert "retention.hours" in refused.remark
        assert broker.topics.get("T").retention_hours == 24
        await update("+message.type=NORMAL")  # of RocketMQ 5: without effect, as 4.8 ignores all attributes
        assert broker.topics.get("T").to_json()["attributes"] == {"retention.hours": "24"}
        assert "has no effect" in (await update("+retention.hours=72")).remark
        assert "system topic" in (await update("+retention.hours=1", topic="TBW102")).remark
        rows = [TopicConfig("T").to_json() | {"attributes": {"-retention.hours": ""}}]
        body = fastjson.dumps({"topicConfigList": rows})
        await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
        assert broker.topics.get("T").retention_hours == 0
        for wrong_list in ([1], "x", {"+retention.hours": "x"}, {"retention.hours": "4"}):
            body = fastjson.dumps({"topicConfigList": [TopicConfig("T").to_json() | {"attributes": wrong_list}]})
            refused = await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
            assert refused.code == 1
            assert "attribute" in refused.remark or "retention" in refused.remark

    asyncio.run(run())


def test_a_topic_made_by_a_send_does_not_inherit_it():
    topics = TopicTable(MemoryFile(), BrokerSettings(), lambda: 1)
    topics.update(TopicConfig("model", perm=7, retention_hours=3))
    assert topics.create_on_send("T", "model", 4).retention_hours == 0
    assert topics.create_on_send_back("%RETRY%g", 1).retention_hours == 0


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_table_is_read_as_it_was_written():
    file = MemoryFile()
    table = FirstOffsets(file)
    table.note({"T": {0: First(7, 700), 3: First(1, 50)}})
    table.note({"T": {0: First(9, 900)}})
    table.persist()
    again = FirstOffsets(file)
    assert again.queues("T") == {0: First(9, 900), 3: First(1, 50)}
    assert again.has_expired("T", 0, 8, 850)
    assert not again.has_expired("T", 0, 9, 910)
    assert not again.has_expired("T", 0, 3, 5000), "of a later topic with this name"
    assert not again.has_expired("T", 1, 0, 0)
    again.remove("T", "no")
    again.persist()
    assert file.value == {"offsetTable": {}}


@pytest.mark.parametrize("row", [{"0": [1]}, {"x": [1, 2]}, {"0": [-1, 2]}, {"0": [1, -2]}, {"0": 5}, {"0": ["a", 1]}])
def test_a_wrong_row_makes_the_file_wrong(row):
    file = MemoryFile()
    file.value = {"offsetTable": {"T": row}}
    with pytest.raises((ValueError, TypeError)):
        FirstOffsets(file)


def test_the_cutoff_is_a_whole_minute_and_never_too_early():
    for now_ms in (NOW, NOW + 1, NOW + STEP_MS - 1):
        before_ms = cutoff(now_ms, 2)
        assert before_ms % STEP_MS == 0
        assert 0 <= now_ms - 2 * HOUR_MS - before_ms < STEP_MS


# -- the service beside its twin ---------------------------------------------------------------------------------------


class End(NamedTuple):
    offset: int
    last_pos: int
    next_ms: int


class ListedQueues:
    """`store.expiry`, over lists of (store time, position). `floors`: what the store forgets when it is closed."""

    def __init__(self, lives: dict[tuple[str, int], list[tuple[int, int]]]) -> None:
        self.lives = lives
        self.floors: dict[tuple[str, int], int] = {}
        self.now = NOW
        self.settings = StoreSettings()
        self.expiry = self
        self.searched = 0
        self.turn = 3

    async def now_ms(self) -> int:
        return self.now

    def extent(self, topic: str, queue_id: int) -> tuple[int, int]:
        key = (topic, queue_id)
        return self.floors.get(key, 0), len(self.lives.get(key, ()))

    async def search(self, queues: Any) -> list[End]:
        await asyncio.sleep(0)
        found = []
        for topic, queue_id, before_ms in queues[: self.turn]:
            self.searched += 1
            rows = self.lives.get((topic, queue_id), [])
            low = at = self.floors.get((topic, queue_id), 0)
            while at < len(rows) and rows[at][0] < before_ms:
                at += 1
            found.append(End(at, rows[at - 1][1] if at > low else -1, rows[at][0] if at < len(rows) else -1))
        return found

    async def begin_at(self, begins: Any) -> list[bool]:
        await asyncio.sleep(0)
        return [self._begin(*begin) for begin in begins[: self.turn]]

    def begin_now(self, begin: Any) -> bool:
        return self._begin(*begin)

    def _begin(self, topic: str, queue_id: int, offset: int, last_pos: int) -> bool:
        key = (topic, queue_id)
        rows, low = self.lives.get(key, []), self.floors.get(key, 0)
        if offset > low and (offset > len(rows) or rows[offset - 1][1] != last_pos):
            return False
        self.floors[key] = max(low, offset)
        return True


class Run:
    """A broker whose parts are killed and started again, and what must be true of it."""

    def __init__(self) -> None:
        self.files = {"topics": MemoryFile(), "first": MemoryFile()}
        self.store = ListedQueues({})
        self.seen: dict[tuple[str, int], int] = {}
        self.pos = 0
        self.open()

    def open(self) -> None:
        self.topics = TopicTable(self.files["topics"], BrokerSettings(), lambda: 1)
        self.service = ExpiryService(self, FirstOffsets(self.files["first"]))  # type: ignore[arg-type]

    async def start_again(self) -> None:
        self.store.floors.clear()
        for file in self.files.values():
            file.value = copy.deepcopy(file.value)
        self.open()
        await self.service.apply()

    async def do(self, op: str, topic: str, number: int) -> None:
        store = self.store
        if op == "send":
            for queue_id in range(2):
                for _ in range(number % 4):
                    self.pos += 100
                    if topic in self.topics:
                        store.lives.setdefault((topic, queue_id), []).append((store.now, self.pos))
        elif op == "time":
            store.now += number * HOUR_MS // 7
        elif op == "back":
            store.now -= number * HOUR_MS // 9
        elif op == "retention":
            self.topics.update(TopicConfig(topic, 2, 2, retention_hours=number % 4))
            self.topics.persist()
        elif op in ("delete", "half-delete") and topic in self.topics:
            self.topics.delete(topic)
            self.topics.persist()
            for queue_id in range(2):
                for kept in (store.lives, store.floors, self.seen):
                    kept.pop((topic, queue_id), None)
            if op == "delete":  # otherwise the process is killed before the rows are removed
                self.service.offsets.remove(topic)
                self.service.offsets.persist()
        elif op == "kill":
            await self.start_again()
        elif op == "broken":
            self.files["first"].broken = True
            await self.step(must=False)
            self.files["first"].broken = False
            await self.start_again()
        elif op == "pass":
            await self.step(must=True)
        self.look(hidden_may_grow=op in ("pass", "broken", "kill"))

    async def step(self, *, must: bool) -> None:
        try:
            await self.service.step()
        except OSError:
            assert not must
            return
        for (topic, queue_id), rows in self.store.lives.items():
            config = self.topics.get(topic)
            if config is None or not config.retention_hours:
                continue
            low = self.store.extent(topic, queue_id)[0]
            before_ms = cutoff(self.store.now, config.retention_hours)
            assert low == len(rows) or rows[low][0] >= before_ms, "an expired message is still there"
            for time_ms, _ in rows[self.seen.get((topic, queue_id), 0) : low]:
                assert time_ms < before_ms or any(later < before_ms for later, _ in rows[:low])

    def look(self, *, hidden_may_grow: bool) -> None:
        for key in self.store.lives:
            low = self.store.extent(*key)[0]
            before = self.seen.get(key, 0)
            assert low >= before, f"{key} begins earlier again: {low}, after {before}"
            assert hidden_may_grow or low == before
            self.seen[key] = low


OPS = ("send", "send", "time", "time", "back", "retention", "delete", "half-delete", "kill", "broken", "pass", "pass")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OPS), st.sampled_from("AB"), st.integers(0, 9)), max_size=60))
def test_queues_begin_where_the_twin_says_and_never_earlier_again(ops):
    async def run() -> None:
        broker = Run()
        for op in ops:
            await broker.do(*op)

    asyncio.run(run())


def test_only_queues_whose_first_message_may_have_expired_are_searched():
    async def run() -> None:
        broker = Run()
        broker.topics.update(TopicConfig("T", 1000, 1000, retention_hours=1))
        for queue_id in range(1000):
            broker.store.lives["T", queue_id] = [(NOW, queue_id)]
        broker.store.turn = 64
        await broker.service.step()
        assert broker.store.searched == 1000
        await broker.service.step()
        assert broker.store.searched == 1000
        broker.store.now += HOUR_MS + 2 * STEP_MS
        await broker.service.step()
        assert broker.store.searched == 2000
        assert broker.store.extent("T", 999) == (1, 1)
        await broker.service.step()
        assert broker.store.searched == 2000, "an empty queue is not searched"

    asyncio.run(run())


def test_a_follower_begins_where_the_group_committed_and_tries_again_until_it_has_the_messages():
    class Follower:
        leads = False

    async def run() -> None:
        broker = Run()
        service = broker.service
        service.offsets.replica = Follower()  # type: ignore[assignment]
        broker.store.lives["T", 0] = [(NOW, 100)]
        service.offsets.take({"offsetTable": {"T": {"0": [2, 200], "1": [1, 5]}}})
        await service.apply_rest()
        assert broker.store.extent("T", 0) == (0, 1)
        broker.store.lives["T", 0].append((NOW, 200))
        await service.apply_rest()
        assert broker.store.extent("T", 0) == (2, 2)
        with pytest.raises(ValueError, match="follows"):
            service.offsets.note({"T": {0: First(3, 300)}})
        await service.step()  # ends, and decides nothing

    asyncio.run(run())


def test_leadership_that_is_lost_before_the_commit_hides_nothing():
    async def run() -> None:
        broker = Run()
        broker.topics.update(TopicConfig("T", 1, 1, retention_hours=1))
        broker.store.lives["T", 0] = [(NOW - 2 * HOUR_MS, 100)]
        stopping = broker.service
        broker.files["first"].broken = True
        with pytest.raises(OSError, match="No space"):
            await stopping.step()
        assert broker.store.extent("T", 0) == (0, 1)
        broker.files["first"].broken = False
        stopping.halt()
        await stopping.step()
        assert broker.store.extent("T", 0) == (0, 1), "a service that is told to stop records nothing more"

    asyncio.run(run())


# -- requests about expired messages -----------------------------------------------------------------------------------


def test_an_expired_message_is_not_found_by_id_or_key():
    async def run() -> None:
        broker = TableBroker()
        records = [Record("T", 0, b"x", queue_offset=at, pos=at * 100, store_timestamp_ms=NOW) for at in range(4)]
        store: Any = broker.store
        store.records = {record.pos: record.encode() for record in records}
        store.query = lambda *_: QueryResult(1, 2, [record.encode() for record in records])
        queries = QueryProcessor(broker)  # type: ignore[arg-type]
        ext = {"topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(NOW)}

        def by_key() -> Command:
            return queries.query(None, Command(RequestCode.QUERY_MESSAGE, ext=ext))

        def by_id(pos: int) -> int:
            command = Command(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(pos)})
            return queries.view(None, command).code

        assert len(by_key().body) == sum(len(record.encode()) for record in records)
        broker.expiry.offsets.note({"T": {0: First(3, 200)}})
        assert by_key().body == records[3].encode()
        assert [by_id(record.pos) for record in records] == [1, 1, 1, 0]
        broker.expiry.offsets.note({"T": {0: First(4, 300)}})
        assert by_key().code == 22

    asyncio.run(run())
