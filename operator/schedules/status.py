"""The status of a ScheduledBackup. Pure: it follows from the decision and the previous status."""

from __future__ import annotations

from tallystick.operator.backups.reasons import OVER
from tallystick.operator.core.conditions import MAX_MESSAGE, Condition, merged
from tallystick.operator.core.kube import Json
from tallystick.operator.core.times import seconds, timestamp
from tallystick.operator.schedules.decide import Decision
from tallystick.operator.schedules.observed import Run, Seen, run_name
from tallystick.operator.schedules.reasons import INVALID_SPEC, Phase
from tallystick.operator.schedules.spec import ScheduledBackup

MOST_ACTIVE = 100


def schedule_status(schedule: ScheduledBackup, seen: Seen, decision: Decision) -> Json:
    """Returns ScheduledBackup.status."""
    complete = [run for run in seen.runs if run.is_complete]
    active = [run.name for run in seen.runs if run.is_active]
    if decision.make is not None:
        active.append(run_name(schedule, decision.make))
    status: Json = {"observedGeneration": schedule.generation, "phase": str(decision.phase)}
    told = decision.waits
    status["reason"] = told.reason if told is not None else str(decision.phase)
    status["message"] = (told.message if told is not None else "")[:MAX_MESSAGE]
    if decision.last is not None:
        status["lastScheduleTime"] = timestamp(decision.last)
    if decision.next is not None:
        status["nextScheduleTime"] = timestamp(decision.next)
    if complete:
        status["lastSuccessfulBackup"] = complete[-1].name
        status["lastSuccessfulTime"] = timestamp(complete[-1].completed or complete[-1].scheduled)
    status["backups"] = len(complete)
    if active:
        status["active"] = sorted(active)[:MOST_ACTIVE]
    found = _conditions(schedule, seen, decision)
    status["conditions"] = merged(schedule.status.get("conditions") or (), seen.now, schedule.generation, found)
    return status


def refused_status(generation: int, now: float, message: str, before: Json) -> Json:
    """Returns the status of a ScheduledBackup with an invalid spec; what is known of its Backups stays."""
    found = [Condition("Scheduled", False, INVALID_SPEC, message)]
    old = before.get("conditions") or ()
    kept = [each for each in old if each.get("type") != "Scheduled"]
    told = {"phase": str(Phase.INVALID), "reason": INVALID_SPEC, "message": message[:MAX_MESSAGE]}
    changed = [*merged(old, now, generation, found), *kept]
    stays = {key: value for key, value in before.items() if key != "nextScheduleTime"}
    return {**stays, **told, "observedGeneration": generation, "conditions": changed}


def required_time(schedule: ScheduledBackup, status: Json, now: float) -> float | None:
    """Returns after which time a Backup must have completed, in seconds since 1970: the last scheduled time but one.

    None: there was none since the schedule was created, or since it was last suspended.
    """
    conditions = status.get("conditions") or ()
    scheduled: Json = next((each for each in conditions if each["type"] == "Scheduled"), {})
    if scheduled.get("status") != "True":
        return None
    since = max(schedule.created, seconds(scheduled.get("lastTransitionTime")) or 0.0)
    last = schedule.schedule.last(now)
    before = schedule.schedule.last(last - 60) if last is not None else None
    return before if before is not None and before > since else None


def _conditions(schedule: ScheduledBackup, seen: Seen, decision: Decision) -> list[Condition]:
    waits, held = decision.waits, decision.held
    suspended = decision.phase is Phase.SUSPENDED
    assert waits is not None or not suspended
    if suspended and waits is not None:
        found = [Condition("Scheduled", False, waits.reason, waits.message)]
        found.append(Condition("OnTime", None, waits.reason, waits.message))
    else:
        found = [Condition("Scheduled", True, "Scheduled", "")]
        late = Condition("OnTime", False, waits.reason, waits.message) if waits is not None else None
        found.append(late or Condition("OnTime", True, "OnTime", ""))
    found.append(_last(seen.runs))
    if schedule.retention is not None:
        if held is not None:
            found.append(Condition("Pruned", False, held.reason, held.message))
        else:
            found.append(Condition("Pruned", None if suspended else True, "Suspended" if suspended else "Pruned", ""))
    return found


def _last(runs: tuple[Run, ...]) -> Condition:
    ended = [run for run in runs if run.phase in OVER and run.deleting_since is None]
    if not ended:
        return Condition("LastBackupComplete", None, "NoBackup", "no Backup of this schedule has ended")
    run = ended[-1]
    text = f"{run.name}: {run.message}" if run.message else run.name
    return Condition("LastBackupComplete", run.is_complete, run.phase, text)
