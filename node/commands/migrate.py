"""`tally migrate plan|attach|watch|rehearse|switch|verify|back`: a cluster of RocketMQ 4.8 moves to tallystick.

Each master gets a tallystick slave, or a group that follows it, which then takes its place. Every action can be
repeated: it looks at the present state, and does what is left to do. Only `switch` and `back` change something.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from tallystick.node.commands.http_port import NoAnswerError, ask
from tallystick.node.commands.terminal import InputError, bad, good, number, table, wrapped
from tallystick.node.commands.tls_options import add_credentials_option, add_tls_options, cluster_client
from tallystick.node.core import migration
from tallystick.node.core.client import ClusterClient
from tallystick.node.core.migration import Facts, Place
from tallystick.node.remoting.errors import RemotingError

_LIMIT_S = 120.0
_LOOK_S = 2.0
_ACTIONS = {
    "plan": "show what will move, what will behave differently, and how to start the slaves",
    "attach": "wait until every master has a slave that copies it",
    "watch": "show the slaves until all of them follow closely",
    "rehearse": "compare slaves with masters, and check that the switch can be made",
    "switch": "promote the slaves, one after the other",
    "verify": "compare the new masters with the old ones: queues, offsets, a sample of messages",
    "back": "let masters accept messages again that were fenced by a switch that did not come to its end",
}


def add_parsers(commands: Any) -> None:
    """Adds `migrate` and its actions."""
    migrate = commands.add_parser("migrate", help="move a cluster of RocketMQ to tallystick while it runs")
    actions = migrate.add_subparsers(title="actions", metavar="ACTION", required=True)
    calls = dict(zip(_ACTIONS, (_plan, _attach, _watch, _rehearse, _switch, _verify, _back), strict=True))
    for name, text in _ACTIONS.items():
        parser = actions.add_parser(name, help=text)
        parser.add_argument(
            "--from",
            dest="nameserver",
            required=True,
            metavar="NAMESRV",
            help="host:port of its name servers",
        )
        if name != "plan":
            parser.add_argument(
                "--slave",
                action="append",
                required=True,
                metavar="HOST:PORT",
                help="HTTP port of a tallystick slave, or of a member of a group; once for each of them",
            )
            parser.add_argument("--token-file", type=Path, help="file with a token from the slaves' adminTokenFile")
        if name in ("attach", "watch"):
            parser.add_argument("--wait", type=number(0, 1_000_000), default=600, help="seconds to wait at most (600)")
        if name in ("rehearse", "verify"):
            parser.add_argument("--sample", type=number(0, 1_000_000), default=1000, help="messages to compare (1000)")
        if name == "switch":
            text = (
                "seconds between two brokers: clients need them to use the new routes (30, as pollNameServerInterval)"
            )
            parser.add_argument("--pause", type=number(0, 86_400), default=30, help=text)
        add_credentials_option(parser, os.environ.get("TALLY_CREDENTIALS") or "")
        add_tls_options(parser)
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.set_defaults(call=_run(calls[name]))


def _run(action: Callable[[argparse.Namespace], Coroutine[Any, Any, int]]) -> Callable[[argparse.Namespace], int]:
    return lambda args: asyncio.run(action(args))


def _print(args: argparse.Namespace, value: Any, text: str) -> None:
    print(json.dumps(value) if args.json else text)


# -- the slaves --------------------------------------------------------------------------------------------------------


def _one(args: argparse.Namespace, place: str) -> argparse.Namespace:
    """The options of a request to one slave. Its HTTP port uses TLS if `--slave` says https://, whatever the name
    servers use."""
    names = ("ca", "tls_cert", "tls_key", "any_certificate") if place.startswith("https://") else ()
    return argparse.Namespace(http=place, token_file=args.token_file, **{name: getattr(args, name) for name in names})


def _node(args: argparse.Namespace, place: str) -> dict[str, Any]:
    """GET /node of a slave. NoAnswerError."""
    status, found = ask(_one(args, place), "GET", "/node")
    if status != 200:
        raise NoAnswerError(f"{place}: {found.get('error', 'no broker answers there')}")
    return found


async def _slaves(args: argparse.Namespace) -> dict[str, tuple[str, dict[str, Any]]]:
    """By broker name: the HTTP port and GET /node. Of the members of a group this is its leader, if it is among them.
    InputError: they do not belong together; NoAnswerError: a slave, or no member of a group, answers."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    silent: list[NoAnswerError] = []
    for place in args.slave:
        try:
            node = await asyncio.to_thread(_node, args, place)
        except NoAnswerError as error:
            silent.append(error)  # another member of its group may answer
            continue
        name = str(node.get("group"))
        if node.get("copy") is None:
            raise InputError(f"--slave {place}: the broker {name} there is not a slave, and was not promoted")
        if name in found and None in (node["member"], found[name][1]["member"]):
            raise InputError(f"--slave {place}: {found[name][0]} is a slave of {name}, too")
        if name not in found or node["role"] == "leader":
            found[name] = place, node
    if silent and not any(node["member"] is not None for _, node in found.values()):
        raise silent[0]
    return found


def _is_promoted(node: dict[str, Any]) -> bool:
    return bool(node["copy"]["state"] == "promoted")


async def _pairs(args: argparse.Namespace, client: ClusterClient) -> list[tuple[Place, str, dict[str, Any]]]:
    """Every broker name of the cluster with the HTTP port and the state of its slave. InputError: one has none."""
    slaves, known = await _slaves(args), await migration.places(client)
    missing = [place.name for place in known if place.name not in slaves]
    strange = sorted(slaves.keys() - {place.name for place in known})
    if missing or strange:
        reason = f"no --slave for {', '.join(missing)}" if missing else f"no broker {', '.join(strange)} in the cluster"
        raise InputError(f"--from {args.nameserver}: {reason}")
    return [(place, *slaves[place.name]) for place in known]


# -- actions -----------------------------------------------------------------------------------------------------------


async def _plan(args: argparse.Namespace) -> int:
    rows, lines, blocked = [], [], False
    async with cluster_client(args) as client:
        for place in await migration.places(client):
            if place.master is None:
                lines.append(f"{place.name}: {bad('it has no master')}")
                blocked = True
                continue
            found = await migration.facts(client, place.master)
            obstacles = migration.obstacles(found)
            blocked = blocked or bool(obstacles)
            rows.append(_plan_row(args, place, found, obstacles))
            lines += _plan_lines(rows[-1])
    _print(args, rows, "\n".join(lines))
    return 1 if blocked or not rows else 0


def _plan_row(args: argparse.Namespace, place: Place, found: Facts, obstacles: list[str]) -> dict[str, Any]:
    settings = migration.start_settings(place, found)
    command = ["tally broker --dir FOLDER --host ADDRESS", f"--nameserver '{args.nameserver}'"]
    command += [f"--set '{key}={text}'" if " " in text else f"--set {key}={text}" for key, text in settings.items()]
    return {
        "broker": place.name,
        "master": place.master,
        "version": found.version,
        "bytes": found.end - found.begin,
        "topics": found.topics,
        "groups": found.groups,
        "obstacles": obstacles,
        "different": migration.differences(found),
        "takenIds": migration.taken_ids(place),
        "settings": settings,
        "command": " ".join(command),
    }


def _plan_lines(row: dict[str, Any]) -> list[str]:
    lines = [
        f"{row['broker']}: master {row['master']} ({row['version']})",
        f"  moves: {row['bytes']} bytes of log, {row['topics']} topics, {row['groups']} groups, all offsets",
    ]
    lines += [f"  {bad('cannot be moved')}: {text}" for text in row["obstacles"]]
    lines += [wrapped(f"  differs: {text}", 2) for text in row["different"]]
    lines.append(f"  start: {row['command']}")
    lines.append("  or a group: the same settings without brokerId, and those of a group, for each member")
    return [*lines, wrapped(f"  a group: {row['takenIds']}", 2)] if row["takenIds"] else lines


async def _attach(args: argparse.Namespace) -> int:
    return await _until(args, lambda node: _is_promoted(node) or node["copy"]["state"] in ("copying", "following"))


async def _watch(args: argparse.Namespace) -> int:
    return await _until(args, lambda node: _is_promoted(node) or node["phase"] == "ready")


async def _until(args: argparse.Namespace, reached: Callable[[dict[str, Any]], bool]) -> int:
    """Shows the slaves until all of them have reached something: 0; or one has a problem that lasts: 1."""
    deadline = time.monotonic() + args.wait
    shown = ""
    while True:
        async with cluster_client(args) as client:
            pairs = await _pairs(args, client)
        nodes = {place.name: node for place, _, node in pairs}
        text = table([_row(*pair) for pair in pairs], ("broker", "slave", "state", "behind", "reason"))
        done = all(reached(node) for node in nodes.values())
        lasting = any(node["copy"]["lasting"] for node in nodes.values())
        over = done or lasting or time.monotonic() >= deadline
        if not args.json and text != shown:
            print(text, flush=True)
            shown = text
        if over:
            if args.json:
                print(json.dumps({name: node["copy"] for name, node in nodes.items()}))
            return 0 if done else 1
        await asyncio.sleep(_LOOK_S)


def _row(place: Place, http: str, node: dict[str, Any]) -> tuple[str, ...]:
    copy = node["copy"]
    state = copy["state"]
    behind = copy.get("behindBytes")
    shown = good(state) if state in ("following", "promoted") else bad(state) if copy["lasting"] else state
    return place.name, http, shown, "" if behind is None else f"{behind} bytes", copy["reason"] or node["reason"] or ""


async def _compare(
    args: argparse.Namespace, client: ClusterClient, node: dict[str, Any], theirs: str
) -> migration.Compared:
    """Compares a slave, or the leader of a group, with its master or old master."""
    alone = node["member"] is None
    return await migration.compare(
        client, node["address"], theirs, sample=args.sample, rng=random.Random(), same_positions=alone
    )


async def _rehearse(args: argparse.Namespace) -> int:
    rows, problems = [], []
    async with cluster_client(args) as client:
        for place, http, node in await _pairs(args, client):
            if _is_promoted(node):
                rows.append((place.name, http, good("promoted already"), ""))
                continue
            if node["phase"] != "ready" or place.master is None:
                problems.append(f"{place.name}: the slave {http} is not ready: {node['reason'] or 'no master'}")
                continue
            obstacles = migration.obstacles(await migration.facts(client, place.master))
            problems += [f"{place.name}: {text}" for text in obstacles]
            found = await _compare(args, client, node, place.master)
            problems += [f"{place.name}: {text}" for text in found.problems]
            rows.append((place.name, http, _summary(found), f"{found.behind} messages on the way"))
    return _concluded(args, rows, problems)


async def _switch(args: argparse.Namespace) -> int:
    rows: list[tuple[str, ...]] = []
    async with cluster_client(args) as client:
        pairs = await _pairs(args, client)
    promoted_one = False
    for place, http, node in pairs:
        if promoted_one and not _is_promoted(node):
            # A producer of several brokers must not find two of them fenced.
            await asyncio.sleep(args.pause)
        promoted_one = promoted_one or not _is_promoted(node)
        status, answer = await asyncio.to_thread(ask, _one(args, http), "POST", "/promotion", {}, _LIMIT_S)
        if status != 200:
            return _concluded(args, rows, [f"{place.name}: {http} refused: {answer.get('error', 'no reason given')}"])
        lost = answer.get("strayBytes", 0)
        rows.append((place.name, http, good("promoted"), f"at {answer['end']}, {lost} bytes were not copied"))
    return _concluded(args, rows, [])


async def _verify(args: argparse.Namespace) -> int:
    rows, problems = [], []
    async with cluster_client(args) as client:
        for place, http, node in await _pairs(args, client):
            if not _is_promoted(node):
                problems.append(f"{place.name}: the slave {http} is not promoted")
                continue
            if place.master != node["address"]:
                problems.append(f"{place.name}: the name server has {place.master} as master, not {node['address']}")
            least = 1 if node["member"] is None else migration.OLD_MASTER_ID  # before it are the members of the group
            old = [address for number, address in sorted(place.addresses.items()) if number >= least]
            if not old:
                rows.append((place.name, http, good("promoted"), "the old master is gone: nothing to compare with"))
                continue
            try:
                found = await _compare(args, client, node, old[0])
            except RemotingError as error:
                rows.append((place.name, http, good("promoted"), f"the old master does not answer: {error}"))
                continue
            problems += [f"{place.name}: {text}" for text in found.problems]
            if found.behind:
                problems.append(f"{place.name}: {found.behind} messages of {old[0]} are missing")
            if found.late_offsets:
                problems.append(f"{place.name}: {found.late_offsets} offsets of groups are lower than at {old[0]}")
            rows.append((place.name, http, _summary(found), f"compared with {old[0]}"))
    return _concluded(args, rows, problems)


async def _back(args: argparse.Namespace) -> int:
    rows: list[tuple[str, ...]] = []
    problems = []
    for name, (http, node) in (await _slaves(args)).items():
        if _is_promoted(node):
            problems.append(f"{name}: {http} is the master, and the old master can only become its slave")
            continue
        status, answer = await asyncio.to_thread(ask, _one(args, http), "DELETE", "/promotion", None, _LIMIT_S)
        text = f"{answer['master']} accepts messages again" if status == 200 else str(answer.get("error"))
        rows.append((name, http, "slave", text))
    return _concluded(args, rows, problems)


def _summary(found: migration.Compared) -> str:
    return f"{found.queues} queues, {found.offsets} offsets, {found.sampled} messages compared"


def _concluded(args: argparse.Namespace, rows: Sequence[tuple[str, ...]], problems: Sequence[str]) -> int:
    """Prints rows and problems; the exit status."""
    if args.json:
        print(json.dumps({"brokers": [list(row) for row in rows], "problems": problems}))
    elif rows:
        print(table(rows, ("broker", "slave", "state", "")))
    for problem in problems:
        print(f"tally: {problem}", file=sys.stderr)
    return 1 if problems else 0
