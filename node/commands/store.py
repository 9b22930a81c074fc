"""`tally store`: checks, repairs, converts and lists the files of a store without a broker.

`verify` compares log, queues and index, and writes nothing. Exit codes: 0 sound, 1 damage, 2 it could not check.
`repair` is in `store_repair`, `convert` in `store_convert`.
`dump` opens a copy of the store as a broker does, and lists its content in the form of RocketMQ's listing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tallystick.node.commands import store_convert, store_repair
from tallystick.node.commands.terminal import StageLines, add_overrides, bad, good, overrides
from tallystick.store.findings import MAX_LISTED, Report


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `store verify`, `store repair`, `store convert` and `store dump`."""
    store = commands.add_parser("store", help="check, repair, convert or list the files of a store")
    kinds = store.add_subparsers(title="commands", metavar="COMMAND", required=True)

    verify = kinds.add_parser("verify", help="check log, queues and index against each other; writes nothing")
    verify.add_argument("dir", type=Path, metavar="DIR", help="the store's folder")
    verify.add_argument("--log", type=Path, metavar="DIR", help="folder of the log, if it is elsewhere")
    verify.add_argument("--json", action="store_true", help="print the whole report as JSON")
    add_overrides(verify, ", such as messageDelayLevel or messageIndexEnable")
    verify.set_defaults(call=run_verify)

    store_repair.add_parser(kinds)
    store_convert.add_parser(kinds)

    dump = kinds.add_parser("dump", help="list messages, queues and answers to queries, as JSON")
    dump.add_argument("dir", type=Path, metavar="DIR", help="the store's folder")
    dump.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="where to write the listing (-: standard output)"
    )
    add_overrides(dump)
    dump.add_argument(
        "--in-place", action="store_true", help="open the store itself, which recovers it, instead of a copy"
    )
    dump.set_defaults(call=run_dump)


def run_verify(args: argparse.Namespace) -> int:
    """0: sound; 1: damage found and listed; 2: could not be checked."""
    from tallystick.store.settings import SettingsError
    from tallystick.store.verify.report import Known, VerifyError, verify

    stages = StageLines()
    try:
        known = Known.of(overrides(args))
        report = verify(args.dir, log_folder=args.log, known=known, progress=stages.progress)
    except (VerifyError, SettingsError, OSError) as error:
        print(f"tally: {error}", file=sys.stderr)
        return 2
    finally:
        stages.clear()
    print(json.dumps(report.to_json()) if args.json else _text(report))
    return 0 if report.sound else 1


def _text(report: Report) -> str:
    lines = [f"{bad('damage')}  {finding}" for finding in report.damage]
    lines += [f"note    {finding}" for finding in report.notes]
    lines += [f"        ... and {report.damaged - MAX_LISTED} more damage"] * (report.damaged > MAX_LISTED)
    lines += [f"        ... and {report.noted - MAX_LISTED} more notes"] * (report.noted > MAX_LISTED)
    where = f"{report.layout} from {report.min_pos} to {report.end_pos}"
    lines.append(f"{report.records} records in {report.segments} segments, {where}")
    lines.append(f"{report.units} units in {report.queues} queues")
    lines.append(f"{report.index_entries} entries in {report.index_files} index files")
    lines.append("the last stop was in order" if report.clean else "the last stop was not in order")
    lines.append(good("sound") if report.sound else bad(f"{report.damaged} damaged"))
    return "\n".join(lines)


def run_dump(args: argparse.Namespace) -> int:
    """0: listed; 2: the store could not be opened."""
    from tallystick.store._kernel import DamageError
    from tallystick.store.engine.lock import StoreLockedError
    from tallystick.store.engine.recovery import RecoveryError
    from tallystick.store.settings import SettingsError
    from tallystick.store.verify.dump import dump

    try:
        chosen = overrides(args)
        if not args.dir.is_dir():
            raise NotADirectoryError(f"{args.dir} is not a folder")
        listing = dump(args.dir, chosen, in_place=args.in_place)
    except (SettingsError, StoreLockedError, RecoveryError, DamageError, OSError) as error:
        print(f"tally: {error}", file=sys.stderr)
        return 2
    text = json.dumps(listing, separators=(",", ":")) + "\n"
    if str(args.json) == "-":
        sys.stdout.write(text)
    else:
        args.json.write_text(text)
    return 0
