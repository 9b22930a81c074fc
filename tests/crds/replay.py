"""Sends the cases of `cases.yaml` to a real API server with the definitions of `crds/`.

python tests/crds/replay.py [--namespace NAME]    needs kubectl on PATH and a cluster; exit status 1: a case failed

It creates and deletes the objects of the cases, so no operator may watch the namespace.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CASES = Path(__file__).with_name("cases.yaml")
API_VERSION = "tallystick.dev/v1beta1"
_TIMEOUT_S = 60

Case = dict[str, Any]


def cases() -> list[Case]:
    """All cases, in the order of the file."""
    found: list[Case] = yaml.safe_load(CASES.read_text())
    return found


def manifest(case: Case, namespace: str) -> dict[str, Any]:
    """The object that a case creates."""
    made: dict[str, Any] = {"apiVersion": API_VERSION, **case["create"]}
    return {**made, "metadata": {**made["metadata"], "namespace": namespace}}


def kubectl(*words: str, given: object = None) -> subprocess.CompletedProcess[str]:
    text = None if given is None else json.dumps(given)
    return subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True, timeout=_TIMEOUT_S)


def problem(case: Case, namespace: str) -> str | None:
    """What the API server does otherwise than the case says; None: nothing."""
    wanted = manifest(case, namespace)
    target = (f"{wanted['kind']}.tallystick.dev", wanted["metadata"]["name"], "--namespace", namespace)
    update = case.get("update")
    dry = () if update else ("--dry-run=server",)
    answer = kubectl("create", "--validate=strict", *dry, "-f", "-", given=wanted)
    if update:
        try:
            if answer.returncode:
                return f"could not be created: {answer.stderr.strip()}"
            patch = ("patch", *target, "--dry-run=server", "--type=merge", "--patch", json.dumps(update))
            answer = kubectl(*patch)
        finally:
            kubectl("delete", *target, "--ignore-not-found", "--wait=true")
    refused = case.get("refused")
    if refused is None:
        return f"refused: {answer.stderr.strip()}" if answer.returncode else None
    if not answer.returncode:
        return f"accepted, but expected: {refused}"
    return None if refused in answer.stderr else f"refused otherwise ({refused}): {answer.stderr.strip()}"


def problems(namespace: str) -> Iterator[str]:
    """One text for each case that is wrong."""
    for case in cases():
        found = problem(case, namespace)
        if found is not None:
            yield f"{case['name']}: {found}"


def main() -> int:
    parser = argparse.ArgumentParser(description="what the API server accepts and refuses, case by case")
    parser.add_argument("--namespace", default="default", help="where objects are made and deleted (default)")
    wrong = list(problems(parser.parse_args().namespace))
    print(*wrong, f"{len(cases())} cases, {len(wrong)} wrong", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
