"""`make attacks`: runs attacks on real processes, one after the other: faults, accidents and administration.

    python e2e/attack.py --only clock
    python e2e/attack.py --only delayed --scale 0.05      a twentieth of the size, to try the attack itself

Each attack starts processes on free ports in a separate folder, disturbs them, and checks the guarantees: acknowledged
messages are there, each delayed message arrives once, processes exit in order, probes are answered. Figures (rates,
times, memory) are printed and do not affect the result. `--json FILE` writes them to a file.

Exit status: 0 all guarantees held, 1 one did not, 2 an attack could not run. Folders of failed attacks stay in
build/e2e.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from attacks import (
    abuses,
    backlog,
    clock,
    collisions,
    configs,
    delayed,
    drift,
    endings,
    figures,
    filters,
    folders,
    indexes,
    makers,
    repairs,
    starving,
    strangers,
    topics,
    wrongs,
)
from attacks.arena import Arena, SkippedError
from lab.places import work_folder
from lab.processes import end_on_signals

Attack = Callable[[Arena], Coroutine[Any, Any, None]]

ATTACKS: dict[str, Attack] = {
    "clock": clock.run,
    "endings": endings.run,
    "folders": folders.run,
    "starving": starving.run,
    "topics": topics.run,
    "delayed": delayed.run,
    "backlog": backlog.run,
    "limited": backlog.run_limited,
    "configs": configs.run,
    "collisions": collisions.run,
    "filters": filters.run,
    "drift": drift.run,
    "figures": figures.run,
    "makers": makers.run,
    "repairs": repairs.run,
    "indexes": indexes.run,
    "wrongs": wrongs.run,
    "strangers": strangers.run,
    "abuses": abuses.run,
}


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line. SystemExit(2): it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default=os.environ.get("ONLY") or "", help=f"attacks, separated by commas: {', '.join(ATTACKS)}"
    )
    parser.add_argument(
        "--scale", type=float, default=float(os.environ.get("SCALE") or 1.0), help="factor for sizes and times (1.0)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    options = parser.parse_args(arguments)
    options.names = options.only.split(",") if options.only else list(ATTACKS)
    if unknown := set(options.names) - set(ATTACKS):
        parser.error(f"unknown attack: {', '.join(sorted(unknown))}")
    return options


def attack(name: str, scale: float) -> tuple[int, dict[str, Any]]:
    """One attack, from begin to end: its exit status and its report."""
    with work_folder(f"attack-{name}-", "stores and logs") as work:
        arena = Arena(name, work.path, scale)
        skipped = ""
        try:
            asyncio.run(ATTACKS[name](arena))
            work.status = 1 if arena.problems.count else 0
        except SkippedError as error:
            skipped, work.status = str(error), 0
        except Exception as error:
            traceback.print_exc()
            arena.problems.add(f"{name}: ended early: {type(error).__name__}: {error}")
            work.status = 1
    report = {"figures": arena.figures, "problems": arena.problems.lines(), "skipped": skipped}
    return (2 if skipped else work.status), report


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    end_on_signals()
    reports = {}
    statuses = []
    for name in options.names:
        status, reports[name] = attack(name, options.scale)
        statuses.append(status)
    for name, report in reports.items():
        for figure, value in report["figures"].items():
            print(f"{name:10} {figure}: {value}")
        for line in report["problems"]:
            print(f"PROBLEM {line}")
        if report["skipped"]:
            print(f"SKIPPED {name}: {report['skipped']}")
    if options.json:
        Path(options.json).write_text(json.dumps(reports, indent=1) + "\n")
    return 1 if 1 in statuses else max(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
