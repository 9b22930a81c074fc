"""The volume of a member is full: the others serve, the status tells it, and with space the member comes back.

Volumes of this lab are folders of their Kubernetes node, without a limit. While the member is fenced, a file system of
a fixed size takes the place of its folder.
"""

from __future__ import annotations

import contextlib

from harness.brokers import Brokers
from harness.lab import Lab
from harness.load import loaded
from harness.shell import ToolError
from harness.waiting import NotYetError, wait_for

_MIB = 1024
_STOPPED_S = 180
_TOLD_S = 120
_ON_SMALL_DISK = """
set -eu
cp -a "$1" "$1.kept"
mount -t tmpfs -o "size=$2m,mode=0777" tmpfs "$1"
cp -a "$1.kept/." "$1/"
rm -rf "$1.kept"
"""
_FILL = 'dd if=/dev/zero of="$1/filler" bs=1M 2>/dev/null; dd if=/dev/zero of="$1/rest" bs=4k 2>/dev/null; df -k "$1"'


def _volume(lab: Lab, brokers: Brokers, node: str) -> str:
    """The folder of its volume, on its Kubernetes node."""
    claim = lab.api.get("persistentvolumeclaims", brokers.namespace, f"data-{node}")
    volume = lab.api.call("GET", f"api/v1/persistentvolumes/{claim['spec']['volumeName']}")["spec"]
    return str((volume.get("hostPath") or volume["local"])["path"])


def _healthy(brokers: Brokers, node: str) -> tuple[str, str]:
    conditions = (brokers.nodes()[node].get("status") or {}).get("conditions") or ()
    found: dict[str, str] = next((each for each in conditions if each["type"] == "DiskHealthy"), {})
    return str(found.get("status")), str(found.get("message"))


def test_a_full_volume_of_a_follower(lab: Lab, namespace: str) -> None:
    brokers = Brokers(lab.api, namespace, "filled")
    brokers.apply({})
    brokers.whole()
    node = next(name for name in sorted(brokers.nodes()) if name != brokers.leader())
    machine, folder = brokers.machine(node), _volume(lab, brokers, node)

    def fenced() -> None:
        if node in brokers.pods():
            raise NotYetError("its pod exists")

    def told() -> None:
        status, message = _healthy(brokers, node)
        if status != "False" or brokers.leader() == node:
            raise NotYetError(f"DiskHealthy {status}, {message}")

    brokers.annotate(fenced=node)
    wait_for(f"{node} is stopped", fenced, _STOPPED_S)
    try:
        lab.kind.on(machine, "sh", "-c", _ON_SMALL_DISK, "sh", folder, str(_MIB))
        brokers.annotate(fenced=None)
        brokers.whole()
        with loaded(brokers, lab.images.node) as load:
            print(lab.kind.on(machine, "sh", "-c", _FILL, "sh", folder))
            wait_for("the status says that the disk is full", told, _TOLD_S)
            lab.kind.on(machine, "sh", "-c", 'rm -f "$1/filler" "$1/rest"', "sh", folder)
            brokers.whole()
            load.finish()
            verdict = load.verdict()
    finally:
        with contextlib.suppress(ToolError):  # it was not mounted
            lab.kind.on(machine, "umount", "--lazy", folder)
    lab.goals.lost.add(verdict.lost)
    lab.goals.failed.add(load.failed())
    assert verdict.problems == []
    assert load.failed() == 0, load.history.reasons()
