"""Creates and deletes the objects of a run. Each step can be interrupted after any write and retried."""

from __future__ import annotations

import asyncio
import secrets as random
from collections.abc import Sequence

from tallystick.operator.core import kube
from tallystick.operator.core.backup_place import BackupPlace
from tallystick.operator.core.context import Context
from tallystick.operator.core.kube import BY_KIND, ConflictError, ForbiddenError, InvalidError, Json, NotFoundError
from tallystick.operator.core.members import Refusal
from tallystick.operator.core.names import Names
from tallystick.operator.core.ownership import taken
from tallystick.operator.jobs import reasons
from tallystick.operator.jobs.backup_source import place_of
from tallystick.operator.jobs.manifests import (
    Frame,
    driver_pod,
    names_of,
    network_policy,
    owns,
    secret,
    service,
    worker_nodes,
    worker_pod,
)
from tallystick.operator.jobs.observed import JobPod, Seen
from tallystick.operator.jobs.spec import Job

PODS_AT_ONCE = 4
SECRET_BYTES = 32


class Hands:
    """Writes to the API server. Every method may raise any KubeError, but for rejections that it returns."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kube = context.kube

    async def set_up(self, job: Job, plan: Json) -> Refusal | None:
        """Creates all objects of an attempt except its pods, the plan last. Returns why one is rejected; None: done."""
        try:
            refusals = await asyncio.gather(
                self._own(job, service(job)), self._own(job, network_policy(job)), self._make_secret(job)
            )
            refusal = next((each for each in refusals if each is not None), None)
            return refusal or await self._own(job, plan)
        except (ForbiddenError, InvalidError) as error:
            return Refusal(reasons.REFUSED, error.said)

    async def _own(self, job: Job, wanted: Json) -> Refusal | None:
        """Creates or updates an object of this job. Objects of other owners are not changed."""
        resource, name = BY_KIND[wanted["kind"]], wanted["metadata"]["name"]
        live = await self._kube.find(resource, job.namespace, name)
        if live is None:
            try:
                await self._kube.apply(wanted, None)
            except ConflictError:
                return Refusal(reasons.NAME_TAKEN, f"another client has just created {wanted['kind']} {name}")
        elif not owns(job, live):
            return Refusal(reasons.NAME_TAKEN, taken({"kind": wanted["kind"], **live}))
        elif wanted.get("data") != live.get("data"):
            await self._kube.apply(wanted, live)
        return None

    async def _make_secret(self, job: Job) -> Refusal | None:
        try:
            await self._kube.create(kube.SECRETS, job.namespace, secret(job, random.token_hex(SECRET_BYTES)))
        except ConflictError:
            pass  # created by an earlier attempt or an interrupted pass; its content is equally valid
        return None

    async def start(self, job: Job, seen: Seen) -> Refusal | None:
        """Creates missing pods: workers, then the driver. Returns why one is rejected; None: all exist."""
        plan, there = seen.plan, {pod.name for pod in seen.pods}
        assert plan is not None and plan["attempt"] == job.attempt, "pods are created from the plan of their attempt"
        names, frame = names_of(job), await self._frame(job)
        if isinstance(frame, Refusal):
            return frame
        left = max(int(job.deadline - seen.now), 1)
        workers = [
            worker_pod(job, plan, node, frame, left, claim=node not in seen.without_claim, number=number)
            for node, number in worker_nodes(plan)
            if names.worker(node, number) not in there
        ]
        limit = asyncio.Semaphore(PODS_AT_ONCE)

        async def make(pod: Json) -> Refusal | None:
            async with limit:
                return await self._make_pod(pod)

        refused = [each for each in await asyncio.gather(*map(make, workers)) if each is not None]
        return refused[0] if refused else await self._make_pod(driver_pod(job, plan, frame, left))

    async def _make_pod(self, pod: Json) -> Refusal | None:
        metadata = pod["metadata"]
        try:
            await self._kube.create(kube.PODS, metadata["namespace"], pod)
        except ConflictError:  # this pass has listed all pods of the job
            return Refusal(reasons.NAME_TAKEN, f"Pod {metadata['name']} exists and does not belong to this StoreJob")
        except (ForbiddenError, InvalidError) as error:
            return Refusal(reasons.REFUSED, f"Pod {metadata['name']}: {error.said}")
        self._context.metrics.writes.labels("Pod").inc()
        return None

    async def _frame(self, job: Job) -> Frame | Refusal:
        settings = self._context.settings
        cluster = await self._kube.find(kube.CLUSTERS, job.namespace, job.spec.cluster)
        pull = ((cluster or {}).get("spec") or {}).get("imagePullSecrets") or ()
        uid = "" if cluster is None else cluster["metadata"]["uid"]
        reader = Names(job.namespace, job.spec.cluster).reader(uid) if uid else ""
        account = Names(job.namespace, job.spec.cluster).account if uid else ""
        backups: BackupPlace | None = None
        if (source := job.spec.source) is not None:
            backup = await self._kube.find(kube.BACKUPS, job.namespace, source.backup) if source.backup else None
            place = place_of(source, backup)
            if isinstance(place, Refusal):
                return place
            backups = place
        return Frame(settings.jobs_image, settings.jobs_priority_class, tuple(pull), reader, account, backups)

    async def delete_pods(self, job: Job, pods: Sequence[JobPod]) -> None:
        """Deletes these very pods. A pod that is gone is no error."""

        async def delete(pod: JobPod) -> None:
            try:
                await self._kube.delete(kube.PODS, job.namespace, pod.name, uid=pod.uid)
            except (NotFoundError, ConflictError):
                pass  # this pod no longer exists

        await asyncio.gather(*map(delete, pods))

    async def delete(self, name: str, namespace: str, uid: str) -> None:
        """Deletes this very StoreJob."""
        try:
            await self._kube.delete(kube.STORE_JOBS, namespace, name, uid=uid)
        except (NotFoundError, ConflictError):
            pass  # it no longer exists, or the name belongs to a new StoreJob
