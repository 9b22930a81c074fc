"""Passes over a simulated cluster, each a short story: what people ask for, what happens, what they are told."""

from __future__ import annotations

import random
from typing import Any

import pytest
from simulated_api import RefusalError
from simulated_cluster import CLUSTER, NAMESPACE, Cluster, set_ready

from tallystick.operator.core import kube


@pytest.fixture
def world() -> Cluster:
    return Cluster(random.Random(7))


def steps_of(world: Cluster) -> dict[str, int]:
    samples = next(iter(world.metrics.steps.collect())).samples
    return {each.labels["action"]: int(each.value) for each in samples if each.name.endswith("_total")}


def events(world: Cluster) -> list[tuple[str, str]]:
    bodies = sorted(world.api.all("events"), key=lambda each: int(each["metadata"]["resourceVersion"]))
    return [(each["involvedObject"]["kind"], each["reason"]) for each in bodies]


def test_a_cluster_comes_to_be_and_then_nothing_is_written(world: Cluster) -> None:
    world.create()
    world.settle()
    assert world.status["readyNodes"] == "3/3"
    assert world.condition("Ready")["status"] == "True"
    assert {
        claim["metadata"]["annotations"]["tallystick.dev/formed"] for claim in world.api.all("persistentvolumeclaims")
    } == {"true"}
    before = len(world.api.writes)
    for _ in range(5):
        world.one_pass()
        world.tick(10.0)
    assert world.api.writes[before:] == []


def test_a_new_operator_writes_nothing_either(world: Cluster) -> None:
    world.create()
    world.settle()
    world.reconciler = None
    before = len(world.api.writes)
    world.one_pass()
    assert world.api.writes[before:] == []


def test_the_leader_of_a_rolling_update_is_last_and_handed_over(world: Cluster) -> None:
    world.create(image="node:1")
    world.settle()
    world.change({"image": "node:2"})
    world.settle()
    done = steps_of(world)
    assert done["RestartMember"] == 3 and done["MoveLeader"] >= 1
    told = [reason for kind, reason in events(world) if kind == "BrokerCluster" and reason != "RestartNameServer"]
    assert told[:2] == ["RestartMember", "RestartMember"] and told[-1] == "RestartMember"
    assert world.status["phase"] == "Ready" and "step" not in world.status


def test_an_image_that_does_not_start_stops_at_the_first_member(world: Cluster) -> None:
    world.create(image="node:1")
    world.settle()
    world.broken_images.add("node:2")
    world.change({"image": "node:2"})
    for _ in range(60):
        world.one_pass()
        world.tick(5.0)
    assert steps_of(world)["RestartMember"] == 1
    assert world.status["readyNodes"] == "2/3"
    blocked = world.condition("UpdateBlocked")
    assert (blocked["status"], blocked["reason"]) == ("True", "MemberNotReady")
    assert "CrashLoopBackOff" in world.condition("Degraded")["message"]
    world.change({"image": "node:3"})
    world.settle()


def test_an_image_is_named_by_its_digest(world: Cluster) -> None:
    images = [f"registry.example.com:5000/mq/node@sha256:{digit * 64}" for digit in "ab"]
    world.create(image=images[0])
    world.settle()
    world.change({"image": images[1]})
    world.settle()
    assert steps_of(world)["RestartMember"] == 3 and world.status["image"] == images[1]
    found = {pod["spec"]["containers"][0]["image"] for pod in world.api.all("pods")}
    assert found == {images[1]} and len(world.api.all("pods")) == 5


def images_of_name_servers(world: Cluster) -> list[str]:
    pods = [each for each in world.api.all("pods") if "-nameserver-" in each["metadata"]["name"]]
    return [pod["spec"]["containers"][0]["image"] for pod in pods]


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_name_servers_get_an_image_after_a_broker_is_ready_on_it(world: Cluster, replicas: int) -> None:
    world.create(image="node:1", nameServers={"replicas": replicas})
    world.settle()
    world.broken_images.add("node:2")
    world.change({"image": "node:2"})
    for _ in range(60):
        world.one_pass()
        world.tick(5.0)
    assert images_of_name_servers(world) == ["node:1"] * replicas
    assert world.status["nameServers"]["ready"] == replicas
    world.change({"image": "node:3"})
    world.settle()
    assert images_of_name_servers(world) == ["node:3"] * replicas
    assert [reason for _, reason in events(world)].count("RestartNameServer") == replicas
    assert world.condition("Progressing")["reason"] == "AsSpecified"


def test_the_last_name_server_that_serves_stays(world: Cluster) -> None:
    """One of two is not ready when the template changes: the other one waits until it is."""
    world.create(nameServers={"replicas": 2})
    world.settle()
    world.broken_images.add("node:1")
    world.delete(kube.PODS, "orders-nameserver-0")
    for _ in range(3):
        world.tick()
    pods = {name: world.api.objects["pods", NAMESPACE, name] for name in ("orders-nameserver-0", "orders-nameserver-1")}
    world.broken_images.clear()
    for name, ready in (("orders-nameserver-0", False), ("orders-nameserver-1", True)):
        set_ready(pods[name], ready, world.time)
    world.change({"nameServers": {"replicas": 2, "nodeSelector": {"disk": "fast"}}})
    world.one_pass()
    world.one_pass()
    kept = world.api.get("pods", "orders-nameserver-1")
    assert kept is not None and kept["metadata"]["uid"] == pods["orders-nameserver-1"]["metadata"]["uid"]
    world.settle()
    for number in range(2):
        found = world.api.get("pods", f"orders-nameserver-{number}")
        assert found is not None and found["spec"]["nodeSelector"] == {"disk": "fast"}


def test_a_pause_is_reported_and_ended(world: Cluster) -> None:
    world.create(image="node:1")
    world.settle()
    world.change({"image": "node:2"}, annotations={"tallystick.dev/paused": "true"})
    for _ in range(10):
        world.one_pass()
        world.tick()
    assert world.status["phase"] == "Paused" and steps_of(world) == {}
    assert world.status["step"]["action"] == "RestartMember"
    assert world.status["step"]["reason"].startswith("waits: ")
    world.change(annotations={"tallystick.dev/paused": None})
    world.settle()
    assert steps_of(world)["RestartMember"] == 3


def test_out_and_in_again(world: Cluster) -> None:
    world.create(replicas=1)
    world.settle()
    for replicas in (3, 5, 3, 1):
        world.change({"replicas": replicas})
        world.settle()
        assert world.groups[0].voters == frozenset(range(replicas))
        assert world.status["replicas"] == replicas
    assert len(world.api.all("persistentvolumeclaims")) == 5, "claims stay"
    assert len(world.api.all("brokernodes")) == 1


def test_a_node_that_is_given_up_gets_an_empty_disk_and_no_second_one(world: Cluster) -> None:
    world.create()
    world.settle()
    before = world.api.get("persistentvolumeclaims", "data-orders-0-1")
    assert before is not None
    world.judge.may_lose.add("data-orders-0-1")
    world.annotate_node("orders-0-1", {"tallystick.dev/replace": "true"})
    world.settle()
    after = world.api.get("persistentvolumeclaims", "data-orders-0-1")
    assert after is not None and after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["metadata"]["annotations"]["tallystick.dev/formed"] == "true"
    assert steps_of(world)["ReplaceNode"] == 1
    assert "tallystick.dev/replace" not in (world.node("orders-0-1")["metadata"].get("annotations") or {})


def test_the_only_copy_is_not_given_up(world: Cluster) -> None:
    world.create(replicas=1)
    world.settle()
    world.annotate_node("orders-0-0", {"tallystick.dev/replace": "true"})
    for _ in range(20):
        world.one_pass()
        world.tick()
    assert world.condition("UpdateBlocked")["reason"] == "LastCopy"
    assert steps_of(world) == {}


def test_a_claim_that_is_deleted_takes_its_pod_along_when_the_others_can_bear_it(world: Cluster) -> None:
    world.create()
    world.settle()
    world.judge.may_lose.add("data-orders-0-2")
    world.delete(kube.CLAIMS, "data-orders-0-2")
    world.settle()
    assert steps_of(world)["ReplaceNode"] == 1
    assert world.disks[world.api.get("persistentvolumeclaims", "data-orders-0-2")["metadata"]["uid"]].length > 0


def test_a_pod_that_its_machine_never_lets_go_of_is_taken_away(world: Cluster) -> None:
    world.create()
    world.settle()
    machine = world.pod(0, 1)["spec"]["nodeName"]
    if sum(pod["spec"]["nodeName"] == machine for pod in world.api.all("pods")) > 1:
        pytest.skip("this seed put two members on one machine")
    world.machines[machine] = False
    world.delete(kube.PODS, "orders-0-1-0")
    world.run_until(lambda: steps_of(world).get("ForceDeletePod") == 1)
    assert world.time > 1_000_000 + 60 + 120
    world.run_until(lambda: world.status["readyNodes"] == "3/3")


def test_volumes_that_cannot_grow_are_reported(world: Cluster) -> None:
    world.create()
    world.settle()

    def refuse(method: str, resource: kube.Resource, key: Any, body: Any, subresource: str) -> None:
        if resource is kube.CLAIMS:
            raise RefusalError(403, "Forbidden", "the storage class must support resize")

    world.api.hook = refuse
    world.change({"storage": {"size": "20Gi"}})
    for _ in range(5):
        world.one_pass()
        world.tick()
    condition = world.condition("StorageResizing")
    assert (condition["status"], condition["reason"]) == ("False", "ResizeRefused")
    assert "must support resize" in condition["message"]
    assert world.status["phase"] == "Ready", "all else continues"


def test_an_invalid_spec_is_reported_and_nothing_changes(world: Cluster) -> None:
    world.create()
    world.settle()
    world.change({"config": {"brokerName": "x"}})
    before = len(world.api.writes)
    world.one_pass()
    world.one_pass()
    assert [each for each in world.api.writes[before:] if "events" not in each] == [
        "PATCH brokerclusters/orders/status"
    ]
    assert (world.status["phase"], world.condition("Ready")["reason"]) == ("Failed", "InvalidSpec")
    world.change({"config": {"brokerName": None}})
    world.settle()


def test_drift_of_everything_is_put_right(world: Cluster) -> None:
    world.create(networkPolicy={"enabled": True})
    world.settle()
    for plural in ("services", "configmaps", "poddisruptionbudgets", "networkpolicies", "serviceaccounts"):
        for body in world.api.all(plural):
            body["metadata"]["labels"] |= {"app.kubernetes.io/name": "other"}
    for name in ("orders-0", "orders-0-1", "orders-config"):
        for plural in ("poddisruptionbudgets", "services", "configmaps"):
            world.api.remove((plural, NAMESPACE, name))
    world.settle()
    for plural in ("services", "configmaps", "poddisruptionbudgets", "networkpolicies", "serviceaccounts"):
        found = world.api.all(plural)
        assert {body["metadata"]["labels"]["app.kubernetes.io/name"] for body in found} == {"tallystick"}
    assert world.api.get("services", "orders-0-1") is not None
    assert steps_of(world) == {}


def test_fields_that_others_add_are_removed(world: Cluster) -> None:
    """They change what runs, or which pods are reached."""
    world.create()
    world.settle()
    template = world.api.objects["statefulsets", NAMESPACE, "orders-0-1"]["spec"]["template"]
    template["spec"]["containers"][0]["env"].append({"name": "TALLY_FLUSHDISKTYPE", "value": "ASYNC_FLUSH"})
    template["spec"]["containers"][0]["resources"] = {"limits": {"memory": "1Mi"}}
    template["spec"]["containers"].append({"name": "side", "image": "car"})
    template["spec"] |= {"hostNetwork": True, "nodeSelector": {"disk": "none"}}
    template["metadata"]["labels"]["app"] = "mine"
    world.api.objects["services", NAMESPACE, "orders-nameserver"]["spec"]["selector"]["app"] = "none"
    world.api.objects["poddisruptionbudgets", NAMESPACE, "orders-0"]["spec"]["selector"]["matchLabels"]["a"] = "b"
    rules = world.api.objects["networkpolicies", NAMESPACE, "orders-broker"]["spec"]["ingress"]
    rules[0]["ports"].append({"port": 22, "protocol": "TCP"})
    world.api.objects["configmaps", NAMESPACE, "orders-config"]["data"]["more.toml"] = "x"
    world.one_pass()
    for key, words in {
        ("statefulsets", "orders-0-1"): ("FLUSHDISK", "1Mi", "car", "hostNetwork", "nodeSelector", "mine"),
        ("services", "orders-nameserver"): ("none",),
        ("poddisruptionbudgets", "orders-0"): ("'a'",),
        ("networkpolicies", "orders-broker"): ("22",),
        ("configmaps", "orders-config"): ("more.toml",),
    }.items():
        found = str((world.api.get(*key) or {}).get("spec") or (world.api.get(*key) or {}).get("data"))
        assert not [word for word in words if word in found], key
    world.settle()
    assert steps_of(world) == {}, "the template is the old one"


def test_fields_that_others_added_before_the_operator_started_are_removed(world: Cluster) -> None:
    world.create()
    world.settle()
    world.reconciler = None
    env = world.api.objects["statefulsets", NAMESPACE, "orders-0-1"]["spec"]["template"]["spec"]["containers"][0]["env"]
    env.append({"name": "TALLY_FLUSHDISKTYPE", "value": "ASYNC_FLUSH"})
    world.one_pass()
    assert "FLUSHDISK" not in str(world.api.get("statefulsets", "orders-0-1"))


def test_fields_that_an_admission_webhook_adds_are_no_drift(world: Cluster) -> None:
    """It adds them again to whatever is written; to remove them would never end."""
    store = world.api._store

    def webhook(key: Any, body: Any) -> Any:
        if key[0] == "statefulsets":
            body["spec"]["template"]["metadata"].setdefault("annotations", {})["mesh"] = "on"
        return store(key, body)

    world.api._store = webhook  # type: ignore[method-assign]
    world.create()
    world.settle()
    world.reconciler = None
    world.settle()
    before = len(world.api.writes)
    world.one_pass()
    assert world.api.writes[before:] == []


def test_a_restart_by_kubectl_is_not_taken_back(world: Cluster) -> None:
    world.create()
    world.settle()
    template = world.api.objects["statefulsets", NAMESPACE, "orders-nameserver"]["spec"]["template"]
    template["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/restartedAt"] = "now"
    before = len(world.api.writes)
    world.one_pass()
    assert world.api.writes[before:] == []
    template["spec"]["hostNetwork"] = True
    world.one_pass()
    found = world.api.objects["statefulsets", NAMESPACE, "orders-nameserver"]["spec"]["template"]
    assert "hostNetwork" not in found["spec"]
    assert found["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] == "now"


@pytest.mark.parametrize("secret", ["admin", "reader"])
def test_a_secret_that_a_pod_waits_for_is_made_within_seconds(world: Cluster, secret: str) -> None:
    world.create()
    world.settle()
    (name,) = [each["metadata"]["name"] for each in world.api.all("secrets") if secret in each["metadata"]["name"]]
    world.api.remove(("secrets", NAMESPACE, name))
    world.delete(kube.PODS, "orders-0-1-0")
    for _ in range(2):
        world.tick(3.0)
        world.one_pass()
    assert world.api.get("secrets", name) is not None


def test_a_secret_that_nobody_waits_for_is_made_within_half_a_minute(world: Cluster) -> None:
    world.create()
    world.settle()
    world.one_pass()
    for secret in world.api.all("secrets"):
        world.api.remove(("secrets", NAMESPACE, secret["metadata"]["name"]))
    for _ in range(4):
        world.tick(10.0)
        world.one_pass()
    assert len(world.api.all("secrets")) == 2


def refuse_to(world: Cluster, which: Any, status: int, message: str) -> None:
    def refuse(method: str, resource: kube.Resource, key: Any, body: Any, subresource: str) -> None:
        if which(resource, key):
            raise RefusalError(status, "Refused", message)

    world.api.hook = refuse


REFUSALS = {
    "a quota": (403, "exceeded quota: services, requested: services=1, used: services=5, limited: services=5"),
    "a webhook": (400, 'admission webhook "policy.example" denied the request: no label "team"'),
    "a webhook that is away": (500, 'Internal error occurred: failed calling webhook "policy.example": EOF'),
    "a right": (403, 'services is forbidden: User "operator" cannot patch resource "services"'),
    "a value": (422, "Service is invalid: spec.ports: Required value"),
    "a misspelled field": (500, "failed to create typed patch object: .spec.x: field not declared in schema"),
}


@pytest.mark.parametrize("formed", [True, False])
@pytest.mark.parametrize("what", REFUSALS)
def test_a_refusal_is_told_in_the_words_of_the_server(world: Cluster, what: str, formed: bool) -> None:
    if formed:
        world.create(image="node:1")
        world.settle()
    refuse_to(world, lambda resource, key: resource is kube.SERVICES and "nameserver" in key[2], *REFUSALS[what])
    if formed:
        for body in world.api.all("services"):
            world.api.remove(("services", NAMESPACE, body["metadata"]["name"]))
    else:
        world.create(image="node:1")
    for _ in range(4):
        world.one_pass()
        world.tick()
    told = f"Service orders-nameserver: {REFUSALS[what][1]}"
    for kind in ("Progressing", "UpdateBlocked"):
        assert world.condition(kind)["reason"] == "Refused" and told in world.condition(kind)["message"]
    assert world.status["phase"] == "Failed" and "PATCH" not in str(world.status)
    assert world.condition("Ready")["status"] == "True" or not formed
    assert [each["message"] for each in world.api.all("events")].count(told) == 1
    assert world.api.get("services", "orders-0-1") is not None, "other objects are written"


def test_a_quota_that_refuses_claims_delays_a_cluster_and_no_statefulset_exists_before_its_claim(
    world: Cluster,
) -> None:
    message = "exceeded quota: persistentvolumeclaims=3"
    refuse_to(world, lambda resource, key: resource is kube.CLAIMS, 403, message)
    world.create()
    for _ in range(5):
        world.one_pass()
        world.tick()
    assert [each["metadata"]["name"] for each in world.api.all("statefulsets")] == ["orders-nameserver"]
    assert (
        world.condition("Progressing")["reason"] == "Refused" and message in world.condition("Progressing")["message"]
    )
    assert world.condition("StorageResizing")["reason"] == "AsSpecified", "nothing is resized"
    world.api.hook = world.judge.write
    world.tick(60.0)
    world.settle()
    assert world.status["readyNodes"] == "3/3"


@pytest.mark.parametrize("what", REFUSALS)
def test_a_pass_that_cannot_read_is_told(world: Cluster, what: str) -> None:
    world.create()
    world.settle()
    listing = world.api._list

    def refused(resource: kube.Resource, *about: Any) -> Any:
        if resource is kube.PODS:
            raise RefusalError(REFUSALS[what][0], "Refused", REFUSALS[what][1])
        return listing(resource, *about)

    world.api._list = refused  # type: ignore[method-assign, assignment]
    for _ in range(3):
        world.one_pass()
        world.tick()
    assert world.status["phase"] == "Unknown" and world.status["readyNodes"] == "3/3"
    for kind in ("Ready", "Degraded", "QuorumAtRisk"):
        condition = world.condition(kind)
        assert (condition["status"], condition["reason"]) == ("Unknown", "PassFailed")
        assert REFUSALS[what][1] in condition["message"]
    assert [reason for _, reason in events(world)].count("PassFailed") == 1
    world.api._list = listing  # type: ignore[method-assign]
    world.settle()


def test_a_short_silence_of_the_api_server_is_not_told(world: Cluster) -> None:
    world.create()
    world.settle()
    before = dict(world.status)
    listing = world.api._list

    def silent(*about: Any) -> Any:
        raise RefusalError(503, "ServiceUnavailable", "the server is overloaded")

    world.api._list = silent  # type: ignore[method-assign, assignment]
    for _ in range(3):
        world.one_pass()
        world.tick(5.0)
    assert world.status == before
    for _ in range(3):
        world.one_pass()
        world.tick(5.0)
    assert world.condition("Ready")["reason"] == "PassFailed"
    world.api._list = listing  # type: ignore[method-assign]
    world.settle()


def test_objects_of_a_disabled_feature_are_deleted(world: Cluster) -> None:
    world.create(listeners={"external": {"type": "NodePort"}})
    world.settle()
    assert world.api.get("services", "orders-0-0-external") is not None
    assert world.status["nameServers"].get("externalAddress", "").count(":") in (0, 1)
    assert world.node("orders-0-0")["status"]["externalAddress"].startswith("172.18.0.2:30")
    world.change(
        {
            "listeners": {"external": {"type": "None"}},
            "networkPolicy": {"enabled": False},
            "podDisruptionBudget": {"enabled": False},
        }
    )
    world.settle()
    assert world.api.all("networkpolicies") == world.api.all("poddisruptionbudgets") == []
    assert not [each for each in world.api.all("services") if each["metadata"]["name"].endswith("external")]


def test_a_group_is_added_and_no_group_is_removed(world: Cluster) -> None:
    world.create(groups=1)
    world.settle()
    world.change({"groups": 2})
    world.settle()
    assert [each["name"] for each in world.status["groups"]] == ["orders-0", "orders-1"]
    world.change({"groups": 1})
    for _ in range(10):
        world.one_pass()
        world.tick()
    assert world.condition("UpdateBlocked")["reason"] == "GroupsNotRemoved"
    assert len(world.api.all("brokernodes")) == 6


def test_a_deleted_cluster_is_forgotten_and_its_claims_stay(world: Cluster) -> None:
    world.create()
    world.settle()
    world.delete(kube.CLUSTERS, CLUSTER)
    assert world.one_pass() is None
    for _ in range(10):
        world.api.collect()
        world.time += 100.0
        for pod in world.api.all("pods"):
            world.api.remove(("pods", NAMESPACE, pod["metadata"]["name"]))
    assert {key[0] for key in world.api.objects} <= {"persistentvolumeclaims", "events", "secrets"}
    assert len(world.api.all("persistentvolumeclaims")) == 3


def test_a_cluster_made_again_finds_its_messages(world: Cluster) -> None:
    world.create()
    world.settle()
    world.delete(kube.CLUSTERS, CLUSTER)
    for _ in range(5):
        world.tick(70.0)
    world.create()
    acknowledged = world.groups[0].acknowledged
    world.settle()
    assert world.groups[0].acknowledged >= acknowledged > 0
    for body in world.api.all("statefulsets"):
        assert "TALLY_GROUPBOOTSTRAP" not in str(body), "its disks are not new"


def test_a_foreign_process_at_a_members_address_is_not_believed(world: Cluster) -> None:
    """Addresses lead elsewhere for a moment, and who answers there may lead another group."""
    world.create()
    world.settle()
    api = world.operator()._context.nodes
    ask = api.ask

    async def another(node: Any, method: str, path: str, body: Any = None, **about: Any) -> Any:
        return {**await ask(node, method, path, body, **about), "group": "billing-0"}

    api.ask = another  # type: ignore[method-assign]
    world.one_pass()
    for kind in ("Ready", "Degraded", "QuorumAtRisk"):
        assert (world.condition(kind)["status"], world.condition(kind)["reason"]) == ("Unknown", "Unreachable")
    assert (world.status["phase"], world.status["leaders"]) == ("Unknown", "?/1")
    assert "of billing-0 responds at the address of this member" in world.status["groups"][0]["lastError"]


def test_conditions_keep_the_time_of_their_change(world: Cluster) -> None:
    world.create()
    world.settle()
    since = world.condition("Ready")["lastTransitionTime"]
    generation = world.condition("Ready")["observedGeneration"]
    world.change({"storage": {"size": "20Gi"}})
    world.settle()
    assert world.condition("Ready")["lastTransitionTime"] == since
    assert world.condition("Ready")["observedGeneration"] == generation + 1


def test_every_field_of_the_status_is_in_the_schema(world: Cluster) -> None:
    """A field that the schema does not know would be dropped by the server, and written again in each pass."""
    from pathlib import Path

    import yaml

    world.create(listeners={"external": {"type": "NodePort"}})
    world.settle()
    root = Path(__file__).resolve().parents[2] / "crds"
    for file, bodies in (
        ("brokercluster", [world.status]),
        ("brokernode", [b["status"] for b in world.api.all("brokernodes")]),
    ):
        schema = yaml.safe_load((root / f"{file}.yaml").read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for body in bodies:
            known(schema["properties"]["status"], body, f"{file}.status")


def known(schema: Any, value: Any, place: str) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            assert key in schema.get("properties", {}), f"{place}.{key} is not in the schema"
            known(schema["properties"][key], inner, f"{place}.{key}")
    elif isinstance(value, list):
        for inner in value:
            known(schema["items"], inner, f"{place}[]")
    elif "enum" in schema:
        assert value in schema["enum"], f"{place}: {value}"


def test_a_cluster_all_of_whose_members_are_gone_has_groups_without_a_leader(world: Cluster) -> None:
    """For an alert: members that are gone have no metrics. A new cluster has none yet."""

    def leaderless() -> float:
        (metric,) = world.metrics.leaderless.collect()
        return sum(sample.value for sample in metric.samples)

    world.create(replicas=3)
    world.one_pass()
    assert leaderless() == 0
    world.settle()
    assert leaderless() == 0
    world.machines = dict.fromkeys(world.machines, False)
    world.tick()
    for pod in world.api.all("pods"):
        pod["status"]["containerStatuses"] = []
    world.tick()
    world.one_pass()
    assert leaderless() == 1
