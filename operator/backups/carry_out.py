"""Creates and deletes the Jobs of a Backup, and its finalizer. Each step can be interrupted and retried."""

from __future__ import annotations

from tallystick.operator.backups import reasons
from tallystick.operator.backups.manifests import Frame, job
from tallystick.operator.backups.observed import Seen
from tallystick.operator.backups.spec import FINALIZER, Backup
from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.core.kube import ConflictError, ForbiddenError, InvalidError, Json, NotFoundError
from tallystick.operator.core.members import Refusal
from tallystick.operator.core.names import Names
from tallystick.operator.core.ownership import owned, taken


class Hands:
    """Writes to the API server. Every method may raise any KubeError, but for rejections that it returns."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kube = context.kube

    async def create(self, backup: Backup, group: Json, seen: Seen) -> Refusal | None:
        """Creates the Job of an attempt. Returns why it is rejected; None: it exists."""
        wanted = job(backup, group, self._frame(backup, seen))
        name = wanted["metadata"]["name"]
        try:
            await self._kube.create(kube.JOBS, backup.namespace, wanted)
        except ConflictError:
            live = await self._kube.find(kube.JOBS, backup.namespace, name)
            if live is not None and not owned(live, {backup.uid}):
                return Refusal(reasons.NAME_TAKEN, f"{taken({'kind': 'Job', **live})}; it is not changed")
            return None
        except (ForbiddenError, InvalidError) as error:
            return Refusal(reasons.REFUSED, f"Job {name}: {error.said}")
        self._context.metrics.writes.labels("Job").inc()
        return None

    def _frame(self, backup: Backup, seen: Seen) -> Frame:
        settings, spec = self._context.settings, (seen.cluster or {}).get("spec") or {}
        reader = ""
        if seen.cluster is not None:
            reader = Names(backup.namespace, backup.cluster).reader(seen.cluster["metadata"]["uid"])
        return Frame(
            image=spec.get("image") or settings.node_image,
            reader_secret=reader,
            pull_secrets=tuple(spec.get("imagePullSecrets") or ()),
            tolerations=tuple(spec.get("tolerations") or ()),
            priority_class=settings.jobs_priority_class,
            url_template=settings.node_url_template,
        )

    async def delete_jobs(self, backup: Backup, seen: Seen, kept: set[str]) -> bool:
        """Deletes the own Jobs that are not kept, with their pods. Returns whether there were any."""
        surplus = [each for name, each in seen.attempts.items() if each.own and name not in kept]
        for each in surplus:
            if each.deleting:
                continue
            try:
                await self._kube.delete(kube.JOBS, backup.namespace, each.name, uid=each.uid)
            except (NotFoundError, ConflictError):
                pass  # this Job no longer exists
        return bool(surplus)

    async def mark(self, body: Json) -> None:
        """Adds the finalizer."""
        finalizers = [*(body["metadata"].get("finalizers") or ()), FINALIZER]
        await self._kube.patch_live(body, {"metadata": {"finalizers": finalizers}})

    async def release(self, body: Json) -> None:
        """Removes the finalizer. A Backup that is gone is no error."""
        finalizers = [each for each in body["metadata"].get("finalizers") or () if each != FINALIZER]
        try:
            await self._kube.patch_live(body, {"metadata": {"finalizers": finalizers}})
        except NotFoundError:
            pass
