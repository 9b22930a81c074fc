"""Java's hash of a text, by which RocketMQ chooses queues and compares tags."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(8192)
def string_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 units, as a signed 32-bit number."""
    if text.isascii():
        units: bytes | memoryview = text.encode()
    else:
        # A lone surrogate is one unit, as in Java.
        units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    result = 0
    for unit in units:
        result = (31 * result + unit) & 0xFFFFFFFF
    return result - (1 << 32) if result & 0x80000000 else result
