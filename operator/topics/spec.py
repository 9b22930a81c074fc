"""A Topic or ConsumerGroup resource as a value: its spec, and the ownership recorded in its status.

`status.ownedGroups` names the broker groups on which this resource created or adopted the object. The status is deleted
with the resource and not copied with it, so applying a copy transfers no ownership. `claims` keeps it over a crash.
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
    """What happens to the object on the brokers when the resource is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"
    DELETE_IF_EMPTY = "DeleteIfEmpty"


@dataclass(frozen=True, slots=True)
class Declaration(Generic[S]):
    """One resource. `wanted`: None if the spec is invalid; `error` then contains the reason."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    created: str
    deleting: bool
    finalizers: tuple[str, ...]
    marked: bool
    """Whether it has the finalizer of the operator."""
    adopt: bool
    cluster: str
    subject: str
    """The name of the object on the brokers."""
    wanted: S | None
    error: str
    policy: Policy
    groups: tuple[int, ...] | None
    """Numbers of the declared broker groups; None: all."""
    owned: frozenset[str]
    status: Mapping[str, Any]

    @property
    def ready_before(self) -> bool:
        """Whether it was Ready for any generation."""
        return self._ready() is not None

    @property
    def settled(self) -> bool:
        """Whether it was Ready for the current generation."""
        ready = self._ready()
        return ready is not None and self.status.get("observedGeneration") == self.generation

    def _ready(self) -> Mapping[str, Any] | None:
        ready = self.condition("Ready")
        return ready if ready is not None and ready.get("status") == "True" else None

    def condition(self, type_: str) -> Mapping[str, Any] | None:
        return next((each for each in self.status.get("conditions") or () if each.get("type") == type_), None)


def cluster_of(value: Mapping[str, Any]) -> str:
    """Returns the name of the cluster of a resource, in the same namespace."""
    return str((value.get("spec") or {}).get("clusterName") or "")


def declaration(kind: Kind[S], value: Mapping[str, Any]) -> Declaration[S]:
    """Parses a resource. It never fails: `error` contains the reason why a spec is invalid."""
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
        policy=Policy(policy) if policy in tuple(Policy) else Policy.RETAIN,  # an unknown policy deletes nothing
        groups=tuple(sorted(set(groups))) if groups else None,
        owned=frozenset(status.get("ownedGroups") or ()),
        status=status,
    )
