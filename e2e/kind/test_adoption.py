"""A RocketMQ 4.8 cluster in a pod moves to a BrokerCluster while a Java producer works, and the operator is killed.

Only a real name server, master and client decide whether the brokers are found by the names of Services, whether a
fence holds, and whether a producer with a single broker name continues.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness import pods
from harness.api import Json
from harness.brokers import Brokers
from harness.faults import signal_process
from harness.java import Java, now_ms
from harness.lab import ORDERS, Lab
from harness.pods import Shell
from harness.rocketmq import BROKER, CLUSTER, RocketMq, rocketmq
from harness.shell import kubectl
from harness.waiting import NotYetError, wait_for

pytestmark = pytest.mark.java

NAMESPACE, TOPIC, GROUP = "e2e-adoption", "moving", "readers"
FRESH: dict[str, Any] = {"config": {"flushConsumerOffsetInterval": "500"}, "autoCreateTopics": True}
_FOLLOWS_S, _ADOPTED_S, _POLL_MS = 300, 400, 1000


@pytest.fixture
def old(installed: Lab, java_client: Java) -> Iterator[RocketMq]:
    """A name server and a master of RocketMQ in a namespace."""
    installed.namespace(NAMESPACE)
    yield rocketmq(installed.api, NAMESPACE, java_client.image)
    kubectl("delete", "namespace", NAMESPACE, "--timeout=180s", timeout_s=200)


def _told(brokers: Brokers, kind: str) -> Json:
    """One condition. NotYetError: it does not exist yet."""
    conditions = {each["type"]: each for each in brokers.status().get("conditions") or ()}
    if kind not in conditions:
        raise NotYetError(f"no condition {kind}")
    return dict(conditions[kind])


def _until(brokers: Brokers, kind: str, timeout_s: float) -> None:
    """WaitError: the condition says why."""

    def look() -> None:
        found = _told(brokers, kind)
        if found["status"] != "True":
            raise NotYetError(f"{found['reason']}: {found['message']}; {json.dumps(brokers.status().get('adoption'))}")

    wait_for(f"the condition {kind} is True", look, timeout_s)


def _read(shell: Shell, name_server: str, *words: str) -> list[Json]:
    """The messages of the topic that a consumer gets."""
    said = shell.tally("consume", TOPIC, "--once", "--json", *words, "--nameserver", name_server, timeout_s=120)
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_a_rocketmq_cluster_moves_while_its_clients_work(installed: Lab, java_client: Java, old: RocketMq) -> None:
    """No acknowledged message is lost, and a consumer group and the producer continue."""
    shell = pods.shell(installed.api, NAMESPACE, installed.images.node, old.name_server)
    brokers = Brokers(installed.api, NAMESPACE, ORDERS)
    with java_client.producer(NAMESPACE, old.name_server, TOPIC, _POLL_MS) as producer:
        before = _read(shell, old.name_server, "--commit", "--group", GROUP)
        assert before, "the producer sends, and a group has committed"

        brokers.apply({**FRESH, "groups": 2, "adoptFrom": {"nameServers": [old.name_server]}})
        wait_for("the plan is refused", lambda: _is_refused(brokers), 120)
        assert brokers.pods() == {} and "set spec.groups to 1" in _told(brokers, "Adopted")["message"]
        brokers.api.delete("brokerclusters", NAMESPACE, ORDERS)

        brokers.apply({**FRESH, "adoptFrom": {"nameServers": [old.name_server], "cluster": CLUSTER}})
        _until(brokers, "AdoptionReady", _FOLLOWS_S)
        row = brokers.status()["adoption"]["groups"][0]
        assert (row["brokerName"], row["state"]) == (BROKER, "following") and row["rehearsal"], row
        assert brokers.status()["phase"] == "Adopting"

        brokers.change({"adoptFrom": {"switch": "Automatic"}})
        for pod in installed.release.pods():
            signal_process(installed.kind, pod, "tally-operator", "KILL")
        began_ms = now_ms()
        _until(brokers, "Adopted", _ADOPTED_S)
        row = brokers.status()["adoption"]["groups"][0]
        assert row["state"] == "promoted" and "compared with" in row["verification"], row
        producer.sent_after(now_ms())
        print(f"adoption: no send of a producer with one broker name for {producer.outage_after(began_ms)} ms at most")
        old.stop_master()
        producer.sent_after(now_ms())
        sent = producer.sends()
    brokers.whole()
    there = _read(shell, brokers.name_server)
    bodies = {each["body"] for each in there}
    missing = [number for number, each in enumerate(sent) if each.ok and f"send-again-{number}" not in bodies]
    installed.goals.lost.add(len(missing))
    assert missing == [] and len(sent) > len(before)

    after = _read(shell, brokers.name_server, "--commit", "--group", GROUP)
    assert len(after) == len(there) - len(before), "the group continues where it was"

    running = {node: pod["metadata"]["uid"] for node, pod in brokers.pods().items()}
    brokers.change({"adoptFrom": None})
    brokers.whole()
    wait_for("the brokers have left the old name server", lambda: _has_rolled(brokers, running), 240)
    assert _read(shell, brokers.name_server, "--group", "others")


def _is_refused(brokers: Brokers) -> None:
    found = _told(brokers, "Adopted")
    if found["reason"] != "GroupsMismatch":
        raise NotYetError(f"{found['reason']}: {found['message']}")


def _has_rolled(brokers: Brokers, before: dict[str, str]) -> None:
    now = {node: pod["metadata"]["uid"] for node, pod in brokers.pods().items()}
    if set(now.values()) & set(before.values()):
        raise NotYetError(f"{now}, step {brokers.status().get('step')}")
    brokers.look_whole()
