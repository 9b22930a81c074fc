"""The status of a Backup. Pure: it follows from the decision and the previous status."""

from __future__ import annotations

from tallystick.operator.backups.decide import Decision, slept
from tallystick.operator.backups.reasons import INVALID_SPEC, OVER, Phase
from tallystick.operator.backups.spec import Backup
from tallystick.operator.core.conditions import MAX_MESSAGE, Condition, merged
from tallystick.operator.core.kube import Json
from tallystick.operator.core.times import timestamp


def backup_status(backup: Backup, decision: Decision, now: float) -> Json:
    """Returns Backup.status."""
    before, phase = backup.status, decision.phase
    if backup.phase in OVER and not backup.deleting:
        return dict(before)
    message = decision.message[:MAX_MESSAGE]
    status: Json = {
        "observedGeneration": backup.generation,
        "phase": str(phase),
        "reason": decision.reason or str(phase),
        "message": message,
        "groups": [dict(group) for group in decision.groups],
    }
    begun = [group["startTime"] for group in decision.groups if group.get("startTime")]
    if begun:
        status["startTime"] = min(begun)
    if phase in OVER:
        status["completionTime"] = before.get("completionTime") or timestamp(now)
    elif before.get("completionTime"):
        status["completionTime"] = before["completionTime"]
    for name in ("bytes", "newBytes"):
        status[name] = sum(int(group.get(name) or 0) for group in decision.groups)

    if decision.asleep:
        status["hibernatedSince"] = before.get("hibernatedSince") or timestamp(now)
    if total := int(backup.hibernated_seconds if decision.asleep else slept(backup, now)):
        status["hibernatedSeconds"] = total
    conditions = _conditions(backup, decision, bool(begun), message)
    status["conditions"] = merged(before.get("conditions") or (), now, backup.generation, conditions)
    return status


def refused_status(generation: int, now: float, message: str, before: Json) -> Json:
    """Returns the status of a Backup with an invalid spec; retrying will not help."""
    found = [
        Condition("Complete", False, INVALID_SPEC, message),
        Condition("Failed", True, INVALID_SPEC, message),
    ]
    return {
        "observedGeneration": generation,
        "phase": str(Phase.FAILED),
        "reason": INVALID_SPEC,
        "message": message[:MAX_MESSAGE],
        "completionTime": before.get("completionTime") or timestamp(now),
        "conditions": merged(before.get("conditions") or (), now, generation, found),
    }


def _conditions(backup: Backup, decision: Decision, begun: bool, message: str) -> list[Condition]:
    phase, reason = decision.phase, decision.reason or str(decision.phase)
    complete, failed = phase is Phase.COMPLETED, phase is Phase.FAILED
    found = [
        Condition("Started", begun, "Started" if begun else reason, "" if begun else message),
        Condition("Complete", complete, reason, message),
        Condition("Failed", failed, reason, message if failed else ""),
    ]
    if backup.verify:
        verified = [group.get("verified") for group in decision.groups]
        if any(each is False for each in verified):
            found.append(Condition("Verified", False, "Damaged", message))
        elif verified and all(verified):
            found.append(Condition("Verified", True, "Verified", "all stored objects were read and are as stored"))
        else:
            found.append(Condition("Verified", None, "NotVerifiedYet", ""))
    return found
