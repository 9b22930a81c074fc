"""`tally topic list|create|update|delete|status`: topics of a running cluster."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any

from tallystick.node.broker.tables.topic_attributes import MAX_RETENTION_HOURS, RETENTION
from tallystick.node.commands.terminal import number, table
from tallystick.node.commands.tls_options import add_credentials_option, add_tls_options, cluster_client
from tallystick.node.core.client import ClusterClient, RequestRefusedError
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.store import fastjson

DEFAULT_NAMESERVER = "127.0.0.1:9876"


def add_parsers(commands: Any) -> None:
    """Adds `topic` and its sub-commands."""
    topic = commands.add_parser("topic", help="list, create, change, delete or show topics")
    actions = topic.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="list all topics that the name server knows")
    listing.set_defaults(call=lambda args: asyncio.run(_list(args)))

    create = actions.add_parser("create", help="create a topic on every broker, or change its queues")
    create.add_argument("topic", help="name of the topic")
    create.add_argument("--queues", type=number(1, 65535), default=8, help="number of queues on each broker (8)")
    create.add_argument(
        "--perm", type=int, default=6, choices=(2, 4, 6), help="permission: 2 write, 4 read, 6 both (6)"
    )
    retention_option(create, "messages expire after this time; 0: as long as the log keeps them (as it is, or 0)")
    create.set_defaults(call=lambda args: asyncio.run(_create(args)))

    update = actions.add_parser("update", help="change a topic on every broker that has it; the rest stays as it is")
    update.add_argument("topic", help="name of the topic")
    update.add_argument("--queues", type=number(1, 65535), help="number of queues on each broker")
    update.add_argument("--perm", type=int, choices=(2, 4, 6), help="permission: 2 write, 4 read, 6 both")
    retention_option(update, "messages expire after this time; 0: as long as the log keeps them")
    update.set_defaults(call=lambda args: asyncio.run(_update(args)))

    delete = actions.add_parser("delete", help="delete a topic on every broker and name server")
    delete.add_argument("topic", help="name of the topic")
    delete.set_defaults(call=lambda args: asyncio.run(_delete(args)))

    status = actions.add_parser("status", help="show the offsets of a topic's queues")
    status.add_argument("topic", help="name of the topic")
    status.set_defaults(call=lambda args: asyncio.run(_status(args)))

    for parser in (listing, create, update, delete, status):
        nameserver_option(parser)
        parser.add_argument("--json", action="store_true", help="print JSON")


def nameserver_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--nameserver`, whose default is the environment's TALLY_NAMESERVER, `--credentials`, and the options of
    TLS."""
    parser.add_argument(
        "--nameserver",
        "-n",
        default=os.environ.get("TALLY_NAMESERVER", DEFAULT_NAMESERVER),
        help=f"host:port of the name servers, separated by ';' ($TALLY_NAMESERVER or {DEFAULT_NAMESERVER})",
    )
    add_credentials_option(parser)
    add_tls_options(parser)


def retention_option(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds `--retention-hours`."""
    parser.add_argument("--retention-hours", type=number(0, MAX_RETENTION_HOURS), metavar="HOURS", help=text)


async def _list(args: argparse.Namespace) -> int:
    async with cluster_client(args) as client:
        answer = await client.ask_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
    names = sorted(fastjson.loads(answer.body)["topicList"])
    print(json.dumps(names) if args.json else "\n".join(names))
    return 0


async def _create(args: argparse.Namespace) -> int:
    async with cluster_client(args) as client:
        masters = await _masters(client)
        for name, address in masters.items():
            note = await client.create_topic(
                address, args.topic, args.queues, perm=args.perm, attributes=_attributes(args.retention_hours)
            )
            _warn(name, note)
    queues = "1 queue" if args.queues == 1 else f"{args.queues} queues"
    _say(args, f"{args.topic}: {queues} on each of {', '.join(masters)}", {"brokers": list(masters)})
    return 0


async def _update(args: argparse.Namespace) -> int:
    async with cluster_client(args) as client:
        masters = await _masters(client)
        tables = {
            name: fastjson.loads((await client.call(address, RequestCode.GET_ALL_TOPIC_CONFIG, {})).body)
            for name, address in masters.items()
        }
        rows = {name: table["topicConfigTable"].get(args.topic) for name, table in tables.items()}
        found = {name: row for name, row in rows.items() if row is not None}
        if not found:
            raise RequestRefusedError(next(iter(masters.values())), ResponseCode.TOPIC_NOT_EXIST, f"no {args.topic}")
        for name, row in found.items():
            note = await client.create_topic(
                masters[name],
                args.topic,
                args.queues or row["writeQueueNums"],
                read_queues=args.queues or row["readQueueNums"],
                perm=args.perm or row["perm"],
                sys_flag=row.get("topicSysFlag", 0),
                attributes=_attributes(args.retention_hours),
            )
            _warn(name, note)
    _say(args, f"{args.topic}: changed on {', '.join(found)}", {"brokers": list(found)})
    return 0


async def _delete(args: argparse.Namespace) -> int:
    async with cluster_client(args) as client:
        masters = await _masters(client)
        # an error if the topic does not exist: brokers accept a delete of any topic
        await client.queues(args.topic, writable=False)
        for address in masters.values():
            await client.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": args.topic})
        for address in client.nameservers:
            await client.call(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": args.topic})
    _say(args, f"{args.topic}: deleted on {', '.join(masters)}", {"brokers": list(masters)})
    return 0


async def _status(args: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    async with cluster_client(args) as client:
        queues = await client.queues(args.topic, writable=False)
        for name, address in sorted({(queue.broker_name, queue.address) for queue in queues}):
            answer = await client.call(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": args.topic})
            for queue, offsets in fastjson.loads(answer.body)["offsetTable"].items():
                place = dict(queue) if not isinstance(queue, str) else fastjson.loads(queue)
                rows.append({"broker": name, "queueId": place["queueId"], **offsets})
    rows.sort(key=lambda row: (row["broker"], row["queueId"]))
    if args.json:
        print(json.dumps(rows))
        return 0
    cells = [
        (
            str(row["broker"]),
            str(row["queueId"]),
            str(row["minOffset"]),
            str(row["maxOffset"]),
            _local_time(row["lastUpdateTimestamp"]),
        )
        for row in rows
    ]
    print(table(cells, ("broker", "queue", "first", "next", "last stored")))
    return 0


def _attributes(retention_hours: int | None) -> str:
    return "" if retention_hours is None else f"+{RETENTION}={retention_hours}"


def _warn(broker: str, note: str) -> None:
    if note:
        print(f"{broker}: {note}", file=sys.stderr)


async def _masters(client: ClusterClient) -> dict[str, str]:
    masters = await client.masters()
    if not masters:
        raise RequestRefusedError("name server", 1, "no broker is registered")
    return masters


def _say(args: argparse.Namespace, text: str, data: dict[str, Any]) -> None:
    print(json.dumps(data) if args.json else text)


def _local_time(timestamp_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp_ms / 1000)) if timestamp_ms > 0 else "-"
