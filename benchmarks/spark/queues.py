"""`make bench-queues`: what an audit and a check of a store cost per record, with many queues and with few.

    plan      the bound of the store and its splits
    audit     `tally-job audit --master none`
    verify    `tally store verify`

All stores have a log of the same size, with the same kind of records, spread over their queues. The work runs in this
process, in one thread, on warm pages; the figures are CPU seconds. The stores take turns, and a ratio is the median of
the turns' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from logs import QUEUES_A_TOPIC, derive, make_log, topics_of

from tallystick.spark.jobs import audit
from tallystick.spark.options import ReadOptions
from tallystick.spark.runner import inline
from tallystick.spark.splits import plan
from tallystick.spark.volume import open_volume
from tallystick.store.formats.segment_files import data_ranges
from tallystick.store.verify.report import verify

MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(
        description="The cost per record of an audit and a check, by the number of queues."
    )
    parser.add_argument("--mib", type=int, default=512, help="size of each log, a multiple of 128 (512)")
    parser.add_argument(
        "--queues", type=int, nargs="+", default=[32, 10_000], help="the first one is the unit (32 10000)"
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ledger", action="store_true", help="logs in dledger's layout")
    parser.add_argument("--folder", type=Path, help="where the stores are made (the temporary folder)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if any(queues % QUEUES_A_TOPIC for queues in options.queues):
        parser.error(f"the number of queues must be a multiple of {QUEUES_A_TOPIC}")
    with tempfile.TemporaryDirectory(prefix="tally-bench-queues-", dir=options.folder) as folder:
        result = measure(Path(folder), options)
    print(json.dumps(result) if options.json else text_of(result))
    return 0


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    segment_bytes = min(options.mib, 128) * MIB  # one split each
    records = {}
    for queues in options.queues:
        root = folder / str(queues)
        topics = topics_of(queues)
        records[queues] = make_log(root, options.mib * MIB, segment_bytes, topics=topics, ledger=options.ledger)
        derive(root, segment_bytes, ledger=options.ledger)
    rows = []
    for name, work in (("plan", planned), ("audit", audited), ("verify", verified)):
        seconds: dict[int, list[float]] = {queues: [] for queues in options.queues}
        for turn in range(options.turns + 1):
            for queues, taken in seconds.items():
                warm(folder / str(queues))
                began = time.process_time()
                work(folder / str(queues))
                if turn:  # the first one loads modules
                    taken.append(time.process_time() - began)
        each = {queues: [1e6 * second / records[queues] for second in taken] for queues, taken in seconds.items()}
        unit = each[options.queues[0]]
        rows += [
            {
                "work": name,
                "queues": queues,
                "seconds": statistics.median(seconds[queues]),
                "us_a_record": statistics.median(taken),
                "ratio": statistics.median(here / there for here, there in zip(taken, unit, strict=True)),
            }
            for queues, taken in each.items()
        ]
    return {"mib": options.mib, "ledger": options.ledger, "turns": options.turns, "records": records, "rows": rows}


def warm(root: Path) -> None:
    """Reads all files, without their holes. The work itself leaves no page of a queue in memory that was not there."""
    for path in root.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                for begin, end in data_ranges(path, 0):
                    for at in range(begin, end, MIB):
                        os.pread(file.fileno(), min(MIB, end - at), at)


def planned(root: Path) -> None:
    plan(open_volume(root, "n"))


def audited(root: Path) -> None:
    summary = audit.run(ReadOptions.parse({"path": f"n={root}"}), inline)
    assert summary["clean"], summary["differences"][:3]


def verified(root: Path) -> None:
    report = verify(root)
    assert report.sound, report.damage[:3]


def text_of(result: dict[str, Any]) -> str:
    layout = "dledger's layout" if result["ledger"] else "the plain layout"
    lines = [f"logs of {result['mib']} MiB in {layout}, {result['turns']} turns, CPU seconds"]
    lines.append(f"{'work':10}{'queues':>8}{'seconds':>10}{'MB/s':>8}{'us/record':>11}{'ratio':>8}")
    for row in result["rows"]:
        rate = result["mib"] * MIB / row["seconds"] / 1e6
        lines.append(
            f"{row['work']:10}{row['queues']:8}{row['seconds']:10.3f}{rate:8.0f}{row['us_a_record']:11.3f}"
            f"{row['ratio']:8.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
