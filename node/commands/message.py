"""`tally message`: search messages, show them, what became of them, and deliver them again."""

from __future__ import annotations

import argparse
import base64
from typing import TYPE_CHECKING, Any

from tallystick.admin.models import MessageSummary, Problem
from tallystick.node.commands.admin_command import change, change_table, changes, reads
from tallystick.node.commands.offsets import milliseconds
from tallystick.node.commands.output import emit, local_time, report_problems, shown
from tallystick.node.commands.terminal import InputError, bad, number, table
from tallystick.store.clock import wall_ms

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin
    from tallystick.admin.models import Message

_HOUR_MS = 3_600_000


def add_parsers(commands: Any) -> None:
    """Adds `message` and its sub-commands."""
    message = commands.add_parser("message", help="search, show and trace messages, and deliver them again")
    actions = message.add_subparsers(title="actions", metavar="ACTION", required=True)
    search = actions.add_parser("search", help="search a topic by key, by unique key, or by the time of storing")
    search.add_argument("topic", help="name of the topic")
    by = search.add_mutually_exclusive_group()
    by.add_argument("--key", help="only messages with this key")
    by.add_argument("--unique-key", help="only the message with this unique key, which its client made")
    search.add_argument("--begin", metavar="TIME", help="stored at this time or later: ISO 8601 or ms (an hour ago)")
    search.add_argument("--end", metavar="TIME", help="stored at this time or earlier (now)")
    search.add_argument("--limit", type=number(1, 1000), default=64, help="number of messages (64)")
    search.add_argument("--cursor", help="go on where the last search ended")
    reads(search, _search)
    for action, work, text in (
        ("show", _show, "show a message with its properties and its body"),
        ("track", _track, "show which consumer groups consumed a message"),
        ("trace", _trace, "show the steps in the life of a message, which clients wrote to the trace topic"),
    ):
        parser = actions.add_parser(action, help=text)
        _message_arguments(parser)
        reads(parser, work)
    resend = actions.add_parser("resend", help="deliver a message to one consumer group again")
    _message_arguments(resend)
    resend.add_argument("--group", required=True, help="name of the consumer group")
    resend.add_argument("--client", metavar="ID", help="this member consumes it now (a copy for any member)")
    changes(resend, _resend, confirm=True)


def _message_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", help="id of the message; with --topic, its unique key")
    parser.add_argument("--topic", help="name of the topic, if the id is a unique key")


async def _search(admin: Admin, args: argparse.Namespace) -> int:
    if args.key is not None or args.unique_key is not None:
        if args.key is not None:
            found = await admin.messages.by_key(args.topic, args.key, args.limit)
        else:
            found = await admin.messages.by_unique_key(args.topic, args.unique_key)
        problems: list[Problem] = []
        emit(args, found, lambda: message_table(found))
        return report_problems(problems)
    end = wall_ms() if args.end is None else milliseconds(args.end)
    begin = end - _HOUR_MS if args.begin is None else milliseconds(args.begin)
    page = await admin.messages.search(args.topic, begin, end, cursor=args.cursor, limit=args.limit)
    more = f"\nmore: --cursor {page.cursor}" if page.cursor else ""
    emit(args, page, lambda: message_table(page.items) + more)
    return report_problems(page.problems)


def message_table(messages: list[MessageSummary]) -> str:
    """Returns messages as a table."""
    rows = [
        (
            *(each.id, local_time(each.stored_ms), each.broker, str(each.queue), str(each.offset)),
            *(shown(each.tag), shown(" ".join(each.keys)), str(each.size_bytes)),
        )
        for each in messages
    ]
    return table(rows, ("id", "stored", "broker", "queue", "offset", "tag", "keys", "bytes"))


async def _message(admin: Admin, args: argparse.Namespace) -> Message:
    """The message of the arguments. InputError: a unique key that no message has."""
    if args.topic is None:
        return await admin.messages.get(args.id)
    found = await admin.messages.by_unique_key(args.topic, args.id)
    if not found:
        raise InputError(f"no message of topic {args.topic} has the unique key {args.id}")
    return await admin.messages.get(found[0].id)


async def _show(admin: Admin, args: argparse.Namespace) -> int:
    message = await _message(admin, args)
    emit(args, message, lambda: _report(message))
    return 0


def _report(message: Message) -> str:
    summary = message.summary
    rows = [
        *(("id", summary.id), ("unique key", summary.unique_key), ("topic", summary.topic)),
        ("place", f"{summary.broker}, queue {summary.queue}, offset {summary.offset}"),
        *(("sent", f"{local_time(summary.born_ms)} by {summary.born_host}"),),
        *(("stored", f"{local_time(summary.stored_ms)} by {summary.store_host}"), ("retries", str(summary.retries))),
        *sorted(message.properties.items()),
    ]
    body = message.text if message.text is not None else base64.b64decode(message.body).hex(" ")
    damage = [] if message.body_crc_ok else [bad("the body is damaged: its CRC differs")]
    return "\n".join([*(f"{name:<20} {value}".rstrip() for name, value in rows), *damage, "", body])


async def _track(admin: Admin, args: argparse.Namespace) -> int:
    tracks = await admin.messages.tracks(await _message(admin, args))
    rows = [(each.group, each.state.value, each.reason) for each in tracks]
    emit(args, tracks, lambda: table(rows, ("group", "state", "reason")))
    return 0


async def _trace(admin: Admin, args: argparse.Namespace) -> int:
    steps = await admin.messages.trace(await _message(admin, args))
    rows = [
        (
            *(local_time(each.at_ms), each.kind, shown(each.duration_ms), each.client),
            *(shown(each.group), shown(each.success), each.detail),
        )
        for each in steps
    ]
    emit(args, steps, lambda: table(rows, ("time", "step", "ms", "client", "group", "success", "")))
    return 0


async def _resend(admin: Admin, args: argparse.Namespace) -> int:
    message = await _message(admin, args)

    async def make(dry_run: bool) -> list[Any]:
        return [await admin.messages.resend(message, args.group, args.client, dry_run=dry_run)]

    return await change(args, make, change_table)
