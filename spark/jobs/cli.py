"""The command `tally-job NAME --path DIR ...`: runs one of the jobs, on Spark or in this process.

It is separate from `tally`, because the broker must start without Spark and Arrow, and imports point one way. The extra
`spark` installs what it needs.
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
    sys.exit("tally-job: pyarrow is not installed: run pip install 'tallystick[spark]'")

from tallystick.spark.jobs import audit, export, rebuild, stats, trace
from tallystick.spark.jobs.report import page_of, text_of
from tallystick.spark.jobs.verdicts import is_wrong
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs import OutputError, output_at
from tallystick.spark.runner import Runner, inline, on_spark
from tallystick.spark.volume import VolumeError
from tallystick.store.command_line import CommandParser
from tallystick.store.standard_output import while_it_is_read

_HELP = {
    "stats": "count messages and bytes by topic, queue, tag and hour; list sizes and producers",
    "audit": "compare log, queues, index and replicas with each other",
    "export": "write messages as Parquet files; a later run adds the new messages",
    "rebuild": "build queues and index from the log in another place, and compare them with those of the store",
    "trace": "show all records of a key or message id",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a job. Returns 0: no problem found; 1: problems found (audit: differences; others: damage); 2: failed."""
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


def _parser() -> CommandParser:
    parser = CommandParser(prog="tally-job", description="Runs a job on the files of brokers' stores.")
    parser.add_version()
    jobs = parser.add_subparsers(dest="job", metavar="NAME", required=True)
    for name, text in _HELP.items():
        job = jobs.add_parser(name, help=text)
        job.add_argument(
            "--path", required=True, metavar="DIR[,DIR]", help="folders of stores; NAME=DIR names a source"
        )
        job.add_argument(
            "--master", default="local[2]", help="Spark master; `none`: run in this process without Spark (local[2])"
        )
        job.add_argument("--json", action="store_true", help="print the summary as JSON")
        job.add_argument("--summary", type=Path, metavar="FILE", help="write the summary to this file, as JSON")
        job.add_argument(
            "--html", type=Path, metavar="FILE", help="write the summary to this file, as an HTML page (stats, audit)"
        )
        job.add_argument(
            "--option",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="an option of the data source; can be repeated",
        )
        if name not in ("audit", "rebuild", "trace"):  # these read the whole store
            for option in ("topic", "queue", "from", "to"):
                job.add_argument(
                    f"--{option}", dest=f"read_{option}", metavar="X", help=f"option `{option}` of the data source"
                )
        if name in ("export", "rebuild"):
            place = "folder or s3://bucket/prefix for the result" + (
                "" if name == "export" else "; without it the job only compares"
            )
            job.add_argument("--out", required=name == "export", metavar="PLACE", help=place)
        if name == "audit":
            job.add_argument(
                "--lag-ms", type=int, default=audit.LAG_MS, help="ms that derived files may be behind the log"
            )
        if name == "rebuild":
            job.add_argument(
                "--set",
                action="append",
                default=[],
                metavar="KEY=VALUE",
                help="a setting of the store; can be repeated",
            )
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
            raise OptionError(name, "must be NAME=VALUE")
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
