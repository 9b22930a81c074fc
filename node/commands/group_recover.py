"""`tally group recover`: makes the member in a folder the only voter of its group, when a majority is lost for good.

Without `--accept-loss` it shows what the member knows, and changes nothing but what a start does.

Exit codes: 0 done, or shown; 2 not done: not confirmed, a process has the store open, or the log is damaged.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.node.commands.terminal import InputError, bad, good, wrapped
from tallystick.store.clock import wall_ms

if TYPE_CHECKING:
    from tallystick.replication.member.recovered import Standing

_DESCRIPTION = """\
Makes the member in a folder the only voter of its group, when the other
members are lost for good and the group has no majority. Messages that the
group acknowledged and this member does not have are lost.

Run it for one member only, the one with the most entries in the highest term.
Stop all other members before, and empty their folders before they start again."""


def add_parser(actions: Any) -> None:
    """Adds `group recover`."""
    recover = actions.add_parser(
        "recover",
        help="make one surviving member the only voter, when a majority is lost for good",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    recover.add_argument("dir", type=Path, metavar="DIR", help="the store's folder of the stopped member")
    recover.add_argument(
        "--accept-loss", action="store_true", help="do it; without it, show what the member knows and what may be lost"
    )
    recover.add_argument("--yes", metavar="GROUP", help="the group's name, as a confirmation")
    recover.add_argument("--json", action="store_true", help="print JSON")
    recover.set_defaults(call=run_recover)


def run_recover(args: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code: see the module's docstring."""
    from tallystick.replication.member.recovered import ACCEPTED_LOSS
    from tallystick.replication.member.sole_voter import OfflineMember
    from tallystick.store._kernel import Door
    from tallystick.store.engine.lock import StoreLock

    folders = sorted(path.parent for path in args.dir.glob("dledger-*/data") if path.is_dir())
    if len(folders) != 1:
        raise InputError(f"{args.dir} has no log of a member of a group (dledger-*/data)")
    door = Door()
    lock = StoreLock.acquire(args.dir, door)
    try:
        with OfflineMember(folders[0], door) as member:
            standing = member.standing()
            if not args.json:
                print(_shown(standing))
            problem = _problem(args, standing)
            if problem is not None:
                return _not_done(args, standing, problem)
            if _is_alone(standing):
                return _not_done(args, standing, "")
            done = member.make_sole_voter(ACCEPTED_LOSS, wall_ms())
    finally:
        lock.release()
    if args.json:
        print(json.dumps({"done": True, "term": done.term, "entry": done.index, "before": asdict(standing)}))
    else:
        print(good(f"n{standing.member} is the only voter of {standing.group} in term {done.term}"))
        print(wrapped("Start it. Empty the folders of the other members, start them, and add them: tally group add."))
    return 0


def _problem(args: argparse.Namespace, standing: Standing) -> str | None:
    """Why nothing is changed; "": no change was asked for."""
    if not args.accept_loss:
        return ""
    if args.yes != standing.group:
        return f"not confirmed: --yes must be the name of the group, {standing.group}"
    return None


def _is_alone(standing: Standing) -> bool:
    return standing.voters == [standing.member] and standing.possible_loss == "none"


def _not_done(args: argparse.Namespace, standing: Standing, problem: str) -> int:
    if args.json:
        print(
            json.dumps(
                {
                    "done": False,
                    "reason": problem or ("the only voter already" if _is_alone(standing) else "not asked for"),
                    "before": asdict(standing),
                }
            )
        )
    elif problem:
        print(f"tally: {problem}", file=sys.stderr)
    elif _is_alone(standing):
        print(f"n{standing.member} is the only voter already: nothing was changed")
    else:
        print(f"nothing was changed; to accept the loss: --accept-loss --yes {standing.group}")
    return 2 if problem else 0


def _shown(standing: Standing) -> str:
    last = datetime.fromtimestamp(standing.last_store_ms / 1000, UTC)
    voters = " ".join(f"n{member}" for member in standing.voters) or "not known"
    lines = [
        f"n{standing.member} of group {standing.group} in cluster {standing.cluster}; voters: {voters}",
        f"last entry {standing.last_index} of term {standing.last_term}, stored at {last:%Y-%m-%dT%H:%M:%S.%f}Z",
        f"known to be committed: entry {standing.commit_index} at least; term {standing.term}",
        bad(
            f"may be lost: all that the group acknowledged behind entry {standing.last_index}, which is what it "
            "acknowledged after that time"
        ),
    ]
    if standing.last_index > standing.commit_index:
        lines.append(
            f"kept, although it may not be committed: entries {standing.commit_index + 1} to {standing.last_index}"
        )
    if standing.possible_loss != "none":
        lines.append(bad(f"this member may itself have lost data that it acknowledged ({standing.possible_loss})"))
    return "\n".join(wrapped(line, 2) for line in lines)
