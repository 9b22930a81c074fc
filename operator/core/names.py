"""Names, labels and annotations of all objects of a cluster. Users and existing volumes depend on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.operator.core.kube import FIELD_MANAGER, GROUP, Json
from tallystick.operator.core.ownership import controller_of, suffix

CLUSTER = f"{GROUP}/cluster"
GROUP_LABEL = f"{GROUP}/group"
MEMBER_LABEL = f"{GROUP}/member"
JOB_LABEL = f"{GROUP}/job"
"""Label of all objects of a StoreJob. Such objects do not belong to the cluster."""
BACKUP_LABEL = f"{GROUP}/backup"
"""Label of all objects of a Backup. Such objects do not belong to the cluster either."""
SCHEDULE_LABEL = f"{GROUP}/schedule"
"""Label of a Backup: the ScheduledBackup that created it."""

# Annotations: users set the first four, the operator the others.
FENCED = f"{GROUP}/fenced"
HIBERNATION = f"{GROUP}/hibernation"
PAUSED = f"{GROUP}/paused"
REPLACE = f"{GROUP}/replace"
FORMED = f"{GROUP}/formed"
FIRST_MEMBERS = f"{GROUP}/first-members"
LEFT = f"{GROUP}/left"
RECOVERED = f"{GROUP}/recovered"
"""Of a claim: UID of the cluster into which a backup was, or is, restored."""
SCHEDULE_UID = f"{GROUP}/schedule-uid"
"""Of a Backup: UID of the ScheduledBackup that created it."""
EXPIRED = f"{GROUP}/expired"
"""Of a Backup: its schedule does not keep it; what it has stored is deleted with it."""
ADOPTED = f"{GROUP}/adopted"
"""Of a claim: UID of the cluster for which the log of a RocketMQ master is, or was, copied into its group."""
BROKER_NAME = f"{GROUP}/broker-name"
"""Of a claim: the name that its group took over from this master."""
ROTATE = f"{GROUP}/rotate"
"""Of a BrokerCluster or a User: a user changes it to any other text to ask for another authority or password. Of a
Secret: the last such request that was carried out."""
TLS_STAGE = f"{GROUP}/tls-stage"
"""Of a pod and its template: how it uses TLS (`security/spec.py`)."""
TEMPLATE = f"{GROUP}/template"
APPLIED = f"{GROUP}/applied"

MANAGED_BY = "app.kubernetes.io/managed-by"

REMOTING, VIP, RAFT, HTTP, NAME_SERVER, NAME_SERVER_OUTSIDE = 10911, 10909, 10912, 8080, 9876, 9877
"""Ports of the pods, as in RocketMQ. Raft uses the port of its HA service."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the objects of one cluster."""

    namespace: str
    cluster: str

    @property
    def name_server(self) -> str:
        """StatefulSet, and Service for clients."""
        return f"{self.cluster}-nameserver"

    @property
    def name_server_headless(self) -> str:
        """Headless Service: it gives each name server a DNS name."""
        return f"{self.cluster}-nameserver-headless"

    @property
    def name_server_external(self) -> str:
        return f"{self.cluster}-nameserver-external"

    @property
    def config(self) -> str:
        return f"{self.cluster}-config"

    def admin(self, uid: str) -> str:
        """Returns the Secret with the admin token. `uid` of the cluster: the operator cannot read whose a Secret is."""
        return f"{self.cluster}-admin-{suffix(uid)}"

    def reader(self, uid: str) -> str:
        """Returns the Secret with the token with which jobs read files of stores over HTTP."""
        return f"{self.cluster}-reader-{suffix(uid)}"

    @property
    def authority(self) -> str:
        """Secret with the authority that issues the certificates of the cluster, and its key."""
        return f"{self.cluster}-ca"

    @property
    def access(self) -> str:
        """Secret with the accounts, for brokers and name servers."""
        return f"{self.cluster}-access"

    @property
    def superuser(self) -> str:
        """Secret with name and password of the user who may do everything."""
        return f"{self.cluster}-superuser"

    def tls(self, node: str) -> str:
        """Returns the Secret with the certificate of a member, or of the name servers."""
        return f"{node}-tls"

    @property
    def account(self) -> str:
        return f"{self.cluster}-node"

    @property
    def broker_policy(self) -> str:
        return f"{self.cluster}-broker"

    def group(self, group: int) -> str:
        """RocketMQ's brokerName, and the PodDisruptionBudget of the group."""
        return f"{self.cluster}-{group}"

    def node(self, group: int, member: int) -> str:
        """BrokerNode, StatefulSet and Service of a member."""
        return f"{self.cluster}-{group}-{member}"

    def pod(self, group: int, member: int) -> str:
        return f"{self.node(group, member)}-0"

    def claim(self, group: int, member: int) -> str:
        return f"data-{self.node(group, member)}"

    def external(self, group: int, member: int) -> str:
        return f"{self.node(group, member)}-external"

    def host(self, service: str) -> str:
        """Returns the DNS name of a Service, independent of the cluster domain."""
        return f"{service}.{self.namespace}.svc"

    def name_servers(self, count: int) -> str:
        """Returns RocketMQ's namesrvAddr with all name servers: a broker registers with each of them."""
        pods = (f"{self.name_server}-{number}.{self.name_server_headless}" for number in range(count))
        return ";".join(f"{self.host(pod)}:{NAME_SERVER}" for pod in pods)

    def labels(self, component: str | None = None) -> dict[str, str]:
        """Returns the labels of every object of the cluster."""
        labels = {
            "app.kubernetes.io/name": "tallystick",
            "app.kubernetes.io/instance": self.cluster,
            MANAGED_BY: FIELD_MANAGER,
            CLUSTER: self.cluster,
        }
        return labels | ({"app.kubernetes.io/component": component} if component else {})

    def group_labels(self, group: int) -> dict[str, str]:
        return self.labels("broker") | {GROUP_LABEL: str(group)}

    def member_labels(self, group: int, member: int) -> dict[str, str]:
        return self.group_labels(group) | {MEMBER_LABEL: str(member)}

    def selector(self) -> str:
        """Returns the label selector of the objects of the cluster, without those of jobs and backups."""
        return f"{CLUSTER}={self.cluster},{MANAGED_BY}={FIELD_MANAGER},!{JOB_LABEL},!{BACKUP_LABEL}"

    def broker_selector(self) -> dict[str, str]:
        """Returns labels that only broker pods have."""
        return {CLUSTER: self.cluster, "app.kubernetes.io/component": "broker"}

    def job_selector(self) -> dict[str, str]:
        """Returns labels that only pods of StoreJobs and Backups of the cluster have."""
        return {CLUSTER: self.cluster, "app.kubernetes.io/component": "job"}

    def name_server_selector(self) -> dict[str, str]:
        return {CLUSTER: self.cluster, "app.kubernetes.io/component": "nameserver"}


def is_claim_of(cluster: str, body: Json) -> bool:
    """Whether a claim belongs to a member of a cluster of this name.

    A claim has no owner: it is kept when its cluster is deleted, and a new cluster uses it again. Its labels decide,
    which must fit its name; no user sets all of them by accident. A claim that a user restored needs these labels.
    """
    metadata = body["metadata"]
    labels = metadata.get("labels") or {}
    group, member = str(labels.get(GROUP_LABEL, "")), str(labels.get(MEMBER_LABEL, ""))
    if (labels.get(CLUSTER), labels.get(MANAGED_BY)) != (cluster, FIELD_MANAGER) or controller_of(body) is not None:
        return False
    return metadata["name"] == f"data-{cluster}-{group}-{member}" and group.isdecimal() and member.isdecimal()


def is_store(claim: Json) -> bool:
    """Whether a claim is the volume of a broker, to which nothing else is written."""
    labels = claim["metadata"].get("labels") or {}
    return CLUSTER in labels and labels.get(MANAGED_BY) == FIELD_MANAGER


def numbers_of(node: str) -> tuple[int, int]:
    """Returns group and member from the name of a BrokerNode."""
    group, member = node.rsplit("-", 2)[1:]
    return int(group), int(member)


def hibernates(metadata: Mapping[str, Any]) -> bool:
    """Whether a user wants no pod of a BrokerCluster to run."""
    return hibernation_of(metadata) == "on"


def hibernation_of(metadata: Mapping[str, Any]) -> str:
    """Returns the value of the annotation in lower case; empty: there is none."""
    return str((metadata.get("annotations") or {}).get(HIBERNATION) or "").strip().lower()


EVERYONE = "*"
"""In a fence: all members."""


def fenced_of(metadata: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names of the members that a user fenced; `EVERYONE`: all of them."""
    return frozenset(re.split(r"[\s,]+", str((metadata.get("annotations") or {}).get(FENCED) or ""))) - {""}


def is_fenced(fenced: frozenset[str], node: str) -> bool:
    """Whether the fence contains a BrokerNode."""
    return bool({EVERYONE, node} & fenced)


def is_set(metadata: Mapping[str, Any], annotation: str) -> bool:
    """Whether an annotation has the value "true"."""
    return str((metadata.get("annotations") or {}).get(annotation, "")).lower() == "true"
