"""What is refused, what waits, and what is taken over: each with the reason that its author reads."""

import copy
from typing import Any

import pytest
from topics_lab import CLUSTER, NAMESPACE, Lab

from tallystick.operator.topics.kinds import CONSUMER_GROUP, TOPIC
from tallystick.operator.topics.settings import ConsumerGroupSettings, TopicSettings

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def lab() -> Lab:
    return Lab()


@pytest.mark.parametrize(
    "name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "orders", "orders-1", "orders_REPLY_TOPIC"]
)
async def test_system_topics(lab: Lab, name: str) -> None:
    lab.api.topic("mine", topicName=name)
    lab.mqadmin(0, name, 1)
    await lab.settle()
    assert lab.api.ready("mine") == lab.api.condition("mine", "Synced") == ("False", "SystemTopic")
    assert lab.api.status("mine")["phase"] == "Refused"
    assert name in lab.api.message("mine")
    assert lab.topic(0, name) == TopicSettings(name, 1, 1)
    assert lab.events.reasons("mine") == ["SystemTopic"]


@pytest.mark.parametrize("name", ["orders-extra", "orders-1a", "Orders", "%RETRY%billing", "a|b"])
async def test_names_that_look_like_it(lab: Lab, name: str) -> None:
    lab.api.topic("mine", topicName=name)
    await lab.settle()
    assert lab.api.ready("mine") == ("True", "Reconciled")


@pytest.mark.parametrize("name", ["TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "CID_ONSAPI_PULL"])
async def test_system_groups(lab: Lab, name: str) -> None:
    lab.api.create("ConsumerGroup", "mine", {"clusterName": CLUSTER, "groupName": name})
    await lab.settle()
    assert lab.api.ready("mine", "ConsumerGroup") == ("False", "SystemGroup")


@pytest.mark.parametrize(
    ("name", "spec", "told"),
    [
        ("with.dots", {}, "spec.topicName"),
        ("x" * 128, {}, "at most 127"),
        ("mine", {"queues": 0}, "spec.queues"),
        ("mine", {"queues": "many"}, "spec.queues"),
        ("mine", {"queues": True}, "spec.queues"),
        ("mine", {"permission": "None"}, "spec.permission"),
        ("mine", {"ordered": "yes"}, "spec.ordered"),
        ("mine", {"retention": 24}, "spec.retention"),
        ("mine", {"retention": {"hours": -1}}, "spec.retention.hours"),
        ("mine", {"retention": {"hours": 87_601}}, "spec.retention.hours"),
        ("mine", {"retention": {"hours": "24"}}, "spec.retention.hours"),
    ],
)
async def test_what_cannot_be(lab: Lab, name: str, spec: dict[str, Any], told: str) -> None:
    lab.api.topic(name, **spec)
    await lab.settle()
    assert lab.api.ready(name) == ("False", "InvalidSpec")
    assert told in lab.api.message(name)


async def test_a_cluster_that_is_not_there_yet() -> None:
    lab = Lab(cluster=False)
    lab.api.topic("created")
    await lab.settle()
    assert lab.api.ready("created") == ("False", "ClusterNotFound")
    assert lab.api.status("created")["phase"] == "Pending"
    lab.api.cluster(2, formed=[])
    await lab.settle()
    assert lab.api.ready("created") == ("False", "WaitingForCluster")
    assert lab.brokers.requests == 0
    lab.api.cluster(2, formed=[1])
    await lab.settle()
    assert lab.api.ready("created") == ("False", "GroupUnavailable")
    assert lab.topic(1, "created") and not lab.topic(0, "created")
    assert "(it matches the spec on orders-1)" in lab.api.message("created")
    lab.api.cluster(2)
    await lab.settle()
    assert lab.api.ready("created") == ("True", "Reconciled")
    assert lab.events.told == []


async def test_claims_of_another_owner_are_not_written_and_not_believed(lab: Lab) -> None:
    uid = lab.api.topic("created")["metadata"]["uid"]
    there = lab.api.create("ConfigMap", f"{CLUSTER}-topic-claims", {}, ownerReferences=[{"uid": "x", "kind": "App"}])
    there["data"] = {"claims.json": f'{{"{uid}": ["{CLUSTER}-0"]}}'}
    before = copy.deepcopy(there)
    await lab.settle()
    assert lab.api.ready("created") == ("False", "NameTaken")
    assert f"ConfigMap {CLUSTER}-topic-claims exists" in lab.api.message("created")
    assert not lab.topic(0, "created") and lab.api.objects["ConfigMap", NAMESPACE, f"{CLUSTER}-topic-claims"] == before
    lab.api.remove("ConfigMap", f"{CLUSTER}-topic-claims")
    await lab.settle()
    assert lab.api.ready("created") == ("True", "Reconciled")


async def test_the_older_of_two_is_heeded(lab: Lab) -> None:
    lab.api.topic("first", topicName="same")
    lab.api.topic("another", topicName="same", queues=16)
    await lab.settle()
    assert lab.api.ready("first") == ("True", "Reconciled")
    assert lab.api.ready("another") == ("False", "Conflict")
    assert lab.api.message("another") == "Topic first already declares same of cluster orders"
    assert lab.topic(0, "same") == TopicSettings("same", 8, 8)
    assert lab.events.reasons("another") == ["Conflict"]


async def test_of_two_of_one_second_the_one_that_has_it_keeps_it(lab: Lab) -> None:
    lab.api.topic("z", topicName="same")
    lab.api.topic("elsewhere")
    await lab.settle()
    lab.api.topic("a", topicName="same", queues=16)
    created = lab.api.objects["Topic", NAMESPACE, "z"]["metadata"]["creationTimestamp"]
    lab.api.objects["Topic", NAMESPACE, "a"]["metadata"]["creationTimestamp"] = created
    await lab.settle()
    assert lab.api.ready("z") == ("True", "Reconciled")
    assert lab.api.ready("a") == ("False", "Conflict")


async def test_the_other_one_starts_when_the_first_is_deleted(lab: Lab) -> None:
    lab.api.topic("first", topicName="same", deletionPolicy="Delete")
    lab.api.topic("another", topicName="same", queues=16)
    await lab.settle()
    lab.api.remove("Topic", "first")
    await lab.settle()
    assert lab.api.ready("another") == ("True", "Reconciled")
    assert lab.topic(0, "same") == TopicSettings("same", 16, 16)


async def test_one_that_cannot_be_holds_no_name(lab: Lab) -> None:
    lab.api.topic("first", topicName="same", queues=0)
    lab.api.topic("another", topicName="same")
    await lab.settle()
    assert lab.api.ready("another") == ("True", "Reconciled")


async def test_topics_of_other_clusters_do_not_matter(lab: Lab) -> None:
    lab.api.topic("first", topicName="same", clusterName="stock")
    lab.api.topic("another", topicName="same")
    await lab.settle()
    assert lab.api.ready("another") == ("True", "Reconciled")
    assert lab.api.status("first") == {}


# -- what was there before


async def test_what_was_there_is_not_touched(lab: Lab) -> None:
    lab.mqadmin(1, "created", 4)
    lab.api.topic("created")
    await lab.settle()
    assert lab.api.ready("created") == ("False", "AlreadyExists")
    assert lab.api.status("created")["phase"] == "Refused"
    assert "orders-1 (read queues 4 instead of 8, write queues 4 instead of 8)" in lab.api.message("created")
    assert "tallystick.dev/adopt=true" in lab.api.message("created")
    assert lab.topic(1, "created") == TopicSettings("created", 4, 4)
    assert lab.topic(0, "created") is None  # nor is anything made elsewhere
    assert "ownedGroups" not in lab.api.status("created")
    assert lab.events.reasons("created") == ["AlreadyExists"]


async def test_it_is_taken_over_when_that_is_asked_for(lab: Lab) -> None:
    lab.mqadmin(1, "created", 4)
    lab.api.topic("created")
    await lab.settle()
    lab.api.annotate("Topic", "created", "tallystick.dev/adopt", "true")
    await lab.settle()
    assert lab.topic(0, "created") == lab.topic(1, "created") == TopicSettings("created", 8, 8)
    assert lab.api.ready("created") == ("True", "Reconciled")
    assert lab.events.reasons("created") == ["AlreadyExists", "Adopted"]


@pytest.mark.parametrize("value", ["false", "yes", ""])
async def test_only_true_asks_for_it(lab: Lab, value: str) -> None:
    lab.mqadmin(1, "created", 4)
    lab.api.topic("created")
    lab.api.annotate("Topic", "created", "tallystick.dev/adopt", value)
    await lab.settle()
    assert lab.api.ready("created") == ("False", "AlreadyExists")


async def test_it_starts_when_the_other_is_deleted(lab: Lab) -> None:
    lab.mqadmin(1, "created", 4)
    lab.api.topic("created")
    await lab.settle()
    del lab.brokers.groups["orders-1"].topics["created"]
    await lab.settle()
    assert lab.api.ready("created") == ("True", "Reconciled")


async def test_deleted_with_retain_and_applied_again(lab: Lab) -> None:
    lab.api.topic("created", queues=4)
    await lab.settle()
    lab.api.remove("Topic", "created")
    await lab.settle(3)
    assert lab.topic(0, "created") == TopicSettings("created", 4, 4)
    lab.api.topic("created", queues=4)
    await lab.settle()
    assert lab.api.ready("created") == ("True", "Reconciled")
    assert lab.events.reasons("created") == ["Adopted"]


@pytest.mark.parametrize("spec", [{"queues": 5}, {"queues": 4, "deletionPolicy": "Delete"}, {"permission": "ReadOnly"}])
async def test_applied_again_as_something_else(lab: Lab, spec: dict[str, Any]) -> None:
    lab.api.topic("created", queues=4)
    await lab.settle()
    lab.api.remove("Topic", "created")
    lab.api.topic("created", **spec)
    await lab.settle()
    assert lab.api.ready("created") == ("False", "AlreadyExists")
    assert lab.topic(0, "created") == TopicSettings("created", 4, 4)


async def test_a_new_group_of_the_cluster_has_it_already(lab: Lab) -> None:
    lab.api.topic("created", queues=4, deletionPolicy="Delete")
    await lab.settle()
    lab.brokers.add("orders-2")
    lab.mqadmin(2, "created", 2)
    lab.api.cluster(3)
    await lab.settle()
    assert lab.api.ready("created") == ("False", "AlreadyExists")
    lab.mqadmin(0, "created", 2)
    await lab.settle()
    assert lab.topic(0, "created") == TopicSettings("created", 4, 4)  # where it is ours it is kept
    lab.api.remove("Topic", "created")
    await lab.settle(3)
    assert lab.topic(0, "created") is None
    assert lab.topic(2, "created") == TopicSettings("created", 2, 2)


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
async def test_a_consumer_group_that_a_broker_made_by_itself_is_taken(lab: Lab, policy: str) -> None:
    table = lab.brokers.groups["orders-0"].tables["ConsumerGroup"]
    table["billing"] = ConsumerGroupSettings("billing")
    table["audit"] = ConsumerGroupSettings("audit", max_retries=5)
    for name in ("billing", "audit"):
        lab.api.create("ConsumerGroup", name, {"clusterName": CLUSTER, "maxRetries": 3, "deletionPolicy": policy})
    await lab.settle()
    assert lab.api.ready("billing", "ConsumerGroup") == ("True", "Reconciled")
    assert table["billing"].max_retries == 3
    assert lab.api.ready("audit", "ConsumerGroup") == ("False", "AlreadyExists")
    assert table["audit"].max_retries == 5


# -- groups without a leader


async def test_a_change_of_leader_is_no_news(lab: Lab) -> None:
    lab.api.topic("created")
    await lab.settle()
    writes = lab.api.writes
    lab.brokers.groups["orders-1"].leads = False
    assert await lab.once() == 3.0
    assert lab.api.writes == writes
    lab.seconds += 29
    await lab.once()
    assert lab.api.writes == writes
    lab.seconds += 2
    await lab.once()
    assert lab.api.ready("created") == ("False", "GroupUnavailable")
    assert lab.api.message("created") == "orders-1: no leader responds (it matches the spec on orders-0)"
    assert [row["name"] for row in lab.api.status("created")["groups"]] == ["orders-0", "orders-1"]
    lab.brokers.groups["orders-1"].leads = True
    await lab.once()
    assert lab.api.ready("created") == ("True", "Reconciled")
    assert lab.events.told == []


async def test_new_objects_are_reported_at_once(lab: Lab) -> None:
    lab.brokers.groups["orders-1"].leads = False
    lab.api.topic("created")
    await lab.once()
    assert lab.topic(0, "created")
    assert lab.api.ready("created") == ("False", "GroupUnavailable")
    assert lab.api.status("created")["ownedGroups"] == ["orders-0"]


async def test_the_leader_is_lost_between_reading_and_writing(lab: Lab) -> None:
    lab.api.topic("created")
    group = lab.brokers.groups["orders-1"]
    lab.api.on_write.append(lambda old, new: setattr(group, "leads", False))
    assert await lab.once() == 3.0
    assert lab.api.ready("created") == ("False", "WriteFailed")
    lab.api.on_write.clear()
    group.leads = True
    lab.seconds += 3
    await lab.once()
    assert lab.api.ready("created") == ("True", "Reconciled")
    assert lab.events.told == []


async def test_kinds_and_admin_api_name_the_same_fields() -> None:
    assert TOPIC.from_wire(TopicSettings("a", 3, 4, 6, True).to_wire()) == TopicSettings("a", 3, 4, 6, True)
    group = ConsumerGroupSettings("g", consume_enabled=False, max_retries=3, retry_queues=2)
    assert CONSUMER_GROUP.from_wire(group.to_wire()) == group


async def test_topics_of_a_cluster_that_hibernates_are_unknown_and_keep_their_state(lab: Lab) -> None:
    lab.api.topic("mine", queues=4)
    await lab.settle()
    before = lab.api.status("mine")
    lab.api.annotate("BrokerCluster", CLUSTER, "tallystick.dev/hibernation", "on")
    lab.api.topic("later")
    await lab.settle()
    assert lab.api.ready("mine") == lab.api.condition("mine", "Synced") == ("Unknown", "ClusterHibernated")
    assert lab.api.status("mine")["groups"] == before["groups"]
    assert lab.api.status("mine")["ownedGroups"] == before["ownedGroups"]
    assert lab.api.ready("later") == ("Unknown", "ClusterHibernated")
    assert lab.api.status("later")["phase"] == "Pending"
    assert lab.topic(0, "later") is None
    lab.api.annotate("BrokerCluster", CLUSTER, "tallystick.dev/hibernation", "off")
    await lab.settle()
    assert lab.api.ready("mine") == lab.api.ready("later") == ("True", "Reconciled")


async def test_a_topic_that_is_deleted_while_its_cluster_hibernates_waits(lab: Lab) -> None:
    lab.api.topic("mine", deletionPolicy="Delete")
    await lab.settle()
    lab.api.annotate("BrokerCluster", CLUSTER, "tallystick.dev/hibernation", "on")
    lab.api.remove("Topic", "mine")
    await lab.settle()
    assert lab.api.status("mine")["phase"] == "Deleting"
    assert "hibernates" in lab.api.message("mine")
    assert lab.topic(0, "mine")
    lab.api.annotate("BrokerCluster", CLUSTER, "tallystick.dev/hibernation", "off")
    await lab.settle()
    assert lab.topic(0, "mine") is None
