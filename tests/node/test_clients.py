"""Members of groups: which member gets which notification, and when a member is forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tallystick.node.broker.tables.clients import CHANNEL_EXPIRY_MS, Client, ConsumerTable, ProducerTable
from tallystick.node.broker.tables.subscriptions import SubscriptionData
from tallystick.store.formats.message import Host

REMOTE = Host("10.0.0.9", 5000)


@dataclass(eq=False)
class Wire:
    """A connection that goes nowhere."""

    remote: Host = REMOTE
    closed: bool = False

    def oneway(self, command: Any) -> None: ...

    async def call(self, command: Any, timeout_s: float = 3.0) -> Any: ...

    def close(self) -> None:
        self.closed = True


def client(wire: Wire, client_id: str = "c1", now_ms: int = 0) -> Client:
    return Client(wire, client_id, "JAVA", 373, now_ms)


def sub(topic: str, text: str = "*", version: int = 1) -> SubscriptionData:
    return SubscriptionData.build(topic, text, sub_version=version)


class Told:
    """A consumer table and what its members were told."""

    def __init__(self) -> None:
        self.consumers = ConsumerTable()
        self.told: list[tuple[str, int]] = []
        self.gone: list[str] = []
        self.consumers.on_members_changed.append(lambda group, channels: self.told.append((group, len(channels))))
        self.consumers.on_gone.append(self.gone.append)

    def beat(self, wire: Wire, *subs: SubscriptionData, client_id: str = "c1", now_ms: int = 0) -> bool:
        return self.consumers.register("g", client(wire, client_id, now_ms), subscriptions=subs)


def test_members_are_notified_of_a_new_member_and_not_of_a_heartbeat() -> None:
    case, one, two = Told(), Wire(), Wire()
    assert case.beat(one, sub("T"))
    assert not case.beat(one, sub("T"))
    assert case.beat(two, sub("T"), client_id="c2")
    assert case.told == [("g", 1), ("g", 2)]
    assert case.consumers.client_ids("g") == ["c1", "c2"]


def test_a_newer_version_wins_and_an_older_one_is_ignored() -> None:
    case, wire = Told(), Wire()
    case.beat(wire, sub("T", "A", 5))
    assert not case.beat(wire, sub("T", "B", 4))
    assert case.consumers.subscription("g", "T") == sub("T", "A", 5)
    assert not case.beat(wire, sub("T", "B", 6)), "another expression for a known topic moves no queue"
    assert case.consumers.subscription("g", "T") == sub("T", "B", 6)


def test_topics_that_are_missing_from_a_heartbeat_are_removed() -> None:
    case, wire = Told(), Wire()
    case.beat(wire, sub("T"), sub("U"))
    assert case.beat(wire, sub("U"))
    assert case.consumers.subscription("g", "T") is None
    assert case.consumers.groups_of_topic("U") == {"g"}
    assert case.consumers.groups_of_topic("T") == set()


def test_a_changed_client_id_on_one_connection_is_reported() -> None:
    case, wire = Told(), Wire()
    case.beat(wire, sub("T"))
    assert case.beat(wire, sub("T"), client_id="other")
    assert case.consumers.client_ids("g") == ["other"]


def test_a_closed_connection_leaves_at_once_and_the_others_are_notified() -> None:
    case, one, two = Told(), Wire(), Wire()
    case.beat(one, sub("T"))
    case.beat(two, sub("T"), client_id="c2")
    case.told.clear()
    case.consumers.close(one)
    assert case.told == [("g", 1)]
    case.consumers.close(two)
    assert case.told == [("g", 1)], "no member is left to notify"
    assert case.gone == ["g"]
    assert case.consumers.get("g") is None
    case.consumers.close(two)  # closing twice is harmless


def test_silent_members_are_forgotten_after_120_seconds() -> None:
    case, one, two = Told(), Wire(), Wire()
    case.beat(one, sub("T"), now_ms=0)
    case.beat(two, sub("T"), client_id="c2", now_ms=1000)
    assert case.consumers.expire(CHANNEL_EXPIRY_MS) == []
    assert case.consumers.expire(CHANNEL_EXPIRY_MS + 1) == [one]
    assert case.consumers.client_ids("g") == ["c2"]


def test_a_client_that_came_back_is_found_by_its_newest_connection() -> None:
    case, old, new = Told(), Wire(), Wire()
    case.beat(old, sub("T"), now_ms=1)
    case.beat(new, sub("T"), now_ms=2)
    assert case.consumers.client_ids("g") == ["c1"]
    found = case.consumers.find("g", "c1")
    assert found is not None and found.channel is new
    assert case.consumers.find("g", "c2") is None


def test_producers_take_turns_and_closed_connections_are_passed_over() -> None:
    producers, one, two = ProducerTable(), Wire(), Wire()
    producers.register("pg", client(one, "c1"))
    producers.register("pg", client(two, "c2"))
    assert {producers.pick("pg") for _ in range(4)} == {one, two}
    one.close()
    assert {producers.pick("pg") for _ in range(4)} == {two}
    assert producers.pick("nobody") is None
    assert producers.find("c1") is one


def test_a_producer_that_reconnected_is_still_found_when_its_old_connection_closes() -> None:
    producers, old, new = ProducerTable(), Wire(), Wire()
    producers.register("pg", client(old))
    producers.register("pg", client(new))
    producers.close(old)
    assert producers.find("c1") is new
    producers.unregister("pg", new)
    assert producers.find("c1") is None
    assert producers.groups() == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["beat", "leave", "close", "expire"]),
            st.sampled_from(["g", "h"]),
            st.integers(0, 3),
            st.integers(0, CHANNEL_EXPIRY_MS),
        ),
        max_size=40,
    )
)
def test_members_agree_with_a_set(steps: list[tuple[str, str, int, int]]) -> None:
    consumers, producers, wires, now = ConsumerTable(), ProducerTable(), [Wire() for _ in range(4)], 0
    model: dict[tuple[str, int], int] = {}
    for action, group, number, later in steps:
        now += later
        wire = wires[number]
        if action == "beat":
            consumers.register(group, client(wire, f"c{number}", now), subscriptions=[sub("T")])
            producers.register(group, client(wire, f"c{number}", now))
            model[group, number] = now
        elif action == "leave":
            assert consumers.unregister(group, wire) == ((group, number) in model)
            producers.unregister(group, wire)
            model.pop((group, number), None)
        elif action == "close":
            consumers.close(wire)
            producers.close(wire)
            model = {key: since for key, since in model.items() if key[1] != number}
        else:
            left = set(consumers.expire(now))
            assert left == set(producers.expire(now))
            fresh = {key: since for key, since in model.items() if now - since <= CHANNEL_EXPIRY_MS}
            assert left == {wires[key[1]] for key in model} - {wires[key[1]] for key in fresh}
            model = fresh
        for name in ("g", "h"):
            ids = {f"c{member}" for group_name, member in model if group_name == name}
            assert set(consumers.client_ids(name)) == ids
            assert {member.client_id for member in producers.members(name)} == ids
            assert (consumers.get(name) is not None) == bool(ids)
        for number in range(4):
            assert (producers.find(f"c{number}") is not None) == any(member == number for _, member in model)
