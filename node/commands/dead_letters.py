"""`tally dlq`: dead letters, the messages that consumer groups finally failed to consume."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tallystick.node.commands.admin_command import change, change_table, changes, reads
from tallystick.node.commands.message import message_table
from tallystick.node.commands.output import emit, report_problems
from tallystick.node.commands.terminal import InputError, number, table

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin


def add_parsers(commands: Any) -> None:
    """Adds `dlq` and its sub-commands."""
    dlq = commands.add_parser("dlq", help="list dead letters, and send them to their group again")
    actions = dlq.add_subparsers(title="actions", metavar="ACTION", required=True)
    reads(actions.add_parser("groups", help="list the consumer groups that have dead letters"), _groups)
    listing = actions.add_parser("list", help="list the dead letters of a consumer group")
    listing.add_argument("group", help="name of the consumer group")
    listing.add_argument("--limit", type=number(1, 1000), default=64, help="number of messages (64)")
    listing.add_argument("--cursor", help="go on where the last list ended")
    reads(listing, _list)
    resend = actions.add_parser(
        "resend", help="send dead letters to their group again; only this group gets them, and they stay where they are"
    )
    resend.add_argument("group", help="name of the consumer group")
    resend.add_argument("id", nargs="*", help="ids of the messages")
    resend.add_argument("--all", action="store_true", help="all dead letters of the group")
    changes(resend, _resend, confirm=True)


async def _groups(admin: Admin, args: argparse.Namespace) -> int:
    found = await admin.dead_letters.groups()
    value = [{"group": each.group, "messages": each.messages} for each in found]
    emit(args, value, lambda: table([(each.group, str(each.messages)) for each in found], ("group", "dead letters")))
    return 0


async def _list(admin: Admin, args: argparse.Namespace) -> int:
    page = await admin.dead_letters.list(args.group, cursor=args.cursor, limit=args.limit)
    more = f"\nmore: --cursor {page.cursor}" if page.cursor else ""
    emit(args, page, lambda: message_table(page.items) + more)
    return report_problems(page.problems)


async def _resend(admin: Admin, args: argparse.Namespace) -> int:
    if bool(args.id) == args.all:
        raise InputError("give either ids of messages or --all")
    ids = None if args.all else args.id
    return await change(args, lambda dry_run: admin.dead_letters.resend(args.group, ids, dry_run=dry_run), change_table)
