"""A leader goes, in every way that it can: another one serves, nothing acknowledged is lost, and all come back.

The moments are the tests' own, by the clock that the load has too; what counts is the longest time after each in which
nothing was acknowledged.
"""

from __future__ import annotations

import pytest
from harness.brokers import Brokers, now_s, restart_count
from harness.faults import cut, kill_broker, start_machine, stop_machine
from harness.java import Java, now_ms
from harness.lab import Lab
from harness.load import Load, loaded

pytestmark = pytest.mark.ci

KILLS = 4
DELETIONS = 2


def _judge(lab: Lab, load: Load) -> None:
    """Ends the load; nothing that was acknowledged may be missing, and nothing be there that cannot be."""
    load.finish()
    verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    assert verdict.problems == [], f"reasons of failed sends: {load.history.reasons()}"


def test_pods_are_deleted(orders: Brokers, lab: Lab) -> None:
    """`kubectl delete pod`, of the leader, again and again: it hands over before it stops, and no send fails."""
    moments = []
    with loaded(orders, lab.images.node) as load:
        for _ in range(DELETIONS):
            leader = orders.leader()
            uid = orders.pod(leader)["metadata"]["uid"]
            moments.append(now_s())
            lab.api.delete("pods", orders.namespace, f"{leader}-0")
            load.served_again(moments[-1])
            orders.replaced(leader, uid)
            orders.whole()
            assert orders.leader() != leader
        _judge(lab, load)
    lab.goals.planned_switch.add(*(1000 * load.outage_after(moment_s) for moment_s in moments))
    lab.goals.failed.add(load.failed())
    assert load.failed() == 0


def test_processes_are_killed(orders: Brokers, lab: Lab) -> None:
    """kill -9 of the leader's process: Kubernetes starts it again, and meanwhile another one leads."""
    moments = []
    with loaded(orders, lab.images.node) as load:
        for _ in range(KILLS):
            leader = orders.leader()
            term = int(orders.status()["groups"][0]["term"])
            restarts = restart_count(orders.pod(leader))
            moments.append(kill_broker(lab.kind, orders, leader))
            load.served_again(moments[-1])
            orders.restarted(leader, restarts)
            assert int(orders.whole()["groups"][0]["term"]) > term
        _judge(lab, load)
    lab.goals.leader_change.add(*(load.outage_after(moment_s) for moment_s in moments))


def test_a_machine_is_stopped(orders: Brokers, lab: Lab) -> None:
    """The leader's, without a farewell: the status says what is missing, and with the machine the member comes back."""
    with loaded(orders, lab.images.node) as load:
        leader = orders.leader()
        pod, machine = orders.pod(leader), orders.machine(leader)
        begin_s, end_s = stop_machine(machine)
        try:
            load.served_again(end_s)
            orders.degraded(leader)
        finally:
            start_machine(lab.api, machine)
        orders.runs_again(leader, pod)
        orders.whole()
        _judge(lab, load)
    print(f"stopping {machine} took {end_s - begin_s:.1f} s")
    lab.goals.leader_change.add(load.outage_after(begin_s, end_s - begin_s + 4))


def test_a_leader_is_cut_off(orders: Brokers, lab: Lab) -> None:
    """From the other members alone, so clients still reach it: it stops to acknowledge, and another one leads."""
    with loaded(orders, lab.images.node) as load:
        leader = orders.leader()
        others = sorted(set(orders.nodes()) - {leader})
        with cut(lab.kind, orders, leader, others) as moment_s:
            load.served_again(moment_s)
            orders.led_by_another(leader)
        orders.whole()
        _judge(lab, load)
    lab.goals.leader_change.add(load.outage_after(moment_s))


@pytest.mark.java
def test_a_java_producer_goes_on(orders: Brokers, lab: Lab, java_client: Java) -> None:
    """RocketMQ's own, with its defaults (it looks at the route every 30 s) and looking every second; kill -9, and a
    pod that is killed with no time to say farewell."""
    orders.topic("java-again")
    for poll_ms in (0, 1000):
        with java_client.producer(orders.namespace, orders.name_server, "java-again", poll_ms) as producer:
            for kill in (True, False):
                orders.whole()
                leader = orders.leader()
                pod = orders.pod(leader)
                moment_ms = now_ms()
                if kill:
                    kill_broker(lab.kind, orders, leader)
                else:
                    lab.api.delete("pods", orders.namespace, f"{leader}-0", grace_s=0)
                if kill:
                    orders.restarted(leader, restart_count(pod))
                else:
                    orders.replaced(leader, pod["metadata"]["uid"])
                producer.sent_after(now_ms())
                lab.goals.java_again.add(producer.outage_after(moment_ms) / 1000)
