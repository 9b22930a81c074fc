"""Carries out decisions in the order of `decide.py`: claim, write, delete, then write the status.

A pass handles many declarations. All claims precede its first write to a broker. A declaration whose resource changed
meanwhile or was deleted is skipped until the next pass. All claims are one request, and so are all writes to one broker
group. The API server has no request for the status of several objects, so a few of these run concurrently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from tallystick.operator.core import kube
from tallystick.operator.core.declared import Phase, Problem
from tallystick.operator.core.events import Events, Reference
from tallystick.operator.topics import reasons
from tallystick.operator.topics.claims import Claims
from tallystick.operator.topics.decide import Decision, kept_while_in_use
from tallystick.operator.topics.kinds import Kind, S
from tallystick.operator.topics.metrics import TopicMetrics
from tallystick.operator.topics.observed import ClusterView
from tallystick.operator.topics.ports import MAX_BATCH, BrokerError, Brokers, GroupAddress, InUseError, RefusedError
from tallystick.operator.topics.spec import Policy
from tallystick.operator.topics.status import concluded

_logger = logging.getLogger(__name__)

FAILED_SECONDS = 3.0
IN_USE_SECONDS = 10.0
REFUSED_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Hands:
    """The dependencies of a pass. There is one instance, so the two limits apply to all clusters together."""

    kube: kube.Kube
    brokers: Brokers
    events: Events
    metrics: TopicMetrics
    kube_limit: asyncio.Semaphore
    """Limit of concurrent requests to the API server, below the number of threads, which other passes need too."""
    broker_limit: asyncio.Semaphore


@dataclass(slots=True)
class Work(Generic[S]):
    """The work for one declaration in one pass."""

    decision: Decision[S]
    resource_version: str
    failures: dict[str, Problem] = field(default_factory=dict)
    """Errors by broker group."""
    figures: dict[str, Mapping[str, int]] = field(default_factory=dict)
    lost: bool = False
    """The resource changed meanwhile: the next pass reads it again."""
    stuck: bool = False
    """The API server rejected a request or did not respond."""

    @property
    def wait_seconds(self) -> float:
        """Seconds until a retry, unless the resource changes before."""
        if self.stuck:
            return FAILED_SECONDS
        waits = {reasons.REFUSED_BY_BROKER: REFUSED_SECONDS, reasons.NOT_EMPTY: IN_USE_SECONDS}
        return max((waits.get(each.reason, FAILED_SECONDS) for each in self.failures.values()), default=0.0)


class Pass(Generic[S]):
    """One pass over one kind of one cluster. `now`: the time in seconds since 1970."""

    def __init__(
        self,
        hands: Hands,
        kind: Kind[S],
        cluster: ClusterView[S],
        addresses: Mapping[str, GroupAddress],
        now: float,
        claim: Callable[[Claims], Awaitable[None]],
    ) -> None:
        self._hands = hands
        self._kind = kind
        self._resource = kube.BY_KIND[kind.kind]
        self._cluster = cluster
        self._addresses = addresses
        self._now = now
        self._note_claims = claim

    async def carry_out(self, decisions: Sequence[Decision[S]], count: frozenset[str] = frozenset()) -> list[Work[S]]:
        """Carries out decisions. `count`: UIDs of declarations whose figures are read as well."""
        works = [
            Work(decision, decision.declaration.resource_version) for decision in decisions if not decision.nothing
        ]
        await self._all(self._set_mark, works)
        await self._claim([work for work in works if not work.lost and not work.stuck])
        works_on = [work for work in works if not work.lost and not work.stuck]
        await self._write([(work, group) for work in works_on for group in work.decision.writes])
        await self._all(self._delete, [work for work in works_on if work.decision.deletes])
        await self._all(self._count, [work for work in works_on if work.decision.declaration.uid in count])
        await self._all(self._conclude, works_on)
        return works

    async def _all(self, step: Callable[[Work[S]], Awaitable[None]], works: Iterable[Work[S]]) -> None:
        async def one(work: Work[S]) -> None:
            try:
                await step(work)
            except (kube.ConflictError, kube.NotFoundError):
                work.lost = True
            except kube.KubeError as error:
                work.stuck = True
                _logger.warning("%s %s: %s", self._kind.kind, work.decision.declaration.name, error)

        await asyncio.gather(*(one(work) for work in works))

    # -- the API server

    async def _set_mark(self, work: Work[S]) -> None:
        decision = work.decision
        if decision.finalizer != decision.declaration.marked and not decision.release:
            await self._mark(work, decision.finalizer)

    async def _claim(self, works: Sequence[Work[S]]) -> None:
        new = [work for work in works if work.decision.owned != work.decision.declaration.owned]
        if not new:
            return
        try:
            await self._note_claims({work.decision.declaration.uid: work.decision.owned for work in new})
        except kube.KubeError as error:
            _logger.warning("could not record %d claims: %s", len(new), error)
            for work in new:
                work.stuck = True

    async def _mark(self, work: Work[S], wanted: bool) -> None:
        declaration = work.decision.declaration
        others = [each for each in declaration.finalizers if each != self._kind.finalizer]
        finalizers = [*others, self._kind.finalizer] if wanted else others
        body = {"metadata": {"finalizers": finalizers, "resourceVersion": work.resource_version}}
        async with self._hands.kube_limit:
            answer = await self._hands.kube.patch(self._resource, declaration.namespace, declaration.name, body)
        work.resource_version = answer["metadata"]["resourceVersion"]

    async def _set_status(self, work: Work[S], status: dict[str, Any]) -> None:
        declaration = work.decision.declaration
        body = {
            "apiVersion": self._resource.api_version,
            "kind": self._resource.kind,
            "metadata": {
                "namespace": declaration.namespace,
                "name": declaration.name,
                "resourceVersion": work.resource_version,
            },
            "status": status,
        }
        async with self._hands.kube_limit:
            answer = await self._hands.kube.apply_status_of(body)
        work.resource_version = answer["metadata"]["resourceVersion"]

    async def _conclude(self, work: Work[S]) -> None:
        decision = work.decision
        if decision.release and not work.failures:
            await self._mark(work, False)
            if decision.deletes:
                self._hands.metrics.deletions.labels(self._kind.kind).inc()
            return
        status = concluded(decision, work.failures, self._now, self._kind.name_field, work.figures)
        if status != decision.declaration.status:
            await self._set_status(work, status)
        await self._tell(work, status)

    # -- the brokers

    async def _write(self, pairs: Sequence[tuple[Work[S], str]]) -> None:
        """Writes pairs of declaration and broker group: one request for each group and MAX_BATCH declarations."""
        by_group: dict[str, list[Work[S]]] = {}
        for work, group in pairs:
            by_group.setdefault(group, []).append(work)
        batches = [
            (group, works[first : first + MAX_BATCH])
            for group, works in by_group.items()
            for first in range(0, len(works), MAX_BATCH)
        ]
        await asyncio.gather(*(self._write_batch(group, works) for group, works in batches))

    async def _write_batch(self, group: str, works: Sequence[Work[S]]) -> None:
        written = self._hands.metrics.broker_writes
        settings = [work.decision.writes[group] for work in works]
        try:
            async with self._hands.broker_limit:
                refused = await self._hands.brokers.write(self._kind, self._addresses[group], settings)
        except BrokerError as error:
            _logger.warning("%s: could not write %d objects: %s", group, len(works), error)
            for work in works:
                work.failures[group] = self._failure(group, error)
            written.labels(self._kind.kind, "failed").inc(len(works))
            return
        for work in works:
            if why := refused.get(work.decision.declaration.subject):
                work.failures[group] = Problem(Phase.REFUSED, reasons.REFUSED_BY_BROKER, f"{group} rejected it: {why}")
        written.labels(self._kind.kind, "refused").inc(len(refused))
        written.labels(self._kind.kind, "written").inc(len(works) - len(refused))

    async def _delete(self, work: Work[S]) -> None:
        decision, subject = work.decision, work.decision.declaration.subject
        if_empty = decision.declaration.policy is Policy.DELETE_IF_EMPTY
        deleted: list[str] = []
        await self._on_each(work, decision.empty, lambda group: self._must_be_unused(group, subject))
        if not work.failures:
            deleted = await self._on_each(
                work, decision.deletes, lambda group: self._delete_on(group, subject, if_empty)
            )
        if any(each.reason == reasons.NOT_EMPTY for each in work.failures.values()):
            kept = kept_while_in_use(decision, self._cluster, deleted)
            await self._on_each(work, kept, lambda group: self._write_one(group, kept[group]))

    async def _on_each(self, work: Work[S], groups: Iterable[str], do: Callable[[str], Awaitable[None]]) -> list[str]:
        """Returns the groups on which `do` succeeded. `work.failures` contains the errors of the others."""
        done = []
        for group in groups:
            try:
                async with self._hands.broker_limit:
                    await do(group)
                done.append(group)
            except InUseError:
                self._in_use(work, group)
            except BrokerError as error:
                _logger.warning("%s: could not delete %s: %s", group, work.decision.declaration.subject, error)
                failure = self._failure(group, error)
                work.failures[group] = Problem(Phase.DELETING, failure.reason, failure.message)
        return done

    def _in_use(self, work: Work[S], group: str) -> None:
        # The message contains no number: each change of the number would cause a write, an event and a pass.
        what = "messages" if self._kind.figures[0] == "messages" else "consumers connected"
        work.failures[group] = Problem(
            Phase.DELETING, reasons.NOT_EMPTY, f"{group} still has {what}; it is deleted when there are none"
        )

    async def _must_be_unused(self, group: str, subject: str) -> None:
        figures = await self._hands.brokers.figures(self._kind, self._addresses[group], subject)
        if figures.get(self._kind.figures[0], 0):
            raise InUseError(subject)

    async def _write_one(self, group: str, settings: S) -> None:
        await self._hands.brokers.write(self._kind, self._addresses[group], [settings])

    async def _delete_on(self, group: str, subject: str, if_empty: bool) -> None:
        await self._hands.brokers.delete(self._kind, self._addresses[group], subject, if_empty=if_empty)

    async def _count(self, work: Work[S]) -> None:
        for group in work.decision.confirmed:
            try:
                async with self._hands.broker_limit:
                    work.figures[group] = await self._hands.brokers.figures(
                        self._kind, self._addresses[group], work.decision.declaration.subject
                    )
            except BrokerError as error:
                _logger.info("%s: could not read the counters: %s", group, error)  # the previous number is kept

    def _failure(self, group: str, error: BrokerError) -> Problem:
        if isinstance(error, RefusedError):
            return Problem(Phase.REFUSED, reasons.REFUSED_BY_BROKER, f"{group} rejected it: {error}")
        # The log contains the error. Its text varies, and a status that differs would be written again each time.
        return Problem(Phase.PENDING, reasons.WRITE_FAILED, f"{group} did not confirm the change in time; retrying")

    # -- events and metrics

    async def _tell(self, work: Work[S], status: Mapping[str, Any]) -> None:
        """Writes events about corrected drift, adoptions, and new rejections."""
        decision, kind = work.decision, self._kind.kind
        declaration = decision.declaration
        about = Reference(self._resource.api_version, kind, declaration.namespace, declaration.name, declaration.uid)
        drifts = [told for group, told in decision.drifts.items() if group not in work.failures]
        if drifts:
            self._hands.metrics.drifts.labels(kind).inc()
            await self._post(about, "DriftCorrected", f"corrected: {'; '.join(drifts)}")
        if decision.adopted and not work.failures and decision.problem is None:
            groups = ", ".join(decision.adopted)
            await self._post(about, "Adopted", f"adopted {declaration.subject} on {groups}")
        for condition in status["conditions"]:
            old = declaration.condition(condition["type"]) or {}
            refused = condition["reason"] in WARNED and old.get("reason") != condition["reason"]
            if refused and (condition["type"] == "Ready" or condition["reason"] == reasons.QUEUES_NOT_LOWERED):
                self._hands.metrics.refusals.labels(kind, condition["reason"]).inc()
                await self._post(about, condition["reason"], condition["message"], warning=True)

    async def _post(self, about: Reference, reason: str, message: str, *, warning: bool = False) -> None:
        async with self._hands.kube_limit:
            await self._hands.events.post(about, reason, message, warning=warning)


WARNED = frozenset(
    {
        *(reasons.INVALID_SPEC, reasons.CONFLICT, reasons.ALREADY_EXISTS, reasons.REFUSED_BY_BROKER),
        *(reasons.QUEUES_NOT_LOWERED, reasons.NOT_EMPTY, reasons.GROUP_NOT_FOUND, "SystemTopic", "SystemGroup"),
        reasons.NAME_TAKEN,
    }
)
"""Reasons that require a user; each causes a warning event."""
