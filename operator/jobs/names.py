"""Names and labels of the objects of a job. Driver and workers find each other by these names."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tallystick.operator.core.kube import FIELD_MANAGER, GROUP
from tallystick.operator.core.names import JOB_LABEL, Names

ROLE_LABEL = f"{GROUP}/job-role"
ATTEMPT_LABEL = f"{GROUP}/job-attempt"
NODE_LABEL = f"{GROUP}/job-node"
"""Label of a worker: the BrokerNode whose volume it reads."""
TEMPLATE_LABEL = f"{GROUP}/job-template"
"""Label of a run: the StoreJob with the schedule that created it."""

DRIVER, WORKER = "driver", "worker"
LONGEST = 63
"""Maximum length of a DNS label."""


@dataclass(frozen=True, slots=True)
class JobNames:
    """The names of the objects of one StoreJob."""

    namespace: str
    job: str
    cluster: str

    @property
    def shared(self) -> str:
        """Headless Service, ConfigMap and NetworkPolicy."""
        return f"{self.job}-job"

    def secret(self, uid: str) -> str:
        """Returns a name that differs for each UID: the operator cannot read whether an earlier Secret still exists."""
        return f"{self.job}-job-{hashlib.sha256(uid.encode()).hexdigest()[:8]}"

    @property
    def driver(self) -> str:
        return f"{self.job}-driver"

    @property
    def driver_host(self) -> str:
        """DNS name of the driver for workers, independent of the cluster domain."""
        return f"driver.{self.shared}"

    def worker(self, node: str, number: int = 1) -> str:
        """Returns the name of a worker pod for a BrokerNode. `number`: which of its workers it is, from 1."""
        return shortened(_numbered(f"{self.job}-w-{node}", number))

    def worker_hostname(self, node: str, number: int = 1) -> str:
        return shortened(_numbered(f"w-{node}", number))

    def worker_host(self, node: str, number: int = 1) -> str:
        """Returns the host name of a worker for Spark: the preferred location of tasks that read this volume."""
        return f"{self.worker_hostname(node, number)}.{self.shared}"

    def labels(self) -> dict[str, str]:
        """Returns the labels of every object of the job."""
        return Names(self.namespace, self.cluster).labels("job") | {JOB_LABEL: self.job}

    def pod_labels(self, role: str, attempt: int, node: str = "") -> dict[str, str]:
        found = self.labels() | {ROLE_LABEL: role, ATTEMPT_LABEL: str(attempt)}
        return found | ({NODE_LABEL: node} if node else {})

    def selector(self) -> str:
        """Returns the label selector of the objects of the job."""
        return f"{JOB_LABEL}={self.job},app.kubernetes.io/managed-by={FIELD_MANAGER}"


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def shortened(name: str) -> str:
    """Returns a name that fits into a DNS label: a name that is too long is truncated and gets a digest."""
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9].rstrip('-.')}-{digest}"
