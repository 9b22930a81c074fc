"""Commands whose output goes to `head`: a reader who has enough is no error of ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def while_it_is_read(program: str, command: Callable[[], int]) -> int:
    """The command's exit code; 0 if it ended because nobody reads its standard output any more, 2 if that cannot be
    written for another reason, which is told. Other OSErrors are the command's own to tell."""
    code = 0
    try:
        try:
            code = command()
        finally:
            sys.stdout.flush()  # here, so that a reader who left is noticed here
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"{program}: standard output: {error.strerror}", file=sys.stderr)
            code = 2
        # Python would flush again at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
