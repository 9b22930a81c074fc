"""A User resource as a value, and the user of access control that it declares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import ROTATE

FINALIZER = "tallystick.dev/user"
ADOPT = "tallystick.dev/adopt"
RESERVED = "tallystick-superuser"
"""Name of the user with which brokers sign, and which the operator creates."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.@-]{0,63}")
_KINDS = ("topic", "group", "cluster")


class SpecError(ValueError):
    """A field is invalid."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One resource. `error`: why its spec is invalid; empty: it is valid."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    deleting: bool
    finalizers: tuple[str, ...]
    adopt: bool
    rotation: str
    """Value of the annotation `tallystick.dev/rotate`: another one asks for another password."""
    cluster: str
    user: str
    """Its name on the brokers."""
    secret: str
    """Secret with its password."""
    generated: bool
    """Whether the operator creates the Secret."""
    fields: Json
    """What brokers store, without name, password and owner."""
    error: str
    body: Json

    @property
    def marked(self) -> bool:
        """Whether it has the finalizer."""
        return FINALIZER in self.finalizers

    def stored(self, password: str) -> Json:
        """Returns the user as brokers and name servers store it."""
        return {"username": self.user, "password": password, "owner": self.uid, **self.fields}


def cluster_of(body: Mapping[str, Any]) -> str:
    """Returns the name of the cluster of a resource, in the same namespace."""
    return str((body.get("spec") or {}).get("clusterName") or "")


def declaration(body: Json) -> Declaration:
    """Parses a resource. It never fails: see `error`."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    user, error, fields = str(spec.get("userName") or metadata["name"]), "", {}
    secret = str(spec.get("secretName") or "")
    try:
        if not _NAME.fullmatch(user):
            raise SpecError(f"{user!r} is not a valid user name: letters, digits, _ . @ - (set spec.userName)")
        if user == RESERVED:
            raise SpecError(f"{user} is reserved for the operator")
        fields = _fields(spec)
    except SpecError as problem:
        error = str(problem)
    return Declaration(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=int(metadata.get("generation") or 0),
        created=str(metadata.get("creationTimestamp") or ""),
        deleting=bool(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        adopt=annotations.get(ADOPT) == "true",
        rotation=str(annotations.get(ROTATE) or ""),
        cluster=cluster_of(body),
        user=user,
        secret=secret or f"{metadata['name']}-user",
        generated=not secret,
        fields=fields,
        error=error,
        body=body,
    )


def _fields(spec: Mapping[str, Any]) -> Json:
    entries = [_entry(each) for each in spec.get("permissions") or ()]
    found: Json = {
        "userType": "Super" if spec.get("superUser") else "Normal",
        "userStatus": "enable" if spec.get("enabled", True) else "disable",
    }
    quota = {name: limit for name, limit in (spec.get("quota") or {}).items() if limit is not None}
    policies = [{"policyType": "Custom", "entries": entries}] if entries else []
    return found | ({"quota": quota} if quota else {}) | ({"policies": policies} if policies else {})


def _entry(permission: Mapping[str, Any]) -> Json:
    """Returns an entry of a policy of ACL 2.0."""
    named = [kind for kind in _KINDS if permission.get(kind)]
    if len(named) != 1:
        raise SpecError("spec.permissions: each one names a topic, a group or the cluster, and only one of them")
    actions = list(permission.get("actions") or ())
    if not actions:
        raise SpecError("spec.permissions: each one has actions")
    entry: Json = {
        "resource": f"{named[0].capitalize()}:{permission[named[0]]}",
        "actions": actions,
        "decision": permission.get("decision") or "Allow",
    }
    sources = list(permission.get("sourceIps") or ())
    return entry | ({"sourceIps": sources} if sources else {})
