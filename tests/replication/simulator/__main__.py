"""`python -m simulator --first 0 --seeds 10000`: many runs on all cores. Exit code 1: a run broke an invariant.

The last line says how many seeds and steps there were, what was injected, and how many violations were found. Each
violation prints its seed, the invariant, the last steps before it, and the command that replays it in full.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from functools import partial

from .profiles import PROFILES
from .simulation import Outcome, Simulation


def run_seed(seed: int, profile: str | None = None) -> Outcome:
    return Simulation(seed, None if profile is None else PROFILES[profile]).run()


def report(outcome: Outcome, profile: str | None) -> str:
    """A violation, for people; `profile`: the one that was asked for, None if the seed chose it."""
    asked = f" PROFILE={profile}" if profile else ""
    return "\n".join(
        (
            f"seed {outcome.seed} ({outcome.profile}): {outcome.violation}",
            f"the last {len(outcome.trace)} of {outcome.steps} steps:",
            *(f"  {line}" for line in outcome.trace),
            f"replay: make simulate FIRST={outcome.seed} SEEDS=1 VERBOSE=1{asked}",
            "",
        )
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--profile", choices=sorted(PROFILES), help="instead of the one that a seed picks")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="every step of every run, in this process")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    if options.verbose:
        return _replay(seeds, options.profile)
    faults: Counter[str] = Counter()
    steps = violations = committed = leaders = 0
    begin = time.perf_counter()
    with multiprocessing.Pool(options.processes) as pool:
        for outcome in pool.imap_unordered(partial(run_seed, profile=options.profile), seeds, chunksize=8):
            faults += outcome.faults
            steps += outcome.steps
            committed += outcome.committed
            leaders += outcome.elections
            if outcome.violation is not None:
                violations += 1
                print(report(outcome, options.profile), flush=True)
    print(f"{time.perf_counter() - begin:.0f} s, {leaders} elections, {committed} entries committed")
    injected = ", ".join(f"{name} {count}" for name, count in sorted(faults.items()))
    print(f"{len(seeds)} seeds, {steps} steps, faults injected: {injected or 'none'}; {violations} violations")
    return 1 if violations else 0


def _replay(seeds: range, profile: str | None) -> int:
    broken = 0
    for seed in seeds:
        print(f"seed {seed}")
        outcome = Simulation(seed, None if profile is None else PROFILES[profile], listener=print).run()
        print(outcome.violation or "no violation")
        broken += outcome.violation is not None
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
