"""The transfer of a snapshot to a member that lacks deleted entries: offered once, announced again, withdrawn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tallystick.replication.ledger.mark import EntryPoint
from tallystick.replication.member.snapshot_transfer import SnapshotReceiver, SnapshotSender
from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.messages import InstallRequest

BASE = EntryPoint(29, 1, 4711, 1 << 16)
REQUEST = InstallRequest(0, 2, 3, 1, 29, 1, MembershipEntry(0, Membership.of([0, 1, 2])))


class Ways:
    """A transport and a shipping, whose lanes may be full."""

    def __init__(self) -> None:
        self.full = False
        self.sent: list[bytes] = []
        self.offers: dict[int, Any] = {}
        self.fetched: list[int] = []
        self.go = asyncio.Event()

    def send(self, message: InstallRequest, payload: bytes) -> bool:
        if not self.full:
            self.sent.append(payload)
        return not self.full

    def offer(self, number: int, source: Any) -> None:
        self.offers[number] = source

    def withdraw(self, number: int) -> None:
        del self.offers[number]

    async def fetch(self, source: int, number: int, target: Any) -> None:
        self.fetched.append(number)
        await self.go.wait()


def sender_of(ways: Ways) -> SnapshotSender:
    return SnapshotSender(ways, ways)  # type: ignore[arg-type]


async def test_a_snapshot_is_offered_once_and_described_at_every_request() -> None:
    ways = Ways()
    sender = sender_of(ways)
    for _ in range(2):
        sender.send(REQUEST, BASE, lambda: b"state")
    assert len(ways.offers) == 1 and len(ways.sent) == 2
    sender.send(replace(REQUEST, term=4), BASE, lambda: b"newer state")
    assert len(ways.offers) == 1, "the older offer is over"


async def test_a_snapshot_that_a_full_lane_refused_is_offered_when_there_is_room() -> None:
    ways = Ways()
    sender = sender_of(ways)
    ways.full = True
    sender.send(REQUEST, BASE, lambda: b"state")
    ways.full = False
    sender.on_room(REQUEST.target)
    assert len(ways.sent) == 1
    sender.on_room(REQUEST.target)
    assert len(ways.sent) == 1, "chunks of the snapshot itself fill the lane all the time"


async def test_the_offer_ends_when_the_member_has_the_snapshot() -> None:
    ways = Ways()
    sender = sender_of(ways)
    sender.send(REQUEST, BASE, lambda: b"state")
    sender.withdraw_from_matched({2: 28, 1: 40})
    assert len(ways.offers) == 1
    sender.withdraw_from_matched({2: 29})
    assert ways.offers == {}
    sender.send_again(2)
    assert len(ways.sent) == 1


async def test_a_request_that_comes_again_does_not_begin_the_fetch_again() -> None:
    ways = Ways()
    sender_of(ways).send(REQUEST, BASE, lambda: b"state")
    arrived: list[EntryPoint] = []
    receiver = SnapshotReceiver(ways, lambda request, point, blob: arrived.append(point))  # type: ignore[arg-type]
    request = replace(REQUEST, payload=ways.sent[0])
    receiver.receive(request)
    await asyncio.sleep(0)
    receiver.receive(request)
    await asyncio.sleep(0)
    assert len(ways.fetched) == 1
    ways.go.set()
    async with asyncio.timeout(10):
        while not arrived:  # noqa: ASYNC110  (the receiver notifies no one else)
            await asyncio.sleep(0)
    assert arrived == [BASE]


@pytest.mark.parametrize("payload", [b"", b"x" * 19])
async def test_a_snapshot_of_an_unknown_form_is_not_fetched(payload: bytes) -> None:
    ways = Ways()
    receiver = SnapshotReceiver(ways, lambda request, point, blob: None)  # type: ignore[arg-type]
    receiver.receive(replace(REQUEST, payload=payload))
    await asyncio.sleep(0)
    assert ways.fetched == []
