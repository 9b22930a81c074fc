"""The ledger of the kill -9 suite notices what it is there to notice: a loss that it overlooks would never be seen."""

import pytest
from lab.ledger import HALF_TOPIC, SCHEDULE_TOPIC, Ledger, Place, Problems

from tallystick.store.formats.record import Record

TOPIC = "T"


def body(name: str) -> bytes:
    return f"{name}|body".encode()


def sent(ledger: Ledger, *names: str) -> None:
    for name in names:
        ledger.send(name, body(name), TOPIC, name.upper())


def queue(*names: str, topic: str = TOPIC, first: int = 0) -> list[Record]:
    return [
        Record(topic, 0, body(name), queue_offset=offset, pos=offset * 100) for offset, name in enumerate(names, first)
    ]


@pytest.fixture
def ledger() -> Ledger:
    """Three messages; the first and the last one acknowledged."""
    ledger = Ledger()
    sent(ledger, "a", "b", "c")
    ledger.acknowledge("a", Place(TOPIC, 0, 0, 0), "plain")
    ledger.acknowledge("c", Place(TOPIC, 0, 2, 200), "plain")
    return ledger


def problems_of(ledger: Ledger, *readings: list[Record], first: int = 0) -> str:
    problems = Problems()
    for records in readings:
        ledger.check_queue(TOPIC, 0, first, records, problems)
    ledger.check_places(problems)
    return "\n".join(problems.lines())


def test_all_is_there(ledger: Ledger) -> None:
    assert problems_of(ledger, queue("a", "b", "c")) == ""


def test_a_message_that_was_not_acknowledged_may_follow_or_be_missing(ledger: Ledger) -> None:
    sent(ledger, "d")
    assert problems_of(ledger, queue("a", "b", "c"), queue("a", "b", "c", "d")) == ""


def test_a_lost_end_is_a_loss(ledger: Ledger) -> None:
    assert "c: acknowledged at Place(topic='T', queue_id=0, queue_offset=2, pos=200), LOST" in problems_of(
        ledger, queue("a", "b")
    )


def test_another_place_is_a_loss(ledger: Ledger) -> None:
    assert "c: acknowledged at" in problems_of(ledger, queue("a", "c", "b"))


def test_another_body_is_noticed(ledger: Ledger) -> None:
    records = queue("a", "b", "c")
    records[1] = records[1]._replace(body=b"b|bodz")
    assert "T queue 0 offset 1: holds a body that was never sent" in problems_of(ledger, records)


def test_what_was_readable_once_stays(ledger: Ledger) -> None:
    sent(ledger, "d", "e")
    before, after = queue("a", "b", "c", "d"), queue("a", "b", "c", "e")
    assert "T queue 0: had 4 messages from 0, and now differs at 3" in problems_of(ledger, before, after)


def test_deliveries_may_come_twice_but_not_never_and_a_rollback_never() -> None:
    ledger = Ledger()
    sent(ledger, "late", "yes", "no", "lost")
    for number, name in enumerate(("late", "lost")):
        ledger.acknowledge(name, Place(SCHEDULE_TOPIC, 0, number, number), "delayed")
        ledger.delayed.add(name)
    for number, (name, decided) in enumerate((("yes", ledger.committed), ("no", ledger.rolled_back))):
        ledger.acknowledge(name, Place(HALF_TOPIC, 0, number, number), "half")
        decided.add(name)
    problems = Problems()
    ledger.check_queue(TOPIC, 0, 0, queue("late", "yes", "late", "no"), problems)
    assert ledger.missing_deliveries() == {"lost"}
    assert ledger.check_deliveries(problems) == 1
    assert problems.lines() == ["no: rolled back, but delivered", "lost: never delivered"]


def test_a_plain_message_stored_twice_is_noticed(ledger: Ledger) -> None:
    problems = Problems()
    ledger.check_queue(TOPIC, 0, 0, queue("a", "b", "c"), problems)
    ledger.check_queue(TOPIC, 1, 0, [queue("a")[0]._replace(queue_id=1)], problems)
    ledger.check_deliveries(problems)
    assert "a: sent once, stored 2 times" in problems.lines()
