"""`tally config show|set`: the settings of running brokers, compared and changed.

`tally config check` says what each setting in a configuration file does here, before a process starts with it. Its exit
codes: 0 all settings apply or change nothing that clients and operators see; 1 a RocketMQ broker with this file
would behave differently, or the process would not start; 2 the file cannot be read.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.node.commands.admin_command import change, change_table, changes, reads
from tallystick.node.commands.output import emit, shown
from tallystick.node.commands.terminal import InputError, assignments, bad, good, table, wrapped
from tallystick.node.core.config_check import Effect, Row, check_file

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin
    from tallystick.admin.models import Setting


def add_parsers(commands: Any) -> None:
    """Adds `config check`."""
    config = commands.add_parser("config", help="compare and change settings of brokers; check a configuration file")
    actions = config.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="say what each setting in a file does here; starts nothing")
    check.add_argument("file", type=Path, metavar="FILE", help="TOML, or a file of RocketMQ such as broker.conf")
    check.add_argument(
        "--nameserver", action="store_true", help="the file is for a name server process (names in properties)"
    )
    check.add_argument("--json", action="store_true", help="print the rows as JSON")
    check.set_defaults(call=_check)
    show = actions.add_parser("show", help="show the settings of running brokers, and where they differ")
    show.add_argument("name", nargs="*", help="names of settings (all)")
    show.add_argument("--cluster", help="name of the cluster (all)")
    show.add_argument("--differing", action="store_true", help="only settings that differ and should not")
    reads(show, _show)
    change_parser = actions.add_parser("set", help="change settings of running brokers")
    change_parser.add_argument("target", help="host:port of a broker, or the name of a cluster: all its brokers")
    change_parser.add_argument("assignment", nargs="+", metavar="NAME=VALUE", help="a setting")
    changes(change_parser, _set, confirm=True)


async def _show(admin: Admin, args: argparse.Namespace) -> int:
    found = await admin.config.settings(args.cluster)
    chosen = [
        each
        for each in found
        if (not args.name or each.name in args.name) and not (args.differing and (each.agree or each.per_broker))
    ]
    if missing := set(args.name) - {each.name for each in found}:
        raise InputError(f"no broker has the setting {min(missing)}")
    emit(args, chosen, lambda: _table(chosen))
    return 0


def _table(settings: list[Setting]) -> str:
    rows = []
    for each in settings:
        values = set(each.values.values())
        if len(values) == 1:
            rows.append((each.name, "all", shown(values.pop())))
        else:
            rows += [(each.name, address, shown(value)) for address, value in each.values.items()]
    return table(rows, ("setting", "broker", "value"))


async def _set(admin: Admin, args: argparse.Namespace) -> int:
    wanted = assignments(args.assignment)
    return await change(args, lambda dry_run: admin.config.set(args.target, wanted, dry_run=dry_run), change_table)


def _check(args: argparse.Namespace) -> int:
    rows = check_file(args.file, nameserver_alone=args.nameserver)
    if args.json:
        keys = ("key", "value", "effect", "note")
        print(json.dumps([dict(zip(keys, (*row[:2], row.effect.value, row.note), strict=True)) for row in rows]))
    else:
        print(_text(args.file, rows))
    return 0 if all(row.is_harmless for row in rows) else 1


def _text(path: Path, rows: list[Row]) -> str:
    if not rows:
        return f"{path} contains no settings"
    cells = [(row.key, row.value, row.effect.value, row.note) for row in rows]
    head, *lines = table(cells, ("setting", "value", "effect", "note")).splitlines()
    column = head.index("note")
    text = [head, *(wrapped(line, hanging=column) for line in lines), ""]
    counts = Counter(row.effect for row in rows)
    parts = [f"{counts[effect]} {_COUNTED[effect]}" for effect in Effect if counts[effect]]
    mark = good("ok") if all(row.is_harmless for row in rows) else bad("check")
    return "\n".join([*text, f"{mark}  {path}: {', '.join(parts)}"])


_COUNTED = {
    Effect.APPLIES: "apply",
    Effect.NONE: "without an effect",
    Effect.DIFFERS: "would behave differently in RocketMQ",
    Effect.REFUSED: "refused",
    Effect.UNKNOWN: "unknown",
}
