"""Subscriptions become filters, and the expressions of groups follow RocketMQ's rules of versions and of death."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.node.broker import sql92
from tallystick.node.broker.tables.filters import (
    DEAD_AT_LOAD_MS,
    EVERYTHING,
    ConsumerFilterTable,
    accepting,
    filter_of,
    picker,
    tag_filter,
)
from tallystick.node.broker.tables.subscriptions import SQL92, SubscriptionData
from tallystick.node.core.settings import BrokerSettings
from tallystick.store.formats import properties

DAY_MS = 24 * 3600 * 1000


class MemoryFile:
    def __init__(self, value=None):
        self.value = value

    def load(self):
        return self.value

    def save(self, value):
        self.value = json.loads(json.dumps(value))


class World:
    """A table with its own clock and a file in memory."""

    def __init__(self, stored=None, **settings):
        self.now = 1_000_000
        self.file = MemoryFile(stored)
        self.settings = BrokerSettings(**settings)
        self.open()

    def open(self):
        self.table = ConsumerFilterTable(self.file, self.settings, lambda: self.now)

    def heartbeat(self, group, **expressions):
        """`topic=(expression, version)`"""
        self.table.register(
            group,
            [SubscriptionData.build(topic, text, SQL92, version) for topic, (text, version) in expressions.items()],
        )


# Tags


def test_tags_become_hash_codes():
    wanted = tag_filter(SubscriptionData.build("T", "TagA || TagB"))
    assert wanted.codes == {2598919, 2598920}
    assert wanted.accept is None


@pytest.mark.parametrize("text", ["*", "", None])
def test_a_star_and_nothing_let_everything_through(text):
    assert filter_of(text, "TAG") == filter_of(text, None) == EVERYTHING


def test_a_class_filter_lets_everything_through():
    """Filter servers are gone; RocketMQ leaves it to the client too."""
    assert tag_filter(SubscriptionData("T", "x", class_filter_mode=True)) == EVERYTHING


def test_each_subscription_text_is_understood_once():
    assert filter_of("A || B", "TAG") is filter_of("A || B", "TAG")
    assert filter_of("a = 1", "SQL92") is filter_of("a = 1", "SQL92")


@pytest.mark.parametrize(
    ("text", "kind"), [("a >", "SQL92"), ("", "SQL92"), (None, "SQL92"), ("||", "TAG"), ("a = 1", "SQL2023")]
)
def test_what_cannot_be_meant_is_a_value_error(text, kind):
    with pytest.raises(ValueError, match=r"."):
        filter_of(text, kind)


# Properties of records


def test_an_expression_looks_at_stored_properties():
    accept = accepting(sql92.compile("num > 5 AND TAGS = '标签'"))
    assert accept(0, properties.encode({"num": "6", "TAGS": "标签"}).encode())
    assert not accept(0, properties.encode({"num": "5", "TAGS": "标签"}).encode())
    assert not accept(0, b"")


PIECES = st.one_of(
    st.sampled_from(
        ["a", "b", "ab", "a\x01x", "a\x01y", "b\x01", "a\x01", "ab\x01z", "a\x01x\x01y", "\x01x", "", "b\x01标"]
    ),
    st.text("ab\x01x", max_size=5),
)


@given(st.lists(PIECES), st.booleans())
def test_picked_properties_are_those_of_a_full_decode(pieces, ended):
    text = "\x02".join(pieces) + "\x02" * ended
    decoded = properties.decode(text)
    picked = picker(["a", "b"])(text.encode())
    assert {name: picked.get(name) for name in "ab"} == {name: decoded.get(name) for name in "ab"}


# The table of groups


def test_an_expression_is_registered_and_kept():
    world = World()
    world.heartbeat("g", T=("num > 5", 7))
    data = world.table.get("T", "g")
    assert (data.client_version, data.born_time, data.dead_time, data.dead) == (7, world.now, 0, False)
    assert data.filter.accept(0, b"num\x016\x02")
    assert world.table.get("T", "other") is None
    assert world.table.get("Other", "g") is None
    assert world.table.of_topic("T") == [data]
    assert world.table.dirty


def test_the_file_is_that_of_rocketmq(golden):
    stored = json.loads((golden("cqext") / "config" / "consumerFilter.json").read_text())
    world = World(stored)
    assert world.table.to_json() == stored
    assert not world.table.dirty


def test_alive_entries_are_dead_since_a_while_after_a_restart():
    world = World()
    world.heartbeat("g", T=("num > 5", 7))
    world.table.persist()
    world.now += DAY_MS
    world.open()
    data = world.table.get("T", "g")
    assert data.dead_time == world.now - DEAD_AT_LOAD_MS
    assert data.dead


def test_an_entry_never_dies_before_its_birth():
    world = World()
    world.heartbeat("g", T=("num > 5", 7))
    world.table.persist()
    world.now += 1
    world.open()
    assert world.table.get("T", "g").dead_time == world.table.get("T", "g").born_time


def test_entries_for_another_bloom_filter_are_left_out():
    world = World()
    world.heartbeat("g", T=("num > 5", 7))
    world.table.persist()
    assert World(world.file.value, expectConsumerNumUseFilter=64).table.of_topic("T") == []


def test_entries_that_cannot_be_read_are_left_out():
    world = World()
    world.heartbeat("g", T=("num > 5", 7), U=("num > 5", 7))
    world.table.persist()
    world.file.value["filterDataByTopic"]["T"]["groupFilterData"]["g"]["expression"] = "num >"
    world.open()
    assert world.table.get("T", "g") is None
    assert world.table.get("U", "g") is not None


def test_an_invalid_table_is_refused():
    with pytest.raises(ValueError, match="filterDataByTopic"):
        World({"filterDataByTopic": {"T": 5}})


def test_an_older_version_changes_nothing():
    world = World()
    world.heartbeat("g", T=("num > 5", 7))
    world.heartbeat("g", T=("num > 6", 6))
    world.heartbeat("g", T=("num > 6", 7))
    assert world.table.get("T", "g").expression.text == "num > 5"


def test_a_newer_version_with_the_same_expression_keeps_the_entry():
    world = World()
    world.heartbeat("g", T=("num > 5", 7))
    before = world.table.get("T", "g")
    world.now += 5
    world.heartbeat("g", T=("num > 5", 8))
    assert world.table.get("T", "g") is before
    assert (before.client_version, before.born_time) == (8, world.now - 5)


def test_a_newer_version_with_another_expression_is_a_new_entry():
    world = World()
    world.heartbeat("g", T=("num > 5", 7))
    world.now += 5
    world.heartbeat("g", T=("num > 6", 8))
    data = world.table.get("T", "g")
    assert (data.expression.text, data.client_version, data.born_time) == ("num > 6", 8, world.now)


def test_a_wrong_expression_removes_the_one_before():
    world = World()
    world.heartbeat("g", T=("num > 5", 7))
    world.heartbeat("g", T=("num >", 8))
    assert world.table.get("T", "g") is None
    world.heartbeat("g", U=("num >", 8))
    assert world.table.get("U", "g") is None


def test_a_topic_that_is_subscribed_no_longer_dies_and_comes_back():
    world = World()
    world.heartbeat("g", T=("num > 5", 7), U=("num > 5", 7))
    world.now += 5
    world.heartbeat("g", U=("num > 5", 7))
    assert world.table.get("T", "g").dead_time == world.now
    assert not world.table.get("U", "g").dead
    world.heartbeat("g", T=("num > 5", 7), U=("num > 5", 7))
    assert not world.table.get("T", "g").dead


def test_a_topic_that_turns_to_tags_keeps_its_entry():
    """As in RocketMQ: the group's subscription says whether it is looked at."""
    world = World()
    world.heartbeat("g", T=("num > 5", 7))
    world.table.register("g", [SubscriptionData.build("T", "A", "TAG", 8)])
    assert not world.table.get("T", "g").dead


def test_a_group_that_leaves_dies_once():
    world = World()
    world.heartbeat("g", T=("num > 5", 7))
    world.now += 5
    world.table.unregister("g")
    died = world.now
    world.now += 5
    world.table.unregister("g")
    world.table.unregister("nobody")
    assert world.table.get("T", "g").dead_time == died


def test_the_dead_are_cleaned_after_a_day():
    world = World()
    world.heartbeat("gone", T=("num > 5", 7))
    world.heartbeat("here", T=("num > 5", 7))
    world.table.unregister("gone")
    world.now += DAY_MS - 1
    assert world.table.clean() == 0
    world.now += 1
    assert world.table.clean() == 1
    assert [data.consumer_group for data in world.table.of_topic("T")] == ["here"]
    world.table.unregister("gone")


def test_heartbeats_that_say_nothing_new_make_nothing_dirty():
    world = World()
    world.heartbeat("g", T=("num > 5", 7))
    world.table.persist()
    world.heartbeat("g", T=("num > 5", 7))
    world.table.register("tags", [SubscriptionData.build("T", "A", "TAG", 9)])
    assert not world.table.dirty


def test_retried_messages_are_filtered_by_the_topic_they_came_from():
    world = World()
    world.heartbeat("g", T=("num > 5", 7))
    accept = world.table.retry_filter("%RETRY%g").accept
    assert accept(0, b"RETRY_TOPIC\x01T\x02num\x016\x02")
    assert not accept(0, b"RETRY_TOPIC\x01T\x02num\x015\x02")
    assert accept(0, b"RETRY_TOPIC\x01Other\x02num\x015\x02")
    assert accept(0, b"num\x015\x02")


@pytest.mark.parametrize(("length", "tested"), [(10, 6553), (80, 819), (1000, 65), (16_384, 8)])
def test_a_long_expression_tests_fewer_records_in_a_pull(length: int, tested: int) -> None:
    text = "a = '" + "x" * (length - 6) + "'"
    assert filter_of(text, "SQL92").most_accepts == tested
