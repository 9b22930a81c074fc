"""Creates and deletes the Backups of a schedule. Each step can be interrupted and retried."""

from __future__ import annotations

from tallystick.operator.backups.spec import FINALIZER
from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.core.kube import (
    BACKUPS,
    CLUSTERS,
    FIELD_MANAGER,
    SCHEDULED_BACKUPS,
    ConflictError,
    ForbiddenError,
    InvalidError,
    Json,
    NotFoundError,
)
from tallystick.operator.core.manifests import manifest, owned_by
from tallystick.operator.core.members import Refusal
from tallystick.operator.core.names import CLUSTER, EXPIRED, MANAGED_BY, SCHEDULE_LABEL, SCHEDULE_UID
from tallystick.operator.core.ownership import taken
from tallystick.operator.schedules import reasons
from tallystick.operator.schedules.observed import Run, Seen, is_own, run_name
from tallystick.operator.schedules.spec import Owner, ScheduledBackup


def backup_manifest(schedule: ScheduledBackup, seen: Seen, scheduled: float) -> Json:
    """Returns the Backup of a scheduled time."""
    labels = {
        "app.kubernetes.io/name": "tallystick",
        MANAGED_BY: FIELD_MANAGER,
        CLUSTER: schedule.cluster,
        SCHEDULE_LABEL: schedule.name,
    }
    owner = None
    if schedule.owner is Owner.SELF:
        owner = owned_by(SCHEDULED_BACKUPS, schedule.name, schedule.uid)
    elif schedule.owner is Owner.CLUSTER and seen.cluster is not None:
        owner = owned_by(CLUSTERS, schedule.cluster, seen.cluster["metadata"]["uid"])
    if owner is not None:  # a deletion in the foreground does not wait for a Backup, which may wait for its destination
        owner |= {"blockOwnerDeletion": False}
    return manifest(
        BACKUPS,
        schedule.namespace,
        run_name(schedule, scheduled),
        labels,
        {"spec": dict(schedule.template)},
        owner=owner,
        annotations={SCHEDULE_UID: schedule.uid},
    )


class Hands:
    """Writes to the API server. Every method may raise any KubeError, but for rejections that it returns."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kube = context.kube

    async def create(self, schedule: ScheduledBackup, seen: Seen, scheduled: float) -> Refusal | None:
        """Creates the Backup of a scheduled time. Returns why it is rejected; None: it exists."""
        wanted = backup_manifest(schedule, seen, scheduled)
        name = wanted["metadata"]["name"]
        try:
            await self._kube.create(BACKUPS, schedule.namespace, wanted)
        except ConflictError:
            live = await self._kube.find(BACKUPS, schedule.namespace, name)
            if live is None:
                raise  # deleted since, or a conflict of another kind: the next pass tries again
            if not is_own(schedule, live):
                return Refusal(reasons.NAME_TAKEN, f"{taken(live)}; it is not changed")
            return None
        except (ForbiddenError, InvalidError) as error:
            return Refusal(reasons.REFUSED, f"Backup {name}: {error.said}")
        self._context.metrics.writes.labels("Backup").inc()
        return None

    async def delete(self, schedule: ScheduledBackup, run: Run) -> Refusal | None:
        """Deletes a Backup with what it has stored. Returns why that is rejected; None: it is done.

        The finalizer is there before the Backup is deleted, so it exists until a Job has deleted what it has stored.
        """
        try:
            live = await self._kube.find(BACKUPS, schedule.namespace, run.name)
            if live is None or live["metadata"]["uid"] != run.uid or not is_own(schedule, live):
                return None
            if not (run.is_expired and run.is_marked):
                finalizers = list(dict.fromkeys([*(live["metadata"].get("finalizers") or ()), FINALIZER]))
                metadata: Json = {"annotations": {EXPIRED: "true"}, "finalizers": finalizers}
                await self._kube.patch_live(live, {"metadata": metadata})
            await self._kube.delete(BACKUPS, schedule.namespace, run.name, uid=run.uid)
        except (NotFoundError, ConflictError):
            pass  # it has changed, or no longer exists
        except (ForbiddenError, InvalidError) as error:
            return Refusal(reasons.REFUSED, f"Backup {run.name} cannot be deleted: {error.said}")
        return None

    async def spare(self, schedule: ScheduledBackup, run: Run) -> None:
        """Keeps a Backup that was about to be deleted."""
        live = await self._kube.find(kube.BACKUPS, schedule.namespace, run.name)
        if live is None or live["metadata"]["uid"] != run.uid:
            return
        try:
            await self._kube.patch_live(live, {"metadata": {"annotations": {EXPIRED: None}}})
        except (NotFoundError, ConflictError, ForbiddenError, InvalidError):
            pass  # the next pass tries again
