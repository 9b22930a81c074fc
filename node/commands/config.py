"""`tally config check`: says what each setting in a configuration file does here, before a process starts with it.

Exit codes: 0 all settings apply or change nothing that clients and operators see; 1 a RocketMQ broker with this file
would behave differently, or the process would not start; 2 the file cannot be read.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tallystick.node.commands.terminal import bad, good, table, wrapped
from tallystick.node.core.config_check import Effect, Row, check_file


def add_parsers(commands: Any) -> None:
    """Adds `config check`."""
    config = commands.add_parser("config", help="check a configuration file, of tallystick or of RocketMQ")
    actions = config.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="say what each setting in a file does here; starts nothing")
    check.add_argument("file", type=Path, metavar="FILE", help="TOML, or a file of RocketMQ such as broker.conf")
    check.add_argument(
        "--nameserver", action="store_true", help="the file is for a name server process (names in properties)"
    )
    check.add_argument("--json", action="store_true", help="print the rows as JSON")
    check.set_defaults(call=_check)


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
