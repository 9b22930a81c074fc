"""The command lines of the programs that are installed: help, version, and errors have one form.

PROGRAM --help      a sentence that says what the program does, its usage, its options; status 0
PROGRAM --version   `tallystick` and the version; status 0
a wrong argument    one line on standard error that names it; status 2
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NoReturn

_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


class CommandParser(argparse.ArgumentParser):
    """A parser whose help begins with the description, and whose errors are one line. So are those of its commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._arguments: Sequence[str] = ()
        self.register("action", "parsers", _Commands)

    def add_version(self) -> None:
        """Adds `--version`."""
        shown = f"tallystick {version('tallystick')}"
        self.add_argument("--version", action="version", version=shown, help="print the version and exit")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses as argparse does, and remembers the arguments for the text of an error."""
        self._arguments = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """Returns the text of `--help`: description, usage, arguments."""
        formatter = self.formatter_class(prog=self.prog)
        formatter.add_text(self.description)
        description, self.description = self.description, None
        try:
            return f"{formatter.format_help()}\n{super().format_help()}".lstrip()
        finally:
            self.description = description

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2 and one line. An unknown option is named rather than what is missing."""
        if message.startswith("the following arguments are required") and (unknown := self._unknown()):
            message = f"unrecognized arguments: {unknown}"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _unknown(self) -> str:
        """Returns the options in the arguments that this parser does not have, before a command."""
        found = []
        for argument in self._arguments:
            if argument == "--" or (self._subparsers is not None and not argument.startswith("-")):
                break
            name = argument.partition("=")[0]
            if name.startswith("-") and name != "-" and not _NUMBER.fullmatch(name) and not self._has(name):
                found.append(argument)
        return " ".join(found)

    def _has(self, name: str) -> bool:
        return any(known == name or known.startswith(name) for known in self._option_string_actions)


if TYPE_CHECKING:
    _Action = argparse._SubParsersAction[CommandParser]
else:
    _Action = argparse._SubParsersAction


class _Commands(_Action):
    """The commands of a parser. The help text of one is the description in its own help."""

    def add_parser(self, name: str, **options: Any) -> CommandParser:
        text = options.get("help", "")
        options.setdefault("description", f"{text[:1].upper()}{text[1:]}." if text else None)
        return super().add_parser(name, **options)
