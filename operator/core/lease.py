"""One operator at a time: a Lease of coordination.k8s.io, renewed at a third of its time, given back at the end.

Clocks of machines differ, so the time in the record is for people only. Who waits for the lease measures with its own
clock how long the record has not changed; who holds it measures how long ago its last renewal was *begun*, and ends its
process well before anybody else can take over. A record is only ever replaced in the version that was read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from tallystick.operator.core.kube import LEASES, ConflictError, Json, Kube, KubeError

logger = logging.getLogger(__name__)

RENEWALS = 3
"""In the time that a lease lasts."""
GIVE_UP = 2 / 3
"""Of the lease's time without a renewal: then it counts as lost."""


class LeaseLostError(Exception):
    """Somebody else has it, or may have it soon. Whatever goes on now is not ours to do."""


@dataclass(slots=True)
class Watched:
    """What a waiting operator has seen of the record, by its own clock."""

    version: str = ""
    since: float = 0.0

    def is_free(self, record: Json, now: float, identity: str) -> bool:
        """Whether it may be taken: nobody has it, we do (a process before this one), or it has not changed for long."""
        spec, version = record.get("spec") or {}, record["metadata"]["resourceVersion"]
        if version != self.version:
            self.version, self.since = version, now
        holder = spec.get("holderIdentity") or ""
        return holder in ("", identity) or now - self.since >= float(spec.get("leaseDurationSeconds") or 0)


class Lease:
    """`identity` names this process among operators; `clock` never goes back (seconds)."""

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
        """Nobody else can have it yet."""
        return self._record is not None and self._clock() - self._renewed < self._seconds

    async def acquire(self) -> None:
        """Waits until it is ours. Errors of the API server are waited out."""
        watched = Watched()
        while not await self._try(watched):  # noqa: ASYNC110
            await asyncio.sleep(self._seconds / RENEWALS)

    async def keep(self) -> None:
        """Renews it for ever. LeaseLostError: it is lost, or could not be renewed in time."""
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
                logger.warning("could not renew the lease: %s", error or "timed out")
                if self._clock() - self._renewed >= self._seconds * GIVE_UP:
                    raise LeaseLostError("the lease could not be renewed in time") from error

    async def release(self) -> None:
        """Lets the next one in at once; if that fails, when it expires."""
        record, self._record = self._record, None
        if record is None:
            return
        try:
            async with asyncio.timeout(3.0):
                await self._replace(record, "")
        except (KubeError, TimeoutError) as error:
            logger.warning("could not release the lease: %s", error or "timed out")

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
            return False  # another one was quicker
        except KubeError as error:
            logger.warning("could not read the lease: %s", error)
            return False
        self._renewed = began
        logger.info("acquired the lease %s/%s", self._namespace, self._name)
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
