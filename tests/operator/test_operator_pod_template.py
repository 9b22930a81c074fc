"""What users add to the pods: it reaches them, rolls them once, and cannot take what the operator depends on."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from simulated_api import Json, RefusalError
from simulated_cluster import CLUSTER, Cluster

from tallystick.operator.clusters import cluster_manifests, name_server_manifests, pod_template
from tallystick.operator.clusters.broker_manifests import MemberPlan, stateful_set, template_digest
from tallystick.operator.clusters.spec import Cluster as ClusterValue
from tallystick.operator.clusters.spec import ClusterSpec, SpecError
from tallystick.operator.core.names import TEMPLATE

ROOT = Path(__file__).resolve().parents[2]
PLAN = MemberPlan(0, 1, True, (0, 1, 2))
TEMPLATE_SPEC: Json = {
    "labels": {"team": "mq"},
    "annotations": {"sidecar.istio.io/inject": "false"},
    "priorityClassName": "high",
    "schedulerName": "second",
    "serviceAccountName": "cloud-identity",
    "terminationGracePeriodSeconds": 300,
    "securityContext": {"runAsUser": 2000, "seLinuxOptions": {"level": "s0"}},
    "env": [
        {"name": "TZ", "value": "UTC"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    "volumes": [{"name": "trust", "secret": {"secretName": "authorities"}}],
    "volumeMounts": [{"name": "trust", "mountPath": "/etc/trust", "readOnly": True}],
}


def cluster(**spec: Any) -> ClusterValue:
    return ClusterValue("shop", "orders", "uid-1", 3, False, ClusterSpec.parse(spec, "node:1"))


def broker(**spec: Any) -> Json:
    template: Json = stateful_set(cluster(**spec), PLAN, "u")["spec"]["template"]
    return template


def name_server(**spec: Any) -> Json:
    template: Json = name_server_manifests.name_server_set(cluster(nameServers=spec), "node:1", 2)["spec"]["template"]
    return template


# -- what the pods have ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [broker, name_server])
def test_a_template_reaches_the_pod_beside_what_the_operator_sets(make: Any) -> None:
    plain, found = make(), make(podTemplate=TEMPLATE_SPEC)
    assert found["metadata"]["labels"] == {**plain["metadata"]["labels"], "team": "mq"}
    assert found["metadata"]["annotations"].keys() == {TEMPLATE, "sidecar.istio.io/inject"}
    pod = found["spec"]
    assert (pod["priorityClassName"], pod["schedulerName"], pod["serviceAccountName"]) == (
        "high",
        "second",
        "cloud-identity",
    )
    assert pod["terminationGracePeriodSeconds"] == 300
    security = {**plain["spec"]["securityContext"], "runAsUser": 2000, "seLinuxOptions": {"level": "s0"}}
    assert pod["securityContext"] == security and security["runAsNonRoot"] is True
    (container,), (before,) = pod["containers"], plain["spec"]["containers"]
    assert container["env"] == before["env"] + TEMPLATE_SPEC["env"]
    assert container["volumeMounts"] == before["volumeMounts"] + TEMPLATE_SPEC["volumeMounts"]
    assert pod["volumes"] == plain["spec"]["volumes"] + TEMPLATE_SPEC["volumes"]


@pytest.mark.parametrize("field", TEMPLATE_SPEC)
def test_each_field_restarts_the_pods_that_have_it_and_no_others(field: str) -> None:
    given = {"podTemplate": {field: TEMPLATE_SPEC[field], "volumes": TEMPLATE_SPEC["volumes"]}}
    before = {} if field == "volumes" else {"podTemplate": {"volumes": TEMPLATE_SPEC["volumes"]}}
    assert template_digest(cluster(**given), PLAN) != template_digest(cluster(**before), PLAN)
    notes = [name_server(**spec)["metadata"]["annotations"][TEMPLATE] for spec in (given, before)]
    assert notes[0] != notes[1]
    assert template_digest(cluster(nameServers=given), PLAN) == template_digest(cluster(), PLAN)


def test_pods_are_spread_over_zones_unless_the_spec_says_otherwise() -> None:
    for make, selector in ((broker, {"tallystick.dev/group": "0"}), (name_server, {})):
        (constraint,) = make()["spec"]["topologySpreadConstraints"]
        counted = constraint.pop("labelSelector")["matchLabels"]
        assert constraint == pod_template.ZONES and constraint["whenUnsatisfiable"] == "ScheduleAnyway"
        assert selector.items() <= counted.items() <= make()["metadata"]["labels"].items()
        assert "topologySpreadConstraints" not in make(topologySpreadConstraints=[])["spec"]
        racks = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
        (own,) = make(topologySpreadConstraints=[racks])["spec"]["topologySpreadConstraints"]
        assert own == {**racks, "labelSelector": {"matchLabels": counted}}
        (other,) = make(topologySpreadConstraints=[{**racks, "labelSelector": {}}])["spec"]["topologySpreadConstraints"]
        assert other["labelSelector"] == {}


# -- what is refused ---------------------------------------------------------------------------------------------------

SECRET = {"name": "trust", "secret": {"secretName": "a"}}


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"labels": {"tallystick.dev/group": "1"}}, "labels"),
        ({"labels": {"app.kubernetes.io/component": "job"}}, "labels"),
        ({"annotations": {"tallystick.dev/template": "x"}}, "annotations"),
        ({"terminationGracePeriodSeconds": 0}, "terminationGracePeriodSeconds"),
        ({"securityContext": {"runAsUser": 0}}, "securityContext"),
        ({"securityContext": {"runAsNonRoot": False}}, "securityContext"),
        ({"env": [{"name": "TALLY_BROKERNAME", "value": "x"}]}, "env"),
        ({"env": [{"name": "tally_brokername", "value": "x"}]}, "env"),
        ({"env": [{"name": "HOST_IP", "value": "x"}]}, "env"),
        ({"env": [{"name": "A", "value": "x"}, {"name": "A", "value": "y"}]}, "env"),
        ({"env": [{"value": "x"}]}, "env"),
        ({"volumes": [{"name": "data", "emptyDir": {}}]}, "volumes"),
        ({"volumes": [{"name": "backup-key", "emptyDir": {}}]}, "volumes"),
        ({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, "volumes"),
        ({"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "data-orders-0-1"}}]}, "volumes"),
        ({"volumes": [{"name": "a", "emptyDir": {}, "secret": {}}]}, "volumes"),
        ({"volumes": [SECRET, SECRET]}, "volumes"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/elsewhere"}]}, "volumeMounts"),
        ({"volumes": [SECRET], "volumeMounts": [{"name": "trust", "mountPath": "/data/store"}]}, "volumeMounts"),
        ({"volumes": [SECRET], "volumeMounts": [{"name": "trust", "mountPath": "/x/../data"}]}, "volumeMounts"),
        ({"volumes": [SECRET], "volumeMounts": [{"name": "trust", "mountPath": "relative"}]}, "volumeMounts"),
        ({"volumes": [SECRET], "volumeMounts": [{"name": "trust", "mountPath": "/a"}] * 2}, "volumeMounts"),
    ],
)
def test_what_the_operator_depends_on_cannot_be_taken(template: Json, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        cluster(podTemplate=template)
    assert caught.value.field == f"spec.podTemplate.{field}"
    with pytest.raises(SpecError) as caught:
        cluster(nameServers={"podTemplate": template})
    assert caught.value.field == f"spec.nameServers.podTemplate.{field}"


def test_a_name_that_only_begins_like_a_reserved_one_is_free() -> None:
    mount = {"name": "database", "mountPath": "/database"}
    template = {
        "labels": {"tallystick.developers": "x", "app.kubernetes.io/part-of": "shop"},
        "volumes": [{"name": "database", "emptyDir": {}}],
        "volumeMounts": [mount],
    }
    assert mount in broker(podTemplate=template)["spec"]["containers"][0]["volumeMounts"]


def test_the_schema_rejects_the_names_that_the_operator_rejects() -> None:
    text = (ROOT / "crds" / "brokercluster.yaml").read_text()
    schema = yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    fields = schema["properties"]["podTemplate"]["properties"]

    def listed(place: Json) -> set[str]:
        rules = [rule["rule"] for rule in place["x-kubernetes-validations"]]
        return {name for rule in rules for name in re.findall(r"'([^'^]+)'", rule)}

    assert listed(fields["labels"]) == {*pod_template.RESERVED_LABELS, *pod_template.RESERVED_PREFIXES}
    assert listed(fields["annotations"]) == set(pod_template.RESERVED_PREFIXES)
    assert listed(fields["env"]["items"]) == set(pod_template.RESERVED_VARIABLES)
    assert listed(fields["volumes"]["items"]) == set(pod_template.RESERVED_VOLUMES)
    assert fields["volumes"]["items"]["properties"].keys() == {"name", *pod_template.SOURCES}
    assert listed(fields["volumeMounts"]["items"]) - {"/"} == set(pod_template.RESERVED_FOLDERS)
    assert fields.keys() == TEMPLATE_SPEC.keys()


# -- what a change does ------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> Cluster:
    found = Cluster(random.Random(7))
    found.create(image="node:1")
    found.settle()
    return found


def uids(world: Cluster) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.api.all("pods")}


def test_a_change_rolls_the_pods_once_and_defaults_of_the_server_roll_none(world: Cluster) -> None:
    before = uids(world)
    world.change({"podTemplate": TEMPLATE_SPEC})
    world.settle()
    rolled = uids(world)
    assert {name for name in before if before[name] != rolled[name]} == {f"{CLUSTER}-0-{n}-0" for n in range(3)}
    assert all(world.pod(0, member)["spec"]["priorityClassName"] == "high" for member in range(3))
    world.reconciler = None  # a new operator remembers nothing about what the server made of its manifests
    writes = len(world.api.writes)
    for _ in range(5):
        world.one_pass()
        world.tick(10.0)
    assert world.api.writes[writes:] == [] and uids(world) == rolled


def test_a_field_that_others_change_in_the_template_comes_back_without_a_restart(world: Cluster) -> None:
    world.change({"podTemplate": TEMPLATE_SPEC})
    world.settle()
    before = uids(world)
    live = world.api.get("statefulsets", f"{CLUSTER}-0-1")
    assert live is not None
    live["spec"]["template"]["spec"]["priorityClassName"] = "theirs"
    live["spec"]["template"]["metadata"]["labels"]["theirs"] = "x"
    world.one_pass()
    live = world.api.get("statefulsets", f"{CLUSTER}-0-1")
    assert live["spec"]["template"]["spec"]["priorityClassName"] == "high"
    assert "theirs" not in live["spec"]["template"]["metadata"]["labels"]
    world.settle()
    assert uids(world) == before


def no_such_class(plural: str, body: Json) -> None:
    """The admission plugin for priority classes: it looks at pods, not at their templates."""
    if plural == "pods" and (body.get("spec") or {}).get("priorityClassName") == "missing":
        raise RefusalError(403, "Forbidden", "pods is forbidden: no PriorityClass with name missing was found")


def test_a_template_whose_pods_are_refused_stops_no_broker(world: Cluster) -> None:
    before = uids(world)
    world.api.admission = no_such_class
    world.change({"podTemplate": {"priorityClassName": "missing"}})
    for _ in range(20):
        world.one_pass()
        world.tick(2.0)
    assert uids(world) == before and world.status["readyNodes"] == "3/3"
    blocked = world.condition("UpdateBlocked")
    assert (blocked["status"], blocked["reason"]) == ("True", "Refused")
    assert "no PriorityClass with name missing" in blocked["message"]
    world.change({"podTemplate": {"priorityClassName": "present"}})
    world.settle()
    assert {world.pod(0, member)["spec"]["priorityClassName"] for member in range(3)} == {"present"}


def test_a_template_whose_pods_are_refused_stops_no_name_server(world: Cluster) -> None:
    before = uids(world)
    world.api.admission = no_such_class
    world.change({"nameServers": {"podTemplate": {"priorityClassName": "missing"}}})
    for _ in range(20):
        world.one_pass()
        world.tick(10.0)
    assert uids(world) == before
    assert "no PriorityClass with name missing" in world.condition("Progressing")["message"]
    world.change({"nameServers": {"podTemplate": {"priorityClassName": None}}})
    world.settle()
    assert world.condition("Progressing")["reason"] == "AsSpecified"


def test_a_used_up_quota_blocks_no_update(world: Cluster) -> None:
    """The old pod still counts when its successor is tried."""

    def used_up(plural: str, body: Json) -> None:
        if plural == "pods" and str(body["metadata"].get("name")).endswith("-trial"):
            raise RefusalError(
                403, "Forbidden", "pods is forbidden: exceeded quota: team, requested: pods=1, used: pods=5"
            )

    world.api.admission = used_up
    world.change({"image": "node:2"})
    world.settle()
    assert {world.pod(0, member)["spec"]["containers"][0]["image"] for member in range(3)} == {"node:2"}


# -- disruption budgets ------------------------------------------------------------------------------------------------


def test_one_name_server_and_one_member_of_a_group_may_be_evicted_at_a_time() -> None:
    wanted = cluster()
    budget = cluster_manifests.name_server_budget(wanted)
    assert budget["spec"]["maxUnavailable"] == 1 and budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    for found, pod in ((budget, name_server()), (cluster_manifests.disruption_budget(wanted, 0, 1), broker())):
        assert found["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert not budget["spec"]["selector"]["matchLabels"].items() <= broker()["metadata"]["labels"].items()


def test_a_second_name_server_is_not_evicted_while_the_first_is_away(world: Cluster) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {}}
    answers = []
    for number in range(2):
        path = f"/api/v1/namespaces/shop/pods/{CLUSTER}-nameserver-{number}/eviction"
        answers.append(world.by_hand("POST", path, eviction)[0])
    assert answers == [200, 429]
