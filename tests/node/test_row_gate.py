"""A send to a new topic waits until the topic is durable, keeps its order, and is refused if it cannot be saved."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_broker import FakeBroker, FakeChannel, MemoryFile
from fake_member import FakeMember

from tallystick.node.broker.feeding import hot_queues
from tallystick.node.broker.group.replicated import GroupTables
from tallystick.node.broker.processors.send import SendProcessor
from tallystick.node.broker.processors.send_back import SendBackProcessor
from tallystick.node.broker.tables.row_gate import RowGate
from tallystick.node.broker.tables.saving import NotReplicatedError
from tallystick.node.broker.tables.topics import TopicConfig, TopicTable, retry_topic
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store._kernel import Door
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.formats.message import Message, PutResult, PutStatus

SETTINGS = BrokerSettings(brokerIP1="127.0.0.1", brokerName="broker-a", brokerClusterName="C1")


class HeldFile(MemoryFile):
    """A save waits until the test lets it go: `begun` counts saves, `let_go` frees one."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self._go = threading.Semaphore(0), threading.Semaphore(0)

    def save(self, value: Any) -> None:
        self.begun.release()
        assert self._go.acquire(timeout=30)
        super().save(value)

    async def wait_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, True, 30)

    def let_go(self, saves: int = 1) -> None:
        self._go.release(saves)

    @property
    def topics(self) -> set[str]:
        return set((self.value or {}).get("topicConfigTable", ()))


def send(topic: str, body: bytes, queue_id: int = 0, **fields: str) -> Command:
    ext = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1", "h": "0", "i": ""}
    return Command(RequestCode.SEND_MESSAGE_V2, ext=ext | {"j": "0", "k": "false"} | fields, body=body)


class Rig:
    """A broker whose topics are in a file that the test holds."""

    def __init__(self) -> None:
        self.file = HeldFile()
        self.broker = FakeBroker(SETTINGS)
        self.broker.topics = TopicTable(self.file, SETTINGS, self.broker.now_ms)
        self.sender = SendProcessor(self.broker)  # type: ignore[arg-type]
        self.bodies: list[bytes] = []
        put = self.broker.store.writes.put

        async def noted(message: Message) -> PutResult:
            self.bodies.append(message.body)
            return await put(message)

        self.broker.store.writes.put = noted

    def send(self, command: Command) -> asyncio.Task[Command | None]:
        return asyncio.ensure_future(self.sender.send(FakeChannel(), command))  # type: ignore[arg-type]

    @property
    def open_queues(self) -> int:
        return self.broker.topics.open_queues("New")


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_send_is_not_stored_before_the_row_of_its_new_topic_is_durable() -> None:
    rig = Rig()
    task = rig.send(send("New", b"1"))
    await rig.file.wait_begun()
    await turns()
    assert not task.done()
    assert rig.bodies == []
    assert hot_queues(rig.broker.topics.get("New"), rig.open_queues) == 0, "the kernel would acknowledge at once"
    rig.file.let_go()
    answer = await task
    assert answer is not None
    assert answer.code == 0
    assert "New" in rig.file.topics
    assert rig.open_queues == 4


async def test_a_topic_made_while_an_older_picture_is_written_waits_for_the_next_picture() -> None:
    rig = Rig()
    first = rig.send(send("Old", b"1"))
    await rig.file.wait_begun()
    second = rig.send(send("New", b"2"))
    await turns()
    rig.file.let_go()
    await first
    await rig.file.wait_begun()
    await turns()
    assert not second.done()
    assert rig.bodies == [b"1"]
    rig.file.let_go()
    await second
    assert {"Old", "New"} <= rig.file.topics


async def test_a_thousand_new_topics_cost_a_handful_of_writes() -> None:
    rig = Rig()
    rig.file.let_go(1000)
    answers = await asyncio.gather(*(rig.send(send(f"T{number}", b"x")) for number in range(1000)))
    assert all(answer is not None and answer.code == 0 for answer in answers)
    assert rig.file.saves <= 3
    assert {f"T{number}" for number in range(1000)} <= rig.file.topics


async def test_sends_that_waited_are_stored_in_their_order_and_before_later_ones() -> None:
    rig = Rig()
    tasks = [rig.send(send("New", b"%d" % number)) for number in range(5)]
    await rig.file.wait_begun()
    await turns()
    topics = rig.broker.topics
    # As early as possible: before the tasks that waited have run.
    release = topics.gate.release

    def and_one_more(rows: Any) -> None:
        release(rows)
        assert not topics.gate.is_open("New"), "no request may overtake those that were released and have not run yet"
        tasks.append(rig.send(send("New", b"5")))

    topics.gate.release = and_one_more  # type: ignore[method-assign]
    opened: list[list[bytes]] = []
    topics.gate.on_open.append(lambda name: opened.append(list(rig.bodies)))
    rig.file.let_go(10)
    await tasks[0]
    await asyncio.gather(*tasks)
    assert rig.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert opened == [[b"0", b"1", b"2", b"3", b"4"]], "the kernel takes over behind those that were released"


async def test_a_send_is_refused_while_the_row_cannot_be_saved_and_taken_when_it_can() -> None:
    broker = FakeBroker(SETTINGS)
    file = MemoryFile()
    broker.topics = TopicTable(file, SETTINGS, broker.now_ms)
    await broker.topics.saved()
    sender = SendProcessor(broker)  # type: ignore[arg-type]
    file.broken = True
    for _ in range(3):
        answer = await sender.send(FakeChannel(), send("New", b"x"))  # type: ignore[arg-type]
        assert answer is not None
        assert answer.code == 14
        assert "No space left" in (answer.remark or "")
    assert broker.store.queues.max_offset("New", 0) == 0, "what was refused is not stored"
    known = await sender.send(FakeChannel(), send("BenchmarkTest", b"x"))  # type: ignore[arg-type]
    assert known is not None
    assert known.code == 0, "a topic that is durable takes messages"
    file.broken = False
    answer = await sender.send(FakeChannel(), send("New", b"x"))  # type: ignore[arg-type]
    assert answer is not None
    assert answer.code == 0
    assert "New" in file.value["topicConfigTable"]


async def test_a_bug_while_a_row_is_saved_blocks_no_request() -> None:
    class Wrong(MemoryFile):
        def save(self, value: Any) -> None:
            raise TypeError("no JSON")

    topics = TopicTable(Wrong(), SETTINGS, lambda: 1)
    topics.create_on_send("New", "TBW102", 4)
    with pytest.raises(OSError, match="TypeError: no JSON"):
        await topics.gate.passed("New")


async def test_only_new_queues_of_a_topic_wait_while_its_change_is_saved() -> None:
    rig = Rig()
    rig.file.let_go(1)
    await rig.send(send("New", b"1"))
    rig.broker.topics.update(TopicConfig("New", 8, 8))
    assert rig.open_queues == 4
    waits, passes = rig.send(send("New", b"high", 7)), rig.send(send("New", b"low", 3))
    await passes
    assert not waits.done()
    rig.broker.topics.update(TopicConfig("New", 2, 2))
    assert rig.open_queues == 2, "the file may have either number"
    rig.file.let_go(10)
    await waits
    await rig.broker.topics.saved()
    assert rig.open_queues == 2


async def test_a_topic_deleted_and_made_again_is_new_again() -> None:
    rig = Rig()
    rig.file.let_go(1)
    await rig.send(send("New", b"1"))
    rig.broker.topics.delete("New")
    task = rig.send(send("New", b"2"))
    await turns()
    assert not task.done(), "the file on its way may lack the topic"
    rig.broker.topics.delete("New")
    rig.file.let_go(10)
    answer = await task
    assert answer is not None
    assert (answer.code, rig.bodies) == (17, [b"1"]), "deleted while the send waited"


async def test_what_is_sent_back_waits_for_its_retry_topic_and_group() -> None:
    rig = Rig()
    rig.file.let_go(1)
    await rig.send(send("New", b"1"))
    groups = HeldFile()
    rig.broker.groups._file = groups
    stored = rig.broker.store.reads.units("New", 0, 0, 1)[0][0]
    ext = {"offset": str(stored), "group": "g", "delayLevel": "1", "maxReconsumeTimes": "16"}
    back = SendBackProcessor(rig.broker)  # type: ignore[arg-type]
    task = asyncio.ensure_future(back.send_back(FakeChannel(), Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext)))  # type: ignore[arg-type]
    await rig.file.wait_begun()
    rig.file.let_go(10)
    await groups.wait_begun()
    await turns()
    assert not task.done()
    groups.let_go(10)
    answer = await task
    assert answer is not None
    assert answer.code == 0
    assert retry_topic("g") in rig.file.topics
    assert "g" in groups.value["subscriptionGroupTable"]


def group_of(folder: Path) -> tuple[FakeMember, TopicTable, GroupTables]:
    member = FakeMember(0)
    topics = TopicTable(MemoryFile(), SETTINGS, lambda: 1)
    tables = GroupTables(member, ReplicatedTables(), [(topics, MemoryFile())], door=Door(), folder=folder)
    member.on_apply.append(tables.on_apply)
    member.on_ready.append(lambda term: tables.on_ready())
    member.on_role.append(lambda role, term, leader: None if leader == 0 else tables.on_lost())
    member.on_abandoned.append(tables.on_abandoned)
    member.lead(1)
    member.commit()
    return member, topics, tables


async def test_in_a_group_a_row_in_the_log_is_as_good_as_saved(tmp_path: Path) -> None:
    member, topics, _ = group_of(tmp_path)
    topics.create_on_send("New", "TBW102", 4)
    assert member.log[-1].kind is EntryKind.METADATA
    assert topics.open_queues("New") == 4
    await topics.gate.passed("New")


async def test_in_a_group_a_row_that_the_log_did_not_take_refuses_sends_until_it_is_staged(tmp_path: Path) -> None:
    member, topics, tables = group_of(tmp_path)
    member.refuse_after = 0
    topics.create_on_send("New", "TBW102", 4)
    assert topics.open_queues("New") == 0
    with pytest.raises(NotReplicatedError):
        await topics.gate.passed("New")
    member.full, member.refuse_after = False, None
    opened: list[str] = []
    topics.gate.on_open.append(opened.append)
    assert tables.stage_all()
    assert "New" in opened
    assert topics.open_queues("New") == 4


async def test_in_a_group_rows_that_the_log_dropped_are_staged_again_before_the_next_message(tmp_path: Path) -> None:
    """The disk was full: what was staged and not written is gone, and the same member continues to lead."""
    member, topics, tables = group_of(tmp_path)
    topics.create_on_send("Kept", "TBW102", 4)
    topics.create_on_send("Gone", "TBW102", 4)
    topics.delete("Gone")
    topics.create_on_send("New", "TBW102", 4)
    written = len(member.log) - 2  # the deletion is dropped, too
    member.abandon(written - 1)
    assert topics.open_queues("New") == 0
    assert tables.stage_all()
    assert topics.open_queues("New") == 4
    member.commit()
    committed = tables.committed.picture("topics.json")["topicConfigTable"]
    assert {"Kept", "New"} <= committed.keys()
    assert "Gone" not in committed


def test_the_status_of_a_refusal_is_one_that_clients_try_elsewhere() -> None:
    assert not PutStatus.SERVICE_NOT_AVAILABLE.stored


# -- the gate by itself ------------------------------------------------------------------------------------------------


class Gate(RowGate):
    """A gate of rows that the test makes durable; nothing is saved."""

    def __init__(self) -> None:
        self.rows: set[str] = set()
        super().__init__(self.rows.__contains__, lambda: None)

    async def waiting_for(self, row: str) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self.passed(row))
        await asyncio.sleep(0)
        return task


async def test_a_save_that_failed_refuses_only_those_whose_row_is_not_durable() -> None:
    gate = Gate()
    safe, lost = await gate.waiting_for("Safe"), await gate.waiting_for("Lost")
    gate.rows.add("Safe")  # by another save, which has not told the gate yet
    gate.fail(OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        await lost
    gate.release(["Safe"])
    await safe


async def test_a_send_that_comes_while_the_gate_opens_passes_behind_the_others() -> None:
    gate, passed = Gate(), []
    first = await gate.waiting_for("New")
    first.add_done_callback(lambda _: passed.append("first"))
    second = asyncio.ensure_future(gate.passed("New"))  # it runs when the first one was released, before the gate opens
    second.add_done_callback(lambda _: passed.append("second"))
    gate.rows.add("New")
    gate.release(["New"])
    assert not gate.is_open("New")
    async with asyncio.timeout(10):
        await second
    await turns()
    assert passed == ["first", "second"]
    assert gate.is_open("New")


async def test_a_send_that_was_given_up_keeps_no_other_waiting() -> None:
    gate = Gate()
    first, second = await gate.waiting_for("New"), await gate.waiting_for("New")
    first.cancel()
    await turns()
    gate.rows.add("New")
    gate.release(["New"])
    async with asyncio.timeout(10):
        await second
