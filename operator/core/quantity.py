"""Quantities of Kubernetes: `10Gi`, `500m`, `1e3`. Exact, because rounding must never lower a size."""

from __future__ import annotations

import re
from fractions import Fraction

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {name: 10 * power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}


def quantity(text: str) -> Fraction:
    """Parses a quantity. ValueError: the text is not a quantity."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, exponent, suffix = found.groups()
    if exponent:
        return Fraction(number) * Fraction(10) ** int(exponent[1:])
    if suffix in _BINARY:
        return Fraction(number) * Fraction(2) ** _BINARY[suffix]
    return Fraction(number) * Fraction(10) ** _DECIMAL[suffix or ""]


def larger(one: str, other: str) -> str:
    """Returns the larger text, the first one if both are equal. ValueError: a text is not a quantity."""
    return one if quantity(one) >= quantity(other) else other


def rounded(size_bytes: int) -> int:
    """Rounds a size to two digits, and to 0 below 1 MiB, so that a status with it rarely changes under load."""
    if size_bytes < 1 << 20:
        return 0
    scale = int(10 ** (len(str(size_bytes)) - 2))
    return size_bytes // scale * scale


def same(one: str, other: str) -> bool:
    """Whether two texts are the same quantity; False if a text is not a quantity."""
    try:
        return quantity(one) == quantity(other)
    except ValueError:
        return False
