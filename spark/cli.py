"""`tally-job NAME --path DIR ...`: one of the jobs, on Spark or in this process.

A command of its own, not `tally job`: what `tally` imports is the broker, and the broker must start without Spark,
without Arrow, and without knowing that jobs exist (imports point one way). Its name comes with the group `spark`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import pyarrow as _  # noqa: F401
except ImportError:
    sys.exit("tally-job: pip install 'tallystick[spark]' brings what it needs")

from tallystick.spark.jobs import audit, export, rebuild, stats, trace
from tallystick.spark.jobs.report import page_of, text_of
from tallystick.spark.jobs.runner import Runner, inline, on_spark
from tallystick.spark.jobs.verdicts import is_wrong
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs import OutputError, output_at
from tallystick.spark.volume import VolumeError
from tallystick.store.standard_output import while_it_is_read

_HELP = {
    "stats": "messages, bytes, sizes and producers by topic, queue, tag and hour",
    "audit": "log, queues, index and replicas against each other",
    "export": "messages as Parquet files; run again, it adds what came since",
    "rebuild": "queues and index made anew from the log, beside the store, and compared with its own",
    "trace": "all that happened to a key or message id",
}


def main(argv: Sequence[str] | None = None) -> int:
    """0: done, and nothing is wrong; 1: done, and something is (audit: differences; others: damage); 2: not done."""
    return while_it_is_read("tally-job", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    try:
        options = ReadOptions.parse(_options(args))
        with _runner(args.master) as runner:
            summary = _run(args, options, runner)
        if args.html is not None:
            args.html.write_text(page_of(summary) or "")
        if args.summary is not None:
            args.summary.write_text(json.dumps(summary))
    except (OptionError, VolumeError, export.ExportError, OutputError, OSError, ValueError) as error:
        print(f"tally-job: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary) if args.json else text_of(summary))
    return 1 if is_wrong(summary) else 0


def _run(args: argparse.Namespace, options: ReadOptions, runner: Runner) -> dict[str, Any]:
    match args.job:
        case "stats":
            return stats.run(options, runner)
        case "audit":
            return audit.run(options, runner, args.lag_ms)
        case "export":
            return export.run(options, runner, output_at(args.out))
        case "rebuild":
            return rebuild.run(
                options,
                runner,
                None if args.out is None else output_at(args.out),
                dict(item.split("=", 1) for item in args.set),
            )
        case "trace":
            return trace.run(options, runner, args.sought)
    raise AssertionError(args.job)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tally-job", description="Jobs over the files of brokers' stores.")
    jobs = parser.add_subparsers(dest="job", metavar="NAME", required=True)
    for name, text in _HELP.items():
        job = jobs.add_parser(name, help=text, description=text)
        job.add_argument("--path", required=True, metavar="DIR[,DIR]", help="stores; NAME=DIR gives a source its name")
        job.add_argument("--master", default="local[2]", help="Spark's master; `none`: in this process (local[2])")
        job.add_argument("--json", action="store_true", help="print the summary as JSON")
        job.add_argument("--summary", type=Path, metavar="FILE", help="write the summary there, as JSON")
        job.add_argument("--html", type=Path, metavar="FILE", help="write a page of it there (stats, audit)")
        job.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the data source")
        if name not in ("audit", "rebuild", "trace"):  # these look at everything
            for option in ("topic", "queue", "from", "to"):
                job.add_argument(
                    f"--{option}", dest=f"read_{option}", metavar="X", help=f"option {option} of the source"
                )
        if name in ("export", "rebuild"):
            place = "folder or s3://bucket/prefix of the result" + (
                "" if name == "export" else "; without: only compare"
            )
            job.add_argument("--out", required=name == "export", metavar="PLACE", help=place)
        if name == "audit":
            job.add_argument("--lag-ms", type=int, default=audit.LAG_MS, help="how far derived files may be behind")
        if name == "rebuild":
            job.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the store")
        if name == "trace":
            job.add_argument("sought", metavar="KEY", help="key, unique key or message id")
    return parser


def _options(args: argparse.Namespace) -> dict[str, str]:
    options = {"path": args.path}
    for name in ("topic", "queue", "from", "to"):
        if (value := getattr(args, f"read_{name}", None)) is not None:
            options[name] = value
    for item in args.option:
        name, separator, value = item.partition("=")
        if not separator:
            raise OptionError(name, "is given as NAME=VALUE")
        options[name] = value
    return options


@contextmanager
def _runner(master: str) -> Iterator[Runner]:
    if master == "none":
        yield inline
        return
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(master)
        .appName("tally-job")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    try:
        yield on_spark(spark.sparkContext)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
