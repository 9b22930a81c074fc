"""A consumer sends a message back: retry topic, levels, dead letters, and each refusal."""

import pytest
from fake_broker import FakeBroker, FakeChannel

from tallystick.node.broker.processors.send_back import SendBackProcessor
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.remoting.command import FLAG_ONEWAY, Command, ResponseError
from tallystick.store.formats.message import Host, Message, PutStatus
from tallystick.store.formats.record import Record


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


async def stored(broker: FakeBroker, **changes) -> Record:
    """A message in the log, as its consumer got it."""
    message = Message("T", 3, b"body", "UNIQ_KEY\x01K1\x02TAGS\x01A\x02WAIT\x01true\x02", flag=7, sys_flag=1)
    message.born_host, message.born_timestamp_ms = Host("10.1.1.1", 4), 99
    for name, value in changes.items():
        setattr(message, name, value)
    result = await broker.store.writes.put(message)
    return Record.decode(broker.store.reads.message_at(result.pos))


async def send_back(broker: FakeBroker, pos: int, *, version: int = 373, flag: int = 0, **ext):
    fields = {"offset": str(pos), "group": "g", "delayLevel": "0", "maxReconsumeTimes": "16", **ext}
    command = Command(36, version=version, flag=flag, ext={n: v for n, v in fields.items() if v is not None})
    return await SendBackProcessor(broker).routes()[36](FakeChannel(), command)  # type: ignore[arg-type, misc]


async def refused(broker: FakeBroker, pos: int, **ext) -> ResponseError:
    with pytest.raises(ResponseError) as caught:
        await send_back(broker, pos, **ext)
    return caught.value


async def test_the_first_attempt_waits_at_level_3(broker):
    record = await stored(broker)
    answer = await send_back(broker, record.pos)
    assert (answer.code, answer.ext, answer.remark) == (0, None, None)
    (delayed,) = broker.store.records("SCHEDULE_TOPIC_XXXX")
    assert delayed.queue_id == 2
    assert delayed.property_table() == {
        "UNIQ_KEY": "K1",
        "TAGS": "A",
        "WAIT": "false",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": record.message_id,
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
    }
    assert delayed.reconsume_times == 1
    assert (delayed.body, delayed.flag, delayed.sys_flag) == (b"body", 7, 1)
    assert (delayed.born_host, delayed.born_timestamp_ms) == (record.born_host, 99)
    config = broker.topics.get("%RETRY%g")
    assert (config.write_queue_nums, config.perm) == (1, 6)


async def test_later_attempts_keep_where_the_message_came_from(broker):
    properties = "RETRY_TOPIC\x01T\x02ORIGIN_MESSAGE_ID\x01ABC\x02DELAY\x013\x02"
    record = await stored(broker, topic="%RETRY%g", properties=properties, reconsume_times=4)
    await send_back(broker, record.pos)
    (delayed,) = broker.store.records("SCHEDULE_TOPIC_XXXX")
    names = delayed.property_table()
    assert (names["RETRY_TOPIC"], names["ORIGIN_MESSAGE_ID"], names["DELAY"]) == ("T", "ABC", "7")
    assert delayed.reconsume_times == 5


async def test_the_client_may_choose_the_level(broker):
    record = await stored(broker)
    await send_back(broker, record.pos, delayLevel="1")
    assert broker.store.records("SCHEDULE_TOPIC_XXXX")[0].queue_id == 0


@pytest.mark.parametrize(
    ("times", "ext", "version"),
    [
        (16, {}, 373),
        (2, {"maxReconsumeTimes": "2"}, 373),
        (0, {"delayLevel": "-1"}, 373),
        (16, {"maxReconsumeTimes": "99"}, 120),  # an old client: its group decides
        (16, {"maxReconsumeTimes": None}, 373),
    ],
)
async def test_dead_letters(broker, times, ext, version):
    record = await stored(broker, reconsume_times=times)
    assert (await send_back(broker, record.pos, version=version, **ext)).code == 0
    (dead,) = broker.store.records("%DLQ%g")
    assert (dead.queue_id, dead.reconsume_times) == (0, times + 1)
    assert "DELAY" not in dead.property_table()
    config = broker.topics.get("%DLQ%g")
    assert (config.write_queue_nums, config.perm) == (1, 2)


async def test_a_dead_letter_of_a_retried_message_waits_once_more_as_in_rocketmq(broker):
    record = await stored(broker, reconsume_times=16, properties="DELAY\x012\x02RETRY_TOPIC\x01T\x02")
    await send_back(broker, record.pos)
    (delayed,) = broker.store.records("SCHEDULE_TOPIC_XXXX")
    assert delayed.queue_id == 1 and delayed.property_table()["REAL_TOPIC"] == "%DLQ%g"


async def test_a_committed_message_stays_committed_when_it_is_sent_back(broker):
    record = await stored(broker, sys_flag=8, prepared_transaction_offset=5, properties="TRAN_MSG\x01true\x02")
    await send_back(broker, record.pos)
    (delayed,) = broker.store.records("SCHEDULE_TOPIC_XXXX")
    assert (delayed.sys_flag, delayed.prepared_transaction_offset) == (8, 0)


async def test_it_is_counted_for_the_topic_it_came_from(broker):
    record = await stored(broker)
    await send_back(broker, record.pos)
    assert broker.stats.counter("SNDBCK_PUT_NUMS", "T@g").total == 1


async def test_a_oneway_request_is_not_answered(broker):
    record = await stored(broker)
    assert await send_back(broker, record.pos, flag=FLAG_ONEWAY) is None
    assert broker.store.records("SCHEDULE_TOPIC_XXXX")


async def test_a_group_without_retries_loses_the_message_by_its_own_wish(broker):
    record = await stored(broker)
    broker.groups.update(broker.groups.get("g").__class__("g", retry_queue_nums=0))
    assert (await send_back(broker, record.pos)).code == 0
    assert len(broker.store.records()) == 1


async def test_refusals(broker):
    record = await stored(broker)
    assert (await refused(broker, record.pos + 1)).remark.startswith("look message by offset failed")
    assert (await refused(broker, -1)).code == 1
    assert (await refused(broker, record.pos, group=None)).remark == "the custom field <group> is null"
    assert (await refused(broker, record.pos, group="../g")).code == 26
    broker.change(brokerPermission=4)
    assert (await refused(broker, record.pos)).code == 16
    broker.change(brokerPermission=6)
    broker.topics.update(TopicConfig("%RETRY%g", 1, 1, perm=4))
    assert (await refused(broker, record.pos)).code == 16
    broker.topics.delete("%RETRY%g")
    broker.store.refuse(PutStatus.SERVICE_NOT_AVAILABLE)
    assert (await refused(broker, record.pos)).remark.startswith("SERVICE_NOT_AVAILABLE")
    assert len(broker.store.records()) == 1
