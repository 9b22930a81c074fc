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
from collections.abc import Iterable, Iterator
from functools import partial

from .profiles import PROFILES
from .simulation import Outcome, Simulation


def run_seed(seed: int, profile: str | None = None) -> Outcome:
    return Simulation(seed, None if profile is None else PROFILES[profile]).run()


def outcomes(seeds: Iterable[int], profile: str | None, processes: int) -> Iterator[Outcome]:
    """As they come; in this process if there is to be only one."""
    run = partial(run_seed, profile=profile)
    if processes == 1:
        yield from map(run, seeds)
    else:
        with multiprocessing.Pool(processes) as pool:
            yield from pool.imap_unordered(run, seeds, chunksize=8)


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
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds (1000)")
    parser.add_argument(
        "--profile", choices=sorted(PROFILES), help="profile of all runs; without it the seed selects one"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="number of processes (all cores)")
    parser.add_argument("--verbose", action="store_true", help="print every step of every run; runs in this process")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    if options.verbose:
        return _replay(seeds, options.profile)
    faults: Counter[str] = Counter()
    steps = violations = committed = elections = 0
    begin = time.perf_counter()
    for outcome in outcomes(seeds, options.profile, options.processes):
        faults += outcome.faults
        steps += outcome.steps
        committed += outcome.committed
        elections += outcome.elections
        if outcome.violation is not None:
            violations += 1
            print(report(outcome, options.profile), flush=True)
    print(f"{time.perf_counter() - begin:.0f} s, {elections} elections, {committed} entries committed")
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
