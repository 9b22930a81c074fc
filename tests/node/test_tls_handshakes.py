"""Which handshakes continue, which end, and in which order they get their turns."""

import asyncio
import itertools

from tallystick.node.tls.handshakes import Handshakes


class One:
    """A handshake that notes what happens to it."""

    def __init__(self, owner: Handshakes, address: str, log: list[str]) -> None:
        self.address = address
        self.reason = ""
        self._owner = owner
        self._log = log

    def step(self) -> None:
        self._log.append(self.address)

    def fail(self, reason: str) -> None:
        self.reason = reason
        self._owner.end(self, completed=False)


class Lab:
    """Handshakes with a clock of the test. A step takes `step_s`."""

    def __init__(self, most: int = 8, most_of_address: int = 4, step_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.steps: list[str] = []
        self._step_s = step_s
        self.all = Handshakes(most=most, most_of_address=most_of_address, timeout_s=1.0, clock=self._clock)

    def _clock(self) -> float:
        self.now_s += self._step_s
        return self.now_s

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
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert lab.steps.index("10.0.0.1") == 1
    assert len(lab.steps) == 21


async def test_other_work_of_the_loop_comes_between_turns() -> None:
    lab = Lab(most=100, most_of_address=100, step_s=0.0006)
    for _ in range(6):
        lab.all.ready(lab.begin("10.0.0.2"))
    seen = []
    while len(lab.steps) < 6:
        await asyncio.sleep(0)
        seen.append(len(lab.steps))
    assert len(seen) >= 3 and max(late - early for early, late in itertools.pairwise(seen)) <= 2


async def test_a_handshake_that_ended_gets_no_turn() -> None:
    lab = Lab()
    gone, stays = lab.begin("10.0.0.2"), lab.begin("10.0.0.2")
    lab.all.ready(gone)
    lab.all.ready(stays)
    lab.all.end(gone, completed=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert lab.steps == ["10.0.0.2"] and lab.all.completed == 1


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
