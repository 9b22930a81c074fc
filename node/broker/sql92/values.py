"""Conversion of text to numbers, and order of numbers, as in Java.

Source: Integer.valueOf, Long.valueOf, Double.valueOf, Boolean.valueOf and Double.compareTo of the Java library.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable


class UnconvertibleError(Exception):
    """The text of a property cannot be converted to the type that it is compared with. Only this package uses it."""


# Java's syntax of numbers. `\d` matches the digits of other scripts, which Java accepts for integers.
_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_HEX_DOUBLE = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_BLANKS = "".join(map(chr, range(33)))


def _integer(bits: int) -> Callable[[str], int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    longest = 4000  # Java accepts any number of leading zeros; Python's int() has a limit a little above this one

    def convert(text: str) -> int:
        if not _INTEGER.fullmatch(text) or len(text) > longest:
            raise UnconvertibleError
        value = int(text)
        if not low <= value <= high:
            raise UnconvertibleError
        return value

    return convert


def double(text: str) -> float:
    """Java's Double.valueOf: it accepts blanks around the number, a type suffix, and hexadecimal.
    UnconvertibleError."""
    text = text.strip(_BLANKS)
    if _DOUBLE.fullmatch(text):
        return float(text.rstrip("fFdD"))
    if match := _HEX_DOUBLE.fullmatch(text):
        try:
            return float.fromhex(match[1])
        except OverflowError:
            return math.inf if text[0] != "-" else -math.inf
    raise UnconvertibleError


def boolean(text: str) -> bool:
    """Java's Boolean.valueOf: "true" in any case is true, any other text is false."""
    return text.lower() == "true"


int32, int64 = _integer(32), _integer(64)
"""Java's Integer.valueOf and Long.valueOf. UnconvertibleError: the text is not an integer, or out of range."""


def order(left: float, right: float) -> int:
    """Java's Double.compareTo as -1, 0 or 1. It is correct for integers and booleans as well."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right and left != 0:
        return 0
    return _rank(left) - _rank(right)


def _rank(value: float) -> int:
    """Returns the order of values that Python does not order: -0.0, 0.0, NaN."""
    return 2 if value != value else 0 if math.copysign(1, value) < 0 else 1
