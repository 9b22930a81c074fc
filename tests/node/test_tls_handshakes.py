"""Which handshakes continue, which end, and in which order they get their turns."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from tallystick.node.tls.handshakes import Handshakes


class One:
    """A handshake that notes what happens to it."""

    def __init__(self, owner: Handshakes, address: str, log: list[str]) -> None:
        self.address = address
        self.reason = ""
        self.is_stepping = False
        self.steps = 0
        self._owner = owner
        self._log = log

    def before_step(self) -> None:
        assert not self.is_stepping
        self.is_stepping = True

    def step(self) -> None:
        self._log.append(self.address)

    def stepped(self) -> None:
        assert self.is_stepping
        self.is_stepping = False
        self.steps += 1

    def fail(self, reason: str) -> None:
        self.reason = reason
        self._owner.end(self, completed=False)


class Steps(Executor):
    """Runs a step when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[None], Callable[[], None]]] = []

    def submit(self, step: Any, /, *_: Any, **__: Any) -> Any:
        made: Future[None] = Future()
        self.waiting.append((made, step))
        return made

    async def run_one(self) -> None:
        """Runs the step that waits; there is one at most."""
        ((made, step),) = self.waiting
        self.waiting.clear()
        step()
        made.set_result(None)
        await settle()

    async def run(self) -> None:
        """Runs steps until none waits."""
        while self.waiting:
            await self.run_one()


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


class Lab:
    """Handshakes with a clock and an executor of the test."""

    def __init__(self, most: int = 8, most_of_address: int = 4) -> None:
        self.steps: list[str] = []
        self.executor = Steps()
        self.all = Handshakes(
            most=most, most_of_address=most_of_address, timeout_s=1.0, clock=lambda: 0.0, executor=self.executor
        )

    def begin(self, address: str) -> One:
        made = One(self.all, address, self.steps)
        self.all.begin(made)
        return made


async def test_the_oldest_of_an_address_ends_for_a_new_one() -> None:
    lab = Lab()
    other = lab.begin("10.0.0.1")
    first, *rest = [lab.begin("10.0.0.2") for _ in range(4)]
    assert not first.reason
    last = lab.begin("10.0.0.2")
    assert first.reason == "more than 4 handshakes of its address are in progress"
    assert not any(each.reason for each in (other, last, *rest))
    assert len(lab.all) == 5 and lab.all.failed == 1


async def test_the_oldest_of_all_ends_for_a_new_address() -> None:
    lab = Lab()
    made = [lab.begin(f"10.0.0.{number}") for number in range(9)]
    assert made[0].reason == "more than 8 handshakes are in progress"
    assert not any(each.reason for each in made[1:])


async def test_a_network_of_ipv6_is_one_address() -> None:
    lab = Lab()
    first = lab.begin("2001:db8::1")
    for number in range(2, 6):
        lab.begin(f"2001:db8::{number}")
    assert first.reason
    assert not lab.begin("2001:db8:0:1::1").reason


async def test_addresses_take_turns() -> None:
    lab = Lab(most=100, most_of_address=100)
    many = [lab.begin("10.0.0.2") for _ in range(20)]
    for each in many:
        lab.all.ready(each)
    lab.all.ready(lab.begin("10.0.0.1"))
    await lab.executor.run()
    assert lab.steps.index("10.0.0.1") <= 2
    assert len(lab.steps) == 21 and not lab.all.waiting


async def test_one_handshake_at_a_time_is_continued() -> None:
    lab = Lab(most=100, most_of_address=100)
    made = [lab.begin("10.0.0.2") for _ in range(6)]
    for each in made:
        lab.all.ready(each)
    for done in range(6):
        await settle()
        assert [each.is_stepping for each in made] == [at == done for at in range(6)]
        assert lab.all.waiting == 6 - done
        await lab.executor.run_one()
    assert [each.steps for each in made] == [1] * 6


async def test_a_handshake_that_ends_during_its_step_is_told_when_the_step_is_done() -> None:
    lab = Lab()
    gone, stays = lab.begin("10.0.0.2"), lab.begin("10.0.0.2")
    lab.all.ready(gone)
    lab.all.ready(stays)
    gone.fail("the peer left")
    assert gone.is_stepping, "its thread still uses it"
    await lab.executor.run()
    assert (gone.steps, stays.steps) == (1, 1) and lab.all.failed == 1


async def test_a_handshake_that_ended_gets_no_turn() -> None:
    lab = Lab()
    gone, stays = lab.begin("10.0.0.2"), lab.begin("10.0.0.2")
    lab.all.ready(lab.begin("10.0.0.3"))
    lab.all.ready(gone)
    lab.all.ready(stays)
    lab.all.end(gone, completed=True)
    await lab.executor.run()
    assert lab.steps == ["10.0.0.3", "10.0.0.2"] and lab.all.completed == 1


async def test_what_takes_too_long_ends() -> None:
    handshakes = Handshakes(most=8, most_of_address=8, timeout_s=0.05)
    log: list[str] = []
    made = [One(handshakes, "10.0.0.1", log) for _ in range(2)]
    for each in made:
        handshakes.begin(each)
    async with asyncio.timeout(10):
        while len(handshakes):  # noqa: ASYNC110 -- the limit is a time
            await asyncio.sleep(0.01)
    assert {each.reason for each in made} == {"the handshake was not complete after 0.05 s"}
