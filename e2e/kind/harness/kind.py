"""The kind cluster of a run: created, or reused if it exists, with a separate kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from harness.places import CLUSTER, KEEP, KIND, KUBECONFIG, NODE_IMAGE
from harness.shell import ToolError, run

_UP_S = 600


@dataclass(frozen=True, slots=True)
class Kind:
    """A cluster by its name. All calls raise ToolError."""

    name: str
    reused: bool = False

    @property
    def control_plane(self) -> str:
        return f"{self.name}-control-plane"

    def machines(self) -> list[str]:
        """Containers that are nodes."""
        return sorted(run("kind", "get", "nodes", "--name", self.name).split())

    def workers(self) -> list[str]:
        return [name for name in self.machines() if name != self.control_plane]

    def on(self, machine: str, *command: str, timeout_s: float = 60) -> str:
        """A command on a node, as its root."""
        return run("docker", "exec", machine, *command, timeout_s=timeout_s)

    def load(self, images: Sequence[str], machines: Sequence[str] = ()) -> None:
        """Images of the Docker engine to nodes that do not have them; to all nodes if none is named."""
        wanting = [name for name in machines or self.machines() if not self._has(name, images)]
        if wanting:
            command = ["kind", "load", "docker-image", "--name", self.name, "--nodes", ",".join(wanting), *images]
            run(*command, timeout_s=_UP_S)

    def _has(self, machine: str, images: Sequence[str]) -> bool:
        there = self.on(machine, "ctr", "--namespace", "k8s.io", "images", "list", "--quiet").split()
        return all(any(name.endswith(f"/{image}") for name in there) for image in images)


@contextmanager
def kind_cluster() -> Iterator[Kind]:
    """It goes afterwards, unless it was there before or is to be kept. ToolError."""
    KUBECONFIG.parent.mkdir(parents=True, exist_ok=True)
    os.environ["KUBECONFIG"] = str(KUBECONFIG)  # of this process alone: kubectl's own configuration is left as it is
    there = CLUSTER in run("kind", "get", "clusters").split()
    if there:
        run("kind", "export", "kubeconfig", "--name", CLUSTER)
    else:
        command = ["kind", "create", "cluster", "--name", CLUSTER, "--config", str(KIND / "kind.yaml")]
        try:
            run(*command, "--wait", "300s", *(["--image", NODE_IMAGE] if NODE_IMAGE else []), timeout_s=_UP_S)
        except ToolError:
            _delete()
            raise
    try:
        yield Kind(CLUSTER, there)
    finally:
        if not (there or KEEP):
            _delete()


def _delete() -> None:
    run("kind", "delete", "cluster", "--name", CLUSTER, timeout_s=180)
