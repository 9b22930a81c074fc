"""Patterns of source addresses."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.node.access.addresses import AddressError, AddressPattern


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.10.103.8", ["10.10.103.8"], ["10.10.103.80", "10.10.103.7", "::1", "a.name"]),
        ("10.10.103.*", ["10.10.103.0", "10.10.103.255"], ["10.10.104.1"]),
        ("10.10.*", ["10.10.0.0", "10.10.255.9"], ["10.11.0.0"]),
        ("10.10.103.1-20", ["10.10.103.1", "10.10.103.20"], ["10.10.103.0", "10.10.103.21", "10.10.103.2 "]),
        ("10.10.1-3.*", ["10.10.2.200"], ["10.10.4.1"]),
        ("10.*.0.1", ["10.7.0.1"], ["10.7.0.2"]),
        ("10.10.103.{1,2, 7}", ["10.10.103.1", "10.10.103.7"], ["10.10.103.3"]),
        ("10.0.0.1, 10.0.0.9", ["10.0.0.1", "10.0.0.9"], ["10.0.0.2"]),
        ("1050:0:0:0:5:600:*:*", ["1050::5:600:ffff:1"], ["1050::5:601:0:0", "10.5.0.0"]),
        ("1050::5:600:1-f:2", ["1050:0:0:0:5:600:a:2"], ["1050:0:0:0:5:600:10:2"]),
        ("5ff3:*", ["5ff3::1"], ["5ff4::1"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "0.0.0.1"]),
        ("*", ["10.0.0.1", "::1", "a.name"], []),
        ("*.*.*.*", ["10.0.0.1", "::1"], []),
    ],
)
def test_a_pattern_matches_its_addresses(pattern: str, inside: list[str], outside: list[str]) -> None:
    parsed = AddressPattern.parse(pattern)
    assert [address for address in inside if not parsed.matches(address)] == []
    assert [address for address in outside if parsed.matches(address)] == []


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0",
        "10.0.0.256",
        "10.0.0.-1",
        "10.0.0.5-2",
        "10.0.0.1-",
        "10.0.0.x",
        "a.name",
        "10.0.0{1,2}",
        "{1,2}",
        "10.0.0.{}",
        "1:2:3",
        "::1::2",
        "1:2:3:4:5:6:7:8:9",
        "10000::",
        "10.0.0.1,",
        ",",
        "10.0.0.+1",
        "10.0.0.1_0",
        "10.0.0.²",
    ],
)
def test_an_invalid_pattern_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        AddressPattern.parse(text)


@given(st.ip_addresses(), st.ip_addresses())
def test_a_single_address_matches_itself_alone(
    one: ipaddress.IPv4Address | ipaddress.IPv6Address, other: ipaddress.IPv4Address | ipaddress.IPv6Address
) -> None:
    pattern = AddressPattern.parse(str(one))
    assert pattern.matches(str(one))
    assert pattern.matches(str(other)) == (one == other)
