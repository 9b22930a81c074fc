"""Held pulls agree with a list of them, whatever comes, expires and closes in which order. Time is passed in."""

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tallystick.node.broker.services.holds import CHECK_MS, PROGRESS_MS, Hold, HoldTable


class Store:
    """Queues that only grow. A number is a message, and a hold takes numbers that its own divides."""

    def __init__(self):
        self.queues = {}
        self.watched = set()

    def watch(self, topic, queue_id):
        assert (topic, queue_id) not in self.watched
        self.watched.add((topic, queue_id))

    def unwatch(self, topic, queue_id):
        self.watched.remove((topic, queue_id))

    def messages(self, topic, queue_id):
        return self.queues.setdefault((topic, queue_id), [])

    def max_offset(self, topic, queue_id):
        return len(self.messages(topic, queue_id))


class Client:
    """A connection; `wants` is by what a message must be divisible."""

    def __init__(self, wants=1):
        self.wants = wants


class Answer(NamedTuple):
    hold: Hold
    offset: int | None  # of the message; None: the time was over
    looked_to: int


class World:
    def __init__(self, limit=100):
        self.now = 1_000_000
        self.store = Store()
        self.answers = []
        self.looks = []
        self.table = HoldTable(self.store, limit=limit)
        self.table.retry = self.retry

    def retry(self, hold, expired):
        messages = self.store.messages(hold.topic, hold.queue_id)
        for offset in range(hold.offset, len(messages)):
            self.looks.append((hold, offset))
            if messages[offset] % hold.connection.wants == 0:
                self.answers.append(Answer(hold, offset, offset))
                return True
        hold.step(len(messages), self.now)
        if expired:
            self.answers.append(Answer(hold, None, hold.offset))
        return expired

    def hold(self, client, queue_id=0, offset=None, patience_ms=15_000):
        offset = self.store.max_offset("T", queue_id) if offset is None else offset
        hold = Hold(client, None, "T", queue_id, offset, self.now + patience_ms)
        return hold if self.table.add(hold) else None

    def put(self, *numbers, queue_id=0, report=True):
        self.store.messages("T", queue_id).extend(numbers)
        if report and ("T", queue_id) in self.store.watched:
            self.table.on_arrival([("T", queue_id)])

    def pass_time(self, milliseconds):
        self.now += milliseconds
        self.table.scan(self.now)


@pytest.fixture
def world():
    return World()


def test_a_message_ends_the_hold(world):
    hold = world.hold(Client())
    world.put(5)
    assert world.answers == [(hold, 0, 0)]
    assert len(world.table) == 0


def test_a_message_of_another_queue_does_not(world):
    world.hold(Client(), queue_id=0)
    world.hold(Client(), queue_id=1)
    world.put(5, queue_id=1)
    assert [answer.hold.queue_id for answer in world.answers] == [1]


def test_the_end_of_patience_ends_the_hold(world):
    hold = world.hold(Client(), patience_ms=15_000)
    world.pass_time(14_999)
    assert world.answers == []
    world.pass_time(1)
    assert world.answers == [(hold, None, 0)]


def test_a_hold_that_stepped_over_messages_says_so_within_seconds(world):
    hold = world.hold(Client(wants=2), patience_ms=15_000)
    world.put(1, 3)
    world.pass_time(1_000)
    world.put(5)
    world.pass_time(PROGRESS_MS - 1_001)
    assert world.answers == []
    world.pass_time(1)
    assert world.answers == [(hold, None, 3)]
    assert hold.first_offset == 0


def test_each_hold_checks_each_message_once(world):
    first, second = world.hold(Client(wants=2)), world.hold(Client(wants=4))
    for number in (1, 3, 5, 6, 7):
        world.put(number)
    assert [offset for hold, offset in world.looks if hold is first] == [0, 1, 2, 3]
    assert [offset for hold, offset in world.looks if hold is second] == [0, 1, 2, 3, 4]


def test_the_longest_waiting_is_served_first(world):
    holds = [world.hold(Client()) for _ in range(3)]
    world.put(1)
    assert [answer.hold for answer in world.answers] == holds


def test_only_queues_with_holds_are_watched(world):
    first = world.hold(Client(), queue_id=3)
    world.hold(Client(wants=2), queue_id=3)
    world.hold(Client(), queue_id=4)
    assert world.store.watched == {("T", 3), ("T", 4)}
    world.put(1, queue_id=3)
    assert world.answers[0].hold is first
    assert ("T", 3) in world.store.watched
    world.put(2, queue_id=3)
    assert world.store.watched == {("T", 4)}


def test_a_message_that_came_before_the_watch_is_found_at_once(world):
    """Its report reached no hold: dispatch ran while the pull was read."""
    world.put(1)
    world.hold(Client(), offset=0)
    assert [answer.offset for answer in world.answers] == [0]
    assert len(world.table) == 0
    assert world.store.watched == set()


def test_a_lost_report_is_made_up_for(world):
    world.hold(Client())
    world.pass_time(0)
    world.put(1, report=False)
    world.pass_time(CHECK_MS - 1)
    assert world.answers == []
    world.pass_time(1)
    assert [answer.offset for answer in world.answers] == [0]


def test_a_clock_that_was_set_back_does_not_stop_the_checks(world):
    world.hold(Client())
    world.pass_time(0)
    world.put(1, report=False)
    world.pass_time(-3_600_000)
    assert [answer.offset for answer in world.answers] == [0]


def test_a_closed_connection_takes_its_holds_along(world):
    gone, stays = Client(), Client()
    for queue_id in range(3):
        world.hold(gone, queue_id=queue_id)
    world.hold(stays, queue_id=1)
    world.table.release(gone)
    world.table.release(gone)
    assert len(world.table) == 1
    assert world.store.watched == {("T", 1)}
    world.put(1, queue_id=0)
    assert world.answers == []


def test_an_answer_that_closes_the_connection_ends_its_other_holds():
    """A peer that does not read is cut while it is written to."""
    world = World()
    client = Client()
    for _ in range(3):
        world.hold(client)

    def cutting(hold, expired):
        world.answers.append(hold)
        world.table.release(hold.connection)
        return True

    world.table.retry = cutting
    world.put(1)
    assert len(world.answers) == 1
    assert len(world.table) == 0


def test_a_report_in_the_midst_of_a_look_does_not_answer_twice(world):
    """Reading a queue dispatches what is new in it first."""
    hold = world.hold(Client())
    plain = world.retry

    def reporting(hold, expired):
        world.table.on_arrival([("T", 0)])
        return plain(hold, expired)

    world.table.retry = reporting
    world.put(1)
    assert [answer.hold for answer in world.answers] == [hold]


def test_there_is_a_limit():
    world = World(limit=2)
    assert world.hold(Client())
    assert world.hold(Client())
    assert world.hold(Client()) is None
    world.put(1)
    assert world.hold(Client())


def test_stopping_answers_everybody(world):
    holds = [world.hold(Client(wants=2), queue_id=queue_id) for queue_id in range(3)]
    world.table.release_all()
    assert [(answer.hold, answer.offset) for answer in world.answers] == [(hold, None) for hold in holds]
    assert world.store.watched == set()


class HoldsAgreeWithAList(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.world = World(limit=8)
        self.clients = [Client(wants) for wants in (1, 2, 3, 2)]
        self.model = []
        self.answered = 0

    @rule(
        client=st.integers(0, 3), queue_id=st.integers(0, 2), patience_ms=st.integers(0, 20_000), back=st.integers(0, 2)
    )
    def pull(self, client, queue_id, patience_ms, back):
        offset = max(0, self.world.store.max_offset("T", queue_id) - back)
        hold = Hold(self.clients[client], None, "T", queue_id, offset, self.world.now + patience_ms)
        assert self.world.table.add(hold) is (len(self.model) < 8)
        if len(self.model) < 8:
            self.model.append(hold)
        self.take_answers()

    @rule(
        queue_id=st.integers(0, 2), numbers=st.lists(st.integers(1, 12), min_size=1, max_size=3), report=st.booleans()
    )
    def put(self, queue_id, numbers, report):
        self.world.put(*numbers, queue_id=queue_id, report=report)
        self.take_answers()

    @rule(milliseconds=st.integers(0, 6_000))
    def pass_time(self, milliseconds):
        self.world.pass_time(milliseconds)
        self.take_answers()
        assert all(hold.deadline_ms > self.world.now for hold in self.model)

    @rule(client=st.integers(0, 3))
    def close(self, client):
        self.world.table.release(self.clients[client])
        self.model = [hold for hold in self.model if hold.connection is not self.clients[client]]

    def take_answers(self):
        for hold, offset, _ in self.world.answers[self.answered :]:
            self.model.remove(hold)
            messages = self.world.store.messages(hold.topic, hold.queue_id)
            wanted = [at for at in range(hold.first_offset, len(messages)) if messages[at] % hold.connection.wants == 0]
            assert offset == (wanted[0] if wanted else None)
            assert offset is not None or hold.deadline_ms <= self.world.now
        self.answered = len(self.world.answers)

    @invariant()
    def as_many_as_in_the_list(self):
        assert len(self.world.table) == len(self.model)

    @invariant()
    def watched_is_what_somebody_waits_for(self):
        assert self.world.store.watched == {(hold.topic, hold.queue_id) for hold in self.model}

    @invariant()
    def nothing_is_looked_at_twice(self):
        assert len(self.world.looks) == len(set(self.world.looks))


HoldsAgreeWithAList.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestHoldsAgreeWithAList = HoldsAgreeWithAList.TestCase
