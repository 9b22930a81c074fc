"""The command `tally-operator`. It tells a user which packages are missing before it imports the operator."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status, 2 also if a package of the extra `operator` is not installed."""
    try:
        from tallystick.operator.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tallystick"):
            raise
        problem = f"{error.name} is not installed: run pip install 'tallystick[operator]'"
        print(f"tally-operator: {problem}", file=sys.stderr)
        return 2
    return run(arguments)
