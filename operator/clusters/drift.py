"""Whether an object must be written. Pure. A pass over a cluster that matches its spec writes nothing.

The API server changes objects: it sets defaults and writes `1024Mi` as `1Gi`. So an object is compared only in the
fields of its manifest, and the result of the last apply counts as equal. A field that was removed from the manifest
changes the digest of the manifest, which is an annotation of the object.
"""

from __future__ import annotations

from typing import Any

from tallystick.operator.core.kube import Json
from tallystick.operator.core.manifests import digest
from tallystick.operator.core.names import APPLIED
from tallystick.operator.core.quantity import same

KEYS = ("name", "mountPath", "containerPort", "port", "uid", "type", "key", "topologyKey")
"""Fields that identify the elements of a list: the first one that all elements have."""


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
    """Returns a digest of an object, limited to the fields of a manifest."""
    return digest(_projection(live, wanted))


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
