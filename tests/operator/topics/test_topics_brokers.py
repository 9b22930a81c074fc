"""The same with a group of three real broker processes: what the admin API answers is what the reconciler relies on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from group_lab import GroupLab, until
from prometheus_client import CollectorRegistry
from topics_lab import CLUSTER, NAMESPACE, FakeApi, FakeEvents

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.codes import RequestCode
from tallystick.operator.core.node_api import NodeApi, NodeName
from tallystick.operator.topics.brokers import NodeBrokers
from tallystick.operator.topics.kinds import CONSUMER_GROUP, TOPIC
from tallystick.operator.topics.metrics import TopicMetrics
from tallystick.operator.topics.ports import GroupAddress, InUseError, RefusedError, SilentError
from tallystick.operator.topics.reconcile import TopicsReconciler
from tallystick.operator.topics.settings import ConsumerGroupSettings, TopicSettings

pytestmark = pytest.mark.process

GROUP = GroupAddress(NAMESPACE, CLUSTER, 0, members=3, leader="orders-0-0")


class RealBrokers:
    """A group on loopback and the operator's way to it; and a Kubernetes in memory."""

    def __init__(self, group: GroupLab, session: aiohttp.ClientSession) -> None:
        self.group = group
        self.api = FakeApi()
        self.api.cluster(1)
        self.events = FakeEvents()
        template: Any = SimpleNamespace(format=self._url)
        self.nodes = NodeApi(session, template, lambda namespace, cluster: "")
        self.brokers = NodeBrokers(self.nodes)
        api: Any = self.api
        events: Any = self.events
        metrics = TopicMetrics(CollectorRegistry())
        self.reconciler = TopicsReconciler(api, self.brokers, events, metrics, now=lambda: 1e9)

    def _url(self, node: NodeName, namespace: str) -> str:
        process = self.group.members.get(node.member)
        return "http://" + ("127.0.0.1:1" if process is None else process.places["http"])

    async def once(self) -> float | None:
        return await self.reconciler.reconcile(NAMESPACE, CLUSTER)

    async def member(self) -> NodeName:
        return NodeName(NAMESPACE, CLUSTER, 0, await self.group.leader())


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[RealBrokers]:
    with GroupLab(tmp_path) as group:
        await group.ready()
        async with aiohttp.ClientSession() as session:
            yield RealBrokers(group, session)


async def test_topics_of_a_real_group(real: RealBrokers) -> None:
    real.api.topic("created", queues=4, ordered=True)
    real.api.create("ConsumerGroup", "billing", {"clusterName": CLUSTER, "maxRetries": 3})
    real.api.topic("mine", topicName="group-a")  # the name of the brokers, which only they know here
    await real.once()
    assert real.api.ready("created") == ("True", "Reconciled"), real.api.status("created")
    assert real.api.ready("billing", "ConsumerGroup") == ("True", "Reconciled")
    leader = await real.member()
    found = await real.nodes.ask(leader, "GET", "/topics/created")
    assert TOPIC.from_wire(found) == TopicSettings("created", 4, 4, 6, True)
    assert real.api.ready("mine")[1] in ("AlreadyExists", "RefusedByBroker")

    # Drift: a changed topic and a deleted group are restored.
    await real.nodes.ask(leader, "PUT", "/topics/created", {"perm": 4, "writeQueues": 2})
    await real.nodes.ask(leader, "DELETE", "/consumergroups/billing")
    await real.once()
    assert (await real.brokers.read(TOPIC, GROUP))["created"] == TopicSettings("created", 4, 4, 6, True)
    assert (await real.brokers.read(CONSUMER_GROUP, GROUP))["billing"].max_retries == 3
    assert real.events.reasons("created") == real.events.reasons("billing") == ["DriftCorrected"]

    # Its leader dies: the next one has it all, and takes what is new.
    first = await real.group.leader()
    real.group.kill(first)
    assert await real.group.leader() != first
    real.api.topic("later")

    async def made() -> bool | None:
        await real.once()
        return real.api.ready("later") == ("True", "Reconciled") or None

    await until("a topic is made by the next leader", made)
    assert set(await real.brokers.read(TOPIC, GROUP)) >= {"created", "later"}
    assert "AlreadyExists" not in real.events.reasons("created")


async def test_what_a_real_leader_answers(real: RealBrokers) -> None:
    leader = await real.member()
    lagging = GroupAddress(NAMESPACE, CLUSTER, 0, 3, leader=f"orders-0-{(leader.member + 1) % 3}")
    refused = await real.brokers.write(
        TOPIC,
        lagging,
        [TopicSettings("good", 2, 2), TopicSettings("TBW102", 2, 2), TopicSettings("bad", 0, 0)],
    )
    assert set(refused) == {"TBW102", "bad"} and "queue" in refused["bad"]
    assert await real.brokers.figures(TOPIC, lagging, "good") == {"messages": 0}
    assert await real.brokers.figures(TOPIC, lagging, "nothing") == {}
    assert await real.brokers.write(CONSUMER_GROUP, lagging, [ConsumerGroupSettings("readers")]) == {}
    assert await real.brokers.figures(CONSUMER_GROUP, lagging, "readers") == {"clients": 0, "lag": 0}
    async with ClusterClient(real.group.nameserver) as client:
        await client.send(QueueAddress("good", "group-a", real.group.address(leader.member), 0), b"one")
        assert await real.brokers.figures(TOPIC, lagging, "good") == {"messages": 1}
        with pytest.raises(InUseError):
            await real.brokers.delete(TOPIC, lagging, "good", if_empty=True)
        await real.brokers.delete(TOPIC, lagging, "good", if_empty=False)

        async def forgotten() -> bool | None:
            listed = json.loads((await client.ask_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})).body)
            return "good" not in listed["topicList"] or None

        await until("the name server has forgotten the topic too", forgotten)
    await real.brokers.delete(TOPIC, lagging, "good", if_empty=False)
    assert "good" not in await real.brokers.read(TOPIC, lagging)
    with pytest.raises(RefusedError):
        await real.brokers.delete(TOPIC, lagging, "TBW102", if_empty=False)
    await real.brokers.write(TOPIC, lagging, [TopicSettings("%RETRY%odd|name", 1, 1)])
    assert await real.brokers.figures(TOPIC, lagging, "%RETRY%odd|name") == {"messages": 0}
    await real.brokers.delete(TOPIC, lagging, "%RETRY%odd|name", if_empty=True)

    for number in list(real.group.members)[:2]:
        real.group.kill(number)

    async def silent() -> bool | None:
        try:
            await real.brokers.read(TOPIC, lagging)
        except SilentError:
            return True
        return None

    await until("one of three does not lead", silent)
    with pytest.raises(SilentError):
        await real.brokers.write(TOPIC, lagging, [TopicSettings("good", 2, 2)])
