"""The chart, installed as a release; and the operator that runs by it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from harness.api import Api, Json
from harness.images import Images
from harness.places import CHART, WORK
from harness.shell import kubectl, run
from harness.waiting import NotYetError, wait_for

NAME = "tallystick"
NAMESPACE = "tallystick-system"
SELECTOR = f"app.kubernetes.io/name=tallystick-operator,app.kubernetes.io/instance={NAME}"
LEASE = NAME

_HELM_S = 300
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@dataclass(slots=True)
class Release:
    """The release of a run. It watches all namespaces. The operator runs on the control plane node, so that tests that
    stop a worker do not stop the operator; other tests do."""

    api: Api
    images: Images
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """Most memory that each operator process was seen with."""

    def values(self, tag: str) -> Json:
        return {
            "image": {"operator": {"tag": tag}, "node": {"tag": tag}, "jobs": {"tag": self.images.tag}},
            "clusterWide": True,
            "secretNamespaces": [NAMESPACE],
            "nodeSelector": {_CONTROL_PLANE: ""},
            "tolerations": [{"key": _CONTROL_PLANE, "operator": "Exists"}],
        }

    def install(self, values: Mapping[str, Any] | None = None, *, tag: str = "", chart: Path = CHART) -> None:
        """`helm upgrade --install`, and it waits until the operator is ready. ToolError."""
        file = WORK / "values.json"
        file.write_text(json.dumps({**self.values(tag or self.images.tag), **(values or {})}))
        command = ["helm", "upgrade", "--install", NAME, str(chart), "--namespace", NAMESPACE, "--create-namespace"]
        run(*command, "--values", str(file), "--wait", "--timeout", f"{_HELM_S}s", timeout_s=_HELM_S + 60)
        kubectl("label", "namespace", NAMESPACE, "--overwrite", "pod-security.kubernetes.io/enforce=restricted")

    def revision(self) -> int:
        """The number of the newest revision. ToolError."""
        history = json.loads(run("helm", "history", NAME, "--namespace", NAMESPACE, "--output", "json"))
        return int(history[-1]["revision"])

    def roll_back(self, revision: int) -> None:
        """`helm rollback` to an earlier revision, and it waits until the operator is ready. ToolError."""
        command = ["helm", "rollback", NAME, str(revision), "--namespace", NAMESPACE, "--wait"]
        run(*command, "--timeout", f"{_HELM_S}s", timeout_s=_HELM_S + 60)

    def uninstall(self) -> None:
        """ToolError."""
        run("helm", "uninstall", NAME, "--namespace", NAMESPACE, "--wait", "--timeout", "120s", timeout_s=180)

    def pods(self) -> list[Json]:
        """The operator's, without those that are on their way out."""
        found = self.api.list("pods", NAMESPACE, SELECTOR)
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def scale(self, replicas: int) -> None:
        """So many operators; waits until no other pod is left. WaitError."""
        self.api.merge("deployments", NAMESPACE, NAME, {"spec": {"replicas": replicas}})

        def look() -> None:
            pods = self.api.list("pods", NAMESPACE, SELECTOR)
            ready = sum(is_ready(pod) for pod in pods)
            if len(pods) != replicas or ready != replicas:
                raise NotYetError(f"{len(pods)} pods, {ready} of them ready")

        wait_for(f"{replicas} operators are ready", look, 120)

    def holder(self) -> str:
        """The operator's pod that holds the lease. NotYetError: no pod does."""
        lease = self.api.find("leases", NAMESPACE, LEASE) or {}
        holder = str(lease.get("spec", {}).get("holderIdentity") or "")
        if not holder:
            raise NotYetError(f"no operator holds the lease {LEASE}")
        return holder

    def note_memory(self) -> None:
        """Remembers the peak of each operator process that runs now."""
        for pod in self.pods():
            if is_ready(pod):
                name = pod["metadata"]["name"]
                said = kubectl("exec", name, "--namespace", NAMESPACE, "--", "cat", "/proc/1/status")
                peak = _PEAK.search(said)
                assert peak is not None, said
                self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), int(peak[1]) * 1024)


NEXT_FIELD = "e2eNext"
"""A field of BrokerCluster.spec that only the next release of the chart knows."""
_FIELD: Json = {"type": "string", "maxLength": 16, "description": "A field of the next release."}


def package_next(images: Images) -> Path:
    """The chart as its next release: another version, the other tag as its appVersion, one field more in a definition.

    ToolError.
    """
    folder = WORK / "next"
    shutil.rmtree(folder, ignore_errors=True)
    chart = folder / CHART.name
    shutil.copytree(CHART, chart)
    path = chart / "files" / "crds" / "brokercluster.yaml"
    definition = yaml.safe_load(path.read_text())
    (known,) = definition["spec"]["versions"]
    known["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][NEXT_FIELD] = _FIELD
    path.write_text(yaml.safe_dump(definition))
    version = ["--version", "9.9.9-next", "--app-version", images.next_tag]
    run("helm", "package", str(chart), "--destination", str(folder), *version)
    return next(folder.glob("*.tgz"))


def is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
