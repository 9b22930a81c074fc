"""Messages as bytes: there and back for all of them, the layouts that other members know, and rubbish."""

import dataclasses
import random
import struct
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.replication import messages as m
from tallystick.replication.bounds import INDEX_MAX, TERM_MAX, impossible
from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.messages import TermRun
from tallystick.replication.transport import codec, shipping_messages
from tallystick.replication.transport import shipping_messages as s
from tallystick.replication.transport.codec import Codec
from tallystick.replication.transport.frames import FrameError, FrameHeader
from tallystick.replication.transport.handshake import Lane

CODEC = Codec((*codec.LAYOUTS, *shipping_messages.LAYOUTS))
MESSAGES = typing.get_args(m.Message)
SHIPPING = typing.get_args(s.ShippingMessage)

members = st.integers(0, 2**31 - 1)
numbers = st.integers(0, 9) | st.integers(-(2**63), 2**63 - 1)


@st.composite
def memberships(draw: st.DrawFn) -> MembershipEntry:
    everyone = draw(st.lists(members, max_size=9, unique=True))
    voters = draw(st.integers(0, len(everyone)))
    return MembershipEntry(draw(numbers), Membership.of(everyone[:voters], everyone[voters:]))


@st.composite
def appends(draw: st.DrawFn) -> m.AppendRequest:
    prev_index = draw(st.integers(-1, 2**62))
    runs, last = [], prev_index
    for term in draw(st.lists(numbers, max_size=5)):
        last += draw(st.integers(1, 2**40))
        runs.append(TermRun(term, last))
    return m.AppendRequest(
        *draw(st.tuples(members, members, numbers, numbers)), prev_index, draw(numbers), tuple(runs), draw(numbers),
        tuple(draw(st.lists(memberships(), max_size=3))), draw(st.binary(max_size=50)),
    )  # fmt: skip


files = st.builds(s.ShippedFile, st.from_regex(r"[a-z]{1,8}/[0-9]{20}", fullmatch=True), st.integers(0, 2**63))
EXACT: dict[type, st.SearchStrategy[Any]] = {
    int: numbers,
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    PossibleLoss: st.sampled_from(PossibleLoss),
    DiskState: st.sampled_from(DiskState),
    MembershipEntry: memberships(),
}
NAMED: dict[str, st.SearchStrategy[Any]] = {
    "source": members,
    "target": members,
    "payload": st.binary(max_size=50),
    "crc": st.integers(0, 2**32 - 1),
    "file": st.integers(0, 2**32 - 1),
    "size": st.integers(0, 2**32 - 1),
    "offset": st.integers(0, 2**64 - 1),
    "digest": st.binary(min_size=32, max_size=32),
    "reason": st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200),
    "files": st.lists(files, max_size=5, unique_by=lambda file: file.name).map(tuple),
}


def of_type(message: type) -> st.SearchStrategy[Any]:
    if message is m.AppendRequest:
        return appends()
    hints = typing.get_type_hints(message)
    parts = {}
    for field in dataclasses.fields(message):
        hint = hints[field.name]
        optional = type(None) in typing.get_args(hint)
        strategy = NAMED[field.name] if field.name in NAMED else EXACT[typing.get_args(hint)[0] if optional else hint]
        parts[field.name] = st.none() | strategy if optional else strategy
    return st.builds(message, **parts)


anything = st.one_of([of_type(message) for message in (*MESSAGES, *SHIPPING)])


def header(message: Any) -> FrameHeader:
    layout = CODEC.layout(message)
    payload = len(getattr(message, "payload", b""))
    return FrameHeader(0, payload, layout.kind, layout.version, 0)


def back(message: Any, encoded: bytes) -> Any:
    payload = getattr(message, "payload", b"")
    CODEC.check(header(message))
    return CODEC.decode(header(message), memoryview(encoded), memoryview(payload) if payload else None)


@given(anything)
def test_there_and_back(message: Any) -> None:
    layout = CODEC.layout(message)
    encoded = layout.encode(message)
    if layout.kind < shipping_messages.FIRST_KIND and impossible(message) is not None:
        with pytest.raises(FrameError):
            back(message, encoded)
    else:
        assert back(message, encoded) == message


ENTRY = MembershipEntry(9, Membership.of([0, 2], [1]))
NOTHING = MembershipEntry(-1, Membership.of([]))
IMPOSSIBLE = [
    m.PreVoteReply(1, 2, TERM_MAX + 1, 4, 5, True),
    m.PreVoteReply(1, 2, 2**63 - 1, 4, 5, True),
    m.PreVoteReply(1, 2, 3, 2**63 - 1, 5, True),
    m.PreVoteRequest(1, 2, -1, 4, 0, -1),
    m.PreVoteRequest(-1, 2, 3, 4, 0, -1),
    m.VoteRequest(1, -2, 3, 4, 0, -1),
    m.VoteRequest(1, 2, 3, 4, 4, 9),
    m.VoteRequest(1, 2, 3, 4, 2, INDEX_MAX + 1),
    m.VoteReply(1, 2, TERM_MAX + 1, 4, True),
    m.AppendRequest(1, 2, 3, 4, -2, 0, (), -1),
    m.AppendRequest(1, 2, 3, 4, 5, 4, (), -1),
    m.AppendRequest(1, 2, 3, 4, 5, 2, (TermRun(1, 6),), -1),
    m.AppendRequest(1, 2, 3, 4, 5, 2, (TermRun(4, 6),), -1),
    m.AppendRequest(1, 2, 3, 4, 5, 2, (TermRun(3, INDEX_MAX + 1),), -1),
    m.AppendRequest(1, 2, 3, 4, 5, 2, (TermRun(3, 8),), -1, (ENTRY,)),
    m.AppendRequest(1, 2, 3, 4, 5, 2, (TermRun(3, 9),), -1, (ENTRY, ENTRY)),
    m.AppendRequest(1, 2, 3, 4, 5, 2, (), INDEX_MAX + 1),
    m.AppendReply(1, 2, 3, 4, 5, True, -2, 7),
    m.AppendReply(1, 2, 3, 4, 5, True, 7, INDEX_MAX + 1),
    m.AppendReply(1, 2, 3, 4, 5, False, 7, -1, DiskState.OK, 4, 3),
    m.Heartbeat(1, 2, 3, -1, 0.0, -1),
    m.Heartbeat(1, 2, 3, 1, float("nan"), -1),
    m.Heartbeat(1, 2, 3, 1, 0.0, -2),
    m.Heartbeat(1, 2, 3, 1, 0.0, 5, 0, INDEX_MAX + 1),
    m.HeartbeatReply(1, 2, 3, 1, float("inf"), 5),
    m.HeartbeatReply(1, 2, 3, 1, 0.0, INDEX_MAX + 1),
    m.InstallRequest(1, 2, 3, 4, 5, 4, ENTRY),
    m.InstallRequest(1, 2, 3, 4, 5, 3, NOTHING),
    m.ReadReply(1, 2, 3, 4, INDEX_MAX + 1),
    m.ReadRequest(1, 2, -1, 4),
    m.TimeoutNow(1, 2, TERM_MAX + 1),
    m.Removed(1, 2, 3, INDEX_MAX + 1),
    m.EntriesLost(1, 2, 3, -2),
]


@pytest.mark.parametrize("message", IMPOSSIBLE, ids=repr)
def test_what_no_member_can_say_is_no_message(message: Any) -> None:
    with pytest.raises(FrameError):
        back(message, CODEC.layout(message).encode(message))


def test_every_message_has_a_layout() -> None:
    assert {layout.message for layout in codec.LAYOUTS} == set(MESSAGES)
    assert {layout.message for layout in shipping_messages.LAYOUTS} == set(SHIPPING)


def test_what_may_wait_has_its_own_lane() -> None:
    bulk = {layout.message for layout in codec.LAYOUTS if layout.lane is Lane.BULK}
    assert bulk == {m.AppendRequest, m.AppendReply, m.InstallRequest}
    assert {layout.lane for layout in shipping_messages.LAYOUTS} == {Lane.BULK}


ENTRY_HEX = "000000000000000900020001000000000000000200000001"
Q = "{:016x}".format
# Kind and bytes as other members send and expect them. A line here never changes: a new layout is a new version.
FIXED: list[tuple[int, Any, str]] = [
    (16, m.PreVoteRequest(1, 2, 9, 4, 5, 6), "0000000100000002" + Q(9) + Q(4) + Q(5) + Q(6)),
    (17, m.PreVoteReply(1, 2, 3, 4, 5, True, PossibleLoss.LOG), "0000000100000002" + Q(3) + Q(4) + Q(5) + "0101"),
    (18, m.VoteRequest(1, 2, 9, 4, 5, 6, True), "0000000100000002" + Q(9) + Q(4) + Q(5) + Q(6) + "01"),
    (19, m.VoteReply(1, 2, 3, 4, False, PossibleLoss.VOTES), "0000000100000002" + Q(3) + Q(4) + "0002"),
    (
        20,
        m.AppendRequest(1, 2, 9, 4, 5, 6, (TermRun(7, 8), TermRun(9, 10)), 11, (ENTRY,)),
        "0000000100000002" + Q(9) + Q(4) + Q(5) + Q(6) + Q(11)
        + "00000002" + Q(7) + Q(8) + Q(9) + Q(10) + "00000001" + ENTRY_HEX,
    ),
    (
        21,
        m.AppendReply(1, 2, 9, 4, 5, False, 6, 7, DiskState.FULL, 8, 9),
        "0000000100000002" + Q(9) + Q(4) + Q(5) + "00" + Q(6) + Q(7) + "01" + "01" + Q(8) + Q(9),
    ),
    (21, m.AppendReply(1, 2, 3, 4, 5, True, 6, 7), "0000000100000002" + Q(3) + Q(4) + Q(5) + "01" + Q(6) + Q(7)
        + "00" + "00" + Q(0) + "ff" * 8),
    (
        22,
        m.Heartbeat(1, 2, 3, 4, 1.5, 6, 7, 8),
        "0000000100000002" + Q(3) + Q(4) + "3ff8000000000000" + Q(6) + Q(7) + "01" + Q(8),
    ),
    (
        23,
        m.HeartbeatReply(1, 2, 3, 4, 1.5, 6, 7, PossibleLoss.VOTES, DiskState.FAILED),
        "0000000100000002" + Q(3) + Q(4) + "3ff8000000000000" + Q(6) + Q(7) + "02" + "02",
    ),
    (24, m.InstallRequest(1, 2, 9, 4, 5, 6, ENTRY), "0000000100000002" + Q(9) + Q(4) + Q(5) + Q(6) + ENTRY_HEX),
    (25, m.ReadRequest(1, 2, 3, 4), "0000000100000002" + Q(3) + Q(4)),
    (26, m.ReadReply(1, 2, 3, 4, None), "0000000100000002" + Q(3) + Q(4) + "00" + Q(0)),
    (27, m.TimeoutNow(1, 2, 3), "0000000100000002" + Q(3)),
    (28, m.Removed(1, 2, 3, 4), "0000000100000002" + Q(3) + Q(4)),
    (29, m.EntriesLost(1, 2, 3, 4), "0000000100000002" + Q(3) + Q(4)),
    (64, s.ListRequest(1, 2, 3, 4), "0000000100000002" + Q(3) + Q(4)),
    (65, s.ListReply(1, 2, 3, (s.ShippedFile("a", 5),)), "0000000100000002" + Q(3) + "00000001" + Q(5) + "000161"),
    (66, s.ChunkRequest(1, 2, 3, 4, 5, 6, 7), "0000000100000002" + Q(3) + Q(4) + "00000005" + Q(6) + "00000007"),
    (67, s.Chunk(1, 2, 3, 4), "0000000100000002" + Q(3) + "00000004"),
    (68, s.DigestRequest(1, 2, 3, 4, 5), "0000000100000002" + Q(3) + Q(4) + "00000005"),
    (69, s.DigestReply(1, 2, 3, b"d" * 32), "0000000100000002" + Q(3) + "64" * 32),
    (70, s.ShippingRefusal(1, 2, 3, "no"), "0000000100000002" + Q(3) + "6e6f"),
]  # fmt: skip


def test_every_message_has_its_bytes_below() -> None:
    assert {type(message) for _, message, _ in FIXED} == {*MESSAGES, *SHIPPING}


@pytest.mark.parametrize(("kind", "message", "expected"), FIXED, ids=lambda value: type(value).__name__)
def test_bytes_are_those_that_other_members_know(kind: int, message: Any, expected: str) -> None:
    layout = CODEC.layout(message)
    assert (layout.kind, layout.version) == (kind, 1)
    assert layout.encode(message).hex() == expected
    assert back(message, bytes.fromhex(expected)) == message


@pytest.mark.parametrize("message", [each for _, each, _ in FIXED], ids=lambda each: type(each).__name__)
def test_cut_off_or_with_more_behind_it_is_refused(message: Any) -> None:
    encoded = CODEC.layout(message).encode(message)
    open_ended = isinstance(message, s.ShippingRefusal)  # its text ends where it ends
    for length in range(0, 16 if open_ended else len(encoded)):
        with pytest.raises(FrameError, match=type(message).__name__):
            back(message, encoded[:length])
    if not open_ended:
        with pytest.raises(FrameError, match=type(message).__name__):
            back(message, encoded + b"\0")


@given(anything, st.integers(0, 2**32))
def test_damage_is_an_error_or_another_message_but_nothing_else(message: Any, seed: int) -> None:
    dice = random.Random(seed)
    encoded = bytearray(CODEC.layout(message).encode(message))
    for _ in range(dice.randrange(1, 6)):
        if encoded:
            encoded[dice.randrange(len(encoded))] = dice.randrange(256)
    try:
        found = back(message, bytes(encoded))
    except FrameError:
        return
    assert type(found) is type(message)
    CODEC.layout(found).encode(found)  # it is one that a member could have sent


def test_counts_that_promise_too_much_cost_nothing() -> None:
    request = bytearray(CODEC.layout(FIXED[4][1]).encode(FIXED[4][1]))
    request[48:52] = b"\xff\xff\xff\xff"
    with pytest.raises(FrameError, match="4294967295 runs"):
        back(FIXED[4][1], bytes(request))
    reply = struct.pack(">iiqI", 1, 2, 3, 0xFFFFFFFF)
    with pytest.raises(FrameError):
        back(FIXED[15][1], reply)


def test_runs_that_do_not_rise_are_refused() -> None:
    for runs in ((TermRun(7, 5),), (TermRun(7, 8), TermRun(9, 8))):
        wrong = m.AppendRequest(1, 2, 3, 4, 5, 6, runs, 11)
        with pytest.raises(FrameError, match="a run up to index"):
            back(wrong, CODEC.layout(wrong).encode(wrong))


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/../b", "/etc/passwd", "a//b", "a\0b", ".hidden", "a\nb", "é", "a/b/c/d/e"]
)
def test_names_that_could_lead_elsewhere_are_refused(name: str) -> None:
    assert not s.is_file_name(name)
    wrong = s.ListReply(1, 2, 3, (s.ShippedFile(name, 5),))
    with pytest.raises(FrameError, match="not a valid file name"):
        back(wrong, CODEC.layout(wrong).encode(wrong))


def test_one_name_for_two_files_is_refused() -> None:
    wrong = s.ListReply(1, 2, 3, (s.ShippedFile("a", 5), s.ShippedFile("a", 6)))
    with pytest.raises(FrameError, match="the same name"):
        back(wrong, CODEC.layout(wrong).encode(wrong))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (FrameHeader(0, 0, 99, 1, 0), "unknown kind 99"),
        (FrameHeader(0, 0, 22, 2, 0), "kind 22 in the unknown version 2"),
        (FrameHeader(0, 1, 22, 1, 0), "kind 22 with a payload"),
    ],
)
def test_unknown_frames_are_named_before_their_bytes_are_waited_for(found: FrameHeader, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        CODEC.check(found)


def test_a_payload_is_a_view_of_what_came() -> None:
    received = memoryview(bytearray(b"entries"))
    request = m.AppendRequest(1, 2, 3, 4, -1, -1, (TermRun(3, 0),), -1)
    found = CODEC.decode(header(request), memoryview(CODEC.layout(request).encode(request)), received)
    assert found.payload is received


def test_what_does_not_fit_is_our_own_mistake() -> None:
    with pytest.raises(struct.error):
        CODEC.layout(FIXED[0][1]).encode(m.PreVoteRequest(1, 2, 2**63, 4, 5, 6))


def test_absent_and_zero_are_distinct() -> None:
    """Term 0 is dledger's first term, and index 0 the first entry: neither means that there is none."""
    for message in (
        m.AppendReply(1, 2, 3, 4, 5, False, 6, -1, DiskState.OK, 0, 0),
        m.AppendReply(1, 2, 3, 4, 5, False, 6, -1, DiskState.OK, None, 0),
        m.ReadReply(1, 2, 3, 4, 0),
        m.ReadReply(1, 2, 3, 4, None),
        m.Heartbeat(1, 2, 3, 4, 5.0, 6, 7, 0),
        m.Heartbeat(1, 2, 3, 4, 5.0, 6, 7, None),
    ):
        layout = CODEC.layout(message)
        assert layout.decode(memoryview(layout.encode(message)), None) == message
