"""One pass over the Topics and ConsumerGroups of one cluster.

A pass reads the declarations, and the objects of each broker group once. It decides (`decide`) and carries out
(`carry_out`) the decisions whose turn it is. The memory between passes is not essential: the order of declarations, the
time of counting, and since when a group does not respond.

A pass acts on at most PER_PASS declarations and then runs again immediately. A thousand new topics take 17 passes; in
between, other clusters and new declarations get their turn (`turns`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from tallystick.operator.core import kube
from tallystick.operator.core.events import Events
from tallystick.operator.core.ownership import owned, taken
from tallystick.operator.topics import reasons
from tallystick.operator.topics.carry_out import FAILED_SECONDS, Hands, Pass
from tallystick.operator.topics.claims import Claims, claims_manifest, claims_name, needed, parse_claims, with_claims
from tallystick.operator.topics.decide import Decision, decide, holders, without_new_claims
from tallystick.operator.topics.kinds import CONSUMER_GROUP, TOPIC, Kind, S
from tallystick.operator.topics.metrics import TopicMetrics
from tallystick.operator.topics.observe import Observer, addresses_of
from tallystick.operator.topics.observed import ClusterView
from tallystick.operator.topics.ports import Brokers, GroupAddress
from tallystick.operator.topics.spec import Policy, cluster_of, declaration
from tallystick.operator.topics.status import concluded
from tallystick.operator.topics.turns import Turns

_logger = logging.getLogger(__name__)

PER_PASS = 60
RESYNC_SECONDS = 20.0
"""Interval of passes to detect drift: no event reports changes by mqadmin."""
LOST_SECONDS = 0.5
COUNTED_SECONDS = 60.0
COUNTED_EACH = 30
"""Number of declarations of a kind and cluster whose counters are read each COUNTED_SECONDS."""
KUBE_REQUESTS = 6
BROKER_REQUESTS = 16


class TopicsReconciler:
    """Runs the passes for keys of topics. `now()`: seconds since 1970; `clock()`: seconds that never go back."""

    def __init__(
        self,
        api: kube.Kube,
        brokers: Brokers,
        events: Events,
        metrics: TopicMetrics,
        now: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = api
        self._observer = Observer(brokers, clock)
        self._metrics = metrics
        self._now = now
        self._clock = clock
        self._hands = Hands(
            api, brokers, events, metrics, asyncio.Semaphore(KUBE_REQUESTS), asyncio.Semaphore(BROKER_REQUESTS)
        )
        self._turns: dict[tuple[str, str, str], Turns] = {}

    async def reconcile(self, namespace: str, cluster: str) -> float | None:
        """Runs one pass. Returns the seconds until the next; None: the cluster has no declarations.

        KubeError: the declarations could not be read. An error of one declaration does not affect the others.
        """
        found = await self._kube.find(kube.CLUSTERS, namespace, cluster)
        addresses = addresses_of(found)
        again = [
            await self._keep(TOPIC, namespace, cluster, found, addresses),
            await self._keep(CONSUMER_GROUP, namespace, cluster, found, addresses),
        ]
        return min((each for each in again if each is not None), default=None)

    async def _keep(
        self,
        kind: Kind[S],
        namespace: str,
        name: str,
        cluster: Mapping[str, Any] | None,
        addresses: Mapping[str, GroupAddress],
    ) -> float | None:
        key = (kind.kind, namespace, name)
        declared = [
            declaration(kind, value)
            for value in await self._kube.list(kube.BY_KIND[kind.kind], namespace)  # not kept: it may have megabytes
            if cluster_of(value) == name
        ]
        self._metrics.saw(kind.kind, namespace, name, (each.status.get("phase", "Pending") for each in declared))
        if not declared:
            self._turns.pop(key, None)
            return None
        noted = await self._kube.find(kube.CONFIG_MAPS, namespace, claims_name(kind, name))
        foreign = ""
        if noted is not None and cluster is not None and not owned(noted, {cluster["metadata"]["uid"]}):
            foreign, noted = taken(noted), None  # it is not believed, and not changed
        claims = needed(parse_claims(noted), declared)
        declared = [with_claims(each, claims) for each in declared]
        turns = self._turns.setdefault(key, Turns())
        turns.forget_all_but({each.uid for each in declared})
        view = await self._observer.observe(kind, namespace, name, cluster, addresses)
        held = any(each.marked or each.policy is not Policy.RETAIN for each in declared)
        if held and await self._kube.is_terminating(namespace):
            view = ClusterView(name, deleting=True)  # its finalizers are released while the operator still may
        first, now = holders(declared), self._now()
        decisions = [decide(kind, each, view, first.get(each.subject)) for each in declared]
        if foreign:
            decisions = [without_new_claims(each, foreign) for each in decisions]
        due = [each for each in decisions if each.acts or _speaks(kind, each, now)]
        chosen, left = turns.take(due, self._clock(), PER_PASS)
        settled = [each for each in decisions if each.problem is None and each.declaration.settled and not each.acts]
        count = turns.count([each.declaration.uid for each in settled], self._clock(), COUNTED_SECONDS, COUNTED_EACH)
        known = {each.declaration.uid for each in chosen}
        chosen += [each for each in settled if each.declaration.uid in count - known]
        waits = [turns.wait(each, self._clock()) for each in due if each.declaration.uid not in known]

        async def claim(new: Claims) -> None:
            assert cluster is not None, "a cluster that does not exist has no groups"
            await self._kube.apply(claims_manifest(kind, cluster, claims | new), noted)

        for work in await Pass(self._hands, kind, view, addresses, now, claim).carry_out(chosen, count):
            turns.tried(work.decision.declaration.uid, work.resource_version, self._clock() + work.wait_seconds)
            waits.append(LOST_SECONDS if work.lost else work.wait_seconds)
        if any(each.silent or each.problem_is(reasons.GROUP_UNAVAILABLE) for each in decisions):
            waits.append(FAILED_SECONDS)
        return 0.0 if left else min((RESYNC_SECONDS, *(wait for wait in waits if wait > 0)))


def _speaks(kind: Kind[S], decision: Decision[S], now: float) -> bool:
    """Whether the status would change."""
    if decision.nothing:
        return False
    return concluded(decision, {}, now, kind.name_field) != decision.declaration.status
