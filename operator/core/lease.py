"""Leader election of operators: a Lease of coordination.k8s.io, renewed every third of its duration.

Clocks differ between machines, so the times in the record are informative only. A waiting operator measures with its
own clock for how long the record has not changed. The holder measures the time since the *start* of its last renewal,
and ends its process well before another operator can take over. A record is replaced only in the version that was read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from tallystick.operator.core.kube import LEASES, ConflictError, Json, Kube, KubeError

_logger = logging.getLogger(__name__)

RENEWALS = 3
"""Number of renewals during the duration of the lease."""
GIVE_UP = 2 / 3
"""Fraction of the duration without a renewal after which the lease counts as lost."""


class LeaseLostError(Exception):
    """Another operator holds the lease or can take it soon. This process must stop all work."""


@dataclass(slots=True)
class Watched:
    """The last version of the record that a waiting operator read, and when, by its own clock."""

    version: str = ""
    since: float = 0.0

    def is_free(self, record: Json, now: float, identity: str) -> bool:
        """Whether the lease can be taken: it has no holder, an earlier process of ours holds it, or it has expired."""
        spec, version = record.get("spec") or {}, record["metadata"]["resourceVersion"]
        if version != self.version:
            self.version, self.since = version, now
        holder = spec.get("holderIdentity") or ""
        return holder in ("", identity) or now - self.since >= float(spec.get("leaseDurationSeconds") or 0)


class Lease:
    """`identity` is the unique name of this process; `clock` returns seconds that never go back."""

    def __init__(
        self, kube: Kube, namespace: str, name: str, identity: str, seconds: float, clock: Callable[[], float]
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._seconds = seconds
        self._clock = clock
        self._record: Json | None = None
        self._renewed = 0.0

    @property
    def held(self) -> bool:
        """Whether no other operator can hold the lease yet."""
        return self._record is not None and self._clock() - self._renewed < self._seconds

    async def acquire(self) -> None:
        """Waits until this process holds the lease. Retries after errors of the API server."""
        watched = Watched()
        while not await self._try(watched):  # noqa: ASYNC110
            await asyncio.sleep(self._seconds / RENEWALS)

    async def keep(self) -> None:
        """Renews the lease until it is cancelled. LeaseLostError: the lease was taken or not renewed in time."""
        while True:
            await asyncio.sleep(self._seconds / RENEWALS)
            began = self._clock()
            remaining = self._renewed + self._seconds * GIVE_UP - began
            try:
                async with asyncio.timeout(max(remaining, 0.1)):
                    assert self._record is not None
                    self._record = await self._replace(self._record, self._identity)
                self._renewed = began
            except ConflictError as error:
                raise LeaseLostError("another process changed the lease") from error
            except (KubeError, TimeoutError) as error:
                _logger.warning("could not renew the lease: %s", error or "timed out")
                if self._clock() - self._renewed >= self._seconds * GIVE_UP:
                    raise LeaseLostError("the lease could not be renewed in time") from error

    async def release(self) -> None:
        """Releases the lease, so that the next operator can take it at once. After an error, it expires."""
        record, self._record = self._record, None
        if record is None:
            return
        try:
            async with asyncio.timeout(3.0):
                await self._replace(record, "")
        except (KubeError, TimeoutError) as error:
            _logger.warning("could not release the lease: %s", error or "timed out")

    async def _try(self, watched: Watched) -> bool:
        began = self._clock()
        try:
            record = await self._kube.find(LEASES, self._namespace, self._name)
            if record is None:
                self._record = await self._kube.create(LEASES, self._namespace, self._body(self._identity, 0))
            elif watched.is_free(record, self._clock(), self._identity):
                self._record = await self._replace(record, self._identity)
            else:
                return False
        except ConflictError:
            return False  # another operator was first
        except KubeError as error:
            _logger.warning("could not read the lease: %s", error)
            return False
        self._renewed = began
        _logger.info("acquired the lease %s/%s", self._namespace, self._name)
        return True

    async def _replace(self, record: Json, holder: str) -> Json:
        spec = record.get("spec") or {}
        changes = int(spec.get("leaseTransitions") or 0) + (spec.get("holderIdentity") != holder and bool(holder))
        body = self._body(holder, changes)
        body["metadata"]["resourceVersion"] = record["metadata"]["resourceVersion"]
        if spec.get("holderIdentity") == holder and spec.get("acquireTime"):
            body["spec"]["acquireTime"] = spec["acquireTime"]
        return await self._kube.replace(LEASES, self._namespace, self._name, body)

    def _body(self, holder: str, transitions: int) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, int(self._seconds)),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }
