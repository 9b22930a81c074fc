"""`tally top`: the live figures of a cluster, on one screen."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import TYPE_CHECKING, Any

from tallystick.node.commands.admin_command import reads
from tallystick.node.commands.output import emit, local_time, report_problems, shown
from tallystick.node.commands.terminal import table

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin
    from tallystick.admin.models import Figures

_LINES = 24
_FIXED = 9
"""Lines of the screen that are not rows of topics or groups."""


def add_parsers(commands: Any) -> None:
    """Adds `top`."""
    top = commands.add_parser("top", help="show rates, lags and disks on one screen, again every 2 seconds")
    reads(top, _top)
    top.add_argument("--once", action="store_true", help="show them once")
    top.set_defaults(watch=None)


async def _top(admin: Admin, args: argparse.Namespace) -> int:
    if args.watch is None and not args.once and sys.stdout.isatty() and args.output == "table":
        args.watch = 2
    figures = await admin.clusters.figures()
    emit(args, figures, lambda: _screen(figures))
    return report_problems(figures.problems)


def _screen(figures: Figures) -> str:
    """The busiest topics and the groups with the largest lag, as many as there is room for."""
    rows = max(3, (shutil.get_terminal_size((80, _LINES)).lines - _FIXED - len(figures.disks)) // 2)
    topics = sorted(figures.topics.items(), key=lambda pair: (-pair[1].in_per_s - pair[1].out_per_s, pair[0]))[:rows]
    lags = sorted(figures.lags.items(), key=lambda pair: (-pair[1], pair[0]))[:rows]
    busy = [(name, shown(each.in_per_s), shown(each.out_per_s)) for name, each in topics]
    disks = [(address, f"{ratio * 100:.0f} %") for address, ratio in sorted(figures.disks.items())]
    return "\n\n".join(
        (
            f"{local_time(figures.at_ms)}   in {shown(figures.in_per_s)}/s   out {shown(figures.out_per_s)}/s",
            table(busy, ("topic", "in/s", "out/s")),
            table([(name, str(lag)) for name, lag in lags], ("group", "lag")),
            table(disks, ("broker", "disk used")),
        )
    )
