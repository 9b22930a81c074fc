"""Runs a pass only in a namespace whose lease this operator holds, and tells users when it does not."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from tallystick.operator.core.events import Events, Reference
from tallystick.operator.core.kube import BACKUPS, CLUSTERS, SCHEDULED_BACKUPS, STORE_JOBS, Kube, Resource
from tallystick.operator.core.namespace_leases import NamespaceLeases
from tallystick.operator.core.work_queue import Key, Kind

_logger = logging.getLogger(__name__)

Work = Callable[[Key], Awaitable[float | None]]

RESOURCES: Mapping[Kind, Resource] = {
    Kind.CLUSTER: CLUSTERS,
    Kind.JOB: STORE_JOBS,
    Kind.BACKUP: BACKUPS,
    Kind.SCHEDULE: SCHEDULED_BACKUPS,
}
"""Kinds of keys that name a resource."""
WAITING_SECONDS = 10.0
"""Interval of passes over a key in a namespace that another operator manages."""


class Guard:
    """Wraps the work of the queue, by kind of the key."""

    def __init__(self, kube: Kube, leases: NamespaceLeases, events: Events, work: Mapping[Kind, Work]) -> None:
        self._kube = kube
        self._leases = leases
        self._events = events
        self._work = work
        self._told: dict[Key, str] = {}

    async def run(self, key: Key) -> float | None:
        """Runs a pass over a key, if this operator manages its namespace. Returns the seconds until the next."""
        why = await self._leases.obstacle(key.namespace)
        if why:
            return await self._wait(key, why)
        self._told.pop(key, None)
        async with self._leases.acting(key.namespace):
            return await self._work[key.kind](key)

    async def _wait(self, key: Key, why: str) -> float | None:
        """Records an event, once for each reason. The status of the resource belongs to the other operator."""
        if key.kind is Kind.TOPICS:
            return WAITING_SECONDS
        body = await self._kube.find(RESOURCES[key.kind], key.namespace, key.name)
        if body is None:
            self._told.pop(key, None)
            return None
        if self._told.get(key) != why:
            self._told[key] = why
            _logger.warning("%s is not reconciled: %s", key, why)
            await self._events.post(Reference.to(body), "OperatorWaits", why, warning=True)
        return WAITING_SECONDS
