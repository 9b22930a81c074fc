"""The handshake without sockets: who is taken in, who is not, and in which words (S14)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.replication.transport import handshake
from tallystick.replication.transport.handshake import (
    HandshakeError,
    Hello,
    Identity,
    Lane,
    Refusal,
    RefusalCode,
    Welcome,
    common_version,
    judge,
    objection,
)

OWN = Identity("cluster-a", "broker-a", 1)
CALLER = Identity("cluster-a", "broker-a", 0)
HELLO = Hello(CALLER, 1, Lane.BULK)


def test_a_member_of_the_group_is_taken_in() -> None:
    assert judge(HELLO, OWN) == Welcome(OWN, 1)
    assert objection(Welcome(OWN, 1), HELLO) is None


@pytest.mark.parametrize(
    ("hello", "code", "reason"),
    [
        (replace(HELLO, identity=replace(CALLER, cluster="other")), RefusalCode.CLUSTER, "not of cluster other"),
        (replace(HELLO, identity=replace(CALLER, group="broker-b")), RefusalCode.GROUP, "not of group broker-b"),
        (replace(HELLO, wanted_member=2), RefusalCode.MEMBER, "n1 of group broker-a in cluster cluster-a, not n2"),
        (replace(HELLO, identity=OWN), RefusalCode.MEMBER, "two members have the id n1"),
        (replace(HELLO, version_min=2, version_max=3), RefusalCode.VERSION, "versions 1 to 1, not 2 to 3"),
        (replace(HELLO, version_min=0, version_max=0), RefusalCode.VERSION, "versions 1 to 1, not 0 to 0"),
        (replace(HELLO, lane=3), RefusalCode.LANE, "does not know lane 3"),
    ],
)
def test_other_callers_get_the_reason(hello: Hello, code: RefusalCode, reason: str) -> None:
    answer = judge(Hello.decode(memoryview(hello.encode())), OWN)
    assert isinstance(answer, Refusal)
    assert answer.code == code
    assert reason in answer.reason


def test_the_caller_looks_too() -> None:
    assert objection(Welcome(replace(OWN, member=2), 1), HELLO) == (
        "reached n2 of group broker-a in cluster cluster-a, not n1"
    )
    assert "reached n1 of group broker-b" in str(objection(Welcome(replace(OWN, group="broker-b"), 1), HELLO))
    assert "chose version 2" in str(objection(Welcome(OWN, 2), HELLO))


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [((1, 1), (1, 1), 1), ((1, 3), (2, 5), 3), ((2, 5), (1, 3), 3), ((1, 2), (3, 4), None), ((3, 4), (1, 2), None)],
)
def test_the_highest_version_of_both_is_spoken(
    monkeypatch: pytest.MonkeyPatch, ours: tuple[int, int], theirs: tuple[int, int], expected: int | None
) -> None:
    monkeypatch.setattr(handshake, "VERSION_MIN", ours[0])
    monkeypatch.setattr(handshake, "VERSION_MAX", ours[1])
    assert common_version(*theirs) == expected


def test_bytes_are_those_that_other_members_know() -> None:
    """Fixed for all versions: members without a common one have to be able to say so."""
    hello = Hello(Identity("c", "gg", 2), 3, 1, 4, 5)
    assert hello.encode().hex() == "544152500004000501000000020000000300016300026767"
    welcome = Welcome(Identity("c", "gg", 2), 5)
    assert welcome.encode().hex() == "5441525000050000000200016300026767"
    assert Refusal(6, "no").encode().hex() == "54415250000600026e6f"


names = st.text(min_size=1, max_size=60)
identities = st.builds(Identity, names, names, st.integers(0, 2**31 - 1))


@given(identities, st.integers(0, 2**31 - 1), st.integers(0, 255), st.binary(max_size=20))
def test_there_and_back_with_what_later_versions_add(identity: Identity, wanted: int, lane: int, more: bytes) -> None:
    hello = Hello(identity, wanted, lane, 3, 9)
    assert Hello.decode(memoryview(hello.encode() + more)) == hello
    welcome = Welcome(identity, 9)
    assert Welcome.decode(memoryview(welcome.encode() + more)) == welcome


@given(st.binary(max_size=60))
def test_rubbish_is_a_handshake_error(data: bytes) -> None:
    for kind in (Hello, Welcome, Refusal):
        with pytest.raises(HandshakeError):
            kind.decode(memoryview(data))


@pytest.mark.parametrize("message", [HELLO, Welcome(OWN, 1), Refusal(1, "no")], ids=lambda each: type(each).__name__)
def test_what_is_cut_off_is_a_handshake_error(message: Hello | Welcome | Refusal) -> None:
    encoded = message.encode()
    for length in range(len(encoded)):
        with pytest.raises(HandshakeError):
            type(message).decode(memoryview(encoded[:length]))


def test_a_refusal_cannot_write_lines_into_our_log() -> None:
    found = Refusal.decode(memoryview(Refusal(1, "no\nERROR all is lost\x1b[2J").encode()))
    assert found.reason == "no?ERROR all is lost?[2J"
    stranger = judge(replace(HELLO, identity=replace(CALLER, cluster="x\ny")), OWN)
    assert isinstance(stranger, Refusal) and "x?y" in stranger.reason


@pytest.mark.parametrize("wrong", [("", "g", 0), ("c" * 256, "g", 0), ("c", "", 0), ("c", "g", -1), ("c", "g", 2**31)])
def test_identities_have_bounds(wrong: tuple[str, str, int]) -> None:
    with pytest.raises(ValueError, match="is no"):
        Identity(*wrong)
