"""`tally completion`: completion of commands and options in a shell.

tally completion bash > ~/.local/share/bash-completion/completions/tally
tally completion zsh  > ~/.zfunc/_tally
tally completion fish > ~/.config/fish/completions/tally.fish
"""

from __future__ import annotations

import argparse
from typing import Any

_SHELLS = ("bash", "zsh", "fish")


def add_parsers(commands: Any, program: argparse.ArgumentParser) -> None:
    """Adds `completion`. `program`: the parser of all commands."""
    completion = commands.add_parser("completion", help="print the completion of commands and options for a shell")
    completion.add_argument("shell", choices=_SHELLS, help="the shell")
    completion.set_defaults(call=_print, program=program)


def _print(args: argparse.Namespace) -> int:
    import shtab  # late: other commands do not need it

    print(shtab.complete(args.program, args.shell))
    return 0
