"""A StoreJob with a schedule: which runs to create and to delete. Pure. It works as a CronJob does with Jobs.

- Of several missed times (the operator was unavailable, a run was active, the schedule was suspended) only the last
  one is used, if it is not older than `startingDeadlineSeconds`.
- The name of a run contains its scheduled time, so a restart never creates the run twice.
- `Forbid` waits for the active run and then uses the last missed time. `Replace` deletes the active run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tallystick.operator.core.conditions import Condition, merged
from tallystick.operator.core.events import Told
from tallystick.operator.core.kube import FIELD_MANAGER, STORE_JOBS, Json
from tallystick.operator.core.manifests import manifest, owned_by
from tallystick.operator.core.names import CLUSTER
from tallystick.operator.core.schedule import MOST_MISSED
from tallystick.operator.core.times import seconds, timestamp
from tallystick.operator.jobs.names import TEMPLATE_LABEL
from tallystick.operator.jobs.reasons import OVER, Phase
from tallystick.operator.jobs.spec import RUN_FIELDS, Concurrency, Job


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was created from the template."""

    name: str
    uid: str
    created: float
    phase: str
    completed: float | None = None
    deleting: bool = False

    @property
    def active(self) -> bool:
        return self.phase not in OVER and not self.deleting


@dataclass(frozen=True, slots=True)
class Turn:
    """The decision of a pass: delete runs, then create the run that is due, then write the status."""

    scheduled: float | None = None
    """The scheduled time of the run; `make` is False if the run exists already. None: no run is due."""
    make: bool = False
    delete: tuple[Run, ...] = ()
    told: tuple[Told, ...] = field(default=())
    next: float | None = None
    last: float | None = None
    """Scheduled time of the last run before this one, in seconds since 1970; None: there was none."""


def run_of(body: Json) -> Run:
    metadata, status = body["metadata"], body.get("status") or {}
    return Run(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        created=seconds(metadata.get("creationTimestamp")) or 0.0,
        phase=str(status.get("phase") or ""),
        completed=seconds(status.get("completionTime")),
        deleting=bool(metadata.get("deletionTimestamp")),
    )


def turn(job: Job, runs: Iterable[Run], now: float) -> Turn:
    """Returns the decision. `runs`: the runs that this template owns."""
    schedule, listed = job.spec.schedule, sorted(runs, key=lambda run: (run.created, run.name))
    assert schedule is not None, "a template has a schedule"
    spent = _spent(job, listed)
    last = seconds(job.status.get("lastScheduleTime"))
    if job.spec.suspend:
        return Turn(delete=spent, last=last)
    following = schedule.after(now)
    found = schedule.due(last, job.created, now, job.spec.starting_deadline_seconds)
    due, last = found.time, found.last
    told: tuple[Told, ...] = ()
    if found.missed > MOST_MISSED:
        told = (
            Told(
                "TooManyMissedTimes",
                f"more than {MOST_MISSED} scheduled times were missed; only the last one is used",
                True,
            ),
        )
    if due is None:
        return Turn(delete=spent, told=told, next=following, last=last)
    name = run_name(job, due)
    if any(run.name == name for run in listed):
        return Turn(due, False, spent, told, following, last)
    active = tuple(run for run in listed if run.active)
    if active and job.spec.concurrency is Concurrency.FORBID:
        waits = Told("JobAlreadyActive", f"{name} is due and waits for {active[0].name}, which is still running")
        return Turn(None, False, spent, (*told, waits), following, last)
    replaced = active if job.spec.concurrency is Concurrency.REPLACE else ()
    return Turn(due, True, (*spent, *replaced), (*told, Told("JobStarted", f"created {name}")), following, last)


def run_name(job: Job, scheduled: float) -> str:
    """Returns the name of a run with the minutes since 1970, as a CronJob names its Jobs."""
    return f"{job.name}-{int(scheduled // 60)}"


def run_manifest(job: Job, spec: Mapping[str, Any], scheduled: float) -> Json:
    """Returns the StoreJob of a run. `spec`: the spec of the template in the API."""
    labels = {
        "app.kubernetes.io/name": "tallystick",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        CLUSTER: job.spec.cluster,
        TEMPLATE_LABEL: job.name,
    }
    content = {"spec": {name: spec[name] for name in RUN_FIELDS if name in spec}}
    owner = owned_by(STORE_JOBS, job.name, job.uid)
    return manifest(STORE_JOBS, job.namespace, run_name(job, scheduled), labels, content, owner=owner)


def template_status(job: Job, runs: Iterable[Run], chosen: Turn, now: float) -> Json:
    """Returns the status of a template after the turn was carried out on `runs`."""
    before, gone = job.status, {run.uid for run in chosen.delete}
    left = [run for run in runs if run.uid not in gone]
    active = {run.name for run in left if run.active}
    if chosen.scheduled is not None and chosen.make:
        active.add(run_name(job, chosen.scheduled))
    suspended = job.spec.suspend
    phase = Phase.SUSPENDED if suspended else Phase.SCHEDULED
    status: Json = {"observedGeneration": job.generation, "phase": str(phase)}
    last = chosen.scheduled if chosen.scheduled is not None else chosen.last
    if last is not None:
        status["lastScheduleTime"] = timestamp(last)
    ends = [run.completed for run in left if run.phase == Phase.COMPLETED and run.completed is not None]
    success = max([*ends, seconds(before.get("lastSuccessfulTime")) or 0.0])
    if success:
        status["lastSuccessfulTime"] = timestamp(success)
    if chosen.next is not None:
        status["nextScheduleTime"] = timestamp(chosen.next)
    if active:
        status["active"] = sorted(active)
    told = "spec.suspend is true" if suspended else ""
    found = [Condition("Scheduled", not suspended, "Suspended" if suspended else "OnTime", told)]
    status["conditions"] = merged(before.get("conditions") or (), now, job.generation, found)
    return status


def _spent(job: Job, runs: Iterable[Run]) -> tuple[Run, ...]:
    """Returns ended runs beyond the history limits, the oldest first."""
    found: list[Run] = []
    for phase, kept in ((Phase.COMPLETED, job.spec.successes_kept), (Phase.FAILED, job.spec.failures_kept)):
        over = [run for run in runs if run.phase == phase and not run.deleting]
        found += over[: max(len(over) - kept, 0)]
    return tuple(found)
