"""A Topic or ConsumerGroup resource as a value: what it asks for, and what its status says that we did for it.

What counts as ours: `status.ownedGroups` names the broker groups on which this very resource made the topic, or took it
over. Status does not survive the resource, nor is it copied with it, so it cannot come along with a resource that
somebody applies again; that it is not missing after a crash is what `claims` is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic

from tallystick.operator.topics.kinds import Kind, S
from tallystick.operator.topics.settings import SpecError

ADOPT = "tallystick.dev/adopt"


class Policy(StrEnum):
    """What becomes of the thing on the brokers when its resource is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"
    DELETE_IF_EMPTY = "DeleteIfEmpty"


@dataclass(frozen=True, slots=True)
class Declaration(Generic[S]):
    """One resource. `wanted` is None if it says what cannot be: then `error` says what."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    created: str
    deleting: bool
    finalizers: tuple[str, ...]
    marked: bool
    """Our finalizer is among them: Kubernetes keeps the resource until we take it off."""
    adopt: bool
    cluster: str
    subject: str
    """Its name on the brokers."""
    wanted: S | None
    error: str
    policy: Policy
    groups: tuple[int, ...] | None
    """Numbers of the broker groups it is for; None: all."""
    owned: frozenset[str]
    status: Mapping[str, Any]

    @property
    def ready_before(self) -> bool:
        """It has been as declared on all of its groups (whatever its generation was)."""
        return self._ready() is not None

    @property
    def settled(self) -> bool:
        """It was as declared on all of its groups, and nothing has been declared since."""
        ready = self._ready()
        return ready is not None and self.status.get("observedGeneration") == self.generation

    def _ready(self) -> Mapping[str, Any] | None:
        ready = self.condition("Ready")
        return ready if ready is not None and ready.get("status") == "True" else None

    def condition(self, type_: str) -> Mapping[str, Any] | None:
        return next((each for each in self.status.get("conditions") or () if each.get("type") == type_), None)


def cluster_of(value: Mapping[str, Any]) -> str:
    """Name of the cluster that a resource is for; it is in the same namespace."""
    return str((value.get("spec") or {}).get("clusterName") or "")


def declaration(kind: Kind[S], value: Mapping[str, Any]) -> Declaration[S]:
    """From the object as the API server gives it. Never fails: what its author did wrong is in `error`."""
    metadata, spec, status = value["metadata"], value.get("spec") or {}, value.get("status") or {}
    subject = str(spec.get(kind.name_field) or metadata["name"])
    wanted, error = None, kind.name_problem(subject)
    if not error:
        try:
            wanted = kind.from_spec(subject, spec)
        except SpecError as problem:
            error = str(problem)
    policy = spec.get("deletionPolicy", "Retain")
    groups = spec.get("groups")
    return Declaration(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=int(metadata.get("generation") or 0),
        created=metadata.get("creationTimestamp") or "",
        deleting=bool(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        marked=kind.finalizer in (metadata.get("finalizers") or ()),
        adopt=(metadata.get("annotations") or {}).get(ADOPT) == "true",
        cluster=cluster_of(value),
        subject=subject,
        wanted=wanted,
        error=error,
        policy=Policy(policy) if policy in tuple(Policy) else Policy.RETAIN,  # what is not understood deletes nothing
        groups=tuple(sorted(set(groups))) if groups else None,
        owned=frozenset(status.get("ownedGroups") or ()),
        status=status,
    )
