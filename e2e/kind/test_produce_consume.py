"""Messages in and out: our client and RocketMQ's inside, and RocketMQ's outside through the external listener."""

from __future__ import annotations

import asyncio
import json

import pytest
from harness.brokers import Brokers
from harness.java import Java
from harness.lab import NAME_SERVER_PORT, Lab
from harness.load import loaded
from harness.pods import Shell
from harness.release import is_ready

from tallystick.node.core.client import ClusterClient

pytestmark = pytest.mark.ci

COUNT = 200


def test_by_the_command(orders: Brokers, shell: Shell) -> None:
    """`tally produce` and `tally consume` in a pod, by the one address for all name servers."""
    orders.topic("by-command")
    shell.tally("produce", "by-command", "one", "two", "--nameserver", orders.name_server)
    said = shell.tally("consume", "by-command", "--once", "--json", "--nameserver", orders.name_server)
    assert '"one"' in said and '"two"' in said, said


def test_every_member_has_what_was_acknowledged(orders: Brokers, lab: Lab) -> None:
    """A load in peace: nothing fails, and all members read the same."""
    with loaded(orders, lab.images.node) as load:
        load.served_again(0)
        load.finish()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    assert verdict.problems == []
    assert verdict.acknowledged > 50
    assert load.failed() == 0


@pytest.mark.java
def test_rocketmq_inside(orders: Brokers, lab: Lab, java_client: Java) -> None:
    """Its Java client in a pod: sends, and a push consumer that gets all of it."""
    orders.topic("java-inside")
    where = ["--topic", "java-inside", "-n", orders.name_server]
    java_client.probe_inside(
        lab.api, orders.namespace, "produce", *where, "--count", str(COUNT), "--size", "256", "--mode", "sync"
    )
    said = java_client.probe_inside(lab.api, orders.namespace, "consume-push", *where, "--expect", str(COUNT))
    assert json.loads(said.splitlines()[-1])["ok"] is True


@pytest.mark.java
def test_rocketmq_outside(orders: Brokers, lab: Lab, java_client: Java) -> None:
    """On this machine, which knows no address of the pods: by node ports, of name servers and of each broker."""
    orders.topic("java-outside")
    status = orders.whole()
    external = str(status["nameServers"]["externalAddress"])
    host, _, port = external.rpartition(":")
    assert port == str(NAME_SERVER_PORT)
    assert host in _addresses(lab), external
    for node in orders.nodes().values():
        assert node["status"]["externalAddress"].rpartition(":")[0] in _addresses(lab)
    where = ["--topic", "java-outside", "-n", external]
    java_client.probe_outside("produce", *where, "--count", str(COUNT), "--size", "256", "--mode", "async")
    java_client.probe_outside("consume-push", *where, "--expect", str(COUNT))
    java_client.probe_outside("consume-pull", *where, "--expect", str(COUNT))


def _addresses(lab: Lab) -> set[str]:
    """Of the machines, as Kubernetes knows them."""
    found = set()
    for machine in lab.api.list("nodes"):
        assert is_ready(machine)
        found |= {each["address"] for each in machine["status"]["addresses"] if each["type"] == "InternalIP"}
    return found


def test_an_outside_client_is_told_outside_addresses(orders: Brokers, lab: Lab) -> None:
    """What its client asks first: where the brokers are."""
    external = str(orders.whole()["nameServers"]["externalAddress"])
    masters = asyncio.run(_masters(external))
    assert set(masters) == {"orders-0"}
    assert masters["orders-0"].rpartition(":")[0] in _addresses(lab)


async def _masters(name_server: str) -> dict[str, str]:
    async with ClusterClient(name_server, timeout_s=10) as client:
        return await client.masters()
