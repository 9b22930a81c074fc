"""Reads the state of one Backup: its Jobs and pods, the members and volumes of its cluster. Decides nothing."""

from __future__ import annotations

import asyncio

from tallystick.operator.backups.manifests import selector_of
from tallystick.operator.backups.observed import Seen, attempts_of
from tallystick.operator.backups.spec import Backup
from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.core.members import members_of


async def observe(context: Context, backup: Backup) -> Seen:
    """Returns the state of a Backup. KubeError: the API server did not answer."""
    api, namespace = context.kube, backup.namespace
    members, jobs, pods = await asyncio.gather(
        members_of(api, namespace, backup.cluster),
        api.list(kube.JOBS, namespace, selector_of(backup)),
        api.list(kube.PODS, namespace, selector_of(backup)),
    )
    destination = None
    if backup.place.claim:
        destination = await api.find(kube.CLAIMS, namespace, backup.place.claim)
    return Seen(
        now=context.now(),
        cluster=members.cluster,
        nodes=members.nodes,
        claims=members.claims,
        destination=destination,
        attempts=attempts_of(backup.uid, jobs, pods),
        terminating=backup.deleting and backup.marked and await api.is_terminating(namespace),
    )
