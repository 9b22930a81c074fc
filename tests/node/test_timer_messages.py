"""How timers are stored, delivered, recalled and stored again: the pure part."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from fake_store import encode_batch

from tallystick.node.broker.services.timer_messages import (
    RecallHandle,
    TimerError,
    check_half,
    checked_batch,
    delivered,
    handle_of,
    out_ms,
    recalled,
    rolled,
    to_timer,
    without_own,
)
from tallystick.store.formats import properties
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_PREPARED, Host, Message
from tallystick.store.formats.record import Record
from tallystick.store.settings import StoreSettings

NOW_MS = 1_700_000_000_123
SETTINGS = StoreSettings()
TOPIC = "rmq_sys_wheel_timer"


def asking(**names: object) -> Message:
    return Message("T", 3, b"body", properties.encode({name: str(value) for name, value in names.items()}))


def names_of(message: Message) -> dict[str, str]:
    return properties.decode(message.properties)


@pytest.mark.parametrize(
    ("names", "at_ms"),
    [
        ({"TIMER_DELIVER_MS": NOW_MS + 1}, NOW_MS + 1),
        ({"TIMER_DELAY_MS": 1500}, NOW_MS + 1500),
        ({"TIMER_DELAY_SEC": 2}, NOW_MS + 2000),
        ({"TIMER_DELAY_SEC": "+2", "TIMER_DELAY_MS": 5, "TIMER_DELIVER_MS": NOW_MS + 9}, NOW_MS + 2000),
        ({"TIMER_DELAY_MS": 5, "TIMER_DELIVER_MS": "later"}, NOW_MS + 5),
        ({"TIMER_DELAY_SEC": 3 * 86_400}, NOW_MS + 3 * 86_400_000),
        ({"TIMER_DELIVER_MS": NOW_MS + 877, "DELAY": "0"}, NOW_MS + 877),
    ],
)
def test_a_message_waits_in_the_timer_topic(names: dict[str, object], at_ms: int) -> None:
    stored = to_timer(asking(**names), SETTINGS, NOW_MS)
    have = names_of(stored)
    assert (stored.topic, stored.queue_id) == (TOPIC, 0)
    assert (have["REAL_TOPIC"], have["REAL_QID"]) == ("T", "3")
    assert int(have["TIMER_DELIVER_MS"]) == at_ms
    out = int(have["TIMER_OUT_MS"])
    assert out % 1000 == 0 and out < at_ms <= out + 1000


@pytest.mark.parametrize(
    "names",
    [
        {"TIMER_DELIVER_MS": NOW_MS},
        {"TIMER_DELIVER_MS": -5},
        {"TIMER_DELIVER_MS": -(2**63)},
        {"TIMER_DELAY_MS": 0},
        {"TIMER_DELAY_SEC": -1},
        {"TIMER_OUT_MS": 1, "TIMER_DELIVER_MS": NOW_MS + 10_000},  # it was delivered, and is sent again
        {"TIMER_UNKNOWN": 7},
    ],
)
def test_a_message_whose_time_has_passed_does_not_wait(names: dict[str, object]) -> None:
    message = asking(**names)
    assert to_timer(message, SETTINGS, NOW_MS) == message


@pytest.mark.parametrize(
    ("names", "word"),
    [
        ({"TIMER_DELIVER_MS": "soon"}, "not a number"),
        ({"TIMER_DELIVER_MS": ""}, ""),
        ({"TIMER_DELAY_MS": "1.5"}, "not a number"),
        ({"TIMER_DELAY_MS": " 1"}, "not a number"),
        ({"TIMER_DELAY_SEC": "٣"}, "not a number"),
        ({"TIMER_DELAY_SEC": 2**63}, "not a number"),
        ({"TIMER_DELAY_SEC": 2**63 - 1}, "max delay"),
        ({"TIMER_DELAY_MS": 3 * 86_400_000 + 1}, "max delay 259200000ms"),
        ({"TIMER_DELIVER_MS": 2**63 - 1}, "max delay"),
        ({"TIMER_DELIVER_MS": NOW_MS - 1, "TIMER_DEL_UNIQKEY": "K"}, "has passed"),
        ({"TIMER_DELAY_MS": 5, "a": "x" * 32_500}, "too long"),
    ],
)
def test_what_is_refused(names: dict[str, object], word: str) -> None:
    if not word:  # an empty value is not a property
        assert to_timer(asking(**names), SETTINGS, NOW_MS).topic == "T"
        return
    with pytest.raises(TimerError, match=word):
        to_timer(asking(**names), SETTINGS, NOW_MS)


def test_switched_off() -> None:
    off = replace(SETTINGS, timerWheelEnable=False)
    with pytest.raises(TimerError, match="timerWheelEnable is false") as caught:
        to_timer(asking(TIMER_DELAY_MS=5), off, NOW_MS)
    assert caught.value.is_disabled
    assert to_timer(asking(TIMER_DELAY_MS=0), off, NOW_MS).topic == "T"


def test_a_level_counts_more_than_a_time() -> None:
    message = to_timer(asking(DELAY=2, TIMER_DELAY_SEC=5, TIMER_DELIVER_MS=1, TIMER_OUT_MS=7), SETTINGS, NOW_MS)
    assert message.topic == "T" and names_of(message) == {"DELAY": "2", "TIMER_OUT_MS": "7"}


def test_only_the_broker_ends_timers() -> None:
    message = to_timer(asking(TIMER_ORIGIN="0,1", TIMER_ROLL_TIMES=1, TAGS="a", TIMER_OUT_MS=7), SETTINGS, NOW_MS)
    assert names_of(message) == {"TAGS": "a", "TIMER_OUT_MS": "7"}
    assert "TIMER_ORIGIN" not in names_of(to_timer(asking(TIMER_ORIGIN="0,1", TIMER_DELAY_MS=9), SETTINGS, NOW_MS))


def test_half_messages_do_not_wait_and_committed_ones_do() -> None:
    message = asking(TIMER_DELAY_MS=9)
    assert to_timer(replace(message, sys_flag=TRANSACTION_PREPARED), SETTINGS, NOW_MS).topic == "T"
    assert to_timer(replace(message, sys_flag=TRANSACTION_COMMIT), SETTINGS, NOW_MS).topic == TOPIC


@pytest.mark.parametrize(
    ("at_ms", "precision", "out"), [(5000, 1000, 4000), (5001, 1000, 5000), (7, 1, 6), (99, 50, 50)]
)
def test_times_are_rounded_down_as_in_rocketmq(at_ms: int, precision: int, out: int) -> None:
    assert out_ms(at_ms, precision) == out


def record_of(message: Message, offset: int = 17) -> Record:
    data = Record(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=offset,
        pos=4000,
        body=message.body,
        properties=message.properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=5,
        born_host=Host("10.0.0.1", 5),
        store_timestamp_ms=NOW_MS,
        store_host=Host("10.0.0.2", 6),
        reconsume_times=0,
    )
    return data


def test_a_delivery_names_what_it_ends() -> None:
    record = record_of(to_timer(asking(UNIQ_KEY="K", TAGS="a", TIMER_DELAY_MS=9), SETTINGS, NOW_MS))
    message = delivered(record, NOW_MS + 9)
    have = names_of(message)
    assert (message.topic, message.queue_id, message.body) == ("T", 3, b"body")
    assert have["TIMER_ORIGIN"] == f"17,{NOW_MS}" and have["TIMER_DEQUEUE_MS"] == str(NOW_MS + 9)
    assert "REAL_TOPIC" not in have and "REAL_QID" not in have
    assert (have["UNIQ_KEY"], have["TAGS"], have["TIMER_DELAY_MS"]) == ("K", "a", "9")
    assert to_timer(message, SETTINGS, NOW_MS).topic == "T"  # a consumer's client sends it again


def test_a_timer_is_stored_again_and_again() -> None:
    record = record_of(to_timer(asking(UNIQ_KEY="K", TIMER_DELAY_MS=9), SETTINGS, NOW_MS))
    for times in (1, 2, 3):
        message = rolled(record)
        have = names_of(message)
        assert (message.topic, have["TIMER_ROLL_TIMES"], have["REAL_TOPIC"]) == (TOPIC, str(times), "T")
        record = record_of(message, 17 + times)


def test_a_recall_is_one_that_rocketmq_understands() -> None:
    record = record_of(to_timer(asking(UNIQ_KEY="K", TIMER_DELAY_MS=9), SETTINGS, NOW_MS))
    have = names_of(recalled(record, {"PGROUP": "pg", "BORN_TIMESTAMP": ""}))
    assert have["TIMER_DEL_UNIQKEY"] == "K" and have["TAGS"] == "_RECALL_TAG_" and have["PGROUP"] == "pg"
    assert have["TIMER_OUT_MS"] and have["REAL_TOPIC"] == "T" and "BORN_TIMESTAMP" not in have


def test_handles() -> None:
    stored = to_timer(asking(UNIQ_KEY="K", TIMER_DELAY_MS=9), SETTINGS, NOW_MS)
    text = handle_of(stored, "broker-a")
    assert text is not None
    handle = RecallHandle.decode(text)
    assert (handle.topic, handle.broker, handle.unique_key) == ("T", "broker-a", "K")
    assert handle.at_ms == int(names_of(stored)["TIMER_OUT_MS"]) + 1
    assert handle.encode() == text
    assert base64.urlsafe_b64decode(text).decode() == f"v1 T broker-a {handle.at_ms} K"
    assert handle_of(asking(UNIQ_KEY="K"), "broker-a") is None
    retry = to_timer(replace(asking(TIMER_DELAY_MS=9), topic="%RETRY%g"), SETTINGS, NOW_MS)
    assert handle_of(retry, "broker-a") is None


@pytest.mark.parametrize("raw", ["", "v2 T b 1 K", "v1 T b 1", "v1", "v1  "])
def test_what_is_not_a_handle(raw: str) -> None:
    with pytest.raises(ValueError, match="recall handle is invalid"):
        RecallHandle.decode(base64.urlsafe_b64encode(raw.encode()).decode())


@pytest.mark.parametrize("text", ["***", "é", "djE", "////8=", "\x00"])
def test_what_is_not_even_base64(text: str) -> None:
    with pytest.raises(ValueError, match="recall handle is invalid"):
        RecallHandle.decode(text)


def test_a_handle_without_a_time() -> None:
    raw = "v1 T b soon K"
    assert RecallHandle.decode(base64.urlsafe_b64encode(raw.encode()).decode()).at_ms == -1


def test_batches_that_ask_for_a_time() -> None:
    plain = encode_batch([(0, b"TIMER_DELAY_MS\x011\x02", "TAGS\x01a\x02")] * 2)
    assert checked_batch(plain) == plain
    with pytest.raises(TimerError, match="cannot ask for a time"):
        checked_batch(plain + encode_batch([(0, b"x", "TIMER_DELAY_MS\x0110\x02")]))
    delivered_before = encode_batch([(0, b"x", "TIMER_DELAY_MS\x0110\x02TIMER_OUT_MS\x015\x02")])
    assert checked_batch(delivered_before) == delivered_before
    for end in range(len(plain)):
        checked_batch(plain[:end])


def test_batches_end_no_timers() -> None:
    forged = [(3, b"x", "TAGS\x01a\x02TIMER_ORIGIN\x010,1\x02"), (0, b"TIMER_", "TIMER_ROLL_TIMES\x011\x01\x02K\x01v")]
    clean = [(3, b"x", "TAGS\x01a\x02"), (0, b"TIMER_", "K\x01v\x02")]
    assert checked_batch(encode_batch(forged)) == encode_batch(clean)
    assert checked_batch(encode_batch(forged)[:-1]) == encode_batch(forged)[:-1]
    assert without_own("A\x01TIMER_\x02") == "A\x01TIMER_\x02"


def test_a_recall_is_no_part_of_a_transaction() -> None:
    with pytest.raises(TimerError, match="cannot be part of a transaction"):
        check_half({"TIMER_DEL_UNIQKEY": "K"}, SETTINGS, NOW_MS)
    committed = replace(asking(TIMER_DELAY_MS=9, TIMER_DEL_UNIQKEY="K"), sys_flag=TRANSACTION_COMMIT)
    stored = to_timer(committed, SETTINGS, NOW_MS)
    assert stored.topic == TOPIC and "TIMER_DEL_UNIQKEY" not in names_of(stored)
