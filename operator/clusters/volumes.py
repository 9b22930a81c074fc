"""What the claim of a member asks for, and how it differs from the spec. Pure.

A volume can grow in place, if its storage class permits it; it cannot shrink, or move to another class. With
`storage.changePolicy: ReplaceMembers` a member whose claim differs gets a new, empty volume, and replicates its data
from the other members.
"""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.operator.clusters.observed import Claim, Observed
from tallystick.operator.clusters.spec import Cluster, Storage
from tallystick.operator.core.quantity import larger, same


def size_of(storage: Storage, claim: Claim | None) -> str:
    """Returns the size that the manifest of a claim asks for. Claims never shrink."""
    if claim is None or not claim.requested:
        return storage.size
    return claim.requested if storage.replaces else larger(storage.size, claim.requested)


def class_of(storage: Storage, claim: Claim | None) -> str | None:
    """Returns the class that the manifest of a claim asks for: an existing one keeps its class, which is immutable."""
    return storage.storage_class if claim is None else claim.storage_class


def difference(storage: Storage, claim: Claim) -> str:
    """Returns how a claim differs from the spec in a way that only a new volume ends; empty: it does not."""
    told = []
    if storage.storage_class is not None and claim.storage_class != storage.storage_class:
        told.append(f"storage class {claim.storage_class or 'not set'}, wanted {storage.storage_class}")
    if storage.replaces and claim.requested and not same(claim.requested, storage.size):
        told.append(f"size {claim.requested}, wanted {storage.size}")
    return "; ".join(told)


def differences(cluster: Cluster, observed: Observed) -> Mapping[tuple[int, int], str]:
    """Returns the differences of wanted members by group and member. A claim that is being deleted counts no more."""
    told = {
        (member.group, member.number): difference(cluster.spec.storage, member.claim)
        for member in observed.members
        if member.claim is not None and not member.claim.deleting and member.number < cluster.spec.replicas
    }
    return {each: text for each, text in told.items() if text}
