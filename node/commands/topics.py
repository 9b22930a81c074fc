"""`tally topic list|show|create|update|delete|status`: topics of a running cluster."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.tables.topic_attributes import MAX_RETENTION_HOURS, RETENTION
from tallystick.node.commands.admin_command import change, change_table, changes, page_options, pages, reads
from tallystick.node.commands.output import emit, local_time, report_problems, shown
from tallystick.node.commands.terminal import number, table

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin
    from tallystick.admin.models import Change, QueueRange, Topic, TopicDetail


def add_parsers(commands: Any) -> None:
    """Adds `topic` and its sub-commands."""
    topic = commands.add_parser("topic", help="list, show, create, change or delete topics")
    actions = topic.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="list the topics, with their queues, messages and rates")
    page_options(listing, "topics that brokers made: system topics, those of retries and of dead letters")
    reads(listing, _list)

    show = actions.add_parser("show", help="show a topic: its configuration, queues, producers and consumer groups")
    show.add_argument("topic", help="name of the topic")
    reads(show, _show)

    status = actions.add_parser("status", help="show the offsets of a topic's queues")
    status.add_argument("topic", help="name of the topic")
    reads(status, _status)

    create = actions.add_parser("create", help="create a topic on every broker, or change its queues")
    create.add_argument("topic", help="name of the topic")
    create.add_argument("--queues", type=number(1, 65535), default=8, help="number of queues on each broker (8)")
    create.add_argument(
        "--perm", type=int, default=6, choices=(2, 4, 6), help="permission: 2 write, 4 read, 6 both (6)"
    )
    create.add_argument("--cluster", help="name of the cluster; it is needed if there are several")
    _order_option(create)
    retention_option(create, "messages expire after this time; 0: as long as the log keeps them (as it is, or 0)")
    changes(create, _put)

    update = actions.add_parser("update", help="change a topic on every broker; the rest stays as it is")
    update.add_argument("topic", help="name of the topic")
    update.add_argument("--queues", type=number(1, 65535), help="number of queues on each broker")
    update.add_argument("--perm", type=int, choices=(2, 4, 6), help="permission: 2 write, 4 read, 6 both")
    update.add_argument("--cluster", help="change it in this cluster alone")
    _order_option(update)
    retention_option(update, "messages expire after this time; 0: as long as the log keeps them")
    changes(update, _update)

    delete = actions.add_parser("delete", help="delete a topic on every broker and name server, with its messages")
    delete.add_argument("topic", help="name of the topic")
    changes(delete, _delete, confirm=True)


def retention_option(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds `--retention-hours`."""
    parser.add_argument("--retention-hours", type=number(0, MAX_RETENTION_HOURS), metavar="HOURS", help=text)


def _order_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--order",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep the queues of a broker that is away, so that messages of a key never change their queue",
    )


# --- reads ---


async def _list(admin: Admin, args: argparse.Namespace) -> int:
    topics, problems = await pages(admin.topics.list, args)
    emit(args, topics, lambda: _table(topics))
    return report_problems(problems)


def _table(topics: list[Topic]) -> str:
    heads = ("topic", "kind", "brokers", "queues", "messages", "in/s", "out/s", "")
    return table([_row(topic) for topic in topics], heads)


def _row(topic: Topic) -> tuple[str, ...]:
    queues = {config.write_queues for config in topic.configs.values()}
    return (
        topic.name,
        topic.kind.value,
        str(len(topic.configs)),
        "/".join(map(str, sorted(queues))),
        shown(topic.messages),
        shown(topic.rates.in_per_s),
        shown(topic.rates.out_per_s),
        "" if topic.agree else "brokers differ",
    )


async def _show(admin: Admin, args: argparse.Namespace) -> int:
    detail = await admin.topics.get(args.topic)
    emit(args, detail, lambda: _report(detail))
    return report_problems(detail.problems)


def _report(detail: TopicDetail) -> str:
    topic = detail.topic
    configs = [
        (
            broker,
            str(each.read_queues),
            str(each.write_queues),
            str(each.perm),
            shown(each.order),
            _words(each.attributes),
        )
        for broker, each in topic.configs.items()
    ]
    producers = [
        (group, each.client_id, each.address, each.language, each.version)
        for group, clients in sorted(detail.producers.items())
        for each in clients
    ]
    parts = [
        _table([topic]),
        table(configs, ("broker", "read queues", "write queues", "perm", "order", "attributes")),
        _queue_table(detail.queues),
        f"consumer groups: {', '.join(detail.consumer_groups) or '-'}",
    ]
    if producers:
        parts.append(table(producers, ("producer group", "client", "address", "language", "version")))
    return "\n\n".join(parts)


def _words(attributes: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(attributes.items())) or "-"


async def _status(admin: Admin, args: argparse.Namespace) -> int:
    queues = await admin.topics.queues(args.topic)
    rows = [
        {
            "broker": each.broker,
            "queueId": each.queue,
            "minOffset": each.min,
            "maxOffset": each.max,
            "lastUpdateTimestamp": each.last_update_ms or 0,
        }
        for each in queues
    ]
    emit(args, rows, lambda: _queue_table(queues))
    return 0


def _queue_table(queues: list[QueueRange]) -> str:
    rows = [
        (each.broker, str(each.queue), str(each.min), str(each.max), local_time(each.last_update_ms)) for each in queues
    ]
    return table(rows, ("broker", "queue", "first", "next", "last stored"))


# --- changes ---


def _wanted(args: argparse.Namespace) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    if args.queues is not None:
        wanted |= {"read_queues": args.queues, "write_queues": args.queues}
    if args.perm is not None:
        wanted["perm"] = args.perm
    if args.order is not None:
        wanted["order"] = args.order
    if args.retention_hours is not None:
        wanted["attributes"] = {RETENTION: str(args.retention_hours) if args.retention_hours else None}
    return wanted


async def _put(admin: Admin, args: argparse.Namespace) -> int:
    queues = "1 queue" if args.queues == 1 else f"{args.queues} queues"
    return await change(
        args,
        lambda dry_run: admin.topics.put(args.topic, _wanted(args), cluster=args.cluster, dry_run=dry_run),
        lambda result: _said(args, result, f"{queues} on each of"),
    )


async def _update(admin: Admin, args: argparse.Namespace) -> int:
    await admin.topics.get(args.topic)  # it must exist
    return await change(
        args,
        lambda dry_run: admin.topics.put(args.topic, _wanted(args), cluster=args.cluster, dry_run=dry_run),
        lambda result: _said(args, result, "changed on"),
    )


async def _delete(admin: Admin, args: argparse.Namespace) -> int:
    return await change(
        args,
        lambda dry_run: admin.topics.delete(args.topic, dry_run=dry_run),
        lambda result: _said(args, result, "deleted on"),
    )


def _said(args: argparse.Namespace, result: Change, what: str) -> str:
    """One line for people. The table, if nothing was changed or something failed."""
    for step in result.steps:
        if isinstance(step.after, dict) and step.after.get("note"):
            print(f"{step.target}: {step.after['note']}", file=sys.stderr)
    done = [step.target for step in result.steps if step.error is None and "topic" in step.action]
    if result.dry_run or (done and not result.ok):
        return change_table(result)
    return f"{args.topic}: {what} {', '.join(done)}" if done else ""
