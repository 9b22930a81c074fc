"""`tally consumer`: consumer groups, their lag and their members."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tallystick.node.commands.admin_command import change, change_table, changes, page_options, pages, reads
from tallystick.node.commands.output import duration, emit, local_time, report_problems, shown
from tallystick.node.commands.terminal import bad, number, table

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin
    from tallystick.admin.models import ConsumerGroup, GroupDetail


def add_parsers(commands: Any) -> None:
    """Adds `consumer` and its sub-commands."""
    consumer = commands.add_parser("consumer", help="list, show, create, change or delete consumer groups")
    actions = consumer.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the consumer groups, with their lag and members")
    page_options(listing, "the groups of brokers and tools")
    reads(listing, _list)
    show = actions.add_parser("show", help="show the lag of each queue, the members, and where they disagree")
    show.add_argument("group", help="name of the consumer group")
    reads(show, _show)
    for action, text in (("create", "create a consumer group"), ("update", "change a consumer group")):
        parser = actions.add_parser(action, help=f"{text} on every broker; the rest stays as it is")
        parser.add_argument("group", help="name of the consumer group")
        parser.add_argument("--max-retries", type=number(0, 1 << 30), help="attempts before a message is a dead letter")
        parser.add_argument("--retry-queues", type=number(0, 65535), help="queues of the topic of retries")
        for option, what in (("consume", "it may consume"), ("broadcast", "its members may consume as a broadcast")):
            parser.add_argument(f"--{option}", action=argparse.BooleanOptionalAction, default=None, help=what)
        parser.add_argument("--cluster", help="name of the cluster")
        parser.set_defaults(action=action)
        changes(parser, _put)
    delete = actions.add_parser("delete", help="delete a consumer group that has no members")
    delete.add_argument("group", help="name of the consumer group")
    delete.add_argument(
        "--topics", action="store_true", help="delete also its topics of retries and of dead letters, with all messages"
    )
    changes(delete, _delete, confirm=True)


async def _list(admin: Admin, args: argparse.Namespace) -> int:
    groups, problems = await pages(admin.groups.list, args)
    emit(args, groups, lambda: _table(groups))
    return report_problems(problems)


def _table(groups: list[ConsumerGroup]) -> str:
    heads = ("group", "state", "members", "lag", "age of lag", "out/s", "dead letters", "")
    return table([_row(group) for group in groups], heads)


def _row(group: ConsumerGroup) -> tuple[str, ...]:
    return (
        group.name,
        group.state.value,
        str(group.members),
        shown(group.lag),
        duration(group.lag_s),
        shown(group.out_per_s),
        shown(group.dead_letters),
        "members disagree" if group.disagrees else "",
    )


async def _show(admin: Admin, args: argparse.Namespace) -> int:
    detail = await admin.groups.get(args.group)
    emit(args, detail, lambda: _report(detail))
    return report_problems(detail.problems)


def _report(detail: GroupDetail) -> str:
    queues = [
        (
            each.topic,
            each.broker,
            str(each.queue),
            str(each.broker_offset),
            shown(each.consumer_offset),
            str(each.lag),
            duration(each.lag_s),
            local_time(each.last_consumed_ms),
            shown(each.client_id),
        )
        for each in detail.queues
    ]
    members = [
        (
            each.connection.client_id,
            each.connection.address,
            each.connection.language,
            each.connection.version,
            shown(each.queues),
            ", ".join(f"{one.topic}: {one.expression}" for one in each.subscriptions) or "-",
        )
        for each in detail.members
    ]
    heads = ("topic", "broker", "queue", "stored", "consumed", "lag", "age of lag", "last consumed", "member")
    parts = [_table([detail.group]), table(queues, heads)]
    if members:
        parts.append(table(members, ("member", "address", "language", "version", "queues", "subscriptions")))
    for each in detail.disagreements:
        told = "; ".join(f"{text or 'nothing'}: {', '.join(ids)}" for text, ids in each.expressions.items())
        parts.append(bad(f"members subscribe differently to {each.topic}: {told}"))
    return "\n\n".join(parts)


async def _put(admin: Admin, args: argparse.Namespace) -> int:
    fields = {
        "max_retries": args.max_retries,
        "retry_queues": args.retry_queues,
        "consume_enable": args.consume,
        "consume_broadcast_enable": args.broadcast,
    }
    wanted = {name: value for name, value in fields.items() if value is not None}
    if args.action == "update":
        await admin.groups.get(args.group)  # it must exist
    return await change(
        args,
        lambda dry_run: admin.groups.put(args.group, wanted, cluster=args.cluster, dry_run=dry_run),
        change_table,
    )


async def _delete(admin: Admin, args: argparse.Namespace) -> int:
    return await change(
        args, lambda dry_run: admin.groups.delete(args.group, topics=args.topics, dry_run=dry_run), change_table
    )
