"""The kinds of runs. A seed picks one of `ROUTINE` by its dice; a test or a person may ask for one by name.

The first is everything at once. The others leave things out, so that what they stress happens more often, or because a
promise holds only without them: leases trust clocks, the asynchronous mode trusts that no two members fail together.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tallystick.replication.settings import RaftSettings

from .disk import ENTRY_BYTES
from .network import CALM, Weather


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of run. Times in virtual seconds; what is drawn is drawn for each run."""

    name: str
    faults: Mapping[str, int]
    """Weight of each fault. Empty: a calm run."""
    sizes: tuple[int, ...] = (1, 2, 3, 3, 3, 4, 5, 5)
    """Voters at the start, drawn."""
    most_members: int = 6
    """Numbers that members may have, from 0."""
    chaos_seconds: float = 10.0
    fault_gap_seconds: tuple[float, float] = (0.05, 0.7)
    fault_seconds: tuple[float, float] = (0.05, 2.0)
    proposal_gap_seconds: float = 0.1
    read_gap_seconds: float = 0.15
    weather: Weather = CALM
    """Of the network when no fault says otherwise."""
    clock_skew: float = 0.03
    """Clocks run between 1 - this and 1 + this times as fast as time."""
    pause: float = 0.05
    """Probability that the world continues between two effects of a member."""
    asynchronous_flush: bool = False
    """Members answer before they sync (D9)."""
    calm_but_for_room: bool = False
    """Nothing is wrong but that disks are full: what a group without room has to do is looked at (`faults`)."""
    eager_changes: bool = False
    """A membership change is requested at the moment in which a member begins to lead."""
    settings: RaftSettings = field(
        default_factory=lambda: RaftSettings(
            heartbeat_interval_seconds=0.1,
            election_timeout_seconds=0.5,
            max_append_bytes=4 * ENTRY_BYTES,
            max_inflight_bytes=12 * ENTRY_BYTES,
            append_timeout_seconds=0.3,
            install_timeout_seconds=1.0,
            promote_within_bytes=20 * ENTRY_BYTES,
            transfer_within_bytes=40 * ENTRY_BYTES,
        )
    )

    def draw(self, dice: random.Random) -> tuple[str, float]:
        """The next fault and how long it lasts."""
        (name,) = dice.choices(list(self.faults), list(self.faults.values()))
        return name, dice.uniform(*self.fault_seconds)


_NETWORK = {
    "partition": 3,
    "one way partition": 2,
    "bridge": 2,
    "dead link": 2,
    "congestion": 1,
    "stuck bulk lane": 2,
    "new connection": 1,
    "bad weather": 5,
}
_CRASHES = {"crash": 3, "crash at boundary": 8, "power cut": 1}
_SLOWNESS = {"stall": 2, "slow disk": 2}
_DAMAGE = {"bit flip": 3, "emptied disk": 1}
_PEOPLE = {"transfer": 2, "membership change": 4}

EVERYTHING = Profile(
    "everything",
    {
        **_NETWORK,
        **_CRASHES,
        **_SLOWNESS,
        **_DAMAGE,
        **_PEOPLE,
        "clock jump": 2,
        "full disk": 1,
        "low disk": 1,
        "all disks low": 1,
        "failing sync": 1,
        "log start moved": 2,
    },
)

NETWORK = Profile("network", {**_NETWORK, "minority back with a stuck lane": 6, "stall": 1, "clock jump": 1})

STORM = Profile(
    "storm",
    {
        "partition": 6,
        "one way partition": 3,
        "bad weather": 3,
        "crash": 5,
        "crash at boundary": 6,
        "power cut": 1,
        "slow disk": 2,
    },
    sizes=(2, 3, 3, 4, 5),
    fault_gap_seconds=(0.2, 0.9),
    fault_seconds=(0.4, 1.1),
)

LATE = replace(
    STORM,
    name="late",
    faults={**_NETWORK, "crash": 2, "stall": 3},
    weather=Weather(loss=0.1, duplicate=0.1, late=0.5, late_seconds=1.5),
)

DISKS = Profile(
    "disks",
    {
        **_CRASHES,
        **_DAMAGE,
        "slow disk": 2,
        "full disk": 3,
        "low disk": 2,
        "all disks low": 1,
        "all disks full": 1,
        "leader back with a full disk": 4,
        "failing sync": 3,
        "log start moved": 2,
        "bad weather": 2,
        "partition": 2,
    },
    sizes=(3, 3, 4, 5),
)

DOUBT = Profile(
    "loss",
    {**_NETWORK, "bit flip": 6, "emptied disk": 4, "emptied disk beside a sleeping leader": 12, "crash": 2, "stall": 2},
    sizes=(3, 3, 4, 5),
    fault_gap_seconds=(0.2, 1.0),
    fault_seconds=(0.3, 1.8),
)

MEMBERSHIP = Profile(
    "membership",
    {
        **_NETWORK,
        "crash": 2,
        "crash at boundary": 3,
        "membership change": 8,
        "membership change behind a partition": 8,
        "transfer": 2,
    },
    sizes=(1, 2, 3, 4, 4),
    eager_changes=True,
    fault_gap_seconds=(0.1, 0.8),
)

AMNESIA = Profile(
    "amnesia",
    {
        **_DAMAGE,
        "partition": 3,
        "bad weather": 2,
        "crash": 2,
        "bit flip": 6,
        "membership change": 10,
        "promotion then emptied disk": 6,
        "transfer": 2,
    },
    sizes=(1, 2, 2, 3, 4),
    fault_gap_seconds=(0.1, 0.7),
    fault_seconds=(0.2, 1.0),
)

BEHIND = Profile(
    "behind",
    {
        "crash": 3,
        "partition": 3,
        "log start moved": 12,
        "bad weather": 3,
        "crash at boundary": 3,
        "emptied disk": 2,
        "membership change": 3,
        "membership change behind a partition": 3,
    },
    sizes=(2, 3, 3, 5),
    proposal_gap_seconds=0.06,
)

READS = Profile(
    "reads",
    {
        **_NETWORK,
        "leader out of sight": 6,
        "stall": 6,
        "transfer": 2,
        "transfer over a dead link": 6,
    },
    sizes=(3, 3, 4, 5),
    fault_gap_seconds=(0.1, 0.6),
    fault_seconds=(0.2, 2.0),
    proposal_gap_seconds=0.3,
    read_gap_seconds=0.05,
    weather=Weather(loss=0.02, late=0.05, late_seconds=0.8),
)

LEASES = replace(
    READS,
    name="leases",
    faults={
        **_NETWORK,
        "leader out of sight": 12,
        "answers stuck on the way": 10,
        "transfer over a dead link": 8,
        "stall": 2,
    },
    fault_gap_seconds=(0.3, 1.2),
    fault_seconds=(0.5, 1.5),
    settings=replace(READS.settings, lease_reads=True, clock_drift=0.1),
)

ASYNCHRONOUS = Profile(
    "asynchronous",
    {**_NETWORK, "crash": 6, "crash at boundary": 8, "slow disk": 2},
    sizes=(3, 3, 4, 5),
    asynchronous_flush=True,
)

STEADY = Profile(
    "steady",
    {"follower out of reach": 3, "follower trouble": 3},
    sizes=(3, 3, 4, 5),
    fault_gap_seconds=(0.1, 1.0),
)

ROOM = Profile(
    "room",
    {"all disks low": 3, "leader dies on low disks": 3, "all disks full": 2},
    sizes=(1, 2, 3, 3, 4, 5),
    chaos_seconds=30.0,
    fault_gap_seconds=(8.0, 9.0),
    fault_seconds=(5.6, 7.0),
    calm_but_for_room=True,
)

PEACE = Profile("peace", {"transfer": 1}, fault_gap_seconds=(1.0, 2.0))

PREFERENCE = replace(
    NETWORK,
    name="preference",
    sizes=(2, 3, 3, 4),
    fault_gap_seconds=(0.3, 1.5),
    settings=replace(NETWORK.settings, preferred_leader=1, preferred_after_seconds=0.3, preferred_retry_seconds=1.0),
)

ROUTINE = (
    *(EVERYTHING,) * 5,
    *(NETWORK, LATE, STORM, STORM),
    *(DISKS, DOUBT, AMNESIA, BEHIND, ASYNCHRONOUS),
    *(MEMBERSHIP, MEMBERSHIP, READS, LEASES),
    *(STEADY, PREFERENCE, PEACE, ROOM),
)

PROFILES = {profile.name: profile for profile in ROUTINE}
