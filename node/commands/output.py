"""How commands show what they found: as a table, as JSON, or as YAML."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import yaml

from tallystick.admin.models import Problem, json_of

FORMATS = ("table", "json", "yaml")


def add_output_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--output`, and `--json` for `--output json`."""
    parser.add_argument("--output", "-o", choices=FORMATS, default="table", help="form of the output (table)")
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="the same as --output json")


def emit(args: argparse.Namespace, value: Any, text: Callable[[], str]) -> None:
    """Prints a model in the form that was asked for. `text` makes the table."""
    if args.output == "json":
        print(json.dumps(json_of(value), indent=2 if sys.stdout.isatty() else None))
    elif args.output == "yaml":
        print(yaml.safe_dump(json_of(value), sort_keys=False, allow_unicode=True), end="")
    elif shown := text():
        print(shown)


def report_problems(problems: Iterable[Problem]) -> int:
    """Prints what could not be read to standard error. Returns the exit code: 1, if there is something."""
    count = 0
    for problem in problems:
        count += 1
        reason = (
            " ".join(problem.reason.split()).removeprefix(f"{problem.subject}: ").removeprefix(f"{problem.subject} ")
        )
        print(f"tally: {problem.subject}: {reason}", file=sys.stderr)
    return 1 if count else 0


def local_time(at_ms: int | None) -> str:
    """Returns a time in the local time zone; `-` without one."""
    return f"{datetime.fromtimestamp(at_ms / 1000):%Y-%m-%d %H:%M:%S}" if at_ms else "-"


def shown(value: Any) -> str:
    """Returns a cell of a table: `-` for None, one digit behind the point for a rate."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return str(value)


def duration(seconds: float | None) -> str:
    """Returns a time span for people; `-` without one."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}m{seconds % 60:.0f}s"
    if seconds < 86_400:
        return f"{seconds // 3600:.0f}h{seconds % 3600 // 60:.0f}m"
    return f"{seconds // 86_400:.0f}d{seconds % 86_400 // 3600:.0f}h"
