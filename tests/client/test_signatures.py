"""Signatures, checked with requests that RocketMQ's client signed."""

import pytest
from signed_requests import SIGNED

from tallystick.client.wire.codec import decode
from tallystick.client.wire.command import Command
from tallystick.client.wire.frames import FrameSplitter
from tallystick.client.wire.signatures import SIGNATURE, is_signed, sign


def request(name: str) -> tuple[str, dict[str, str], bytes]:
    """The secret, the fields and the body of a recorded request."""
    secret, frame = SIGNED[name]
    command = decode(*FrameSplitter().feed(bytes.fromhex(frame))[0])
    assert command.ext is not None
    return secret, command.ext, command.body


@pytest.mark.parametrize("name", SIGNED)
def test_a_recorded_signature_is_right(name: str) -> None:
    secret, ext, body = request(name)
    assert is_signed(secret, ext, body)


@pytest.mark.parametrize("name", SIGNED)
def test_any_change_makes_a_signature_wrong(name: str) -> None:
    secret, ext, body = request(name)
    assert not is_signed(secret + "x", ext, body)
    assert not is_signed(secret, ext, body + b"x")
    assert not is_signed(secret, ext | {"added": "x"}, body)
    for field, value in ext.items():
        if field != "_UNIQUE_KEY_QUERY":
            assert not is_signed(secret, ext | {field: value + "x"}, body), field
    assert not is_signed(secret, {name: value for name, value in ext.items() if name != SIGNATURE}, body)
    assert not is_signed(secret, ext | {SIGNATURE: ""}, body)
    assert not is_signed(secret, ext | {SIGNATURE: "\ud800"}, body), "a text without a UTF-8 form"


def test_our_own_requests_are_signed() -> None:
    command = Command(17, ext={"topic": "t", "b": "é"}, body=b"body")
    sign(command, "account", "12345678")
    assert command.ext is not None and is_signed("12345678", command.ext, b"body")
    first = command.ext[SIGNATURE]
    sign(command, "account", "12345678")
    assert command.ext[SIGNATURE] == first, "a request that is sent again is signed again"
