"""Pods of the tests' own: under the restricted profile, and beside the control plane, where no test stops anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.api import Api, Json
from harness.shell import apply, kubectl
from harness.waiting import NotYetError, wait_for

RESTRICTED: Json = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


def restricted_pod(namespace: str, name: str, container: Json, volumes: Sequence[Json] = ()) -> Json:
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {_CONTROL_PLANE: ""},
        "tolerations": [{"key": _CONTROL_PLANE, "operator": "Exists"}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": list(volumes),
    }
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": "e2e"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def output_of(api: Api, namespace: str, name: str, timeout_s: float) -> str:
    """What a pod printed, once it has ended well. WaitError: not in time. AssertionError: it failed."""

    def look() -> str:
        phase = str(api.get("pods", namespace, name)["status"].get("phase"))
        if phase not in ("Succeeded", "Failed"):
            raise NotYetError(phase)
        return phase

    phase = wait_for(f"the pod {name} has ended", look, timeout_s)
    said = kubectl("logs", name, "--namespace", namespace)
    assert phase == "Succeeded", said[-3000:]
    return said


@dataclass(frozen=True, slots=True)
class Shell:
    """A pod of the node image in which commands are run, as an administrator does beside the cluster."""

    namespace: str
    name: str = "e2e-shell"

    def tally(self, *words: str, timeout_s: float = 60) -> str:
        """ToolError: another status than 0."""
        return self.run("tally", *words, timeout_s=timeout_s)

    def run(self, *command: str, timeout_s: float = 60) -> str:
        """ToolError: another status than 0."""
        return kubectl("exec", self.name, "--namespace", self.namespace, "--", *command, timeout_s=timeout_s)

    def queues(self, topic: str) -> int:
        """That the brokers have of it. ToolError: none of them has it."""
        return len(json.loads(self.tally("topic", "status", topic, "--json")))


def shell(api: Api, namespace: str, image: str, name_servers: str) -> Shell:
    """Started, and waited for. WaitError."""
    found = Shell(namespace)
    container = {
        "name": "shell",
        "image": image,
        "command": ["sleep", "86400"],
        "env": [{"name": "TALLY_NAMESERVER", "value": name_servers}],
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    apply(restricted_pod(namespace, found.name, container, [{"name": "tmp", "emptyDir": {}}]))

    def look() -> None:
        phase = str(api.get("pods", namespace, found.name)["status"].get("phase"))
        if phase != "Running":
            raise NotYetError(phase)

    wait_for(f"the pod {found.name} runs", look, 90)
    return found
