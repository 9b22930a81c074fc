"""What the handlers of changes share: the result of a change as an answer, and the ETag that a caller saw."""

from __future__ import annotations

from tallystick.admin.models import Change, OffsetChange, StepState, json_of
from tallystick.console.api.interface import Answer, Call
from tallystick.console.api.problems import ProblemError


def done(change: Change | OffsetChange) -> Change | OffsetChange:
    """Returns a change without a failed step. ProblemError: one failed; `change` has the result of each."""
    failed = [step for step in change.steps if step.state is StepState.FAILED]
    if failed:
        reasons = "; ".join(str(step.error) for step in failed[:3])
        detail = f"{len(failed)} of {len(change.steps)} steps failed: {reasons}"
        raise ProblemError("incomplete", detail, change=json_of(change))
    return change


def with_etag(value: object, etag: str) -> Answer:
    """Returns an answer with the ETag of what it shows."""
    return Answer(value, headers={"ETag": f'"{etag}"'} if etag else {})


def condition(call: Call) -> str | None:
    """Returns what a change requires: the ETag that the caller saw; "": it must not exist; None: nothing.

    ProblemError: the headers cannot be used."""
    if call.values.get("If-None-Match") is None:
        return _etag(call["If-Match"])
    if call["If-Match"] is not None:
        raise ProblemError("invalid-request", "give If-Match or If-None-Match, not both")
    return ""


def _etag(if_match: str | None) -> str | None:
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip()
    if "," in text or not (text.startswith('"') and text.endswith('"') and len(text) > 2):
        raise ProblemError("invalid-request", 'If-Match has one ETag as an answer had it, such as "1f3a", or *')
    return text[1:-1]
