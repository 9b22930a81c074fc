"""`tally cluster`: the clusters that the name servers know, with their brokers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tallystick.node.commands.admin_command import reads
from tallystick.node.commands.brokers import broker_table, problems_of
from tallystick.node.commands.output import emit, report_problems

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin


def add_parsers(commands: Any) -> None:
    """Adds `cluster` and its sub-commands."""
    cluster = commands.add_parser("cluster", help="list the clusters and their brokers")
    actions = cluster.add_subparsers(title="actions", metavar="ACTION", required=True)
    reads(actions.add_parser("list", help="list the clusters, with roles, rates and disks of their brokers"), _list)


async def _list(admin: Admin, args: argparse.Namespace) -> int:
    clusters = await admin.clusters.list()
    brokers = [broker for cluster in clusters for broker in cluster.brokers]
    emit(args, clusters, lambda: broker_table(brokers))
    return report_problems(problems_of(brokers))
