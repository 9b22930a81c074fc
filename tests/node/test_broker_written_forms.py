"""The records that the broker writes by itself, compared with those in stores and recordings of RocketMQ 4.8.0.

The order of properties is not compared: RocketMQ's is that of a Java HashMap.
"""

import base64
import itertools
import json
import lzma
from pathlib import Path

import pytest
from fake_broker import FakeBroker, FakeChannel

from tallystick.node.broker.processors.reply import ReplyProcessor
from tallystick.node.broker.processors.send import SendProcessor
from tallystick.node.broker.processors.send_back import sent_back
from tallystick.node.broker.services.delay import DelayError, DelayLevels, delay_level, from_schedule, to_schedule
from tallystick.node.broker.services.half import check_request, ended_offsets, to_commit, to_op, with_properties
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.command import Command
from tallystick.store.formats import properties
from tallystick.store.formats.message import Host, Message
from tallystick.store.formats.record import Record
from tallystick.store.settings import StoreSettings

LEVELS = DelayLevels(StoreSettings().delay_levels_ms())


@pytest.fixture
def records(golden_folder: Path, golden) -> dict[int, Record]:
    """Every record of the golden store `clean`, by position."""
    listing = golden_folder / "clean" / "expected.json.xz"
    segments = [(int(path.name), path.read_bytes()) for path in sorted((golden("clean") / "commitlog").iterdir())]
    result = {}
    for message in json.loads(lzma.decompress(listing.read_bytes()))["opened"]["messages"]:
        pos = message["offset"]
        start, data = max(segment for segment in segments if segment[0] <= pos)
        result[pos] = Record.decode(data, pos - start)
    return result


def of(records: dict[int, Record], topic: str) -> list[Record]:
    return [record for record in records.values() if record.topic == topic]


def same(message: Message, record: Record) -> None:
    """The message, once stored, is this record."""
    assert properties.decode(message.properties) == record.property_table()
    assert (message.topic, message.queue_id, message.body, message.flag, message.sys_flag) == (
        (record.topic, record.queue_id, record.body, record.flag, record.sys_flag)
    )
    assert (message.born_timestamp_ms, message.born_host) == (record.born_timestamp_ms, record.born_host)
    assert message.store_host in (None, record.store_host)
    assert message.reconsume_times == record.reconsume_times
    assert message.prepared_transaction_offset == record.prepared_transaction_offset


def test_delivered_messages(records):
    delayed = {record.property_table()["UNIQ_KEY"]: record for record in of(records, "SCHEDULE_TOPIC_XXXX")}
    delivered = of(records, "GoldDelay")
    assert len(delivered) > 30
    for record in delivered:
        same(from_schedule(delayed[record.property_table()["UNIQ_KEY"]]), record)


def test_delayed_messages_are_what_was_sent_and_where_it_belongs(records):
    for record in of(records, "SCHEDULE_TOPIC_XXXX"):
        names = record.property_table()
        sent = Message(
            names["REAL_TOPIC"],
            int(names["REAL_QID"]),
            record.body,
            properties.encode({n: v for n, v in names.items() if not n.startswith("REAL_")}),
            record.flag,
            record.sys_flag,
            record.born_timestamp_ms,
            record.born_host,
            reconsume_times=record.reconsume_times,
        )
        same(to_schedule(sent, LEVELS), record)


def test_committed_messages(records):
    committed = of(records, "GoldTx")
    assert len(committed) > 20
    for record in committed:
        same(to_commit(records[record.prepared_transaction_offset]), record)


def test_op_records(records):
    ops = of(records, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    assert len(ops) > 40
    for record in ops:
        (half_offset,) = ended_offsets(record)
        same(to_op(0, half_offset, record.store_host, record.born_timestamp_ms), record)
        assert to_op(0, half_offset, record.store_host, 0).properties == record.properties


def test_copies_of_half_messages_count_the_checks(records):
    by_key: dict[str, list[Record]] = {}
    for record in of(records, "RMQ_SYS_TRANS_HALF_TOPIC"):
        by_key.setdefault(record.property_table()["UNIQ_KEY"], []).append(record)
    assert max(map(len, by_key.values())) > 10
    for copies in by_key.values():
        for checks, (old, new) in enumerate(itertools.pairwise(copies), start=1):
            changed = with_properties(old, {"TRANSACTION_CHECK_TIMES": str(checks)})
            assert properties.decode(changed.properties) == new.property_table()
            # RocketMQ forgets the producer's flag here; ours keeps it.
            assert changed._replace(properties="") == new._replace(
                properties="",
                flag=old.flag,
                pos=old.pos,
                queue_offset=old.queue_offset,
                store_timestamp_ms=old.store_timestamp_ms,
            )


def test_messages_sent_back(records):
    """Retry and dead letter: each from the record that its consumer had, by way of the schedule topic."""
    retries = [r for r in of(records, "SCHEDULE_TOPIC_XXXX") if r.property_table()["REAL_TOPIC"].startswith("%RETRY%")]
    dead = [r for r in of(records, "SCHEDULE_TOPIC_XXXX") if r.property_table()["REAL_TOPIC"].startswith("%DLQ%")]
    assert len(retries) > 10 and len(dead) > 3
    for record in retries:
        names = record.property_table()
        original = records[int(names["ORIGIN_MESSAGE_ID"][16:], 16)]
        message = sent_back(original, names["REAL_TOPIC"], int(names["REAL_QID"]), int(names["DELAY"]))
        same(to_schedule(message, LEVELS), record)
    for record in dead:
        names = record.property_table()
        (tried,) = [
            r
            for r in of(records, names["REAL_TOPIC"].replace("%DLQ%", "%RETRY%"))
            if r.property_table()["UNIQ_KEY"] == names["UNIQ_KEY"]
        ]
        same(to_schedule(sent_back(tried, names["REAL_TOPIC"], 0, None), LEVELS), record)


def frames(golden_folder: Path, name: str) -> list[dict]:
    with lzma.open(golden_folder / "wire" / f"{name}.jsonl.xz") as lines:
        return [json.loads(line) for line in lines]


def command(frame: dict) -> Command:
    header = frame["header"]
    body = base64.b64decode(frame["body"])
    return Command(header["code"], header["opaque"], header["flag"], ext=header.get("extFields"), body=body)


@pytest.mark.parametrize("recording", ["send", "transaction", "consume"])
async def test_recorded_sends_get_the_recorded_answers(golden_folder, recording):
    broker = FakeBroker(BrokerSettings(brokerIP1="127.0.0.1", brokerClusterName="PeerCluster"))
    processor = SendProcessor(broker)  # type: ignore[arg-type]
    recorded = frames(golden_folder, recording)
    answers = {
        (f["conn"], f["header"]["opaque"]): f["header"]
        for f in recorded
        if f["dir"] == "response" and f["from"] == "server"
    }
    ends: list[tuple[int, int]] = []  # recorded position, size we made
    count = 0
    for frame in recorded:
        if frame["dir"] != "request" or frame["header"]["code"] not in (10, 310, 320):
            continue
        request, expected = command(frame), answers.get((frame["conn"], frame["header"]["opaque"]))
        broker.topics.update(TopicConfig(request.ext["b"], 8, 8))
        before = broker.store.max_pos
        answer = await processor.send(FakeChannel(), request)  # type: ignore[arg-type]
        if expected is None:
            assert request.is_oneway and answer is None
            continue
        if expected["code"] == 2:  # its queue was too long; ours is not
            continue
        count += 1
        assert answer.code == expected["code"] and answer.remark == expected.get("remark")
        ours, theirs = answer.ext, expected["extFields"]
        assert ours.keys() == theirs.keys()
        for name in ("queueId", "TRACE_ON", "MSG_REGION"):
            assert ours[name] == theirs[name]
        assert ours["msgId"].count(",") == theirs["msgId"].count(",")
        ends.append((int(theirs["msgId"].split(",")[0][16:], 16), broker.store.max_pos - before))
    assert count > 10
    # Where nothing else was stored between two sends, the second lies where the first one ends: our records have the
    # size of RocketMQ's.
    ends.sort()
    gaps = [following - (pos + size) for (pos, size), (following, _) in itertools.pairwise(ends)]
    assert all(gap >= 0 for gap in gaps)
    assert gaps.count(0) >= len(gaps) // 3


async def test_the_recorded_reply_is_pushed_and_stored_as_recorded(golden_folder):
    recorded = frames(golden_folder, "transaction")
    (sent,) = [f for f in recorded if f["header"]["code"] == 325]
    (pushed,) = [f for f in recorded if f["header"]["code"] == 326]
    broker = FakeBroker(BrokerSettings(brokerIP1="127.0.0.1", brokerClusterName="PeerCluster"))
    broker.host = Host("127.0.0.1", 22411)
    expected = dict(pushed["header"]["extFields"])
    broker.clock.now_ms = int(expected["storeTimestamp"])
    waiting = properties.decode(expected["properties"])["REPLY_TO_CLIENT"]
    channel = broker.producer("pg", waiting)
    replier = FakeChannel(Host("127.0.0.1", int(expected["bornHost"].split(":")[1])))
    answer = await ReplyProcessor(broker).reply(replier, command(sent))  # type: ignore[arg-type]
    (push,) = channel.sent
    assert properties.decode(push.ext["properties"]) == properties.decode(expected.pop("properties"))
    assert {name: value for name, value in push.ext.items() if name != "properties"} == expected
    assert push.body == b"re:ping"
    assert answer.code == 0 and set(answer.ext) == {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}
    (record,) = broker.store.records()
    assert record.size == 0x3D602 - 0x3D4E3  # up to the next message of the recording


def test_the_recorded_check_of_a_transaction(golden_folder):
    recorded = frames(golden_folder, "transaction")
    (asked,) = [f for f in recorded if f["header"]["code"] == 39]
    body, ext = base64.b64decode(asked["body"]), asked["header"]["extFields"]
    record = Record.decode(body)
    half = record._replace(topic="RMQ_SYS_TRANS_HALF_TOPIC", queue_id=0, queue_offset=6, pos=1)
    request = check_request(half, queue_offset=7, pos=251741, message_id=record.message_id)
    assert request.ext == ext
    assert request.body == body
    assert request.group == record.property_table()["PGROUP"]


@pytest.mark.parametrize(
    "text", ["", "REAL_TOPIC\x01T\x02", "REAL_TOPIC\x01T\x02REAL_QID\x01x\x02", "REAL_QID\x010\x02"]
)
def test_a_delayed_record_that_does_not_say_where_it_belongs(text):
    with pytest.raises(DelayError, match="REAL_TOPIC"):
        from_schedule(Record("SCHEDULE_TOPIC_XXXX", 0, b"", text))


def test_levels():
    assert LEVELS.max_level == 18
    assert (LEVELS.delay_ms(1), LEVELS.delay_ms(18), LEVELS.delay_ms(19)) == (1000, 7_200_000, 1000)
    assert delay_level({}) == 0 and delay_level({"DELAY": "+3"}) == 3


@pytest.mark.parametrize(("body", "offsets"), [(b"7", [7]), (b"7,8,", [7, 8]), (b"x,5", [5]), (b"", []), (b"-3", [])])
def test_op_bodies(body, offsets):
    assert ended_offsets(Record("OP", 0, body, "TAGS\x01d\x02")) == offsets
    assert ended_offsets(Record("OP", 0, body, "TAGS\x01r\x02")) == []
