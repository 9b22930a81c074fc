"""Leader election of operators: a Lease of coordination.k8s.io, renewed every third of its duration.

Clocks differ between machines, so the times in the record are informative only. A waiting operator measures with its
own clock for how long the record has not changed. The holder measures the time since the *start* of its last renewal,
and ends its process well before another operator can take over. A record is replaced only in the version that was read.

The Lease of this module is held by one pod of a release. `namespace_leases.py` has one for each namespace.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tallystick.operator.core.kube import LEASES, ConflictError, Json, Kube, KubeError

_logger = logging.getLogger(__name__)

RENEWALS = 3
"""Number of renewals during the duration of the lease."""
SEIZURES = 5
"""Attempts to take the lease from a process that renews it."""
GIVE_UP = 2 / 3
"""Fraction of the duration without a renewal after which the lease counts as lost."""


class LeaseLostError(Exception):
    """Another operator holds the lease or can take it soon. This process must stop all work."""


@dataclass(slots=True)
class Watched:
    """The last spec of the record that a waiting operator read, and since when, by its own clock.

    Only the holder changes the spec. Annotations of others are no renewal.
    """

    spec: Json = field(default_factory=dict)
    since: float = 0.0

    def is_free(self, record: Json, now: float, identity: str) -> bool:
        """Whether the lease can be taken: it has no holder, an earlier process of ours holds it, or it has expired."""
        spec, holder = record.get("spec") or {}, holder_of(record)
        if spec != self.spec:
            self.spec, self.since = spec, now
        return holder in ("", identity) or now - self.since >= float(spec.get("leaseDurationSeconds") or 0)


def holder_of(record: Json) -> str:
    """Returns the identity of the holder of a Lease; empty: it has no holder."""
    return str((record.get("spec") or {}).get("holderIdentity") or "")


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
        self._watched = Watched()

    @property
    def held(self) -> bool:
        """Whether no other operator can hold the lease yet."""
        return self._record is not None and self._clock() - self._renewed < self._seconds

    @property
    def acts_until(self) -> float:
        """Time by the clock until which this process may act without another renewal; 0: it does not hold the lease."""
        return 0.0 if self._record is None else self._renewed + self._seconds * GIVE_UP

    async def acquire(self) -> None:
        """Waits until this process holds the lease. Retries after errors of the API server."""
        while not await self._tried():  # noqa: ASYNC110
            await asyncio.sleep(self._seconds / RENEWALS)

    async def seize(self) -> float:
        """Takes the lease from any process that holds it; that one ends when it tries to renew the lease.

        Returns the seconds after which the former holder has ended; 0: there was none. KubeError: it is not taken.
        """
        for attempt in range(SEIZURES):
            began = self._clock()
            record = await self._kube.find(LEASES, self._namespace, self._name)
            try:
                if record is None:
                    self._record = await self._kube.create(LEASES, self._namespace, self._body(self._identity, 0))
                else:
                    self._record = await self._replace(record, self._identity)
                break
            except ConflictError:  # the holder renewed it meanwhile
                if attempt == SEIZURES - 1:
                    raise
        self._renewed = began
        if record is None or holder_of(record) in ("", self._identity):
            return 0.0
        return float((record.get("spec") or {}).get("leaseDurationSeconds") or 0)

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

    async def try_acquire(self) -> Json | None:
        """Takes the lease if it is free. Returns the record of the process that holds it; None: this one does now.

        ConflictError: another process was first. KubeError: the lease could not be read or written.
        """
        began = self._clock()
        record = await self._kube.find(LEASES, self._namespace, self._name)
        if record is None:
            self._record = await self._kube.create(LEASES, self._namespace, self._body(self._identity, 0))
        elif self._watched.is_free(record, self._clock(), self._identity):
            self._record = await self._replace(record, self._identity)
        else:
            return record
        self._renewed = began
        _logger.info("acquired the lease %s/%s", self._namespace, self._name)
        return None

    async def _tried(self) -> bool:
        try:
            return await self.try_acquire() is None
        except ConflictError:
            return False  # another operator was first
        except KubeError as error:
            _logger.warning("could not read the lease: %s", error)
            return False

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
