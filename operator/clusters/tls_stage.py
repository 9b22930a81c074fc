"""Which stage of TLS the pods of a cluster get. Pure.

A cluster that changes from the operator's authority to a Secret of a user, or back, first ends to use TLS between its
processes: those of one authority do not trust those of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.operator.clusters.observed import TlsView
from tallystick.operator.clusters.spec import Cluster
from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import Names
from tallystick.operator.core.pods import pod_of
from tallystick.operator.security.spec import Stage, next_stage, stage_of

if TYPE_CHECKING:
    from tallystick.operator.clusters.reading import Objects

TLS_VOLUME, ACCESS_VOLUME = "tls", "access"


def tls_view(cluster: Cluster, objects: Objects) -> TlsView:
    """Returns the stage that all pods get now, and that they get in the end."""
    names = Names(cluster.namespace, cluster.name)
    security = cluster.spec.security
    wanted = "" if security.tls is None else security.tls.secret
    sets = {each["metadata"]["name"]: each for each in objects.all("StatefulSet")}
    pods = list(objects.all("Pod"))
    templates = {name: each["spec"]["template"] for name, each in sets.items()}
    every = [*templates.items(), *((_set_of(pod), pod) for pod in pods)]
    present = [stage_of(each["metadata"]) for _, each in every]
    secrets = {
        "" if secret == names.tls(name) else secret
        for name, each in every
        if stage_of(each["metadata"]) is not Stage.OFF and (secret := secret_of(each, TLS_VOLUME))
    }
    target = security.stage
    changes = bool(secrets - {wanted})
    if changes:
        target, wanted = Stage.OFF, min(secrets)
    settled = all(_is_settled(each, [pod for pod in pods if _set_of(pod) == name]) for name, each in sets.items())
    stage = next_stage(target, present, settled=settled)
    return TlsView(
        stage,
        security.stage,
        wanted,
        not changes and all(each is security.stage for each in present),
        bool(pods) and all(secret_of(each, ACCESS_VOLUME) for each in pods),
    )


def secret_of(template: Json, volume: str) -> str:
    """Returns the Secret that a pod, or a template, mounts as this volume; empty: none."""
    for each in (template.get("spec") or {}).get("volumes") or ():
        if each.get("name") == volume:
            return str((each.get("secret") or {}).get("secretName") or "")
    return ""


def _set_of(pod: Json) -> str:
    """Returns the StatefulSet of a pod."""
    return str(pod["metadata"]["name"]).rpartition("-")[0]


def _is_settled(stateful_set: Json, pods: list[Json]) -> bool:
    """Whether all of its pods are ready and have the stage of the template."""
    stage = stage_of(stateful_set["spec"]["template"]["metadata"])
    good = [pod for pod in map(pod_of, pods) if pod.ready and not pod.deleting]
    same = all(stage_of(pod["metadata"]) is stage for pod in pods)
    return same and len(good) == len(pods) == int(stateful_set["spec"].get("replicas") or 0)
