"""Claims: ownership that is recorded before a topic is created, in one ConfigMap for all declarations of a cluster.

`status.ownedGroups` records ownership, but it is written after the brokers. A crash in between would leave a topic
without a known owner. So the claims of a pass are written first, to the ConfigMap `orders-topic-claims`, by UID of the
resource and broker group: one write for a whole pass, because one for each resource was half of the cost of a thousand
Topics. A claim is needed until the status contains it; the next write then omits it. Claims of deleted resources have
no effect, because UIDs are unique.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import orjson

from tallystick.operator.core import kube
from tallystick.operator.core.manifests import owned_by
from tallystick.operator.topics.kinds import Kind, S
from tallystick.operator.topics.spec import Declaration

Claims = dict[str, frozenset[str]]
"""Names of broker groups by UID."""

_KEY = "claims.json"


def claims_name(kind: Kind[Any], cluster: str) -> str:
    """Returns the name of the ConfigMap; the name of a cluster has at most 40 characters."""
    return f"{cluster}-{kind.kind.lower()}-claims"


def parse_claims(value: Mapping[str, Any] | None) -> Claims:
    """Parses the ConfigMap. Invalid content claims nothing; a status may then report AlreadyExists."""
    try:
        found = orjson.loads((value or {}).get("data", {}).get(_KEY, "{}"))
        return {str(uid): frozenset(map(str, groups)) for uid, groups in found.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def claims_manifest(kind: Kind[Any], cluster: Mapping[str, Any], claims: Claims) -> dict[str, Any]:
    """Returns the ConfigMap. The cluster owns it. It has no labels that the operator watches."""
    metadata = cluster["metadata"]
    owner = owned_by(kube.CLUSTERS, metadata["name"], metadata["uid"])
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "namespace": metadata["namespace"],
            "name": claims_name(kind, metadata["name"]),
            "ownerReferences": [owner],
        },
        "data": {_KEY: orjson.dumps({uid: sorted(claims[uid]) for uid in sorted(claims)}).decode()},
    }


def needed(claims: Claims, declarations: Collection[Declaration[S]]) -> Claims:
    """Returns the claims that the status of their declaration does not contain yet."""
    open_ = {each.uid: claims.get(each.uid, frozenset()) - each.owned for each in declarations}
    return {uid: groups for uid, groups in open_.items() if groups}


def with_claims(declaration: Declaration[S], claims: Claims) -> Declaration[S]:
    """Returns the declaration with its claims added to its owned groups."""
    return replace(declaration, owned=declaration.owned | claims.get(declaration.uid, frozenset()))
