"""Everything that can happen to a cluster, from one seed: people who change their minds, machines that go, an
operator that is cut off between any two writes. `Judge` watches; in the end all has to come to rest as it is wanted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from simulated_cluster import CLUSTER, NAMESPACE, Cluster

from tallystick.operator.core import kube


class Storm:
    """One run. `log` lists its events, for the report of a failure."""

    def __init__(self, seed: int, replicas: int | None = None, groups: int = 1, favour: Sequence[str] = ()) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster(random.Random(seed + 1))
        self.log: list[str] = []
        self.replicas = replicas or self.random.choice((1, 3, 3, 3, 5))
        self.groups = groups
        self.favour = favour
        """Names of deeds that come up more often."""
        self.image = 1
        self.cluster.create(replicas=self.replicas, groups=groups, image="node:1", storage={"size": "10Gi"})

    def run(self, turns: int = 60) -> None:
        """AssertionError: the judge saw something, or it did not come to rest."""
        deeds = (
            *(self.nothing,) * 6,
            *(self.cut_off,) * 3,
            *(
                self.new_image,
                self.new_config,
                self.scale,
                self.crash,
                self.crash,
                self.lose_machine,
                self.machines_back,
            ),
            *(
                self.drop_requests,
                self.pause,
                self.give_up_node,
                self.delete_claim,
                self.cut_wire,
                self.grow,
                self.meddle,
            ),
        )
        deeds += tuple(getattr(self, name) for name in self.favour for _ in range(6))
        for _ in range(turns):
            deed = self.random.choice(deeds)
            deed()
            for _ in range(self.random.randint(1, 4)):
                self.cluster.one_pass()
                self.cluster.tick(self.random.choice((0.5, 2.0, 2.0, 10.0)))
        self.note("over")
        self.cluster.change(annotations={"tallystick.dev/paused": None})
        for process in self.cluster.processes.values():
            process.linked = process.heard = True
        self.cluster.settle(accept=("Ready", "Failed"))
        if self.cluster.status["phase"] == "Failed":  # a single copy that is to be given up: it is kept
            self.note("more copies")
            assert self.cluster.condition("UpdateBlocked")["reason"] == "LastCopy"
            self.cluster.change({"replicas": 3})
            self.cluster.settle()
        self.check()

    def check(self) -> None:
        """What is wanted, is."""
        spec, cluster = self.cluster.spec, self.cluster
        wanted = frozenset(range(spec["replicas"]))
        for number in range(spec["groups"]):
            group = cluster.groups[number]
            assert (group.voters, group.learners) == (wanted, frozenset()), (group, wanted)
            for member in wanted:
                pod = cluster.pod(number, member)
                assert pod is not None and pod["spec"]["containers"][0]["image"] == spec["image"]
        names = {body["metadata"]["name"] for body in cluster.api.all("brokernodes")}
        assert names == {f"{CLUSTER}-{group}-{member}" for group in range(spec["groups"]) for member in wanted}

    def note(self, text: str) -> None:
        self.log.append(f"{self.cluster.time:.0f} {text}")

    # -- what happens --------------------------------------------------------------------------------------------------

    def nothing(self) -> None:
        pass

    def cut_off(self) -> None:
        writes = self.random.randint(0, 6)
        self.note(f"the operator is cut off after {writes} writes")
        self.cluster.one_pass(writes)

    def new_image(self) -> None:
        self.image += 1
        self.note(f"image {self.image}")
        self.cluster.change({"image": f"node:{self.image}"})

    def new_config(self) -> None:
        hours = str(self.random.randint(24, 96))
        self.note(f"config {hours}")
        self.cluster.change({"config": {"fileReservedTime": hours}})

    def scale(self) -> None:
        self.replicas = self.random.choice((1, 3, 5))
        self.note(f"replicas {self.replicas}")
        self.cluster.change({"replicas": self.replicas})

    def grow(self) -> None:
        size = f"{self.random.randint(10, 40)}Gi"
        self.note(f"size {size}")
        self.cluster.change({"storage": {"size": size}})

    def crash(self) -> None:
        if self.cluster.processes:
            uid = self.random.choice(sorted(self.cluster.processes))
            process = self.cluster.processes.pop(uid)
            self.note(f"n{process.member} crashes")

    def lose_machine(self) -> None:
        name = self.random.choice(sorted(self.cluster.machines))
        self.note(f"{name} is gone")
        self.cluster.machines[name] = False
        if self.random.random() < 0.5:
            self.cluster.tick(300.0)
            for pod in self.cluster.api.all("pods"):
                claim = self.cluster.api.get("persistentvolumeclaims", f"data-{pod['metadata']['name'][:-2]}") or {}
                kept = "deletionTimestamp" in (claim.get("metadata") or {})  # else its disk is deleted
                if pod["spec"].get("nodeName") == name and "deletionTimestamp" not in pod["metadata"] and not kept:
                    self.cluster.delete(kube.PODS, pod["metadata"]["name"])

    def machines_back(self) -> None:
        self.note("all machines are back")
        self.cluster.machines = dict.fromkeys(self.cluster.machines, True)

    def drop_requests(self) -> None:
        self.cluster.api.failing = self.random.randint(1, 40)
        self.note(f"{self.cluster.api.failing} requests get no answer")

    def pause(self) -> None:
        value = self.random.choice(("true", None))
        self.note(f"paused {value}")
        self.cluster.change(annotations={"tallystick.dev/paused": value})

    def give_up_node(self) -> None:
        nodes = self.cluster.api.all("brokernodes")
        if nodes:
            name = self.random.choice(nodes)["metadata"]["name"]
            self.note(f"replace {name}")
            self.cluster.judge.may_lose.add(f"data-{name}")
            self.cluster.annotate_node(name, {"tallystick.dev/replace": "true"})

    def delete_claim(self) -> None:
        """By a user, without any check. A group of one would lose its messages."""
        claims = self.cluster.api.all("persistentvolumeclaims")
        for number, group in self.cluster.groups.items():
            sound = [each for each in self.cluster.alive(number).values() if each.disk.remembers]
            if len(group.voters) < 3 or len(sound) < len(group.voters) or self.replicas == 1:
                return
        if not claims or any("deletionTimestamp" in claim["metadata"] for claim in claims):
            return
        name = self.random.choice(claims)["metadata"]["name"]
        used = [
            pod["metadata"]["name"]
            for pod in self.cluster.api.all("pods")
            if f"{name}-0" == f"data-{pod['metadata']['name']}"
        ]
        if used:  # an unused claim is deleted at once
            self.note(f"{name} is deleted")
            self.cluster.judge.may_lose.add(name)
            self.cluster.delete(kube.CLAIMS, name)

    def cut_wire(self) -> None:
        for process in self.cluster.processes.values():
            process.linked, process.heard = self.random.random() < 0.8, self.random.random() < 0.8
        for what in ("linked", "heard"):
            cut = sorted(f"n{each.member}" for each in self.cluster.processes.values() if not getattr(each, what))
            self.note(f"not {what}: {cut}")

    def meddle(self) -> None:
        """A user deletes or changes an object of the operator."""
        plural = self.random.choice(
            ("services", "configmaps", "poddisruptionbudgets", "networkpolicies", "serviceaccounts")
        )
        bodies = self.cluster.api.all(plural)
        if not bodies:
            return
        body = self.random.choice(bodies)
        name = body["metadata"]["name"]
        if self.random.random() < 0.5:
            self.note(f"{plural}/{name} is deleted")
            self.cluster.api.remove((plural, NAMESPACE, name))
        else:
            self.note(f"{plural}/{name} is changed")
            body["metadata"]["labels"] = {"tallystick.dev/cluster": CLUSTER, **body["metadata"]["labels"], "mine": "x"}
            body["metadata"]["labels"].pop("app.kubernetes.io/name", None)


def run(seed: int, turns: int = 60, groups: int = 1, replicas: int | None = None, favour: Sequence[str] = ()) -> Storm:
    """A run that fails names its seed and tells what happened."""
    storm = Storm(seed, replicas, groups, favour)
    try:
        storm.run(turns)
    except AssertionError as error:
        story = "\n".join(storm.log)
        raise AssertionError(f"seed {seed}: {error}\n{story}") from error
    return storm
