"""`helm install` on a bare cluster, with the sample cluster; what kubectl then shows to a person; `helm test`."""

from __future__ import annotations

import pytest
from harness.api import Json
from harness.brokers import Brokers
from harness.lab import Lab
from harness.release import NAME, NAMESPACE
from harness.shell import kubectl, run

pytestmark = pytest.mark.ci

SAMPLE = "sample"


WITH_SAMPLE: Json = {
    "sampleCluster": {
        "enabled": True,
        "name": SAMPLE,
        "spec": {"replicas": 3, "storage": {"size": "1Gi", "segmentBytes": 16 << 20}},
    }
}


@pytest.fixture(scope="module")
def sample(lab: Lab) -> Brokers:
    """What the chart's sample switch makes, with volumes and files for a small machine."""
    lab.release.install(WITH_SAMPLE)
    return Brokers(lab.api, NAMESPACE, SAMPLE)


def test_the_sample_cluster_becomes_ready(sample: Brokers) -> None:
    """By `helm install` alone; its topic too."""
    status = sample.whole()
    assert status["nameServers"] == {"ready": 2, "address": f"{SAMPLE}-nameserver.{NAMESPACE}.svc:9876"}
    assert status["leaders"] == "1/1"
    sample.topic_ready("greetings")


def test_every_pod_is_restricted(sample: Brokers) -> None:
    """The namespace enforces the profile; and of what the profile leaves open, nothing is used."""
    sample.whole()
    pods = sample.api.list("pods", NAMESPACE)
    assert len(pods) >= 1 + 3 + 2, [pod["metadata"]["name"] for pod in pods]
    for pod in pods:
        for container in pod["spec"]["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True, pod["metadata"]["name"]
            assert security["capabilities"] == {"drop": ["ALL"]}, pod["metadata"]["name"]
    brokers = sample.pods().values()
    assert all(pod["spec"]["automountServiceAccountToken"] is False for pod in brokers)


def test_a_table_tells_how_it_is(sample: Brokers) -> None:
    """`kubectl get`: one line says what a person asks first."""
    sample.whole()
    clusters = kubectl("get", "bc", SAMPLE, "-n", NAMESPACE).splitlines()
    assert clusters[0].split() == ["NAME", "PHASE", "READY", "LEADERS", "GROUPS", "REPLICAS", "STEP", "AGE"]
    assert clusters[1].split()[:6] == [SAMPLE, "Ready", "3/3", "1/1", "1", "3"]
    nodes = kubectl("get", "bn", "-n", NAMESPACE).splitlines()
    assert nodes[0].split() == ["NAME", "PHASE", "ROLE", "LAG", "NODE", "AGE"]
    assert sorted(line.split()[2] for line in nodes[1:]) == ["Follower", "Follower", "Leader"]
    topics = kubectl("get", "topic", "-n", NAMESPACE).splitlines()
    assert topics[1].split()[:5] == ["greetings", SAMPLE, "Ready", "8", "ReadWrite"]
    everything = kubectl("get", "tallystick", "-n", NAMESPACE)
    assert "brokercluster.tallystick.dev/sample" in everything and "topic.tallystick.dev/greetings" in everything


def test_a_description_tells_why(sample: Brokers) -> None:
    """`kubectl describe`: conditions with reasons, and what was done."""
    sample.whole()
    said = kubectl("describe", "brokercluster", SAMPLE, "-n", NAMESPACE)
    for word in ("Conditions:", "Type:", "Ready", "Reason:", "Events:", "Leader:", "sample-0-"):
        assert word in said, said
    explained = kubectl("explain", "brokercluster.spec.storage.segmentBytes")
    assert "DESCRIPTION:" in explained and len(explained) > 200, explained


def test_helm_test_sends_a_message(sample: Brokers) -> None:
    """Through the sample cluster, and finds it."""
    sample.whole()
    run("helm", "test", NAME, "--namespace", NAMESPACE, "--timeout", "300s", timeout_s=330)


def test_the_sample_goes_and_its_volumes_stay(sample: Brokers, lab: Lab) -> None:
    """The switch turned off: pods are gone; what was stored is not."""
    lab.release.install(WITH_SAMPLE)  # what hooks made in the first install is the release's own from now on
    lab.release.install()
    kubectl("wait", f"brokercluster/{SAMPLE}", "-n", NAMESPACE, "--for=delete", "--timeout=90s")
    claims = {each["metadata"]["name"] for each in lab.api.list("persistentvolumeclaims", NAMESPACE)}
    assert {f"data-{SAMPLE}-0-{member}" for member in range(3)} <= claims
    kubectl("delete", "pvc", "--all", "-n", NAMESPACE, "--wait=false")
