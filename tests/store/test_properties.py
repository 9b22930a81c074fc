"""Properties and message ids: the texts of RocketMQ's vectors, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.store.formats import properties
from tallystick.store.formats.message import Host
from tallystick.store.formats.message_id import MessageIdError, decode_message_id, encode_message_id

_PART = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


def test_a_stored_text():
    text = "KEYS\x01k1 k2\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    decoded = properties.decode(text)
    assert decoded == {"KEYS": "k1 k2", "WAIT": "true", "TAGS": "TagA"}
    assert properties.encode(decoded) == text


@given(st.dictionaries(_PART, _PART))
def test_what_is_encoded_is_decoded(table):
    assert properties.decode(properties.encode(table)) == table


@given(st.text())
def test_any_text_can_be_decoded(text):
    assert properties.decode(properties.encode(properties.decode(text))) == properties.decode(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a\x011", {"a": "1"}),  # other clients leave the last separator out
        ("a\x01\x02b\x012\x02", {"b": "2"}),
        ("\x011\x02b\x012\x02", {"b": "2"}),
        ("a\x01x\x01y\x02b\x012\x02", {"b": "2"}),
        ("a\x02b\x012\x02", {"b": "2"}),
        ("WAIT\x01false\x02WAIT\x01true\x02", {"WAIT": "true"}),
    ],
)
def test_pieces_that_are_no_pairs_are_left_out(text, expected):
    assert properties.decode(text) == expected


@pytest.mark.parametrize("table", [{"": "x"}, {"a\x01": "x"}, {"a": "x\x02"}])
def test_separators_cannot_be_written(table):
    with pytest.raises(properties.PropertyError) as caught:
        properties.encode(table)
    assert caught.value.name in table


@pytest.mark.parametrize(
    ("host", "pos", "text"),
    [
        (Host("192.168.1.2", 10911), 4096, "C0A8010200002A9F0000000000001000"),
        (Host("2001:db8::2", 10911), 4096, "20010DB800000000000000000000000200002A9F0000000000001000"),
    ],
)
def test_offset_ids_of_the_vectors(host, pos, text):
    assert encode_message_id(host, pos) == text
    assert decode_message_id(text) == (host, pos)
    assert decode_message_id(text.lower()) == (host, pos)


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_ids_round_trip(address, port, pos):
    host = Host(str(address), port)
    found, at = decode_message_id(encode_message_id(host, pos))
    assert (found.encode(), at) == (host.encode(), pos)


@pytest.mark.parametrize("text", ["", "C0A8", "G" * 32, "C0 8010200002A9F0000000000001000", "0" * 40, "中" * 32])
def test_what_is_no_id(text):
    with pytest.raises(MessageIdError):
        decode_message_id(text)


@pytest.mark.parametrize("text", ["7F 00 00 01 00 00 2A 9F 00 00 00", " " * 32, "7F000001 00002A9F 00000000000010"])
def test_blanks_are_no_digits_of_an_id(text: str) -> None:
    with pytest.raises(MessageIdError):
        decode_message_id(text.ljust(32)[:32])
    wide = "7F00000100002A9F0000000000001000" + " " * 24
    with pytest.raises(MessageIdError, match="blanks"):
        decode_message_id(wide)
