"""Reads the state of one Backup: its Jobs and pods, the members and volumes of its cluster. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tallystick.operator.backups.manifests import selector_of
from tallystick.operator.backups.observed import Seen, attempts_of
from tallystick.operator.backups.spec import Backup
from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import Names, is_claim_of
from tallystick.operator.core.ownership import owned


async def observe(context: Context, backup: Backup) -> Seen:
    """Returns the state of a Backup. KubeError: the API server did not answer."""
    api, namespace, names = context.kube, backup.namespace, Names(backup.namespace, backup.cluster)
    cluster, nodes, claims, jobs, pods = await asyncio.gather(
        api.find(kube.CLUSTERS, namespace, backup.cluster),
        api.list(kube.BROKER_NODES, namespace, names.selector()),
        api.list(kube.CLAIMS, namespace, names.selector()),
        api.list(kube.JOBS, namespace, selector_of(backup)),
        api.list(kube.PODS, namespace, selector_of(backup)),
    )
    destination = None
    if backup.place.claim:
        destination = await api.find(kube.CLAIMS, namespace, backup.place.claim)
    owner = set() if cluster is None else {cluster["metadata"]["uid"]}
    return Seen(
        now=context.now(),
        cluster=cluster,
        nodes=_by_name(node for node in nodes if owned(node, owner)),
        claims=_by_name(claim for claim in claims if is_claim_of(backup.cluster, claim)),
        destination=destination,
        attempts=attempts_of(backup.uid, jobs, pods),
        terminating=backup.deleting and backup.marked and await api.is_terminating(namespace),
    )


def _by_name(bodies: Iterable[Json]) -> dict[str, Json]:
    return {body["metadata"]["name"]: body for body in bodies}
