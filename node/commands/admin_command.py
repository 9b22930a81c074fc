"""What all commands on the admin core share: their options, how they run, and how they show and confirm changes."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from tallystick.admin.models import Change, OffsetChange, Page, Problem, Resent, StepState
from tallystick.client.core.errors import ClientError
from tallystick.node.access.opening import read_credentials
from tallystick.node.commands.contexts import add_context_option
from tallystick.node.commands.output import add_output_option, emit, report_problems, shown
from tallystick.node.commands.terminal import InputError, bad, error_text, good, number, table
from tallystick.node.commands.tls_options import add_credentials_option, add_tls_options, tls_context

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin

Work = Callable[["Admin", argparse.Namespace], Awaitable[int]]
_CLEAR = "\x1b[H\x1b[2J"


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which cluster is asked, and how."""
    parser.add_argument(
        "--nameserver", "-n", help="host:port of the name servers, separated by ';' ($TALLY_NAMESERVER, 127.0.0.1:9876)"
    )
    add_credentials_option(parser, None)  # a context may have it
    add_context_option(parser)
    add_tls_options(parser)


def reads(parser: argparse.ArgumentParser, work: Work) -> None:
    """Makes a command that shows something: --output, --watch."""
    _common(parser, work)
    parser.add_argument(
        "--watch",
        nargs="?",
        const=2,
        type=number(1, 3600),
        metavar="SECONDS",
        help="show it again every 2 seconds, or after this number of seconds, until Ctrl-C",
    )


def changes(parser: argparse.ArgumentParser, work: Work, *, confirm: bool = False) -> None:
    """Makes a command that changes something: --output, --dry-run, and with `confirm` --yes."""
    _common(parser, work)
    parser.add_argument("--dry-run", action="store_true", help="show what would be changed, and change nothing")
    if confirm:
        parser.add_argument("--yes", "-y", action="store_true", help="do not ask, at a terminal, before the change")
    parser.set_defaults(confirm=confirm, watch=None)


def _common(parser: argparse.ArgumentParser, work: Work) -> None:
    add_cluster_options(parser)
    add_output_option(parser)
    parser.set_defaults(call=lambda args: run(args, work))


def run(args: argparse.Namespace, work: Work) -> int:
    """Runs a command with the admin core of its cluster. Returns its exit code."""
    return asyncio.run(_run(args, work))


async def _run(args: argparse.Namespace, work: Work) -> int:
    from tallystick.admin.admin import TIMEOUT_S, Admin  # late: it loads the whole client

    acl = read_credentials("--credentials", args.credentials) if args.credentials else None
    async with Admin(args.nameserver, tls=tls_context(args)() or False, acl=acl, timeout=TIMEOUT_S) as admin:
        if not getattr(args, "watch", None):
            return await work(admin, args)
        while True:
            if sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            try:
                await work(admin, args)
            except ClientError as error:  # the next time it may answer
                print(f"tally: {error_text(error)}", file=sys.stderr)
            sys.stdout.flush()
            await asyncio.sleep(args.watch)


async def change(args: argparse.Namespace, make: Callable[[bool], Awaitable[Any]], text: Callable[[Any], str]) -> int:
    """Makes a change, or shows it with --dry-run. At a terminal a change that needs it is confirmed. `make` gets
    whether to change nothing. Returns the exit code."""
    if args.dry_run:
        return show_change(args, await make(True), text)
    if args.confirm and not args.yes and sys.stdin is not None and sys.stdin.isatty():
        print(text(await make(True)), file=sys.stderr)
        print("Change this? [y/N] ", end="", file=sys.stderr, flush=True)
        if (await asyncio.to_thread(sys.stdin.readline)).strip().lower() not in ("y", "yes"):
            raise InputError("nothing was changed")
    return show_change(args, await make(False), text)


def show_change(args: argparse.Namespace, result: Any, text: Callable[[Any], str]) -> int:
    """Prints the result of a change. Returns the exit code: 1, if a step failed."""
    emit(args, result, lambda: text(result))
    failed = [Problem(where(each), each.error or "") for each in steps_of(result) if each.state is StepState.FAILED]
    return report_problems(failed)


def steps_of(result: Any) -> Sequence[Any]:
    """Returns the steps of a change, of offsets, or of messages that were sent again."""
    return result if isinstance(result, list) else result.steps


def where(step: Any) -> str:
    """Returns what a step concerns."""
    if isinstance(step, Resent):
        return f"message {step.message_id}"
    return getattr(step, "target", None) or f"{step.broker}/{step.queue}"


def change_table(result: Change | OffsetChange | list[Resent]) -> str:
    """Returns the steps of any change as a table."""
    return table([_row(step) for step in steps_of(result)], ("where", "what", "before", "after", "state"))


def _row(step: Any) -> tuple[str, ...]:
    state = good(step.state.value) if step.state is StepState.DONE else step.state.value
    state = bad(state) if step.state is StepState.FAILED else state
    if isinstance(step, Resent):
        return (step.message_id, "resend", "-", step.new_message_id or step.target, state)
    if hasattr(step, "action"):
        before, after = _differences(step.before, step.after)
        return (step.target, step.action, before, after, state)
    return (f"{step.broker}/{step.queue}", step.topic, shown(step.before), shown(step.after), state)


def _differences(before: Any, after: Any) -> tuple[str, str]:
    """Only the fields that change, if both are objects."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [name for name in after if name not in before or before[name] != after[name]]
        return tuple(" ".join(f"{name}={each.get(name)}" for name in names) or "-" for each in (before, after))  # type: ignore[return-value]
    return _text(before), _text(after)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={each}" for name, each in value.items() if each not in (None, {}, ""))
    return shown(value) if not isinstance(value, list) else json.dumps(value)


# --- lists ---


def page_options(parser: argparse.ArgumentParser, hidden: str) -> None:
    """Adds --system and --search. `hidden`: what --system shows as well."""
    parser.add_argument("--system", action="store_true", help=f"show also {hidden}")
    parser.add_argument("--search", default="", metavar="TEXT", help="only names that contain this text")


async def pages(read: Callable[..., Awaitable[Page[Any]]], args: argparse.Namespace) -> tuple[list[Any], list[Problem]]:
    """Reads all parts of a list. Returns the items and the problems."""
    items: list[Any] = []
    problems: list[Problem] = []
    cursor = None
    while True:
        page = await read(system=args.system, search=args.search, cursor=cursor)
        items += page.items
        problems += [each for each in page.problems if each not in problems]
        cursor = page.cursor
        if cursor is None:
            return items, problems
