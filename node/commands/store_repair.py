"""`tally store repair`: shows what is wrong with the files of a stopped broker, and repairs what can be repaired.

Exit codes: 0 the store is sound now; 1 damage is left, or `--dry-run` found some (the text says what to do); 2 it could
not be tried or did not finish (no store, a broker has it open, disk full, wrong arguments). A repair that did not
finish can be run again.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.node.commands.terminal import (
    StageLines,
    add_overrides,
    bad,
    error_text,
    good,
    overrides,
    uncoloured,
    wrapped,
)
from tallystick.store.findings import Finding, FindingKind
from tallystick.store.verify.log_loss import LogLoss
from tallystick.store.verify.repair_plan import MEMBER_ADVICE, RepairPlan

if TYPE_CHECKING:
    from tallystick.store.verify.repair import StoreRepair

_MOST_SHOWN = 20
_LABEL_COLUMNS = 8

_DESCRIPTION = """\
Repairs the files of a broker that is not running. ConsumeQueues, the index and
files of progress are rebuilt from the log. A damaged table in config/ is
replaced by its backup. The log itself is not changed: a damaged record stays
where it is, and the broker skips it.

--cut POS removes the log from byte POS on, with all records behind it. Without
--cut the command shows for each damaged place what a cut would lose."""

_EPILOG = """\
exit codes: 0 the store is sound; 1 damage is left (or --dry-run found some);
2 not tried or not finished: no store, a broker has it open, a full disk.
After 2 the command can be run again."""


_DAMAGED_LOG = (
    "The log is damaged. Its sound records are served, also those behind the damage; nothing has to be cut. A copy of "
    "the file from a backup or another disk can take its place. To cut the log instead, and lose what follows, choose "
    "a place:"
)
_NO_BACKUP = (
    "The next start keeps it under another name and restores rows from other files (operation.md, Damaged tables); or "
    "put a copy of the table in its place."
)
_UNREADABLE = (
    "It may be sound, so its backup does not take its place, and a start is refused. Repair the disk, or put a copy of "
    "the table in its place."
)


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `store repair`."""
    repair = kinds.add_parser(
        "repair",
        help="rebuild damaged derived files from the log of a stopped broker",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    repair.add_argument("dir", type=Path, metavar="DIR", help="the store's folder")
    repair.add_argument("--dry-run", action="store_true", help="show what a repair would do; write nothing")
    repair.add_argument("--cut", type=int, metavar="POS", help="also remove the log from this byte on")
    repair.add_argument("--log", type=Path, metavar="DIR", help="folder of the log, if it is elsewhere")
    add_overrides(repair)
    repair.add_argument("--json", action="store_true", help="print the result as JSON")
    repair.set_defaults(call=run_repair)


def run_repair(args: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code: see the module's docstring."""
    from tallystick.store.verify.repair import StoreRepair, summary_json

    logging.getLogger("tallystick").addHandler(logging.NullHandler())  # what is done is printed below
    chosen = overrides(args)
    if args.log is not None:
        chosen["storePathCommitLog"] = str(args.log)
    after: RepairPlan | None = None
    done: list[Finding] = []
    stages = StageLines()
    with StoreRepair.opened(args.dir, chosen, dry_run=args.dry_run) as repair:
        try:
            before = repair.look(stages.progress)
            stages.clear()
            if not args.json:
                print(_found(before), flush=True)
            if not args.dry_run:
                done = _run(repair, before, args.cut, stages)
                after = repair.look(stages.progress)
        finally:
            stages.clear()
    if args.json:
        print(json.dumps(summary_json(before, done, after)))
    else:
        print(_planned(before, args.dir) if after is None else _ended(done, after, args.dir))
    return 0 if (after or before).report.sound else 1


def _run(repair: StoreRepair, plan: RepairPlan, cut: int | None, stages: StageLines) -> list[Finding]:
    try:
        return repair.run(plan, cut, stages.progress)
    except OSError as error:
        print(f"tally: {error_text(error)}: the repair did not finish; run it again", file=sys.stderr)
        raise SystemExit(2) from None


# -- text --------------------------------------------------------------------------------------------------------------


def _found(plan: RepairPlan) -> str:
    report = plan.report
    lines = [_labelled(bad("damage"), str(finding)) for finding in report.damage[:_MOST_SHOWN]]
    if report.damaged > _MOST_SHOWN:
        lines.append(f"        ... and {report.damaged - _MOST_SHOWN} more; tally store verify lists them")
    lines += [_labelled("note", str(finding)) for finding in report.notes[:_MOST_SHOWN]]
    if plan.interrupted:
        lines.append(_labelled("note", "an earlier repair did not finish"))
    where = f"{report.layout} from {report.min_pos} to {report.end_pos}"
    lines.append(wrapped(f"{report.records} records in {report.segments} segments, {where}"))
    return "\n".join(lines)


def _labelled(label: str, text: str) -> str:
    """Returns a label, which may be coloured, and a text in the column behind it, also after line breaks."""
    return wrapped(label + " " * (_LABEL_COLUMNS - len(uncoloured(label))) + text, _LABEL_COLUMNS)


def _planned(plan: RepairPlan, root: Path) -> str:
    """Returns the lines that say what a repair would do."""
    lines = []
    if plan.queues and not plan.waits_for_peer:
        names = sorted(f"{topic}/{queue}" for topic, queue in plan.queues)
        more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        lines.append(f"would rebuild ConsumeQueues from the log: {', '.join(names[:_MOST_SHOWN])}{more}")
    if plan.index_from and not plan.waits_for_peer:
        lines.append(f"would rebuild the index from file {plan.index_from} on")
    for path, backup in plan.tables.items():
        if backup is not None:
            lines.append(f"would replace {path.relative_to(root)} by its backup {backup.name}")
    for path in plan.short_files:
        lines.append(f"would extend {path.relative_to(root)} with zeros")
    if not lines and plan.useful:
        lines.append("would write the files of progress and close the store in order")
    lines = [wrapped(line, 2) for line in lines]
    return "\n".join([*lines, *_left(plan, root), _verdict(plan, "nothing was changed")])


def _ended(done: list[Finding], plan: RepairPlan, root: Path) -> str:
    done = [finding for finding in done if finding.kind is not FindingKind.DAMAGE]  # shown before
    lines = [_labelled("done", finding.sentence()) for finding in done]
    return "\n".join([*lines, *_left(plan, root), _verdict(plan, f"{len(done)} changes" if done else "nothing to do")])


def _verdict(plan: RepairPlan, what: str) -> str:
    report = plan.report
    return good(f"sound: {what}") if report.sound else bad(f"{report.damaged} damaged: {what}")


def _left(plan: RepairPlan, root: Path) -> list[str]:
    """Returns the lines that say what the repair leaves, and what an operator can do."""
    lines: list[str] = []
    if plan.waits_for_peer:
        rebuilt = "ConsumeQueues and index are rebuilt when the log is sound."
        lines.append(wrapped(f"The log of this member is damaged. {MEMBER_ADVICE}. {rebuilt}"))
    elif plan.log:
        lines.append(wrapped(_DAMAGED_LOG))
        for loss in plan.losses[:_MOST_SHOWN]:
            lines += _loss(loss, root)
    for path, backup in plan.tables.items():
        if path in plan.unreadable:
            lines.append(wrapped(f"{path.relative_to(root)} cannot be read. {_UNREADABLE}"))
        elif backup is None and path.exists():
            lines.append(wrapped(f"{path.relative_to(root)} has no sound backup. {_NO_BACKUP}"))
    return lines


def _loss(loss: LogLoss, root: Path) -> list[str]:
    files = f" and {len(loss.files)} whole files" if loss.files else ""
    place = f"{loss.file} at byte {loss.offset} on"
    lines = [f"removes {loss.bytes} bytes from {place}, with {loss.records} sound records{files}"]
    for (topic, queue), lost in sorted(loss.queues.items())[:_MOST_SHOWN]:
        lines.append(f"{topic} queue {queue}: {lost.count} messages, offsets {lost.first} to {lost.last}")
    if len(loss.queues) > _MOST_SHOWN:
        lines.append(f"... and {len(loss.queues) - _MOST_SHOWN} more queues")
    # The command is not wrapped, so that it can be copied.
    return [f"  tally store repair {root} --cut {loss.pos}", *(wrapped(f"    {line}", 2) for line in lines)]
