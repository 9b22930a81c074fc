"""Objects of one member: BrokerNode, claim, Services, and a StatefulSet of one pod with the strategy OnDelete.

The pod template contains its own digest, `tallystick.dev/template`. A pod with another digest is outdated. Settings for
the first start (`groupBootstrap`), what is restored before it, and `brokerRole=SLAVE` of a group that is to take the
place of a master are not part of the digest, so removing them restarts no pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tallystick.operator.clusters.cluster_manifests import broker_toml, names_of, owner_of, pod_spec
from tallystick.operator.clusters.pod_template import spread
from tallystick.operator.clusters.recovery_source import Restore
from tallystick.operator.clusters.security_manifests import (
    add_files,
    member_variables,
    stage_annotation,
    tls_variables,
)
from tallystick.operator.clusters.spec import MAX_MEMBERS, Cluster, External
from tallystick.operator.core.kube import BROKER_NODES, CLAIMS, SERVICES, STATEFUL_SETS, Json
from tallystick.operator.core.manifests import (
    apart,
    container_security,
    digest,
    environment,
    manifest,
    owned_by,
    port,
    probe,
)
from tallystick.operator.core.names import (
    ADOPTED,
    BROKER_NAME,
    FIRST_MEMBERS,
    FORMED,
    HTTP,
    RAFT,
    RECOVERED,
    REMOTING,
    TEMPLATE,
    VIP,
)
from tallystick.operator.security.spec import Stage

LINGER_SECONDS = 35
"""A stopping broker forwards requests until clients have updated their routes, every 30 s, so that no send fails in a
rolling update. It ends at once when no client is connected."""
GRACE_SECONDS = LINGER_SECONDS + 40
"""Termination grace period: a broker transfers leadership, lingers, writes its tables and flushes."""
HOST_ADDRESS = "$(HOST_IP)"
"""Placeholder in an address: Kubernetes replaces it with the address of the node of the pod."""


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """The input of the objects of one member, besides the spec of the cluster."""

    group: int
    member: int
    formed: bool
    """The group has had a leader: its volumes may hold messages, so it must not be bootstrapped again."""
    first: tuple[int, ...]
    """The initial voters of the group."""
    external: str = ""
    """host:port for clients outside; empty: unknown or disabled."""
    restore: Restore | None = None
    """What is restored into the claim before the broker starts; None: nothing."""
    recovered: str = ""
    """Annotation of the claims of a group that starts from a backup: it is never bootstrapped. Empty: none."""
    adopted: str = ""
    """Annotation of the claims of a group that takes the place of a RocketMQ master. Empty: none."""
    broker_name: str = ""
    """RocketMQ's brokerName, taken over from this master; empty: the name of the group."""
    follows: bool = False
    """A new group follows the master with this name, and serves no clients before it takes its place."""
    tls: Stage = Stage.OFF
    tls_secret: str = ""
    """Secret with the files of TLS; empty: that of the member."""


def broker_node(cluster: Cluster, group: int, member: int) -> Json:
    names = names_of(cluster)
    content = {"spec": {"clusterName": cluster.name, "group": group, "member": member}}
    return manifest(
        BROKER_NODES,
        cluster.namespace,
        names.node(group, member),
        names.member_labels(group, member),
        content,
        owner=owner_of(cluster),
    )


def claim(cluster: Cluster, plan: MemberPlan, size: str, storage_class: str | None) -> Json:
    """Returns a claim without an owner: it is kept when the cluster is deleted, and a new cluster uses it again."""
    names = names_of(cluster)
    spec: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    annotations = {FIRST_MEMBERS: members_text(plan.first)} | ({FORMED: "true"} if plan.formed else {})
    marks = {RECOVERED: plan.recovered, ADOPTED: plan.adopted, BROKER_NAME: plan.broker_name}
    annotations |= {key: value for key, value in marks.items() if value}
    return manifest(
        CLAIMS,
        cluster.namespace,
        names.claim(plan.group, plan.member),
        names.member_labels(plan.group, plan.member),
        {"spec": spec},
        annotations=annotations,
    )


def members_text(members: Sequence[int]) -> str:
    """Returns members in the form of RocketMQ's settings: `n0;n1;n2`."""
    return ";".join(f"n{member}" for member in members)


def members_of(text: str) -> tuple[int, ...]:
    """Parses a text of `members_text`; returns no members for any other text."""
    parts = [part.strip().removeprefix("n") for part in text.split(";") if part.strip()]
    return tuple(sorted(int(part) for part in parts)) if all(part.isdecimal() for part in parts) else ()


def services(cluster: Cluster, group: int, member: int, node_uid: str) -> list[Json]:
    """Returns the Service of a member, which also publishes a pod that is not ready, and the external Service."""
    names, listener = names_of(cluster), cluster.spec.listener
    labels, selector = names.member_labels(group, member), _selector(cluster, group, member)
    owner = owned_by(BROKER_NODES, names.node(group, member), node_uid)
    ports = [port("remoting", REMOTING), port("vip", VIP), port("raft", RAFT), port("http", HTTP)]
    inside = {"spec": {"type": "ClusterIP", "publishNotReadyAddresses": True, "selector": selector, "ports": ports}}
    found = [manifest(SERVICES, cluster.namespace, names.node(group, member), labels, inside, owner=owner)]
    if listener.type is not External.NONE:
        outside = {
            "spec": {
                "type": listener.type.value,
                "publishNotReadyAddresses": True,
                "selector": selector,
                "ports": [port("remoting", REMOTING)],
            }
        }
        found.append(
            manifest(
                SERVICES,
                cluster.namespace,
                names.external(group, member),
                labels,
                outside,
                owner=owner,
                annotations=listener.annotations,
            )
        )
    return found


def template_digest(cluster: Cluster, plan: MemberPlan) -> str:
    """Returns the digest of pod and configuration of a member, without the bootstrap settings."""
    template = cluster.spec.placement.template
    plan = replace(plan, follows=False)
    parts: list[Any] = [_pod(cluster, plan, first_start=False), broker_toml(cluster)]
    if template.labels or template.annotations:
        parts.append([dict(template.labels), dict(template.annotations)])
    return digest(parts)


def stateful_set(cluster: Cluster, plan: MemberPlan, node_uid: str, replicas: int = 1) -> Json:
    """Returns the StatefulSet. `replicas`: 0 for a stopped member (`stopping.py`)."""
    names = names_of(cluster)
    group, member = plan.group, plan.member
    labels = names.member_labels(group, member)
    first_start = not plan.formed and not plan.recovered and member in plan.first
    pod = _pod(cluster, plan, first_start=first_start)
    if plan.restore is not None:
        pod["initContainers"] = [plan.restore.container]
        pod["volumes"] = [*pod["volumes"], *plan.restore.volumes]
    own = {TEMPLATE: template_digest(cluster, plan)} | stage_annotation(plan.tls)
    metadata = cluster.spec.placement.template.metadata(labels, own)
    template = {"metadata": metadata, "spec": pod}
    content = {
        "spec": {
            "replicas": replicas,
            "serviceName": names.node(group, member),
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": _selector(cluster, group, member)},
            "template": template,
        }
    }
    owner = owned_by(BROKER_NODES, names.node(group, member), node_uid)
    return manifest(STATEFUL_SETS, cluster.namespace, names.node(group, member), labels, content, owner=owner)


def _role(plan: MemberPlan, group: str) -> dict[str, str]:
    """Returns the variables of the broker name. A name that was taken over from a master is not the identity of the
    group: jobs, backups and this operator know it by its own one."""
    found = {"TALLY_BROKERNAME": plan.broker_name or group}
    found |= {"TALLY_DLEGERGROUP": group} if plan.broker_name else {}
    return found | ({"TALLY_BROKERROLE": "SLAVE"} if plan.follows else {})


def _selector(cluster: Cluster, group: int, member: int) -> dict[str, str]:
    names = names_of(cluster)
    labels = names.member_labels(group, member)
    return names.broker_selector() | {key: labels[key] for key in ("tallystick.dev/group", "tallystick.dev/member")}


def _pod(cluster: Cluster, plan: MemberPlan, *, first_start: bool) -> Json:
    names, spec = names_of(cluster), cluster.spec
    group, member = plan.group, plan.member
    name = names.node(group, member)
    group_selector = names.broker_selector() | {"tallystick.dev/group": str(group)}
    peers = ";".join(
        f"n{other}-{names.host(names.node(group, other))}:{RAFT}" for other in range(MAX_MEMBERS)
    )  # all possible members: the group decides who is a member
    variables: dict[str, str] = {
        **_role(plan, names.group(group)),
        "TALLY_DLEGERSELFID": f"n{member}",
        "TALLY_DLEGERPEERS": peers,
        "TALLY_BROKERIP1": names.host(name),
        "TALLY_GROUPLINGERMILLS": str(LINGER_SECONDS * 1000),
        "HOME": "/tmp",
    }
    if plan.external:
        variables["TALLY_EXTERNALADDRESS"] = plan.external
    variables |= tls_variables(plan.tls, spec.security) | member_variables(plan.tls, own_files=not plan.tls_secret)
    variables |= {f"TALLY_{key.upper()}": value for key, value in sorted(spec.config.items())}
    if first_start:
        variables["TALLY_GROUPBOOTSTRAP"] = "true"
        variables["TALLY_GROUPBOOTSTRAPMEMBERS"] = members_text(plan.first)
    host_address: list[Any] = []
    if HOST_ADDRESS in plan.external:  # a variable must be defined before the one that references it
        host_address = [
            {"name": "HOST_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.hostIP"}}}
        ]
    container: Json = {
        "name": "broker",
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": ["tally", "broker", "--config", "/etc/tallystick/broker.toml", "--dir", "/data/store"],
        "env": host_address + environment(variables),
        "ports": [
            {"name": "remoting", "containerPort": REMOTING, "protocol": "TCP"},
            {"name": "vip", "containerPort": VIP, "protocol": "TCP"},
            {"name": "raft", "containerPort": RAFT, "protocol": "TCP"},
            {"name": "http", "containerPort": HTTP, "protocol": "TCP"},
        ],
        "startupProbe": probe("/healthz", "http", period=1, failures=180),
        "livenessProbe": probe("/healthz", "http", period=10, failures=6, timeout=5),
        "readinessProbe": probe("/readyz", "http", period=2, failures=2),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the status then contains why a container does not start
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "config", "mountPath": "/etc/tallystick", "readOnly": True},
            {"name": "admin", "mountPath": "/etc/tallystick-admin", "readOnly": True},
            {"name": "reader", "mountPath": "/etc/tallystick-reader", "readOnly": True},
        ],
    }
    if spec.placement.resources:
        container["resources"] = spec.placement.resources
    volumes: list[Json] = [
        {"name": "data", "persistentVolumeClaim": {"claimName": names.claim(group, member)}},
        {"name": "config", "configMap": {"name": names.config}},
        {"name": "admin", "secret": {"secretName": names.admin(cluster.uid)}},
        {"name": "reader", "secret": {"secretName": names.reader(cluster.uid)}},
    ]
    add_files(container, volumes, spec.security, plan.tls, plan.tls_secret or names.tls(name), names.access)
    pod = pod_spec(spec, spec.placement, names.account, container, volumes)
    pod["affinity"] = spec.placement.affinity or apart(group_selector)
    pod["terminationGracePeriodSeconds"] = GRACE_SECONDS
    if constraints := spread(spec.placement.spread, group_selector):
        pod["topologySpreadConstraints"] = constraints
    spec.placement.template.apply(pod, container)
    return pod
