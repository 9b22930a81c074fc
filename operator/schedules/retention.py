"""Which Backups of a schedule are no longer kept. Pure.

A completed Backup is kept if

- it is one of the newest `keepLast`, or
- its scheduled time is at most `keepWithin` before that of the newest completed one: while no Backup succeeds, no
  completed one is given up, or
- it is the newest completed one of some broker group.

Each stored backup can be deleted by itself: `tally backup delete` keeps the objects that another backup uses. So no
later backup needs an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallystick.operator.backups.reasons import Phase
from tallystick.operator.core.kube import Json
from tallystick.operator.schedules.observed import Run, place_of
from tallystick.operator.schedules.spec import Retention

RECOVERED = "Recovered"
"""Condition of a BrokerCluster that starts from a backup; True: the restore is over."""


def surplus(runs: Sequence[Run], retention: Retention | None) -> list[Run]:
    """Returns the Backups that the retention does not keep, the oldest first. `runs`: the oldest first."""
    if retention is None:
        return []
    complete = [run for run in runs if run.is_complete]
    failed = [run for run in runs if run.phase == Phase.FAILED and run.deleting_since is None]
    kept = {run.uid for run in failed[max(len(failed) - retention.failed, 0) :]}
    if complete:
        newest = complete[-1]
        kept |= {run.uid for run in complete[max(len(complete) - max(retention.last or 1, 1), 0) :]}
        if retention.within_seconds is not None:
            kept |= {run.uid for run in complete if run.scheduled >= newest.scheduled - retention.within_seconds}
        kept |= {run.uid for run in {group: run for run in complete for group in run.groups}.values()}
    return [run for run in runs if run in (*complete, *failed) and run.uid not in kept]


def used_by(run: Run, clusters: Sequence[Json]) -> str:
    """Returns the cluster that is, or may be, in the middle of a restore from a Backup; empty: none is."""
    return next((each["metadata"]["name"] for each in clusters if _restores(run, each)), "")


def _restores(run: Run, cluster: Json) -> bool:
    conditions = (cluster.get("status") or {}).get("conditions") or ()
    told = next((str(each.get("status")) for each in conditions if each.get("type") == RECOVERED), "")
    bootstrap: Mapping[str, Json] = (cluster.get("spec") or {}).get("bootstrap") or {}
    recovery = bootstrap.get("recovery") or {}
    if told == "True" or cluster["metadata"].get("deletionTimestamp") or not (recovery or told):
        return False
    if recovery.get("backupName"):
        return bool(recovery["backupName"] == run.name)
    # The newest backup of a place, or of one that the spec no longer names: which one is not known.
    return not recovery or place_of(recovery.get("source") or {}) == run.place
