"""The Raft simulator as a detector: `python -m mutants.simulate PROFILE SEEDS`. Exit code 1: a run broke an invariant.

It stops at the first broken one. A run that ends in an exception proves nothing by itself (the bug might make no
sense), so the search continues then; exit code 2 says that there was nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "replication"))

from simulator.profiles import PROFILES
from simulator.simulation import Simulation


def main(profile: str, seeds: int) -> int:
    exceptions = 0
    for seed in range(seeds):
        outcome = Simulation(seed, PROFILES[profile]).run()
        if outcome.invariant == "no exception":
            exceptions += 1
        elif outcome.invariant is not None:
            print(f"FAILED seed {seed} of {profile} - {outcome.violation}")
            return 1
    print(f"{seeds} seeds of {profile}, {exceptions} exceptions, no broken invariant")
    return 2 if exceptions else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
