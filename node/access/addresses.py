"""Patterns of source addresses, as in `plain_acl.yml`.

    10.10.103.8              one address
    10.10.103.*              a part is any number; parts that are missing behind a last `*` are any number too
    10.10.103.1-20           a part is a number of this range
    10.10.103.{1,2,7}        one of these; the list may also have whole addresses: 10.10.103.1,10.10.103.2
    1050:0:0:0:5:600:*:*     the same for IPv6, with hexadecimal numbers
    *                        any address; also *.*.*.* and *:*:*:*:*:*:*:*

Each part is compared by itself. RocketMQ 4.8 compares nothing behind the first `*` or range: it takes `10.*.0.1` as
`10.*`, which permits more than the pattern says.

Source: RemoteAddressStrategyFactory of RocketMQ 4.8.0.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

_ANY = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_PARTS = {4: (4, 10, 255), 6: (8, 16, 0xFFFF)}  # by IP version: number of parts, base of a number, largest number

_Range = tuple[int, int]


class AddressError(ValueError):
    """A text is not a pattern of addresses."""


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """One pattern. `text` is how it was written."""

    text: str
    _alternatives: tuple[tuple[int, tuple[_Range, ...]], ...]
    """IP version and the range of each part. Empty: any address."""

    @classmethod
    def parse(cls, text: str) -> AddressPattern:
        """Raises AddressError: the text is not a pattern."""
        text = text.strip()
        if text in _ANY:
            return cls(text, ())
        alternatives = [_parse_one(one) for one in _expand(text)]
        if not alternatives:
            raise AddressError(f"{text!r} is not a pattern of addresses")
        return cls(text, tuple(alternatives))

    @classmethod
    def parse_network(cls, text: str) -> AddressPattern:
        """One address, or a network with the length of its prefix: `10.0.0.0/8`. AddressError."""
        try:
            network = ipaddress.ip_network(text.strip(), strict=False)
        except ValueError:
            raise AddressError(f"{text!r} is neither an address nor a network") from None
        bounds = zip(_parts(network.network_address), _parts(network.broadcast_address), strict=True)
        return cls(text, ((network.version, tuple(bounds)),))

    def matches(self, address: str) -> bool:
        """Whether an IP address belongs to the pattern. A text that is not an IP address belongs to `*` alone."""
        if not self._alternatives:
            return True
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        parts = _parts(found)
        return any(
            version == found.version
            and all(low <= part <= high for part, (low, high) in zip(parts, ranges, strict=True))
            for version, ranges in self._alternatives
        )


def address_list(text: str) -> list[AddressPattern]:
    """Patterns and networks that are separated by commas. AddressError: one is neither."""
    found = []
    for part in filter(None, map(str.strip, _outside_braces(text))):
        found.append(AddressPattern.parse_network(part) if "/" in part else AddressPattern.parse(part))
    return found


def _outside_braces(text: str) -> list[str]:
    """Splits at the commas that are not inside of {}."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _parts(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[int]:
    packed = address.packed
    if address.version == 4:
        return list(packed)
    return [int.from_bytes(packed[at : at + 2], "big") for at in range(0, 16, 2)]


def _expand(text: str) -> list[str]:
    """The patterns of a list, in either form."""
    if text.endswith("}"):
        head, brace, items = text[:-1].partition("{")
        if not brace or not head.endswith((".", ":")):
            raise AddressError(f"{text!r} has a list that is not the last part of an address")
        return [head + item.strip() for item in items.split(",")]
    return [item.strip() for item in text.split(",")]


def _parse_one(text: str) -> tuple[int, tuple[_Range, ...]]:
    version = 6 if ":" in text else 4
    count, _, largest = _PARTS[version]
    separator = ":" if version == 6 else "."
    texts = text.split(separator)
    if version == 6 and "::" in text:
        texts = _filled(text)
    elif texts[-1] == "*":
        texts += ["*"] * (count - len(texts))
    if len(texts) != count:
        raise AddressError(f"{text!r} does not have {count} parts")
    return version, tuple((0, largest) if part == "*" else _range(text, part, version) for part in texts)


def _filled(text: str) -> list[str]:
    """The eight parts of an IPv6 pattern with `::`."""
    head, _, tail = text.partition("::")
    before, after = head.split(":") if head else [], tail.split(":") if tail else []
    missing = 8 - len(before) - len(after)
    if missing < 1 or "::" in tail:
        raise AddressError(f"{text!r} is not an IPv6 address")
    return [*before, *["0"] * missing, *after]


def _range(text: str, part: str, version: int) -> _Range:
    low, dash, high = part.partition("-")
    first = _number(text, low, version)
    last = _number(text, high, version) if dash else first
    if first > last:
        raise AddressError(f"{text!r} has a range that ends before it begins")
    return first, last


def _number(text: str, part: str, version: int) -> int:
    _, base, largest = _PARTS[version]
    part = part.strip()
    try:
        value = int(part, base) if part.isascii() and part.isalnum() else -1
    except ValueError:
        value = -1
    if not 0 <= value <= largest:
        raise AddressError(f"{text!r}: {part!r} is not a part of an IPv{version} address")
    return value
