"""One operator for each namespace: a Lease `operator.tallystick.dev` in every namespace with something to reconcile.

The lease in the namespace of the operator elects one pod of a release. Another release has another one there, so the
two could watch the same namespace and undo each other's writes. The lease in the watched namespace belongs to a release
(`<namespace>/<name of its own lease>`), not to a pod, so the pods of a release take over from each other at once.

An operator that does not hold the lease of a namespace changes nothing there, except one annotation of the Lease: it
says that this operator waits. The holder finds the annotation when it renews the lease, removes it, and reports it in
the condition `OperatorConflict` of its clusters.

In a namespace that is being deleted no Lease can be created. There, each operator may act: no cluster is left to
protect, and finalizers have to be released.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tallystick.operator.core.kube import (
    GROUP,
    LEASES,
    TERMINATING,
    ConflictError,
    Json,
    Kube,
    KubeError,
    NotFoundError,
)
from tallystick.operator.core.lease import RENEWALS, Lease, LeaseLostError, holder_of

_logger = logging.getLogger(__name__)

NAME = f"operator.{GROUP}"
"""Name of the Lease. Names of releases contain no dot, so it is never the lease of a release."""
WAITING = f"{GROUP}/waiting"
"""Annotation of the Lease: an operator that watches the namespace as well, and waits."""
SECONDS = 90.0
"""Time until another release takes over from one that was killed. One that stops gives its leases back. A third of it
is longer than the time limits of a request, so a request that was sent before the lease was lost has ended by then."""
RETRY_SECONDS = 5.0
"""Interval of reading a lease that another operator holds."""
RELEASE_SECONDS = 5.0


class _NamespaceLease(Lease):
    """A lease whose record other operators annotate."""

    def __init__(self, kube: Kube, namespace: str, operator: str, seconds: float, clock: Callable[[], float]) -> None:
        super().__init__(kube, namespace, NAME, operator, seconds, clock)
        self.waiting = ""
        """Another operator that waits for it; empty: there is none."""
        self._waited = 0.0

    async def renew(self) -> None:
        """LeaseLostError: another operator has it. NotFoundError: it was deleted. KubeError: it was not renewed."""
        began = self._clock()
        assert self._record is not None
        try:
            self._record = await self._replace(self._record, self._identity)
        except ConflictError as error:
            raise LeaseLostError(f"another operator took the Lease {self._namespace}/{NAME}") from error
        self._renewed = began
        if self.waiting and began - self._waited >= self._seconds:
            self.waiting = ""

    async def wait(self, record: Json) -> None:
        """Tells the holder of the lease that this operator waits. It is only tried."""
        metadata = record["metadata"]
        notes = metadata.get("annotations") or {}
        if WAITING in notes:
            return
        body = record | {"metadata": metadata | {"annotations": notes | {WAITING: self._identity}}}
        try:
            await self._kube.replace(LEASES, self._namespace, self._name, body)
        except KubeError as error:
            _logger.debug("could not annotate the lease: %s", error)

    async def _replace(self, record: Json, holder: str) -> Json:
        """Tries again if the record changed and still belongs to the same operator: another one annotated it."""
        self._note(record)
        try:
            return await super()._replace(record, holder)
        except ConflictError:
            found = await self._kube.get(LEASES, self._namespace, self._name)
            if holder_of(found) != self._identity:
                raise
            self._note(found)
            return await super()._replace(found, holder)

    def _note(self, record: Json) -> None:
        waiting = (record["metadata"].get("annotations") or {}).get(WAITING)
        if waiting and waiting != self._identity:
            self.waiting, self._waited = str(waiting), self._clock()


@dataclass(slots=True)
class _Entry:
    lease: _NamespaceLease
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    held: bool = False
    """Whether this process ever held it. It then ends when another operator has taken the lease."""
    terminating: bool = False
    """The namespace is being deleted."""
    why: str = ""
    retry: float = 0.0
    limits: set[asyncio.Timeout] = field(default_factory=set)
    """Of the passes that run in this namespace."""


class NamespaceLeases:
    """`operator` identifies the release. `clock` returns seconds that never go back.

    `lost(error)` is called when another operator has taken a lease that this process held: it must end at once.
    """

    def __init__(
        self,
        kube: Kube,
        operator: str,
        clock: Callable[[], float],
        lost: Callable[[LeaseLostError], None],
        seconds: float = SECONDS,
    ) -> None:
        self._kube = kube
        self._operator = operator
        self._clock = clock
        self._lost = lost
        self._seconds = seconds
        self._entries: dict[str, _Entry] = {}

    async def obstacle(self, namespace: str) -> str:
        """Returns why this operator must not act in a namespace; empty: it may. Takes the lease if it is free."""
        entry = self._entry(namespace)
        async with entry.lock:
            now = self._clock()
            if now < entry.lease.acts_until:
                return ""
            if now < entry.retry:
                return entry.why
            entry.retry = now + RETRY_SECONDS
            entry.why = await self._try(namespace, entry)
            return entry.why

    def waiting(self, namespace: str) -> str:
        """Returns another operator that waits for a namespace in which this one acts; empty: there is none."""
        entry = self._entries.get(namespace)
        return entry.lease.waiting if entry is not None else ""

    def counts(self) -> tuple[int, int]:
        """Returns the number of namespaces in which this operator acts, and of those in which it waits."""
        held = sum(self._clock() < entry.lease.acts_until for entry in self._entries.values())
        return held, sum(bool(entry.why) for entry in self._entries.values())

    @asynccontextmanager
    async def acting(self, namespace: str) -> AsyncIterator[None]:
        """Limits a pass to the time for which the lease is certain. TimeoutError: it was not renewed meanwhile."""
        entry = self._entry(namespace)
        if entry.terminating:
            yield
            return
        async with asyncio.timeout(max(entry.lease.acts_until - self._clock(), 0.0)) as limit:
            entry.limits.add(limit)
            try:
                yield
            finally:
                entry.limits.discard(limit)

    async def keep(self, used: Callable[[], Collection[str]]) -> None:
        """Renews the leases until it is cancelled, and gives back those of namespaces that are not `used`."""
        while True:
            await asyncio.sleep(self._seconds / RENEWALS)
            await self.renew(used)

    async def renew(self, used: Callable[[], Collection[str]]) -> None:
        """Renews the leases once."""
        await asyncio.gather(*(self._keep(namespace, entry, used) for namespace, entry in self._held()))
        for namespace in self._entries.keys() - set(used()):
            if not self._entries[namespace].held and not self._entries[namespace].lock.locked():
                del self._entries[namespace]

    async def release(self) -> None:
        """Gives all leases back, so that another operator can take them at once."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await asyncio.gather(*(entry.lease.release() for _, entry in self._held()))
        except TimeoutError:
            _logger.warning("could not release the leases of all namespaces in time")

    def _held(self) -> list[tuple[str, _Entry]]:
        return [(namespace, entry) for namespace, entry in self._entries.items() if entry.held]

    def _entry(self, namespace: str) -> _Entry:
        if namespace not in self._entries:
            lease = _NamespaceLease(self._kube, namespace, self._operator, self._seconds, self._clock)
            self._entries[namespace] = _Entry(lease)
        return self._entries[namespace]

    async def _try(self, namespace: str, entry: _Entry) -> str:
        try:
            record = await entry.lease.try_acquire()
        except ConflictError:
            entry.retry = 0.0
            return f"the Lease {NAME} changed while it was read"
        except KubeError as error:
            entry.terminating = TERMINATING in error.said
            return "" if entry.terminating else f"the operator cannot use the Lease {NAME}: {error.said}"
        entry.terminating = False
        if record is None:
            entry.held = True
            return ""
        if entry.held:
            self._lost(LeaseLostError(f"another operator took the Lease {namespace}/{NAME}"))
        await entry.lease.wait(record)
        return (
            f"the operator {holder_of(record)} manages the namespace {namespace}; the operator {self._operator} watches"
            " it as well, and waits"
        )

    async def _keep(self, namespace: str, entry: _Entry, used: Callable[[], Collection[str]]) -> None:
        async with entry.lock:
            if namespace not in used():
                await entry.lease.release()
                entry.held = False
                return
            try:
                await entry.lease.renew()
            except LeaseLostError as error:
                self._lost(error)
            except NotFoundError:  # it was deleted, perhaps with its namespace
                entry.why = await self._try(namespace, entry)
            except KubeError as error:
                _logger.warning("could not renew the lease of %s: %s", namespace, error)
            self._extend(entry)

    def _extend(self, entry: _Entry) -> None:
        left = None if entry.terminating else max(entry.lease.acts_until - self._clock(), 0.0)
        for limit in entry.limits:
            if not limit.expired():
                limit.reschedule(None if left is None else asyncio.get_running_loop().time() + left)
