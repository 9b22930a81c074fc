"""`tally broker list|show|wipe-write|restore-write`: the brokers of a running cluster.

Without an action, `tally broker` starts a broker."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tallystick.admin.models import Broker, Problem
from tallystick.node.commands.admin_command import change, change_table, changes, reads
from tallystick.node.commands.output import emit, local_time, report_problems, shown
from tallystick.node.commands.terminal import table

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin


def add_actions(broker: argparse.ArgumentParser) -> None:
    """Adds the actions of `tally broker`. Without one, it starts a broker."""
    actions = broker.add_subparsers(title="actions (without one, a broker is started)", metavar="ACTION")
    reads(actions.add_parser("list", help="list the brokers of a running cluster"), _list)
    show = actions.add_parser("show", help="show what a broker says about itself")
    show.add_argument("address", help="host:port of the broker")
    reads(show, _show)
    for action, text in (
        ("wipe-write", "let producers send nothing to a broker, so that it can be stopped when it is empty"),
        ("restore-write", "let producers send to a broker again"),
    ):
        parser = actions.add_parser(action, help=text)
        parser.add_argument("name", help="name of the broker (brokerName)")
        parser.set_defaults(action=action)
        changes(parser, _permit, confirm=True)


async def _list(admin: Admin, args: argparse.Namespace) -> int:
    brokers = await admin.brokers.list()
    emit(args, brokers, lambda: broker_table(brokers))
    return report_problems(problems_of(brokers))


def broker_table(brokers: Iterable[Broker]) -> str:
    """Returns brokers as a table."""
    heads = ("cluster", "broker", "id", "address", "role", "version", "in/s", "out/s", "disk", "state")
    return table([_row(broker) for broker in brokers], heads)


def _row(broker: Broker) -> tuple[str, ...]:
    ratio = broker.disk.used_ratio
    state = "ready" if broker.problem is None else "not ready" if broker.reachable else "does not answer"
    return (
        broker.cluster,
        broker.name,
        str(broker.id),
        broker.address,
        broker.role.value,
        shown(f"tallystick {broker.version}" if broker.is_tallystick else broker.version),
        shown(broker.rates.in_per_s),
        shown(broker.rates.out_per_s),
        "-" if ratio is None else f"{ratio * 100:.0f} %",
        state,
    )


def problems_of(brokers: Iterable[Broker]) -> Iterator[Problem]:
    """Yields why brokers do not answer, or are not ready."""
    for broker in brokers:
        if broker.problem is not None:
            yield Problem(broker.address, broker.problem)


async def _show(admin: Admin, args: argparse.Namespace) -> int:
    broker = await admin.brokers.get(args.address)
    emit(args, broker, lambda: _report(broker))
    return report_problems(problems_of([broker]))


def _report(broker: Broker) -> str:
    rows = [
        ("started", local_time(broker.started_ms)),
        ("messages in today", shown(broker.messages_today_in)),
        ("messages out today", shown(broker.messages_today_out)),
        ("disk free", "-" if broker.disk.free_bytes is None else f"{broker.disk.free_bytes / (1 << 30):.1f} GiB"),
    ]
    parts = [broker_table([broker]), table(rows, ("", ""))]
    if broker.runtime:
        parts.append(table(sorted(broker.runtime.items()), ("runtime information", "")))
    return "\n\n".join(parts)


async def _permit(admin: Admin, args: argparse.Namespace) -> int:
    wiping = args.action == "wipe-write"
    make = admin.brokers.wipe_write_permission if wiping else admin.brokers.restore_write_permission
    return await change(args, lambda dry_run: make(args.name, dry_run=dry_run), change_table)
