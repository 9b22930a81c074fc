"""Two to five members on real sockets, on both event loops: what arrives, in which order, and who is let in."""

import asyncio
import logging
import random
import socket
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from stranger import Line
from transport_lab import QUICK, Member, append, group, heartbeat, listening_socket, until

from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.messages import Heartbeat, InstallRequest
from tallystick.replication.transport import Identity, Lane
from tallystick.replication.transport.callers import objection
from tallystick.replication.transport.handshake import Standing
from tallystick.replication.transport.settings import TransportSettings
from tallystick.store.settings import SettingsError

# Newer versions of the plugin have a hook for this, older ones do not.
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy.:pytest.PytestDeprecationWarning")


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


async def close(*members: Member) -> None:
    for member in members:
        await member.transport.close()


async def test_five_members_hear_each_other() -> None:
    members = [Member(number) for number in range(5)]
    await group(*members)
    for a in members:
        for b in members:
            if a is not b:
                assert a.transport.send(heartbeat(a.id, b.id, 10 * a.id + b.id))
    for b in members:
        await until(lambda b=b: len(b.inbox) == 4)  # type: ignore[misc]
        expected = {heartbeat(a.id, b.id, 10 * a.id + b.id) for a in members if a is not b}
        assert set(b.messages) == expected
        assert [status.member for status in b.transport.status()] == [n for n in range(5) if n != b.id]
    await close(*members)


async def test_a_lane_keeps_the_order_and_payloads_arrive_whole() -> None:
    a, b = Member(0), Member(1)
    await group(a, b)
    dice = random.Random(7)
    bodies = [dice.randbytes(dice.choice([0, 1, 100, 16_383, 16_384, 70_000, 1 << 20])) for _ in range(60)]
    for index, body in enumerate(bodies):
        while not a.transport.send(append(0, 1, index, index), body):
            await a.room(1)
    await until(lambda: len(b.inbox) == len(bodies))
    for index, ((message, payload), body) in enumerate(zip(b.inbox, bodies, strict=True)):
        assert (payload or b"") == body, "every payload is kept here, and is still what it was"
        assert message == append(0, 1, index, index) if not body else message.payload is payload  # type: ignore[union-attr]
    await close(a, b)


async def test_a_payload_may_stand_in_the_message() -> None:
    a, b = Member(0), Member(1)
    await group(a, b)
    assert a.transport.send(replace(append(0, 1), payload=b"entries"))
    request = InstallRequest(0, 1, 3, 4, 5, 3, MembershipEntry(2, Membership.of([0, 1])))
    assert a.transport.send(request, memoryview(b"where to fetch it"))
    await until(lambda: len(b.inbox) == 2)
    assert [bytes(payload or b"") for _, payload in b.inbox] == [b"entries", b"where to fetch it"]
    assert b.inbox[1][0] == replace(request, payload=b"where to fetch it")
    await close(a, b)


async def test_what_is_too_large_for_a_frame_is_the_senders_mistake() -> None:
    a, b = Member(0, replace(QUICK, payload_max_bytes=1 << 20)), Member(1)
    await group(a, b)
    with pytest.raises(ValueError, match="payload of 1048577 bytes"):
        a.transport.send(append(0, 1), bytes((1 << 20) + 1))
    assert a.transport.send(heartbeat(0, 1)), "nothing came of it"
    await close(a, b)


async def test_no_message_is_taken_for_a_missing_member() -> None:
    a = Member(0)
    a.start()
    assert not a.transport.send(heartbeat(0, 1)), "no peer"
    gone = listening_socket()
    port = gone.getsockname()[1]
    gone.close()
    a.transport.set_peers({0: ("127.0.0.1", a.port), 1: ("127.0.0.1", port)})
    assert list(a.transport.peers) == [1], "a member does not call itself"
    await until(lambda: a.sent(1, Lane.CONTROL).failures >= 2)
    assert not a.transport.send(heartbeat(0, 1))
    assert a.sent(1, Lane.CONTROL).dropped_unconnected == 1
    assert "refused" in a.sent(1, Lane.CONTROL).last_error.lower()
    await close(a)


async def test_a_peer_that_comes_later_is_found_and_one_that_restarts_is_found_again() -> None:
    a, b = Member(0), Member(1)
    a.start()
    a.transport.set_peers({1: ("127.0.0.1", b.port)})
    await until(lambda: a.sent(1, Lane.CONTROL).failures >= 1)
    b.start()
    await until(lambda: a.connected(1))
    await close(b)
    await until(lambda: not a.connected(1, Lane.CONTROL) and not a.connected(1, Lane.BULK))
    again = Member(1)
    again.socket.close()
    again.socket = socket.socket()
    again.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    again.socket.bind(("127.0.0.1", b.port))
    again.start()
    await until(lambda: a.connected(1))
    assert a.sent(1, Lane.BULK).connects == 2
    assert a.transport.send(heartbeat(0, 1))
    await until(lambda: again.inbox)
    await close(a, again)


async def test_peers_change_at_run_time() -> None:
    a, b, c = Member(0), Member(1), Member(2)
    await group(a, b, c)
    a.transport.set_peers({1: ("127.0.0.1", b.port)})
    assert not a.transport.send(heartbeat(0, 2))
    await until(lambda: not c.received(0, Lane.CONTROL) or not _calls(c, 0))
    assert a.transport.send(heartbeat(0, 1)), "who stays keeps its connections"
    assert a.sent(1, Lane.CONTROL).connects == 1
    # Member 1 moves to another address.
    moved = Member(1)
    moved.start()
    a.transport.set_peers({1: ("127.0.0.1", moved.port)})
    await until(lambda: a.connected(1) and _calls(moved, 0) == set(Lane))
    assert a.transport.peers == {1: ("127.0.0.1", moved.port)}
    assert a.transport.send(heartbeat(0, 1, 9))
    await until(lambda: moved.inbox)
    assert moved.messages == [heartbeat(0, 1, 9)]
    await close(a, b, c, moved)


def _calls(member: Member, caller: int) -> set[Lane]:
    return next((set(status.calling) for status in member.transport.status() if status.member == caller), set())


async def test_each_attempt_resolves_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod comes back under the same name with another address."""
    a, b, moved = Member(0), Member(1), Member(1)
    moved.socket.close()
    moved.socket = socket.socket()
    moved.socket.bind(("127.0.0.2", b.port))
    names: dict[str, str] = {}
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: object, **options: object) -> object:
        if host == "n1.tally" and host not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(names.get(host, host), *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    for member in (a, b, moved):
        member.start()
    a.transport.set_peers({1: ("n1.tally", b.port)})
    await until(lambda: a.sent(1, Lane.CONTROL).failures >= 2)
    assert a.sent(1, Lane.CONTROL).last_error == "Name or service not known"
    names["n1.tally"] = "127.0.0.1"
    await until(lambda: a.connected(1))
    names["n1.tally"] = "127.0.0.2"
    await close(b)
    await until(lambda: _calls(moved, 0) == set(Lane))
    await close(a, moved)


# -- who is let in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stranger", "words"),
    [
        ({"cluster": "other"}, "this is n1 of group g in cluster c, not of cluster other"),
        ({"group": "other"}, "this is n1 of group g in cluster c, not of group other"),
    ],
)
async def test_both_sides_say_why_a_stranger_is_refused(
    stranger: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = Member(0, **stranger), Member(1)  # type: ignore[arg-type]
    a.start()
    b.start()
    with caplog.at_level(logging.WARNING):
        a.transport.set_peers({1: ("127.0.0.1", b.port)})
        await until(lambda: a.sent(1, Lane.CONTROL).failures >= 5 and a.sent(1, Lane.BULK).failures >= 5)
    assert a.sent(1, Lane.CONTROL).last_error == f"refused this member: {words}"
    assert not a.transport.send(heartbeat(0, 1))
    assert b.transport.refused_connections >= 10
    said = [record.getMessage() for record in caplog.records]
    assert sum(f"(control): refused this member: {words}" in line for line in said) == 1, (
        "one line, however often it tries"
    )
    assert sum(line.endswith(f"rejected: refused: {words}") for line in said) == 1
    assert len(said) == 3
    await close(a, b)


async def test_an_address_of_another_member_is_noticed() -> None:
    a, b = Member(0), Member(1)
    a.start()
    b.start()
    a.transport.set_peers({2: ("127.0.0.1", b.port)})
    await until(lambda: a.sent(2, Lane.BULK).failures >= 1)
    assert a.sent(2, Lane.BULK).last_error == "refused this member: this is n1 of group g in cluster c, not n2"
    await close(a, b)


async def test_versions_without_a_common_one_are_refused_politely(monkeypatch: pytest.MonkeyPatch) -> None:
    from tallystick.replication.transport import peer_lane

    class LaterHello(peer_lane.Hello):
        def __init__(self, *fields: Any) -> None:
            super().__init__(*fields, 2, 4)  # type: ignore[call-arg]

    a, b = Member(0), Member(1)
    a.start()
    b.start()
    monkeypatch.setattr(peer_lane, "Hello", LaterHello)
    a.transport.set_peers({1: ("127.0.0.1", b.port)})
    await until(lambda: a.sent(1, Lane.CONTROL).failures >= 1)
    assert a.sent(1, Lane.CONTROL).last_error == "refused this member: n1 supports the versions 1 to 1, not 2 to 4"
    monkeypatch.undo()
    await until(lambda: a.connected(1))
    await close(a, b)


async def test_a_message_in_anothers_name_ends_the_connection() -> None:
    a, b = Member(0), Member(1)
    await group(a, b)
    assert a.transport.send(heartbeat(2, 1))
    await until(lambda: b.received(0, Lane.CONTROL).failures == 1)
    assert b.received(0, Lane.CONTROL).last_error == "it sent a message of n2 to n1"
    assert b.inbox == []
    await close(a, b)


async def test_no_caller_takes_the_place_of_a_live_connection() -> None:
    first, second, b = Member(0), Member(0), Member(1)
    b.start()
    first.start()
    first.transport.set_peers({1: ("127.0.0.1", b.port)})
    await until(lambda: first.connected(1))
    second.start()
    second.transport.set_peers({1: ("127.0.0.1", b.port)})
    await until(lambda: second.sent(1, Lane.CONTROL).failures >= 3 and second.sent(1, Lane.BULK).failures >= 3)
    assert "connection is alive" in second.sent(1, Lane.CONTROL).last_error
    assert b.received(0, Lane.CONTROL).connects == b.received(0, Lane.BULK).connects == 1
    assert first.transport.send(heartbeat(0, 1))
    await until(lambda: b.inbox)
    await close(first)
    await until(lambda: second.connected(1))
    await close(second, b)


async def test_a_member_takes_the_place_of_one_that_calls_from_elsewhere() -> None:
    """127.0.0.2 is another machine here: it may speak for n0 only as long as n0 does not."""
    a, b = Member(0), Member(1)
    await group(b)
    b.transport.set_peers({0: ("127.0.0.1", a.port)})
    await until(lambda: b.sent(0, Lane.CONTROL).failures >= 1)  # and knows where n0 should call from
    line = await Line.open(b.port, Identity("c", "g", 0), 1, Lane.CONTROL, host="127.0.0.2")
    assert line.welcome
    a.start()
    a.transport.set_peers({1: ("127.0.0.1", b.port)})
    await until(lambda: a.connected(1) and line.closed)
    late = await Line.open(b.port, Identity("c", "g", 0), 1, Lane.CONTROL, host="127.0.0.2")
    assert not late.welcome
    await line.close()
    await late.close()
    await close(a, b)


async def test_one_whose_address_is_not_known_is_refused() -> None:
    a, b = Member(0), Member(1)
    await group(a, b)
    line = await Line.open(b.port, Identity("c", "g", 7), 1, Lane.CONTROL)
    assert not line.welcome
    await line.close()
    await close(a, b)


class Silent:
    """An older connection, as `callers` sees it."""

    def __init__(self, standing: Standing, silent_ms: int) -> None:
        self.standing, self._silent_ms = standing, silent_ms

    def silent_ms(self) -> int:
        return self._silent_ms


@pytest.mark.parametrize(
    ("caller", "older", "silent_ms", "taken"),
    [
        (Standing.ADDRESS, Standing.ADDRESS, 500, False),
        (Standing.ADDRESS, Standing.ADDRESS, 2100, True),
        (Standing.ADDRESS, Standing.UNKNOWN, 0, True),
        (Standing.UNKNOWN, Standing.ADDRESS, 2900, False),
        (Standing.UNKNOWN, Standing.UNKNOWN, 0, False),
        (Standing.UNKNOWN, Standing.UNKNOWN, 2100, True),
        (Standing.CERTIFICATE, Standing.CERTIFICATE, 0, False),
    ],
)
def test_who_takes_whose_place(caller: Standing, older: Standing, silent_ms: int, taken: bool) -> None:
    reason = objection(0, Silent(caller, 0), Silent(older, silent_ms), frozenset(), 3000)
    assert (reason is None) is taken


async def test_a_handler_that_fails_ends_that_connection_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    a, b, c = Member(0), Member(1), Member(2)
    await group(a, b, c)

    def fail(message: object, payload: object) -> None:
        b.on_message = lambda message, payload: None
        raise RuntimeError("a mistake")

    b.on_message = fail
    assert a.transport.send(heartbeat(0, 1, 1))
    await until(lambda: b.received(0, Lane.CONTROL).failures == 1)
    assert "a mistake" in caplog.text
    await until(lambda: a.sent(1, Lane.CONTROL).connects == 2 and a.connected(1))
    assert a.transport.send(heartbeat(0, 1, 2))
    await until(lambda: len(b.inbox) == 2)
    assert c.transport.send(heartbeat(2, 1, 3))
    await until(lambda: len(b.inbox) == 3)
    await close(a, b, c)


async def test_close_lets_the_last_message_go_out_and_delivers_nothing_any_more() -> None:
    a, b = Member(0), Member(1)
    await group(a, b)
    assert a.transport.send(append(0, 1), bytes(1 << 20))
    await close(a)
    await until(lambda: b.inbox)
    assert not a.transport.send(heartbeat(0, 1))
    assert b.transport.send(heartbeat(1, 0)) in (True, False)
    await close(b)
    assert a.inbox == []
    # Nothing is left behind.
    await until(lambda: len(asyncio.all_tasks()) == 1)


async def test_counters_count() -> None:
    a, b = Member(0), Member(1)
    await group(a, b)
    for number in range(10):
        assert a.transport.send(heartbeat(0, 1, number))
    await until(lambda: len(b.inbox) == 10)
    sent, received = a.sent(1, Lane.CONTROL), b.received(0, Lane.CONTROL)
    assert (sent.frames, sent.bytes) == (received.frames, received.bytes) == (10, 10 * 77)
    assert (sent.dropped_full, sent.dropped_unconnected, sent.failures, sent.connects) == (0, 0, 0, 1)
    assert isinstance(b.messages[0], Heartbeat)
    await close(a, b)


@pytest.mark.parametrize("silence_timeout_ms", [1, 999, 3_600_000])
async def test_every_silence_timeout_that_settings_allow_works(silence_timeout_ms: int) -> None:
    a, b = (Member(number, replace(QUICK, silence_timeout_ms=silence_timeout_ms)) for number in (0, 1))
    await group(a, b)
    await close(a, b)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"connections_max": 0}, "connections_max"),
        ({"silence_timeout_ms": 3_600_001}, "silence_timeout_ms"),
        ({"payload_max_bytes": 2 << 30}, "payload_max_bytes"),
        ({"ship_chunk_bytes": 32 << 20}, "ship_chunk_bytes"),
        ({"control_queue_bytes": 1000}, "control_queue_bytes"),
        ({"reconnect_max_ms": 1}, "reconnect_max_ms"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, int], key: str) -> None:
    TransportSettings().validate()
    with pytest.raises(SettingsError) as caught:
        replace(TransportSettings(), **change).validate()
    assert caught.value.key == key
