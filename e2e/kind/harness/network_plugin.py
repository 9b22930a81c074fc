"""kube-router on the nodes, which enforces NetworkPolicies where the network plugin of the kind cluster does not.

`make network-plugin` builds it from its Go module. It only adds rules for pods that a policy selects; routes and
Services stay those of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness.kind import Kind
from harness.places import ROOT
from harness.shell import run

_BUILT = ROOT / "build" / "network-plugin"
_PROGRAM = "/usr/local/bin/kube-router"
_CONFIG = "/etc/kubernetes/kube-router.conf"
_LOG = "/var/log/kube-router.log"
_PARTS = ("--run-firewall=true", "--run-router=false", "--run-service-proxy=false", "--enable-cni=false")


@contextmanager
def network_plugin(kind: Kind) -> Iterator[None]:
    """Skips a test without the program. ToolError: it does not start on a node."""
    if not (_BUILT / "kube-router").exists():
        pytest.skip("the network plugin of kind does not enforce NetworkPolicies: run `make network-plugin`")
    config = kind.on(kind.control_plane, "cat", "/etc/kubernetes/admin.conf")
    for machine in kind.machines():
        _install(kind, machine, config)
    try:
        yield
    finally:
        for machine in kind.machines():
            kind.on(machine, "pkill", "--exact", "kube-router")
            _clean(kind, machine)


def _clean(kind: Kind, machine: str) -> None:
    """Removes its rules. Afterwards it ends with an error where the kernel has no IPVS, so its words count."""
    command = f"{_PROGRAM} --cleanup-config 2>&1 | grep --quiet 'Successfully cleaned the NetworkPolicyController'"
    kind.on(machine, "sh", "-c", command, timeout_s=120)


def _install(kind: Kind, machine: str, config: str) -> None:
    kind.on(machine, "mkdir", "-p", "/network-plugin")
    run("docker", "cp", f"{_BUILT}/.", f"{machine}:/network-plugin")
    kind.on(machine, "sh", "-c", f"dpkg --install /network-plugin/*.deb && cp /network-plugin/kube-router {_PROGRAM}")
    run("docker", "exec", "--interactive", machine, "sh", "-c", f"cat >{_CONFIG}", given=config)
    words = [*_PARTS, f"--kubeconfig={_CONFIG}", f"--hostname-override={machine}", "--health-port=0"]
    run("docker", "exec", "--detach", machine, "sh", "-c", f"exec {_PROGRAM} {' '.join(words)} >{_LOG} 2>&1")
