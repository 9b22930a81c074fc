"""Whether an object must be written. Pure. A pass over a cluster that matches its spec writes nothing.

The API server changes objects: it sets defaults and writes `1024Mi` as `1Gi`, and admission webhooks add fields. So an
object is compared in the fields of its manifest, and the result of the last apply counts as equal. A field that was
removed from the manifest changes the digest of the manifest, which is an annotation of the object.

Some parts belong to the operator as a whole (`WHOLE`): a field that another client adds there changes what runs or who
is reached. An apply does not remove such a field. A merge patch does (`pruning`): it removes all fields that the
manifest does not have, and the server sets its defaults again. A patch that changes nothing is not a write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tallystick.operator.core.kube import Json
from tallystick.operator.core.manifests import digest
from tallystick.operator.core.names import APPLIED
from tallystick.operator.core.quantity import same

KEYS = ("name", "mountPath", "containerPort", "port", "uid", "type", "key", "topologyKey")
"""Fields that identify the elements of a list: the first one that all elements have."""

WHOLE: Mapping[str, tuple[str, ...]] = {
    "StatefulSet": ("spec", "template"),
    "Service": ("spec", "selector"),
    "PodDisruptionBudget": ("spec",),
    "NetworkPolicy": ("spec",),
    "ConfigMap": ("data",),
}
"""By kind, the path of the part in which no other client may add fields."""
RESTARTED = "kubectl.kubernetes.io/restartedAt"
"""The annotation of `kubectl rollout restart` is kept: it asks for a restart and changes nothing else."""


def stamped(manifest: Json) -> Json:
    """Returns the manifest with its digest as an annotation."""
    metadata = manifest["metadata"]
    annotations = dict(metadata.get("annotations") or {}) | {APPLIED: digest(manifest)}
    return manifest | {"metadata": metadata | {"annotations": annotations}}


def differs(live: Json | None, wanted: Json, settled: str | None) -> bool:
    """Whether `wanted` (stamped) must be applied.

    `settled`: `mark` of the result of the last apply; None: this process has not applied it yet.
    """
    if live is None:
        return True
    found = (live.get("metadata") or {}).get("annotations") or {}
    if found.get(APPLIED) != wanted["metadata"]["annotations"][APPLIED]:
        return True
    return mark(live, wanted) != settled if settled is not None else not covers(live, wanted)


def mark(live: Json, wanted: Json) -> str:
    """Returns a digest of an object, limited to the fields of a manifest and to `WHOLE`."""
    return digest([_projection(live, wanted), _without_restart(_part(live, WHOLE.get(live.get("kind", ""), ())))])


def pruning(live: Json, wanted: Json) -> Json | None:
    """Returns the merge patch that removes all fields of `WHOLE` that a manifest lacks; None: it has no such part."""
    path = WHOLE.get(wanted["kind"])
    if path is None:
        return None
    patch = _pruned(_part(live, path), _part(wanted, path))
    for key in reversed(path):
        patch = {key: patch}
    assert isinstance(patch, dict)
    return patch


def covers(live: Any, wanted: Any) -> bool:
    """Whether `live` has all fields of `wanted`; quantities may be written differently."""
    if live is None:
        return wanted in (None, 0, False, "", [], {})
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(covers(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return False
        key = _key(wanted)
        if key is None:
            return len(live) == len(wanted) and all(map(covers, live, wanted))
        have = {item.get(key): item for item in live if isinstance(item, dict)}
        return all(covers(have.get(item[key]), item) for item in wanted)
    if wanted == live:
        return True
    return isinstance(wanted, str | int | float) and same(str(wanted), str(live))


def _projection(live: Any, wanted: Any) -> Any:
    if isinstance(wanted, dict) and isinstance(live, dict):
        return {
            key: _projection(live.get(key), value) if isinstance(value, dict | list) else live.get(key)
            for key, value in wanted.items()
        }
    if isinstance(wanted, list) and isinstance(live, list):
        key = _key(wanted)
        if key is not None:
            have = {item.get(key): item for item in live if isinstance(item, dict)}
            return [_projection(have.get(item[key]), item) for item in wanted]
    return live


def _key(items: list[Any]) -> str | None:
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    for key in KEYS:
        values = [item.get(key) for item in items]
        if None not in values and len({str(value) for value in values}) == len(values):
            return key
    return None


def _part(body: Json, path: tuple[str, ...]) -> Any:
    """Returns the part of an object at a path; None: it has none, or the path is empty."""
    found: Any = body if path else None
    for key in path:
        found = (found or {}).get(key)
    return found


def _pruned(live: Any, wanted: Any) -> Any:
    """Returns `wanted` as a merge patch for `live`. Lists are replaced as a whole."""
    if not (isinstance(live, dict) and isinstance(wanted, dict)):
        return wanted
    if RESTARTED in (live.get("annotations") or {}):  # a manifest may have no annotations
        wanted = {"annotations": {}} | wanted
    patch: Json = {key: _pruned(live.get(key), value) for key, value in wanted.items()}
    return patch | {key: None for key in live if key not in wanted and key != RESTARTED}


def _without_restart(value: Any) -> Any:
    return dict(_kept(value)) if isinstance(value, dict) else value


def _kept(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if key == "metadata" and isinstance(inner, dict):  # only the metadata of a pod template has this annotation
            notes = {name: text for name, text in (inner.get("annotations") or {}).items() if name != RESTARTED}
            yield key, inner | {"annotations": notes}
        else:
            yield key, inner
