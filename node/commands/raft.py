"""`tally raft`: the replicated groups of a cluster, asked over the brokers' own port.

`tally group` is the older command: it asks one process over its HTTP port. `recover` works on the files of a stopped
member.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING, Any

from tallystick.admin.models import Change, StepState
from tallystick.node.commands import group_recover
from tallystick.node.commands.admin_command import change, change_table, changes, reads, show_change
from tallystick.node.commands.group import member_number
from tallystick.node.commands.output import emit, report_problems, shown
from tallystick.node.commands.terminal import number, table

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin
    from tallystick.admin.models import RaftGroup

_AGAIN_S = 0.5


def add_parsers(commands: Any) -> None:
    """Adds `raft` and its sub-commands."""
    raft = commands.add_parser(
        "raft", help="show replicated groups, transfer leadership, add or remove a member (before: `tally group`)"
    )
    actions = raft.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="show the groups: members, roles, terms, and the progress of each member")
    listing.set_defaults(group=None)
    reads(listing, _show)
    show = actions.add_parser("show", help="show one group")
    show.add_argument("group", help="name of the group (brokerName)")
    reads(show, _show)
    transfer = actions.add_parser("transfer", help="transfer leadership to another member")
    transfer.add_argument("group", help="name of the group")
    transfer.add_argument(
        "member", nargs="?", type=member_number, help="id of the new leader, such as n1 (the one with the longest log)"
    )
    changes(transfer, _transfer, confirm=True)
    add = actions.add_parser("add", help="add a member, which votes when it has caught up")
    add.add_argument("group", help="name of the group")
    add.add_argument("member", type=member_number, help="id of the member, such as n3")
    add.add_argument("--learner", action="store_true", help="the member receives the log and does not vote")
    add.add_argument(
        "--wait", type=number(0, 86_400), default=600, help="seconds to wait until the member has caught up (600)"
    )
    changes(add, _add)
    remove = actions.add_parser("remove", help="remove a member")
    remove.add_argument("group", help="name of the group")
    remove.add_argument("member", type=member_number, help="id of the member, such as n3")
    changes(remove, _remove, confirm=True)
    group_recover.add_parser(actions)


async def _show(admin: Admin, args: argparse.Namespace) -> int:
    groups = [each for each in await admin.raft.groups() if args.group in (None, each.name)]
    emit(args, groups, lambda: "\n\n".join(map(_report, groups)) or "there is no replicated group")
    if args.group is not None and not groups:
        return 1
    return report_problems(problem for group in groups for problem in _problems(group))


def _problems(group: RaftGroup) -> Any:
    from tallystick.admin.models import Problem

    return [Problem(f"group {group.name}", group.problem)] if group.problem is not None else []


def _report(group: RaftGroup) -> str:
    leader = "no member" if group.leader is None else f"n{group.leader}"
    head = f"group {group.name} of cluster {group.cluster}: {leader} leads in term {group.term}"
    rows = [
        (
            f"n{each.id}",
            shown(each.address),
            each.role.value,
            "voter" if each.voter else "learner",
            shown(each.connected),
            shown(each.lag_bytes),
            shown(each.phase),
            shown(each.disk),
        )
        for each in group.members
    ]
    return f"{head}\n{table(rows, ('member', 'address', 'role', 'vote', 'connected', 'lag bytes', 'phase', 'disk'))}"


async def _transfer(admin: Admin, args: argparse.Namespace) -> int:
    return await change(
        args, lambda dry_run: admin.raft.transfer(args.group, args.member, dry_run=dry_run), change_table
    )


async def _remove(admin: Admin, args: argparse.Namespace) -> int:
    return await change(args, lambda dry_run: admin.raft.remove(args.group, args.member, dry_run=dry_run), change_table)


async def _add(admin: Admin, args: argparse.Namespace) -> int:
    """A learner at once; a voter when the leader finds it close enough, which is asked until it does."""
    role = "learner" if args.learner else "voter"
    deadline_s = time.monotonic() + args.wait
    begun = False
    while True:
        result = await admin.raft.add(args.group, args.member, args.learner, dry_run=args.dry_run)
        (step,) = result.steps
        reached = step.state is StepState.DONE and step.after.get("role") == role
        begun = begun or (step.state is StepState.DONE and step.after.get("role") == "learner")
        if args.dry_run or reached or not (begun or _is_learner(result, args.member)) or time.monotonic() >= deadline_s:
            return max(show_change(args, result, change_table), 0 if reached or args.dry_run else 1)
        await asyncio.sleep(_AGAIN_S)


def _is_learner(result: Change, member: int) -> bool:
    before = result.steps[0].before
    return isinstance(before, dict) and member in before.get("learners", ())
