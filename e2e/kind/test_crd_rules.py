"""What the API server accepts and refuses of our kinds: every case of tests/crds/cases.yaml."""

from __future__ import annotations

from harness.lab import Lab
from harness.shell import kubectl
from replay import problems

NAMESPACE = "e2e-crd-rules"


def test_every_case(installed: Lab) -> None:
    """Uses a namespace that no operator watches."""
    installed.release.scale(0)
    kubectl("create", "namespace", NAMESPACE)
    try:
        assert list(problems(NAMESPACE)) == []
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        installed.release.scale(1)
