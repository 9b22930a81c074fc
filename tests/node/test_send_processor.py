"""What becomes of sends: each check with its code, in RocketMQ's order; what is stored; what is answered."""

import asyncio
from typing import Any

import pytest
from fake_broker import FakeBroker, FakeChannel
from fake_store import FakeStore, encode_batch

from tallystick.node.broker.processors.send import SendProcessor
from tallystick.node.broker.services.timer_messages import RecallHandle
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.command import FLAG_ONEWAY, Command
from tallystick.store.formats import properties
from tallystick.store.formats.message import PutStatus
from tallystick.store.formats.record import Record
from tallystick.store.settings import StoreSettings

OK = "prop\x01v\x02UNIQ_KEY\x01K1\x02WAIT\x01true\x02TAGS\x01A\x02"
V2 = {"a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1600000000000", "h": "7", "i": OK}


@pytest.fixture
def broker() -> FakeBroker:
    broker = FakeBroker()
    broker.topics.update(TopicConfig("T", 4, 4))
    return broker


async def send(
    broker: FakeBroker, *, code: int = 310, body: bytes = b"hello", flag: int = 0, version: int = 373, **ext
):
    """The answer to a V2 send; `field=None` leaves a field out."""
    merged = {name: value for name, value in {**V2, **ext}.items() if value is not None}
    command = Command(code, opaque=5, flag=flag, version=version, ext=merged, body=body)
    return await SendProcessor(broker).routes()[code](FakeChannel(), command)  # type: ignore[arg-type, misc]


def only(broker: FakeBroker, topic: str | None = None) -> Record:
    (record,) = broker.store.records(topic)
    return record


async def test_a_plain_send_is_stored_with_the_clusters_name_at_the_end_of_its_properties(broker):
    answer = await send(broker)
    record = only(broker)
    assert (record.topic, record.queue_id, record.body, record.flag) == ("T", 1, b"hello", 7)
    assert record.properties == OK + "CLUSTER\x01C1\x02"
    assert record.born_timestamp_ms == 1600000000000 and str(record.born_host) == "10.0.0.1:50000"
    assert (answer.code, answer.opaque, answer.remark) == (0, 5, None)
    assert answer.ext == {
        "msgId": record.message_id,
        "queueId": "1",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


async def test_the_old_send_names_its_fields_in_full(broker):
    ext = {
        "producerGroup": "pg",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "2",
        "sysFlag": "1",
        "bornTimestamp": "5",
        "flag": "0",
    }
    answer = await SendProcessor(broker).send(FakeChannel(), Command(10, ext=ext, body=b"x"))  # type: ignore[arg-type]
    assert answer.code == 0
    assert (only(broker).queue_id, only(broker).sys_flag, only(broker).properties) == (2, 1, "CLUSTER\x01C1\x02")


@pytest.mark.parametrize("letter", list("abcdefgh"))
async def test_a_missing_field_is_named(broker, letter):
    answer = await send(broker, **{letter: None})
    assert (answer.code, answer.remark) == (1, f"the custom field <{letter}> is null")


async def test_a_missing_last_separator_and_a_cluster_from_before_do_not_spoil_the_properties(broker):
    await send(broker, i="CLUSTER\x01Other\x02A\x01b")
    assert only(broker).properties == "A\x01b\x02CLUSTER\x01C1\x02"


async def test_pieces_that_are_no_properties_are_left_out(broker):
    await send(broker, i="A\x01b\x02\x01x\x02novalue\x01\x02junk\x02")
    assert only(broker).properties == "A\x01b\x02CLUSTER\x01C1\x02"


async def test_oneway_sends_are_stored_and_never_answered(broker):
    assert await send(broker, flag=FLAG_ONEWAY) is None
    assert await send(broker, flag=FLAG_ONEWAY, b="SCHEDULE_TOPIC_XXXX") is None
    assert len(broker.store.records()) == 1


async def test_a_negative_queue_id_means_any_queue_that_can_be_written(broker):
    broker.topics.update(TopicConfig("T", read_queue_nums=9, write_queue_nums=3))
    for _ in range(50):
        answer = await send(broker, e="-1")
        assert answer.code == 0 and 0 <= int(answer.ext["queueId"]) < 3
    assert len({record.queue_id for record in broker.store.records()}) == 3


class TestChecks:
    async def test_before_the_time_to_accept_sends(self, broker):
        broker.change(startAcceptSendRequestTimeStamp=broker.now_ms() + 1)
        answer = await send(broker, b="../etc")  # comes before the name's check
        assert answer.code == 1 and "unable to service" in answer.remark

    async def test_an_ordered_topic_of_a_broker_that_must_not_write(self, broker):
        broker.topics.update(TopicConfig("T", order=True))
        broker.change(brokerPermission=4)
        assert (await send(broker)).code == 16
        broker.topics.update(TopicConfig("T"))
        assert (await send(broker)).code == 0  # clients keep away by the route; RocketMQ stores what comes yet

    @pytest.mark.parametrize("topic", ["", "  ", "../x", "a b", "x" * 128, "标签"])
    async def test_names_that_no_topic_may_have(self, broker, topic):
        answer = await send(broker, b=topic)
        assert answer.code == 1 and "topic" in answer.remark
        assert not broker.store.records()

    @pytest.mark.parametrize(
        "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"]
    )
    async def test_topics_that_only_the_broker_writes(self, broker, topic):
        answer = await send(broker, b=topic)
        assert (answer.code, answer.remark) == (16, f"Sending message to topic[{topic}] is forbidden.")

    async def test_an_unknown_topic_is_made_like_its_model(self, broker):
        assert (await send(broker, b="New", e="3")).code == 0
        config = broker.topics.get("New")
        assert (config.write_queue_nums, config.read_queue_nums, config.perm) == (4, 4, 6)

    async def test_an_unknown_topic_without_a_model(self, broker):
        answer = await send(broker, b="New", c="T")
        assert (answer.code, answer.remark) == (17, "topic[New] not exist, apply first please!")

    async def test_auto_creation_switched_off(self):
        broker = FakeBroker(BrokerSettings(brokerIP1="127.0.0.1", autoCreateTopicEnable=False))
        assert (await send(broker, b="New")).code == 17

    async def test_a_queue_id_that_the_topic_does_not_have(self, broker):
        answer = await send(broker, e="4")
        assert answer.code == 1 and "request queueId[4] is illegal" in answer.remark

    async def test_a_queue_that_can_only_be_read_is_accepted_as_in_rocketmq(self, broker):
        broker.topics.update(TopicConfig("T", read_queue_nums=8, write_queue_nums=4))
        assert (await send(broker, e="7")).code == 0

    async def test_a_refusal_has_the_fields_that_a_client_reads(self, broker):
        assert (await send(broker, e="4")).ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


async def test_a_multi_tag_topic_marks_its_messages(broker):
    broker.topics.update(TopicConfig("T", topic_filter_type="MULTI_TAG"))
    await send(broker, f="1")
    assert only(broker).sys_flag == 3


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
async def test_a_delivery_time_of_rocketmq_5(broker, name):
    now = broker.now_ms() if name == "TIMER_DELIVER_MS" else 0
    answer = await send(broker, i=f"UNIQ_KEY\x01K\x02{name}\x01{now + 10}\x02", e="2")
    assert (answer.code, answer.ext["queueId"]) == (0, "2")
    (record,) = broker.store.records("rmq_sys_wheel_timer", 0)
    names = record.property_table()
    assert (names["REAL_TOPIC"], names["REAL_QID"], names["CLUSTER"]) == ("T", "2", "C1")
    handle = RecallHandle.decode(answer.ext["recallHandle"])
    assert handle == RecallHandle("T", "broker-a", int(names["TIMER_OUT_MS"]) + 1, "K")


@pytest.mark.parametrize("text", ["TIMER_DELAY_SEC\x01x\x02", "TIMER_DELAY_SEC\x01300000\x02"])
async def test_a_delivery_time_that_cannot_be(broker, text):
    answer = await send(broker, i=text)
    assert answer.code == 13 and answer.remark
    assert not broker.store.records()


async def test_delivery_times_switched_off():
    broker = FakeBroker(store=FakeStore(settings=StoreSettings(timerWheelEnable=False)))
    broker.topics.update(TopicConfig("T"))
    answer = await send(broker, i="TIMER_DELAY_SEC\x011\x02")
    assert (answer.code, answer.remark) == (1, "accurate timer message is not enabled, timerWheelEnable is false")


async def test_messages_that_are_too_large():
    broker = FakeBroker(store=FakeStore(settings=StoreSettings(maxMessageSize=1000)))
    broker.topics.update(TopicConfig("T"))
    assert (await send(broker, body=bytes(1001))).code == 13
    assert (await send(broker, i="big\x01" + "p" * 32760 + "\x02")).code == 13


@pytest.mark.parametrize(
    ("status", "code", "remark"),
    [
        (PutStatus.CREATE_MAPEDFILE_FAILED, 1, "create mapped file failed"),
        (PutStatus.MESSAGE_ILLEGAL, 13, "the message is illegal"),
        (PutStatus.PROPERTIES_SIZE_EXCEEDED, 13, "the message is illegal"),
        (PutStatus.SERVICE_NOT_AVAILABLE, 14, "service not available now"),
        (PutStatus.OS_PAGECACHE_BUSY, 1, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"),
        (PutStatus.UNKNOWN_ERROR, 1, "UNKNOWN_ERROR"),
    ],
)
async def test_what_the_store_does_not_take(broker, status, code, remark):
    broker.store.refuse(status)
    answer = await send(broker)
    assert answer.code == code and answer.remark.startswith(remark)
    assert "msgId" not in answer.ext


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.FLUSH_DISK_TIMEOUT, 10),
        (PutStatus.SLAVE_NOT_AVAILABLE, 11),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, 12),
    ],
)
async def test_what_is_stored_but_not_as_safe_as_wanted_has_its_ids(broker, status, code):
    broker.store.refuse(status)
    answer = await send(broker)
    assert answer.code == code
    assert answer.ext["msgId"] == only(broker).message_id


class TestDelay:
    async def test_a_delayed_message_goes_to_its_levels_queue_and_the_answer_names_the_queue_asked_for(self, broker):
        answer = await send(broker, i="DELAY\x013\x02")
        record = only(broker)
        assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
        assert record.property_table() == {"DELAY": "3", "CLUSTER": "C1", "REAL_TOPIC": "T", "REAL_QID": "1"}
        assert answer.ext["queueId"] == "1" and answer.ext["msgId"] == record.message_id

    async def test_a_level_above_the_highest_becomes_the_highest(self, broker):
        await send(broker, i="DELAY\x0199\x02")
        assert only(broker).queue_id == 17 and only(broker).property_table()["DELAY"] == "18"

    @pytest.mark.parametrize("level", ["0", "-5"])
    async def test_no_level(self, broker, level):
        await send(broker, i=f"DELAY\x01{level}\x02")
        assert only(broker).topic == "T"

    @pytest.mark.parametrize("level", ["x", "1.5", "99999999999", "١"])
    async def test_no_number(self, broker, level):
        answer = await send(broker, i=f"DELAY\x01{level}\x02")
        assert answer.code == 13 and "DELAY" in answer.remark


class TestTransactions:
    HALF = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01K1\x02"

    async def test_a_half_message(self, broker):
        answer = await send(broker, i=self.HALF, f="5")
        record = only(broker)
        assert (record.topic, record.queue_id, record.sys_flag) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, 1)
        names = record.property_table()
        assert (names["REAL_TOPIC"], names["REAL_QID"], names["TRAN_MSG"]) == ("T", "1", "true")
        assert (answer.code, answer.ext["queueOffset"], answer.ext["queueId"]) == (0, "0", "1")
        assert answer.ext["msgId"] == record.message_id and "transactionId" not in answer.ext

    async def test_a_half_message_with_a_delay_is_half_first(self, broker):
        await send(broker, i=self.HALF + "DELAY\x013\x02")
        assert only(broker).topic == "RMQ_SYS_TRANS_HALF_TOPIC"

    async def test_refused_where_transactions_are(self, broker):
        broker.change(rejectTransactionMessage=True)
        answer = await send(broker, i=self.HALF)
        assert answer.code == 16 and "transaction" in answer.remark
        assert (await send(broker)).code == 0

    async def test_a_committed_message_that_an_old_client_sends_back_is_no_half_message(self, broker):
        answer = await send(broker, b="%RETRY%g", e="0", f="4", i=self.HALF + "DELAY\x013\x02", j="1", l="16")
        assert answer.code == 0
        record = only(broker)
        assert (record.topic, record.sys_flag) == ("SCHEDULE_TOPIC_XXXX", 0)
        assert record.property_table()["REAL_TOPIC"] == "%RETRY%g"


class TestRetryTopics:
    async def test_the_retry_topic_is_made_with_one_queue(self, broker):
        assert (await send(broker, b="%RETRY%g", c="none", e="0", j="3", l="16")).code == 0
        assert broker.topics.get("%RETRY%g").write_queue_nums == 1
        assert only(broker).reconsume_times == 3

    async def test_tried_too_often_it_becomes_a_dead_letter(self, broker):
        assert (await send(broker, b="%RETRY%g", e="0", j="5", l="5")).code == 0
        assert (only(broker).topic, only(broker).queue_id) == ("%DLQ%g", 0)
        config = broker.topics.get("%DLQ%g")
        assert (config.write_queue_nums, config.perm) == (1, 2)

    @pytest.mark.parametrize(("version", "limit"), [(120, "3"), (373, None)])
    async def test_a_client_that_sets_no_limit_has_its_groups(self, broker, version, limit):
        await send(broker, b="%RETRY%g", e="0", j="15", l=limit, version=version)
        await send(broker, b="%RETRY%g", e="0", j="16", l=limit, version=version)
        assert [record.topic for record in broker.store.records()] == ["%RETRY%g", "%DLQ%g"]

    async def test_a_group_that_may_not_be_made(self):
        broker = FakeBroker(BrokerSettings(brokerIP1="127.0.0.1", autoCreateSubscriptionGroup=False))
        assert (await send(broker, b="%RETRY%g", e="0", j="1", l="16")).code == 26


class TestBatches:
    MESSAGES = ((0, b"one", "UNIQ_KEY\x01K1\x02"), (3, b"two", "UNIQ_KEY\x01K2"), (0, b"three", ""))

    async def test_each_message_has_its_own_properties_and_the_batchs(self, broker):
        answer = await send(broker, code=320, m="true", i="WAIT\x01true\x02", body=encode_batch(list(self.MESSAGES)))
        records = broker.store.records("T", 1)
        outer = "WAIT\x01true\x02CLUSTER\x01C1\x02"
        assert [record.body for record in records] == [b"one", b"two", b"three"]
        assert [record.properties for record in records] == [
            "UNIQ_KEY\x01K1\x02" + outer,
            "UNIQ_KEY\x01K2\x02" + outer,
            outer,
        ]
        assert [record.flag for record in records] == [0, 3, 0]
        assert answer.code == 0
        assert answer.ext["msgId"].split(",") == [record.message_id for record in records]
        assert answer.ext["queueOffset"] == "0"

    @pytest.mark.parametrize(
        "ext",
        [
            {"b": "%RETRY%g", "e": "0"},
            {"i": "DELAY\x011\x02"},
            {"i": "DELAY\x01x\x02"},
            {"i": "TRAN_MSG\x01true\x02"},
            {"f": "4"},
            {"i": "TIMER_DELAY_SEC\x011\x02"},
        ],
    )
    async def test_what_a_batch_cannot_be(self, broker, ext):
        answer = await send(broker, code=320, m="true", body=encode_batch(list(self.MESSAGES)), **ext)
        assert answer.code == 13 and answer.remark
        assert not broker.store.records()


async def test_the_messages_of_one_connection_are_stored_in_the_order_they_came(broker):
    bodies = [str(n).encode() for n in range(50)]
    extra: list[dict[str, Any]] = [{"i": "DELAY\x011\x02"} if n % 3 == 0 else {} for n in range(50)]
    await asyncio.gather(*(send(broker, body=body, **ext) for body, ext in zip(bodies, extra, strict=True)))
    assert [record.body for record in broker.store.records()] == bodies


def test_encoding_twice_changes_nothing():
    assert properties.encode(properties.decode(OK)) == OK
