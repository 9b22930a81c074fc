"""A resource is deleted: what becomes of the topic, and that nothing hangs that need not."""

import pytest
from simulated_api import SimulatedApi
from simulated_cluster import InlineKube
from topics_lab import CLUSTER, NAMESPACE, Lab

from tallystick.operator.core.release import release_terminating
from tallystick.operator.topics.settings import TopicSettings
from tallystick.operator.uninstall import FINALIZERS

pytestmark = pytest.mark.asyncio
FINALIZER = "tallystick.dev/topic"


@pytest.fixture
async def lab() -> Lab:
    return Lab()


def finalizers(lab: Lab, name: str = "created") -> list[str]:
    found: list[str] = lab.api.objects["Topic", NAMESPACE, name]["metadata"].get("finalizers", [])
    return found


def gone(lab: Lab, name: str = "created") -> bool:
    return ("Topic", NAMESPACE, name) not in lab.api.objects


async def test_retain_has_no_finalizer_at_all(lab: Lab) -> None:
    lab.api.topic("created")
    await lab.settle()
    assert finalizers(lab) == []
    lab.api.remove("Topic", "created")
    assert gone(lab)
    await lab.once()
    assert lab.topic(0, "created") and lab.topic(1, "created")


async def test_delete(lab: Lab) -> None:
    lab.api.topic("created", deletionPolicy="Delete")
    await lab.settle()
    assert finalizers(lab) == [FINALIZER]
    lab.brokers.groups["orders-0"].figures["created"] = 7
    lab.api.remove("Topic", "created")
    assert not gone(lab)
    await lab.once()
    assert gone(lab)
    assert lab.topic(0, "created") is lab.topic(1, "created") is None


async def test_the_finalizer_is_there_before_the_topic(lab: Lab) -> None:
    lab.api.topic("created", deletionPolicy="Delete")
    seen = []
    lab.brokers.on_change.append(lambda *_: seen.append(finalizers(lab)))
    await lab.once()
    assert seen == [[FINALIZER]] * 2


async def test_finalizers_of_others_stay(lab: Lab) -> None:
    lab.api.topic("created", deletionPolicy="Delete")
    lab.api.objects["Topic", NAMESPACE, "created"]["metadata"]["finalizers"] = ["example.org/audit"]
    await lab.settle()
    assert finalizers(lab) == ["example.org/audit", FINALIZER]
    lab.api.remove("Topic", "created")
    await lab.settle(4)
    assert finalizers(lab) == ["example.org/audit"]
    assert lab.topic(0, "created") is None  # and it is not made again


async def test_policies_can_change(lab: Lab) -> None:
    lab.api.topic("created")
    await lab.settle()
    lab.api.edit("Topic", "created", deletionPolicy="DeleteIfEmpty")
    await lab.settle()
    assert finalizers(lab) == [FINALIZER]
    lab.api.edit("Topic", "created", deletionPolicy="Retain")
    await lab.settle()
    assert finalizers(lab) == []


async def test_retain_lets_go_of_one_that_hangs(lab: Lab) -> None:
    lab.api.topic("created", deletionPolicy="Delete")
    await lab.settle()
    lab.brokers.groups["orders-1"].leads = False
    lab.api.remove("Topic", "created")
    await lab.settle()
    assert lab.api.ready("created") == ("False", "GroupUnavailable")
    assert lab.api.status("created")["phase"] == "Deleting"
    lab.api.edit("Topic", "created", deletionPolicy="Retain")
    await lab.once()
    assert gone(lab)
    assert lab.topic(1, "created")


async def test_a_group_without_leader_is_waited_for(lab: Lab) -> None:
    lab.api.topic("created", deletionPolicy="Delete")
    await lab.settle()
    lab.brokers.groups["orders-1"].leads = False
    lab.api.remove("Topic", "created")
    assert await lab.once() == 3.0
    assert lab.topic(0, "created") is None and lab.topic(1, "created")
    lab.brokers.groups["orders-1"].leads = True
    await lab.once()
    assert gone(lab) and lab.topic(1, "created") is None


async def test_it_is_deleted_where_it_was_not_seen(lab: Lab) -> None:
    """Who was asked what there is may have led no more; only a leader deletes."""
    lab.api.topic("created", deletionPolicy="Delete")
    await lab.settle()
    asked = []
    lab.brokers.on_change.append(lambda kind, group, name, old, new: asked.append((group, old is None)))
    del lab.brokers.groups["orders-1"].topics["created"]
    lab.api.remove("Topic", "created")
    await lab.once()
    assert asked == [("orders-0", False), ("orders-1", True)]


async def test_delete_if_empty_waits_for_the_last_message(lab: Lab) -> None:
    lab.api.topic("created", deletionPolicy="DeleteIfEmpty")
    await lab.settle()
    lab.brokers.groups["orders-1"].figures["created"] = 7
    lab.api.remove("Topic", "created")
    assert await lab.settle() == 10.0
    assert lab.api.ready("created") == ("False", "NotEmpty")
    assert lab.api.message("created") == "orders-1 still has messages; it is deleted when there are none"
    assert lab.topic(0, "created") and lab.topic(1, "created")
    assert lab.events.reasons("created") == ["NotEmpty"]
    lab.brokers.groups["orders-1"].figures["created"] = 0
    lab.seconds += 10
    await lab.once()
    assert gone(lab) and lab.topic(0, "created") is None


async def test_while_it_waits_it_stays_as_declared(lab: Lab) -> None:
    lab.api.topic("created", deletionPolicy="DeleteIfEmpty")
    await lab.settle()
    lab.brokers.groups["orders-1"].figures["created"] = 7
    lab.api.remove("Topic", "created")
    await lab.settle()
    lab.mqadmin(1, "created", 4)
    lab.seconds += 10
    await lab.once()
    assert lab.topic(1, "created") == TopicSettings("created", 8, 8)


async def test_delete_if_empty_waits_for_a_group_that_may_have_messages(lab: Lab) -> None:
    lab.api.topic("created", deletionPolicy="DeleteIfEmpty")
    await lab.settle()
    lab.brokers.groups["orders-1"].leads = False
    lab.api.remove("Topic", "created")
    await lab.settle()
    assert lab.topic(0, "created")
    assert lab.api.ready("created") == ("False", "GroupUnavailable")


async def test_a_message_that_comes_between_counting_and_deleting(lab: Lab) -> None:
    lab.api.topic("created", deletionPolicy="DeleteIfEmpty")
    await lab.settle()
    lab.api.remove("Topic", "created")

    def send(kind: str, group: str, name: str, old: object, new: object) -> None:
        if group == "orders-0" and new is None:
            lab.brokers.groups["orders-1"].figures["created"] = 1

    lab.brokers.on_change.append(send)
    await lab.once()
    assert lab.api.ready("created") == ("False", "NotEmpty")
    assert lab.topic(1, "created")
    await lab.settle()
    assert lab.topic(0, "created")  # all of it or nothing of it


async def test_a_consumer_group_in_use(lab: Lab) -> None:
    lab.api.create("ConsumerGroup", "billing", {"clusterName": CLUSTER, "deletionPolicy": "DeleteIfEmpty"})
    await lab.settle()
    lab.brokers.groups["orders-0"].figures["billing"] = 2
    lab.api.remove("ConsumerGroup", "billing")
    await lab.settle()
    assert lab.api.ready("billing", "ConsumerGroup") == ("False", "NotEmpty")
    assert "consumers connected" in lab.api.message("billing", kind="ConsumerGroup")


@pytest.mark.parametrize("policy", ["Delete", "DeleteIfEmpty"])
async def test_what_was_never_ours_is_let_go_untouched(lab: Lab, policy: str) -> None:
    lab.mqadmin(0, "created", 4)
    lab.api.topic("created", deletionPolicy=policy)
    await lab.settle()
    assert finalizers(lab) == []
    lab.api.remove("Topic", "created")
    assert gone(lab)
    await lab.once()
    assert lab.topic(0, "created")


async def test_one_in_conflict_deletes_nothing(lab: Lab) -> None:
    lab.api.topic("first", topicName="same")
    lab.api.topic("another", topicName="same", deletionPolicy="Delete")
    await lab.settle()
    lab.api.remove("Topic", "another")
    await lab.settle()
    assert gone(lab, "another")
    assert lab.topic(0, "same")


@pytest.mark.parametrize("how", ["gone", "deleting"])
@pytest.mark.parametrize("policy", ["Delete", "DeleteIfEmpty"])
async def test_without_its_cluster_nothing_is_held(lab: Lab, how: str, policy: str) -> None:
    lab.api.topic("created", deletionPolicy=policy)
    lab.api.topic("kept", deletionPolicy=policy)
    await lab.settle()
    lab.brokers.groups["orders-1"].figures["created"] = 7
    lab.api.remove("Topic", "created")
    if how == "gone":
        lab.api.remove("BrokerCluster", CLUSTER)
    else:
        metadata = lab.api.objects["BrokerCluster", NAMESPACE, CLUSTER]["metadata"]
        metadata["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    requests = lab.brokers.requests
    await lab.once()
    assert gone(lab)
    assert finalizers(lab, "kept") == []  # also of those that are not deleted yet: the operator may be removed next
    assert lab.brokers.requests == requests


async def test_a_group_that_left_the_cluster_is_not_waited_for(lab: Lab) -> None:
    lab.api.topic("created", deletionPolicy="Delete")
    await lab.settle()
    lab.api.cluster(1)
    lab.brokers.groups["orders-1"].leads = False
    lab.api.remove("Topic", "created")
    await lab.settle(4)
    assert gone(lab)


async def test_a_broker_that_refuses_to_delete(lab: Lab) -> None:
    lab.api.topic("created", deletionPolicy="Delete")
    await lab.settle()
    lab.brokers.groups["orders-1"].refuses["created"] = "not this one"
    lab.api.remove("Topic", "created")
    await lab.settle()
    assert lab.api.ready("created") == ("False", "RefusedByBroker")
    assert lab.api.status("created")["phase"] == "Deleting"
    assert lab.events.reasons("created") == ["RefusedByBroker"]


async def test_a_thousand_are_deleted(lab: Lab) -> None:
    for number in range(1000):
        lab.api.topic(f"topic-{number}", deletionPolicy="Delete")
    await lab.settle()
    for number in range(1000):
        lab.api.remove("Topic", f"topic-{number}")
    while await lab.once() is not None:
        pass
    assert lab.api.of("Topic") == []
    assert lab.brokers.groups["orders-0"].topics == {}


async def test_a_namespace_that_is_deleted_does_not_wait_for_the_operator(lab: Lab) -> None:
    """Its rights there go with the namespace, so it releases all resources as soon as it sees this."""
    lab.api.topic("created", deletionPolicy="DeleteIfEmpty")
    lab.api.topic("kept", deletionPolicy="Delete")
    await lab.settle()
    assert lab.api.objects["Topic", NAMESPACE, "created"]["metadata"]["finalizers"]
    lab.api.terminating.add(NAMESPACE)
    await lab.settle()
    for name in ("created", "kept"):
        assert not lab.api.objects["Topic", NAMESPACE, name]["metadata"].get("finalizers")
        lab.api.remove("Topic", name)
    await lab.settle()
    assert lab.topic(0, "created") and lab.topic(0, "kept"), "the messages go with the volumes, not before"


@pytest.mark.parametrize("terminating", [True, False])
async def test_an_operator_that_stops_releases_only_a_namespace_that_is_deleted(terminating: bool) -> None:
    api = SimulatedApi(lambda: 0.0)
    for plural, name, finalizers in (
        ("topics", "one", ["tallystick.dev/topic", "other/finalizer"]),
        ("topics", "two", []),
        ("consumergroups", "three", ["tallystick.dev/consumergroup"]),
    ):
        body = {"metadata": {"name": name, "finalizers": finalizers}, "spec": {}}
        api._store((plural, "shop", name), body)
    api.terminating = {"shop"} if terminating else {"bank"}
    before = dict(api.objects)
    released = await release_terminating(InlineKube(api), ["shop"], FINALIZERS)
    assert released == (2 if terminating else 0)
    if not terminating:
        assert api.objects == before
        return
    found = {name: body["metadata"]["finalizers"] for (_, _, name), body in api.objects.items()}
    assert found == {"one": ["other/finalizer"], "two": [], "three": []}
