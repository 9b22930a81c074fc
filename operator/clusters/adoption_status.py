"""What users are told about a cluster that takes the places of RocketMQ masters, and what is recorded there. Pure.

`status.adoption` has a row for each group. Its state is observed, and the other fields are remembered: how often a
switch failed, and what comparisons with the master found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tallystick.operator.clusters.adoption import (
    ADOPTED_CONDITION,
    DIFFERS,
    GROUPS_WAIT,
    MOST_ATTEMPTS,
    PROMOTED,
    READY_CONDITION,
    concerned,
    copy_of,
    is_active,
    is_promoted,
    name_of,
    unready,
)
from tallystick.operator.clusters.adoption_plan import AdoptionPlan
from tallystick.operator.clusters.observed import AdoptionRow, Group, Observed
from tallystick.operator.clusters.spec import Cluster
from tallystick.operator.core.conditions import Condition
from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import Names
from tallystick.operator.core.quantity import rounded
from tallystick.operator.core.times import seconds, timestamp


def rows_of(status: Json) -> dict[int, AdoptionRow]:
    """Parses `status.adoption.groups`, by number of the group."""
    found = {}
    for each in (status.get("adoption") or {}).get("groups") or ():
        number = str(each.get("name", "")).rpartition("-")[2]
        if number.isdecimal():
            lag = each.get("lagMessages")
            found[int(number)] = AdoptionRow(
                broker_name=str(each.get("brokerName") or ""),
                attempts=int(each.get("attempts") or 0),
                attempted=seconds(each.get("attemptedAt")),
                switched=seconds(each.get("switchedAt")),
                compared=seconds(each.get("comparedAt")),
                rehearsal=str(each.get("rehearsal") or ""),
                behind=None if lag is None else int(lag),
                verification=str(each.get("verification") or ""),
                error=str(each.get("lastError") or ""),
                differences=tuple(str(text) for text in each.get("differences") or ()),
            )
    return found


def with_row(status: Json, name: str, row: AdoptionRow) -> Json:
    """Returns a status with a changed record about the group of this name."""
    found = status.get("adoption") or {}
    groups = [
        {key: value for key, value in each.items() if key not in _RECORDED} | _recorded(row)
        if each.get("name") == name
        else each
        for each in found.get("groups") or ()
    ]
    return {**status, "adoption": {**found, "groups": groups}}


def next_row(cluster: Cluster, observed: Observed, group: Group, *, switches: bool) -> AdoptionRow:
    """Returns what is recorded about a group before a step is carried out. `switches`: the step is its switch."""
    row = observed.rows.get(group.number, AdoptionRow()).with_changes(broker_name=name_of(cluster, observed, group))
    if isinstance(observed.plan, AdoptionPlan) and group.number in observed.plan.different:
        row = row.with_changes(differences=observed.plan.different[group.number])
    if is_promoted(group) and row.switched is None:
        row = row.with_changes(switched=observed.now)
    if cluster.spec.adopt is not None and not cluster.spec.adopt.automatic and not is_promoted(group):
        row = row.with_changes(attempts=0, attempted=None)
    return row.with_changes(attempted=observed.now) if switches else row


def adoption_status(cluster: Cluster, observed: Observed, before: Json, switched: int | None) -> Json | None:
    """Returns `status.adoption`; None: the cluster adopts nothing. `switched`: the group that this pass switches."""
    if observed.adopted_before == "True":
        return dict(before["adoption"]) if before.get("adoption") else None
    groups, names = concerned(cluster, observed), Names(cluster.namespace, cluster.name)
    if not groups and not is_active(cluster, observed):
        return None
    found = adopted_condition(cluster, observed)
    assert found is not None, "there is an adoption"
    told = [_group_status(cluster, names, observed, each, switches=each.number == switched) for each in groups]
    return {"state": found.reason, "groups": told}


def _group_status(cluster: Cluster, names: Names, observed: Observed, group: Group, *, switches: bool) -> Json:
    row, copy = next_row(cluster, observed, group, switches=switches), copy_of(group)
    told: Json = {
        "name": names.group(group.number),
        "state": state_of(group),
        "reason": copy.reason if copy is not None else "",
    }
    if copy is not None and copy.master:
        told["master"] = copy.master
    if copy is not None and copy.behind_bytes is not None and copy.state != PROMOTED:
        told["lagBytes"] = rounded(copy.behind_bytes)
    return told | _recorded(row)


_RECORDED = frozenset(
    {
        *("brokerName", "lastError", "differences", "attempts", "attemptedAt", "comparedAt", "switchedAt"),
        *("rehearsal", "verification", "lagMessages"),
    }
)


def _recorded(row: AdoptionRow) -> Json:
    """Returns what `rows_of` reads again."""
    told: Json = {"brokerName": row.broker_name, "lastError": row.error}
    if row.differences:
        told["differences"] = list(row.differences)
    if row.behind is not None and row.switched is None:
        told["lagMessages"] = row.behind
    if row.attempts:
        told["attempts"] = row.attempts
    for key, moment in (("attemptedAt", row.attempted), ("comparedAt", row.compared), ("switchedAt", row.switched)):
        if moment is not None:
            told[key] = timestamp(moment)
    for key, text in (("rehearsal", row.rehearsal), ("verification", row.verification)):
        if text:
            told[key] = text
    return told


def state_of(group: Group) -> str:
    """Returns the state of the copy in the words of GET /node, or why it is not known."""
    if is_promoted(group):
        return PROMOTED
    if not group.formed:
        return "starting"
    if group.leader is None:
        return "no-leader"
    copy = copy_of(group)
    return copy.state if copy is not None else "unknown"


def adopted_condition(cluster: Cluster, observed: Observed) -> Condition | None:
    """Returns the condition `Adopted`; None: the cluster takes over from no other one."""
    groups = concerned(cluster, observed)
    if observed.adopted_before == "True":
        return _done(observed, list(observed.groups))
    if not groups and not is_active(cluster, observed):
        if observed.hindrance is not None and observed.hindrance.adopts:
            return Condition(ADOPTED_CONDITION, False, observed.hindrance.reason, observed.hindrance.message)
        return None
    if observed.hindrance is not None and observed.hindrance.adopts and observed.hindrance.reason != GROUPS_WAIT:
        return Condition(ADOPTED_CONDITION, False, observed.hindrance.reason, observed.hindrance.message)
    reason, message = _progress(cluster, observed, groups)
    if reason == "Adopted":
        return _done(observed, groups)
    return Condition(ADOPTED_CONDITION, False, reason, message)


def _done(observed: Observed, groups: Sequence[Group]) -> Condition:
    rows = [(each, observed.rows.get(each.number, AdoptionRow())) for each in groups]
    bad = [f"{row.broker_name}: {row.verification}" for _, row in rows if row.verification.startswith(DIFFERS)]
    if bad:
        return Condition(ADOPTED_CONDITION, True, "AdoptedWithDifferences", "; ".join(bad))
    return Condition(ADOPTED_CONDITION, True, "Adopted", "all groups have taken the places of their masters")


def _progress(cluster: Cluster, observed: Observed, groups: Sequence[Group]) -> tuple[str, str]:
    """Returns reason and message of an adoption that nothing hinders."""
    names, replicas = Names(cluster.namespace, cluster.name), cluster.spec.replicas
    rows = {each.number: observed.rows.get(each.number, AdoptionRow()) for each in groups}
    told = {each.number: f"{names.group(each.number)} ({name_of(cluster, observed, each)})" for each in groups}
    promoted = [each for each in groups if is_promoted(each)]
    left = [each for each in groups if not is_promoted(each)]
    adopt = cluster.spec.adopt
    if groups and not left and (adopt is None or all(rows[each.number].verification for each in groups)):
        return "Adopted", ""
    if adopt is None:
        where = _listed(told[each.number] for each in left)
        message = (
            f"{where} still follows a master, and spec.adoptFrom no longer asks for it: promote or delete the group"
        )
        return "AdoptionUnfinished", message
    missing = len(groups) < cluster.spec.groups and observed.hindrance is None
    if missing or not all(each.formed for each in groups):
        return "Starting", "members are starting and electing a leader"
    failed = [f"{told[each.number]}: {unready(each, replicas)}" for each in left if _is_lasting(each)]
    if failed:
        return "CopyFailed", _listed(failed)
    spent = [each for each in left if rows[each.number].attempts >= MOST_ATTEMPTS]
    if spent:
        why = _listed(f"{told[each.number]}: {rows[each.number].error or 'no reason is known'}" for each in spent)
        return "SwitchFailed", f"{why}. Set spec.adoptFrom.switch to Manual, and to Automatic to try again"
    if not left:
        return "Verifying", "all groups are masters, and are compared with the old ones"
    waits = [f"{told[each.number]}: {unready(each, replicas)}" for each in left if unready(each, replicas)]
    begun = promoted or any(rows[each.number].attempts for each in left)
    if (adopt.automatic and begun) or any(_is_fenced(each) for each in left):
        errors = [f"{told[each.number]}: {rows[each.number].error}" for each in left if rows[each.number].error]
        return "Switching", f"{len(promoted)} of {len(groups)} groups are masters{_and([*waits, *errors])}"
    if waits:
        lags = [text for each in left if (text := _lag(told[each.number], each))]
        return "Copying", _listed([*waits, *lags])
    unsure = [f"{told[each.number]}: {rows[each.number].error}" for each in left if not rows[each.number].rehearsal]
    if unsure:
        failures = [text for text in unsure if not text.endswith(": ")]
        if failures:
            return "RehearsalFailed", _listed(failures)
        return "Rehearsing", "all groups follow closely, and are compared with their masters"
    if adopt.automatic:
        return "Switching", f"0 of {len(groups)} groups are masters"
    done = f"{len(promoted)} of {len(groups)} groups are masters, and the others" if promoted else "all groups"
    return "ReadyToSwitch", f"{done} follow closely: set spec.adoptFrom.switch to Automatic to switch"


def _is_lasting(group: Group) -> bool:
    copy = copy_of(group)
    return copy is not None and copy.lasting


def _is_fenced(group: Group) -> bool:
    copy = copy_of(group)
    return copy is not None and copy.fenced


def _lag(name: str, group: Group) -> str:
    copy = copy_of(group)
    behind = copy.behind_bytes if copy is not None else None
    return f"{name} is {rounded(behind)} bytes behind" if behind and rounded(behind) else ""


def _and(texts: Sequence[str]) -> str:
    return f"; {_listed(texts)}" if texts else ""


def ready_condition(cluster: Cluster, observed: Observed) -> Condition | None:
    """Returns the condition `AdoptionReady`, for `kubectl wait`; None: the cluster takes over from no other one."""
    found = adopted_condition(cluster, observed)
    if found is None:
        return None
    if found.status:
        return Condition(READY_CONDITION, False, found.reason, "the adoption is over")
    left = [each for each in concerned(cluster, observed) if not is_promoted(each)]
    is_ready = all(
        not unready(each, cluster.spec.replicas) and observed.rows.get(each.number, AdoptionRow()).rehearsal
        for each in left
    )
    return Condition(READY_CONDITION, bool(left) and is_ready, found.reason, found.message)


def adoption_events(cluster: Cluster, observed: Observed) -> list[tuple[str, str, bool]]:
    """Returns the events about an adoption: reason, message, and whether it is a warning."""
    found = adopted_condition(cluster, observed)
    if found is None or observed.adopted_before == "True":
        return []
    waits = observed.hindrance is not None and observed.hindrance.waits
    names = Names(cluster.namespace, cluster.name)
    if found.reason in ("Starting", "Copying", "Rehearsing", "Verifying"):
        where = _listed(
            f"{names.group(each.number)} ({name_of(cluster, observed, each)})" for each in concerned(cluster, observed)
        )
        return [(found.reason, f"{found.reason.lower()}: {where}", False)]
    good = ("Adopted", "ReadyToSwitch", "Switching")
    return [(found.reason, found.message, found.reason not in good and not waits)]


def _listed(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(found[:5]) + more
