"""Evidence of a failed test: objects, events, descriptions, logs and counters of brokers, as files in a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.release import NAMESPACE
from harness.shell import ToolError, kubectl

HTTP_PORT = 8080
_KINDS = "brokercluster,brokernode,topic,consumergroup,pod,statefulset,service,pvc,pdb,lease,job"
_DESCRIBED = "brokercluster,brokernode,pod,pvc"


def collect(folder: Path, namespaces: list[str]) -> None:
    """Never fails: what cannot be had leaves a file that says so."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _keep(folder / "nodes.txt", "get", "nodes", "-o", "wide")
    for namespace in dict.fromkeys([*namespaces, NAMESPACE]):
        place = folder / namespace
        place.mkdir()
        where = ("--namespace", namespace)
        _keep(place / "objects.txt", "get", _KINDS, "-o", "wide", *where)
        _keep(place / "objects.yaml", "get", "brokercluster,brokernode,topic,pod,statefulset", "-o", "yaml", *where)
        _keep(place / "events.txt", "get", "events", "--sort-by=.metadata.creationTimestamp", *where)
        _keep(place / "described.txt", "describe", _DESCRIBED, *where)
        for pod in _said("get", "pods", "-o", "name", *where).split():
            name = pod.removeprefix("pod/")
            _keep(place / f"{name}.log", "logs", name, "--all-containers", "--timestamps", *where)
            previous = _said("logs", name, "--all-containers", "--timestamps", "--previous", *where)
            if previous:
                (place / f"{name}.previous.log").write_text(previous)
        brokers = _said("get", "pods", "-l", "app.kubernetes.io/component=broker", "-o", "name", *where)
        for name in (pod.removeprefix("pod/") for pod in brokers.split()):
            asked = f"/api/v1/namespaces/{namespace}/pods/{name}:{HTTP_PORT}/proxy/metrics"
            _keep(place / f"{name}.metrics.txt", "get", "--raw", asked)


def _keep(file: Path, *words: str) -> None:
    try:
        file.write_text(kubectl(*words, timeout_s=60))
    except ToolError as error:
        file.write_text(str(error))


def _said(*words: str) -> str:
    try:
        return kubectl(*words, timeout_s=60)
    except ToolError:
        return ""
