"""The result of a driver: its exit status, and at most 4 KiB of JSON in the termination message of its pod.

0   completed: the JSON is the result, with any verdict
2   not possible: the JSON contains the reason
1   an unexpected error; so is any other status
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tallystick.operator.core.kube import Json
from tallystick.operator.core.members import Refusal
from tallystick.operator.jobs import reasons
from tallystick.operator.jobs.observed import Ended

DONE, NOT_DONE = 0, 2
MAX_TEXT = 1000
_WORD = re.compile("[A-Za-z][A-Za-z0-9]{0,63}")
"""A verdict. It becomes the reason of a condition, for which the API server requires this form."""
MAX_DIFFERENCES = 64
MAX_SOURCES = 320
MAX_LINES, MAX_LINE = 10, 200
CLEAN = "Clean"
FOUND = frozenset({"DifferencesFound", "DamageFound"})
"""Verdicts that cause a warning event."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result in the form of the status; fields of a wrong type are removed."""

    status: Json

    @property
    def verdict(self) -> str:
        return str(self.status["verdict"])

    @property
    def message(self) -> str:
        return str(self.status.get("message") or "")


def outcome(ended: Ended) -> Result | Refusal:
    """Returns the result, or why the attempt failed."""
    said = _json(ended.message)
    if ended.exit_code == DONE:
        if isinstance(said.get("verdict"), str) and _WORD.fullmatch(said["verdict"]):
            return Result(_status(said))
        return Refusal(reasons.NO_RESULT, "the driver succeeded but wrote no result")
    told = _told(said, ended.message)
    if ended.reason == reasons.DEADLINE_EXCEEDED:
        return Refusal(reasons.DEADLINE_EXCEEDED, "the run was stopped at its deadline")
    if ended.exit_code == NOT_DONE and "program" in said:
        return Refusal(reasons.PROGRAM_FAILED, told or "the program failed")
    if ended.exit_code == NOT_DONE:
        return Refusal(reasons.NOT_DONE, told or "the driver gave no reason")
    if ended.exit_code is None:
        return Refusal(reasons.DRIVER_LOST, f"{ended.reason}: {told}" if told else ended.reason)
    exit_ = f"exit status {ended.exit_code}" + (f", {ended.reason}" if ended.reason not in ("", "Error") else "")
    return Refusal(reasons.DRIVER_FAILED, f"{exit_}: {told}" if told else exit_)


def program_of(ended: Ended) -> Json | None:
    """Returns how a user's program ended, in the form of the status; None: the job is another one, or it never ran."""
    said = _json(ended.message).get("program")
    if not isinstance(said, dict) or not _is_integer(said.get("exitCode")):
        return None
    log = said.get("log")
    lines = [str(line)[:MAX_LINE] for line in log[-MAX_LINES:]] if isinstance(log, list) else []
    return {"exitCode": said["exitCode"], "log": lines}


def _json(text: str) -> Mapping[str, Any]:
    try:
        found = orjson.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _told(said: Mapping[str, Any], text: str) -> str:
    for key in ("error", "message"):
        if isinstance(said.get(key), str) and said[key]:
            return str(said[key])[:MAX_TEXT]
    lines = text.strip().splitlines()
    return lines[-1].strip()[:MAX_TEXT] if lines else ""


def _status(said: Mapping[str, Any]) -> Json:
    found: Json = {"verdict": said["verdict"], "message": str(said.get("message") or "")[:MAX_TEXT]}
    if _is_number(said.get("seconds")):
        found["seconds"] = said["seconds"]
    figures = said.get("figures")
    if isinstance(figures, dict):
        found["figures"] = {name: value for name, value in figures.items() if _is_integer(value)}
    if sources := _sources(said.get("sources")):
        found["sources"] = sources
    differences = said.get("differences")
    if isinstance(differences, list) and differences:
        found["differences"] = [str(each) for each in differences[:MAX_DIFFERENCES]]
    if isinstance(said.get("output"), str):
        found["output"] = said["output"]
    return found


def _sources(given: Any) -> list[Json]:
    found: dict[str, Json] = {}
    for each in given if isinstance(given, list) else ():
        if not isinstance(each, dict) or not isinstance(each.get("node"), str) or not each["node"]:
            continue
        row: Json = {"node": each["node"]}
        row |= {name: each[name] for name in ("bound", "records") if _is_integer(each.get(name))}
        if isinstance(each.get("via"), str):
            row["via"] = each["via"]
        found.setdefault(each["node"], row)
    return list(found.values())[:MAX_SOURCES]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
