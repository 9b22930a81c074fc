"""Images of the product: built by `make images`, named by what is in them, under two tags.

A second tag of the same content is another image to Kubernetes and to the operator: what an upgrade does to a cluster
depends on the name alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from harness.kind import Kind
from harness.places import ROOT, TAG
from harness.shell import run

_BUILD_S = 1200
_BUILT = "e2e"
_NAMES = ("tallystick-node", "tallystick-operator")
_JOBS = "tallystick-jobs"


@dataclass(frozen=True, slots=True)
class Images:
    tag: str

    @property
    def next_tag(self) -> str:
        """What is upgraded to."""
        return f"{self.tag}-next"

    @property
    def node(self) -> str:
        return f"tallystick-node:{self.tag}"

    @property
    def next_node(self) -> str:
        return f"tallystick-node:{self.next_tag}"

    @property
    def jobs(self) -> str:
        return f"{_JOBS}:{self.tag}"

    def load_jobs(self, kind: Kind) -> None:
        """The image of StoreJobs, built and on the workers: it is large, and few tests need it. ToolError."""
        if not TAG:
            run("make", "images", f"VERSION={_BUILT}", "TARGETS=jobs", folder=ROOT, timeout_s=_BUILD_S)
        run("docker", "tag", f"{_JOBS}:{TAG or _BUILT}", self.jobs)
        kind.load([self.jobs], kind.workers())


def build(kind: Kind) -> Images:
    """Those of brokers and operator, on all nodes. ToolError."""
    if not TAG:
        run("make", "images", f"VERSION={_BUILT}", "TARGETS=node operator", folder=ROOT, timeout_s=_BUILD_S)
    source = TAG or _BUILT
    identities = [run("docker", "image", "inspect", "--format", "{{.Id}}", f"{name}:{source}") for name in _NAMES]
    images = Images(TAG or f"e2e-{hashlib.sha256(''.join(identities).encode()).hexdigest()[:10]}")
    wanted = [f"{name}:{tag}" for name in _NAMES for tag in (images.tag, images.next_tag)]
    for name in _NAMES:
        for tag in (images.tag, images.next_tag):
            run("docker", "tag", f"{name}:{source}", f"{name}:{tag}")
    kind.load(wanted)
    return images
