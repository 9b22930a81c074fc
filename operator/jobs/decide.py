"""The next step of a run. Pure: it follows from the previous status and the observed state. Each pass does one step.

    (new), SubmissionFailed ─▶ Submitted ─▶ Running ─▶ Succeeding ─▶ Completed
             ▲    │                ▲  └────────┴────▶ Failing ────▶ Failed
             └────┘ cannot start   └ PendingRerun ◀──── an attempt failed, and a retry is left
    Suspended ◀── from all phases except the last two columns; the run then starts again

It is safe to interrupt a pass between any two writes:

1. The plan of an attempt is written while no pod of the job exists, and before the status names the attempt. Pods are
   created only while both name the same attempt, so pods of two attempts or plans never run together.
2. Workers are created first, the driver last. Once the driver exists, the set of pods is complete.
3. The status contains how an attempt ended before any of its pods is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from tallystick.operator.core.kube import Json
from tallystick.operator.core.members import Refusal
from tallystick.operator.core.times import seconds
from tallystick.operator.jobs import reasons
from tallystick.operator.jobs.observed import Ended, JobPod, Seen
from tallystick.operator.jobs.reasons import OVER, Phase
from tallystick.operator.jobs.result import Result, outcome, program_of
from tallystick.operator.jobs.spec import Job

KUBELET_SECONDS = 20.0
"""Time for the kubelet to stop a running driver at its deadline. Unlike a deletion, this keeps its log."""


class Action(Enum):
    """What a pass does besides writing the status."""

    NOTHING = "nothing"
    PREPARE = "prepare"
    """Choose volumes and write the plan; then write the status, then `START`."""
    START = "start"
    """Create missing pods of the plan."""
    DELETE_PODS = "delete pods"
    EXPIRE = "expire"
    """Delete the StoreJob itself."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The status contains `phase`, `attempt` and the other fields before `action` is carried out, except for PREPARE:
    see `reconcile.py`."""

    phase: Phase
    action: Action = Action.NOTHING
    attempt: int = 0
    reason: str = ""
    """Machine-readable reason why it failed or cannot start; empty: none of these."""
    message: str = ""
    result: Result | None = None
    delete: tuple[JobPod, ...] = field(default=())
    program: Json | None = None
    """How a user's program ended."""


def decide(job: Job, seen: Seen) -> Decision:
    """Returns the next step of a run (a StoreJob without a schedule)."""
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
    """Returns the decision that replaces PREPARE if the run cannot start now."""
    phase = Phase.PENDING_RERUN if job.phase == Phase.PENDING_RERUN else Phase.SUBMISSION_FAILED
    attempt = job.attempt if phase is Phase.PENDING_RERUN else 0
    return Decision(phase, Action.NOTHING, attempt, refusal.reason, refusal.message)


def _waiting(job: Job, seen: Seen) -> Decision:
    """The run has not started, was suspended, or could not start."""
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
    """An attempt failed. The next one starts when its pods are deleted."""
    last = str(job.status.get("message") or "")
    if seen.now >= job.deadline:
        return _failed(job, seen, Refusal(reasons.DEADLINE_EXCEEDED, _late(job)))
    if seen.pods:
        return Decision(Phase.PENDING_RERUN, Action.DELETE_PODS, job.attempt, "", last, None, _going(seen))
    return Decision(Phase.SUBMITTED, Action.PREPARE, job.attempt + 1)


def _under_way(job: Job, seen: Seen) -> Decision:
    driver, attempt = seen.driver, job.attempt
    if driver is not None and driver.ended is not None and driver.attempt == attempt:
        return replace(_ended(job, seen, driver.ended), program=program_of(driver.ended))
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


def _ended(job: Job, seen: Seen, ended: Ended) -> Decision:
    found = outcome(ended)
    if isinstance(found, Refusal):
        return _failed(job, seen, found)
    delete = seen.unfinished()
    return Decision(Phase.SUCCEEDING, Action.DELETE_PODS, job.attempt, "", found.message, found, delete)


def _without_driver(job: Job, seen: Seen) -> Decision:
    if job.phase == Phase.RUNNING:
        return _failed(job, seen, Refusal(reasons.DRIVER_LOST, "the driver pod no longer exists"))
    if seen.planned(job.attempt):
        return Decision(Phase.SUBMITTED, Action.START, job.attempt, *_still_refused(job))
    if seen.pods:
        return _failed(job, seen, Refusal(reasons.PLAN_LOST, "the plan no longer exists, but pods created from it do"))
    return Decision(Phase.SUBMITTED, Action.PREPARE, job.attempt)


def _still_refused(job: Job) -> tuple[str, str]:
    """Returns why the API server rejected its pods, until they exist; empty: it rejected none."""
    conditions = job.status.get("conditions") or ()
    started: Json = next((each for each in conditions if each["type"] == "Started"), {})
    return (str(started["reason"]), str(started["message"])) if started.get("status") == "False" else ("", "")


def _failed(job: Job, seen: Seen, failure: Refusal) -> Decision:
    """The attempt has ended. There may be a retry, but not after the deadline."""
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
    """The attempt has ended; its workers are deleted. A failed Kubernetes node never confirms it, so no pass waits."""
    phase, last = Phase(job.phase), str(job.status.get("message") or "")
    if left := seen.unfinished():
        return Decision(phase, Action.DELETE_PODS, job.attempt, "", last, None, left)
    end = Phase.COMPLETED if phase is Phase.SUCCEEDING else Phase.FAILED
    return Decision(end, Action.NOTHING, job.attempt, "", last)


def _over(job: Job, seen: Seen) -> Decision:
    phase, last = Phase(job.phase), str(job.status.get("message") or "")
    assert phase in OVER
    if left := seen.unfinished():  # created by a delayed request of an earlier operator
        return Decision(phase, Action.DELETE_PODS, job.attempt, "", last, None, left)
    expires = expires_at(job)
    action = Action.EXPIRE if expires is not None and seen.now >= expires else Action.NOTHING
    return Decision(phase, action, job.attempt, "", last)


def expires_at(job: Job) -> float | None:
    """Returns when an ended run is deleted, in seconds since 1970; None: never."""
    completed = seconds(job.status.get("completionTime"))
    return None if completed is None or job.spec.ttl_seconds is None else completed + job.spec.ttl_seconds


def _going(seen: Seen) -> tuple[JobPod, ...]:
    return tuple(pod for pod in seen.pods if pod.own and not pod.deleting)


def _late(job: Job) -> str:
    return f"the run did not finish within {job.spec.deadline_seconds} s"
