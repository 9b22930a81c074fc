"""Kinds of runs. Each seed draws its own settings, habits and faults from what its profile allows (swarm testing)."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from simulation import network, workload
from simulation.cluster import Shape

CRASHES = ("stop", "kill", "kill at an event", "kill at a disk call", "power loss", "settings", "stranger")
NETWORK = ("partition", "slow link", "reset")
DISKS = ("slow disk", "disk error", "disk full")


@dataclass(frozen=True)
class Profile:
    """`shapes`: which clusters there are. `flush`: modes of flushing. `rot`: which files rot, beside the faults."""

    name: str
    shapes: tuple[Shape, ...]
    flush: tuple[str, ...] = ("SYNC_FLUSH",)
    faults: tuple[str, ...] = CRASHES
    rot: tuple[str, ...] = ()
    fixed: dict[str, str] = field(default_factory=dict)
    timer: float = 0.0
    """How many messages ask for a time."""
    chosen: bool = True
    """Seeds pick it. False: only its name does, so that the seeds of earlier reports stay what they were."""

    def shape(self, dice: Random) -> Shape:
        """The nodes of one run."""
        return dice.choice(self.shapes)

    def settings(self, dice: Random) -> dict[str, str]:
        """Of all brokers of one run."""
        return {
            "flushDiskType": dice.choice(self.flush),
            "defaultTopicQueueNums": "4",
            "cleanFileForciblyEnable": dice.choice(("true", "false")),
            "flushConsumeQueueThoroughInterval": dice.choice(("2000", "60000")),
            **self.fixed,
        }

    def draw_faults(self, dice: Random) -> list[str]:
        """A run has some of them only: rare ones meet each other then."""
        chosen = [kind for kind in self.faults if dice.random() < 0.5]
        return chosen or [dice.choice(self.faults)]

    def network(self, dice: Random) -> network.Habits:
        """How links behave when nothing is wrong with them."""
        return network.Habits(split=dice.choice((0.0, 0.05, 0.5)), latency_s=dice.choice((0.0001, 0.001, 0.02)))

    def clients(self, dice: Random) -> workload.Habits:
        """What is asked of the brokers."""
        return workload.Habits(
            producers=dice.randrange(1, 4),
            consumers=dice.randrange(0, 3),
            topics=dice.choice((1, 3, 10)),
            new_topic=dice.choice((0.0, 0.02, 0.3)),
            pause_s=dice.choice((0.01, 0.05, 0.5)),
            messages=dice.choice((10, 50, 200)),
            batch=dice.choice((0.0, 0.05)),
            transaction=dice.choice((0.0, 0.05)),
            delay=dice.choice((0.0, 0.0, 0.05)),
            commits=dice.choice((0.0, 0.3)),
            resets=dice.choice((0.0, 0.3)),
            ordered=dice.choice((0, 0, 2)),
            timer=self.timer,
            admin_pause_s=dice.choice((0.2, 2.0, 20.0)),
        )


_ALONE = (Shape(plain=1),)
_GROUPS = (Shape(plain=0, groups=(3,)), Shape(plain=0, groups=(3,), names=1), Shape(plain=0, groups=(1,)))
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("sync", _ALONE, faults=(*CRASHES, "reset", "clock jump")),
        Profile("power", _ALONE, faults=("power loss", "kill at a disk call")),
        Profile("async", _ALONE, flush=("ASYNC_FLUSH",), faults=(*CRASHES, "clock jump")),
        Profile("disks", _ALONE, flush=("SYNC_FLUSH",), faults=(*CRASHES, *DISKS)),
        Profile(
            "rot",
            _ALONE,
            faults=("rot", "rot", "stop", "kill", "power loss"),
            rot=("derived", "marks", "log"),
        ),
        Profile(
            "group-rot",
            (Shape(plain=0, groups=(3,)),),
            faults=("rot", "rot", "stop", "kill", "power loss"),
            rot=("derived", "marks", "log", "tables"),
        ),
        Profile("table-rot", _ALONE, faults=("rot", "stop", "kill"), rot=("tables",)),
        Profile(
            "timers",
            _ALONE,
            faults=(*CRASHES, *DISKS, "reset", "clock jump"),
            fixed={"recallMessageEnable": "true"},
            timer=0.4,
            chosen=False,
        ),
        Profile(
            "group-timers",
            _GROUPS,
            faults=(*CRASHES, *NETWORK, "slow disk", "clock jump"),
            fixed={"recallMessageEnable": "true"},
            timer=0.4,
            chosen=False,
        ),
        Profile("group", _GROUPS, faults=(*CRASHES, *NETWORK, "slow disk", "clock jump")),
    )
}


def of_seed(dice: Random) -> Profile:
    """The profile that a seed picks."""
    return PROFILES[dice.choice(sorted(name for name, profile in PROFILES.items() if profile.chosen))]
