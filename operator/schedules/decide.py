"""What to do about a ScheduledBackup. Pure: it follows from the schedule, its status and the observed state.

- Of several scheduled times without a Backup (the operator was unavailable, the previous Backup still ran, the schedule
  was suspended) only the last one gets a Backup, until its starting deadline.
- A Backup that is due waits while another one of the schedule runs, and for at most an hour while what one has stored
  is being deleted: `tally backup` refuses to do both at once.
- One Backup is deleted at a time, and none while a Backup of the cluster runs. After a Backup has ended, deletions come
  before the next one for ten minutes. So neither waits without a limit, even if Backups take longer than their period.
- While the schedule is suspended or its cluster hibernates, no Backup is created, and none is deleted.

The name of a Backup contains its scheduled time. So an operator that ends between the creation and the status creates
no second one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tallystick.operator.core.events import Told
from tallystick.operator.core.members import CLUSTER_HIBERNATED, Refusal, cluster_refusal
from tallystick.operator.core.schedule import MOST_MISSED, Due
from tallystick.operator.core.times import timestamp
from tallystick.operator.schedules import reasons
from tallystick.operator.schedules.observed import Run, Seen, run_name
from tallystick.operator.schedules.reasons import Phase
from tallystick.operator.schedules.retention import surplus, used_by
from tallystick.operator.schedules.spec import ScheduledBackup

DELETION_SECONDS = 3600.0
"""So long a Backup that is due waits for a deletion. It is created then, even if the deletion never ends."""

PRUNING_SECONDS = 600.0
"""So long after the end of a Backup, deletions come before the next one."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`carry_out.py` creates `make`, and deletes `prune`; then the status is written. Times are seconds since 1970."""

    phase: Phase
    last: float | None = None
    """Scheduled time of the last Backup, including one that is created now; None: there is none."""
    make: float | None = None
    """Scheduled time of the Backup to create; None: none is created."""
    next: float | None = None
    prune: Run | None = None
    """The Backup to delete."""
    spare: tuple[Run, ...] = ()
    """Backups that were about to be deleted, and that the retention keeps after all."""
    waits: Refusal | None = None
    """Why the Backup that is due is not created now, or never."""
    held: Refusal | None = None
    """Why Backups that the retention does not keep still exist."""
    told: tuple[Told, ...] = ()


def decide(schedule: ScheduledBackup, seen: Seen) -> Decision:
    """Returns what to do."""
    if stopped := _stopped(schedule, seen):
        return Decision(Phase.SUSPENDED, schedule.last, waits=stopped)
    due, following = _due(schedule, seen.now), schedule.schedule.after(seen.now)
    decision = Decision(Phase.SCHEDULED, due.last, next=following)
    if due.is_set_back:
        message = "the clock was set back: the scheduled times up to now count as done"
        decision = replace(decision, told=(Told("ClockSetBack", message, True),))
    if due.expired is not None:
        message = f"the starting deadline of {timestamp(due.expired)} is over; this time gets no Backup"
        refusal = Refusal(reasons.DEADLINE_EXCEEDED, message)
        decision = replace(decision, waits=refusal, told=(*decision.told, Told(refusal.reason, message, True)))
    elif due.time is not None:
        decision = _begin(schedule, seen, due, due.time, decision)
    return _retain(schedule, seen, decision)


def _stopped(schedule: ScheduledBackup, seen: Seen) -> Refusal | None:
    if schedule.suspend:
        return Refusal(reasons.SUSPENDED, "spec.suspend is true")
    refusal = cluster_refusal(schedule.cluster, seen.cluster, None)
    return refusal if refusal is not None and refusal.reason == CLUSTER_HIBERNATED else None


def _due(schedule: ScheduledBackup, now: float) -> Due:
    """Returns what is due. With `immediate`, the first Backup is due at once, unless a scheduled time has come."""
    due = schedule.schedule.due(schedule.last, schedule.created, now, schedule.starting_deadline_seconds)
    return Due(schedule.first, 1) if schedule.immediate and schedule.last is None and due.time is None else due


def _begin(schedule: ScheduledBackup, seen: Seen, due: Due, time: float, decision: Decision) -> Decision:
    """Adds the Backup that is due, or why it cannot be created now."""
    name = run_name(schedule, time)
    if any(run.name == name for run in seen.runs):
        return replace(decision, last=time)  # created by a pass that ended before it wrote the status
    if waits := _obstacle(schedule, seen, name) or _pruning(schedule, seen, name):
        event = Told(waits.reason, waits.message)
        return replace(decision, phase=Phase.WAITING, waits=waits, told=(*decision.told, event))
    told: tuple[Told, ...] = ()
    if due.missed > 1:
        count = f"more than {MOST_MISSED}" if due.missed > MOST_MISSED else str(due.missed - 1)
        message = f"{count} scheduled times before {timestamp(time)} got no Backup; the last one gets {name}"
        told = (Told("MissedTimes", message, True),)
    return replace(decision, last=time, make=time, told=(*decision.told, *told))


def _obstacle(schedule: ScheduledBackup, seen: Seen, name: str) -> Refusal | None:
    if refusal := cluster_refusal(schedule.cluster, seen.cluster, None):
        return Refusal(refusal.reason, f"{name} is due: {refusal.message}")
    active = [run for run in seen.runs if run.is_active]
    if active:
        phase = active[0].phase or "Pending"
        return Refusal(reasons.PREVIOUS_RUNNING, f"{name} is due and waits for {active[0].name}, which is {phase}")
    for run in seen.runs:
        if run.deleting_since is not None and seen.now < run.deleting_since + DELETION_SECONDS:
            return Refusal(reasons.DELETION_RUNNING, f"{name} is due and waits for the deletion of {run.name}")
    return None


def _pruning(schedule: ScheduledBackup, seen: Seen, name: str) -> Refusal | None:
    """Returns why a Backup that is due waits for a deletion that can begin now."""
    ended = max((run.completed or 0.0 for run in seen.runs), default=0.0)
    free = _free(schedule, seen)
    if not free or seen.others or not seen.now - PRUNING_SECONDS < ended:
        return None
    return Refusal(reasons.DELETION_RUNNING, f"{name} is due and waits for the deletion of {free[0].name}")


def _free(schedule: ScheduledBackup, seen: Seen) -> list[Run]:
    """Returns the Backups that the retention does not keep, and from which no cluster is being restored."""
    return [run for run in surplus(seen.runs, schedule.retention) if not used_by(run, seen.clusters)]


def _retain(schedule: ScheduledBackup, seen: Seen, decision: Decision) -> Decision:
    """Adds the Backup to delete, or why none is deleted now."""
    found, free = surplus(seen.runs, schedule.retention), _free(schedule, seen)
    spare = tuple(run for run in seen.runs if run.is_expired and run.deleting_since is None and run not in free)
    decision = replace(decision, spare=spare)
    running = [*(run.name for run in seen.runs if run.is_active), *seen.others]
    if decision.make is not None:
        running.append(run_name(schedule, decision.make))
    if going := [run for run in seen.runs if run.deleting_since is not None]:
        message = f"{going[0].name} is being deleted" + (f": {going[0].message}" if going[0].message else "")
        return replace(decision, held=Refusal(reasons.DELETING, message))
    if free and running:
        message = f"{free[0].name} is deleted when {running[0]} has ended"
        return replace(decision, held=Refusal(reasons.BACKUP_RUNNING, message))
    if free:
        message = f"the retention does not keep {free[0].name}"
        told = Told("BackupExpired", f"{message}: it is deleted with what it has stored")
        return replace(decision, prune=free[0], held=Refusal(reasons.DELETING, message), told=(*decision.told, told))
    if found:
        message = f"{found[0].name} is kept: BrokerCluster {used_by(found[0], seen.clusters)} is being restored"
        return replace(decision, held=Refusal(reasons.IN_USE, message))
    return decision
