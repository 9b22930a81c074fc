"""Pieces that all manifests are made of: the object itself, its owner, restricted pods, probes, hashes."""

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
    """An object as it is applied. `content`: what stands beside its metadata."""
    metadata: Json = {"name": name, "namespace": namespace, "labels": dict(labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}


def owned_by(resource: Resource, name: str, uid: str) -> Json:
    """The owner's reference: what is deleted takes along what it owns, with or without an operator."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def digest(value: Any) -> str:
    """Sixteen hexadecimal digits that stand for a value of JSON."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def pod_security() -> Json:
    """Of a pod: what the "restricted" level of pod security asks for."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",  # a volume of a terabyte is not walked at every start
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Json:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def apart(selector: Mapping[str, str]) -> Json:
    """Affinity: rather not on a machine that has one of these pods already."""
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
    """Variables in the order given, which matters where one names another."""
    return [{"name": name, "value": value} for name, value in values.items()]


def port(name: str, number: int, target: str | None = None) -> Json:
    """Of a Service."""
    return {"name": name, "port": number, "targetPort": target or name, "protocol": "TCP"}
