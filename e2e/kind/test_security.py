"""A cluster with access control and TLS: strangers are refused, and everything that can change changes under load."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from harness.brokers import API_VERSION, Brokers, now_s
from harness.lab import Lab
from harness.load import Load, loaded
from harness.pods import RESTRICTED, output_of, restricted_pod
from harness.shell import apply
from harness.waiting import NotYetError, wait_for

_SECURE = {"accessControl": {"enabled": True}, "tls": {"clients": "Enforcing"}}
_LOAD_PERMISSIONS = [
    {"topic": "load-*", "actions": ["Pub", "Sub", "Get"]},
    {"group": "*", "actions": ["Sub"]},
]
_KUBELET_S = 240
"""A kubelet brings a changed Secret into a pod within about a minute, and a rotation has two such steps."""


def _user(brokers: Brokers, name: str, **spec: Any) -> None:
    metadata = {"name": name, "namespace": brokers.namespace}
    wanted = {"clusterName": brokers.name, **spec}
    apply({"apiVersion": API_VERSION, "kind": "User", "metadata": metadata, "spec": wanted})


def _user_ready(brokers: Brokers, name: str) -> None:
    def look() -> None:
        user = brokers.api.get("users", brokers.namespace, name)
        status = user.get("status") or {}
        if status.get("phase") != "Ready" or status.get("observedGeneration") != user["metadata"]["generation"]:
            raise NotYetError(str(status))

    wait_for(f"the User {name} is Ready", look, _KUBELET_S)


def _secured(brokers: Brokers, timeout_s: float) -> None:
    def look() -> None:
        condition = brokers.condition("SecurityReady")
        if condition.get("status") != "True":
            raise NotYetError(f"{condition}; {brokers.status().get('security')}")
        brokers.look_whole()

    wait_for(f"{brokers.name} is secured", look, timeout_s)


def _secret(brokers: Brokers, name: str, key: str) -> str:
    body = brokers.api.get("secrets", brokers.namespace, name)
    return base64.b64decode(body["data"][key]).decode()


def _rotate_authority(brokers: Brokers) -> None:
    before, begin_s = brokers.status()["security"]["authority"]["sha256"], now_s()
    brokers.annotate(rotate=str(begin_s))
    phases: list[str] = []

    def look() -> None:
        security = brokers.status()["security"]
        authority = security["authority"]
        if phases[-1:] != [authority["phase"]]:
            phases.append(authority["phase"])
            print(f"{authority['phase']} after {now_s() - begin_s:.0f} s")
        if authority["sha256"] == before or authority["phase"] != "Steady" or security.get("waitsFor"):
            raise NotYetError(str(security))

    wait_for("the authority was rotated", look, 2 * _KUBELET_S)
    assert [each for each in phases if each != "Steady"] == ["Trusting", "Issuing"], phases


def _renew_certificate(brokers: Brokers, secret: str) -> None:
    before = _secret(brokers, secret, "tls.crt")
    brokers.api.delete("secrets", brokers.namespace, secret)

    def look() -> None:
        if _secret(brokers, secret, "tls.crt") == before:
            raise NotYetError("the Secret has the old certificate")

    wait_for(f"another certificate is in {secret}", look, 60)


def _rotate_password(brokers: Brokers, load: Load, user: str) -> None:
    """Of a user that the load does not use meanwhile; then the load signs as this user."""
    before = load.password_of(user)
    metadata = {"annotations": {"tallystick.dev/rotate": str(now_s())}}
    brokers.api.merge("users", brokers.namespace, user, {"metadata": metadata})

    def look() -> None:
        if load.password_of(user) == before:
            raise NotYetError("the pod has the old password")

    wait_for(f"the new password of {user} is in the pod of the load", look, _KUBELET_S)
    _user_ready(brokers, user)
    load.sign_as(user)


def _restart_all(brokers: Brokers) -> None:
    before = {name: pod["metadata"]["uid"] for name, pod in brokers.pods().items()}
    brokers.change({"config": {"fileReservedTime": "71"}})

    def look() -> None:
        pods = {name: pod["metadata"]["uid"] for name, pod in brokers.pods().items()}
        if set(pods.values()) & set(before.values()):
            raise NotYetError(f"step {brokers.status().get('step')}")
        brokers.look_whole()

    wait_for("all brokers were restarted", look, 400)


def _refused(lab: Lab, brokers: Brokers, name: str, program: str, expected: str) -> None:
    """Runs a program in a pod without credentials."""
    container = {
        "name": "stranger",
        "image": lab.images.node,
        "command": ["python3", "-c", program],
        "securityContext": RESTRICTED,
    }
    apply(restricted_pod(brokers.namespace, name, container))
    said = output_of(lab.api, brokers.namespace, name, 90)
    assert expected in said, said


_ASK = """
import asyncio, ssl
from tallystick.node.core.client import ClusterClient
from tallystick.node.remoting.codes import RequestCode

async def main():
    context = ssl._create_unverified_context() if {tls} else None
    async with ClusterClient("", tls=lambda: context) as client:
        try:
            await client.call("{address}", RequestCode.GET_BROKER_RUNTIME_INFO, {{}})
            print("served")
        except Exception as error:
            print(type(error).__name__, error)

asyncio.run(main())
"""


@pytest.fixture
def secure(lab: Lab, namespace: str) -> Brokers:
    brokers = Brokers(lab.api, namespace, "safe")
    brokers.apply({"security": _SECURE})
    for name in ("writer-a", "writer-b"):
        _user(brokers, name, permissions=_LOAD_PERMISSIONS)
    brokers.whole()
    _secured(brokers, 120)
    for name in ("writer-a", "writer-b"):
        _user_ready(brokers, name)
    return brokers


def test_authority_certificates_and_passwords_change_without_a_failed_send(secure: Brokers, lab: Lab) -> None:
    """The clients of the load trust the first authority only, from the begin to the end, and connect to restarted
    brokers with certificates of the second one."""
    users = {"writer-a": "writer-a-user", "writer-b": "writer-b-user"}
    with loaded(secure, lab.images.node, authorities="safe-ca", users=users) as load:
        steps = [
            _step("rotate the authority", lambda: _rotate_authority(secure)),
            _step("renew a certificate", lambda: _renew_certificate(secure, f"{secure.leader()}-tls")),
            _step("change the password of writer-b", lambda: _rotate_password(secure, load, "writer-b")),
            _step("change the password of writer-a", lambda: _rotate_password(secure, load, "writer-a")),
            _step("restart all brokers", lambda: _restart_all(secure)),
        ]
        _secured(secure, 120)
        load.finish()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    lab.goals.failed.add(load.failed())
    assert verdict.problems == []
    assert load.failed() == 0, (_failed_in(load, steps), load.history.reasons())
    print(f"{verdict.acknowledged} messages were acknowledged")

    address = secure.member_address(secure.leader())
    _refused(lab, secure, "unsigned", _ASK.format(tls=True, address=address), "No accessKey is configured")
    _refused(lab, secure, "plain", _ASK.format(tls=False, address=address), "Remoting")

    secure.api.delete("users", secure.namespace, "writer-b")

    def look() -> None:
        if secure.api.find("users", secure.namespace, "writer-b") is not None:
            raise NotYetError("it has its finalizer")

    wait_for("the User is gone", look, 60)
    assert "writer-b" not in _secret(secure, "safe-access", "plain_acl.yml")


def _step(what: str, work: Callable[[], None]) -> tuple[str, float, float]:
    """Returns what was done, and when it began and ended."""
    begin_s = now_s()
    work()
    print(f"{what}: {now_s() - begin_s:.0f} s")
    return what, begin_s, now_s()


def _failed_in(load: Load, steps: list[tuple[str, float, float]]) -> list[str]:
    """Returns during which steps sends of the probe failed, and how long after the begin of the step."""
    found = []
    for sent_s, end_s, _ in load.deliveries:
        if end_s is None:
            step = next((each for each in steps if each[1] <= sent_s <= each[2]), ("between steps", sent_s, sent_s))
            found.append(f"{step[0]} + {sent_s - step[1]:.1f} s")
    return found


def test_a_running_cluster_gets_security_without_a_failed_send(lab: Lab, namespace: str) -> None:
    """Clients sign before the brokers check it; TLS comes stage by stage."""
    brokers = Brokers(lab.api, namespace, "later")
    brokers.apply({})
    _user(brokers, "writer", permissions=_LOAD_PERMISSIONS)
    brokers.whole()
    with loaded(brokers, lab.images.node, users={"writer": "writer-user"}) as load:
        begin_s = now_s()
        brokers.change({"security": {"accessControl": {"enabled": True}, "tls": {"clients": "Permissive"}}})
        _secured(brokers, 1500)
        print(f"secured in {now_s() - begin_s:.0f} s")
        _user_ready(brokers, "writer")
        load.finish()
        verdict = load.verdict()
    assert verdict.problems == []
    assert load.failed() == 0, load.history.reasons()
