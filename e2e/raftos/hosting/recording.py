"""A run of the simulator under one of its seeds, with its world written down: what the network did, who died when.

The run is our core's: the simulator's oracle judges it. What is written down is what does not depend on who is being
run: weather and cuts of the network, deaths and starts, moments at which clients ask for something.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from simulator.network import Network, Weather
from simulator.profiles import Profile
from simulator.simulation import Outcome, Simulation

from tallystick.replication.settings import RaftSettings

HEARTBEAT_SECONDS = 0.2
"""Of both sides. Ours then waits 1 to 2 seconds for a leader, raftos 1 to 3."""

_NETWORK = {"bad weather": 5, "partition": 3, "one way partition": 2, "bridge": 2, "dead link": 2}
_SHAPE: dict[str, Any] = {
    "sizes": (2, 3, 3, 4, 5),
    "chaos_seconds": 20.0,
    "fault_gap_seconds": (0.5, 2.5),
    "fault_seconds": (0.3, 3.0),
    "proposal_gap_seconds": 0.25,
    "settings": RaftSettings(heartbeat_interval_seconds=HEARTBEAT_SECONDS),
}

LATE = Profile("late", {"bad weather": 1}, **_SHAPE)
"""Packets are lost, doubled, late, overtaking each other. No more than UDP does."""
PARTED = Profile("parted", _NETWORK, **_SHAPE)
"""And links are cut."""
KILLED = Profile("killed", {**_NETWORK, "crash": 5, "power cut": 1}, **_SHAPE)
"""And processes die, alone or all at once, and come back."""


@dataclass(frozen=True, slots=True)
class Event:
    """`what`: "block", "unblock", "weather", "starts", "ends" or "propose"; `about`: links, a Weather or a member."""

    at: float
    what: str
    about: Any


@dataclass(frozen=True, slots=True)
class History:
    seed: int
    size: int
    events: tuple[Event, ...]
    end: float
    """When all is repaired."""
    ours: Outcome
    acknowledged: int
    """By our core, in this run."""


class _Noted(Network):
    """Writes down what becomes of its links."""

    simulation: _Recorded

    def block(self, links: Iterable[tuple[int, int]], *, bulk_only: bool = False) -> None:
        assert not bulk_only, "raftos has one lane: no fault of these profiles parts them"
        links = tuple(links)
        self.simulation.write("block", links)
        super().block(links)

    def unblock(self, links: Iterable[tuple[int, int]], *, bulk_only: bool = False) -> None:
        assert not bulk_only, "raftos has one lane: no fault of these profiles parts them"
        links = tuple(links)
        self.simulation.write("unblock", links)
        super().unblock(links)

    @property
    def weather(self) -> Weather:
        return self._weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._weather = weather
        if hasattr(self, "simulation"):
            self.simulation.write("weather", weather)


class _Recorded(Simulation):
    def __init__(self, seed: int, profile: Profile) -> None:
        super().__init__(seed, profile)
        self.events: list[Event] = []
        network = self.network = _Noted(self.queue, self.dice, self.faults, self._deliver)
        network.simulation = self

    @property
    def size(self) -> int:
        return len(self._bootstrap.voters)

    def write(self, what: str, about: Any) -> None:
        if self.queue.now < self.profile.chaos_seconds:
            self.events.append(Event(self.queue.now, what, about))

    def note(self, member: int, what: str, detail: object) -> None:
        super().note(member, what, detail)
        if what in ("starts", "ends", "propose"):
            self.write(what, member)


def record(seed: int, profile: Profile) -> History:
    simulation = _Recorded(seed, profile)
    outcome = simulation.run()
    events, acknowledged = tuple(simulation.events), simulation.oracle.acknowledged
    return History(seed, simulation.size, events, profile.chaos_seconds, outcome, acknowledged)
