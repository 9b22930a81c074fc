"""What everything of a job is called and labelled: driver and workers find each other by these names."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tallystick.operator.core.kube import FIELD_MANAGER, GROUP
from tallystick.operator.core.names import CLUSTER, JOB_LABEL

ROLE_LABEL = f"{GROUP}/job-role"
ATTEMPT_LABEL = f"{GROUP}/job-attempt"
NODE_LABEL = f"{GROUP}/job-node"
"""Of a worker: the BrokerNode whose volume it is beside."""
TEMPLATE_LABEL = f"{GROUP}/job-template"
"""Of a run: the StoreJob with the schedule that it was made from."""

DRIVER, WORKER = "driver", "worker"
LONGEST = 63
"""Of a name that has to be a label of the DNS."""


@dataclass(frozen=True, slots=True)
class JobNames:
    """Of one StoreJob."""

    namespace: str
    job: str
    cluster: str

    @property
    def shared(self) -> str:
        """Headless Service, ConfigMap and NetworkPolicy."""
        return f"{self.job}-job"

    def secret(self, uid: str) -> str:
        """Another one for each StoreJob of this name: we cannot see Secrets, so not whether one is left of the last."""
        return f"{self.job}-job-{hashlib.sha256(uid.encode()).hexdigest()[:8]}"

    @property
    def driver(self) -> str:
        return f"{self.job}-driver"

    @property
    def driver_host(self) -> str:
        """The driver's name for workers, whatever domain the Kubernetes cluster has."""
        return f"driver.{self.shared}"

    def worker(self, node: str) -> str:
        """The pod beside a BrokerNode's volume."""
        return shortened(f"{self.job}-w-{node}")

    def worker_hostname(self, node: str) -> str:
        return shortened(f"w-{node}")

    def worker_host(self, node: str) -> str:
        """Its name for Spark: where tasks that read this volume like to run."""
        return f"{self.worker_hostname(node)}.{self.shared}"

    def labels(self) -> dict[str, str]:
        """What every object of the job carries."""
        return {
            "app.kubernetes.io/name": "tallystick",
            "app.kubernetes.io/instance": self.cluster,
            "app.kubernetes.io/managed-by": FIELD_MANAGER,
            "app.kubernetes.io/component": "job",
            CLUSTER: self.cluster,
            JOB_LABEL: self.job,
        }

    def pod_labels(self, role: str, attempt: int, node: str = "") -> dict[str, str]:
        found = self.labels() | {ROLE_LABEL: role, ATTEMPT_LABEL: str(attempt)}
        return found | ({NODE_LABEL: node} if node else {})

    def selector(self) -> str:
        """Label selector of all that belongs to the job."""
        return f"{JOB_LABEL}={self.job},app.kubernetes.io/managed-by={FIELD_MANAGER}"


def shortened(name: str) -> str:
    """The name itself, or its beginning and eight digits that stand for all of it, if it is too long."""
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9].rstrip('-.')}-{digest}"


def numbers_of(node: str) -> tuple[int, int]:
    """Group and member of a BrokerNode, by its name."""
    group, member = node.rsplit("-", 2)[1:]
    return int(group), int(member)
