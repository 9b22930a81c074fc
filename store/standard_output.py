"""Handles a closed standard output, as in `tally ... | head`: this is not an error of the command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def while_it_is_read(program: str, command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code: 0 if the reader closed its standard output, 2 if the output cannot be
    written for another reason, which is printed. The command reports other OSErrors itself."""
    code = 0
    try:
        try:
            code = command()
        finally:
            sys.stdout.flush()  # here, so that a closed output is noticed here
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"{program}: standard output: {error.strerror}", file=sys.stderr)
            code = 2
        # Python would flush again at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
