"""What happens next to a run: pure, from its status so far and what was seen. One step a pass.

    (new), SubmissionFailed ─▶ Submitted ─▶ Running ─▶ Succeeding ─▶ Completed
             ▲    │                ▲  └────────┴────▶ Failing ────▶ Failed
             └────┘ cannot start   └ PendingRerun ◀──── an attempt failed, and one is left
    Suspended ◀── from all of these but the last two columns; and back to the beginning

What makes it safe to be cut off between any two writes:

1. The plan of an attempt is written when none of the job's pods is there, and before the status names the attempt. Its
   pods are made only while both name the same one: pods of two attempts, or of two plans, never meet.
2. Workers are made first, the driver last: once it is there, nothing is missing.
3. How an attempt ended is in the status before any of its pods is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tallystick.operator.core.kube import Json
from tallystick.operator.core.times import seconds
from tallystick.operator.jobs import reasons
from tallystick.operator.jobs.observed import JobPod, Seen
from tallystick.operator.jobs.reasons import OVER, Phase, Refusal
from tallystick.operator.jobs.result import Result, outcome
from tallystick.operator.jobs.spec import Job

KUBELET_SECONDS = 20.0
"""A driver that runs is stopped at its deadline by its machine, which keeps its log; we wait for that."""


class Action(Enum):
    """What is done besides the status."""

    NOTHING = "nothing"
    PREPARE = "prepare"
    """Choose volumes, write the plan; then the status, then `START`."""
    START = "start"
    """Make the pods of the plan that are missing."""
    DELETE_PODS = "delete pods"
    EXPIRE = "expire"
    """Delete the StoreJob itself."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`phase`, `attempt` and the rest stand in the status before `action` is done; but for PREPARE, see
    `reconcile.py`."""

    phase: Phase
    action: Action = Action.NOTHING
    attempt: int = 0
    reason: str = ""
    """Why it failed or cannot start, one word; empty: it does not say."""
    message: str = ""
    result: Result | None = None
    delete: tuple[JobPod, ...] = field(default=())


def decide(job: Job, seen: Seen) -> Decision:
    """The next step of a run (a StoreJob without a schedule)."""
    match job.phase:
        case Phase.COMPLETED | Phase.FAILED:
            return _over(job, seen)
        case Phase.SUCCEEDING | Phase.FAILING:
            return _ending(job, seen)
        case Phase.SUBMITTED | Phase.RUNNING:
            return _under_way(job, seen)
    if job.spec.suspend:
        return _suspended(seen)
    if job.phase == Phase.PENDING_RERUN:
        return _between(job, seen)
    return _waiting(job, seen)


def held(job: Job, decision: Decision, refusal: Refusal) -> Decision:
    """Instead of PREPARE: it cannot start now."""
    phase = Phase.PENDING_RERUN if job.phase == Phase.PENDING_RERUN else Phase.SUBMISSION_FAILED
    attempt = job.attempt if phase is Phase.PENDING_RERUN else 0
    return Decision(phase, Action.NOTHING, attempt, refusal.reason, refusal.message)


def _waiting(job: Job, seen: Seen) -> Decision:
    """Nothing of it was begun, or it was suspended, or could not start."""
    if seen.pods:
        return Decision(
            Phase.SUBMISSION_FAILED,
            Action.DELETE_PODS,
            0,
            "",
            "waiting for earlier pods to be deleted",
            None,
            _going(seen),
        )
    since = seconds(job.status.get("waitingSince"))
    if since is not None and seen.now >= since + job.spec.deadline_seconds:
        told = f"the run could not start within {job.spec.deadline_seconds} s: {job.status.get('message', '')}"
        return Decision(Phase.FAILED, Action.NOTHING, 0, reasons.DEADLINE_EXCEEDED, told)
    return Decision(Phase.SUBMITTED, Action.PREPARE, 1)


def _between(job: Job, seen: Seen) -> Decision:
    """An attempt failed; the next begins when nothing is left of it."""
    last = str(job.status.get("message") or "")
    if seen.now >= job.deadline:
        return _failed(job, seen, Refusal(reasons.DEADLINE_EXCEEDED, _late(job)))
    if seen.pods:
        return Decision(Phase.PENDING_RERUN, Action.DELETE_PODS, job.attempt, "", last, None, _going(seen))
    return Decision(Phase.SUBMITTED, Action.PREPARE, job.attempt + 1)


def _under_way(job: Job, seen: Seen) -> Decision:
    driver, attempt = seen.driver, job.attempt
    if driver is not None and driver.ended is not None and driver.attempt == attempt:
        found = outcome(driver.ended)
        if isinstance(found, Result):
            return Decision(
                *(Phase.SUCCEEDING, Action.DELETE_PODS, attempt, "", found.message, found),
                delete=seen.unfinished(),
            )
        return _failed(job, seen, found)
    if job.spec.suspend:
        return _suspended(seen)
    runs = driver is not None and driver.running and not driver.deleting
    if seen.now >= job.deadline + (KUBELET_SECONDS if runs else 0.0):
        return _failed(job, seen, Refusal(reasons.DEADLINE_EXCEEDED, _late(job)))
    if strangers := tuple(pod for pod in seen.pods if pod.attempt != attempt):
        going = tuple(pod for pod in strangers if not pod.deleting)
        return Decision(
            Phase(job.phase),
            Action.DELETE_PODS,
            attempt,
            "",
            "waiting for pods of another attempt to be deleted",
            None,
            going,
        )
    if driver is None:
        return _without_driver(job, seen)
    if driver.deleting:
        return Decision(Phase(job.phase), Action.NOTHING, attempt, "", f"{driver.name} is being deleted")
    if driver.running:
        return Decision(Phase.RUNNING, Action.NOTHING, attempt)
    return Decision(
        Phase(job.phase), Action.NOTHING, attempt, "", driver.waiting and f"the driver is waiting: {driver.waiting}"
    )


def _without_driver(job: Job, seen: Seen) -> Decision:
    if job.phase == Phase.RUNNING:
        return _failed(job, seen, Refusal(reasons.DRIVER_LOST, "the driver pod no longer exists"))
    if seen.planned(job.attempt):
        return Decision(Phase.SUBMITTED, Action.START, job.attempt, *_still_refused(job))
    if seen.pods:
        return _failed(job, seen, Refusal(reasons.PLAN_LOST, "the plan no longer exists, but pods created from it do"))
    return Decision(Phase.SUBMITTED, Action.PREPARE, job.attempt)


def _still_refused(job: Job) -> tuple[str, str]:
    """Why its pods could not be made so far, which stands until they are; empty: nobody refused them."""
    conditions = job.status.get("conditions") or ()
    started: Json = next((each for each in conditions if each["type"] == "Started"), {})
    return (str(started["reason"]), str(started["message"])) if started.get("status") == "False" else ("", "")


def _failed(job: Job, seen: Seen, failure: Refusal) -> Decision:
    """The attempt is over. A deadline is the last word; else there may be another attempt."""
    told = f"attempt {job.attempt}: {failure.message}"
    if failure.reason != reasons.DEADLINE_EXCEEDED and job.attempt <= job.spec.max_retries:
        return Decision(Phase.PENDING_RERUN, Action.DELETE_PODS, job.attempt, failure.reason, told, None, _going(seen))
    return Decision(Phase.FAILING, Action.DELETE_PODS, job.attempt, failure.reason, told, None, seen.unfinished())


def _suspended(seen: Seen) -> Decision:
    return Decision(
        Phase.SUSPENDED,
        Action.DELETE_PODS if seen.pods else Action.NOTHING,
        0,
        "",
        "spec.suspend is true",
        None,
        _going(seen),
    )


def _ending(job: Job, seen: Seen) -> Decision:
    """Over, and the workers go. That they are gone is not waited for: a machine that is lost never says so."""
    phase, last = Phase(job.phase), str(job.status.get("message") or "")
    if left := seen.unfinished():
        return Decision(phase, Action.DELETE_PODS, job.attempt, "", last, None, left)
    end = Phase.COMPLETED if phase is Phase.SUCCEEDING else Phase.FAILED
    return Decision(end, Action.NOTHING, job.attempt, "", last)


def _over(job: Job, seen: Seen) -> Decision:
    phase, last = Phase(job.phase), str(job.status.get("message") or "")
    assert phase in OVER
    if left := seen.unfinished():  # made by a request of an operator that is gone, which came late
        return Decision(phase, Action.DELETE_PODS, job.attempt, "", last, None, left)
    expires = expires_at(job)
    action = Action.EXPIRE if expires is not None and seen.now >= expires else Action.NOTHING
    return Decision(phase, action, job.attempt, "", last)


def expires_at(job: Job) -> float | None:
    """When a run that is over is deleted; None: never."""
    completed = seconds(job.status.get("completionTime"))
    return None if completed is None or job.spec.ttl_seconds is None else completed + job.spec.ttl_seconds


def _going(seen: Seen) -> tuple[JobPod, ...]:
    return tuple(pod for pod in seen.pods if not pod.deleting)


def _late(job: Job) -> str:
    return f"the run did not finish within {job.spec.deadline_seconds} s"
