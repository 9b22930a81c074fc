"""What all tests of a run share."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.api import Api
from harness.goals import Goals
from harness.images import Images
from harness.kind import Kind
from harness.recoveries import Recovery
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
    recoveries: list[Recovery] = field(default_factory=list)
    """Rows of the table at the end of the run."""

    def namespace(self, name: str) -> None:
        """Under the restricted profile, with the binding that the chart's notes ask for in each namespace."""
        kubectl("create", "namespace", name)
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted", "e2e=true")
        account = f"--serviceaccount={NAMESPACE}:{NAME}"
        kubectl("create", "rolebinding", "tallystick-secrets", "-n", name, "--clusterrole=tallystick-secrets", account)
