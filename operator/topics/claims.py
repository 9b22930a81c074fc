"""What is about to be ours, noted before it is made: one object of the API for many declarations.

`status.ownedGroups` says what is ours, but it is written with the verdict, after the brokers. So that a crash in
between leaves nothing behind that nobody knows, the claims of a pass stand in a ConfigMap first: `orders-topic-claims`,
by the uid of the resource and the broker groups. One write for all of a pass, where one for each resource was half of
what a thousand Topics cost. A claim is needed until the status has it; then it is left out of the next write. One whose
resource is gone means nothing: a uid comes once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import orjson

from tallystick.operator.core import kube
from tallystick.operator.topics.kinds import Kind, S
from tallystick.operator.topics.spec import Declaration

Claims = dict[str, frozenset[str]]
"""By uid: names of broker groups."""

_KEY = "claims.json"


def claims_name(kind: Kind[Any], cluster: str) -> str:
    """Of the ConfigMap; a cluster's name has at most 40 characters."""
    return f"{cluster}-{kind.kind.lower()}-claims"


def parse_claims(value: Mapping[str, Any] | None) -> Claims:
    """From the ConfigMap. What is not understood there claims nothing: then a status may say AlreadyExists."""
    try:
        found = orjson.loads((value or {}).get("data", {}).get(_KEY, "{}"))
        return {str(uid): frozenset(map(str, groups)) for uid, groups in found.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def claims_manifest(kind: Kind[Any], cluster: Mapping[str, Any], claims: Claims) -> dict[str, Any]:
    """The ConfigMap. It goes with its cluster; it has none of the labels that the operator watches."""
    metadata = cluster["metadata"]
    owner = {"apiVersion": kube.CLUSTERS.api_version, "kind": "BrokerCluster"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "namespace": metadata["namespace"],
            "name": claims_name(kind, metadata["name"]),
            "ownerReferences": [owner | {"name": metadata["name"], "uid": metadata["uid"]}],
        },
        "data": {_KEY: orjson.dumps({uid: sorted(claims[uid]) for uid in sorted(claims)}).decode()},
    }


def needed(claims: Claims, declarations: Collection[Declaration[S]]) -> Claims:
    """Those that some declaration's status does not have yet."""
    open_ = {each.uid: claims.get(each.uid, frozenset()) - each.owned for each in declarations}
    return {uid: groups for uid, groups in open_.items() if groups}


def with_claims(declaration: Declaration[S], claims: Claims) -> Declaration[S]:
    """What it has claimed is its own."""
    return replace(declaration, owned=declaration.owned | claims.get(declaration.uid, frozenset()))
