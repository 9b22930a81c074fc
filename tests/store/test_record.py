"""Records: RocketMQ's bytes are decoded, compared field by field, and encoded to the same bytes."""

import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.store.formats import record as records
from tallystick.store.formats.message import Host, SysFlag
from tallystick.store.formats.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, Record, RecordError

_V4 = Host("127.0.0.1", 5001)
_V6 = Host("2001:db8::1", 5002)
_STORE = Host("192.168.1.2", 10911)

# topic, queue, queue offset, sysFlag, flag, reconsume times, body, properties
_VECTORS = [
    (170, "TopicTest", 0, 0, 0x00, 7, 2, b"hello", {"KEYS": "k1 k2", "TAGS": "TagA"}, _V4, _STORE),
    (146, "TopicTest", 0, 1, 0x10, 7, 2, b"v6born", {"KEYS": "k1", "TAGS": "TagB"}, _V6, _STORE),
    (140, "TopicTest", 1, 0, 0x30, 7, 2, b"v6both", {"WAIT": "true"}, _V6, Host("2001:db8::2", 10911)),
    (176, "SCHEDULE_TOPIC_XXXX", 2, 0, 0x00, 7, 2, b"delay3", {"REAL_TOPIC": "TopicTest"}, _V4, _STORE),
    (128, "TopicTest", 0, 0, 0x04, 7, 2, b"prepared", {"TAGS": "TagA"}, _V4, _STORE),
    (126, "TopicTest", 0, 2, 0x08, 7, 2, b"commit", {"TAGS": "TagA"}, _V4, _STORE),
    (136, "TopicTest", 2, 0, 0x00, 7, 0, b"hello", {"KEYS": "k1 k2", "TAGS": "TagA"}, _V4, _STORE),
    (133, "TopicTest", 2, 1, 0x00, 0, 0, b"world", {"KEYS": "k3", "TAGS": "TagC"}, _V4, _STORE),
]


@pytest.fixture(scope="module")
def vectors(golden_folder) -> bytes:
    """The eight records of the vectors, one after the other as in RocketMQ's file."""
    return bytes.fromhex((golden_folder / "records.hex").read_text())


def test_the_vectors(vectors):
    pos = 0
    for size, topic, queue, queue_offset, sys_flag, flag, times, body, table, born, store in _VECTORS:
        record = Record.decode(vectors, pos)
        assert (record.topic, record.queue_id, record.queue_offset) == (topic, queue, queue_offset)
        assert (record.sys_flag, record.flag, record.reconsume_times) == (sys_flag, flag, times)
        assert (record.body, record.pos, record.size) == (body, pos, size)
        assert (record.born_host, record.store_host) == (born, store)
        assert (record.born_timestamp_ms, record.prepared_transaction_offset) == (1600000000000, 0)
        assert table.items() <= record.property_table().items()
        assert record.encode() == vectors[pos : pos + size]
        pos += size
    assert pos == len(vectors)


def test_the_store_time_lies_behind_the_born_host(vectors):
    assert Record.decode(vectors).store_timestamp_ms == 0x1A1FB437EDB
    assert Record.decode(vectors, 170).store_timestamp_ms == 0x1A1FB437EE1


@pytest.mark.parametrize("name", ["clean", "edge", "trimmed"])
def test_every_record_of_a_golden_store(golden, golden_folder, name):
    log = golden(name) / "commitlog"
    expected = json.loads(lzma.decompress((golden_folder / name / "expected.json.xz").read_bytes()))["opened"]
    files = sorted(log.iterdir())
    segment_bytes = files[0].stat().st_size
    data = {int(file.name): file.read_bytes() for file in files}
    assert expected["messages"]
    for message in expected["messages"]:
        start = message["offset"] - message["offset"] % segment_bytes
        at = message["offset"] - start
        record = Record.decode(data[start], at)
        assert record.encode() == data[start][at : at + message["size"]]
        assert record.size == message["size"]
        assert records.body_crc(record.encode()) == message["recordCrc32"]
        assert (record.pos, record.topic) == (message["offset"], message["topic"])
        assert record.properties == message["propertiesRaw"]
        assert (record.queue_id, record.queue_offset) == (message["queueId"], message["queueOffset"])
        assert record.store_timestamp_ms == message["storeTimestamp"]
    for blank in expected["blanks"]:
        start = blank["offset"] - blank["offset"] % segment_bytes
        at = blank["offset"] - start
        assert records.filler_bytes(data[start], at) == blank["size"]
        assert data[start][at : at + 8] == records.encode_filler(blank["size"])


_LONGS = st.integers(-(2**63), 2**63 - 1)
_INTS = st.integers(-(2**31), 2**31 - 1)
_HOSTS = st.builds(
    lambda address, port: Host.decode(address.packed + port.to_bytes(4, "big")),
    st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)),
    st.integers(0, 2**32 - 1),
)
_BYTES_AS_TEXT = st.binary(max_size=127).map(lambda data: data.decode("utf-8", "surrogateescape"))
_RECORDS = st.builds(
    Record,
    topic=_BYTES_AS_TEXT,
    queue_id=_INTS,
    body=st.binary(max_size=300),
    properties=_BYTES_AS_TEXT,
    flag=_INTS,
    sys_flag=_INTS,
    queue_offset=_LONGS,
    pos=_LONGS,
    born_timestamp_ms=_LONGS,
    born_host=_HOSTS,
    store_timestamp_ms=_LONGS,
    store_host=_HOSTS,
    reconsume_times=_INTS,
    prepared_transaction_offset=_LONGS,
    magic=st.sampled_from([MESSAGE_MAGIC, MESSAGE_MAGIC_V2]),
)


@given(_RECORDS, st.binary(max_size=20), st.binary(max_size=20))
def test_round_trip(record, before, behind):
    data = record.encode()
    decoded = Record.decode(before + data + behind, len(before))
    assert decoded._replace(sys_flag=record.sys_flag) == record
    assert decoded.encode() == data
    assert record.size == len(data)
    mask = ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    assert decoded.sys_flag & mask == record.sys_flag & mask


@given(_RECORDS, st.data())
def test_a_torn_record_is_an_error_and_nothing_else(record, data):
    encoded = record.encode()
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(RecordError):
        Record.decode(encoded[:cut])


@given(_RECORDS, st.data())
def test_any_flipped_byte_gives_a_record_or_a_record_error(record, data):
    encoded = bytearray(record.encode())
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        Record.decode(bytes(encoded))
    except RecordError as error:
        assert 0 <= error.offset <= len(encoded)


def test_a_flipped_bit_of_the_body_is_found(vectors):
    data = bytearray(vectors)
    data[88] ^= 1
    with pytest.raises(RecordError, match="CRC") as caught:
        Record.decode(data)
    assert caught.value.offset == 88
    assert Record.decode(data, check_crc=False).body == b"iello"


def test_lengths_must_add_up(vectors):
    data = bytearray(vectors[:170])
    data[3] += 1
    with pytest.raises(RecordError, match="take 170 bytes, its size says 171"):
        Record.decode(bytes(data) + b"\0")


def test_a_filler_is_no_record():
    filler = records.encode_filler(167)
    assert filler.hex() == "000000a7cbd43194"
    assert records.filler_bytes(b"xx" + filler, 2) == 167
    assert records.filler_bytes(filler[:7]) is None
    with pytest.raises(RecordError, match="cbd43194"):
        Record.decode(filler + bytes(100))


def test_a_topic_of_128_bytes_needs_the_second_layout():
    record = Record("t" * 128, 0, b"")
    with pytest.raises(RecordError):
        record.encode()
    second = record._replace(magic=MESSAGE_MAGIC_V2)
    assert Record.decode(second.encode()) == second
    assert len(second.encode()) == 92 + 128


def test_the_sizes_of_the_format():
    assert len(Record("", 0, b"").encode()) == 91
    assert len(Record("", 0, b"", born_host=_V6).encode()) == 103
    assert len(Record("", 0, b"", born_host=_V6, store_host=_V6).encode()) == 115
    with pytest.raises(RecordError):
        Record("", 0, b"", properties="x" * 32768).encode()


def test_the_message_id():
    assert Record("t", 0, b"", pos=4096, store_host=_STORE).message_id == "C0A8010200002A9F0000000000001000"
