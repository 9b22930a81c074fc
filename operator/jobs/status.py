"""The status of a run. Pure: it follows from the previous status, the observed state and the decision.

It is written before the decision is carried out, so the next pass knows the decision. An unchanged state produces an
equal status, which is not written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tallystick.operator.core.conditions import MAX_MESSAGE, Condition, merged
from tallystick.operator.core.kube import Json
from tallystick.operator.core.members import CLUSTER_HIBERNATED
from tallystick.operator.core.times import timestamp
from tallystick.operator.jobs.decide import Decision
from tallystick.operator.jobs.manifests import names_of, worker_nodes
from tallystick.operator.jobs.observed import Seen
from tallystick.operator.jobs.reasons import INVALID_SPEC, OVER, Phase
from tallystick.operator.jobs.spec import Job

BEGUN = frozenset({Phase.SUBMITTED, Phase.RUNNING, Phase.SUCCEEDING, Phase.PENDING_RERUN, Phase.FAILING})
LOCAL, BACKUP = "local", "backup"


def run_status(job: Job, seen: Seen, decision: Decision) -> Json:
    """Returns the status of a run."""
    before, phase = job.status, decision.phase
    status: Json = {"observedGeneration": job.generation, "phase": str(phase)}
    if decision.message:
        status["message"] = decision.message[:MAX_MESSAGE]
    if decision.attempt:
        status["attempt"] = decision.attempt
    status |= _times(before, seen.now, phase, decision.reason)
    if decision.attempt and seen.driver is not None and not seen.driver.deleting:
        status["driverPod"] = seen.driver.name
    elif decision.attempt and phase in BEGUN:
        status["driverPod"] = names_of(job).driver
    elif phase in OVER and "driverPod" in before:
        status["driverPod"] = before["driverPod"]
    if executors := _executors(before, seen, decision):
        status["executors"] = executors
    if phase is Phase.RUNNING and (progress := _progress(before, seen)):
        status["progress"] = progress
    result = decision.result.status if decision.result is not None else before.get("result")
    if result is not None and (phase is Phase.SUCCEEDING or phase is Phase.COMPLETED):
        status["result"] = result
    program = decision.program or (before.get("program") if decision.attempt else None)
    if program is not None:
        status["program"] = program
    found = _conditions(job, seen, decision, status)
    status["conditions"] = merged(before.get("conditions") or (), seen.now, job.generation, found)
    return status


def refused_status(generation: int, now: float, message: str, before: Json) -> Json:
    """Returns the status of a StoreJob with an invalid spec; retrying will not help."""
    found = [
        Condition("Started", False, INVALID_SPEC, message),
        Condition("Complete", False, INVALID_SPEC, message),
        Condition("Failed", True, INVALID_SPEC, message),
    ]
    return {
        "observedGeneration": generation,
        "phase": str(Phase.FAILED),
        "message": message[:MAX_MESSAGE],
        "completionTime": before.get("completionTime") or timestamp(now),
        "conditions": merged(before.get("conditions") or (), now, generation, found),
    }


def _times(before: Mapping[str, Any], now: float, phase: Phase, reason: str) -> Json:
    found: Json = {}
    if phase in BEGUN or phase in OVER:
        start = before.get("startTime") or (timestamp(now) if phase in BEGUN else None)
        if start is not None:
            found["startTime"] = start
    if phase is Phase.SUBMISSION_FAILED and reason != CLUSTER_HIBERNATED:
        found["waitingSince"] = before.get("waitingSince") or timestamp(now)
    if phase in OVER:
        found["completionTime"] = before.get("completionTime") or timestamp(now)
    return found


def _executors(before: Mapping[str, Any], seen: Seen, decision: Decision) -> Json | None:
    if not decision.attempt:
        return None
    wanted = (before.get("executors") or {}).get("wanted")
    if seen.plan is not None and seen.planned(decision.attempt):
        wanted = len(worker_nodes(seen.plan))
    if wanted is None:
        return None
    return {"wanted": wanted, "running": sum(pod.running and not pod.deleting for pod in seen.workers)}


def _progress(before: Mapping[str, Any], seen: Seen) -> Json | None:
    if seen.progress is None:
        found: Json | None = before.get("progress")
        return found
    shown: Json = {"step": seen.progress.step, "done": seen.progress.done}
    return shown if seen.progress.of is None else shown | {"of": seen.progress.of}


def _conditions(job: Job, seen: Seen, decision: Decision, status: Json) -> list[Condition]:
    phase, message = decision.phase, status.get("message", "")
    begun = phase in BEGUN or (phase in OVER and "startTime" in status)
    waits = decision.reason or str(phase)
    if begun and not (phase is Phase.SUBMITTED and decision.reason):
        started = Condition("Started", True, "Submitted", f"attempt {decision.attempt} has started")
    else:
        started = Condition("Started", False, waits, message)
    over = phase in OVER or phase in (Phase.SUCCEEDING, Phase.FAILING)
    failed = phase in (Phase.FAILING, Phase.FAILED)
    old = {each["type"]: each for each in job.status.get("conditions") or ()}
    why = decision.reason or str((old.get("Failed") or {}).get("reason") or phase)
    result: Mapping[str, Any] = status.get("result") or {}
    return [
        started,
        Condition("Complete", phase is Phase.COMPLETED, result.get("verdict") or str(phase), result.get("message", "")),
        Condition("Failed", phase is Phase.FAILED, why if failed else str(phase), message if failed else ""),
        _local(result.get("sources") or (), len(seen.plan["sources"]) if seen.plan is not None else 0, over),
    ]


def _local(sources: Sequence[Mapping[str, Any]], planned: int, over: bool) -> Condition:
    """Returns whether every volume was mounted. A result has space for a limited number of sources."""
    read = [source for source in sources if source.get("via")]
    if not read:
        return Condition("Local", None, "NothingRead" if over else "NotKnownYet")
    if all(source["via"] == BACKUP for source in read):
        return Condition("Local", False, "ReadFromBackup", f"{len(read)} backups were read")
    elsewhere = [source["node"] for source in read if source["via"] != LOCAL]
    if elsewhere:
        return Condition("Local", False, "ReadOverHttp", f"read over HTTP, in whole or in part: {', '.join(elsewhere)}")
    if len(sources) < planned:
        return Condition(
            "Local",
            None,
            "NotAllTold",
            f"{len(sources)} of {planned} volumes are listed; the log of the driver has all of them",
        )
    return Condition("Local", True, "ReadInPlace", f"{len(read)} volumes were read locally")
