"""The bloom filter computes the positions and bit maps that RocketMQ has on its disks."""

import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.node.broker import sql92
from tallystick.node.broker.tables.bloom import BloomFilter, has_bits, murmur3_128, set_bits

# Printed by Guava 19 and RocketMQ 4.8.0: text, hash as Guava writes it (bytes, low half first), positions of
# createByFn(20, 32) and of createByFn(1, 1000).
KNOWN = [
    ("", "00000000000000000000000000000000", (0, 0, 0), (0,) * 7),
    ("a", "897859f6655555855a890e51483ab5e6", (94, 99, 7), (6598, 3419, 9351, 2477, 701, 1535, 1643)),
    ("hello, world", "8ebc5e3a62ac2f344d41429607bcdc4c", (0, 93, 43), (2512, 1925, 947, 30, 1008, 1986, 2451)),
    (
        "0123456789abcdef",
        "a7d14acf946de04bda08a7635c5bc387",
        (11, 47, 60),
        (7227, 4263, 4116, 7080, 9139, 8832, 2204),
    ),
    (
        "0123456789abcdefg",
        "def945aa2d61328eee72c306c2f40008",
        (27, 71, 85),
        (291, 3463, 7789, 5557, 5695, 7651, 1814),
    ),
    (
        "标签-0123456789abcdef0123456789",
        "126e276eed16188a982bfb0e2cddc355",
        (64, 19, 57),
        (6576, 355, 1689, 1681, 363, 3007, 8629),
    ),
    ("cg#T", "bef5d7fa9cb3c77d13cdb80eebe7d916", (42, 57, 98), (9338, 6025, 3210, 2561, 6674, 8689, 546)),
]


@pytest.mark.parametrize(("text", "digest", "few", "many"), KNOWN)
def test_hash_and_positions_are_those_of_rocketmq(text, digest, few, many):
    assert b"".join(half.to_bytes(8, "little") for half in murmur3_128(text.encode())).hex() == digest
    assert BloomFilter.create(20, 32).positions(text) == few
    assert BloomFilter.create(1, 1000).positions(text) == many


@pytest.mark.parametrize(
    ("error_percent", "groups", "hashes", "bits"),
    [
        (20, 32, 3, 112),
        (1, 1, 7, 16),
        (99, 1, 1, 8),
        (50, 1, 1, 8),
        (25, 7, 2, 24),
        (1, 1000, 7, 9592),
        (13, 77, 3, 328),
    ],
)
def test_sizes_are_those_of_rocketmq(error_percent, groups, hashes, bits):
    assert BloomFilter.create(error_percent, groups) == BloomFilter(hashes, bits)


@pytest.mark.parametrize(("error_percent", "groups"), [(0, 32), (100, 32), (20, 0)])
def test_impossible_sizes_are_refused(error_percent, groups):
    with pytest.raises(ValueError, match="bloom filter"):
        BloomFilter.create(error_percent, groups)


@given(st.lists(st.text(max_size=20)), st.text(max_size=20))
def test_every_added_key_is_found(texts, other):
    bloom = BloomFilter.create(20, 32)
    bit_map = bloom.empty()
    for text in texts:
        set_bits(bit_map, bloom.positions(text))
    assert all(has_bits(bytes(bit_map), bloom.positions(text)) for text in texts)
    if not texts:
        assert not has_bits(bytes(bit_map), bloom.positions(other))


def test_the_golden_extension_files_hold_the_same_bits(golden_folder, golden):
    """Three SQL92 groups were known while 300 messages came: their positions, and each message's bit map."""
    table = json.loads((golden("cqext") / "config" / "consumerFilter.json").read_text())
    groups = table["filterDataByTopic"]["GoldExt"]["groupFilterData"]
    bloom = BloomFilter.create(20, 32)
    for name, data in groups.items():
        assert data["bloomFilterData"] == {"bitNum": bloom.bits, "bitPos": list(bloom.positions(f"{name}#GoldExt"))}

    with lzma.open(golden_folder / "cqext" / "expected.json.xz") as file:
        opened = json.load(file)["opened"]
    messages = {message["physicalOffset"]: message for message in opened["messages"]}
    compared = 0
    for queue in opened["queues"]:
        if queue["topic"] != "GoldExt":
            continue
        units = {unit["address"]: unit for unit in queue["ext"]}
        for pos, _, address in queue["entries"]:
            expected = bloom.empty()
            for name, data in groups.items():
                if sql92.compile(data["expression"]).matches(messages[pos]["properties"]):
                    set_bits(expected, bloom.positions(f"{name}#GoldExt"))
            assert units[address]["bitMap"] == expected.hex(), messages[pos]["properties"]
            compared += 1
    assert compared == 300
