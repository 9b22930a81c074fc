"""Creates and corrects objects: applies those that differ from their manifests.

Every object is looked up by its name before it is created, and is changed only in the version that was read. An object
that does not belong to the cluster is left alone and reported. While any name is taken, no StatefulSet is written: its
pods would use the foreign object.

Objects that the API server rejects (a quota, an admission policy, an immutable field) are reported in the conditions
and retried later; the other objects are written. A missing response ends the pass, which is retried.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from tallystick.operator.clusters.cluster_manifests import admin_secret, reader_secret
from tallystick.operator.clusters.drift import differs, mark, pruning, stamped
from tallystick.operator.clusters.layout import Layout, is_obsolete
from tallystick.operator.clusters.reading import Objects, belongs
from tallystick.operator.clusters.spec import Cluster
from tallystick.operator.core.context import Context
from tallystick.operator.core.kube import (
    BY_KIND,
    PODS,
    SECRETS,
    ConflictError,
    ForbiddenError,
    InvalidError,
    Json,
    KubeError,
    NotFoundError,
)
from tallystick.operator.core.ownership import controller_of, owned, taken

_logger = logging.getLogger(__name__)

REFUSED_SECONDS = 60.0
"""Interval of retries of a rejected object."""
SECRET_SECONDS, AWAITED_SECRET_SECONDS = 30.0, 2.0
"""Interval of creating a Secret, because the operator cannot read whether a user has deleted it; and the same while a
pod does not run, perhaps because it waits for the Secret."""

_Name = tuple[str, str, str]


class _Taken:
    """A name belongs to an object of another owner."""


_TAKEN = _Taken()


@dataclass(slots=True)
class Outcome:
    """Result of writing. `written`: number of objects that were written, or that changed while they were."""

    written: int = 0
    refusals: list[str] = field(default_factory=list)
    resize_refusals: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    """Objects that have a name of the cluster and do not belong to it."""


class Writer:
    """Writes objects. It remembers results and rejections of the API server for the life of the process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settled: dict[_Name, str] = {}
        self._refused: dict[_Name, tuple[str, float, str]] = {}
        self._secrets: dict[_Name, float] = {}

    def forget(self, namespace: str, cluster: str) -> None:
        """Forgets a deleted cluster."""
        for memory in (self._settled, self._refused, self._secrets):
            for name in [each for each in memory if each[1] == namespace and _is_of(cluster, each[2])]:
                del memory[name]

    async def write(self, cluster: Cluster, objects: Objects, layout: Layout) -> Outcome:
        """Writes the objects that differ and deletes disabled ones. KubeError, except for rejections."""
        outcome = Outcome()
        sets = [manifest for manifest in layout.manifests if manifest["kind"] == "StatefulSet"]
        for manifest in layout.manifests:
            if manifest["kind"] != "StatefulSet":
                await self._write_one(manifest, await self._live(objects, manifest, outcome), outcome)
        found = [await self._live(objects, manifest, outcome) for manifest in sets]
        await self._look_for_pods(objects, sets, outcome)
        for manifest, live in zip(sets, found, strict=True):
            if not outcome.taken:
                await self._write_one(manifest, live, outcome)
        for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            for body in objects.all(kind):
                if is_obsolete(cluster, body, layout.manifests) and not body["metadata"].get("deletionTimestamp"):
                    await self._remove(body)
                    outcome.written += 1
        return outcome

    async def ensure_secrets(self, cluster: Cluster, *, awaited: bool = False) -> list[str]:
        """Creates the Secrets with the tokens of a cluster. Returns the errors of rejected ones.

        `awaited`: a pod may wait for them.
        """
        token, where = self._context.token, (cluster.namespace, cluster.name)
        wanted = (admin_secret(cluster, token(*where)), reader_secret(cluster, token.reader(*where)))
        seconds = AWAITED_SECRET_SECONDS if awaited else SECRET_SECONDS
        return [refusal for manifest in wanted if (refusal := await self._ensure_secret(cluster, manifest, seconds))]

    async def _ensure_secret(self, cluster: Cluster, manifest: Json, seconds: float) -> str:
        name = _name_of(manifest)
        if self._context.now() < self._secrets.get(name, float("-inf")) + seconds:
            return ""
        try:
            await self._context.kube.create(SECRETS, cluster.namespace, manifest)
            self._context.metrics.writes.labels("Secret").inc()
        except ConflictError:
            pass  # it exists; its name contains a digest of the UID of the cluster, so it is the cluster's
        except (ForbiddenError, InvalidError) as error:
            return _told(manifest, error)  # an administrator may have created it
        self._secrets[name] = self._context.now()
        return ""

    async def _live(self, objects: Objects, wanted: Json, outcome: Outcome) -> Json | _Taken | None:
        """Looks an object up by its name: it may lack its labels, or belong to another owner."""
        kind, namespace, name = _name_of(wanted)
        live = objects.get(kind, name) or await self._context.kube.find(BY_KIND[kind], namespace, name)
        if live is None or belongs(live, wanted):
            return live
        outcome.taken.append(taken({"kind": kind, **live}))
        return _TAKEN

    async def _look_for_pods(self, objects: Objects, sets: list[Json], outcome: Outcome) -> None:
        """Finds pods with the name of a pod of ours: a StatefulSet waits for such a name without an end or a message.

        A StatefulSet adopts a pod without a controller that has all its labels. Such a pod is left to it.
        """
        for manifest in sets:
            live = objects.get("StatefulSet", manifest["metadata"]["name"])
            for number in range(manifest["spec"]["replicas"]):
                name = f"{manifest['metadata']['name']}-{number}"
                if objects.get("Pod", name) is not None:
                    continue
                pod = await self._context.kube.find(PODS, manifest["metadata"]["namespace"], name)
                if pod is None or pod["metadata"].get("deletionTimestamp"):
                    continue
                labels = (pod["metadata"].get("labels") or {}).items()
                adopted = controller_of(pod) is None and manifest["spec"]["selector"]["matchLabels"].items() <= labels
                if not adopted and (live is None or not owned(pod, {live["metadata"]["uid"]})):
                    outcome.taken.append(taken({"kind": "Pod", **pod}))

    async def _write_one(self, manifest: Json, live: Json | _Taken | None, outcome: Outcome) -> None:
        if isinstance(live, _Taken):
            return
        wanted = stamped(manifest)
        name = _name_of(wanted)
        changed, unsure = differs(live, wanted, self._settled.get(name)), name not in self._settled
        if not changed and not unsure:
            return
        text = wanted["metadata"]["annotations"]["tallystick.dev/applied"]
        refused, until, message = self._refused.get(name, ("", 0.0, ""))
        if refused == text and self._context.now() < until:
            self._note(outcome, wanted, live, message)
            return
        try:
            made = await self._put(wanted, live, changed=changed)
        except ConflictError as error:
            _logger.info("%s %s/%s changed while it was written: %s", *name, error.said)
            outcome.written += 1  # the next round reads it again
            return
        except (ForbiddenError, InvalidError) as error:
            self._refused[name] = (text, self._context.now() + REFUSED_SECONDS, _told(wanted, error))
            self._note(outcome, wanted, live, _told(wanted, error))
            _logger.warning("the API server rejected an object: %s", error)
            return
        self._refused.pop(name, None)
        self._settled[name] = mark(made, wanted)
        if live is None or made["metadata"].get("resourceVersion") != live["metadata"].get("resourceVersion"):
            self._context.metrics.writes.labels(wanted["kind"]).inc()
            outcome.written += 1
            _logger.info("applied %s %s/%s", *name)

    async def _put(self, wanted: Json, live: Json | None, *, changed: bool) -> Json:
        """Applies an object, and removes fields that others have added to a live one. Returns the result."""
        made = await self._context.kube.apply(wanted, live) if changed or live is None else live
        patch = pruning(made, wanted) if live is not None else None
        if patch is None:
            return made
        return await self._context.kube.patch_live({"kind": wanted["kind"], **made}, patch)

    def _note(self, outcome: Outcome, wanted: Json, live: Json | None, message: str) -> None:
        resized = wanted["kind"] == "PersistentVolumeClaim" and live is not None
        where = outcome.resize_refusals if resized else outcome.refusals
        where.append(message)

    async def _remove(self, body: Json) -> None:
        """Deletes an object of the cluster in the version that was read: another client may have taken it over."""
        metadata = body["metadata"]
        try:
            await self._context.kube.delete(
                BY_KIND[body["kind"]],
                metadata["namespace"],
                metadata["name"],
                uid=metadata["uid"],
                version=metadata["resourceVersion"],
            )
        except (NotFoundError, ConflictError):
            return
        _logger.info(
            "deleted %s %s/%s: the spec no longer enables it", body["kind"], metadata["namespace"], metadata["name"]
        )


def _told(wanted: Json, error: KubeError) -> str:
    return f"{wanted['kind']} {wanted['metadata']['name']}: {error.said}"


def _name_of(body: Json) -> _Name:
    return body["kind"], body["metadata"]["namespace"], body["metadata"]["name"]


def _is_of(cluster: str, name: str) -> bool:
    return name == cluster or name.startswith((f"{cluster}-", f"data-{cluster}-"))
