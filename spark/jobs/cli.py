"""The command `tally-job NAME --path DIR ...`: runs one of the jobs, on Spark or in this process.

It is separate from `tally`, because the broker must start without Spark and Arrow, and imports point one way. The extra
`spark` installs what it needs. `spark-submit` recognizes Python programs by the suffix of their name, so the same
command is installed as `tally-job.py`: `spark-submit --master M "$(which tally-job.py)" NAME --path DIR`.
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

from tallystick.spark.jobs.job import Argument, Call, Job, Kind, OutputUse
from tallystick.spark.jobs.registry import commands, is_wrong, page_of, text_of
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs import OutputError, output_at
from tallystick.spark.places import opened, reaching_runner
from tallystick.spark.runner import Runner, inline, on_spark
from tallystick.spark.store_client import StoreClientError
from tallystick.spark.volume import VolumeError
from tallystick.store.command_line import CommandParser
from tallystick.store.standard_output import while_it_is_read


class SparkMissingError(RuntimeError):
    """Spark cannot start here."""


_EXPECTED: tuple[type[Exception], ...] = (
    *(OptionError, SparkMissingError, VolumeError, OutputError, StoreClientError, OSError, ValueError),
)
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets it for the Python program that it starts."""
_LOCAL = "local[2]"
_SMALL_BYTES = 1 << 30
"""Of the logs of all stores. One process reads them in a few seconds; it takes Spark that long to start."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a job. Returns 0: no problem found; 1: problems found (audit: differences; others: damage); 2: failed."""
    return while_it_is_read("tally-job", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    job = commands()[args.job]
    expected = (*_EXPECTED, *job.failures)
    try:
        options = ReadOptions.parse(_options(args))
        with _runner(_master(args, job, options)) as runner:
            reaching = reaching_runner(runner, options.sources(members=job.all_members))
            summary = job.summary_of(_call(args, job, options, reaching))
        if args.html is not None:
            args.html.write_text(page_of(summary) or "")
        if args.summary is not None:
            args.summary.write_text(json.dumps(summary))
    except expected as error:
        print(f"tally-job: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary) if args.json else text_of(summary))
    return 1 if is_wrong(summary) else 0


def _call(args: argparse.Namespace, job: Job, options: ReadOptions, runner: Runner) -> Call:
    out = getattr(args, "out", None)
    return Call(options, runner, None if out is None else output_at(out), _arguments(args, job))


def _arguments(args: argparse.Namespace, job: Job) -> dict[str, Any]:
    return {argument.name: _value(argument, getattr(args, _dest(argument))) for argument in job.arguments}


def _value(argument: Argument, given: Any) -> Any:
    if argument.kind is Kind.TABLE and given is not None:
        given = dict(item.split("=", 1) for item in given)
    return argument.default if given is None else given


def _dest(argument: Argument) -> str:
    return f"argument_{argument.name}"


def _parser() -> CommandParser:
    parser = CommandParser(prog="tally-job", description="Runs a job on the files of brokers' stores.")
    parser.add_version()
    names = parser.add_subparsers(dest="job", metavar="NAME", required=True)
    with_page = ", ".join(name for name, job in commands().items() if job.page is not None)
    for job in commands().values():
        command = names.add_parser(job.name, help=job.help)
        command.add_argument(
            "--path",
            required=True,
            metavar="PLACE[,PLACE]",
            help="stores: folders, http://broker:8080, tally://nameserver:9876, s3://bucket/prefix (backups); "
            "NAME=PLACE names a source",
        )
        command.add_argument(
            "--master",
            help="Spark master; `none`: run in this process without Spark "
            "(that of spark-submit; else `none` if the stores have at most 1 GiB, and local[2] if they have more)",
        )
        command.add_argument("--json", action="store_true", help="print the summary as JSON")
        command.add_argument("--summary", type=Path, metavar="FILE", help="write the summary to this file, as JSON")
        command.add_argument(
            "--html", type=Path, metavar="FILE", help=f"write the summary to this file, as an HTML page ({with_page})"
        )
        command.add_argument(
            "--option",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="an option of the data source; can be repeated",
        )
        _add_own(command, job)
    return parser


def _add_own(command: argparse.ArgumentParser, job: Job) -> None:
    """Adds the options that not all jobs have."""
    for option in ("topic", "queue", "from", "to") if job.reads_a_part else ():
        command.add_argument(
            f"--{option}", dest=f"read_{option}", metavar="X", help=f"option `{option}` of the data source"
        )
    if job.output is not OutputUse.NONE:
        command.add_argument("--out", metavar="PLACE", help=job.output_help)
    for argument in job.arguments:
        more: dict[str, Any] = {"help": argument.help, "metavar": argument.metavar}
        if argument.kind is Kind.NUMBER:
            more["type"] = int
        if argument.kind is Kind.TABLE:
            more["action"] = "append"
        if argument.flag:
            command.add_argument(argument.flag, dest=_dest(argument), **more)
        else:
            command.add_argument(_dest(argument), **more)


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


def _master(args: argparse.Namespace, job: Job, options: ReadOptions) -> str | None:
    """Returns the master: the given one, that of spark-submit (None), or `none` for small stores, which this process
    reads before Java has started. VolumeError, StoreClientError, OSError: a store cannot be opened."""
    given: str | None = args.master
    if given is not None or _SUBMITTED in os.environ:
        return given
    if job.needs_session(_arguments(args, job)):
        return _LOCAL
    size = 0
    for source in options.sources(members=job.all_members):
        with opened(source, with_queues=False) as volume:
            size += volume.bytes
    return "none" if size <= _SMALL_BYTES else _LOCAL


@contextmanager
def _runner(master: str | None) -> Iterator[Runner]:
    if master == "none":
        yield inline
        return
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("tally-job").config("spark.ui.showConsoleProgress", "false")
    if _SUBMITTED not in os.environ:  # otherwise spark-submit has chosen all of this
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.config("spark.ui.enabled", "false").master(master or _LOCAL)
    elif master is not None:
        builder = builder.master(master)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        # The name of this method differs between the versions of Spark.
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        reason = "Spark does not start, probably because Java is not installed: --master none runs the job without it"
        raise SparkMissingError(reason) from error
    try:
        yield on_spark(spark.sparkContext)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
