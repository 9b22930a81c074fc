"""What helm makes of the chart, for several values: rights, pod security, hooks. Skipped where helm is not on PATH."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tallystick"
HELM = shutil.which("helm")
pytestmark = [pytest.mark.process, pytest.mark.skipif(HELM is None, reason="needs helm on PATH")]

Manifest = dict[str, Any]

DIGEST = "sha256:" + "0123456789abcdef" * 4

VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "two-namespaces": {"watchNamespaces": ["shop", "bank"], "replicas": 2, "podDisruptionBudget": {"enabled": True}},
    "cluster-wide": {"clusterWide": True, "secretNamespaces": ["shop"], "rbac": {"aggregate": False}},
    "mirror": {
        "global": {
            "imageRegistry": "mirror.example.com:5000/hub/",
            "imagePullSecrets": ["mirror", {"name": "registry"}],
        },
        "image": {
            "operator": {"digest": DIGEST, "tag": "ignored"},
            "node": {"registry": "nodes.example.com", "tag": "2"},
            "jobs": {"digest": DIGEST, "registry": "jobs.example.com", "repository": "mq/jobs"},
        },
        "imagePullSecrets": [{"name": "registry"}],
        "sampleCluster": {"enabled": True},
    },
    "everything": {
        "image": {"operator": {"repository": "registry.example.com:5000/mq/operator", "tag": "1.2.3"}},
        "imagePullSecrets": [{"name": "registry"}],
        "rbac": {"readSecrets": False},
        "env": [{"name": "WORKERS", "value": "8"}],
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "mq"},
        "serviceAccount": {"annotations": {"a": "b"}},
        "priorityClassName": "high",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
        "podDisruptionBudget": {"enabled": True},
        "monitoring": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True},
        },
        "sampleCluster": {"enabled": True},
    },
}


def helm(*words: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    given = ("--values", "-") if values is not None else ()
    text = None if values is None else json.dumps(values)
    return subprocess.run([HELM, *words, *given], input=text, capture_output=True, text=True, timeout=60)


@cache
def rendered(name: str, *words: str) -> list[Manifest]:
    values = VALUES[name]
    # Without a cluster helm assumes the version that it was built for, which some builds do not know.
    answer = helm("template", "mq", str(CHART), "--namespace", "system", "--kube-version=1.34.0", *words, values=values)
    assert answer.returncode == 0, answer.stderr
    return [manifest for manifest in yaml.safe_load_all(answer.stdout) if manifest]


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for manifest in manifests:
        if manifest["kind"] in ("Deployment", "Job"):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]
        elif manifest["kind"] == "Pod":
            yield manifest["metadata"]["name"], manifest["spec"]


def rules(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for manifest in of_kind(manifests, "Role", "ClusterRole"):
        for rule in manifest["rules"]:
            yield manifest["metadata"]["name"], rule


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_nothing_wrong(name: str) -> None:
    answer = helm("lint", "--strict", str(CHART), values=VALUES[name])
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "[WARNING]" not in answer.stdout and "[ERROR]" not in answer.stdout


@pytest.mark.parametrize("name", VALUES)
def test_objects_are_named_once(name: str) -> None:
    found = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in rendered(name)]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("name", VALUES)
def test_pods_run_under_the_restricted_profile(name: str) -> None:
    seen = dict(pods(rendered(name)))
    assert {"mq-tallystick", "mq-tallystick-test"} <= set(seen)
    for spec in seen.values():
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True and security["runAsUser"] == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["enableServiceLinks"] is False  # variables TALLY_... of Services are settings for a node
        assert not any("hostPath" in volume for volume in spec.get("volumes", ()))
        for container in spec["containers"]:
            limits = container["securityContext"]
            assert limits["allowPrivilegeEscalation"] is False and limits["readOnlyRootFilesystem"] is True
            assert limits["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", VALUES)
def test_rights_are_named_one_by_one(name: str) -> None:
    for role, rule in rules(rendered(name)):
        for part in ("apiGroups", "resources", "verbs"):
            assert rule[part] and "*" not in rule[part], role
        assert not {"pods/exec", "pods/attach", "pods/portforward", "nodes"} & set(rule["resources"]), role
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"]), role


def test_by_default_rights_end_at_the_releases_namespace() -> None:
    manifests = rendered("default")
    assert of_kind(manifests, "ClusterRoleBinding") == []
    assert {m["metadata"]["name"] for m in of_kind(manifests, "ClusterRole")} == {
        "mq-tallystick-view",
        "mq-tallystick-edit",
    }
    bound = {
        (m["metadata"].get("namespace", "system"), m["roleRef"]["name"]) for m in of_kind(manifests, "RoleBinding")
    }
    assert bound == {("system", "mq-tallystick-own"), ("system", "mq-tallystick")}
    assert environment(manifests)["WATCH_NAMESPACES"] == "system"


def test_each_watched_namespace_has_its_role() -> None:
    manifests = rendered("two-namespaces")
    roles = {m["metadata"]["namespace"] for m in of_kind(manifests, "Role") if m["metadata"]["name"] == "mq-tallystick"}
    assert roles == {"shop", "bank"}
    subjects = [subject for m in of_kind(manifests, "RoleBinding") for subject in m["subjects"]]
    account = {"kind": "ServiceAccount", "name": "mq-tallystick", "namespace": "system"}
    assert subjects == [account] * 3
    assert environment(manifests)["WATCH_NAMESPACES"] == "shop,bank"


def test_cluster_wide_rights_are_without_secrets() -> None:
    manifests = rendered("cluster-wide")
    (binding,) = of_kind(manifests, "ClusterRoleBinding")
    everywhere = [rule for name, rule in rules(manifests) if name == binding["roleRef"]["name"]]
    assert everywhere and not any("secrets" in rule["resources"] for rule in everywhere)
    with_secrets = {name for name, rule in rules(manifests) if "secrets" in rule["resources"]}
    assert with_secrets == {"mq-tallystick-own", "mq-tallystick-secrets"}  # the first is a Role
    bound = {
        m["metadata"].get("namespace"): m["roleRef"]["name"]
        for m in of_kind(manifests, "RoleBinding")
        if m["roleRef"]["kind"] == "ClusterRole"
    }
    assert bound == {"shop": "mq-tallystick-secrets"}
    assert environment(manifests)["WATCH_NAMESPACES"] == ""


def environment(manifests: list[Manifest]) -> dict[str, str]:
    (deployment,) = of_kind(manifests, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item.get("value", "") for item in container["env"]}


def test_the_operator_may_read_exactly_the_objects_that_it_reads() -> None:
    manifests = rendered("default")
    named = {
        (role, *rule["resources"]): rule["resourceNames"] for role, rule in rules(manifests) if "resourceNames" in rule
    }
    source = (ROOT / "operator" / "core" / "admin_token.py").read_text()
    (key,) = re.findall(r'^KEY_NAME = "(.*)"$', source, re.MULTILINE)
    source = (ROOT / "operator" / "core" / "namespace_leases.py").read_text()
    assert re.search(r'^NAME = f"operator\.{GROUP}"$', source, re.MULTILINE)
    assert named == {
        ("mq-tallystick-own", "leases"): [environment(manifests)["LEASE_NAME"]],
        ("mq-tallystick-own", "secrets"): [key],
        ("mq-tallystick", "leases"): ["operator.tallystick.dev"],
    }


@pytest.mark.parametrize("name", VALUES)
def test_the_lease_of_a_namespace_is_never_that_of_a_release(name: str) -> None:
    """The name of a release becomes the name of a Service, which contains no dot."""
    assert "." not in environment(rendered(name))["LEASE_NAME"]


@pytest.mark.parametrize("name", VALUES)
def test_secrets_can_be_read_by_name_and_never_listed(name: str) -> None:
    """The role of the operator's own namespace has the operator's key, and no other Secret. A value forbids to read."""
    for role, rule in rules(rendered(name)):
        if "secrets" in rule["resources"] and "resourceNames" not in rule:
            reads = name != "everything" and not role.endswith("-own")
            assert rule["verbs"] == (["create", "get", "patch"] if reads else ["create"]), role


def test_brokers_let_the_operators_pods_in() -> None:
    (deployment,) = of_kind(rendered("everything"), "Deployment")
    source = (ROOT / "operator" / "clusters" / "layout.py").read_text()
    (labels,) = re.findall(r"^OPERATOR_LABELS = (\{.*\})$", source, re.MULTILINE)
    assert json.loads(labels).items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_images_follow_the_chart_unless_set() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    plain, told = rendered("default"), rendered("everything")
    assert dict(pods(plain))["mq-tallystick"]["containers"][0]["image"] == f"tallystick-operator:{version}"
    assert environment(plain)["TALLYSTICK_NODE_IMAGE"] == f"tallystick-node:{version}"
    assert environment(plain)["TALLYSTICK_JOBS_IMAGE"] == f"tallystick-jobs:{version}"
    image = dict(pods(told))["mq-tallystick"]["containers"][0]["image"]
    assert image == "registry.example.com:5000/mq/operator:1.2.3"


def test_a_registry_of_all_images_and_digests() -> None:
    """A digest has priority over a tag, and the registry of an image over that of all images."""
    manifests = rendered("mirror")
    operator = f"mirror.example.com:5000/hub/tallystick-operator@{DIGEST}"
    assert environment(manifests)["TALLYSTICK_NODE_IMAGE"] == "nodes.example.com/tallystick-node:2"
    assert environment(manifests)["TALLYSTICK_JOBS_IMAGE"] == f"jobs.example.com/mq/jobs@{DIGEST}"
    images = {name: container["image"] for name, spec in pods(manifests) for container in spec["containers"]}
    assert images.pop("mq-tallystick-test") == "nodes.example.com/tallystick-node:2"
    assert len(images) == 3 and set(images.values()) == {operator}


def test_every_pod_has_the_pull_secrets_of_both_lists_once() -> None:
    found = [spec["imagePullSecrets"] for _, spec in pods(rendered("mirror"))]
    assert found == [[{"name": "registry"}, {"name": "mirror"}]] * 4
    assert all("imagePullSecrets" not in spec for _, spec in pods(rendered("default")))


def test_a_parent_chart_may_share_other_global_values() -> None:
    manifests = rendered("default", "--set", "global.storageClass=fast", "--set", "global.imageRegistry=r.example.com")
    assert dict(pods(manifests))["mq-tallystick"]["containers"][0]["image"].startswith(
        "r.example.com/tallystick-operator:"
    )


def test_jobs_come_after_everything_else() -> None:
    manifests = rendered("default")
    (made,) = of_kind(manifests, "PriorityClass")
    assert (made["value"], made["preemptionPolicy"], made["globalDefault"]) == (-10, "Never", False)
    assert environment(manifests)["JOBS_PRIORITY_CLASS"] == made["metadata"]["name"] == "mq-tallystick-jobs"


@pytest.mark.parametrize(("name", "told"), [("", ""), ("theirs", "theirs")])
def test_without_the_right_to_create_a_class_none_is_used_or_an_existing_one(name: str, told: str) -> None:
    values = ("--set", "jobs.priorityClass.create=false", "--set", f"jobs.priorityClass.name={name}")
    manifests = rendered("default", *values)
    assert of_kind(manifests, "PriorityClass") == [] and environment(manifests)["JOBS_PRIORITY_CLASS"] == told


def test_the_only_objects_made_and_not_applied_are_pods_and_jobs() -> None:
    """What is created without patch is never changed: a pod's account, mounts and image stay as they were made."""
    found = [rule for name, rule in rules(rendered("default")) if name == "mq-tallystick"]
    verbs = {resource: set(rule["verbs"]) for rule in found for resource in rule["resources"]}
    assert verbs["pods"] == {"get", "list", "watch", "create", "delete"}
    assert verbs["storejobs"] == {"get", "list", "watch", "create", "delete"}
    assert verbs["backups"] == {"get", "list", "watch", "create", "patch", "delete"}  # patch is for marks
    assert verbs["scheduledbackups"] == {"get", "list", "watch"} and verbs["scheduledbackups/status"] == {
        "get",
        "patch",
    }
    assert verbs["jobs"] == {"get", "list", "create", "delete"}
    assert verbs["storejobs/status"] == {"get", "patch"} and verbs["storejobs/finalizers"] == {"update"}


def test_definitions_are_part_of_the_release_and_kept() -> None:
    manifests = of_kind(rendered("default"), "CustomResourceDefinition")
    assert len(manifests) == 8
    assert {m["metadata"]["annotations"]["helm.sh/resource-policy"] for m in manifests} == {"keep"}
    for path in (ROOT / "crds").glob("*.yaml"):
        assert yaml.safe_load(path.read_text()) in manifests


def test_definitions_can_belong_to_another_release() -> None:
    assert of_kind(rendered("default", "--set", "crds.install=never"), "CustomResourceDefinition") == []


KIND = ("--api-versions", "tallystick.dev/v1beta1/BrokerCluster")


def test_a_first_sample_waits_for_its_kind() -> None:
    """helm looks up the kinds of a release before it makes any object: the first time, ours are not there."""
    manifests = rendered("everything")
    (cluster,), (topic,) = of_kind(manifests, "BrokerCluster"), of_kind(manifests, "Topic")
    (job,) = [m for m in of_kind(manifests, "Job") if m["metadata"]["name"].endswith("-await-crds")]
    for manifest in (cluster, topic):
        marks = manifest["metadata"]["annotations"]
        assert marks["helm.sh/hook"] == "post-install,post-upgrade"
        assert int(marks["helm.sh/hook-weight"]) > int(job["metadata"]["annotations"]["helm.sh/hook-weight"])
        # by these the next upgrade takes it for the release's own
        assert marks["meta.helm.sh/release-name"] == "mq" and marks["meta.helm.sh/release-namespace"] == "system"
        assert manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    (script,) = job["spec"]["template"]["spec"]["containers"][0]["args"]
    compile(script, "await_crds.py", "exec")


def test_a_sample_whose_kind_is_there_is_an_object_like_others() -> None:
    manifests = rendered("everything", *KIND)
    assert [m["metadata"]["name"] for m in of_kind(manifests, "Job")] == ["mq-tallystick-uninstall"]
    (cluster,), (topic,) = of_kind(manifests, "BrokerCluster"), of_kind(manifests, "Topic")
    assert "annotations" not in cluster["metadata"] and "annotations" not in topic["metadata"]
    assert topic["spec"]["clusterName"] == cluster["metadata"]["name"]
    assert cluster["spec"]["storage"]["segmentBytes"] == 67108864


@pytest.mark.parametrize("name", VALUES)
def test_before_an_uninstallation_the_operator_lets_go(name: str) -> None:
    """With the account, the scope and the lease of the operator. No selector of the chart takes it for the operator."""
    manifests = rendered(name)
    (job,) = [m for m in of_kind(manifests, "Job") if m["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"]
    (deployment,) = of_kind(manifests, "Deployment")
    spec, operators = job["spec"]["template"]["spec"], deployment["spec"]["template"]["spec"]
    (container,), (operator,) = spec["containers"], operators["containers"]
    assert container["args"] == ["--prepare-uninstall"]
    assert (container["env"], container["image"]) == (operator["env"], operator["image"])
    assert spec["serviceAccountName"] == operators["serviceAccountName"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert not deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(("name", "command"), [("default", "python3"), ("everything", "sh")])
def test_the_test_is_for_the_sample_if_there_is_one(name: str, command: str) -> None:
    (pod,) = of_kind(rendered(name), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert container["command"][0] == command
    if command == "python3":
        compile(container["args"][0], "test", "exec")
    else:
        checked = subprocess.run(["sh", "-n"], input=container["args"][0], text=True, capture_output=True, timeout=10)
        assert checked.returncode == 0, checked.stderr


def test_monitoring_is_behind_switches() -> None:
    kinds = ("ServiceMonitor", "PrometheusRule", "ConfigMap", "PodDisruptionBudget")
    assert of_kind(rendered("default"), *kinds) == []
    found = of_kind(rendered("everything"), *kinds)
    assert sorted(m["kind"] for m in found) == sorted((*kinds, "ServiceMonitor"))
    assert len(of_kind(rendered("default"), "NetworkPolicy")) == 1
    (dashboard,) = of_kind(found, "ConfigMap")
    assert json.loads(dashboard["data"]["tallystick.json"])["title"] == "tallystick"


def test_alerts_are_complete() -> None:
    (rule,) = of_kind(rendered("everything"), "PrometheusRule")
    rules = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    assert all(("alert" in each) is not ("record" in each) for each in rules)
    alerts = [each for each in rules if "alert" in each]
    assert len({alert["alert"] for alert in alerts}) == len(alerts)
    for alert in alerts:
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"]["summary"] and alert["annotations"]["description"]
        assert alert["expr"].count("(") == alert["expr"].count(")")
        assert alert["expr"].count("{") == alert["expr"].count("}")
        assert "e+" not in alert["expr"]  # a number as a template prints it by itself
        assert (ROOT / alert["annotations"]["runbook_url"]).is_file()


@pytest.mark.parametrize(
    "base", ["https://git.example.com/mq/docs/runbooks", "https://git.example.com/mq/docs/runbooks/"]
)
def test_alerts_lead_to_runbooks_at_the_given_place(base: str) -> None:
    manifests = rendered("everything", "--set", f"monitoring.prometheusRule.runbookUrl={base}")
    (rule,) = of_kind(manifests, "PrometheusRule")
    for alert in (each for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each):
        assert alert["annotations"]["runbook_url"] == f"https://git.example.com/mq/docs/runbooks/{alert['alert']}.md"


def test_brokers_that_prometheus_cannot_read_have_the_name_that_an_alert_asks_for() -> None:
    manifests = rendered("everything")
    (rule,) = of_kind(manifests, "PrometheusRule")
    alerts = {
        each["alert"]: each["expr"] for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each
    }
    (monitor,) = [m for m in of_kind(manifests, "ServiceMonitor") if m["metadata"]["name"].endswith("-brokers")]
    ((relabeling,),) = [endpoint["relabelings"] for endpoint in monitor["spec"]["endpoints"]]
    assert relabeling["targetLabel"] == "job"
    assert f'up{{job="{relabeling["replacement"]}"}} == 0' in alerts["TallystickMetricsMissing"]
    assert 'job="mq-tallystick",namespace="system"' in alerts["TallystickMetricsMissing"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"replicas": "two"}, "replicas"),
        ({"clusterWide": True, "watchNamespaces": ["shop"]}, "watchNamespaces"),
        ({"secretNamespaces": ["shop"]}, "secretNamespaces"),
        ({"replica": 2}, "replica"),
        ({"fullnameOverride": "UPPER"}, "fullnameOverride"),
        ({"image": {"node": {"digest": "0123"}}}, "digest"),
        ({"image": {"node": {"digest": "sha256:" + "A" * 64}}}, "digest"),
        ({"global": {"imageRegistry": "https://registry.example.com"}}, "imageRegistry"),
        ({"global": {"imagePullSecrets": [{"secret": "registry"}]}}, "imagePullSecrets"),
    ],
)
def test_helm_refuses_wrong_values(values: dict[str, Any], told: str) -> None:
    answer = helm("template", "mq", str(CHART), values=values)
    assert answer.returncode != 0
    assert told in answer.stderr
