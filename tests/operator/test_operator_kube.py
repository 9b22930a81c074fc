"""The way to the API server: paths, kinds of errors, pages, what a server-side apply is sent as."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tallystick.operator.core import kube
from tallystick.operator.core.kube import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    Kube,
    KubeError,
    NotFoundError,
    UnavailableError,
)


class Recorder:
    """Answers in order, and what was asked."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, dict[str, str], Any, str]] = []

    def __call__(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str
    ) -> tuple[int, bytes]:
        self.asked.append((method, path, dict(query), body, content_type))
        status, answer = self.answers.pop(0)
        return status, answer if isinstance(answer, bytes) else json.dumps(answer).encode()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFoundError),
        (409, ConflictError),
        (410, ConflictError),
        (401, ForbiddenError),
        (403, ForbiddenError),
        (400, InvalidError),
        (422, InvalidError),
        (429, UnavailableError),
        (500, UnavailableError),
        (503, UnavailableError),
    ],
)
async def test_errors_by_what_a_caller_does_about_them(status: int, kind: type[KubeError]) -> None:
    api = Kube(Recorder((status, {"reason": "Because", "message": "no"})))
    with pytest.raises(KubeError) as caught:
        await api.get(kube.PODS, "shop", "orders-0-0-0")
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.reason) == (status, "Because")
    assert str(caught.value) == "GET /api/v1/namespaces/shop/pods/orders-0-0-0: no"


async def test_an_unexpected_answer_is_reported_in_part() -> None:
    api = Kube(Recorder((502, b"<html>" + b"x" * 1000)))
    with pytest.raises(UnavailableError) as caught:
        await api.get(kube.PODS, "shop", "p")
    assert len(str(caught.value)) < 300


async def test_a_missing_object_is_absent() -> None:
    assert await Kube(Recorder((404, {}))).find(kube.TOPICS, "shop", "t") is None


async def test_a_long_list_comes_in_pages() -> None:
    recorder = Recorder(
        (200, {"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "next"}}),
        (200, {"items": [{"metadata": {"name": "b"}}], "metadata": {}}),
    )
    found = await Kube(recorder).list(kube.TOPICS, None, "a=b")
    assert [(each["kind"], each["metadata"]["name"]) for each in found] == [("Topic", "a"), ("Topic", "b")]
    assert [asked[1] for asked in recorder.asked] == ["/apis/tallystick.dev/v1beta1/topics"] * 2
    assert recorder.asked[0][2] == {"limit": str(kube.PAGE), "labelSelector": "a=b"}
    assert recorder.asked[1][2]["continue"] == "next"


async def test_an_apply_is_forced_and_in_our_name() -> None:
    recorder = Recorder((200, {}), (200, {"metadata": {"resourceVersion": "8"}}), (200, {}))
    metadata = {"namespace": "shop", "name": "orders-0-0"}
    body = {"kind": "StatefulSet", "apiVersion": "apps/v1", "metadata": metadata}
    await Kube(recorder).apply(body, None)
    method, path, query, sent, content_type = recorder.asked[0]
    assert (method, path) == ("PATCH", "/apis/apps/v1/namespaces/shop/statefulsets/orders-0-0")
    assert query == {"fieldManager": "tallystick-operator", "force": "true"}
    assert content_type == "application/apply-patch+yaml"
    assert sent == {**body, "metadata": {**metadata, "resourceVersion": kube.NO_VERSION}}
    live = {"metadata": {"namespace": "shop", "name": "orders", "uid": "u", "resourceVersion": "7"}}
    await Kube(recorder).apply_status(kube.CLUSTERS, live, {"phase": "Ready"})
    assert recorder.asked[1][1].endswith("/brokerclusters/orders/status")
    assert recorder.asked[1][3]["metadata"] == {
        "namespace": "shop",
        "name": "orders",
        "uid": "u",
        "resourceVersion": "7",
    }
    assert live["metadata"]["resourceVersion"] == "8"
    await Kube(recorder).apply(body, live)
    assert recorder.asked[2][3]["metadata"] == metadata | {"uid": "u", "resourceVersion": "8"}


def test_a_rejection_keeps_the_words_of_the_server() -> None:
    for status, message, kind in (
        (403, "exceeded quota: pods, requested: pods=1, used: pods=3, limited: pods=3", kube.ForbiddenError),
        (403, 'services is forbidden: User "operator" cannot create resource "services"', kube.ForbiddenError),
        (500, "failed to create typed patch object: .spec.nonsense: field not declared in schema", kube.InvalidError),
        (500, 'Internal error occurred: failed calling webhook "policy.example": refused', kube.InvalidError),
        (500, "etcdserver: request timed out", kube.UnavailableError),
        (400, 'admission webhook "policy.example" denied the request: no label', kube.InvalidError),
    ):
        body = json.dumps({"message": message}).encode()
        error = kube.error_of(status, body, "PATCH /api/v1/x")
        assert type(error) is kind and error.said == message and str(error) == f"PATCH /api/v1/x: {message}"


async def test_a_deletion_is_of_that_very_object() -> None:
    recorder = Recorder((200, {}), (201, {}))
    await Kube(recorder).delete(kube.PODS, "shop", "p", uid="7", grace_seconds=0)
    assert recorder.asked[0][3]["preconditions"] == {"uid": "7"}
    assert recorder.asked[0][3]["gracePeriodSeconds"] == 0
    await Kube(recorder).evict("shop", "p", uid="7")
    assert recorder.asked[1][1] == "/api/v1/namespaces/shop/pods/p/eviction"
    assert recorder.asked[1][3]["deleteOptions"] == {"preconditions": {"uid": "7"}}


@pytest.mark.parametrize(
    ("answer", "exists"),
    [
        ((201, {}), False),
        ((409, {"reason": "AlreadyExists"}), True),
        ((409, {"reason": "Conflict"}), None),
        ((403, {"message": "exceeded quota: secrets"}), None),
        ((503, {}), None),
    ],
)
async def test_whether_a_secret_exists_is_only_tried(answer: tuple[int, Any], exists: bool | None) -> None:
    """It creates nothing, and has no content that a log of the API server could keep."""
    recorder = Recorder(answer)
    assert await Kube(recorder).secret_exists("shop", "s3") is exists
    ((method, path, query, body, _),) = recorder.asked
    assert (method, path, query) == ("POST", "/api/v1/namespaces/shop/secrets", {"dryRun": "All"})
    assert body == {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3", "namespace": "shop"}}


def test_names_are_not_paths() -> None:
    assert kube.PODS.path("shop", "../x") == "/api/v1/namespaces/shop/pods/..%2Fx"


@pytest.mark.parametrize(
    ("status", "message", "told"),
    [
        (201, "", ""),
        (403, "violates PodSecurity", "violates PodSecurity"),
        (422, "spec: Invalid value", "spec: Invalid value"),
        (403, "exceeded quota: team", ""),
        (400, "the webhook does not support dry run", ""),
        (401, "Unauthorized", ""),
        (409, "already exists", ""),
        (500, "failed calling webhook", ""),
        (503, "no answer", ""),
    ],
)
async def test_a_trial_tells_only_refusals_that_the_object_itself_would_meet(
    status: int, message: str, told: str
) -> None:
    recorder = Recorder((status, {"message": message}))
    assert await Kube(recorder).refusal(kube.PODS, "shop", {"kind": "Pod"}) == told
    assert recorder.asked[0][:3] == ("POST", "/api/v1/namespaces/shop/pods", {"dryRun": "All"})
