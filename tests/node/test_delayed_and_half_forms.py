"""The forms that delayed, half and op messages have on the disk, each rule of them by itself."""

from __future__ import annotations

import pytest
from fake_broker import MemoryFile

from tallystick.node.broker.services.delay import DelayLevels, to_schedule
from tallystick.node.broker.services.half import ended_offsets, to_commit
from tallystick.node.broker.services.schedule import DelayOffsets
from tallystick.store.formats import properties
from tallystick.store.formats.message import Message
from tallystick.store.formats.record import Record

LEVELS = DelayLevels([1000, 3000, 60_000])
PREPARED, COMMITTED, ROLLED_BACK = 4, 8, 12


@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("3", 3), ("4", 3), ("99", 3)])
def test_a_level_above_the_highest_is_the_highest(asked: str, level: int) -> None:
    delayed = to_schedule(Message("T", 1, b"x", f"DELAY\x01{asked}\x02"), LEVELS)
    assert (delayed.topic, delayed.queue_id) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    assert properties.decode(delayed.properties) == {"DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "1"}


@pytest.mark.parametrize(
    ("sys_flag", "topic"),
    [(0, "SCHEDULE_TOPIC_XXXX"), (PREPARED, "T"), (ROLLED_BACK, "T"), (COMMITTED, "SCHEDULE_TOPIC_XXXX")],
)
def test_a_half_message_waits_for_its_end_not_for_a_time(sys_flag: int, topic: str) -> None:
    assert to_schedule(Message("T", 0, b"x", "DELAY\x011\x02", sys_flag=sys_flag), LEVELS).topic == topic


def test_a_committed_message_names_its_half() -> None:
    half = Record("HALF", 0, b"x", "REAL_TOPIC\x01T\x02REAL_QID\x012\x02", pos=4711, queue_offset=3)
    message = to_commit(half)
    assert (message.topic, message.queue_id, message.sys_flag) == ("T", 2, COMMITTED)
    assert message.prepared_transaction_offset == 4711


def test_an_op_record_may_end_several_halves() -> None:
    """RocketMQ 5 writes one for many."""
    op = Record("OP", 0, b"3,17,x,2", "TAGS\x01d\x02")
    assert ended_offsets(op) == [3, 17, 2]
    assert ended_offsets(op._replace(properties="TAGS\x01other\x02")) == []


def test_a_new_leader_continues_from_the_saved_offset() -> None:
    """What the former one delivered and did not note is delivered again, never passed over."""
    table = DelayOffsets(MemoryFile({"offsetTable": {1: 5}}))
    table.offsets[1] = 9
    table.offsets[2] = 1
    table.take_head({})
    assert table.offsets == {1: 5}
    table.note(100, 100)
    assert table.to_json() == {"offsetTable": {1: 5}}
