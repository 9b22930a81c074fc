"""What all tests of a run share."""

from __future__ import annotations

from dataclasses import dataclass

from harness.api import Api
from harness.goals import Goals
from harness.images import Images
from harness.kind import Kind
from harness.release import NAME, NAMESPACE, Release
from harness.shell import kubectl

SHOP = "shop"
ORDERS = "orders"
NAME_SERVER_PORT = 30976


@dataclass(frozen=True, slots=True)
class Lab:
    """What all tests have."""

    kind: Kind
    api: Api
    images: Images
    release: Release
    goals: Goals

    def namespace(self, name: str) -> None:
        """Under the restricted profile, with the binding that the chart's notes ask for in each namespace."""
        kubectl("create", "namespace", name)
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted", "e2e=true")
        account = f"--serviceaccount={NAMESPACE}:{NAME}"
        kubectl("create", "rolebinding", "tallystick-secrets", "-n", name, "--clusterrole=tallystick-secrets", account)
