"""`python -m mutants`: plants the bugs of the catalogue one at a time.

Before the bugs come a canary in each private copy, and every detector once without a bug. Kernel bugs all go to the
first worker, so that one folder of compiled code serves them.

Exit codes: 0: each bug was found, or survived for the reason in its entry. 1: one survived without a reason, was found
although it has one, or could not be tried. 2: no bug has such a name or part. 130, 143: interrupted; the table has what
was tried until then.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from . import report, warm
from .catalogue import PLANTED, ROOT, Detector, Edit, Mutant, load, problems
from .detectors import Verdict, build, end_all, judged, run, try_mutant
from .private_copy import PrivateCopy
from .times import Times, minutes

_CANARY = Mutant(
    "canary",
    "properties are separated by another byte",
    (Edit("client/wire/properties.py", 'PROPERTY_SEPARATOR = "\\x02"', 'PROPERTY_SEPARATOR = "\\x03"'),),
    Detector(pytest=("tests/store/test_properties.py::test_a_stored_text",)),
    60.0,
)


class RunError(Exception):
    """The run cannot go on: a canary was not seen, or a detector fails without a bug."""


class Run:
    """Workers with a private copy each, and what they have found out so far."""

    def __init__(self, mutants: list[Mutant], folder: Path, jobs: int) -> None:
        self.mutants = mutants
        self.times = Times(folder)
        self.jobs = min(jobs, len(mutants))
        self._tried: list[report.Tried] = []
        self._folder = folder
        self._in_kernel: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
        self._others: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        for mutant in mutants:
            (self._in_kernel if mutant.in_kernel else self._others).put(mutant)

    @property
    def tried(self) -> list[report.Tried]:
        """The results so far, in the catalogue's order."""
        order = {mutant.name: place for place, mutant in enumerate(self.mutants)}
        return sorted(self._tried, key=lambda each: order[each[0].name])

    def run(self) -> None:
        """Tries all bugs, `jobs` at a time."""
        threads = [threading.Thread(target=self._guarded, args=(number, self.jobs)) for number in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _guarded(self, number: int, count: int) -> None:
        try:
            self._work(number, count)
        except BaseException as error:
            self._errors.append(error)

    def _work(self, number: int, count: int) -> None:
        copy = PrivateCopy(self._folder / str(number))
        copy.make()
        try:
            _see_the_canary(copy)
            _baseline(copy, self.mutants, number, count)
            for jobs in (self._in_kernel, self._others) if number == 0 else (self._others,):
                self._drain(copy, jobs)
        finally:
            copy.remove()

    def _drain(self, copy: PrivateCopy, jobs: queue.SimpleQueue[Mutant]) -> None:
        while not self._errors:
            try:
                mutant = jobs.get_nowait()
            except queue.Empty:
                return
            result = try_mutant(copy, mutant)
            with self._lock:
                self._tried.append((mutant, result))
                self.times.note(mutant, result.seconds)
                print(f"{self._progress():>22}  {report.line(mutant, result)}", flush=True)

    def _progress(self) -> str:
        done = {mutant.name for mutant, _ in self._tried}
        left = self.times.left([mutant for mutant in self.mutants if mutant.name not in done], self.jobs)
        return f"{len(done)}/{len(self.mutants)}, {minutes(left)} left"


def _see_the_canary(copy: PrivateCopy) -> None:
    """A process in the copy, and one that it starts, import the copy's code; a bug planted there is noticed."""
    program = (
        "import sys, subprocess; from tallystick.store import _kernel; "
        "from tallystick.store.formats import properties; "
        "from tallystick.node import cli; "
        "from tallystick.replication import raft; from tallystick.operator.clusters import quorum; "
        "print(*(module.__file__ for module in (_kernel, properties, cli, raft, quorum)), sep='\\n', flush=True); "
        "again = [sys.executable, *sys.orig_argv[1:-1], 'last']; "
        "sys.exit(subprocess.run(again).returncode if sys.argv[1:] == ['first'] else 0)"
    )
    shown = subprocess.run(
        [copy.python, "-c", program, "first"],
        cwd=copy.temporary,
        env=copy.environment(),
        capture_output=True,
        text=True,
    )
    files = shown.stdout.split()
    if shown.returncode != 0 or len(files) != 10 or not all(Path(file).is_relative_to(copy.tree) for file in files):
        raise RunError(f"the private copy is not what is imported: {shown.stdout}{shown.stderr}")
    without = judged(_CANARY.detector, run(copy, _CANARY.detector, _CANARY.timeout_s))
    with_it = try_mutant(copy, _CANARY)
    if without[0] is not Verdict.SURVIVED or with_it.verdict is not Verdict.FOUND:
        raise RunError(f"a bug in the private copy is not seen by the tests: {without}, {with_it}")


def _baseline(copy: PrivateCopy, mutants: list[Mutant], number: int, count: int) -> None:
    """Every detector once without a bug; the workers share them out, the kernel's are the first worker's."""
    kernel = [mutant.detector for mutant in mutants if mutant.in_kernel] if number == 0 else []
    others = {mutant.part: None for mutant in mutants if not mutant.in_kernel}
    mine = [part for place, part in enumerate(others) if place % count == number]
    groups = [kernel] + [
        [each.detector for each in mutants if each.part == part and not each.in_kernel] for part in mine
    ]
    for detectors in filter(None, groups):
        for detector in _merged(detectors):
            failed = build(copy, detector) if detectors is kernel else ""
            verdict, told = (Verdict.INVALID, failed) if failed else judged(detector, run(copy, detector, 900.0, False))
            if verdict is not Verdict.SURVIVED:
                raise RunError(f"without a bug, {detector} says: {told}")
            print(f"sound: {detector}", flush=True)
        if detectors is kernel:
            copy.restore_extension()


def _merged(detectors: list[Detector]) -> list[Detector]:
    """As few runs as possible: one of pytest, one for each filter of cargo and each profile of the simulator."""
    arguments = tuple(sorted({argument for each in detectors for argument in each.pytest}))
    # A file contains its own tests: naming both would run these twice.
    arguments = tuple(each for each in arguments if "::" not in each or each.split("::")[0] not in arguments)
    seeds: dict[str, int] = {}
    for each in detectors:
        if each.simulate:
            seeds[each.simulate] = min(max(seeds.get(each.simulate, 0), each.seeds), 60)
    return [
        *([Detector(pytest=arguments)] if arguments else []),
        *(Detector(cargo=name) for name in sorted({each.cargo for each in detectors} - {""})),
        *(Detector(simulate=profile, seeds=count) for profile, count in seeds.items()),
    ]


def _chosen(parts: str, only: str, planted: Path) -> list[Mutant]:
    """The bugs of these parts with one of these texts in their names; a text may also be the name of a part."""
    mutants = load(planted)
    known = {each.part for each in mutants}
    wanted = {word.strip() for word in parts.split(",") if word.strip()}
    if wanted - known:
        print(f"no such part: {', '.join(sorted(wanted - known))}; there are {', '.join(sorted(known))}")
        return []
    words = [word.strip() for word in only.split(",") if word.strip()]
    return [
        each
        for each in mutants
        if (not wanted or each.part in wanted)
        and (not words or any(word == each.part if word in known else word in each.name for word in words))
    ]


def _summary(run: Run, began_s: float) -> list[str]:
    """Prints the table of what was tried, and what fails the run; returns the latter."""
    tried = run.tried
    print(f"\n{report.table(tried, time.monotonic() - began_s)}")
    failures = report.failures(tried)
    print(*failures, sep="\n", flush=True)
    return failures


def _call_off_on_signals(run: Run, began_s: float) -> None:
    """Detectors run in sessions of their own, so that a signal to this process does not reach them by itself."""

    def called_off(number: int, frame: object) -> None:
        end_all()
        warm.end_all()
        print(f"\ninterrupted: {len(run.tried)} of {len(run.mutants)} bugs were tried")
        _summary(run, began_s)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, called_off)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--part", default="", help="parts, separated by commas")
    parser.add_argument("--only", default="", help="parts, or parts of the names of bugs, separated by commas")
    parser.add_argument("--shard", default="1/1", help="the share N/M of the bugs (1/1)")
    parser.add_argument("--jobs", type=int, default=2, help="number of copies of the tree in use at the same time (2)")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "mutants", help="folder for the copies of the tree"
    )
    parser.add_argument("--planted", type=Path, default=PLANTED, help="folder of another catalogue")
    parser.add_argument("--list", action="store_true", help="list the bugs; run nothing")
    return parser.parse_args()


def main() -> int:
    options = _options()
    number, count = (int(word) for word in options.shard.split("/"))
    mutants = _chosen(options.part, options.only, options.planted)[number - 1 :: count]
    if not mutants:
        print("no bug was chosen; --list shows all")
        return 2
    run = Run(mutants, options.folder.resolve(), options.jobs)
    estimate = f"{len(mutants)} bugs, about {minutes(run.times.whole(mutants, run.jobs))} with {run.jobs} at a time"
    if options.list:
        print(*(f"{each.part}: {each.name}: {each.detector}" for each in mutants), estimate, sep="\n")
        return 0
    wrong = [f"{mutant.name}: {problem}" for mutant in mutants for problem in problems(mutant)]
    if wrong:
        print(*wrong, sep="\n")
        return 1
    print(estimate, flush=True)
    began_s = time.monotonic()
    _call_off_on_signals(run, began_s)
    try:
        run.run()
    except RunError as error:
        print(error)
        return 1
    return 1 if _summary(run, began_s) else 0


if __name__ == "__main__":
    sys.exit(main())
