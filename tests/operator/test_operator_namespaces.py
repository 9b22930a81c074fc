"""One operator for each namespace: several releases that watch the same one, with the API server in memory."""

from __future__ import annotations

import asyncio
import random
import signal
from dataclasses import replace
from typing import Any

import kopf
import pytest
from operator_process import SETTINGS, until
from simulated_api import SimulatedApi
from simulated_cluster import Cluster, InlineKube

from tallystick.operator import main
from tallystick.operator.core import guard as guard_module
from tallystick.operator.core import namespace_leases as module
from tallystick.operator.core.events import Events
from tallystick.operator.core.guard import Guard
from tallystick.operator.core.kube import LEASES, Kube
from tallystick.operator.core.lease import LeaseLostError
from tallystick.operator.core.namespace_leases import NAME, SECONDS, WAITING, NamespaceLeases
from tallystick.operator.core.work_queue import Key, Kind

SHOP = "shop"


class World:
    """A clock, an API server, and releases."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.api = SimulatedApi(lambda: self.now)
        self.ended: list[str] = []

    def release(self, name: str) -> NamespaceLeases:
        def lost(error: LeaseLostError) -> None:
            self.ended.append(name)

        return NamespaceLeases(InlineKube(self.api), f"{name}/operator", lambda: self.now, lost)

    @property
    def lease(self) -> dict[str, Any]:
        return self.api.objects[LEASES.plural, SHOP, NAME]

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"])


def used() -> set[str]:
    return {SHOP}


@pytest.fixture
def world() -> World:
    return World()


async def test_the_first_release_acts_and_the_second_one_says_that_it_waits(world: World) -> None:
    one, two = world.release("one"), world.release("two")
    assert await one.obstacle(SHOP) == ""
    told = await two.obstacle(SHOP)
    assert "operator one/operator manages the namespace shop" in told and "two/operator" in told
    assert (one.counts(), two.counts()) == ((1, 0), (0, 1))
    assert world.lease["metadata"]["annotations"] == {WAITING: "two/operator"}


async def test_the_holder_reports_who_waits_until_nobody_does(world: World) -> None:
    one, two = world.release("one"), world.release("two")
    await one.obstacle(SHOP)
    await two.obstacle(SHOP)
    assert one.waiting(SHOP) == ""
    world.now += SECONDS / 3
    await one.renew(used)
    assert one.waiting(SHOP) == "two/operator"
    assert WAITING not in world.lease["metadata"].get("annotations", {}), "the other one has to say it again"
    for _ in range(3):
        world.now += SECONDS / 3
        await one.renew(used)
    assert one.waiting(SHOP) == ""
    assert world.ended == []


async def test_notes_of_those_who_wait_are_no_renewal(world: World) -> None:
    """The holder was killed: two others that annotate its lease do not keep each other out."""
    one, two, three = (world.release(name) for name in ("one", "two", "three"))
    await one.obstacle(SHOP)
    for _ in range(30):
        world.now += 5.0
        if "" in [await two.obstacle(SHOP), await three.obstacle(SHOP)]:
            break
    assert world.holder == "two/operator"
    assert SECONDS <= world.now - 1000.0 <= SECONDS + 10.0


async def test_another_pod_of_the_same_release_goes_on_at_once(world: World) -> None:
    await world.release("one").obstacle(SHOP)
    assert await world.release("one").obstacle(SHOP) == ""
    assert world.now == 1000.0


async def test_one_that_stops_makes_room_at_once_although_its_lease_was_annotated(world: World) -> None:
    one, two = world.release("one"), world.release("two")
    await one.obstacle(SHOP)
    await two.obstacle(SHOP)
    await one.release()
    world.now += module.RETRY_SECONDS
    assert await two.obstacle(SHOP) == ""
    assert one.counts() == (0, 0)


async def test_a_namespace_without_anything_to_reconcile_is_given_back(world: World) -> None:
    one = world.release("one")
    await one.obstacle(SHOP)
    await one.renew(lambda: set())
    assert (world.holder, one.counts()) == ("", (0, 0))
    await one.renew(lambda: set())
    assert one._entries == {}


async def test_one_whose_lease_was_taken_ends(world: World) -> None:
    """By force, as a user can do it; at its next renewal, or when it tries to take it again."""
    one, two = world.release("one"), world.release("two")
    await one.obstacle(SHOP)
    await two.obstacle(SHOP)
    world.lease["spec"]["holderIdentity"] = ""
    world.now += module.RETRY_SECONDS
    assert await two.obstacle(SHOP) == ""
    await one.renew(used)
    assert world.ended == ["one"]
    three = world.release("three")
    three._entry(SHOP).held = True
    assert await three.obstacle(SHOP) != ""
    assert world.ended == ["one", "three"]


async def test_a_deleted_lease_is_created_again(world: World) -> None:
    one = world.release("one")
    await one.obstacle(SHOP)
    world.api.remove((LEASES.plural, SHOP, NAME))
    world.now += SECONDS / 3
    await one.renew(used)
    assert (world.holder, world.ended) == ("one/operator", [])
    world.now += SECONDS / 2
    assert await one.obstacle(SHOP) == "" and one.counts() == (1, 0)


@pytest.mark.parametrize("before", [True, False])
async def test_in_a_namespace_that_is_being_deleted_finalizers_can_be_released(world: World, before: bool) -> None:
    """Its Lease goes with it, in any order, and cannot be created again."""
    one = world.release("one")
    if before:
        await one.obstacle(SHOP)
        world.api.remove((LEASES.plural, SHOP, NAME))
    world.api.terminating.add(SHOP)
    world.now += SECONDS / 3
    await one.renew(used)
    for _ in range(5):
        world.now += SECONDS / 3
        assert await one.obstacle(SHOP) == ""
        async with one.acting(SHOP):
            await asyncio.sleep(0)
        await one.renew(used)
    assert world.ended == []
    world.api.terminating.clear()  # the name is used again
    two = world.release("two")
    assert await two.obstacle(SHOP) == ""
    world.now += module.RETRY_SECONDS
    assert "two/operator" in await one.obstacle(SHOP)
    assert world.ended == (["one"] if before else [])


async def test_without_the_permission_nothing_is_done_and_the_message_says_why(world: World) -> None:
    def forbid(*_: Any) -> None:
        raise module.KubeError("PUT: no", status=403, said='leases is forbidden: User "x" cannot create resource')

    one = world.release("one")
    world.api.hook = forbid
    told = await one.obstacle(SHOP)
    assert NAME in told and "leases is forbidden" in told
    assert one.counts() == (0, 1)


async def test_a_pass_ends_when_the_lease_could_not_be_renewed(world: World) -> None:
    short = NamespaceLeases(InlineKube(world.api), "one/operator", lambda: world.now, world.ended.append, 0.06)  # type: ignore[arg-type]
    assert await short.obstacle(SHOP) == ""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30), short.acting(SHOP):
            await asyncio.Event().wait()


async def test_a_pass_goes_on_while_the_lease_is_renewed(world: World) -> None:
    loop = asyncio.get_running_loop()
    leases = NamespaceLeases(InlineKube(world.api), "one/operator", loop.time, world.ended.append, 0.3)  # type: ignore[arg-type]
    assert await leases.obstacle(SHOP) == ""
    began = loop.time()
    async with leases.acting(SHOP):
        while loop.time() - began < 0.6:
            await asyncio.sleep(0.01)
            await leases.renew(used)


# -- the property ------------------------------------------------------------------------------------------------------


class Storm:
    """Several releases with several processes, over one namespace. Only the clock and the random numbers decide."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World()
        self.names = ("one", "two", "three")
        self.alive = {name: self.world.release(name) for name in self.names}
        self.acted: set[str] = set()

    def acting(self) -> list[str]:
        return [name for name, leases in self.alive.items() if leases.counts()[0]]

    async def turn(self) -> None:
        name = self.random.choice(self.names)
        leases = self.alive.get(name)
        deed = self.random.choice(("try", "try", "try", "renew", "renew", "renew", "die", "stop", "silence", "start"))
        if deed == "start" or leases is None:
            self.alive.setdefault(name, self.world.release(name))
        elif deed == "try":
            await leases.obstacle(SHOP)
        elif deed == "renew":
            await leases.renew(used)
        elif deed == "stop":
            await self.alive.pop(name).release()
        elif deed == "die":
            del self.alive[name]
        else:
            self.world.api.failing = self.random.randint(1, 4)
        for gone in self.world.ended:
            self.alive.pop(gone, None)
        self.world.ended.clear()
        acting = self.acting()
        assert len(acting) <= 1, f"{acting} act at {self.world.now}"
        self.acted |= set(acting)
        self.world.now += self.random.choice((0.0, 1.0, 7.0, 31.0, 61.0))


@pytest.mark.parametrize("seed", range(20))
async def test_never_two_act_whatever_happens(seed: int) -> None:
    storm = Storm(seed)
    for _ in range(300):
        await storm.turn()
    assert len(storm.acted) > 1, "one took over from another"


# -- the work of the queue ---------------------------------------------------------------------------------------------


async def test_a_pass_runs_only_for_the_holder_and_users_are_told_once() -> None:
    cluster = Cluster(random.Random(1))
    cluster.create()
    api: Kube = InlineKube(cluster.api)
    done: list[Key] = []

    async def work(key: Key) -> float:
        done.append(key)
        return 5.0

    def guard(name: str) -> Guard:
        leases = NamespaceLeases(api, name, lambda: cluster.time, lambda error: None)
        return Guard(api, leases, Events(api, name, lambda: cluster.time), dict.fromkeys(Kind, work))

    one, two, key = guard("one/tally"), guard("two/tally"), Key(SHOP, "orders")
    assert await one.run(key) == 5.0
    before = {part: body for part, body in cluster.api.objects.items() if part[0] not in ("leases", "events")}
    for each in (key, key, Key(SHOP, "orders", Kind.TOPICS), Key(SHOP, "gone", Kind.JOB), Key(SHOP, "gone")):
        waits = None if each.name == "gone" else guard_module.WAITING_SECONDS
        assert await two.run(each) == waits
    assert done == [key]
    assert {part: body for part, body in cluster.api.objects.items() if part[0] not in ("leases", "events")} == before
    (event,) = cluster.api.all("events")
    assert (event["reason"], event["type"]) == ("OperatorWaits", "Warning")
    assert event["involvedObject"]["name"] == "orders"
    assert "one/tally manages the namespace shop" in event["message"]


async def test_two_releases_and_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both as whole processes. The second one makes nothing; when the first one stops, it continues."""

    async def no_events(**_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(kopf, "operator", no_events)
    monkeypatch.setattr(guard_module, "WAITING_SECONDS", 0.05)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(main, "DISCOVER_SECONDS", 0.05)
    world = Cluster(random.Random(1))
    world.create()
    api = InlineKube(world.api)
    stops: list[Any] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "add_signal_handler", lambda number, stop: stops.append((number, stop)))
    first = asyncio.create_task(main.run(SETTINGS, api))
    await until(lambda: world.api.get("statefulsets", "orders-0-2") is not None and world.status)
    second = asyncio.create_task(main.run(replace(SETTINGS, pod_namespace="other", pod_name="operator-1"), api))
    await until(lambda: any(event["reason"] == "OperatorWaits" for event in world.api.all("events")))
    lease = world.api.objects[LEASES.plural, SHOP, NAME]
    assert lease["spec"]["holderIdentity"] == "system/tallystick-operator"
    assert lease["metadata"]["annotations"] == {WAITING: "other/tallystick-operator"}
    next(stop for number, stop in stops if number == signal.SIGTERM)()
    async with asyncio.timeout(30):
        assert await first == 0
    await until(
        lambda: world.api.objects[LEASES.plural, SHOP, NAME]["spec"]["holderIdentity"] == "other/tallystick-operator"
    )
    [stop for number, stop in stops if number == signal.SIGTERM][1]()
    async with asyncio.timeout(30):
        assert await second == 0
    assert world.api.objects[LEASES.plural, SHOP, NAME]["spec"]["holderIdentity"] == ""
