"""Everything that can happen to a cluster, from one seed: people who change their minds, machines that go, an
operator that is cut off between any two writes. `Judge` watches; in the end all has to come to rest as it is wanted.

With `hostile`, also: objects of others that have names of the cluster, at any moment; refusals of any write, with every
status that an API server uses; answers that are lost; an operator that ends at any request. Nothing of others changes.

    PYTHONPATH=tests/oracles python tests/oracles/operator_storm.py FIRST SEEDS      runs hostile storms
"""

from __future__ import annotations

import copy
import logging
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from backup_storm import NAMES as BACKUP_NAMES
from backup_storm import Backups
from foreign_objects import NAMES, OF_OTHERS, Foreign, uncollected
from schedule_storm import Schedules
from simulated_api import RefusalError
from simulated_cluster import CLUSTER, NAMESPACE, Cluster, OldMaster

from tallystick.operator.clusters.writing import REFUSED_SECONDS
from tallystick.operator.core import kube


class Storm:
    """One run. `log` lists its events, for the report of a failure."""

    def __init__(
        self,
        seed: int,
        replicas: int | None = None,
        groups: int = 1,
        favour: Sequence[str] = (),
        hostile: bool = False,
        backups: bool = False,
        recovers: bool = False,
        schedules: bool = False,
        adopts: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.cluster = uncollected(Cluster(random.Random(seed + 1)))
        self.foreign = Foreign(self.cluster)
        self.hostile = hostile
        self.refused: tuple[float, str, str, int] | None = None
        """Writes that are refused now: with what chance, of which kind and method (empty: any), with which status."""
        self.appears = 0.0
        """With what chance an object of others appears between a read of the operator and its write."""
        self.log: list[str] = []
        self.replicas = replicas or self.random.choice((1, 3, 3, 3, 5))
        self.groups = groups
        self.favour = favour
        """Names of deeds that come up more often."""
        self.image = 1
        self.hook, self.cluster.api.hook = self.cluster.api.hook, self.write
        spec: dict[str, Any] = {"bootstrap": self.stored()} if recovers else {}
        if adopts:
            spec["adoptFrom"] = self.masters()
        self.cluster.create(replicas=self.replicas, groups=groups, image="node:1", storage={"size": "10Gi"}, **spec)
        self.backups = Backups(self.cluster, self.foreign, self.random) if backups or schedules else None
        self.schedules: Schedules | None = None
        if schedules and self.backups is not None:
            self.schedules = Schedules(self.cluster, self.foreign, self.backups, self.random)

    def stored(self) -> dict[str, Any]:
        """A backup for each group; the `spec.bootstrap` that starts from them."""
        for name in ("s3", "key"):
            self.cluster.by_hand("POST", kube.SECRETS.path(NAMESPACE), {"metadata": {"name": name}})
        for group in range(self.groups):
            self.cluster.backups[f"s3://safe/{CLUSTER}/{CLUSTER}-{group}/latest"] = 20
        source = {"s3": {"bucket": "safe", "credentialsSecret": "s3"}}
        return {"recovery": {"source": source, "encryption": {"keySecret": {"name": "key"}}}}

    def masters(self) -> dict[str, Any]:
        """A RocketMQ master for each group; the `spec.adoptFrom` that takes their places."""
        for group in range(self.groups):
            self.cluster.old[f"broker-{group}"] = OldMaster(f"10.0.0.{group}:10911")
        return {"nameServers": ["old-ns:9876"], "switch": "Automatic", "pauseSeconds": 5}

    def run(self, turns: int = 60) -> None:
        """AssertionError: the judge saw something, or it did not come to rest."""
        deeds: tuple[Callable[[], None], ...] = (
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
                self.fence,
                self.hibernate,
            ),
        )
        if self.hostile:
            deeds += (*(self.foreign_object,) * 4, self.foreign_goes, self.foreign_races, *(self.refuse,) * 2)
            deeds += (self.accept, self.accept, *(self.die,) * 4, self.lose_answers, self.listeners, self.policies)
        if self.backups is not None:
            deeds += (*(self.back_up,) * 4, *(self.delete_backup,) * 2, self.backups_cut_off, self.foreign_job)
        if self.schedules is not None:
            deeds += (*(self.change_schedule,) * 4, *(self.schedule_cut_off,) * 4, self.delete_schedule)
            deeds += (*(self.delete_scheduled,) * 2, *(self.foreign_scheduled,) * 2, *(self.minutes,) * 6)
        if self.cluster.old:
            deeds += (self.old_cluster,) * 6
        deeds += tuple(getattr(self, name) for name in self.favour for _ in range(6))
        for _ in range(turns):
            deed = self.random.choice(deeds)
            deed()
            for _ in range(self.random.randint(1, 4)):
                self.cluster.one_pass()
                self.cluster.tick(self.random.choice((0.5, 2.0, 2.0, 10.0)))
                if self.backups is not None:
                    self.backups.one_pass()
                    self.backups.tick()
                if self.schedules is not None:
                    self.schedules.one_pass()
                    self.schedules.check()
                self.foreign.check()
        self.note("over")
        if self.hostile:
            self.accept()
            self.appears, self.cluster.api.losing = 0.0, 0
            self.cluster.one_pass()
            self.foreign.check()
            self.foreign.remove()  # also those of Jobs
            self.cluster.tick(REFUSED_SECONDS)  # what was refused is tried again only then
        self.wake()
        if self.cluster.spec.get("storage", {}).get("changePolicy") and self.replicas == 1:
            self.note("more copies, because the only one is not replaced")
            self.replicas = 3
            self.cluster.change({"replicas": 3})
        if self.cluster.old:
            self.old_cluster_is_sound()
        for process in self.cluster.processes.values():
            process.linked = process.heard = True
        self.cluster.settle(accept=("Ready", "Failed"))
        if self.cluster.status["phase"] == "Failed":  # a single copy that is to be given up: it is kept
            self.note("more copies")
            assert self.cluster.condition("UpdateBlocked")["reason"] == "LastCopy"
            self.cluster.change({"replicas": 3})
            self.cluster.settle()
        self.check()
        if self.backups is not None and self.schedules is None:
            self.backups.settle()
            self.check()
        if self.schedules is not None:
            assert self.backups is not None
            self.backups.sound = True
            self.schedules.settle()
            self.backups.settle()
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
        if (storage := spec.get("storage") or {}).get("changePolicy"):
            for name in (f"data-{CLUSTER}-{group}-{member}" for group in range(spec["groups"]) for member in wanted):
                claim = cluster.api.get("persistentvolumeclaims", name)
                assert claim is not None and claim["spec"]["storageClassName"] == storage["storageClassName"]
                assert claim["spec"]["resources"]["requests"]["storage"] == storage["size"]
        names = {body["metadata"]["name"] for body in cluster.api.all("brokernodes")}
        assert names == {f"{CLUSTER}-{group}-{member}" for group in range(spec["groups"]) for member in wanted}
        if "bootstrap" in spec:
            assert cluster.condition("Recovered")["status"] == "True", cluster.condition("Recovered")
            assert all(cluster.groups[number].acknowledged >= 20 for number in range(spec["groups"]))
        if "adoptFrom" in spec:
            assert cluster.condition("Adopted")["status"] == "True", cluster.condition("Adopted")
            assert sorted(cluster.switches) == sorted(cluster.old), cluster.switches
            assert all(cluster.groups[number].name == f"broker-{number}" for number in range(spec["groups"]))
        told = [each["reason"] for each in cluster.status["conditions"]]
        assert not {"NameTaken", "Refused", "PassFailed"} & set(told), told

    def note(self, text: str) -> None:
        self.log.append(f"{self.cluster.time:.0f} {text}")

    # -- what happens --------------------------------------------------------------------------------------------------

    def nothing(self) -> None:
        pass

    def old_cluster(self) -> None:
        """Something happens to a RocketMQ master, its name servers, or the next promotion."""
        cluster = self.cluster
        name = self.random.choice(sorted(cluster.old))
        master = cluster.old[name]
        match self.random.randint(0, 4):
            case 0:
                master.is_up = not master.is_up
                self.note(f"{name} is up: {master.is_up}")
            case 1:
                master.problem = self.random.choice(("", "disk", "silent", "diverged"))
                self.note(f"the copy of {name}: {master.problem or 'sound'}")
            case 2:
                cluster.old_names_answer = not cluster.old_names_answer
                self.note(f"the old name servers answer: {cluster.old_names_answer}")
            case 3:
                cluster.promotions = self.random.choices(("", "refused", "fenced", "silent", "differs"), k=3)
                self.note(f"promotions: {cluster.promotions}")
            case 4:
                switch = self.random.choice(("Manual", "Automatic"))
                self.note(f"switch {switch}")
                cluster.change({"adoptFrom": {"switch": switch}})

    def old_cluster_is_sound(self) -> None:
        """A user permits the switch, also again."""
        self.cluster.old_names_answer, self.cluster.promotions = True, []
        for master in self.cluster.old.values():
            master.is_up, master.problem = True, ""
        self.cluster.change({"adoptFrom": {"switch": "Manual"}})
        self.cluster.one_pass()
        self.cluster.tick(1.0)
        self.cluster.change({"adoptFrom": {"switch": "Automatic"}})

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

    def change_volumes(self) -> None:
        """Volumes of another class or size, which only new ones can have."""
        storage = {"changePolicy": "ReplaceMembers", "storageClassName": self.random.choice(("slow", "fast"))}
        storage["size"] = f"{self.random.randint(5, 40)}Gi"
        self.note(f"storage {storage}")
        self.cluster.change({"storage": storage})

    def change_security(self) -> None:
        """TLS is wanted, for some clients or all, or no longer."""
        choices: tuple[dict[str, Any] | None, ...] = (None, {"tls": {}}, {"tls": {"clients": "Enforcing"}})
        wanted = self.random.choice(choices)
        self.note(f"security {wanted}")
        self.cluster.change({"security": wanted})

    def rotate_authority(self) -> None:
        self.note("another authority is asked for")
        self.cluster.change(annotations={"tallystick.dev/rotate": str(self.cluster.time)})

    def delete_certificate(self) -> None:
        name = f"{CLUSTER}-0-{self.random.randrange(self.replicas)}-tls"
        self.note(f"{name} is deleted")
        self.cluster.delete(kube.SECRETS, name)

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

    def fence(self) -> None:
        """A user stops members, also so many that a group has no majority, or lets them run again."""
        members = [f"{CLUSTER}-{group}-{number}" for group in range(self.groups) for number in range(self.replicas)]
        chosen = self.random.sample(members, self.random.choice((0, 0, 1, 1, min(2, len(members)))))
        value = self.random.choice((",".join(chosen) or None, ",".join(chosen) or None, "*"))
        self.note(f"fenced {value}")
        self.cluster.change(annotations={"tallystick.dev/fenced": value})

    def hibernate(self) -> None:
        value = self.random.choice(("on", "off", None))
        self.note(f"hibernation {value}")
        self.cluster.change(annotations={"tallystick.dev/hibernation": value})

    def wake(self) -> None:
        """All members may run."""
        words = ("paused", "fenced", "hibernation")
        self.cluster.change(annotations={f"tallystick.dev/{word}": None for word in words})

    def give_up_node(self) -> None:
        nodes = self.foreign.ours("brokernodes")
        if nodes:
            name = self.random.choice(nodes)["metadata"]["name"]
            self.note(f"replace {name}")
            self.cluster.judge.may_lose.add(f"data-{name}")
            self.cluster.annotate_node(name, {"tallystick.dev/replace": "true"})

    def delete_claim(self) -> None:
        """By a user, without any check. A group of one would lose its messages."""
        claims = self.foreign.ours("persistentvolumeclaims")
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
        bodies = self.foreign.ours(plural)
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

    def back_up(self) -> None:
        assert self.backups is not None
        self.note(self.backups.create())

    def delete_backup(self) -> None:
        assert self.backups is not None
        self.note(self.backups.delete())

    def backups_cut_off(self) -> None:
        assert self.backups is not None
        calls = self.random.randint(0, 15)
        self.note(f"the operator of backups ends after {calls} requests")
        self.cluster.api.before, before = self.backups.count_call, self.cluster.api.before
        self.backups.one_pass(calls=calls)
        self.cluster.api.before = before
        self.backups.reconciler = None

    def foreign_job(self) -> None:
        name = f"{self.random.choice(BACKUP_NAMES)}-0-{self.random.randint(1, 3)}"
        if ("jobs", NAMESPACE, name) not in self.cluster.api.objects:
            self.note(f"jobs/{name} of others")
            self._make_foreign("jobs", name)

    def change_schedule(self) -> None:
        assert self.schedules is not None
        self.note(self.schedules.change())

    def delete_schedule(self) -> None:
        assert self.schedules is not None
        self.note(self.schedules.delete())

    def delete_scheduled(self) -> None:
        assert self.schedules is not None
        self.note(self.schedules.delete_backup())

    def foreign_scheduled(self) -> None:
        assert self.schedules is not None
        self.note(self.schedules.foreign_backup())

    def schedule_cut_off(self) -> None:
        assert self.schedules is not None
        calls = self.random.randint(0, 8)
        self.note(f"the operator of schedules ends after {calls} requests")
        self.cluster.api.before, before = self.schedules.count_call, self.cluster.api.before
        self.schedules.one_pass(calls=calls)
        self.cluster.api.before = before
        self.schedules.reconciler = None

    def minutes(self) -> None:
        """Some minutes without a fault: Backups run to their end."""
        assert self.schedules is not None and self.backups is not None
        for _ in range(self.random.randint(1, 20)):
            self.schedules.one_pass()
            self.cluster.tick(10.0)
            self.backups.tick()

    # -- what happens in a hostile world -------------------------------------------------------------------------------

    def write(self, *about: Any) -> None:
        """Before each write of the operator: others may be faster, and the API server may refuse it."""
        method, resource, key, _, _ = about
        if not self.hostile:  # the numbers of the other storms stay as they are
            self._judged(*about)
            return
        if self.random.random() < self.appears and resource is not kube.EVENTS and key[0] != "brokerclusters":
            if key in self.cluster.api.objects and key not in self.foreign.made and key[0] in REPLACEABLE:
                self.cluster.api.remove(key)
            if key not in self.cluster.api.objects:
                self.note(f"{key[0]}/{key[2]} of others is faster")
            self._make_foreign(key[0], key[2])
        if self.refused is not None:
            chance, plural, verb, status = self.refused
            if plural in ("", resource.plural) and verb in ("", method) and self.random.random() < chance:
                raise RefusalError(status, *REFUSALS[status])
        self._judged(*about)

    def _judged(self, *about: Any) -> None:
        """A write that the API server does not refuse."""
        method, resource, key, body, _ = about
        if self.backups is not None:
            self.backups.write(method, resource, key, body)
        if self.schedules is not None:
            self.schedules.judge.write(method, resource, key, body)
        self.hook(*about)

    def _make_foreign(self, plural: str, name: str) -> None:
        self.foreign.put(plural, name, **copy.deepcopy(self.random.choice(list(OF_OTHERS.values()))))

    def foreign_object(self) -> None:
        plural, name = self.random.choice(NAMES)
        if (plural, NAMESPACE, name) not in self.cluster.api.objects:
            self.note(f"{plural}/{name} of others")
            self._make_foreign(plural, name)

    def foreign_goes(self) -> None:
        if self.foreign.made:
            key = self.random.choice(sorted(self.foreign.made))
            self.note(f"{key[0]}/{key[2]} of others is gone")
            self.foreign.remove(key)

    def foreign_races(self) -> None:
        self.appears = self.random.choice((0.0, 0.0, 0.05, 0.3))
        self.note(f"others are faster than {self.appears} of the writes")

    def refuse(self) -> None:
        plural = self.random.choice(("", "", *sorted({resource.plural for resource in kube.RESOURCES})))
        verb = self.random.choice(("", "", "POST", "PATCH", "DELETE"))
        self.refused = (self.random.choice((0.2, 1.0)), plural, verb, self.random.choice(sorted(REFUSALS)))
        self.note(f"refused: {self.refused}")

    def accept(self) -> None:
        self.refused = None
        self.note("nothing is refused")

    def die(self) -> None:
        calls = self.random.randint(0, 40)
        self.note(f"the operator ends after {calls} requests")
        self.cluster.one_pass(calls=calls)
        self.cluster.reconciler = None

    def lose_answers(self) -> None:
        self.cluster.api.losing = self.random.randint(1, 20)
        self.note(f"{self.cluster.api.losing} answers are lost")

    def listeners(self) -> None:
        kind = self.random.choice(("None", "NodePort"))
        self.note(f"listener {kind}")
        self.cluster.change({"listeners": {"external": {"type": kind}}})

    def policies(self) -> None:
        enabled = self.random.random() < 0.5
        self.note(f"network policies {enabled}")
        self.cluster.change({"networkPolicy": {"enabled": enabled}})


REPLACEABLE = ("services", "configmaps", "serviceaccounts", "poddisruptionbudgets", "networkpolicies")
"""Kinds of which a user may delete an object of ours and make another one: nothing else is deleted with it."""

REFUSALS: dict[int, tuple[str, str]] = {
    403: ("Forbidden", "exceeded quota: team"),
    409: ("Conflict", "the object has been modified"),
    422: ("Invalid", "spec: Invalid value: denied by a policy"),
    429: ("TooManyRequests", "too many requests, please try again later"),
    500: ("InternalError", "failed calling webhook: no endpoints"),
    503: ("ServiceUnavailable", "etcdserver: leader changed"),
}
"""Reason and message of a refusal, by its status."""


def run(
    seed: int,
    turns: int = 60,
    groups: int = 1,
    replicas: int | None = None,
    favour: Sequence[str] = (),
    hostile: bool = False,
    backups: bool = False,
    recovers: bool = False,
    schedules: bool = False,
    adopts: bool = False,
) -> Storm:
    """A run that fails names its seed and tells what happened."""
    storm = Storm(seed, replicas, groups, favour, hostile, backups, recovers, schedules, adopts)
    try:
        storm.run(turns)
    except AssertionError as error:
        story = "\n".join(storm.log)
        raise AssertionError(f"seed {seed}: {error}\n{story}") from error
    return storm


def main(first: int, seeds: int) -> int:
    """Runs hostile storms. Returns the number of those that fail."""
    logging.disable()
    failed = 0
    for seed in range(first, first + seeds):
        try:
            backups, schedules, adopts = (seed % 4 == each for each in (1, 3, 2))
            run(seed, 25, 1 + (seed % 5 == 0), hostile=True, backups=backups, schedules=schedules, adopts=adopts)
        except Exception as error:
            failed += 1
            print(
                f"seed {seed}: {error}" if isinstance(error, AssertionError) else f"seed {seed}: {error!r}", flush=True
            )
    print(f"{seeds} seeds from {first}: {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(*map(int, sys.argv[1:3])) else 0)
