"""The status of a declaration after a pass. Pure: the time is an argument.

Ready: the object exists on all declared broker groups and can be used. Synced: it matches the spec on all of them. A
topic with more queues than declared is Ready but not Synced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tallystick.operator.core.conditions import Condition, merged
from tallystick.operator.core.declared import Phase, Problem
from tallystick.operator.core.kube import Json
from tallystick.operator.topics import reasons
from tallystick.operator.topics.decide import Decision
from tallystick.operator.topics.kinds import CONSUMER_GROUP, TOPIC, S

FIGURES = frozenset(TOPIC.figures) | frozenset(CONSUMER_GROUP.figures)


def concluded(
    decision: Decision[S],
    failures: Mapping[str, Problem],
    now: float,
    name_field: str,
    figures: Mapping[str, Mapping[str, int]] | None = None,
) -> Json:
    """Returns the status after the writes. `failures`: errors by group; `figures`: new counters by group.

    It equals the previous status if nothing changed.
    """
    declaration = decision.declaration
    problem = _worst(decision.problem, failures)
    excess = "; ".join(decision.excess)
    groups = _groups(decision, failures.keys(), figures or {})
    status = _verdict(decision, problem, excess, now)
    status[name_field] = declaration.subject
    if groups:
        status["groups"] = groups
    if any("queues" in row for row in groups):
        status["queues"] = sum(row.get("queues", 0) for row in groups)
    if decision.owned or declaration.status.get("ownedGroups"):
        status["ownedGroups"] = sorted(decision.owned)
    return status


def _worst(problem: Problem | None, failures: Mapping[str, Problem]) -> Problem | None:
    """Returns the problem to report: errors that a user must correct precede temporary ones."""
    found = [each for each in (problem, *failures.values()) if each is not None]
    if not found:
        return None
    if problem is not None and problem.phase is Phase.DELETING:
        told = "; ".join(each.message for each in failures.values())
        return Problem(Phase.DELETING, next(iter(failures.values())).reason, told) if failures else problem
    worst = next((each for each in found if each.phase is Phase.REFUSED), found[0])
    told = "; ".join(dict.fromkeys(each.message for each in found if each.phase is worst.phase))
    return Problem(worst.phase, worst.reason, told)


def _verdict(decision: Decision[S], problem: Problem | None, excess: str, now: float) -> Json:
    if problem is not None:
        there = ", ".join(sorted(decision.confirmed.keys() - decision.writes.keys()))
        told = problem.message + (f" (it matches the spec on {there})" if there else "")
        holds = None if problem.reason == reasons.CLUSTER_HIBERNATED else False  # no broker can be asked
        ready = Condition("Ready", holds, problem.reason, told)
        synced = Condition("Synced", holds, problem.reason, told)
        phase = problem.phase
    else:
        there = ", ".join(sorted(decision.confirmed.keys() | set(decision.silent)))
        ready = Condition("Ready", True, reasons.RECONCILED, f"available on {there}")
        synced = Condition("Synced", True, reasons.RECONCILED, "it matches the spec on all groups")
        if excess:
            told = f"{excess}; queues are never removed because they may hold messages"
            synced = Condition("Synced", False, reasons.QUEUES_NOT_LOWERED, told)
        phase = Phase.READY
    declaration = decision.declaration
    before = declaration.status.get("conditions") or ()
    return {
        "observedGeneration": declaration.generation,
        "phase": str(phase),
        "conditions": merged(before, now, declaration.generation, (ready, synced)),
    }


def _groups(decision: Decision[S], failed: Iterable[str], figures: Mapping[str, Mapping[str, int]]) -> list[Json]:
    """Returns a row for each group with the object. Groups without a response or a write keep their previous row."""
    old = {row["name"]: row for row in decision.declaration.status.get("groups") or ()}
    unheard = set(decision.silent) | set(failed)
    if decision.problem is not None and decision.problem.phase is Phase.DELETING:
        unheard |= old.keys()
    rows = {name: dict(row) for name, row in old.items() if name in unheard}
    for name, settings in decision.confirmed.items():
        if name in unheard:
            continue
        counted = {key: value for key, value in old.get(name, {}).items() if key in FIGURES}
        rows[name] = {"name": name, **settings.shown(), **counted, **figures.get(name, {})}
    return [rows[name] for name in sorted(rows, key=_number)]


def _number(group: str) -> tuple[int, str]:
    """Sort key by number: orders-10 follows orders-9."""
    tail = group.rpartition("-")[2]
    return (int(tail) if tail.isdecimal() else 0, group)
