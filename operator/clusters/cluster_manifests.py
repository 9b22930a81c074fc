"""What a cluster has once: configuration, the account of its pods, disruption budgets, who may reach what."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from tallystick.operator.clusters.security_manifests import access_settings
from tallystick.operator.clusters.spec import Cluster, ClusterSpec, External, Placement
from tallystick.operator.core.kube import (
    CLUSTERS,
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Json,
)
from tallystick.operator.core.manifests import manifest, owned_by, pod_security
from tallystick.operator.core.names import (
    GROUP_LABEL,
    HTTP,
    NAME_SERVER,
    NAME_SERVER_OUTSIDE,
    RAFT,
    REMOTING,
    VIP,
    Names,
)

TOKEN_KEY = "token"


def names_of(cluster: Cluster) -> Names:
    return Names(cluster.namespace, cluster.name)


def owner_of(cluster: Cluster) -> Json:
    """Returns the owner reference for objects of a cluster."""
    return owned_by(CLUSTERS, cluster.name, cluster.uid)


def broker_toml(cluster: Cluster) -> str:
    """Returns the settings that all brokers share. Those of one broker and `spec.config` are environment variables."""
    spec = cluster.spec
    servers, outside = names_of(cluster).name_servers(spec.name_servers), []
    if spec.adopt is not None:  # clients of the RocketMQ cluster find the brokers where they are used to
        old = ";".join(spec.adopt.name_servers)
        if spec.listener.type is External.NONE:
            servers = f"{servers};{old}"
        else:
            outside.append(f'externalNamesrvAddr = "{old}"')
    lines = (
        "[broker]",
        f'brokerClusterName = "{cluster.name}"',
        f"autoCreateTopicEnable = {str(spec.auto_create_topics).lower()}",
        f'namesrvAddr = "{servers}"',
        *outside,
        *access_settings(spec.security),
        "",
        "[store]",
        "enableDLegerCommitLog = true",
        f'flushDiskType = "{spec.durability.flush}"',
        f"mappedFileSizeCommitLog = {spec.storage.segment_bytes}",
        "",
        "[http]",
        'host = "0.0.0.0"',
        f"port = {HTTP}",
        f'adminTokenFile = "/etc/tallystick-admin/{TOKEN_KEY}"',
        f'readTokenFile = "/etc/tallystick-reader/{TOKEN_KEY}"',
    )
    return "\n".join(lines) + "\n"


def config_map(cluster: Cluster) -> Json:
    names = names_of(cluster)
    content = {"data": {"broker.toml": broker_toml(cluster)}}
    return manifest(CONFIG_MAPS, cluster.namespace, names.config, names.labels(), content, owner=owner_of(cluster))


def authorities(cluster: Cluster, trusted: bytes) -> Json:
    """Returns the ConfigMap with the authorities that clients need to verify the cluster."""
    names = names_of(cluster)
    content = {"data": {"ca.crt": trusted.decode("ascii", "replace")}}
    return manifest(CONFIG_MAPS, cluster.namespace, names.authority, names.labels(), content, owner=owner_of(cluster))


def service_account(cluster: Cluster) -> Json:
    """Returns a service account without permissions; the default account of the namespace may have some."""
    names = names_of(cluster)
    content = {"automountServiceAccountToken": False}
    return manifest(
        SERVICE_ACCOUNTS, cluster.namespace, names.account, names.labels(), content, owner=owner_of(cluster)
    )


def admin_secret(cluster: Cluster, token: str) -> Json:
    """Returns the Secret with the admin token. It is created once and never read; the operator can derive the token."""
    return _token_secret(cluster, names_of(cluster).admin(cluster.uid), token)


def reader_secret(cluster: Cluster, token: str) -> Json:
    """Returns the Secret with the token with which jobs read files of stores."""
    return _token_secret(cluster, names_of(cluster).reader(cluster.uid), token)


def _token_secret(cluster: Cluster, name: str, token: str) -> Json:
    content = {"type": "Opaque", "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()}}
    return manifest(SECRETS, cluster.namespace, name, names_of(cluster).labels(), content, owner=owner_of(cluster))


def disruption_budget(cluster: Cluster, group: int, evictable: int) -> Json:
    """Returns the budget of a group: `evictable` members at a time. A pod that is not ready can always be evicted."""
    names = names_of(cluster)
    labels = names.group_labels(group)
    selector = names.broker_selector() | {GROUP_LABEL: labels[GROUP_LABEL]}
    return _budget(cluster, names.group(group), labels, selector, evictable)


def name_server_budget(cluster: Cluster) -> Json:
    """Returns the budget of the name servers: one at a time. It permits the eviction of a single one, or it would block
    every drain of its Kubernetes node."""
    names = names_of(cluster)
    return _budget(cluster, names.name_server, names.labels("nameserver"), names.name_server_selector(), 1)


def _budget(
    cluster: Cluster, name: str, labels: Mapping[str, str], selector: Mapping[str, str], evictable: int
) -> Json:
    content = {
        "spec": {
            "maxUnavailable": evictable,
            "selector": {"matchLabels": dict(selector)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        }
    }
    return manifest(DISRUPTION_BUDGETS, cluster.namespace, name, labels, content, owner=owner_of(cluster))


def network_policies(cluster: Cluster, operator: Mapping[str, str]) -> list[Json]:
    """Returns the policies: client ports for `clientsFrom`, Raft for members, HTTP for operator, Prometheus and jobs.

    `operator`: labels of the pods of the operator in any namespace. Network policies never block probes of the kubelet.
    """
    names, spec = names_of(cluster), cluster.spec
    clients: Json = {"from": list(spec.clients_from)} if spec.clients_from else {}
    brokers = {"podSelector": {"matchLabels": names.broker_selector()}}
    servers = {"podSelector": {"matchLabels": names.name_server_selector()}}
    administrators = {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(operator)}}
    metrics = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}
    http = {"ports": _ports(HTTP), "from": [administrators, metrics, brokers]}
    files = {"ports": _ports(HTTP), "from": [{"podSelector": {"matchLabels": names.job_selector()}}]}
    raft = {"ports": _ports(RAFT), "from": [brokers]}
    broker_rules: list[Json] = [{"ports": _ports(REMOTING, VIP), **clients}, raft, http, files]
    server_rules: list[Json] = [{"ports": _ports(NAME_SERVER, NAME_SERVER_OUTSIDE), **clients}, http]
    if spec.clients_from:  # other clients are blocked, but brokers register and members forward requests
        broker_rules.append({"ports": _ports(REMOTING, VIP), "from": [brokers, servers]})
        server_rules.append({"ports": _ports(NAME_SERVER), "from": [brokers]})
    return [
        _policy(cluster, names.broker_policy, "broker", names.broker_selector(), broker_rules),
        _policy(cluster, names.name_server, "nameserver", names.name_server_selector(), server_rules),
    ]


def _policy(cluster: Cluster, name: str, component: str, selector: Mapping[str, str], rules: list[Json]) -> Json:
    labels = names_of(cluster).labels(component)
    content = {"spec": {"podSelector": {"matchLabels": dict(selector)}, "policyTypes": ["Ingress"], "ingress": rules}}
    return manifest(NETWORK_POLICIES, cluster.namespace, name, labels, content, owner=owner_of(cluster))


def _ports(*numbers: int) -> list[Json]:
    return [{"port": number, "protocol": "TCP"} for number in numbers]


def pod_spec(spec: ClusterSpec, placement: Placement, account: str, container: Json, volumes: Sequence[Json]) -> Json:
    """Returns the spec of a pod with one container and without a token for the API server."""
    found: Json = {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named `tally` would become unknown settings
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
    }
    if spec.image_pull_secrets:
        found["imagePullSecrets"] = list(spec.image_pull_secrets)
    if placement.node_selector:
        found["nodeSelector"] = placement.node_selector
    if placement.tolerations:
        found["tolerations"] = list(placement.tolerations)
    return found
