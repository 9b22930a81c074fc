"""Objects of other owners that have names of a cluster: what they look like, and that nothing happens to them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from simulated_api import Json, Key, claims_of
from simulated_cluster import CLUSTER, NAMESPACE, Cluster


def names_of_a_cluster(members: int = 5) -> Iterator[tuple[str, str]]:
    """Every name that the operator uses for one group, by kind."""
    for kind, tails in {
        "configmaps": ("config",),
        "serviceaccounts": ("node",),
        "services": ("nameserver", "nameserver-headless", "nameserver-external"),
        "statefulsets": ("nameserver",),
        "poddisruptionbudgets": ("0", "nameserver"),
        "networkpolicies": ("broker", "nameserver"),
        "pods": ("nameserver-0", "nameserver-1"),
    }.items():
        yield from ((kind, f"{CLUSTER}-{tail}") for tail in tails)
    for member in range(members):
        node = f"{CLUSTER}-0-{member}"
        yield from ((kind, node) for kind in ("brokernodes", "statefulsets", "services"))
        yield from (("services", f"{node}-external"), ("pods", f"{node}-0"), ("persistentvolumeclaims", f"data-{node}"))


NAMES = list(names_of_a_cluster())


class Foreign:
    """Objects of another owner, as they were made."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.made: dict[Key, Json] = {}

    def put(self, plural: str, name: str, **metadata: Any) -> None:
        """Makes an object, unless one of this name exists."""
        key, api = (plural, NAMESPACE, name), self.world.api
        if key in api.objects or NAMESPACE in api.terminating:
            return
        content: dict[str, Json] = {
            "configmaps": {"data": {"app.toml": "mine"}},
            "services": {"spec": {"selector": {"app": "mine"}, "ports": [{"port": 80}]}},
            "brokernodes": {"spec": {"clusterName": CLUSTER, "group": 0, "member": 0}},
            "pods": {"spec": {"containers": [{"name": "mine", "image": "mine"}]}, "status": {}},
            "statefulsets": {"spec": {"replicas": 0, "template": {"metadata": {}, "spec": {"containers": []}}}},
            "backups": {"spec": {}, "status": {"phase": "Completed"}},
            "persistentvolumeclaims": {"spec": {"resources": {"requests": {"storage": "1Gi"}}}},
        }
        body = {"metadata": {"name": name} | metadata, **content.get(plural, {"spec": {}})}
        api._store(key, body)
        self.made[key] = copy.deepcopy(api.objects[key])

    def check(self) -> None:
        for key, body in self.made.items():
            live = self.world.api.objects.get(key)
            assert live is not None, f"{key} of another owner was deleted"
            kept = {name: value for name, value in live.items() if name != "status"}  # controllers write it
            then = {name: value for name, value in body.items() if name != "status"}
            assert kept == then, f"{key} of another owner was changed"

    def remove(self, *keys: Key) -> None:
        """Removes these objects, or all. Kubernetes keeps a claim while a pod uses it, so these pods go as well."""
        for key in keys or tuple(self.made):
            if key[0] == "persistentvolumeclaims":
                self.world.api._delete(key, {})
                for pod in self.world.api.all("pods"):
                    if key[2] in claims_of(pod):
                        self.world.api._delete(("pods", NAMESPACE, pod["metadata"]["name"]), {})
            else:
                self.world.api.remove(key)
            del self.made[key]

    def ours(self, plural: str) -> list[Json]:
        """The objects of a kind that are not foreign, by name."""
        return [
            body
            for body in self.world.api.all(plural)
            if (plural, NAMESPACE, body["metadata"]["name"]) not in self.made
        ]


OF_OTHERS: dict[str, Json] = {
    "no owner": {},
    "our labels": {
        "labels": {"tallystick.dev/cluster": CLUSTER, "app.kubernetes.io/managed-by": "tallystick-operator"},
    },
    "a deleted cluster of the same name": {
        "labels": {
            "tallystick.dev/cluster": CLUSTER,
            "app.kubernetes.io/managed-by": "tallystick-operator",
            "tallystick.dev/group": "0",
            "tallystick.dev/member": "1",
        },
        "ownerReferences": [{"kind": "BrokerCluster", "name": CLUSTER, "uid": "uid-of-old", "controller": True}],
    },
    "an application that the cluster owns too": {
        "ownerReferences": [
            {"kind": "Deployment", "name": "mine", "uid": "uid-of-mine", "controller": True},
            {"kind": "BrokerCluster", "name": CLUSTER, "uid": "uid-1"},
        ],
    },
}


def uncollected(world: Cluster) -> Cluster:
    """Garbage collection is late: what belongs to others stays for as long as the test runs."""
    collect = world.api.collect

    def late() -> None:
        kept = {key: body for key, body in world.api.objects.items() if "uid-of-" in str(body["metadata"])}
        for key in kept:
            del world.api.objects[key]
        collect()
        world.api.objects |= kept

    world.api.collect = late  # type: ignore[method-assign]
    return world
