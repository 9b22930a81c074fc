"""`tally group status|transfer|add|remove`: the members of a replicated group, asked over a broker's HTTP port.

`tally raft` is the newer command: it asks the whole cluster. This one works where only the HTTP port is reached.

`tally group recover` is in `group_recover.py`: it works on the files of a stopped member."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from typing import Any

from tallystick.node.commands import group_recover
from tallystick.node.commands.http_port import add_http_options, ask, done, refused
from tallystick.node.commands.terminal import bad, good, number, table

_RETRY_S = 0.5
_ID = re.compile(r"n?(\d{1,9})")


def add_parsers(commands: Any) -> None:
    """Adds `group` and its sub-commands."""
    group = commands.add_parser("group", help="as `tally raft`, over the HTTP port of one process")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)

    status = actions.add_parser("status", help="show members, roles, terms, and the progress of each member")
    status.set_defaults(call=_status)

    transfer = actions.add_parser("transfer", help="transfer leadership to another member; --http must name the leader")
    transfer.add_argument(
        "member",
        nargs="?",
        type=member_number,
        help="id of the new leader, such as n1 (the member with the longest log)",
    )
    transfer.set_defaults(call=_transfer)

    add = actions.add_parser("add", help="add a member, which votes when it has caught up; --http must name the leader")
    add.add_argument("member", type=member_number, help="id of the member, such as n3")
    add.add_argument("--learner", action="store_true", help="the member receives the log and does not vote")
    add.add_argument(
        "--wait", type=number(0, 86_400), default=600, help="seconds to wait until the member has caught up (600)"
    )
    add.set_defaults(call=_add)

    remove = actions.add_parser("remove", help="remove a member; --http must name the leader")
    remove.add_argument("member", type=member_number, help="id of the member, such as n3")
    remove.set_defaults(call=_remove)

    group_recover.add_parser(actions)

    for parser in (status, transfer, add, remove):
        add_http_options(parser)


def member_number(text: str) -> int:
    """Parses the id of a member."""
    match = _ID.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a member's id, n0, n1, ..., not {text!r}")
    return int(match[1])


def _change(args: argparse.Namespace, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any] | None:
    """The answer, or None if the request was refused (already printed)."""
    status, answer = ask(args, method, path, body)
    if status == 200:
        return answer
    refused(args, answer)
    return None


def _status(args: argparse.Namespace) -> int:
    status = _change(args, "GET", "/group", None)
    if status is None:
        return 1
    if args.json:
        print(json.dumps(status))
    else:
        print(_report(status))
    return 0


def _report(status: dict[str, Any]) -> str:
    leader = "no member" if status["leader"] is None else f"n{status['leader']}"
    unready = status["broker"]["unready"]
    lines = [
        f"group {status['group']} of cluster {status['cluster']}: {leader} leads in term {status['term']}",
        f"asked: n{status['member']}, {status['role']}, " + (good("ready") if unready is None else bad(unready)),
        f"log: entries {status['first_index']} to {status['last_index']}, {status['synced_index']} synced, "
        f"{status['commit_index']} committed, {status['applied_index']} applied",
    ]
    if not status["membership_committed"]:
        lines.append("a membership change is in progress")
    if status["last_error"]:
        lines.append(bad(f"last error: {status['last_error']}"))
    rows = [_row(status, peer) for peer in status["peers"]]
    heads = ("member", "address", "vote", "connected", "match", "lag bytes", "state", "disk")
    return "\n".join([*lines, "", table(rows, heads)])


def _row(status: dict[str, Any], peer: dict[str, Any]) -> tuple[str, ...]:
    def shown(value: Any) -> str:
        return "-" if value is None else str(value)

    number = peer["member"]
    part = "voter" if peer["voter"] else "learner" if number in status["learners"] else "not a member"
    address = "-" if peer["address"] is None else f"{peer['address'][0]}:{peer['address'][1]}"
    disk = shown(peer["disk"]) if peer["doubt"] in (None, "none") else f"{peer['disk']}, may have lost data"
    return (
        f"n{number}",
        address,
        part,
        "yes" if peer["connected"] else "no",
        shown(peer["match_index"]),
        shown(peer["lag_bytes"]),
        shown(peer["state"]),
        disk,
    )


def _transfer(args: argparse.Namespace) -> int:
    body = {} if args.member is None else {"target": args.member}
    answer = _change(args, "POST", "/group/transfer", body)
    return 1 if answer is None else done(args, answer, f"n{answer['leader']} leads")


def _remove(args: argparse.Namespace) -> int:
    answer = _change(args, "DELETE", f"/group/members/{args.member}", None)
    return 1 if answer is None else done(args, answer, f"n{args.member} is no longer in the group")


def _add(args: argparse.Namespace) -> int:
    """A learner at once; a voter when the leader finds it close enough, which is asked until it does."""
    role = "learner" if args.learner else "voter"
    deadline = time.monotonic() + args.wait
    begun = False
    while True:
        status, answer = ask(args, "POST", "/group/members", {"member": args.member, "role": role})
        if status == 200 and answer["role"] == role:
            return done(args, answer, f"n{args.member} is a {role}")
        if status == 200 and answer["role"] == "voter":
            print(f"tally: n{args.member} is a voter already: remove it first", file=sys.stderr)
            return 1
        begun = begun or status == 200 or answer.get("role") == "learner"  # perhaps since long, and away
        if status not in (200, 409) or not begun:
            refused(args, answer)
            return 1
        if time.monotonic() >= deadline:
            problem = answer.get("error", "it has not caught up")
            print(f"tally: n{args.member} is a learner and not a voter yet: {problem}", file=sys.stderr)
            return 1
        time.sleep(_RETRY_S)
