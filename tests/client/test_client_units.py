"""Parts of the client without I/O: allocation, windows, unique keys, filters, hashes, properties, decoding."""

import json
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client import (
    ConfigurationError,
    Delivery,
    Message,
    ProtocolError,
    Queue,
    Stored,
    Tags,
    Unknown,
)
from tallystick.client.consuming.allocation import STRATEGIES, average, consistent_hash
from tallystick.client.consuming.filters import Sql, subscription
from tallystick.client.consuming.window import Window
from tallystick.client.core.errors import AccessDenied, Busy, NotFound, Refused, refused
from tallystick.client.core.message import decode_stored, property_pairs
from tallystick.client.core.unique_key import UniqueKeys
from tallystick.client.producing.encoding import outgoing
from tallystick.client.transport.routes import parse_route
from tallystick.client.wire.java_hash import string_hash
from tallystick.store import _kernel
from tallystick.store.formats import properties
from tallystick.store.formats.message import Host, SysFlag
from tallystick.store.formats.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, Record

HERE = Path(__file__).parent

# -- allocation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", json.loads((HERE / "allocations.json").read_text()))
def test_queues_are_shared_as_the_java_client_shares_them(row: dict[str, Any]) -> None:
    """The rows are what RocketMQ 4.8.0's strategies returned."""
    queues = [Queue(*each) for each in row["queues"]]
    for name, strategy in STRATEGIES.items():
        assert [list(each) for each in strategy(row["me"], queues, row["members"])] == row[name]


members = st.lists(st.text("ab1@#", min_size=1, max_size=6), min_size=1, max_size=8, unique=True).map(sorted)
queue_lists = st.lists(
    st.builds(Queue, st.just("T"), st.sampled_from(["a", "b"]), st.integers(0, 20)), max_size=24, unique=True
).map(sorted)


@given(members, queue_lists)
def test_each_queue_belongs_to_one_member(ids: list[str], queues: list[Queue]) -> None:
    for strategy in (average, consistent_hash):
        shared = [queue for me in ids for queue in strategy(me, queues, ids)]
        assert sorted(shared) == queues
    sizes = [len(average(me, queues, ids)) for me in ids]
    assert max(sizes) - min(sizes) <= 1
    assert average("absent", queues, ids) == consistent_hash("absent", queues, ids) == []


# -- windows -----------------------------------------------------------------------------------------------------------


def delivery(offset: int) -> Delivery:
    return Delivery("b", "T", 0, offset, b"x", b"", 0, 0, 0, offset * 100, 0, 0, b"", 0, 0, 10)


class SlowWindow:
    """The twin of a window: a list of states, looked through each time."""

    def __init__(self, begin: int) -> None:
        self.states: list[tuple[int, str]] = []
        self.next = begin

    def committable(self) -> int:
        return next((offset for offset, state in self.states if state != "settled"), self.next)

    def change(self, offset: int, state: str) -> None:
        self.states = [(each, state if each == offset else before) for each, before in self.states]


@given(st.integers(0, 2**32))
def test_a_window_commits_what_a_list_of_states_says(seed: int) -> None:
    chance = random.Random(seed)
    window, twin = Window(Queue("T", "b", 0), 5, ordered=False), SlowWindow(5)
    out: list[Delivery] = []
    for _ in range(60):
        action = chance.randrange(4)
        if action == 0:
            gap = chance.randrange(3)  # a filter leaves offsets out
            offsets = range(window.next_offset + gap, window.next_offset + gap + chance.randrange(4))
            after = (offsets[-1] + 1 if offsets else window.next_offset + gap) + chance.randrange(2)
            window.add([delivery(each) for each in offsets], after)
            twin.states += [(each, "ready") for each in offsets]
            twin.next = after
        elif action == 1:
            taken = window.take(chance.randrange(1, 4))
            wanted = [offset for offset, state in twin.states if state == "ready"][: len(taken)]
            assert [each.offset for each in taken] == wanted
            for each in taken:
                twin.change(each.offset, "out")
            out += taken
        elif out:
            message = out.pop(chance.randrange(len(out)))
            if action == 2:
                window.settle(message)
                twin.change(message.offset, "settled")
            else:
                window.put_back(message)
                twin.change(message.offset, "ready")
        assert window.committable == twin.committable()
        assert window.out == len(out) and window.idle.is_set() == (not out)
        unsettled = [offset for offset, state in twin.states if state != "settled"]
        assert len(window) == len(unsettled) and window.bytes == 10 * len(unsettled)


def test_an_ordered_window_hands_out_one_after_the_other() -> None:
    window = Window(Queue("T", "b", 0), 0, ordered=True)
    window.add([delivery(0), delivery(1)], 2)
    assert window.can_take(0.0)
    (first,) = window.take(1)
    assert not window.can_take(0.0)
    window.put_back(first)
    assert window.take(1) == [first]
    window.settle(first)
    assert window.can_take(0.0)
    window.usable_until_s = 10.0
    assert window.can_take(9.9) and not window.can_take(10.0), "its lock may belong to another member"
    window.usable_until_s, window.paused = None, True
    assert not window.can_take(0.0)
    window.paused, window.dropped = False, True
    assert not window.can_take(0.0)


# -- messages to send --------------------------------------------------------------------------------------------------


def test_unique_keys_have_the_layout_of_rocketmq(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 3, 2, 1, 0, 0, 500_000).astimezone()
    monkeypatch.setattr(time, "time_ns", lambda: int(now.timestamp() * 1000) * 1_000_000)
    keys = UniqueKeys("10.1.2.3")
    first, second = keys.next(), keys.next()
    assert len(first) == 32 and first == first.upper()
    assert first[:8] == "0A010203"
    assert int(first[20:28], 16) == (24 + 1) * 3_600_000 + 500, "milliseconds since the month began"
    assert (int(second[28:], 16) - int(first[28:], 16)) % 65536 == 1
    assert first[:28] == second[:28]
    assert len(UniqueKeys("2001:db8::1").next()) == 56
    assert len(UniqueKeys("not an address").next()) == 32
    assert UniqueKeys("10.1.2.3").next()[:20] != first[:20], "two clients of one process"


def test_unique_keys_begin_again_with_the_month(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = UniqueKeys("10.1.2.3")
    for now, elapsed_s in ((datetime(2025, 12, 31, 23, 59, 59), 31 * 86400 - 1), (datetime(2026, 1, 1, 0, 0, 1), 1)):
        at_ns = int(now.astimezone().timestamp()) * 10**9
        monkeypatch.setattr(time, "time_ns", lambda at_ns=at_ns: at_ns)
        assert int(keys.next()[20:28], 16) == elapsed_s * 1000


def test_properties_of_a_message() -> None:
    message = Message("T", b"x", tag="A", keys=["k1", "k2"], properties={"a": "1"}, delay_level=3)
    assert property_pairs(message, "KEY") == {
        **{"UNIQ_KEY": "KEY", "WAIT": "true", "a": "1", "KEYS": "k1 k2", "TAGS": "A", "DELAY": "3"}
    }
    assert property_pairs(Message("T", b"x", delay=timedelta(seconds=1.5)), "K")["TIMER_DELAY_MS"] == "1500"
    at = datetime(2026, 1, 2, tzinfo=UTC)
    assert property_pairs(Message("T", b"x", deliver_at=at), "K")["TIMER_DELIVER_MS"] == "1767312000000"


@pytest.mark.parametrize(
    "fields",
    [
        {"keys": ["a b"]},
        {"keys": [""]},
        {"properties": {"UNIQ_KEY": "1"}},
        {"properties": {"a": "\x01"}},
        {"properties": {"": "b"}},
        {"properties": {"a": "x" * 32768}},
        {"delay_level": 0},
        {"delay_level": 1, "delay": timedelta(seconds=1)},
        {"delay": timedelta(seconds=-1)},
        {"deliver_at": datetime(2026, 1, 1)},
        {"topic": "a b"},
        {"body": b""},
        {"body": b"x" * 1025},
        {"body": "text"},
    ],
)
def test_messages_that_cannot_be_sent(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        outgoing(Message(**{"topic": "T", "body": b"x"} | fields), "KEY", 1024, 4096)


def test_a_body_is_compressed_if_that_makes_it_smaller() -> None:
    item = outgoing(Message("T", b"a" * 5000), "K", 1 << 20, 4096)
    assert item.sys_flag == SysFlag.COMPRESSED and len(item.body) < 100
    noise = random.Random(1).randbytes(5000)
    assert outgoing(Message("T", noise), "K", 1 << 20, 4096).body == noise
    assert outgoing(Message("T", b"a" * 4096), "K", 1 << 20, 4096).sys_flag == 0


# -- messages that are received ----------------------------------------------------------------------------------------

hosts = st.sampled_from([Host("10.0.0.1", 5001), Host("2001:db8::1", 5002)])
records = st.builds(
    Record,
    topic=st.text("abT%_-", min_size=1, max_size=20),
    queue_id=st.integers(0, 100),
    body=st.binary(max_size=50),
    properties=st.dictionaries(st.text("abc", min_size=1), st.text("xyz", min_size=1)).map(properties.encode),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.sampled_from([0, 2, 4, 8, 12]),
    queue_offset=st.integers(0, 2**40),
    pos=st.integers(0, 2**40),
    born_timestamp_ms=st.integers(0, 2**42),
    born_host=hosts,
    store_timestamp_ms=st.integers(0, 2**42),
    store_host=hosts,
    reconsume_times=st.integers(0, 20),
    prepared_transaction_offset=st.integers(0, 2**40),
    magic=st.sampled_from([MESSAGE_MAGIC, MESSAGE_MAGIC_V2]),
)


@given(st.lists(records, max_size=4))
def test_records_are_decoded_as_the_store_decodes_them(some: list[Record]) -> None:
    found = decode_stored(b"".join(record.encode() for record in some), "b", Stored)
    assert len(found) == len(some)
    for stored, record in zip(found, some, strict=True):
        assert stored.stored_in == record.topic
        assert stored.body == record.body
        assert stored.properties == record.property_table()
        assert stored.message_id == record.message_id
        assert (stored.queue_id, stored.offset, stored.position) == (record.queue_id, record.queue_offset, record.pos)
        assert (stored.flag, stored.attempts, stored.size) == (record.flag, record.reconsume_times, record.size)
        assert (stored.born_ms, stored.store_ms) == (record.born_timestamp_ms, record.store_timestamp_ms)
        assert stored.prepared_position == record.prepared_transaction_offset


@given(st.lists(records, min_size=1, max_size=2), st.data())
def test_a_torn_answer_is_an_error(some: list[Record], data: st.DataObject) -> None:
    whole = b"".join(record.encode() for record in some)
    ends = {sum(record.size for record in some[:count]) for count in range(len(some) + 1)}
    cut = data.draw(st.integers(1, len(whole) - 1).filter(lambda each: each not in ends))
    with pytest.raises(ProtocolError):
        decode_stored(whole[:cut], "b", Stored)


@given(st.binary(max_size=300))
def test_any_bytes_are_records_or_an_error(data: bytes) -> None:
    try:
        decode_stored(data, "b", Stored)
    except ProtocolError:
        pass


def test_a_damaged_body_is_an_error_when_it_is_read() -> None:
    data = bytearray(Record("T", 0, b"hello").encode())
    data[88] ^= 1
    (stored,) = decode_stored(bytes(data), "b", Stored)
    with pytest.raises(ProtocolError, match="damaged"):
        _ = stored.body


@pytest.mark.parametrize(("flag", "body"), [(1, b"no zlib"), (0x101, b"x"), (0x201, b"x"), (1, b"")])
def test_a_body_that_cannot_be_decompressed(flag: int, body: bytes) -> None:
    (stored,) = decode_stored(Record("T", 0, body, sys_flag=flag).encode(), "b", Stored)
    with pytest.raises(ProtocolError):
        _ = stored.body


def test_a_message_that_was_sent_back_has_its_first_topic() -> None:
    record = Record("%RETRY%g", 0, b"x", "RETRY_TOPIC\x01T\x02TAGS\x01A\x02KEYS\x01a b\x02")
    (stored,) = decode_stored(record.encode(), "b", Stored)
    assert (stored.topic, stored.stored_in, stored.tag, stored.keys) == ("T", "%RETRY%g", "A", ["a", "b"])


# -- filters, hashes, routes, errors -----------------------------------------------------------------------------------


@given(st.text())
def test_hashes_are_javas(text: str) -> None:
    assert string_hash(text) == _kernel.string_hash(text.encode())


def test_hashes_of_the_reference() -> None:
    assert [string_hash(text) for text in ("TagA", "Aa", "BB", "polygenelubricants", "中文", "\U0001f600", "")] == [
        *(2598919, 2112, 2112, -2147483648, 646394, 1772899, 0)
    ]


def test_filters() -> None:
    assert Tags("A || B", "A").tags == ("A", "B")
    assert Tags().text == Tags("*").text == "*"
    assert (
        Tags("A").matches("A") and not Tags("A").matches("B") and not Tags("A").matches(None) and Tags().matches(None)
    )
    assert subscription("T", Tags("TagA", "TagB"), 5) == {
        "classFilterMode": False,
        "codeSet": [2598919, 2598920],
        "expressionType": "TAG",
        "subString": "TagA || TagB",
        "subVersion": 5,
        "tagsSet": ["TagA", "TagB"],
        "topic": "T",
    }
    assert subscription("T", Sql("a > 5"), 5)["expressionType"] == "SQL92"
    with pytest.raises(ConfigurationError):
        Tags("A ||")


ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"b","cluster":"C"},'
    b'{"brokerAddrs":{"1":"h:3"},"brokerName":"a","cluster":"C"}],"filterServerTable":{},'
    b'"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":2,"topicSynFlag":0,"writeQueueNums":1},'
    b'{"brokerName":"a","perm":6,"readQueueNums":1,"topicSynFlag":0,"writeQueueNums":1},'
    b'{"brokerName":"gone","perm":6,"readQueueNums":1,"topicSynFlag":0,"writeQueueNums":1}]%s}'
)


def test_routes_have_the_queues_that_clients_use() -> None:
    """A broker without a master is read, and not written to; keys of maps can be bare numbers."""
    route = parse_route("T", ROUTE % b"")
    assert route.write == (Queue("T", "b", 0),)
    assert route.read == (Queue("T", "a", 0), Queue("T", "b", 0), Queue("T", "b", 1))
    assert route.brokers == {"b": {0: "h:1", 1: "h:2"}, "a": {1: "h:3"}}
    ordered = parse_route("T", ROUTE % b',"orderTopicConf":"b:2;a:1"')
    assert ordered.write == (Queue("T", "b", 0), Queue("T", "b", 1), Queue("T", "a", 0))


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{}", b'{"brokerDatas":5,"queueDatas":[]}', b"\xff{"])
def test_a_body_that_is_no_route(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_route("T", body)


@pytest.mark.parametrize(
    ("code", "remark", "kind"),
    [
        (1, "org.apache.rocketmq.acl.common.AclException: no", AccessDenied),
        (1, "another", Refused),
        (1, None, Refused),
        (2, "busy", Busy),
        (17, "No topic\nSee http://x", NotFound),
        (9999, "new", Refused),
    ],
)
def test_refusals_have_a_kind(code: int, remark: str | None, kind: type[Refused]) -> None:
    error = refused("h:1", code, remark)
    assert type(error) is kind
    assert (error.code, error.remark, error.address) == (code, remark, "h:1")
    assert "See http" not in str(error)


def test_unknown_names_the_message() -> None:
    assert Unknown("x", "KEY").unique_key == "KEY"


@pytest.mark.parametrize("born", ["10.1.2.3", "fe80::1"])
@pytest.mark.parametrize("store", ["127.0.0.1", "::1"])
def test_a_message_has_the_hosts_of_its_client_and_of_its_broker(born: str, store: str) -> None:
    record = Record(
        topic="T",
        queue_id=1,
        queue_offset=2,
        pos=3,
        body=b"hello",
        properties="",
        born_timestamp_ms=4,
        born_host=Host(born, 5),
        store_timestamp_ms=6,
        store_host=Host(store, 7),
    )
    (found,) = decode_stored(record.encode(), "b", Stored)
    assert (str(found.born_host), str(found.store_host)) == (str(Host(born, 5)), str(Host(store, 7)))
    assert found.is_sound and found.stored_body == b"hello"
