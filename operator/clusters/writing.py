"""Creates and corrects objects: applies those that differ from their manifests.

Objects that the API server rejects (a quota, an admission policy, an immutable field) are reported in the conditions
and retried later; the other objects are written. A conflict or a missing response ends the pass, which is retried.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from tallystick.operator.clusters.cluster_manifests import admin_secret, reader_secret
from tallystick.operator.clusters.drift import differs, mark, stamped
from tallystick.operator.clusters.layout import Layout, is_obsolete
from tallystick.operator.clusters.reading import Objects
from tallystick.operator.clusters.spec import Cluster
from tallystick.operator.core.context import Context
from tallystick.operator.core.kube import (
    BY_KIND,
    SECRETS,
    ConflictError,
    ForbiddenError,
    InvalidError,
    Json,
    NotFoundError,
)

_logger = logging.getLogger(__name__)

REFUSED_SECONDS = 60.0
"""Interval of retries of a rejected object."""
SECRET_SECONDS = 300.0
"""Interval of creating a Secret: the operator cannot read whether a user has deleted it."""

_Name = tuple[str, str, str]


@dataclass(slots=True)
class Outcome:
    """Result of writing. `written`: number of objects."""

    written: int = 0
    refusals: list[str] = field(default_factory=list)
    resize_refusals: list[str] = field(default_factory=list)


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
        for manifest in layout.manifests:
            await self._write_one(objects, stamped(manifest), outcome)
        for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            for body in objects.all(kind):
                if is_obsolete(cluster, body, layout.manifests) and not body["metadata"].get("deletionTimestamp"):
                    await self._remove(body)
                    outcome.written += 1
        return outcome

    async def ensure_secrets(self, cluster: Cluster) -> list[str]:
        """Creates the Secrets with the tokens of a cluster. Returns the errors of rejected ones."""
        token, where = self._context.token, (cluster.namespace, cluster.name)
        wanted = (admin_secret(cluster, token(*where)), reader_secret(cluster, token.reader(*where)))
        return [refusal for manifest in wanted if (refusal := await self._ensure_secret(cluster, manifest))]

    async def _ensure_secret(self, cluster: Cluster, manifest: Json) -> str:
        name = _name_of(manifest)
        if self._context.now() < self._secrets.get(name, 0.0):
            return ""
        try:
            await self._context.kube.create(SECRETS, cluster.namespace, manifest)
            self._context.metrics.writes.labels("Secret").inc()
        except ConflictError:
            pass  # it exists, and its content follows from its name
        except (ForbiddenError, InvalidError) as error:
            return str(error)  # an administrator may have created it; otherwise its pods report what they wait for
        self._secrets[name] = self._context.now() + SECRET_SECONDS
        return ""

    async def _write_one(self, objects: Objects, wanted: Json, outcome: Outcome) -> None:
        name = _name_of(wanted)
        live = objects.get(wanted["kind"], wanted["metadata"]["name"])
        if not differs(live, wanted, self._settled.get(name)):
            return
        text = wanted["metadata"]["annotations"]["tallystick.dev/applied"]
        refused, until, message = self._refused.get(name, ("", 0.0, ""))
        if refused == text and self._context.now() < until:
            self._note(outcome, wanted, message)
            return
        try:
            made = await self._context.kube.apply(wanted)
        except (ForbiddenError, InvalidError) as error:
            self._refused[name] = (text, self._context.now() + REFUSED_SECONDS, str(error))
            self._note(outcome, wanted, str(error))
            _logger.warning("the API server rejected an object: %s", error)
            return
        self._refused.pop(name, None)
        self._settled[name] = mark(made, wanted)
        self._context.metrics.writes.labels(wanted["kind"]).inc()
        outcome.written += 1
        _logger.info("applied %s %s/%s", *name)

    def _note(self, outcome: Outcome, wanted: Json, message: str) -> None:
        where = outcome.resize_refusals if wanted["kind"] == "PersistentVolumeClaim" else outcome.refusals
        where.append(message)

    async def _remove(self, body: Json) -> None:
        metadata = body["metadata"]
        try:
            await self._context.kube.delete(
                BY_KIND[body["kind"]], metadata["namespace"], metadata["name"], uid=metadata["uid"]
            )
        except NotFoundError:
            return
        _logger.info(
            "deleted %s %s/%s: the spec no longer enables it", body["kind"], metadata["namespace"], metadata["name"]
        )


def _name_of(body: Json) -> _Name:
    return body["kind"], body["metadata"]["namespace"], body["metadata"]["name"]


def _is_of(cluster: str, name: str) -> bool:
    return name == cluster or name.startswith((f"{cluster}-", f"data-{cluster}-"))
