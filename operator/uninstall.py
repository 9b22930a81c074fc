"""What has to be done before the operator is removed: a hook of the chart runs it.

Topics, ConsumerGroups, Users and Backups with a finalizer could not be deleted without an operator, nor could their
namespace. The operator itself would set the finalizers again, so it has to stop first. It stops when another process
takes its lease.

1. Take the lease of the release, and wait until the process that held it has ended.
2. Release the finalizers, in namespaces that no other release manages.
3. Give the leases of these namespaces back, and keep the lease of the release for some seconds, until Helm has deleted
   the Deployment. If Helm does not delete it, the operator continues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

from tallystick.operator.backups.spec import FINALIZER
from tallystick.operator.core.kube import BACKUPS, CLUSTERS, CONSUMER_GROUPS, STORE_JOBS, TOPICS, USERS, Kube, Resource
from tallystick.operator.core.lease import Lease, LeaseLostError
from tallystick.operator.core.namespace_leases import NamespaceLeases
from tallystick.operator.core.release import release_all
from tallystick.operator.core.settings import Settings
from tallystick.operator.topics.kinds import CONSUMER_GROUP, TOPIC
from tallystick.operator.users import spec as users

_logger = logging.getLogger(__name__)

HOLD_SECONDS = 20.0
"""Duration of the lease. An operator that is installed right after this waits as long."""
KINDS = (CLUSTERS, TOPICS, CONSUMER_GROUPS, USERS, STORE_JOBS, BACKUPS)
FINALIZERS: tuple[tuple[Resource, str], ...] = (
    (TOPICS, TOPIC.finalizer),
    (CONSUMER_GROUPS, CONSUMER_GROUP.finalizer),
    (USERS, users.FINALIZER),
    (BACKUPS, FINALIZER),
)
"""All finalizers that the operator sets."""


async def prepare_uninstall(settings: Settings, kube: Kube) -> None:
    """Stops the operator and releases all finalizers. KubeError, LeaseLostError: it is not done, or only in part."""
    identity = f"uninstall-{settings.pod_name}"
    lease = Lease(kube, settings.pod_namespace, settings.lease_name, identity, HOLD_SECONDS, time.monotonic)
    waits = await lease.seize()
    keeping = asyncio.create_task(lease.keep(), name="lease")
    working = asyncio.create_task(_release(settings, kube, waits), name="release")
    try:
        await asyncio.wait([keeping, working], return_when=asyncio.FIRST_COMPLETED)
        (working if working.done() else keeping).result()
    finally:
        for task in (keeping, working):
            task.cancel()
        await asyncio.gather(keeping, working, return_exceptions=True)


async def _release(settings: Settings, kube: Kube, waits: float) -> None:
    if waits:
        _logger.info("waiting %g s until the operator has stopped", waits)
        await asyncio.sleep(waits)
    operator = f"{settings.pod_namespace}/{settings.lease_name}"
    leases = NamespaceLeases(kube, operator, time.monotonic, _end)
    try:
        for namespace in await _namespaces(settings, kube):
            if why := await leases.obstacle(namespace):
                _logger.warning("%s: no finalizer is released: %s", namespace, why)
                continue
            released = await release_all(kube, namespace, FINALIZERS)
            _logger.info("%s: released the finalizers of %d resources", namespace, released)
    finally:
        await leases.release()


async def _namespaces(settings: Settings, kube: Kube) -> list[str]:
    """Returns the watched namespaces with resources of the operator."""
    found: set[str] = set()
    for namespace in settings.watch_namespaces or (None,):
        for resource in KINDS:
            found |= {body["metadata"]["namespace"] for body in await kube.list(resource, namespace)}
    return sorted(found)


def _end(error: LeaseLostError) -> None:
    _logger.critical("lost the lease: %s", error)
    logging.shutdown()
    os._exit(1)
