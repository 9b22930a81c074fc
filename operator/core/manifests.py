"""Parts of manifests: metadata, owner references, security contexts, probes, digests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from tallystick.operator.core.kube import Json, Resource

USER = 10001


def manifest(
    resource: Resource,
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    content: Json,
    *,
    owner: Json | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """Returns an object to apply. `content`: its fields besides metadata."""
    metadata: Json = {"name": name, "namespace": namespace, "labels": dict(labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}


def owned_by(resource: Resource, name: str, uid: str) -> Json:
    """Returns an owner reference. Garbage collection deletes the object with its owner, without the operator."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def digest(value: Any) -> str:
    """Returns a digest of a JSON value: sixteen hexadecimal digits."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def pod_security() -> Json:
    """Returns a pod security context for the restricted Pod Security Standard."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",  # avoids changing the owner of all files at every start
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Json:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def apart(selector: Mapping[str, str]) -> Json:
    """Returns an affinity: preferably on different Kubernetes nodes."""
    term = {"labelSelector": {"matchLabels": dict(selector)}, "topologyKey": "kubernetes.io/hostname"}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def probe(path: str, port: str, *, period: int, failures: int, timeout: int = 3) -> Json:
    return {
        "httpGet": {"path": path, "port": port, "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def environment(values: Mapping[str, str]) -> list[Json]:
    """Returns environment variables in the given order, because a variable can reference earlier ones."""
    return [{"name": name, "value": value} for name, value in values.items()]


def port(name: str, number: int, target: str | None = None) -> Json:
    """Returns a port of a Service."""
    return {"name": name, "port": number, "targetPort": target or name, "protocol": "TCP"}
