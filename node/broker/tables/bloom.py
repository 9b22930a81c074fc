"""Bloom filter of SQL92 subscriptions: which groups a message matched at dispatch, as a few bits of its
ConsumeQueue extension unit.

Each (group, topic) has k bit positions of m, from the hash of `group#topic`. A message's bit map is the union over the
groups whose expression it matched; a group whose positions are not all set certainly did not match.

    r = maxErrorRateOfBloomFilter / 100, n = expectConsumerNumUseFilter
    k = ceil(log_0.5(r))    m = ceil(n log2(1/r) log2(e)), rounded up to whole bytes      (defaults: k = 3, m = 112)
    h = low 64 bits of murmur3_128(seed 0), split into two signed 32-bit integers h1 (low), h2 (high)
    position i of 1..k: c = h1 + i h2 (wrapped to 32 bits, inverted if negative), c mod m
    bit p of a map: byte p >> 3, value 1 << (p & 7)

The bit maps are on disks, the positions in consumerFilter.json: do not change them. Source: BloomFilter, BitsArray of
RocketMQ
4.8.0's filter module; murmur3 is Austin Appleby's, x64 variant of 128 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_MASK = 2**64 - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def murmur3_128(data: bytes, seed: int = 0) -> tuple[int, int]:
    """The two 64-bit halves of the hash, unsigned; the first is what Guava calls `asLong`."""
    one = two = seed
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        one ^= _rotated(int.from_bytes(data[at : at + 8], "little") * _C1 & _MASK, 31) * _C2 & _MASK
        one = (_rotated(one, 27) + two) * 5 + 0x52DCE729 & _MASK
        two ^= _rotated(int.from_bytes(data[at + 8 : at + 16], "little") * _C2 & _MASK, 33) * _C1 & _MASK
        two = (_rotated(two, 31) + one) * 5 + 0x38495AB5 & _MASK
    tail = data[whole:]  # missing bytes count as zeros, which change nothing
    two ^= _rotated(int.from_bytes(tail[8:], "little") * _C2 & _MASK, 33) * _C1 & _MASK
    one ^= _rotated(int.from_bytes(tail[:8], "little") * _C1 & _MASK, 31) * _C2 & _MASK
    one, two = one ^ len(data), two ^ len(data)
    one = one + two & _MASK
    two = two + one & _MASK
    one, two = _mixed(one), _mixed(two)
    one = one + two & _MASK
    return one, two + one & _MASK


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """`hashes` positions (k) of `bits` (m, whole bytes)."""

    hashes: int
    bits: int

    @classmethod
    def create(cls, error_percent: int, groups: int) -> BloomFilter:
        """For at most `error_percent` false hits when `groups` groups are set. ValueError: no such filter is
        possible."""
        if not 1 <= error_percent <= 99:
            raise ValueError(f"the error rate of a bloom filter must be 1 to 99 percent, not {error_percent}")
        if groups < 1:
            raise ValueError(f"a bloom filter needs 1 group or more, not {groups}")
        rate = error_percent / 100
        hashes = math.ceil(math.log(rate) / math.log(0.5))
        bits = math.ceil(groups * (math.log(1 / rate) / math.log(2)) * (1 / math.log(2)))
        return cls(hashes, 8 * math.ceil(bits / 8))

    def positions(self, text: str) -> tuple[int, ...]:
        """The `hashes` bit positions of `text`; some may be equal."""
        low, _ = murmur3_128(text.encode())
        first, second = low & 0xFFFFFFFF, low >> 32
        found = []
        for factor in range(1, self.hashes + 1):
            combined = first + factor * second & 0xFFFFFFFF
            found.append((combined if combined < 2**31 else combined ^ 0xFFFFFFFF) % self.bits)
        return tuple(found)

    def empty(self) -> bytearray:
        """A bit map without any group."""
        return bytearray(self.bits // 8)


def set_bits(bit_map: bytearray, positions: Iterable[int]) -> None:
    """Adds the owner of `positions` to the map."""
    for position in positions:
        bit_map[position >> 3] |= 1 << (position & 7)


def has_bits(bit_map: bytes, positions: Iterable[int]) -> bool:
    """False: the owner of `positions` was not added. True: it probably was."""
    return all(bit_map[position >> 3] >> (position & 7) & 1 for position in positions)
