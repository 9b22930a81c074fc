"""Replies to request messages: pushed to the client that waits, and stored."""

import pytest
from fake_broker import FakeBroker, FakeChannel

from tallystick.node.broker.processors.reply import ReplyProcessor
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.remoting.command import FLAG_ONEWAY, Command

PROPERTIES = "REPLY_TO_CLIENT\x01waiting@1\x02CORRELATION_ID\x01c1\x02"


@pytest.fixture
def broker() -> FakeBroker:
    broker = FakeBroker()
    broker.topics.update(TopicConfig("C1_REPLY_TOPIC", 1, 1))
    return broker


async def reply(broker: FakeBroker, *, flag: int = 0, **ext):
    fields = {"a": "pg", "b": "C1_REPLY_TOPIC", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    command = Command(325, flag=flag, ext={**fields, "i": PROPERTIES, **ext}, body=b"answer")
    return await ReplyProcessor(broker).routes()[325](FakeChannel(), command)  # type: ignore[arg-type, misc]


async def test_a_reply_reaches_the_client_and_is_stored_as_it_came(broker):
    channel = broker.producer("pg", "waiting@1")
    answer = await reply(broker)
    (record,) = broker.store.records()
    assert (record.properties, record.body) == (PROPERTIES, b"answer")
    assert (answer.code, answer.ext["msgId"]) == (0, record.message_id)
    assert channel.sent[0].body == b"answer"


@pytest.mark.parametrize(("client_answer", "remark"), [(None, "gone"), (1, "code 1")])
async def test_a_client_that_does_not_take_it(broker, client_answer, remark):
    broker.producer("pg", "waiting@1", FakeChannel(answer=client_answer))
    answer = await reply(broker)
    assert answer.code == 1 and remark in answer.remark
    assert broker.store.records()


async def test_a_client_that_is_not_there(broker):
    answer = await reply(broker)
    assert answer.code == 1 and "<waiting@1> not found" in answer.remark
    assert (await reply(broker, i="CORRELATION_ID\x01c1\x02")).code == 1


async def test_replies_that_are_not_stored_have_fields_all_the_same(broker):
    broker.change(storeReplyMessageEnable=False)
    broker.producer("pg", "waiting@1")
    answer = await reply(broker)
    assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")
    assert not broker.store.records()


async def test_the_checks_of_a_send_come_first(broker):
    channel = broker.producer("pg", "waiting@1")
    assert (await reply(broker, b="SCHEDULE_TOPIC_XXXX")).code == 16
    assert (await reply(broker, e="9")).code == 1
    assert await reply(broker, e="9", flag=FLAG_ONEWAY) is None
    assert not channel.sent and not broker.store.records()
