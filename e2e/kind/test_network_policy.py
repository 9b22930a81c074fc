"""NetworkPolicies of a cluster, where the network plugin enforces them: only named clients reach the brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import pods
from harness.brokers import Brokers
from harness.lab import Lab
from harness.network_plugin import network_plugin
from harness.shell import ToolError, apply, kubectl
from harness.waiting import NotYetError, wait_for

_LET_IN = {"allowed": "true"}
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()"


def _client(lab: Lab, namespace: str, name: str, labels: dict[str, str]) -> None:
    container = {
        "name": "shell",
        "image": lab.images.node,
        "command": ["sleep", "86400"],
        "securityContext": pods.RESTRICTED,
    }
    found = pods.restricted_pod(namespace, name, container)
    found["metadata"]["labels"] |= labels
    apply(found)

    def look() -> None:
        phase = str(lab.api.get("pods", namespace, name)["status"].get("phase"))
        if phase != "Running":
            raise NotYetError(phase)

    wait_for(f"the pod {name} runs", look, 90)


def _reaches(namespace: str, client: str, host: str, port: int) -> bool:
    try:
        kubectl("exec", client, "--namespace", namespace, "--", "python3", "-c", _CONNECT, host, str(port))
    except ToolError:
        return False
    return True


def _until(namespace: str, client: str, host: str, port: int, expected: bool) -> None:
    """Rules reach the Kubernetes nodes with a delay. WaitError."""

    def look() -> None:
        if _reaches(namespace, client, host, port) is not expected:
            raise NotYetError(f"{client} {'does not reach' if expected else 'reaches'} {host}:{port}")

    wait_for(f"{client} {'reaches' if expected else 'does not reach'} {host}:{port}", look, 30)


@pytest.fixture(autouse=True)
def _enforced(lab: Lab) -> Iterator[None]:
    with network_plugin(lab.kind):
        yield


def test_only_named_clients_reach_the_cluster(lab: Lab, namespace: str) -> None:
    brokers = Brokers(lab.api, namespace, "closed")
    brokers.apply({"replicas": 3, "nameServers": {"replicas": 1}, "networkPolicy": {"enabled": False}})
    brokers.whole()
    node = min(brokers.nodes())
    broker, server = f"{node}.{namespace}.svc", f"{brokers.name}-nameserver.{namespace}.svc"
    _client(lab, namespace, "friend", _LET_IN)
    _client(lab, namespace, "stranger", {})
    assert _reaches(namespace, "stranger", broker, 10911) and _reaches(namespace, "stranger", broker, 10912)

    nobody = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": []}
    metadata = {"name": "nobody", "namespace": namespace}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": nobody}
    apply(policy)
    _until(namespace, "stranger", broker, 10911, expected=False)
    kubectl("delete", "networkpolicy", "nobody", "--namespace", namespace)

    clients = [{"podSelector": {"matchLabels": _LET_IN}}]
    brokers.change({"networkPolicy": {"enabled": True, "clientsFrom": clients}})
    for host, port in ((broker, 10911), (server, 9876)):
        _until(namespace, "stranger", host, port, expected=False)
        _until(namespace, "friend", host, port, expected=True)
    for port in (10912, 8080):  # Raft and HTTP are for members, the operator and Prometheus
        _until(namespace, "friend", broker, port, expected=False)
    brokers.whole()  # members replicate, register, and answer the operator
    leader = brokers.leader()
    uid = brokers.pod(leader)["metadata"]["uid"]
    lab.api.delete("pods", namespace, f"{leader}-0")
    brokers.replaced(leader, uid)
    brokers.whole()
