"""`python -m simulation --first 0 --seeds 1000`: many runs. Exit code 1: a run broke a rule.

The last line says how many seeds and steps there were, which faults were injected, and how many violations were found.
Each violation prints its seed, the rule, the last lines of its trace, and the command that replays it in full.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial

if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what a seed decides
    os.environ.update(PYTHONHASHSEED="0", TZ="UTC")
    os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])

from simulation import patches

patches.install()

from simulation.mutations import BY_NAME, plant  # noqa: E402
from simulation.profiles import PROFILES  # noqa: E402
from simulation.simulation import Outcome, Simulation  # noqa: E402


def run_seed(seed: int, profile: str | None = None, *, twice: bool = False) -> Outcome:
    """One run; `twice`: and again, to compare the two."""
    chosen = None if profile is None else PROFILES[profile]
    outcome = Simulation(seed, chosen).run()
    if twice:
        again = Simulation(seed, chosen).run()
        if (again.digest, again.steps) != (outcome.digest, outcome.steps):
            outcome.violation = f"D1: two runs of this seed differ, {outcome.steps} and {again.steps} steps"
    return outcome


def outcomes(seeds: range, jobs: int, profile: str | None, *, twice: bool) -> Iterator[Outcome]:
    """As they come; in this process if there is to be only one."""
    run = partial(run_seed, profile=profile, twice=twice)
    if jobs == 1:
        yield from map(run, seeds)
    else:
        with multiprocessing.Pool(jobs) as pool:
            yield from pool.imap_unordered(run, seeds, chunksize=4)


def report(outcome: Outcome, profile: str | None, *, lines: int = 40) -> str:
    """A violation, for people; `profile`: the one that was asked for."""
    asked = f" PROFILE={profile}" if profile else ""
    shown = outcome.trace[-lines:]
    return "\n".join(
        (
            f"seed {outcome.seed} ({outcome.profile}): {outcome.violation}",
            *(f"  {line}" for line in shown),
            f"replay: make simulate-node FIRST={outcome.seed} SEEDS=1 VERBOSE=1{asked}",
            "",
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds (1000)")
    parser.add_argument(
        "--profile", choices=sorted(PROFILES), help="profile of all runs; without it the seed selects one"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes (all cores)")
    parser.add_argument(
        "--verbose", action="store_true", help="print the whole trace of each run; runs in this process"
    )
    parser.add_argument("--check-determinism", action="store_true", help="run each seed twice; both runs must be equal")
    parser.add_argument("--mutation", choices=sorted(BY_NAME), help="plant this bug in the product")
    parser.add_argument("--until-found", action="store_true", help="stop at the first violation")
    options = parser.parse_args()
    gc.collect()
    gc.freeze()  # a run ends with a collection: it need not look at the modules
    if options.mutation:
        plant(BY_NAME[options.mutation])
    seeds = range(options.first, options.first + options.seeds)
    if options.verbose:
        return _replay(seeds, options.profile)
    begin = patches.real_seconds()
    faults: Counter[str] = Counter()
    steps = acknowledged = read = violations = ran = 0
    virtual = 0.0
    for outcome in outcomes(seeds, options.jobs, options.profile, twice=options.check_determinism):
        ran += 1
        faults += outcome.faults
        steps += outcome.steps
        acknowledged += outcome.acknowledged
        read += outcome.read
        virtual += outcome.virtual_s
        if outcome.violation is not None:
            violations += 1
            print(report(outcome, options.profile), flush=True)
            if options.until_found:
                break
    spent = patches.real_seconds() - begin
    print(f"{spent:.0f} s for {virtual:.0f} virtual ones, {acknowledged} messages acknowledged, {read} read")
    injected = ", ".join(f"{name} {count}" for name, count in sorted(faults.items()))
    print(f"{ran} seeds, {steps} steps, faults injected: {injected or 'none'}; {violations} violations")
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
