"""One operator at a time, with the API server in memory and a clock that is told what to say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from simulated_api import SimulatedApi
from simulated_cluster import InlineKube

from tallystick.operator.core import lease as module
from tallystick.operator.core.kube import LEASES
from tallystick.operator.core.lease import Lease, LeaseLostError


class World:
    """A clock, an API server, and operators whose sleep moves the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.api = SimulatedApi(lambda: self.now)
        self.sleeps = 0
        self.on_sleep: Any = lambda: None

        async def sleep(seconds: float) -> None:
            self.now += seconds
            self.sleeps += 1
            assert self.sleeps < 100
            self.on_sleep()

        monkeypatch.setattr(module.asyncio, "sleep", sleep)

    def lease(self, identity: str, skew: float = 0.0) -> Lease:
        return Lease(InlineKube(self.api), "system", "operator", identity, 15.0, lambda: self.now + skew)

    @property
    def holder(self) -> str:
        return self.api.objects[LEASES.plural, "system", "operator"]["spec"]["holderIdentity"]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_the_first_one_has_it_at_once(world: World) -> None:
    one = world.lease("one")
    await one.acquire()
    assert (world.holder, one.held, world.now) == ("one", True, 0.0)


async def test_a_second_one_waits_until_the_first_was_silent_for_all_its_time(world: World) -> None:
    """By its own clock, whatever that says: only how long nothing changed counts."""
    await world.lease("one").acquire()
    two = world.lease("two", skew=1_000_000.0)
    await two.acquire()
    assert world.holder == "two"
    assert world.now >= 15.0


async def test_as_long_as_the_first_one_renews_the_second_one_waits(world: World) -> None:
    one, two = world.lease("one"), world.lease("two")
    await one.acquire()

    def renewed() -> None:
        if world.now < 100.0:
            body = world.api.objects[LEASES.plural, "system", "operator"]
            body["metadata"]["resourceVersion"] += "x"
            body["spec"]["renewTime"] += "x"

    world.on_sleep = renewed
    await two.acquire()
    assert world.now >= 115.0 - 5.0


async def test_one_that_is_given_back_is_free(world: World) -> None:
    one = world.lease("one")
    await one.acquire()
    await one.release()
    assert (world.holder, one.held) == ("", False)
    await world.lease("two").acquire()
    assert world.now == 0.0


async def test_a_process_before_this_one_is_no_other(world: World) -> None:
    await world.lease("one").acquire()
    await world.lease("one").acquire()
    assert world.now == 0.0


async def test_it_is_lost_when_another_process_took_it(world: World) -> None:
    one = world.lease("one")
    await one.acquire()
    world.api.objects[LEASES.plural, "system", "operator"]["metadata"]["resourceVersion"] = "other"
    with pytest.raises(LeaseLostError):
        await one.keep()


async def test_it_is_lost_when_the_server_is_silent_and_before_anybody_can_take_it(world: World) -> None:
    one = world.lease("one")
    await one.acquire()
    world.api.failing = 1000
    with pytest.raises(LeaseLostError):
        await one.keep()
    assert world.now < 15.0
    assert one.held, "no other process can have it yet"


async def test_one_silent_moment_is_borne(world: World) -> None:
    one = world.lease("one")
    await one.acquire()
    renewals = 0

    def once() -> None:
        nonlocal renewals
        renewals += 1
        world.api.failing = 1 if renewals == 1 else 0
        if renewals == 6:
            raise asyncio.CancelledError

    world.on_sleep = once
    with pytest.raises(asyncio.CancelledError):
        await one.keep()
    assert world.holder == "one"


async def test_of_two_that_come_at_once_one_has_it(world: World) -> None:
    one, two = world.lease("one"), world.lease("two")
    await asyncio.gather(one.acquire(), two.acquire())
    assert world.now >= 15.0, "the second one had to wait until the first was silent"
