"""The status of a User. Pure. An unchanged state produces an equal status."""

from __future__ import annotations

from tallystick.operator.core.conditions import Condition, merged
from tallystick.operator.core.declared import Phase, Problem
from tallystick.operator.core.kube import Json
from tallystick.operator.users import reasons
from tallystick.operator.users.decide import Decision


def status_of(decision: Decision, failure: Problem | None, now: float) -> Json:
    """Returns the status after a pass. `failure`: what went wrong in it; None: nothing."""
    declared = decision.declaration
    before = declared.body.get("status") or {}
    problem = failure or decision.problem
    if problem is None:
        text = f"available on {', '.join(decision.groups)} and on the name servers"
        ready = Condition("Ready", True, reasons.RECONCILED, text)
    else:
        ready = Condition("Ready", False, problem.reason, problem.message)
    found: Json = {
        "observedGeneration": declared.generation,
        "phase": str(Phase.READY if problem is None else problem.phase),
        "userName": declared.user,
        "secretName": declared.secret,
        "conditions": merged(before.get("conditions") or (), now, declared.generation, (ready,)),
    }
    return found | ({"groups": list(decision.groups)} if decision.groups else {})
