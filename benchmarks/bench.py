"""`make bench`: measures our broker and RocketMQ 4.8.0 side by side, in turns under the same load.

    python benchmarks/bench.py                         all rows, 5 turns: about half an hour
    python benchmarks/bench.py --quick                 fewer, shorter turns, no long rows
    python benchmarks/bench.py --rows 'sync-*,pull-1'
    python benchmarks/bench.py --null --rows 'async-*' RocketMQ against itself: the noise of the ratios on this machine

Exit status: 0 all rows are above their floors, 1 a row is below its floor or void, 2 the measurement failed, 130
interrupted. Progress goes to standard error; the table, and with --json one object on the last line, to standard
output.
"""

import argparse
import fcntl
import itertools
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import certificate, chart, interrupts, load, memory, report
from harness.children import ChildError
from harness.control import ControlError
from harness.groups import OurGroup, PeerGroup
from harness.measure import Measurer, Plan
from harness.rows import LINES, Layout, Metric, Produce, RowError, Run, select
from harness.sides import OurSide, PeerSide, Side
from harness.third_side import RustSide
from harness.verdict import Result, Turn, Verdict, judge

ROOT = Path(__file__).resolve().parent.parent


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line. SystemExit(2): it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="names of rows, separated by commas; * is a wildcard")
    parser.add_argument("--list", action="store_true", help="list the rows and exit")
    parser.add_argument("--quick", action="store_true", help="2 turns of 2 s, no long rows")
    parser.add_argument("--turns", type=int, help="turns per row (5)")
    parser.add_argument("--seconds", type=float, help="measured seconds per turn (3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to this document")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="write the bar chart to this file")
    parser.add_argument("--tally", type=Path, default=ROOT / ".venv" / "bin" / "tally", help="command of our broker")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of our broker")
    shared = Path(os.environ.get("TALLYSTICK_SHARED", ROOT.parent / "shared"))
    parser.add_argument("--peer", type=Path, default=shared / "peer", help="folder of the peer lab (peer.sh)")
    parser.add_argument("--no-peer", action="store_true", help="measure only our broker, without ratios")
    parser.add_argument("--rust", type=Path, metavar="FOLDER", help="measure rocketmq-rust as well: see third_side.py")
    parser.add_argument("--no-fill", action="store_true", help="do not keep the memory full of page cache")
    parser.add_argument("--null", action="store_true", help="RocketMQ on both sides")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "bench", help="folder for stores and logs")
    parser.add_argument("--port-base", type=int, default=21000, help="first of 200 ports (below 32768)")
    options = parser.parse_args(arguments)
    if not 1024 < options.port_base < 32568:
        parser.error("--port-base: between 1025 and 32567, higher ports are the clients'")
    if options.null and options.no_peer:
        parser.error("--null and --no-peer exclude each other")
    if options.turns is not None and options.turns < 1:
        parser.error("--turns: 1 or more")
    return options


def machine(options: argparse.Namespace, plan: Plan, turns: int) -> dict[str, Any]:
    """Returns the conditions of the measurement."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "processors": os.cpu_count(),
        "memory_GiB": round(memory / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "turns": turns,
        "seconds": plan.seconds,
        "quick": plan.quick,
        "sides": "RocketMQ twice" if options.null else "ours" if options.no_peer else "ours and RocketMQ",
    }


def progress(run: Run, number: int, of: int, turn: Turn) -> None:
    """One line a turn on standard error."""
    figures = ", ".join(
        f"{metric.heading} {report.quantity(metric, value)}"
        for metric, value in turn.values.items()
        if metric is not Metric.LAG
    )
    state = f"VOID: {turn.void}" if turn.void else figures
    print(
        f"{run.name:16} {number}/{of} {turn.side:5} {state}; foreign {turn.foreign_cores:.2f}",
        file=sys.stderr,
        flush=True,
    )


def takes_part(side: Side, run: Run) -> bool:
    """Whether this side is measured under this load."""
    if isinstance(side, RustSide):
        return side.takes_part(run)
    return side.name == "ours" or not run.ours_only


def measure_all(runs: list[Run], sides: Mapping[Layout, list[Side]], measurer: Measurer, turns: int) -> Iterator[Turn]:
    """Runs all turns of all runs. The sides alternate in going first."""
    for run in runs:
        for layout, idle in sides.items():
            if layout != run.layout:
                stop_all(idle)  # a side that is not measured must not use memory
        count = min(turns, run.max_turns or turns)
        taking_part = [side for side in sides[run.layout] if takes_part(side, run)]
        for number in range(count):
            for side in taking_part if number % 2 == 0 else reversed(taking_part):
                turn = measurer.turn(run, side)
                progress(run, number + 1, count, turn)
                yield turn


@contextmanager
def exclusive(work: Path) -> Iterator[None]:
    """Locks the work folder. ChildError: another benchmark uses it."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ChildError(f"another benchmark works in {work}") from error
        yield


def stop_all(sides: list[Side]) -> None:
    """Stops both sides in any case, and reports what did not stop."""
    for side in sides:
        try:
            side.stop()
        except (ChildError, OSError) as error:
            print(f"bench: {side.name} did not stop: {error}", file=sys.stderr)


def bench(options: argparse.Namespace) -> int:
    """Measures and prints the result. ChildError, ControlError, RowError: the measurement failed."""
    runs = select([name.strip() for name in options.rows.split(",") if name.strip()], quick=options.quick)
    plan = Plan(
        seconds=options.seconds or (2.0 if options.quick else 3.0),
        quick=options.quick,
        pull_messages=100_000 if options.quick else 400_000,
    )
    turns_wanted = options.turns or (2 if options.quick else 5)
    work = options.work.resolve()
    about = machine(options, plan, turns_wanted)
    turns: list[Turn] = []
    with exclusive(work):
        load.build()
        tls = certificate.make(work) if any(isinstance(run, Produce) and run.tls for run in runs) else None
        java_options = "" if tls is None else tls.java_options()
        settings = (*options.set, *(() if tls is None else tls.settings()))
        filler = None if options.quick or options.no_peer or options.no_fill else memory.Filler(work)
        peer = None if options.no_peer else PeerSide(work, options.port_base, options.peer, java_options=java_options)
        ours: Side
        if options.null:
            ours = PeerSide(work, options.port_base - 100, options.peer, name="ours", java_options=java_options)
        else:
            ours = OurSide(work, options.port_base, options.tally, settings)
        group: list[Side] = [OurGroup(work, options.port_base, options.tally, tuple(options.set))]
        if peer is not None:
            group.append(PeerGroup(work / "group", options.port_base, options.peer))
        sides: dict[Layout, list[Side]] = {"single": [ours] if peer is None else [ours, peer], "group": group}
        if options.rust is not None:
            sides["single"].append(RustSide(work, options.port_base, options.rust.resolve()))
        began = time.monotonic()
        try:
            turns.extend(measure_all(runs, sides, Measurer(plan, work, peer, donor=ours, filler=filler), turns_wanted))
        finally:
            interrupts.ignore()
            for pair in sides.values():
                stop_all(pair)
            if filler is not None:
                filler.remove()
        about["minutes"] = round((time.monotonic() - began) / 60, 1)
        results = [result for line in LINES if (result := judge(line, turns)) is not None]
        shutil.rmtree(work / "recover", ignore_errors=True)
        for side in itertools.chain(*sides.values()):
            shutil.rmtree(side.store, ignore_errors=True)
    publish(options, results, turns, about)
    wrong = {Verdict.BELOW, Verdict.VOID}
    return 1 if any(result.verdict in wrong for result in results) else 0


def publish(options: argparse.Namespace, results: list[Result], turns: list[Turn], about: dict[str, Any]) -> None:
    """The table to standard output, and the files and the object that were asked for."""
    print(report.text_table(results))
    for remark in report.remarks(results):
        print(f"  {remark}")
    if options.chart is not None:
        caption = f"medians of {about['turns']} turns, {about['processors']} processors, log scale"
        options.chart.write_text(chart.svg(results, caption))
    if options.markdown is not None:
        document = options.markdown.read_text() if options.markdown.exists() else ""
        image = None
        if options.chart is not None:
            image = os.path.relpath(options.chart.resolve(), options.markdown.resolve().parent)
        options.markdown.write_text(report.into_document(document, report.markdown(results, about, image)))
    if options.json:
        print(json.dumps(report.json_object(results, turns, about)))
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Parse, measure, print; see the module for the exit status."""
    options = parse(arguments)
    if options.list:
        print("\n".join(run.name for run in select([], quick=False)))
        return 0
    interrupts.install()
    try:
        return bench(options)
    except interrupts.Interrupted:
        print("bench: interrupted, everything is stopped", file=sys.stderr)
        return 130
    except (ChildError, ControlError, RowError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
