"""One member of a group: BrokerNode, claim, Services, and a StatefulSet of one pod, replaced only when we say so.

The pod's template carries a digest of itself, `tallystick.dev/template`. A pod whose digest is another one is outdated.
What a member is told only for its very first start (`groupBootstrap`) is not in the digest: that it goes away is no
reason to restart anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.operator.clusters.cluster_manifests import broker_toml, names_of, owner_of, pod_spec
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
from tallystick.operator.core.names import FIRST_MEMBERS, FORMED, HTTP, RAFT, REMOTING, TEMPLATE, VIP

LINGER_SECONDS = 35
"""A broker that is stopped passes on what clients send until they have looked at their routes, every 30 s, so that no
send fails in a rolling update. It ends at once when no client is connected."""
GRACE_SECONDS = LINGER_SECONDS + 40
"""For a broker that is told to stop: it hands over, lingers, writes its tables, flushes."""
HOST_ADDRESS = "$(HOST_IP)"
"""In an address: that of the machine that the pod runs on, filled in by Kubernetes."""


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """What the objects of one member depend on besides the cluster's spec."""

    group: int
    member: int
    formed: bool
    """The group has had a leader once: its disks may hold messages, and nobody makes it anew."""
    first: tuple[int, ...]
    """Who votes in the group that is made at the first start."""
    external: str = ""
    """host:port for clients outside; empty: there is none (yet)."""


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


def claim(cluster: Cluster, plan: MemberPlan, size: str) -> Json:
    """Owned by nobody: it outlives the cluster, and one of the same name finds it again."""
    names, storage = names_of(cluster), cluster.spec.storage
    spec: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if storage.storage_class is not None:
        spec["storageClassName"] = storage.storage_class
    annotations = {FIRST_MEMBERS: members_text(plan.first)} | ({FORMED: "true"} if plan.formed else {})
    return manifest(
        CLAIMS,
        cluster.namespace,
        names.claim(plan.group, plan.member),
        names.member_labels(plan.group, plan.member),
        {"spec": spec},
        annotations=annotations,
    )


def members_text(members: Sequence[int]) -> str:
    """`n0;n1;n2`, as in RocketMQ's settings."""
    return ";".join(f"n{member}" for member in members)


def members_of(text: str) -> tuple[int, ...]:
    """The reverse of `members_text`; nothing for what is no such text."""
    parts = [part.strip().removeprefix("n") for part in text.split(";") if part.strip()]
    return tuple(sorted(int(part) for part in parts)) if all(part.isdecimal() for part in parts) else ()


def services(cluster: Cluster, group: int, member: int, node_uid: str) -> list[Json]:
    """The stable address of a member, ready or not: the others have to reach one that catches up. And the way in."""
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
    """Of all that a pod of this member starts with, but for how its group is made."""
    return digest([_pod(cluster, plan, first_start=False), broker_toml(cluster)])


def stateful_set(cluster: Cluster, plan: MemberPlan, node_uid: str) -> Json:
    names = names_of(cluster)
    group, member = plan.group, plan.member
    labels = names.member_labels(group, member)
    template = {
        "metadata": {"labels": labels, "annotations": {TEMPLATE: template_digest(cluster, plan)}},
        "spec": _pod(cluster, plan, first_start=not plan.formed and member in plan.first),
    }
    content = {
        "spec": {
            "replicas": 1,
            "serviceName": names.node(group, member),
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": _selector(cluster, group, member)},
            "template": template,
        }
    }
    owner = owned_by(BROKER_NODES, names.node(group, member), node_uid)
    return manifest(STATEFUL_SETS, cluster.namespace, names.node(group, member), labels, content, owner=owner)


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
    )  # all that there can ever be: who is a member is decided by the group
    variables: dict[str, str] = {
        "TALLY_BROKERNAME": names.group(group),
        "TALLY_DLEGERSELFID": f"n{member}",
        "TALLY_DLEGERPEERS": peers,
        "TALLY_BROKERIP1": names.host(name),
        "TALLY_GROUPLINGERMILLS": str(LINGER_SECONDS * 1000),
        "HOME": "/tmp",
    }
    if plan.external:
        variables["TALLY_EXTERNALADDRESS"] = plan.external
    variables |= {f"TALLY_{key.upper()}": value for key, value in sorted(spec.config.items())}
    if first_start:
        variables["TALLY_GROUPBOOTSTRAP"] = "true"
        variables["TALLY_GROUPBOOTSTRAPMEMBERS"] = members_text(plan.first)
    host_address: list[Any] = []
    if HOST_ADDRESS in plan.external:  # it stands before what names it
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
        "terminationMessagePolicy": "FallbackToLogsOnError",  # why it does not start, in the status
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
        {"name": "admin", "secret": {"secretName": names.admin}},
        {"name": "reader", "secret": {"secretName": names.reader}},
    ]
    pod = pod_spec(spec, spec.placement, names.account, container, volumes)
    pod["affinity"] = spec.placement.affinity or apart(group_selector)
    pod["terminationGracePeriodSeconds"] = GRACE_SECONDS
    if spec.placement.spread:
        whole = {"labelSelector": {"matchLabels": group_selector}}
        pod["topologySpreadConstraints"] = [whole | constraint for constraint in spec.placement.spread]
    return pod
