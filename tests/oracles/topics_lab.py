"""A small Kubernetes and the brokers of a cluster, for tests of the keeping of topics.

`FakeApi` keeps what the reconciler relies on: resource versions, generations that count changes of the spec, status
that only its own subresource changes and that a new object does not have, finalizers that hold a deletion up.
`FakeBrokers` keeps what the admin API promises. Both tell listeners of each write, and can crash the operator at one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry
from simulated_api import copied

from tallystick.operator.core import kube
from tallystick.operator.topics.claims import parse_claims
from tallystick.operator.topics.kinds import CONSUMER_GROUP, Kind
from tallystick.operator.topics.metrics import TopicMetrics
from tallystick.operator.topics.ports import GroupAddress, InUseError, RefusedError, SilentError
from tallystick.operator.topics.reconcile import TopicsReconciler
from tallystick.operator.topics.settings import TopicSettings

NAMESPACE = "shop"
CLUSTER = "orders"


class Crash(BaseException):
    """The operator's process was killed: this must not be caught."""


class Fuse:
    """Crashes the operator at its n-th write: before it is done, or just after. After that it does nothing."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.after = False
        self.blown = False

    def set(self, writes: int, *, after: bool) -> None:
        self.left, self.after, self.blown = writes, after, False

    def clear(self) -> None:
        self.left, self.blown = None, False

    def check(self) -> None:
        if self.blown:
            raise Crash

    def before(self) -> None:
        self.check()
        if self.left is not None and self.left == 0 and not self.after:
            self.blown = True
            raise Crash

    def done(self) -> None:
        if self.left is not None:
            if self.left == 0:
                self.blown = True
                raise Crash
            self.left -= 1


class FakeApi:
    """What `kube.Kube` does of get, list, patch and apply, in memory."""

    def __init__(self, fuse: Fuse | None = None) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.fuse = fuse or Fuse()
        self.terminating: set[str] = set()
        """Namespaces that are being deleted."""
        self.writes = 0
        self.on_write: list[Any] = []
        """Called with (old, new) of each write of the operator; new is None if the object went."""
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self.seconds = itertools.count(1)

    # -- what people do

    def create(self, kind: str, name: str, spec: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
        assert (kind, NAMESPACE, name) not in self.objects
        found = {
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": f"uid-{next(self._uids)}",
                "resourceVersion": str(next(self._versions)),
                "generation": 1,
                "creationTimestamp": f"2026-01-01T00:{next(self.seconds):06d}Z",
            }
            | metadata,
            "spec": dict(spec),
        }
        self.objects[kind, NAMESPACE, name] = found
        return found

    def cluster(self, groups: int = 2, formed: Sequence[int] | None = None, **metadata: Any) -> dict[str, Any]:
        old = self.objects.pop(("BrokerCluster", NAMESPACE, CLUSTER), None)
        if old is not None:
            metadata = {"uid": old["metadata"]["uid"]} | metadata
        found = self.create("BrokerCluster", CLUSTER, {"groups": groups, "replicas": 3}, **metadata)
        has = range(groups) if formed is None else formed
        rows = [
            {"name": f"{CLUSTER}-{number}", "formed": number in has, "leader": f"{CLUSTER}-{number}-0"}
            for number in range(groups)
        ]
        found["status"] = {"groups": rows}
        self._collect()
        return found

    def _collect(self) -> None:
        """Garbage collection: the claims of a cluster that is gone."""
        uids = {body["metadata"]["uid"] for body in self.of("BrokerCluster")}
        for key, body in list(self.objects.items()):
            owners = [each for each in body["metadata"].get("ownerReferences", ()) if each["kind"] == "BrokerCluster"]
            if owners and not any(each["uid"] in uids for each in owners):
                del self.objects[key]

    def topic(self, name: str, *, adopt: bool = False, **spec: Any) -> dict[str, Any]:
        metadata = {"annotations": {"tallystick.dev/adopt": "true"}} if adopt else {}
        return self.create("Topic", name, {"clusterName": CLUSTER} | spec, **metadata)

    def edit(self, kind: str, name: str, **spec: Any) -> None:
        found = self.objects[kind, NAMESPACE, name]
        found["spec"] = found["spec"] | spec
        found["metadata"]["generation"] += 1
        found["metadata"]["resourceVersion"] = str(next(self._versions))

    def annotate(self, kind: str, name: str, key: str, value: str) -> None:
        metadata = self.objects[kind, NAMESPACE, name]["metadata"]
        metadata["annotations"] = metadata.get("annotations", {}) | {key: value}
        metadata["resourceVersion"] = str(next(self._versions))

    def remove(self, kind: str, name: str) -> None:
        """kubectl delete: at once, or marked until its finalizers are gone."""
        metadata = self.objects[kind, NAMESPACE, name]["metadata"]
        if metadata.get("finalizers"):
            metadata["deletionTimestamp"] = "2026-01-02T00:00:00Z"
            metadata["resourceVersion"] = str(next(self._versions))
        else:
            del self.objects[kind, NAMESPACE, name]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [found for (of_kind, _, _), found in self.objects.items() if of_kind == kind]

    def status(self, name: str, kind: str = "Topic") -> dict[str, Any]:
        return self.objects[kind, NAMESPACE, name].get("status", {})

    def ready(self, name: str, kind: str = "Topic") -> tuple[str, str]:
        """Status and reason of the condition Ready."""
        return self.condition(name, "Ready", kind)

    def condition(self, name: str, type_: str, kind: str = "Topic") -> tuple[str, str]:
        rows = self.status(name, kind).get("conditions", ())
        return next(((row["status"], row["reason"]) for row in rows if row["type"] == type_), ("", ""))

    def message(self, name: str, type_: str = "Ready", kind: str = "Topic") -> str:
        return next(row["message"] for row in self.status(name, kind)["conditions"] if row["type"] == type_)

    # -- what the operator does

    async def is_terminating(self, namespace: str) -> bool:
        return namespace in self.terminating

    async def find(self, resource: kube.Resource, namespace: str, name: str) -> dict[str, Any] | None:
        self.fuse.check()
        return copied(self.objects.get((resource.kind, namespace, name)))

    async def list(self, resource: kube.Resource, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        self.fuse.check()
        return [copied(found) for found in self.of(resource.kind) if found["metadata"]["namespace"] == namespace]

    async def patch(self, resource: kube.Resource, namespace: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        old = self._writable(resource.kind, namespace, name, body)
        new = copied(old)
        new["metadata"] |= {key: value for key, value in body["metadata"].items() if key != "resourceVersion"}
        assert set(body) == {"metadata"}, "the operator must not write a spec"
        return self._write(old, new)

    async def apply_status_of(self, body: dict[str, Any]) -> dict[str, Any]:
        metadata = body["metadata"]
        old = self._writable(body["kind"], metadata["namespace"], metadata["name"], body)
        new = copied(old)
        new["status"] = copied(body["status"])
        return self._write(old, new)

    async def apply(self, body: dict[str, Any], live: dict[str, Any] | None) -> dict[str, Any]:
        """Of the one other object that is written: the claims."""
        assert body["kind"] == "ConfigMap"
        self.fuse.before()
        key = ("ConfigMap", body["metadata"]["namespace"], body["metadata"]["name"])
        version = {"uid": f"uid-{next(self._uids)}"} if live is None else {"uid": live["metadata"]["uid"]}
        version["resourceVersion"] = str(next(self._versions))
        there = self.objects.get(key)
        if (there is None) != (live is None) or (
            there is not None and live is not None and there["metadata"] != live["metadata"]
        ):
            raise kube.ConflictError("the claims have changed", status=409)
        new = copied(body)
        new["metadata"] |= version
        for listener in self.on_write:
            listener(self.objects.get(key), new)
        self.objects[key] = new
        self.writes += 1
        self.fuse.done()
        return copied(new)

    def claims(self, uid: str) -> set[str]:
        """Broker groups that are recorded for a resource before its status says so."""
        found = parse_claims(self.objects.get(("ConfigMap", NAMESPACE, f"{CLUSTER}-topic-claims")))
        return set(found.get(uid, ()))

    def owned(self, found: Mapping[str, Any]) -> set[str]:
        """Broker groups on which a topic is a resource's own."""
        return set(found.get("status", {}).get("ownedGroups", ())) | self.claims(found["metadata"]["uid"])

    def _writable(self, kind: str, namespace: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.fuse.before()
        found = self.objects.get((kind, namespace, name))
        if found is None:
            raise kube.NotFoundError(f"there is no {kind} {name}", status=404)
        if body["metadata"].get("resourceVersion", "") != found["metadata"]["resourceVersion"]:
            raise kube.ConflictError(f"{kind} {name} has changed", status=409)
        return found

    def _write(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        key = (old["kind"], old["metadata"]["namespace"], old["metadata"]["name"])
        gone = bool(new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"))
        for listener in self.on_write:
            listener(old, None if gone else new)
        if gone:
            del self.objects[key]
        elif new != old:
            new["metadata"]["resourceVersion"] = str(next(self._versions))
            self.objects[key] = new
        self.writes += 1
        self.fuse.done()
        return copied(new)


@dataclass
class FakeGroup:
    """One broker group."""

    tables: dict[str, dict[str, Any]] = field(default_factory=lambda: {"Topic": {}, "ConsumerGroup": {}})
    figures: dict[str, int] = field(default_factory=dict)
    """Messages of a topic, clients of a consumer group."""
    leads: bool = True
    refuses: dict[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> dict[str, Any]:
        return self.tables["Topic"]


class FakeBrokers:
    """Broker groups in memory, behind the protocol `Brokers`."""

    def __init__(self, groups: int = 2, fuse: Fuse | None = None) -> None:
        self.groups = {f"{CLUSTER}-{number}": FakeGroup() for number in range(groups)}
        self.fuse = fuse or Fuse()
        self.reads = 0
        self.requests = 0
        self.on_change: list[Any] = []
        """Called with (kind, group, name, old, new) of each change by the operator; None: not there."""

    def add(self, name: str) -> FakeGroup:
        return self.groups.setdefault(name, FakeGroup())

    def _leader(self, group: GroupAddress) -> FakeGroup:
        self.fuse.check()
        self.requests += 1
        found = self.groups.get(group.name)
        if found is None or not found.leads:
            raise SilentError(f"{group.name} has no leader")
        return found

    async def read(self, kind: Kind[Any], group: GroupAddress) -> Mapping[str, Any]:
        found = self._leader(group)
        self.reads += 1
        return dict(found.tables[kind.kind])

    async def write(self, kind: Kind[Any], group: GroupAddress, settings: Sequence[Any]) -> Mapping[str, str]:
        self.fuse.before()
        found, refused = self._leader(group), {}
        for each in settings:
            if each.name in found.refuses:
                refused[each.name] = found.refuses[each.name]
                continue
            self._change(kind, group, found, each.name, each)
        self.fuse.done()
        return refused

    async def delete(self, kind: Kind[Any], group: GroupAddress, name: str, *, if_empty: bool) -> None:
        self.fuse.before()
        found = self._leader(group)
        if name in found.refuses:
            raise RefusedError(found.refuses[name])
        if if_empty and name in found.tables[kind.kind] and found.figures.get(name):
            raise InUseError(name)
        self._change(kind, group, found, name, None)
        self.fuse.done()

    async def figures(self, kind: Kind[Any], group: GroupAddress, name: str) -> Mapping[str, int]:
        found = self._leader(group)
        if name not in found.tables[kind.kind]:
            return {}
        count = found.figures.get(name, 0)
        return {"clients": count, "lag": 0} if kind is CONSUMER_GROUP else {"messages": count}

    def _change(self, kind: Kind[Any], group: GroupAddress, found: FakeGroup, name: str, new: Any) -> None:
        table = found.tables[kind.kind]
        for listener in self.on_change:
            listener(kind.kind, group.name, name, table.get(name), new)
        if new is None:
            table.pop(name, None)
            found.figures.pop(name, None)
        else:
            table[name] = new


class FakeEvents:
    """Remembers what was told: (name, reason, message)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []

    async def post(self, about: Any, reason: str, message: str, *, warning: bool = False) -> None:
        self.told.append((about.name, reason, message))

    def reasons(self, name: str) -> list[str]:
        return [reason for of_name, reason, _ in self.told if of_name == name]


class Lab:
    """A cluster `orders` of two broker groups in namespace `shop`, and an operator that keeps its topics."""

    def __init__(self, groups: int = 2, *, cluster: bool = True) -> None:
        self.fuse = Fuse()
        self.api = FakeApi(self.fuse)
        self.brokers = FakeBrokers(groups, self.fuse)
        self.seconds = 1_000_000.0
        if cluster:
            self.api.cluster(groups)
        self.events = FakeEvents()
        self.restart()

    def restart(self) -> None:
        """A new operator process: it knows what stands in the resources, and on the brokers."""
        self.fuse.clear()
        self.registry = CollectorRegistry()
        api: Any = self.api
        events: Any = self.events
        self.reconciler = TopicsReconciler(
            api, self.brokers, events, TopicMetrics(self.registry), now=self.now, clock=self.now
        )

    def now(self) -> float:
        return self.seconds

    async def once(self) -> float | None:
        """One pass."""
        return await self.reconciler.reconcile(NAMESPACE, CLUSTER)

    async def settle(self, passes: int = 50) -> float | None:
        """Passes, each as early as the last one asked for, until one of them changes nothing."""
        for _ in range(passes):
            before = self.api.writes, dict(self._topics())
            again = await self.once()
            if again is None:
                return None
            if again and (self.api.writes, self._topics()) == before:
                return again
            self.seconds += (again or 0.0) + 0.2
        raise AssertionError("it does not come to rest")

    async def crash(self, writes: int, *, after: bool) -> bool:
        """A pass that ends with the operator at its n-th write; False: it did not get so far."""
        self.fuse.set(writes, after=after)
        try:
            await self.once()
        except Crash:
            await self._end_stragglers()
            self.restart()
            return True
        self.fuse.clear()
        return False

    def topic(self, group: int, name: str) -> TopicSettings | None:
        found: TopicSettings | None = self.brokers.groups[f"{CLUSTER}-{group}"].topics.get(name)
        return found

    def mqadmin(self, group: int, name: str, queues: int = 8, **more: Any) -> None:
        """A user creates or changes a topic of one group."""
        settings = TopicSettings(name, **({"read_queues": queues, "write_queues": queues} | more))
        self.brokers.groups[f"{CLUSTER}-{group}"].topics[name] = settings

    def _topics(self) -> dict[str, Any]:
        """By group and kind; the settings themselves are frozen."""
        groups = self.brokers.groups.items()
        return {name: {kind: dict(table) for kind, table in group.tables.items()} for name, group in groups}

    @staticmethod
    async def _end_stragglers() -> None:
        """Requests of the dead operator that were in progress side by side: each ends at its next step."""
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
