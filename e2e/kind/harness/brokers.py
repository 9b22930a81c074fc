"""A BrokerCluster as tests see it: applied, waited for, looked at; by the API alone, as any user of it would."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.api import Api, Json
from harness.release import is_ready
from harness.shell import apply
from harness.waiting import NotYetError, wait_for

API_VERSION = "tallystick.dev/v1beta1"
SMALL: Json = {"storage": {"size": "1Gi", "segmentBytes": 16 << 20}}
"""Defaults of the clusters of these tests: volumes and files that fit on a small machine."""

READY_S = 240


@dataclass(frozen=True, slots=True)
class Brokers:
    """One cluster of one group."""

    api: Api
    namespace: str
    name: str

    # -- what is asked for ---------------------------------------------------------------------------------------------

    def apply(self, spec: Mapping[str, Any]) -> None:
        """Made or changed, as `kubectl apply` does it. ToolError."""
        apply(self.manifest({**SMALL, **spec}))

    def manifest(self, spec: Mapping[str, Any]) -> Json:
        metadata = {"name": self.name, "namespace": self.namespace}
        return {"apiVersion": API_VERSION, "kind": "BrokerCluster", "metadata": metadata, "spec": dict(spec)}

    def change(self, spec: Mapping[str, Any]) -> None:
        self.api.merge("brokerclusters", self.namespace, self.name, {"spec": dict(spec)})

    def annotate(self, **annotations: str | None) -> None:
        """`tallystick.dev/` stands before each name."""
        found = {f"tallystick.dev/{name}": value for name, value in annotations.items()}
        self.api.merge("brokerclusters", self.namespace, self.name, {"metadata": {"annotations": found}})

    def topic(self, name: str, queues: int = 4, **spec: Any) -> None:
        """Applied, and waited for. WaitError."""
        metadata = {"name": name, "namespace": self.namespace}
        wanted = {"clusterName": self.name, "queues": queues, **spec}
        apply({"apiVersion": API_VERSION, "kind": "Topic", "metadata": metadata, "spec": wanted})
        self.topic_ready(name)

    def topic_ready(self, name: str, timeout_s: float = 60) -> Json:
        """The Topic, once its status says Ready of what is asked for now. WaitError."""

        def look() -> Json:
            topic = self.api.get("topics", self.namespace, name)
            status = topic.get("status") or {}
            if status.get("phase") != "Ready" or status.get("observedGeneration") != topic["metadata"]["generation"]:
                raise NotYetError(str(status))
            return topic

        return wait_for(f"the Topic {name} is Ready", look, timeout_s, every_s=0.1)

    # -- what is -------------------------------------------------------------------------------------------------------

    def get(self) -> Json:
        return self.api.get("brokerclusters", self.namespace, self.name)

    def status(self) -> Json:
        found: Json = self.get().get("status") or {}
        return found

    def condition(self, name: str) -> Json:
        """Of the status; empty: it does not have it."""
        found = (each for each in self.status().get("conditions") or () if each["type"] == name)
        return dict(next(found, {}))

    def stopped(self, timeout_s: float = 180) -> None:
        """Until no pod of a broker is left. WaitError."""

        def look() -> None:
            if left := self.pods():
                raise NotYetError(", ".join(left))

        wait_for(f"the pods of {self.name} are gone", look, timeout_s)

    def replicas(self) -> int:
        return int(self.get()["spec"]["replicas"])

    def whole(self, timeout_s: float = READY_S) -> Json:
        """Its status once it is Ready with all that is wanted, and the pods say so themselves. WaitError."""
        return wait_for(f"{self.namespace}/{self.name} is whole", self.look_whole, timeout_s)

    def look_whole(self) -> Json:
        """Its status. NotYetError: something is missing, and what."""
        body = self.get()
        status, wanted = body.get("status") or {}, body["spec"]["replicas"]
        pods = self.pods()
        ready = sorted(name for name, pod in pods.items() if is_ready(pod))
        told = f"phase {status.get('phase')}, {status.get('readyNodes')}, pods ready {ready}, step {status.get('step')}"
        if status.get("observedGeneration") != body["metadata"]["generation"]:
            raise NotYetError(f"{told}; the operator has not processed the last change")
        if status.get("phase") != "Ready" or status.get("readyNodes") != f"{wanted}/{wanted}":
            raise NotYetError(f"{told}; {_conditions(status)}")
        if len(pods) != wanted or len(ready) != wanted:
            raise NotYetError(f"{told}, of {sorted(pods)}")
        group = status["groups"][0]
        if not group.get("leader") or group.get("members") != wanted:
            raise NotYetError(f"{told}, group {group}")
        return dict(status)

    def leader(self) -> str:
        """The BrokerNode that the status says leads. NotYetError: none."""
        groups = self.status().get("groups") or [{}]
        leader = str(groups[0].get("leader") or "")
        if not leader:
            raise NotYetError("the status names no leader")
        return leader

    def led_by_another(self, node: str, timeout_s: float = 60) -> None:
        """Until the status knows it. WaitError."""

        def look() -> None:
            if self.leader() == node:
                raise NotYetError(f"according to the status {node} still leads")

        wait_for(f"a member other than {node} leads", look, timeout_s)

    def degraded(self, node: str, timeout_s: float = 120) -> None:
        """Until the status says that this member is missing, and that the others serve. WaitError."""

        def look() -> None:
            status = self.status()
            told = {each["type"]: each["status"] for each in status.get("conditions") or ()}
            if status.get("phase") != "Degraded" or told.get("Degraded") != "True" or self.leader() == node:
                raise NotYetError(f"phase {status.get('phase')}, {_conditions(status)}")

        wait_for(f"the status reports that {node} is missing", look, timeout_s)

    def nodes(self) -> dict[str, Json]:
        """BrokerNodes by name."""
        found = self.api.list("brokernodes", self.namespace)
        return {each["metadata"]["name"]: each for each in found if each["spec"]["clusterName"] == self.name}

    def pods(self) -> dict[str, Json]:
        """Of the brokers, by the name of the BrokerNode."""
        selector = f"tallystick.dev/cluster={self.name},app.kubernetes.io/component=broker"
        found = self.api.list("pods", self.namespace, selector)
        return {each["metadata"]["name"].removesuffix("-0"): each for each in found}

    def pod(self, node: str) -> Json:
        return self.api.get("pods", self.namespace, f"{node}-0")

    def images(self) -> dict[str, str]:
        """What the pods of the brokers run."""
        return {name: pod["spec"]["containers"][0]["image"] for name, pod in self.pods().items()}

    def rolled(self, image: str, timeout_s: float) -> None:
        """Until all pods run it, and the cluster is whole again. WaitError."""

        def look() -> None:
            running = self.images()
            if set(running.values()) != {image} or len(running) != self.replicas():
                raise NotYetError(f"{running}, step {self.status().get('step')}")
            self.look_whole()

        wait_for(f"all brokers run {image}", look, timeout_s)

    def machine(self, node: str) -> str:
        """The Kubernetes node that a broker runs on."""
        return str(self.pod(node)["spec"]["nodeName"])

    def events(self, reason: str = "") -> list[Json]:
        """About the cluster and its nodes, in order of time; of one reason, if it is given."""
        found = [
            each
            for each in self.api.list("events", self.namespace)
            if each["involvedObject"]["kind"] in ("BrokerCluster", "BrokerNode")
            and each["involvedObject"]["name"].startswith(self.name)
            and reason in ("", each["reason"])
        ]
        return sorted(found, key=lambda each: str(each.get("eventTime") or each.get("lastTimestamp") or ""))

    # -- where clients go ----------------------------------------------------------------------------------------------

    def name_servers(self, count: int = 2) -> str:
        """Each one by its own name, as a client that asks all of them has it."""
        host = f"{self.name}-nameserver-headless.{self.namespace}.svc"
        return ";".join(f"{self.name}-nameserver-{number}.{host}:9876" for number in range(count))

    @property
    def name_server(self) -> str:
        """The one name for all of them."""
        return f"{self.name}-nameserver.{self.namespace}.svc:9876"

    def member_address(self, node: str) -> str:
        return f"{node}.{self.namespace}.svc:10911"

    # -- changes that are watched --------------------------------------------------------------------------------------

    def replaced(self, node: str, old_uid: str, timeout_s: float = 120) -> Json:
        """The new pod of a node, once it is there and ready. WaitError."""

        def look() -> Json:
            pod = self.api.find("pods", self.namespace, f"{node}-0")
            if pod is None or pod["metadata"]["uid"] == old_uid or not is_ready(pod):
                raise NotYetError("no pod" if pod is None else str((pod.get("status") or {}).get("phase")))
            return pod

        return wait_for(f"another pod of {node} is ready", look, timeout_s)

    def runs_again(self, node: str, before: Json, timeout_s: float = 240) -> None:
        """Until a node whose machine was stopped has another container or another pod than `before`. WaitError.

        When the machine is back, Kubernetes shows its pods as they were for a while, as ready ones too.
        """

        def look() -> None:
            pod = self.pod(node)
            is_same = pod["metadata"]["uid"] == before["metadata"]["uid"]
            if (is_same and restart_count(pod) <= restart_count(before)) or not is_ready(pod):
                raise NotYetError(f"{restart_count(pod)} restarts, {'' if is_ready(pod) else 'not '}ready")

        wait_for(f"{node} runs again", look, timeout_s)

    def restarted(self, node: str, restarts: int, timeout_s: float = 180) -> None:
        """Its container ended and was started again by Kubernetes. WaitError."""

        def look() -> None:
            pod = self.pod(node)
            if restart_count(pod) <= restarts or not is_ready(pod):
                raise NotYetError(f"{restart_count(pod)} restarts, {'' if is_ready(pod) else 'not '}ready")

        wait_for(f"the container of {node} runs again", look, timeout_s)


def restart_count(pod: Mapping[str, Any]) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return sum(int(each["restartCount"]) for each in statuses)


def _conditions(status: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{each['type']}={each['status']} {each['reason']} {each.get('message', '')}".strip()
        for each in status.get("conditions") or ()
    )


def now_s() -> float:
    """The clock that histories have: all containers of one machine share it."""
    return time.monotonic()
