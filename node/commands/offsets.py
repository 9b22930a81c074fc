"""`tally offset reset|clone`: where consumer groups go on. --dry-run shows the offsets before and after."""

from __future__ import annotations

import argparse
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tallystick.admin.models import OffsetTarget
from tallystick.node.commands.admin_command import change, change_table, changes
from tallystick.node.commands.terminal import InputError

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin

_QUEUE = re.compile(r"(.+)/(\d+)")


def add_parsers(commands: Any) -> None:
    """Adds `offset` and its sub-commands."""
    offset = commands.add_parser("offset", help="reset or copy the offsets of consumer groups")
    actions = offset.add_subparsers(title="actions", metavar="ACTION", required=True)
    reset = actions.add_parser("reset", help="set where a group continues in a topic")
    reset.add_argument("group", help="name of the consumer group")
    reset.add_argument("topic", help="name of the topic")
    to = reset.add_mutually_exclusive_group(required=True)
    to.add_argument("--earliest", action="store_true", help="with the oldest message that is kept")
    to.add_argument("--latest", action="store_true", help="with the next message that is stored")
    to.add_argument("--time", metavar="TIME", help="with this time: ISO 8601, or milliseconds since 1970")
    to.add_argument("--offset", type=int, help="with this offset in each queue")
    to.add_argument("--shift", type=int, metavar="N", help="N messages further; back, if N is negative")
    reset.add_argument(
        "--queue", action="append", metavar="BROKER/N", help="only this queue, such as broker-a/0; can be repeated"
    )
    changes(reset, _reset, confirm=True)
    clone = actions.add_parser("clone", help="copy the offsets of a group to another one")
    clone.add_argument("source", help="name of the consumer group that has the offsets")
    clone.add_argument("target", help="name of the consumer group that gets them; it must have no members")
    clone.add_argument("topic", help="name of the topic")
    changes(clone, _clone, confirm=True)


def milliseconds(text: str) -> int:
    """Returns a time as milliseconds since 1970. Without a time zone it is local time. InputError: it is not a time."""
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise InputError(f"{text!r} is not a time such as 2026-11-26T13:00 or 1795000000000") from None


def _target(args: argparse.Namespace) -> OffsetTarget:
    if args.earliest:
        return OffsetTarget.earliest()
    if args.latest:
        return OffsetTarget.latest()
    if args.time is not None:
        return OffsetTarget.timestamp(milliseconds(args.time))
    return OffsetTarget.shift(args.shift) if args.offset is None else OffsetTarget.offset(args.offset)


def _queues(texts: list[str] | None) -> list[tuple[str, int]] | None:
    found = []
    for text in texts or ():
        match = _QUEUE.fullmatch(text)
        if match is None:
            raise InputError(f"{text!r} is not a queue such as broker-a/0")
        found.append((match[1], int(match[2])))
    return found or None


async def _reset(admin: Admin, args: argparse.Namespace) -> int:
    target, queues = _target(args), _queues(args.queue)
    return await change(
        args,
        lambda dry_run: admin.offsets.reset(args.group, args.topic, target, queues=queues, dry_run=dry_run),
        change_table,
    )


async def _clone(admin: Admin, args: argparse.Namespace) -> int:
    return await change(
        args,
        lambda dry_run: admin.offsets.clone(args.source, args.target, args.topic, dry_run=dry_run),
        change_table,
    )
