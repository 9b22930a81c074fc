"""What is put into the API server: restricted pods, stable digests, claims that outlive all, who may reach what."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.operator.clusters.broker_manifests import (
    MemberPlan,
    members_of,
    members_text,
    stateful_set,
    template_digest,
)
from tallystick.operator.clusters.cluster_manifests import admin_secret, reader_secret
from tallystick.operator.clusters.drift import covers, differs, mark, stamped
from tallystick.operator.clusters.layout import layout, placed, rebirth_doubt
from tallystick.operator.clusters.observed import Answer, Claim, Group, Member, NameServers, Observed
from tallystick.operator.clusters.spec import Cluster, ClusterSpec, SpecError
from tallystick.operator.core.admin_token import AdminTokens
from tallystick.operator.core.names import Names
from tallystick.operator.core.quantity import larger, quantity, same

SERVERS = NameServers(2, 2, 2, True)


def cluster(paused: bool = False, **spec: Any) -> Cluster:
    return Cluster("shop", "orders", "uid-1", 3, paused, ClusterSpec.parse(spec, "node:1"))


def observed(*members: Member) -> Observed:
    return Observed(0.0, (Group(0, members),), SERVERS)


def complete(wanted: Cluster, external: str = "") -> list[dict[str, Any]]:
    members = tuple(
        Member(0, number, node_uid=f"u{number}", claim=Claim(uid=f"c{number}"), external=external)
        for number in range(wanted.spec.replicas)
    )
    return list(layout(wanted, observed(*members)).manifests)


def names(manifests: Any, kind: str) -> list[str]:
    return [each["metadata"]["name"] for each in manifests if each["kind"] == kind]


def pods(manifests: Any) -> Iterator[dict[str, Any]]:
    return (each["spec"]["template"]["spec"] for each in manifests if each["kind"] == "StatefulSet")


def variables(pod: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in pod["containers"][0]["env"]}


def test_everything_of_a_cluster_has_its_name() -> None:
    found = complete(cluster())
    assert names(found, "BrokerNode") == ["orders-0-0", "orders-0-1", "orders-0-2"]
    assert names(found, "StatefulSet") == ["orders-nameserver", "orders-0-0", "orders-0-1", "orders-0-2"]
    assert names(found, "PersistentVolumeClaim") == ["data-orders-0-0", "data-orders-0-1", "data-orders-0-2"]
    assert names(found, "Service")[:2] == ["orders-nameserver-headless", "orders-nameserver"]
    assert names(found, "PodDisruptionBudget") == ["orders-nameserver", "orders-0"]
    assert names(found, "NetworkPolicy") == ["orders-broker", "orders-nameserver"]
    for each in found:
        labels = each["metadata"]["labels"]
        assert labels["tallystick.dev/cluster"] == "orders"
        assert labels["app.kubernetes.io/managed-by"] == "tallystick-operator"


def test_what_a_pod_needs_is_there_before_its_stateful_set() -> None:
    order = [(each["kind"], each["metadata"]["name"]) for each in complete(cluster())]
    for member in range(3):
        claim = order.index(("PersistentVolumeClaim", f"data-orders-0-{member}"))
        assert order.index(("Service", f"orders-0-{member}")) < order.index(("StatefulSet", f"orders-0-{member}"))
        assert (
            order.index(("ServiceAccount", "orders-node")) < claim < order.index(("StatefulSet", f"orders-0-{member}"))
        )


def test_claims_have_no_owner_and_all_others_are_deleted_with_theirs() -> None:
    for each in complete(cluster()):
        owners = each["metadata"].get("ownerReferences")
        if each["kind"] == "PersistentVolumeClaim":
            assert owners is None
        elif each["kind"] in ("StatefulSet", "Service") and "nameserver" not in each["metadata"]["name"]:
            assert owners[0]["kind"] == "BrokerNode"
        else:
            assert (owners[0]["kind"], owners[0]["uid"]) == ("BrokerCluster", "uid-1")


def test_every_pod_passes_the_restricted_level() -> None:
    for pod in pods(complete(cluster())):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert "/tmp" in mounts


def test_a_member_gets_the_bootstrap_setting_only_before_its_group_has_formed() -> None:
    wanted = cluster()
    young, old = (MemberPlan(0, 1, formed, (0, 1, 2)) for formed in (False, True))
    told = variables(stateful_set(wanted, young, "u")["spec"]["template"]["spec"])
    assert (told["TALLY_GROUPBOOTSTRAP"], told["TALLY_GROUPBOOTSTRAPMEMBERS"]) == ("true", "n0;n1;n2")
    assert "TALLY_GROUPBOOTSTRAP" not in variables(stateful_set(wanted, old, "u")["spec"]["template"]["spec"])
    assert template_digest(wanted, young) == template_digest(wanted, old), "its removal must restart no pod"
    late = MemberPlan(0, 4, False, (0, 1, 2))
    assert "TALLY_GROUPBOOTSTRAP" not in variables(stateful_set(wanted, late, "u")["spec"]["template"]["spec"])


def test_scaling_changes_no_pod() -> None:
    plan = MemberPlan(0, 1, True, (0, 1, 2))
    assert template_digest(cluster(replicas=3), plan) == template_digest(cluster(replicas=5), plan)
    assert template_digest(cluster(groups=1), plan) == template_digest(cluster(groups=4), plan)
    peers = variables(stateful_set(cluster(), plan, "u")["spec"]["template"]["spec"])["TALLY_DLEGERPEERS"]
    assert peers.split(";")[4] == "n4-orders-0-4.shop.svc:10912"


@pytest.mark.parametrize(
    "spec",
    [
        {"image": "node:2"},
        {"durability": "MajorityAsync"},
        {"autoCreateTopics": True},
        {"config": {"fileReservedTime": "48"}},
        {"resources": {"limits": {"memory": "1Gi"}}},
        {"nodeSelector": {"disk": "fast"}},
        {"nameServers": {"replicas": 3}},
    ],
)
def test_what_a_process_starts_with_is_in_the_digest(spec: dict[str, Any]) -> None:
    plan = MemberPlan(0, 1, True, (0, 1, 2))
    assert template_digest(cluster(), plan) != template_digest(cluster(**spec), plan)


def test_settings_reach_the_pod_by_their_names() -> None:
    told = variables(next(itertools.islice(pods(complete(cluster(config={"fileReservedTime": "48"}))), 1, None)))
    assert told["TALLY_FILERESERVEDTIME"] == "48"
    assert told["TALLY_GROUPLINGERMILLS"] == "35000"
    told = variables(next(itertools.islice(pods(complete(cluster(config={"groupLingerMills": "0"}))), 1, None)))
    assert told["TALLY_GROUPLINGERMILLS"] == "0", "a person's word counts more"


@pytest.mark.parametrize(
    "config", [{"brokerName": "x"}, {"BROKERNAME": "x"}, {"flushDiskType": "ASYNC_FLUSH"}, {"groupBootstrap": "true"}]
)
def test_settings_that_are_the_operators_are_refused(config: dict[str, str]) -> None:
    with pytest.raises(SpecError, match=r"spec\.config"):
        cluster(config=config)


@pytest.mark.parametrize(
    "spec", [{"replicas": 2}, {"replicas": 7}, {"groups": 0}, {"durability": "None"}, {"replicas": "3"}]
)
def test_what_cannot_be_is_refused_by_its_field(spec: dict[str, Any]) -> None:
    (field,) = spec
    with pytest.raises(SpecError) as caught:
        cluster(**spec)
    assert caught.value.field == f"spec.{field}"


def test_a_stateful_set_waits_for_the_address_that_its_pod_tells() -> None:
    outside = cluster(listeners={"external": {"type": "LoadBalancer"}})
    members = (
        Member(0, 0, node_uid="u0", claim=Claim(uid="c0"), external="lb:10911"),
        Member(0, 1, node_uid="u1", claim=Claim(uid="c1")),
        Member(0, 2, node_uid="u2", claim=Claim(uid="c2")),
    )
    found = layout(outside, observed(*members))
    assert names(found.manifests, "StatefulSet") == ["orders-nameserver", "orders-0-0"]
    assert names(found.manifests, "Service")[-1] == "orders-0-2-external"
    assert [node for node, _ in found.waits] == ["orders-0-1", "orders-0-2"]
    assert found.templates[0, 1] is None


@pytest.mark.parametrize(("host", "told"), [("", "$(HOST_IP):30123"), ("mq.example.org", "mq.example.org:30123")])
def test_node_ports_are_reported_with_the_machine_or_the_given_host(host: str, told: str) -> None:
    listener = {"external": {"type": "NodePort", "host": host}}
    pod = list(pods(complete(cluster(listeners=listener), external="172.18.0.3:30123")))[1]
    assert variables(pod)["TALLY_EXTERNALADDRESS"] == told
    place = [each["name"] for each in pod["containers"][0]["env"]]
    if not host:
        assert place.index("HOST_IP") < place.index("TALLY_EXTERNALADDRESS")
    moved = list(pods(complete(cluster(listeners=listener), external="172.18.0.9:30123")))[1]
    assert moved == pod, "that a pod runs on another machine changes no template"


def test_what_is_switched_off_is_not_there() -> None:
    found = complete(cluster(podDisruptionBudget={"enabled": False}, networkPolicy={"enabled": False}))
    assert not names(found, "PodDisruptionBudget") + names(found, "NetworkPolicy")


def test_named_clients_do_not_shut_out_the_cluster() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "shop"}}}
    found = complete(cluster(networkPolicy={"clientsFrom": [peer]}))
    rules = next(
        each for each in found if each["metadata"]["name"] == "orders-broker" and each["kind"] == "NetworkPolicy"
    )
    text = json.dumps(rules["spec"]["ingress"])
    assert '"port": 10911' in text and '"app": "shop"' in text
    raft = [rule for rule in rules["spec"]["ingress"] if rule["ports"] == [{"port": 10912, "protocol": "TCP"}]]
    assert all(peer not in rule["from"] for rule in raft)
    assert all("from" in rule for rule in rules["spec"]["ingress"])


def test_the_tokens_are_in_their_secrets_and_nowhere_else() -> None:
    names = Names("shop", "orders")
    for make, name in ((admin_secret, names.admin("uid-1")), (reader_secret, names.reader("uid-1"))):
        found = make(cluster(), "0123456789abcdef")
        assert "token" in found["data"] and found["metadata"]["name"] == name
        assert name in json.dumps(complete(cluster())), "brokers mount it"
    assert "0123456789abcdef" not in json.dumps(complete(cluster()))


def test_the_readers_token_is_no_key_to_the_rest() -> None:
    tokens = AdminTokens(b"k" * 32)
    found = {tokens("shop", "orders"), tokens.reader("shop", "orders"), tokens.reader("shop", "other")}
    found |= {tokens("reader", "shop"), tokens("other", "orders"), AdminTokens(b"l" * 32).reader("shop", "orders")}
    assert len(found) == 6 and all(len(token) == 64 for token in found)


def test_jobs_reach_the_brokers_http_and_nothing_else_of_them() -> None:
    policies = [each for each in complete(cluster()) if each["kind"] == "NetworkPolicy"]
    for policy in policies:
        rules = [rule for rule in policy["spec"]["ingress"] if '"job"' in json.dumps(rule)]
        brokers = policy["metadata"]["name"] == "orders-broker"
        assert [rule["ports"] for rule in rules] == ([[{"port": 8080, "protocol": "TCP"}]] if brokers else [])


# -- which members have objects ----------------------------------------------------------------------------------------


def claimed(number: int, **about: Any) -> Member:
    return Member(0, number, node_uid=f"u{number}", claim=Claim("c", **about), stateful_set="x")


def test_a_group_is_begun_by_those_that_were_written_down_first() -> None:
    """Three began; that five are wanted meanwhile must not make two ideas of who votes."""
    group = Group(0, (claimed(0, first=(0, 1, 2)), Member(0, 1), Member(0, 2), Member(0, 3), Member(0, 4)))
    assert placed(group, 5) == (0, 1, 2)
    manifests = layout(cluster(replicas=5), Observed(0.0, (group,), SERVERS)).manifests
    notes = {
        each["metadata"]["annotations"]["tallystick.dev/first-members"]
        for each in manifests
        if each["kind"] == "PersistentVolumeClaim"
    }
    assert notes == {"n0;n1;n2"}


def test_members_stay_until_they_are_let_go() -> None:
    group = Group(0, tuple(claimed(number, formed=True) for number in range(5)))
    assert placed(group, 3) == (0, 1, 2, 3, 4)


def test_a_cluster_made_again_with_fewer_members_finds_all_its_disks() -> None:
    left = Member(0, 4, claim=Claim("c", formed=True, left=True))
    group = Group(0, (Member(0, 0), *(Member(0, n, claim=Claim("c", formed=True)) for n in (1, 2)), left))
    assert placed(group, 1) == (0, 1, 2)


def test_a_lost_disk_of_a_group_that_may_have_formed_gets_no_bootstrap_setting() -> None:
    lost = Member(0, 0, node_uid="u0", stateful_set="x")
    innocent = Answer("follower", 0, None, False, voters=(0, 1, 2))
    silent = claimed(1, first=(0, 1, 2))
    says = Member(0, 2, node_uid="u2", claim=Claim("c", first=(0, 1, 2)), stateful_set="x", answer=innocent)
    assert rebirth_doubt(Group(0, (lost, silent, says)), lost)
    heard = Member(0, 1, node_uid="u1", claim=Claim("c", first=(0, 1, 2)), stateful_set="x", answer=innocent)
    assert not rebirth_doubt(Group(0, (lost, heard, says)), lost)
    found = layout(cluster(), Observed(0.0, (Group(0, (lost, silent, says)),), SERVERS))
    assert "data-orders-0-0" not in names(found.manifests, "PersistentVolumeClaim")


def test_claims_grow_and_never_shrink() -> None:
    member = claimed(0, requested="20Gi", formed=True)
    for size, expected in (("10Gi", "20Gi"), ("30Gi", "30Gi")):
        found = layout(cluster(storage={"size": size}), observed(member)).manifests
        claim = next(each for each in found if each["metadata"]["name"] == "data-orders-0-0")
        assert claim["spec"]["resources"]["requests"]["storage"] == expected


# -- drift -------------------------------------------------------------------------------------------------------------

WANTED = stamped(
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "a", "namespace": "b", "labels": {"x": "y"}},
        "spec": {"ports": [{"name": "http", "port": 1}], "size": "1024Mi", "empty": []},
    }
)


def as_served(**spec: Any) -> dict[str, Any]:
    live = json.loads(json.dumps(WANTED))
    live["metadata"] |= {"uid": "1", "labels": {"x": "y", "theirs": "z"}}
    live["spec"] |= {"clusterIP": "10.0.0.1", "ports": [{"name": "http", "port": 1, "protocol": "TCP"}]} | spec
    return live


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        (None, True),
        (as_served(), False),
        (as_served(size="1Gi"), False),
        (as_served(size="2Gi"), True),
        (as_served(ports=[{"name": "http", "port": 2}]), True),
        (as_served(ports=[{"name": "theirs", "port": 9}, {"name": "http", "port": 1}]), False),
        (as_served(ports=[]), True),
    ],
)
def test_only_what_differs_is_written(live: Any, expected: bool) -> None:
    assert differs(live, WANTED, None) is expected


def test_a_field_that_is_not_wanted_any_more_is_found() -> None:
    less = stamped({key: value for key, value in WANTED.items() if key != "spec"} | {"spec": {}})
    assert covers(as_served()["spec"], {})
    assert differs(as_served(), less, None)


def test_what_the_server_made_of_it_is_settled() -> None:
    """A field that a server rewrites in an unknown way is written once, and not in every pass."""
    rewritten = as_served(size="one gigabyte")
    assert differs(rewritten, WANTED, None)
    assert not differs(rewritten, WANTED, mark(rewritten, WANTED))
    assert differs(as_served(size="two gigabytes"), WANTED, mark(rewritten, WANTED))


# -- quantities --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [("1Gi", "1024Mi"), ("1k", "1000"), ("0.5", "500m"), ("1e3", "1k"), ("1.5Gi", "1536Mi"), ("100n", "0.1u")],
)
def test_quantities_written_differently(one: str, other: str) -> None:
    assert quantity(one) == quantity(other) and same(one, other)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["", "k", "Ki", "M", "Gi"]))
def test_the_larger_one(one: int, other: int, suffix: str) -> None:
    assert larger(f"{one}{suffix}", f"{other}{suffix}") == f"{max(one, other)}{suffix}"


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1GiB", "ten"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        quantity(text)


def test_members_as_text() -> None:
    assert members_of(members_text((0, 2, 4))) == (0, 2, 4)
    assert members_of("rubbish") == members_of("") == ()
