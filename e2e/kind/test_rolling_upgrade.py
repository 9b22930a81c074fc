"""Another image, under load: one member at a time, the leader last, without failed requests. And a pause that holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.brokers import Brokers, now_s
from harness.java import Java, JavaProducer
from harness.lab import Lab
from harness.load import loaded
from harness.waiting import NotYetError, wait_for
from harness.watching import Watched, watching
from lab.peer import PeerMissingError, need_peer

_ROLL_S = 300
_HOLD_S = 15


@pytest.fixture
def java_producer(orders: Brokers, request: pytest.FixtureRequest) -> Iterator[JavaProducer | None]:
    """With the client's defaults; None where there is no peer lab."""
    try:
        need_peer()
    except PeerMissingError:
        yield None
        return
    java: Java = request.getfixturevalue("java_client")
    orders.topic("java-upgrade")
    with java.producer(orders.namespace, orders.name_server, "java-upgrade") as producer:
        yield producer


def _orderly(watched: Watched, leader: str) -> None:
    """One at a time, and the one that led at the begin comes last."""
    assert watched.most_unready <= 1, watched.unready
    assert len(watched.replaced) == 3, watched.replaced
    assert watched.replaced[-1] == leader, watched.replaced


@pytest.mark.ci
def test_nobody_notices(orders: Brokers, lab: Lab, java_producer: JavaProducer | None) -> None:
    """No send fails with all its tries, also of a Java producer that learns of it by its next look at the route only;
    nothing is lost, and events tell each step with its reason."""
    leader, begun = orders.leader(), len(orders.events("RestartMember"))
    with loaded(orders, lab.images.node) as load:
        with watching(orders) as watched:
            begin_s = now_s()
            orders.change({"image": lab.images.next_node})
            orders.rolled(lab.images.next_node, _ROLL_S)
            print(f"rolled in {now_s() - begin_s:.1f} s")
        load.finish()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    lab.goals.failed.add(load.failed())
    lab.goals.planned_switch.add(*load.planned_outages_ms())
    assert verdict.problems == []
    assert load.failed() == 0, load.history.reasons()
    assert len(load.switches()) == 1, load.switches()  # once, to a member that runs the new image
    if java_producer is not None:
        failed = [sent for sent in java_producer.sends() if not sent.ok]
        lab.goals.failed.add(len(failed))
        assert failed == []
    _orderly(watched, leader)
    events = orders.events("RestartMember")[begun:]
    assert len(events) >= 3, [(each["reason"], each["message"]) for each in orders.events()]
    assert all("outdated" in each["message"] for each in events), [each["message"] for each in events]


def test_a_pause_holds(orders: Brokers, lab: Lab) -> None:
    """With the annotation nothing is restarted, and the status says what waits; without it the upgrade continues."""
    wanted = lab.images.node
    orders.annotate(paused="true")
    try:
        orders.change({"image": wanted})

        def look() -> None:
            status = orders.status()
            if status.get("phase") != "Paused" or "paused" not in str(status.get("step") or {}):
                raise NotYetError(f"{status.get('phase')}, {status.get('step')}")

        wait_for("the status reports Paused", look, 60)
        with watching(orders) as watched:
            watched.look_for(_HOLD_S)
        assert watched.replaced == [] and watched.most_unready == 0
    finally:
        orders.annotate(paused=None)
    leader = orders.leader()
    with watching(orders) as watched:
        orders.rolled(wanted, _ROLL_S)
    _orderly(watched, leader)
    orders.change({"image": None})
    orders.whole()
