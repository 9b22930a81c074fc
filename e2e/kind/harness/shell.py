"""Runs what people run: docker, kind, helm, kubectl. Bounded in time; what a tool said stands in the error."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_TOLD = 2000


class ToolError(Exception):
    """A tool ended with another status than 0, or not in time. `said`: the end of its two outputs."""

    def __init__(self, command: Sequence[str], what: str, said: str) -> None:
        super().__init__(f"{' '.join(command)}: {what}\n{said}")
        self.said = said


def run(
    *command: str,
    timeout_s: float = 120,
    given: str | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Standard output. ToolError."""
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=timeout_s, cwd=folder, env=environment
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode(errors="replace") + (error.stderr or b"").decode(errors="replace")
        raise ToolError(command, f"not done within {timeout_s:g} s", said[-_TOLD:]) from error
    if done.returncode != 0:
        raise ToolError(command, f"status {done.returncode}", (done.stdout + done.stderr)[-_TOLD:])
    return done.stdout


def kubectl(*words: str, timeout_s: float = 120, given: object = None) -> str:
    """`given`: a manifest, or a list of them, for `-f -`. ToolError."""
    if isinstance(given, list):
        given = {"apiVersion": "v1", "kind": "List", "items": given}
    return run("kubectl", *words, timeout_s=timeout_s, given=None if given is None else json.dumps(given))


def apply(*manifests: Mapping[str, Any]) -> None:
    """As people do it. ToolError: the API server refuses one."""
    kubectl("apply", "-f", "-", given=list(manifests))
