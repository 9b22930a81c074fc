"""StoreJobs as tests see them: applied, waited for, and where their pods ran."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.api import Api, Json
from harness.brokers import API_VERSION
from harness.kind import Kind
from harness.pods import RESTRICTED, output_of, restricted_pod
from harness.shell import apply, kubectl
from harness.waiting import NotYetError, wait_for

_OVER = ("Completed", "Failed")
_POD = "tallystick.dev/job-node"

# The rows of an export: [queue, queue offset, position in the log] of each, from its Parquet files.
_ROWS = """
import json, sys
import pyarrow.dataset as ds
table = ds.dataset(sys.argv[1], format="parquet", partitioning="hive", exclude_invalid_files=False,
                   ignore_prefixes=["_", "."]).to_table(columns=["queue_id", "queue_offset", "physical_offset"])
for row in zip(*(column.to_pylist() for column in table.columns)):
    print(json.dumps(row))
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """A StoreJob that is over."""

    name: str
    status: Json
    seconds: float
    """From apply to the end of the driver, as the status has it."""
    machines: Mapping[str, str]
    """Where the workers ran, by the BrokerNode whose volume they were beside."""
    workers: frozenset[str]
    """The pods of the workers."""
    log: str

    @property
    def result(self) -> Json:
        found: Json = self.status.get("result") or {}
        return found

    @property
    def figures(self) -> dict[str, int]:
        return dict(self.result.get("figures") or {})

    def via(self) -> dict[str, str]:
        """How each volume was read that was read."""
        return {each["node"]: each["via"] for each in self.result.get("sources") or () if "via" in each}

    def condition(self, kind: str) -> Json:
        return next((each for each in self.status.get("conditions") or () if each["type"] == kind), {})


@dataclass(frozen=True, slots=True)
class Jobs:
    """StoreJobs on one cluster. All calls raise ToolError, and waits WaitError."""

    api: Api
    namespace: str
    cluster: str

    def apply(self, name: str, job: str, **spec: Any) -> None:
        metadata = {"name": name, "namespace": self.namespace}
        whole = {"clusterName": self.cluster, "job": job, **spec}
        apply({"apiVersion": API_VERSION, "kind": "StoreJob", "metadata": metadata, "spec": whole})

    def run(self, name: str, job: str, timeout_s: float = 240, **spec: Any) -> Ended:
        """Applied, and waited for; it has to be done, whatever it found."""
        begin_s = time.monotonic()
        self.apply(name, job, **spec)
        return self.wait(name, timeout_s, begin_s)

    def wait(self, name: str, timeout_s: float = 240, begin_s: float | None = None) -> Ended:
        """`begin_s`: when it was applied, if not now."""
        begin_s = time.monotonic() if begin_s is None else begin_s
        machines: dict[str, str] = {}
        workers: set[str] = set()
        seconds = 0.0

        def look() -> Json:
            nonlocal seconds
            for pod in self.pods(name):
                node = pod["metadata"]["labels"].get(_POD)
                if node and pod["spec"].get("nodeName"):
                    workers.add(pod["metadata"]["name"])
                    machines[node] = pod["spec"]["nodeName"]
            status = self.api.get("storejobs", self.namespace, name).get("status") or {}
            if status.get("result") and not seconds:
                seconds = time.monotonic() - begin_s
            if status.get("phase") not in _OVER:
                raise NotYetError(json.dumps(status))
            return dict(status)

        status = wait_for(f"the StoreJob {name} has finished", look, timeout_s, every_s=0.3)
        log = kubectl("logs", f"{name}-driver", "--namespace", self.namespace)
        assert status["phase"] == "Completed", f"{json.dumps(status)}\n{log[-3000:]}"
        return Ended(name, status, seconds, machines, frozenset(workers), log)

    def pods(self, name: str) -> list[Json]:
        return self.api.list("pods", self.namespace, f"tallystick.dev/job={name}")

    def delete(self, name: str) -> None:
        """With all that it owns; waits until nothing of it is left."""
        self.api.delete("storejobs", self.namespace, name)

        def look() -> None:
            kinds = ("pods", "services", "configmaps", "secrets", "networkpolicies")
            left = [
                f"{kind} {each['metadata']['name']}"
                for kind in kinds
                for each in self.api.list(kind, self.namespace, f"tallystick.dev/job={name}")
            ]
            if left:
                raise NotYetError(", ".join(left))

        wait_for(f"no object of the StoreJob {name} is left", look, 90)

    def claim(self, name: str, size: str = "1Gi") -> None:
        """For outputs. Its volume is made where its first pod runs."""
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        metadata = {"name": name, "namespace": self.namespace}
        apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})

    def exported(self, claim: str, path: str, image: str) -> list[tuple[int, int, int]]:
        """All rows of an export: queue, queue offset, position. Read by a pod that mounts its claim."""
        said = self.beside(claim, image, "python3", "-c", _ROWS, f"/out/{path}")
        rows = [json.loads(line) for line in said.splitlines()]
        return [(int(queue), int(offset), int(pos)) for queue, offset, pos in rows]

    def beside(self, claim: str, image: str, *command: str, writable: bool = False) -> str:
        """What a command prints in a pod that mounts a claim at /out."""
        pod = f"e2e-beside-{time.monotonic_ns()}"
        container = {
            "name": "command",
            "image": image,
            "command": list(command),
            "env": [{"name": "HOME", "value": "/tmp"}],
            "securityContext": RESTRICTED,
            "volumeMounts": [
                {"name": "out", "mountPath": "/out", "readOnly": not writable},
                {"name": "tmp", "mountPath": "/tmp"},
            ],
        }
        volumes = [
            {"name": "out", "persistentVolumeClaim": {"claimName": claim, "readOnly": not writable}},
            {"name": "tmp", "emptyDir": {}},
        ]
        manifest = restricted_pod(self.namespace, pod, container, volumes)
        del manifest["spec"]["nodeSelector"], manifest["spec"]["tolerations"]  # where the volume is
        apply(manifest)
        said = output_of(self.api, self.namespace, pod, 120)
        kubectl("delete", "pod", pod, "--namespace", self.namespace, "--wait=false")
        return said


class Volume:
    """The files of a broker's volume, on the machine that has them."""

    def __init__(self, kind: Kind, api: Api, namespace: str, node: str) -> None:
        claim = api.get("persistentvolumeclaims", namespace, f"data-{node}")
        spec = api.call("GET", f"api/v1/persistentvolumes/{claim['spec']['volumeName']}")["spec"]
        terms = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
        self.machine = str(terms[0]["matchExpressions"][0]["values"][0])
        self.root = str((spec.get("hostPath") or spec.get("local"))["path"]) + "/store"
        self._kind = kind

    def byte(self, path: str, at: int) -> int:
        command = ["od", "-An", "-tu1", f"-j{at}", "-N1", f"{self.root}/{path}"]
        return int(self._kind.on(self.machine, *command))

    def flip(self, path: str, at: int) -> None:
        """One bit of one byte."""
        octal = f"\\{self.byte(path, at) ^ 1:03o}"
        script = 'printf "$1" | dd of="$2" bs=1 seek="$3" conv=notrunc status=none'
        self._kind.on(self.machine, "sh", "-c", script, "sh", octal, f"{self.root}/{path}", str(at))
