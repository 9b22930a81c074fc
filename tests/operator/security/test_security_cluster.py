"""TLS of a simulated cluster: its Secrets, the stages of a running cluster, and the rotation of the authority.

After each step the simulation compares all pairs of processes: each must accept the connection and the certificate of
each other, whatever kubelets have brought into which pod (`simulated_tls.Files.judge`).
"""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest
from simulated_api import RefusalError
from simulated_cluster import CLUSTER, NAMESPACE, Cluster
from simulated_tls import mounted_secret

from tallystick.operator.core import kube
from tallystick.operator.security import authority
from tallystick.operator.security.authority import Phase

ENFORCING = {"tls": {"clients": "Enforcing"}}
NODES = tuple(f"{CLUSTER}-0-{member}" for member in range(3))
SECRETS = (*(f"{node}-tls" for node in NODES), f"{CLUSTER}-nameserver-tls")


@pytest.fixture
def world() -> Cluster:
    return Cluster(random.Random(7))


def stages(world: Cluster) -> set[str]:
    pods = [pod for pod in world.api.all("pods") if pod["metadata"]["labels"].get("app.kubernetes.io/component")]
    return {(pod["metadata"].get("annotations") or {}).get("tallystick.dev/tls-stage", "0") for pod in pods}


def data(world: Cluster, name: str) -> Any:
    body = world.api.get("secrets", name)
    assert body is not None, name
    return body["data"]


def rotated(world: Cluster) -> None:
    """Waits for the end of a rotation. AssertionError."""
    before = world.status["security"]["authority"]["sha256"]

    def done() -> bool:
        found = world.status["security"]["authority"]
        return bool(found["sha256"] != before and found["phase"] == "Steady")

    world.run_until(done)


def test_a_new_cluster_begins_with_what_its_spec_wants(world: Cluster) -> None:
    world.create(security=ENFORCING)
    world.settle()
    assert stages(world) == {"4"}
    assert world.condition("SecurityReady")["reason"] == "NoAccessControl"
    assert world.status["security"]["authority"]["phase"] == "Steady"
    trusted = data(world, f"{CLUSTER}-ca")["ca.crt"]
    assert {data(world, name)["ca.crt"] for name in SECRETS} == {trusted}
    assert len({data(world, name)["tls.crt"] for name in SECRETS}) == len(SECRETS)
    restarts = [each for each in world.api.writes if "evict" in each.lower()]
    assert restarts == []


def test_nothing_is_written_when_nothing_changes(world: Cluster) -> None:
    world.create(security=ENFORCING)
    world.settle()
    world.reconciler = None
    before = len(world.api.writes)
    for _ in range(5):
        world.one_pass()
        world.tick(10.0)
    assert world.api.writes[before:] == []


def test_a_running_cluster_goes_through_the_stages_and_back(world: Cluster) -> None:
    world.create()
    world.settle()
    seen: list[set[str]] = []

    def watch(wanted: str) -> bool:
        if seen[-1:] != [stages(world)]:
            seen.append(stages(world))
        return stages(world) == {wanted} and world.status["phase"] == "Ready"

    world.change({"security": ENFORCING})
    world.run_until(lambda: watch("4"), passes=900)
    assert {frozenset(each) for each in seen if len(each) == 1} == {frozenset(each) for each in "01234"}
    world.change({"security": None})
    world.run_until(lambda: watch("0"), passes=900)
    assert world.condition("SecurityReady")["reason"] == "Disabled"


def test_a_rotation_restarts_nothing_and_ends(world: Cluster) -> None:
    world.create(security=ENFORCING)
    world.settle()
    pods = {pod["metadata"]["uid"] for pod in world.api.all("pods")}
    old = data(world, f"{CLUSTER}-ca")["ca.crt"]
    world.change(annotations={"tallystick.dev/rotate": "now"})
    rotated(world)
    world.settle()
    assert {pod["metadata"]["uid"] for pod in world.api.all("pods")} == pods
    new = data(world, f"{CLUSTER}-ca")["ca.crt"]
    assert new != old and {data(world, name)["ca.crt"] for name in SECRETS} == {new}
    for _ in range(3):
        world.one_pass()
    assert data(world, f"{CLUSTER}-ca")["ca.crt"] == new, "one request asks for one rotation"


def test_a_rotation_waits_for_each_process(world: Cluster) -> None:
    world.create(security=ENFORCING)
    world.settle()
    world.tls.slow = {f"{NODES[1]}-0"}
    before = world.status["security"]["authority"]["sha256"]
    world.change(annotations={"tallystick.dev/rotate": "now"})
    for _ in range(60):
        world.one_pass()
        world.tick()
    told = world.status["security"]
    assert told["authority"] == {**told["authority"], "phase": "Trusting", "sha256": before}
    assert NODES[1] in told["waitsFor"]
    world.tls.slow = set()
    rotated(world)


@pytest.mark.parametrize("seed", range(6))
def test_rotations_come_through_ends_of_the_operator_and_of_pods(seed: int) -> None:
    dice = random.Random(seed)
    world = Cluster(random.Random(seed))
    world.create(security=ENFORCING)
    world.settle()
    for number in range(3):
        world.change(annotations={"tallystick.dev/rotate": str(number)})
        for _ in range(40):
            cut = dice.random() < 0.4
            world.one_pass(writes=dice.randrange(4) if cut else None)
            if dice.random() < 0.08:
                world.api.failing = dice.randrange(4)
            if dice.random() < 0.05:
                world.delete(kube.PODS, f"{dice.choice(NODES)}-0")
            if dice.random() < 0.05:
                world.delete(kube.SECRETS, dice.choice(SECRETS))
            world.tick()
        world.settle()
    world.change(annotations={"tallystick.dev/rotate": "last"})
    rotated(world)


def test_a_certificate_is_renewed_before_it_ends(world: Cluster) -> None:
    world.create(security=ENFORCING)
    world.settle()
    before = data(world, SECRETS[0])["tls.crt"]
    world.time += authority.CERTIFICATE_SECONDS * 0.7
    world.settle()
    assert data(world, SECRETS[0])["tls.crt"] != before


def test_an_authority_is_replaced_before_it_ends(world: Cluster) -> None:
    world.create(security=ENFORCING)
    world.settle()
    before = world.status["security"]["authority"]["sha256"]
    world.time += authority.AUTHORITY_SECONDS * 0.7
    rotated(world)
    assert world.status["security"]["authority"]["sha256"] != before


def user_secret(world: Cluster, content: dict[str, bytes]) -> None:
    encoded = {key: base64.b64encode(value).decode() for key, value in content.items()}
    if world.api.get("secrets", "shop-tls") is None:
        world.by_hand("POST", kube.SECRETS.path(NAMESPACE), {"metadata": {"name": "shop-tls"}, "data": encoded})
    else:
        world.by_hand("PATCH", kube.SECRETS.path(NAMESPACE, "shop-tls"), {"data": encoded})


def test_a_change_to_the_secret_of_a_user_and_back_goes_over_no_tls(world: Cluster) -> None:
    """Processes of one authority do not trust those of another one: see `simulated_tls.Files.judge`."""
    theirs = authority.first_authority("theirs", world.time, "")
    user_secret(world, authority.files(theirs, None, ["*.shop.svc"], world.time))
    world.create(security=ENFORCING)
    world.settle()
    for secret in ("shop-tls", None):
        world.change({"security": {"tls": {"clients": "Enforcing", "secretName": secret}}})
        world.run_until(lambda: stages(world) == {"0"}, passes=900)
        world.run_until(lambda: stages(world) == {"4"}, passes=900)
        mounted = {mounted_secret(pod) for pod in world.api.all("pods")} - {""}
        assert (mounted == {"shop-tls"}) is (secret is not None)


def test_a_renewed_secret_of_a_user_is_used_without_a_restart(world: Cluster) -> None:
    theirs = authority.first_authority("theirs", world.time, "")
    content = authority.files(theirs, None, ["*.shop.svc"], world.time)
    user_secret(world, content)
    world.create(security={"tls": {"secretName": "shop-tls"}})
    world.settle()
    assert world.status["security"].get("authority") is None
    pods = {pod["metadata"]["uid"] for pod in world.api.all("pods")}
    user_secret(world, authority.files(theirs, content, ["*.shop.svc", "other"], world.time))
    world.one_pass()
    assert "not in use yet" in world.status["security"]["waitsFor"]
    world.run_until(lambda: "waitsFor" not in world.status["security"])
    assert {pod["metadata"]["uid"] for pod in world.api.all("pods")} == pods


@pytest.mark.parametrize(("content", "reason"), [(None, "SecretMissing"), ({"tls.crt": b"x"}, "SecretInvalid")])
def test_a_secret_of_a_user_that_cannot_be_used_stops_no_pod(
    world: Cluster, content: dict[str, bytes] | None, reason: str
) -> None:
    if content is not None:
        user_secret(world, content)
    world.create()
    world.settle()
    pods = {pod["metadata"]["uid"] for pod in world.api.all("pods")}
    world.change({"security": {"tls": {"secretName": "shop-tls"}}})
    for _ in range(15):
        world.one_pass()
        world.tick()
    assert world.condition("SecurityReady")["reason"] == reason
    assert {pod["metadata"]["uid"] for pod in world.api.all("pods")} == pods


def test_a_secret_of_another_owner_is_neither_used_nor_changed(world: Cluster) -> None:
    foreign = {"metadata": {"name": f"{CLUSTER}-ca"}, "data": {"ca.crt": "eA=="}}
    world.by_hand("POST", kube.SECRETS.path(NAMESPACE), foreign)
    world.create(security=ENFORCING)
    for _ in range(8):
        world.one_pass()
        world.tick()
    assert world.condition("SecurityReady")["reason"] == "NameTaken"
    assert data(world, f"{CLUSTER}-ca") == {"ca.crt": "eA=="}
    world.delete(kube.SECRETS, f"{CLUSTER}-ca")
    world.settle()
    assert stages(world) == {"4"}


def test_a_lost_authority_is_not_replaced_in_silence(world: Cluster) -> None:
    """Another authority, which no process trusts, would cut all of them off."""
    world.create(security=ENFORCING)
    world.settle()
    before = {name: data(world, name) for name in SECRETS}
    world.delete(kube.SECRETS, f"{CLUSTER}-ca")
    for _ in range(10):
        world.one_pass()
        world.tick()
    assert world.condition("SecurityReady")["reason"] == "AuthorityMissing"
    assert {name: data(world, name) for name in SECRETS} == before


@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_without_permission_for_secrets_no_pod_is_touched(world: Cluster, method: str) -> None:
    world.create()
    world.settle()
    pods = {pod["metadata"]["uid"] for pod in world.api.all("pods")}
    answer = world.api._answer

    def refusing(asked: str, resource: kube.Resource, *rest: Any) -> Any:
        if asked == method and resource is kube.SECRETS:
            raise RefusalError(403, "Forbidden", "secrets is forbidden")
        return answer(asked, resource, *rest)

    world.api._answer = refusing  # type: ignore[assignment,method-assign]
    world.change({"security": ENFORCING})
    for _ in range(20):
        world.one_pass()
        world.tick()
    assert world.condition("SecurityReady")["reason"] == "SecretRefused"
    assert {pod["metadata"]["uid"] for pod in world.api.all("pods")} == pods
    world.api._answer = answer  # type: ignore[method-assign]
    world.run_until(lambda: stages(world) == {"4"}, passes=900)


def test_a_certificate_that_the_new_authority_issues_too_early_is_found(
    world: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted mistake: the phase ends before processes have taken the new files."""
    world.create(security=ENFORCING)
    world.settle()
    monkeypatch.setattr(authority, "waits_for", lambda *_: "")
    world.tls.slow = {f"{NODES[1]}-0"}
    world.change(annotations={"tallystick.dev/rotate": "now"})
    with pytest.raises(AssertionError, match="does not trust"):
        for _ in range(60):  # until kubelets have brought the new files to the others
            world.one_pass()
            world.tick()


def test_phases_have_the_names_of_the_schema() -> None:
    assert [str(each) for each in Phase] == ["Steady", "Trusting", "Issuing"]
