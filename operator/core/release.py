"""Finalizers that nothing releases when the operator is gone: with its namespace, or with its release.

The pods of a namespace are deleted before its other objects. An operator in this namespace then gets SIGTERM before the
resources are marked for deletion. So it releases all of them when it stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from tallystick.operator.core.kube import ConflictError, Kube, KubeError, NotFoundError, Resource

_logger = logging.getLogger(__name__)

RELEASE_SECONDS = 15.0
"""Time limit. Kubernetes kills the operator 30 s after SIGTERM."""
TRIES = 5

Finalizers = Iterable[tuple[Resource, str]]
"""Kinds of resources, and the finalizer of the operator on them."""


async def release_terminating(kube: Kube, namespaces: Iterable[str], finalizers: Finalizers) -> int:
    """Removes the finalizers in those namespaces that are being deleted.

    Returns the number of released resources. Errors are logged: the process ends in any case.
    """
    released = 0
    try:
        async with asyncio.timeout(RELEASE_SECONDS):
            for namespace in namespaces:
                if await kube.is_terminating(namespace):
                    released += await release_all(kube, namespace, finalizers)
    except (KubeError, TimeoutError) as error:
        _logger.warning("could not release all finalizers: %s", error or "timed out")
    if released:
        _logger.info("released the finalizers of %d resources, because their namespace is being deleted", released)
    return released


async def release_all(kube: Kube, namespace: str, finalizers: Finalizers) -> int:
    """Removes the finalizers of all resources in a namespace. Returns the number of released resources.

    KubeError: some are not released.
    """
    released = 0
    for resource, finalizer in finalizers:
        released += await _release(kube, resource, finalizer, namespace)
    return released


async def _release(kube: Kube, resource: Resource, finalizer: str, namespace: str) -> int:
    released = 0
    for _ in range(TRIES):  # a resource that changed meanwhile is read again
        marked = [
            body
            for body in await kube.list(resource, namespace)
            if finalizer in (body["metadata"].get("finalizers") or ())
        ]
        if not marked:
            break
        for body in marked:
            others = [each for each in body["metadata"]["finalizers"] if each != finalizer]
            try:
                await kube.patch_live(body, {"metadata": {"finalizers": others}})
                released += 1
            except (ConflictError, NotFoundError):
                continue
    return released
