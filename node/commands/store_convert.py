"""`tally store convert`: converts the store of a stopped broker between the plain layout of the log and dledger's.

Exit codes: 0 converted, everything is in the new store; 1 converted, without the damaged places that `--skip-damage`
left out; 2 not finished: the text says why. Run again, it continues.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.node.commands.terminal import (
    StageLines,
    add_overrides,
    bad,
    error_text,
    good,
    number,
    overrides,
    table,
    wrapped,
)

if TYPE_CHECKING:
    from tallystick.store._kernel import Door
    from tallystick.store.convert.conversion import Options, Summary

_MOST_SHOWN = 20
_SMALLEST_SEGMENT = 4096
_LARGEST_SEGMENT = 1 << 31

_NOT_FOR_ROCKETMQ = (
    "RocketMQ dispatches nothing while a queue ends with placeholders, as these do: use tallystick, and open the store "
    "with RocketMQ only after each of them has got a message"
)

_DESCRIPTION = """\
Copies the store of a broker that is not running into an empty folder, with its
log in the other layout: `plain` for a broker without a group, `dledger` for
the first member of a group. RocketMQ's stores of both kinds are read as well.

Queue offsets, times, hosts, properties and keys stay as they are. Positions in
the log change, and with them offset message ids. The old store is not changed."""

_EPILOG = """\
exit codes: 0 converted; 1 converted without the damaged places that
--skip-damage left out; 2 not finished, nothing is lost: run the same command
again, and it continues. The new folder is no store before all of it was
compared with the old one. docs/operation.md says how to start a group on it."""


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `store convert`."""
    convert = kinds.add_parser(
        "convert",
        help="copy a store into the other layout of the log: plain, or a member of a group",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    convert.add_argument("source", type=Path, metavar="SOURCE", help="the folder of the old store")
    convert.add_argument("target", type=Path, metavar="TARGET", help="the folder of the new store: empty, or new")
    convert.add_argument("--to", choices=("plain", "dledger"), required=True, help="the layout of the new log")
    convert.add_argument("--member", default="n0", metavar="ID", help="dLegerSelfId of the new member (default: n0)")
    convert.add_argument(
        "--segment-bytes",
        type=number(_SMALLEST_SEGMENT, _LARGEST_SEGMENT),
        metavar="BYTES",
        help="mappedFileSizeCommitLog of the new store (default: as in the old one)",
    )
    convert.add_argument(
        "--skip-damage", action="store_true", help="leave out damaged records, and keep the offsets of their queues"
    )
    convert.add_argument("--log", type=Path, metavar="DIR", help="folder of the old store's commitlog, if elsewhere")
    add_overrides(convert, " (messageDelayLevel)")
    convert.add_argument("--json", action="store_true", help="print the result as JSON")
    convert.set_defaults(call=run_convert)


def run_convert(args: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code: see the module's docstring."""
    from tallystick.node.broker.group.membership import member_number
    from tallystick.replication.metadata.entry import MetadataError
    from tallystick.store._kernel import DamageError, Door
    from tallystick.store.convert.conversion import Conversion
    from tallystick.store.convert.source import ConvertError
    from tallystick.store.engine.recovery import RecoveryError
    from tallystick.store.formats.conversion import JournalError

    logging.getLogger("tallystick").addHandler(logging.NullHandler())  # what is done is printed below
    member_number("--member", args.member)
    door, stages = Door(), StageLines()
    try:
        summary = Conversion(args.source, args.target, _options(args, door), door).run(stages.progress)
    except (ConvertError, JournalError, RecoveryError, DamageError, MetadataError) as error:
        stages.clear()
        print(f"tally: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        stages.clear()
        again = "the conversion did not finish; run it again, and it continues"
        print(f"tally: {error_text(error)}: {again}", file=sys.stderr)
        return 2
    finally:
        stages.clear()
    if summary is None:
        print(
            json.dumps({"complete": True}) if args.json else good("complete: an earlier run had converted everything")
        )
        return 0
    print(json.dumps(_to_json(summary)) if args.json else _text(args, summary))
    return 1 if summary.state.gaps else 0


def _options(args: argparse.Namespace, door: Door) -> Options:
    from tallystick.node.broker.group.conversion import member_finisher, tables_of_member, written_end_of
    from tallystick.store.convert.conversion import Options

    ledgers = [path.parent for path in sorted(args.source.glob("dledger-*/data"))]
    ledger = ledgers[0] if len(ledgers) == 1 else None  # more than one is refused
    return Options(
        layout=args.to,
        member=args.member,
        segment_bytes=args.segment_bytes,
        skip_damage=args.skip_damage,
        log_folder=args.log,
        overrides=overrides(args),
        ledger_end=-1 if ledger is None else written_end_of(ledger),
        tables={} if ledger is None else tables_of_member(args.source / "config", ledger),
        finish_member=member_finisher(door, args.target / "config"),
    )


# -- text --------------------------------------------------------------------------------------------------------------


def _topics(summary: Summary) -> list[tuple[str, int, int, int, int]]:
    """(topic, queues, messages, least first offset, greatest last offset) of each topic."""
    found: dict[str, list[Any]] = defaultdict(list)
    for row in summary.contents.queues.values():
        found[row.topic.decode(errors="backslashreplace")].append(row)
    return [
        (
            topic,
            len(rows),
            sum(row.records for row in rows),
            min((row.first for row in rows if row.first >= 0), default=-1),
            max(row.last for row in rows),
        )
        for topic, rows in sorted(found.items())
    ]


def _text(args: argparse.Namespace, summary: Summary) -> str:
    state, lines = summary.state, []
    rows = [tuple(str(cell) for cell in row) for row in _topics(summary)]
    if rows:
        lines += [table(rows, ("topic", "queues", "messages", "first offset", "last offset")), ""]
    lines += [wrapped(f"note    {note}", 8) for note in summary.notes[:_MOST_SHOWN]]
    lines += [wrapped(f"{bad('damage')}  {gap}", 8) for gap in state.gaps[:_MOST_SHOWN]]
    if len(state.gaps) > _MOST_SHOWN:
        lines.append(f"        ... and {len(state.gaps) - _MOST_SHOWN} more damaged places; --json lists them")
    for (topic, queue), end in sorted(summary.raised.items())[:_MOST_SHOWN]:
        lines.append(wrapped(f"note    {topic} queue {queue} continues at offset {end}, as in the old store", 8))
    if summary.raised and state.layout == "plain":
        lines.append(wrapped(f"note    {_NOT_FOR_ROCKETMQ}", 8))
    if len(summary.raised) > _MOST_SHOWN:
        lines.append(f"        ... and {len(summary.raised) - _MOST_SHOWN} more queues")
    if state.dangling:
        lines.append(
            wrapped(f"note    {state.dangling} records end a transaction whose half message is not in the log", 8)
        )
    report = summary.report
    lines.append(
        f"{state.records} records, {report.units} units in {report.queues} queues, {report.index_entries} keys"
    )
    if state.own_entries:
        lines.append(f"{state.own_entries} entries of the old group itself are not in the new log")
    lines.append(f"{report.layout.replace('.converting', '')} from {report.min_pos} to {report.end_pos}")
    if state.gaps:
        size = sum(gap.end - gap.begin for gap in state.gaps)
        lines.append(bad(f"converted, without {len(state.gaps)} damaged places of {size} bytes"))
    else:
        lines.append(good("converted: the new store has the same messages, offsets and keys"))
    return "\n".join(lines)


def _to_json(summary: Summary) -> dict[str, Any]:
    state, report = summary.state, summary.report
    return {
        "complete": not state.gaps,
        "layout": state.layout,
        "member": state.member,
        "segmentBytes": state.segment_bytes,
        "firstPos": state.first,
        "endPos": state.target_pos,
        "records": state.records,
        "ownEntries": state.own_entries,
        "halfMessagesNamed": state.references,
        "halfMessagesMissing": state.dangling,
        "topics": [
            {"topic": topic, "queues": queues, "messages": messages, "firstOffset": first, "lastOffset": last}
            for topic, queues, messages, first, last in _topics(summary)
        ],
        "queueEndsKept": [
            {"topic": topic, "queue": queue, "offset": end} for (topic, queue), end in sorted(summary.raised.items())
        ],
        "damage": [
            {"file": gap.file, "offset": gap.offset, "bytes": gap.end - gap.begin, "reason": gap.reason}
            for gap in state.gaps
        ],
        "notes": summary.notes,
        "report": report.to_json(),
    }
