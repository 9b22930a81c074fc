"""A Topic is made, kept as it is declared, and told the truth about. One pass after another, no clock."""

import pytest
from topics_lab import Lab

from tallystick.operator.topics.reconcile import COUNTED_EACH, PER_PASS
from tallystick.operator.topics.settings import TopicSettings

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def lab() -> Lab:
    return Lab()


async def test_a_topic_is_made_on_every_group_in_one_pass(lab: Lab) -> None:
    lab.api.topic("created", queues=4, permission="ReadOnly", ordered=True)
    await lab.once()
    assert lab.topic(0, "created") == lab.topic(1, "created") == TopicSettings("created", 4, 4, 4, True)
    status = lab.api.status("created")
    assert (status["phase"], status["queues"], status["topicName"]) == ("Ready", 8, "created")
    assert lab.api.ready("created") == lab.api.condition("created", "Synced") == ("True", "Reconciled")
    assert status["groups"] == [
        {"name": "orders-0", "queues": 4, "permission": "ReadOnly"},
        {"name": "orders-1", "queues": 4, "permission": "ReadOnly"},
    ]
    assert lab.events.told == []


async def test_a_second_pass_changes_nothing(lab: Lab) -> None:
    lab.api.topic("created")
    await lab.once()
    await lab.once()  # counts its messages
    writes, requests = lab.api.writes, lab.brokers.requests
    assert await lab.once() == 20.0
    assert lab.api.writes == writes
    assert lab.brokers.requests - requests == 2


async def test_it_is_ours_before_the_brokers_are_asked(lab: Lab) -> None:
    lab.api.topic("created")
    owned = []
    found = lab.api.of("Topic")[0]
    lab.brokers.on_change.append(lambda *_: owned.append(lab.api.owned(found)))
    await lab.once()
    assert owned == [{"orders-0", "orders-1"}] * 2
    assert lab.api.status("created")["ownedGroups"] == ["orders-0", "orders-1"]


async def test_another_name_for_clients(lab: Lab) -> None:
    lab.api.topic("order-events", topicName="ORDER_EVENTS")
    await lab.once()
    assert lab.topic(0, "ORDER_EVENTS") and not lab.topic(0, "order-events")


async def test_only_some_groups(lab: Lab) -> None:
    lab.api.topic("created", groups=[1])
    await lab.once()
    assert lab.topic(1, "created") and not lab.topic(0, "created")
    lab.api.edit("Topic", "created", groups=[0, 1])
    await lab.once()
    assert lab.topic(0, "created")
    assert lab.api.ready("created") == ("True", "Reconciled")


async def test_a_group_that_there_is_not(lab: Lab) -> None:
    lab.api.topic("created", groups=[0, 7])
    await lab.once()
    assert lab.topic(0, "created")
    assert lab.api.ready("created") == ("False", "GroupNotFound")
    assert "orders-7" in lab.api.message("created")


async def test_the_cluster_gets_another_group(lab: Lab) -> None:
    lab.api.topic("created")
    await lab.once()
    lab.brokers.add("orders-2")
    lab.api.cluster(3, formed=[0, 1])
    await lab.once()
    assert lab.api.ready("created") == ("False", "GroupUnavailable")
    assert "orders-2: the group has not formed yet" in lab.api.message("created")
    lab.api.cluster(3)
    await lab.once()
    assert lab.topic(2, "created")
    assert lab.api.ready("created") == ("True", "Reconciled")
    assert lab.events.told == []  # there was no change


@pytest.mark.parametrize(
    ("found", "then"),
    [
        (TopicSettings("created", 4, 4), TopicSettings("created", 8, 8)),
        (TopicSettings("created", 8, 8, perm=2), TopicSettings("created", 8, 8)),
        (TopicSettings("created", 8, 8, perm=7), TopicSettings("created", 8, 8)),
        (TopicSettings("created", 8, 8, order=True), TopicSettings("created", 8, 8)),
        (None, TopicSettings("created", 8, 8)),
    ],
)
async def test_drift_is_corrected_and_reported(lab: Lab, found: TopicSettings | None, then: TopicSettings) -> None:
    lab.api.topic("created")
    await lab.once()
    topics = lab.brokers.groups["orders-1"].topics
    if found is None:
        del topics["created"]
    else:
        topics["created"] = found
    await lab.once()
    assert lab.topic(1, "created") == then
    assert lab.api.ready("created") == ("True", "Reconciled")
    ((name, reason, message),) = lab.events.told
    assert (name, reason) == ("created", "DriftCorrected")
    assert "orders-1" in message and "orders-0" not in message


async def test_drift_is_described_in_words(lab: Lab) -> None:
    lab.api.topic("created")
    await lab.once()
    lab.mqadmin(0, "created", 4, perm=2)
    await lab.once()
    ((_, _, message),) = lab.events.told
    assert message == (
        "corrected: orders-0 had read queues 4 instead of 8, write queues 4 instead of 8, "
        "permission WriteOnly instead of ReadWrite"
    )


async def test_a_change_of_the_spec_is_no_drift(lab: Lab) -> None:
    lab.api.topic("created")
    await lab.once()
    lab.api.edit("Topic", "created", queues=16, permission="ReadOnly")
    await lab.once()
    assert lab.topic(0, "created") == TopicSettings("created", 16, 16, 4)
    assert lab.api.status("created")["observedGeneration"] == 2
    assert lab.events.told == []


async def test_a_retention_is_set_changed_corrected_and_removed(lab: Lab) -> None:
    lab.api.topic("created", retention={"hours": 24})
    await lab.once()
    assert lab.topic(0, "created") == TopicSettings("created", 8, 8, retention_hours=24)
    assert lab.api.status("created")["groups"][0]["retentionHours"] == 24
    lab.api.edit("Topic", "created", retention={"hours": 48})
    await lab.once()
    assert lab.topic(1, "created") == TopicSettings("created", 8, 8, retention_hours=48)
    lab.mqadmin(0, "created", 8)
    await lab.once()
    assert lab.topic(0, "created") == TopicSettings("created", 8, 8, retention_hours=48)
    assert lab.events.told[-1][2] == "corrected: orders-0 had retention none instead of 48 h"
    lab.api.edit("Topic", "created", retention={})
    await lab.once()
    for group in (0, 1):
        assert lab.topic(group, "created").retention_hours == 0, "a field that is left out would stay as it is"
    assert "retentionHours" not in lab.api.status("created")["groups"][0]
    requests = lab.api.writes
    await lab.once()
    await lab.once()
    assert lab.api.ready("created") == ("True", "Reconciled")
    assert lab.api.writes - requests <= 1


async def test_a_broker_that_does_not_know_retentions_is_not_told_of_none(lab: Lab) -> None:
    wanted = TopicSettings.from_spec("created", {})
    old = TopicSettings.from_wire({"name": "created", "readQueues": 8, "writeQueues": 8, "perm": 6})
    assert "retentionHours" not in wanted.to_wire()
    assert wanted.repaired(old) == old
    new = TopicSettings.from_wire(old.to_wire() | {"retentionHours": 5})
    assert wanted.repaired(new).to_wire()["retentionHours"] == 0
    assert TopicSettings.from_wire(wanted.repaired(new).to_wire()) == wanted


async def test_queues_are_not_taken_away(lab: Lab) -> None:
    lab.api.topic("created")
    await lab.once()
    lab.mqadmin(0, "created", 16, perm=4)
    await lab.once()
    assert lab.topic(0, "created") == TopicSettings("created", 16, 16)  # the permission is put right
    assert lab.api.ready("created") == ("True", "Reconciled")
    assert lab.api.condition("created", "Synced") == ("False", "QueuesNotLowered")
    assert "orders-0 has 16 queues instead of 8" in lab.api.message("created", "Synced")
    assert lab.api.status("created")["queues"] == 16 + 8
    assert lab.events.reasons("created") == ["DriftCorrected", "QueuesNotLowered"]


@pytest.mark.parametrize(
    ("read", "write", "read_then", "write_then"),
    [
        (16, 8, 16, 8),  # emptied by an administrator: no longer written to, and still read
        (8, 16, 16, 16),  # no consumer would read messages in the upper queues
        (16, 4, 16, 8),
        (4, 16, 16, 16),
    ],
)
async def test_queues_that_are_written_are_read(
    lab: Lab, read: int, write: int, read_then: int, write_then: int
) -> None:
    lab.api.topic("created")
    await lab.once()
    lab.mqadmin(0, "created", read_queues=read, write_queues=write)
    await lab.settle()
    assert lab.topic(0, "created") == TopicSettings("created", read_then, write_then)
    assert lab.api.condition("created", "Synced") == ("False", "QueuesNotLowered")


async def test_an_administrator_shrinks_a_topic(lab: Lab) -> None:
    """RocketMQ's way: fewer to write, wait until the rest is consumed, fewer to read."""
    lab.api.topic("created")
    await lab.once()
    lab.mqadmin(0, "created", 16)
    await lab.settle()
    lab.mqadmin(0, "created", read_queues=16, write_queues=8)
    await lab.settle()
    lab.mqadmin(0, "created", 8)
    await lab.settle()
    assert lab.topic(0, "created") == TopicSettings("created", 8, 8)
    assert lab.api.condition("created", "Synced") == ("True", "Reconciled")


async def test_messages_are_counted_now_and_then(lab: Lab) -> None:
    lab.api.topic("created")
    await lab.settle()
    lab.brokers.groups["orders-0"].figures["created"] = 7
    await lab.settle()
    assert lab.api.status("created")["groups"][0]["messages"] == 0  # not each time
    lab.seconds += 60
    await lab.settle()
    assert lab.api.status("created")["groups"][0]["messages"] == 7
    lab.mqadmin(0, "created", 4)
    await lab.settle()
    assert lab.api.status("created")["groups"][0] == {
        "name": "orders-0",
        "queues": 8,
        "permission": "ReadWrite",
        "messages": 7,
    }


async def test_a_consumer_group_is_kept_likewise(lab: Lab) -> None:
    lab.api.create("ConsumerGroup", "billing", {"clusterName": "orders", "maxRetries": 3, "consumeEnabled": False})
    await lab.settle()
    table = lab.brokers.groups["orders-1"].tables["ConsumerGroup"]
    assert (table["billing"].max_retries, table["billing"].consume_enabled) == (3, False)
    status = lab.api.status("billing", "ConsumerGroup")
    assert status["groupName"] == "billing"
    assert status["groups"][0] == {"name": "orders-0", "consumeEnabled": False, "clients": 0, "lag": 0}
    assert "queues" not in status
    del table["billing"]
    await lab.settle()
    assert table["billing"].max_retries == 3
    assert lab.events.reasons("billing") == ["DriftCorrected"]


async def test_each_group_is_read_once_and_written_once(lab: Lab) -> None:
    for number in range(50):
        lab.api.topic(f"topic-{number}")
    await lab.once()
    assert lab.brokers.reads == 2
    assert lab.brokers.requests == 4


async def test_a_thousand_topics_take_turns(lab: Lab) -> None:
    for number in range(1000):
        lab.api.topic(f"topic-{number}")
    assert await lab.once() == 0.0
    assert sum(lab.api.ready(f"topic-{number}")[0] == "True" for number in range(1000)) == PER_PASS
    assert lab.api.ready("topic-0") == ("True", "Reconciled")  # the oldest first
    lab.api.topic("meanwhile")
    assert await lab.once() == 0.0
    assert lab.api.ready("meanwhile") == ("True", "Reconciled")  # but no resource waits for a thousand others
    passes = 2
    while await lab.once() == 0.0:
        passes += 1
    assert passes <= 1001 // PER_PASS + 1
    assert all(lab.api.ready(f"topic-{number}") == ("True", "Reconciled") for number in range(1000))
    # A verdict each, the claims of each pass, and the first few counts.
    assert lab.api.writes == 1001 + passes + 1 + COUNTED_EACH


async def test_failing_brokers_do_not_delay_others(lab: Lab) -> None:
    for number in range(250):
        lab.api.topic(f"bad-{number}")
        lab.brokers.groups["orders-0"].refuses[f"bad-{number}"] = "it does not like the name"
    while await lab.once() == 0.0:
        pass
    lab.api.topic("good")
    again = await lab.once()
    assert lab.api.ready("good") == ("True", "Reconciled")
    assert again is not None and again > 0  # and it does not go round and round
    assert lab.api.ready("bad-0") == ("False", "RefusedByBroker")
    assert "it does not like the name" in lab.api.message("bad-0")
    assert lab.events.reasons("bad-0") == ["RefusedByBroker"]


async def test_nothing_is_declared(lab: Lab) -> None:
    assert await lab.once() is None
    assert lab.brokers.requests == 0
