"""`tally promote`: a slave takes the place of its master, asked over the slave's HTTP port."""

from __future__ import annotations

import argparse
from typing import Any

from tallystick.node.commands.http_port import add_http_options, ask, done, refused

_LIMIT_S = 120.0


def add_parsers(commands: Any) -> None:
    """Adds `promote`."""
    promote = commands.add_parser(
        "promote", help="make a slave (brokerRole=SLAVE) the master; --http must name the slave"
    )
    choice = promote.add_mutually_exclusive_group()
    choice.add_argument(
        "--master-is-stopped",
        action="store_true",
        help="promote without the master, which must be stopped: what it has not sent is lost",
    )
    choice.add_argument(
        "--back", action="store_true", help="do not promote: let a master accept messages again that was fenced before"
    )
    add_http_options(promote)
    promote.set_defaults(call=_promote)


def _promote(args: argparse.Namespace) -> int:
    if args.back:
        status, answer = ask(args, "DELETE", "/promotion", limit_s=_LIMIT_S)
    else:
        body = {"masterIsStopped": args.master_is_stopped}
        status, answer = ask(args, "POST", "/promotion", body, limit_s=_LIMIT_S)
    if status != 200:
        refused(args, answer)
        return 1
    if args.back:
        return done(args, answer, f"the master {answer['master']} accepts messages again")
    lines = [f"promoted: {args.http} is the master, and its log continues at {answer['end']}"]
    if answer.get("missingBytes"):
        lines.append(f"{answer['missingBytes']} bytes that the old master had were not copied")
    if answer.get("strayBytes"):
        lines.append(f"the old master stored {answer['strayBytes']} bytes although it was fenced: they were not copied")
    return done(args, answer, "\n".join(lines))
