"""A cluster that the operator may be let loose on: controllers, machines, processes with disks, people, and time.

Nothing here is the operator's. Groups are played by a few lines instead of Raft: who leads is the live voter that has
the most, a majority of voters has to live and to remember its votes, what a majority has is acknowledged, and it must
never be seen to be less. A member with an empty disk that was *told that its group is new* remembers, wrongly; so an
operator that says this to a member of a group that has formed loses messages here as it would elsewhere.

What the operator does is judged as it does it (`Judge`), so a failure stands where its cause is.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from simulated_api import Json, Key, SimulatedApi, claims_of, is_ready, stamp
from simulated_tls import Files

from tallystick.operator.clusters.reconcile import ClusterReconciler
from tallystick.operator.core import kube
from tallystick.operator.core.admin_token import AdminTokens
from tallystick.operator.core.context import Context
from tallystick.operator.core.events import Events
from tallystick.operator.core.metrics import Metrics
from tallystick.operator.core.node_api import NameServerName, NodeName, NodeRefusedError, UnreachableError
from tallystick.operator.core.settings import Settings
from tallystick.operator.core.work_queue import Key as WorkKey

NAMESPACE, CLUSTER = "shop", "orders"
KEY = WorkKey(NAMESPACE, CLUSTER)


class CutOff(BaseException):
    """The operator's process ended in the middle of what it did."""


class InlineKube(kube.Kube):
    """Without threads: a simulation is one sequence of events."""

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return work()


def operator_context(world: Any, settings: Settings, nodes: Any = None) -> Context:
    """What a new process of the operator has. `world`: has an `api`, a `time` and `metrics`."""
    api = InlineKube(world.api)
    return Context(
        kube=api,
        nodes=nodes,
        settings=settings,
        events=Events(api, "operator-0", lambda: world.time),
        metrics=world.metrics,
        token=AdminTokens(b"k" * 32),
        look_at=lambda key: None,
        now=lambda: world.time,
    )


class Reconciles(Protocol):
    async def reconcile(self, key: WorkKey) -> float | None: ...


Reconciler = TypeVar("Reconciler", bound=Reconciles)


class Operated(ABC, Generic[Reconciler]):
    """The cluster that an operator manages. The operator's process may end after any write, and the next one has no
    memory."""

    reconciler: Reconciler | None = None
    writes_left: int | None = None
    calls_left: int | None = None

    @abstractmethod
    def operator(self) -> Reconciler:
        """The one that runs, or a new one that remembers nothing."""

    def pass_over(self, key: WorkKey, writes: int | None, calls: int | None = None) -> float | None:
        """One pass; with `writes`, its process ends before that many and one more were done. `calls`: any requests."""
        self.writes_left, self.calls_left = writes, calls
        try:
            return asyncio.run(self.operator().reconcile(key))
        except CutOff:
            self.reconciler = None
        except kube.KubeError:
            pass  # tried again
        finally:
            self.writes_left = self.calls_left = None
        return 1.0

    def count_call(self) -> None:
        """Called before each request. CutOff: the process ends before it."""
        if self.calls_left is not None:
            if self.calls_left <= 0:
                raise CutOff
            self.calls_left -= 1

    def count_write(self) -> None:
        """Called before each. CutOff: the process ends before it."""
        if self.writes_left is not None:
            if self.writes_left <= 0:
                raise CutOff
            self.writes_left -= 1


@dataclass(slots=True)
class Disk:
    """What is on a claim's volume."""

    member: int | None = None
    voters: frozenset[int] = frozenset()
    """The membership that it knows of, from its first start or from its log."""
    length: int = 0
    remembers: bool = False
    """Its votes are not in doubt."""
    restore: str = ""
    """Name of the restore that has begun on it."""
    is_restored: bool = False


@dataclass(slots=True)
class OldMaster:
    """A master of RocketMQ. Its messages are a number."""

    address: str
    length: int = 50
    is_up: bool = True
    is_fenced: bool = False
    is_replaced: bool = False
    """A group has taken its place."""
    problem: str = ""
    """What the group that follows it reports instead of a copy."""
    row: Json = field(default_factory=dict)
    """What it says about itself besides."""

    @property
    def accepts(self) -> bool:
        return self.is_up and not self.is_fenced and not self.is_replaced


@dataclass(slots=True)
class Process:
    """A broker that runs in a pod."""

    group: int
    member: int
    pod_uid: str
    disk: Disk
    machine: str
    linked: bool = True
    """The other members reach it."""
    heard: bool = True
    """The operator reaches it."""
    name: str = ""
    """Its brokerName."""
    is_slave: bool = False
    """It was started with brokerRole=SLAVE."""


@dataclass(slots=True)
class RaftGroup:
    """What the members of a group agree on."""

    voters: frozenset[int] = frozenset()
    learners: frozenset[int] = frozenset()
    leader: int | None = None
    term: int = 0
    led: float = 0.0
    """When it was seen to have a leader last."""
    acknowledged: int = 0
    name: str = ""
    """Its brokerName."""
    copied: int | None = None
    """How much of the log of its master it has; None: its first leader did not follow any."""
    is_promoted: bool = False
    fences: bool = False
    """A promotion fenced the master, and has not ended."""


@dataclass
class Cluster(Operated[ClusterReconciler]):
    """The whole of it. `random` alone decides what happens."""

    random: random.Random
    time: float = 1_000_000.0
    machines: dict[str, bool] = field(default_factory=lambda: {f"machine-{number}": True for number in range(5)})
    disks: dict[str, Disk] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    groups: dict[int, RaftGroup] = field(default_factory=dict)
    started: set[tuple[int, int]] = field(default_factory=set)
    """Members that have run on some disk."""
    broken_images: set[str] = field(default_factory=set)
    missing_classes: set[str] = field(default_factory=set)
    """Storage classes that do not exist: claims of them stay pending."""
    backups: dict[str, int | str] = field(default_factory=dict)
    """By address: how much a backup has, or why it cannot be restored."""
    restores: int = 0
    """Restores that have ended."""
    old: dict[str, OldMaster] = field(default_factory=dict)
    """The masters of a RocketMQ cluster, by broker name."""
    old_names: str = "DefaultCluster"
    old_names_answer: bool = True
    """Whether its name servers answer."""
    promotions: list[str] = field(default_factory=list)
    """How the next promotions go: `refused`, `fenced` (the leader is killed after the fence), `silent` (it is done, and
    the answer is lost), `differs` (of a comparison). Without an entry they succeed."""
    switches: list[str] = field(default_factory=list)
    """Broker names, in the order in which groups took the places of masters."""
    api: SimulatedApi = field(init=False)

    def __post_init__(self) -> None:
        self.api = SimulatedApi(lambda: self.time)
        self.judge = Judge(self)
        self.api.hook = self.judge.write
        self.api.before = self.count_call
        self.metrics = Metrics()
        self.tls = Files(random.Random(11), lambda name: self.api.get("secrets", name))

    # -- the operator --------------------------------------------------------------------------------------------------

    def operator(self) -> ClusterReconciler:
        if self.reconciler is None:
            settings = Settings(node_image="node:1", pod_name="operator-0", pod_namespace="system")
            self.reconciler = ClusterReconciler(operator_context(self, settings, Nodes(self)))
        return self.reconciler

    def one_pass(self, writes: int | None = None, calls: int | None = None) -> float | None:
        return self.pass_over(KEY, writes, calls)

    def run_until(self, done: Callable[[], Any], passes: int = 200) -> None:
        """One pass each second until something is done. AssertionError: it is not done after so many."""
        for _ in range(passes):
            if done():
                return
            self.one_pass()
            self.tick(1.0)
        raise AssertionError(f"not done: {self.status}")

    # -- people --------------------------------------------------------------------------------------------------------

    def create(self, **spec: Any) -> None:
        body = {"metadata": {"name": CLUSTER}, "spec": spec}
        self.by_hand("POST", f"/apis/tallystick.dev/v1beta1/namespaces/{NAMESPACE}/brokerclusters", body)

    def by_hand(self, method: str, path: str, body: Json | None = None) -> tuple[int, bytes]:
        """A write that is not the operator's, so it is not checked."""
        api = self.api
        held = api.hook, api.before, api.failing, api.losing
        api.hook, api.before, api.failing, api.losing = (lambda *args: None), (lambda: None), 0, 0
        try:
            return api(method, path, {}, body, "application/merge-patch+json")
        finally:
            api.hook, api.before, api.failing, api.losing = held

    def change(self, spec: Json | None = None, annotations: Json | None = None) -> None:
        body: Json = {"metadata": {"annotations": annotations or {}}} | ({"spec": spec} if spec else {})
        self.by_hand("PATCH", kube.CLUSTERS.path(NAMESPACE, CLUSTER), body)

    def annotate_node(self, name: str, annotations: Json) -> None:
        body = {"metadata": {"annotations": annotations}}
        self.by_hand("PATCH", kube.BROKER_NODES.path(NAMESPACE, name), body)

    def delete(self, resource: kube.Resource, name: str) -> None:
        self.by_hand("DELETE", resource.path(NAMESPACE, name))

    # -- what is seen --------------------------------------------------------------------------------------------------

    @property
    def spec(self) -> Json:
        body = self.api.get("brokerclusters", CLUSTER)
        assert body is not None
        return body["spec"]

    @property
    def status(self) -> Json:
        body = self.api.get("brokerclusters", CLUSTER)
        assert body is not None
        return body.get("status") or {}

    def condition(self, kind: str) -> Json:
        return next((each for each in self.status.get("conditions") or () if each["type"] == kind), {})

    def node(self, name: str) -> Json:
        body = self.api.get("brokernodes", name)
        assert body is not None
        return body

    def pod(self, group: int, member: int) -> Json | None:
        return self.api.get("pods", f"{CLUSTER}-{group}-{member}-0")

    def process(self, group: int, member: int) -> Process | None:
        """Of its present pod; one that its machine still holds has lost its name."""
        pod = self.pod(group, member)
        return self.processes.get(pod["metadata"]["uid"]) if pod is not None else None

    def alive(self, group: int) -> dict[int, Process]:
        """Members that take part."""
        found = {}
        for process in self.processes.values():
            if process.group == group and self.machines[process.machine] and process.linked:
                found[process.member] = process
        return found

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self, seconds: float = 2.0) -> None:
        """Everything but the operator does a little."""
        self.time += seconds
        self.api.collect()
        self._stateful_sets()
        self._schedule()
        self.tls.tick(self._pods())
        self._kubelets()
        for number in sorted({process.group for process in self.processes.values()} | set(self.groups)):
            self._raft(self.groups.setdefault(number, RaftGroup()), number)
        self._probes()
        self.judge.look()
        self.tls.judge(self._pods())

    def settle(self, passes: int = 400, accept: tuple[str, ...] = ("Ready",)) -> None:
        """No further faults: until a pass writes nothing, and all is as wanted. AssertionError: it is not."""
        self.machines = dict.fromkeys(self.machines, True)
        self.api.failing = self.api.losing = 0
        quiet = 0
        for _ in range(passes):
            before = len(self.api.writes)
            self.one_pass()
            quiet = quiet + 1 if len(self.api.writes) == before else 0
            self.tick(3.0)
            if quiet >= 4 and self.status.get("phase") in accept:
                return
        raise AssertionError(f"not settled: {self.status}")

    # -- controllers ---------------------------------------------------------------------------------------------------

    def _stateful_sets(self) -> None:
        for body in self.api.all("statefulsets"):
            body.setdefault("status", {})["observedGeneration"] = body["metadata"].get("generation", 1)
            replicas, name = body["spec"]["replicas"], body["metadata"]["name"]
            pods = [self.api.get("pods", f"{name}-{number}") for number in range(replicas)]
            ready = [pod for pod in pods if pod is not None and is_ready(pod)]
            least = stamp(self.time - body["spec"].get("minReadySeconds", 0))
            long_ready = [pod for pod in ready if pod["status"]["conditions"][0]["lastTransitionTime"] <= least]
            body["status"] |= {"readyReplicas": len(ready), "availableReplicas": len(long_ready)}
            for pod in self._surplus(body, replicas):
                self.delete(kube.PODS, pod["metadata"]["name"])
            for number, pod in enumerate(pods):
                if pod is not None:
                    continue
                template = body["spec"]["template"]
                owner = {"uid": body["metadata"]["uid"], "name": name, "kind": "StatefulSet", "apiVersion": "apps/v1"}
                owner["controller"] = True
                metadata = {**template["metadata"], "name": f"{name}-{number}", "ownerReferences": [owner]}
                self.by_hand(
                    "POST",
                    kube.PODS.path(NAMESPACE),
                    {"metadata": metadata, "spec": {**template["spec"]}, "status": {}},
                )

    def _surplus(self, body: Json, replicas: int) -> list[Json]:
        """The pods of a StatefulSet beyond its replicas."""
        uid = body["metadata"]["uid"]
        mine = [
            pod
            for pod in self.api.all("pods")
            if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or ())
        ]
        return [
            pod for pod in mine if int(pod["metadata"]["name"].rpartition("-")[2]) >= replicas and not is_going(pod)
        ]

    def _schedule(self) -> None:
        for pod in self._pods():
            if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
                continue
            claims = [self.api.get("persistentvolumeclaims", name) for name in claims_of(pod)]
            live = sorted(name for name, up in self.machines.items() if up)
            if any(claim and claim["spec"].get("storageClassName") in self.missing_classes for claim in claims):
                continue
            if live and all(claim is not None and "deletionTimestamp" not in claim["metadata"] for claim in claims):
                pod["spec"]["nodeName"] = self.random.choice(live) if claims else live[0]
                pod["status"] |= {"startTime": stamp(self.time), "hostIP": "172.18.0.2"}
                for claim in claims:
                    assert claim is not None
                    size = claim["spec"]["resources"]["requests"]["storage"]
                    claim.setdefault("status", {"phase": "Bound", "capacity": {"storage": size}})

    def _pods(self) -> list[Json]:
        """Those of StatefulSets that are there."""
        uids = {body["metadata"]["uid"] for body in self.api.all("statefulsets")}
        owners = {pod["metadata"]["uid"]: pod["metadata"].get("ownerReferences") for pod in self.api.all("pods")}
        going = [pod for pod in self.api.all("pods") if "deletionTimestamp" in pod["metadata"]]
        return going + [
            pod
            for pod in self.api.all("pods")
            if pod not in going and any(owner["uid"] in uids for owner in owners[pod["metadata"]["uid"]] or ())
        ]

    def _kubelets(self) -> None:
        for pod in self._pods():
            metadata, machine = pod["metadata"], pod["spec"].get("nodeName")
            if machine is None:
                if "deletionTimestamp" in metadata:
                    self.api.remove(("pods", NAMESPACE, metadata["name"]))
                continue
            if not self.machines[machine]:
                set_ready(pod, False, self.time)
                continue
            if "deletionTimestamp" in metadata:
                self.processes.pop(metadata["uid"], None)
                self.api.remove(("pods", NAMESPACE, metadata["name"]))
            elif not claims_of(pod):
                continue  # a name server: see `_probes`
            elif not self.tls.has(pod):
                continue
            elif metadata["uid"] not in self.processes and self.random.random() < 0.8:
                self._start(pod, machine)
        present = {pod["metadata"]["uid"] for pod in self.api.all("pods")}
        for uid, process in list(self.processes.items()):
            if uid not in present and self.machines[process.machine]:
                del self.processes[uid]  # its machine is back, and hears that the pod is gone

    def _start(self, pod: Json, machine: str) -> None:
        if pod["spec"]["containers"][0]["image"] in self.broken_images:
            waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
            pod["status"]["containerStatuses"] = [{"name": "broker", "state": waiting}]
            return
        (name,) = (each for each in claims_of(pod) if each.startswith("data-"))
        claim = self.api.get("persistentvolumeclaims", name)
        assert claim is not None
        labels = pod["metadata"]["labels"]
        group, member = int(labels["tallystick.dev/group"]), int(labels["tallystick.dev/member"])
        disk = self.disks.setdefault(claim["metadata"]["uid"], Disk())
        if not all(self._is_restored(pod, init, group, disk) for init in pod["spec"].get("initContainers") or ()):
            return
        told = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
        if disk.member is None:
            disk.member = member
            before, self.started = (group, member) in self.started, self.started | {(group, member)}
            if told.get("TALLY_GROUPBOOTSTRAP") == "true":
                formed = self.groups.setdefault(group, RaftGroup()).term > 0
                assert not (before and formed), f"n{member} had a disk, and is told that its group is new"
                named = told["TALLY_GROUPBOOTSTRAPMEMBERS"]
                disk.voters, disk.remembers = frozenset(int(each[1:]) for each in named.split(";")), True
        assert disk.member == member, "a disk of another member"
        self.processes[pod["metadata"]["uid"]] = Process(
            *(group, member, pod["metadata"]["uid"], disk, machine),
            name=told["TALLY_BROKERNAME"],
            is_slave=told.get("TALLY_BROKERROLE") == "SLAVE",
        )
        pod["status"]["containerStatuses"] = [{"name": "broker", "state": {"running": {}}}]

    def _is_restored(self, pod: Json, init: Json, number: int, disk: Disk) -> bool:
        """One turn of the init container, as `tally backup restore --once` does it: it begins, then ends."""
        secrets = [each["secret"]["secretName"] for each in pod["spec"]["volumes"] if "secret" in each]
        if not all(self.api.get("secrets", name) for name in secrets):
            return False  # the kubelet cannot mount it
        command = init["command"]
        address, run = command[3], command[command.index("--once") + 1]
        assert not any(each["name"] == "TALLY_GROUPBOOTSTRAP" for each in pod["spec"]["containers"][0]["env"])
        state = pod["status"].setdefault("initContainerStatuses", [{"name": init["name"], "state": {}}])[0]
        if disk.is_restored and disk.restore == run:
            state["state"] = {"terminated": {"exitCode": 0, "message": '{"messages": 3, "backup": "b"}'}}
            return True
        assert disk.member is None, "a backup is restored over messages"
        content = self.backups.get(address, f"there is no backup at {address}")
        parent, brokers = address.rsplit("/", 2)[0], command[command.index("--brokers") + 1].split(",")
        missing = [each for each in brokers if not any(key.startswith(f"{parent}/{each}/") for key in self.backups)]
        content = f"there is no backup of {missing}" if missing else content
        if disk.restore not in ("", run):
            content = f"{command[4]} has what the restore {disk.restore!r} left, not {run!r}"
        if isinstance(content, str):
            ended = {"exitCode": 2, "message": f"starting\nerror: {content}"}
            waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
            state |= {"state": waiting, "lastState": {"terminated": ended}}
        elif "running" not in state["state"]:
            state["state"], disk.restore = {"running": {}}, run
        else:
            assert not self.alive(number), f"group {number} is restored while it runs"
            disk.member, disk.voters, disk.length, disk.remembers = 0, frozenset({0}), content, True
            disk.is_restored, self.groups[number] = True, RaftGroup(acknowledged=content)
            self.restores += 1
        return False

    def _raft(self, group: RaftGroup, number: int) -> None:
        alive = self.alive(number)
        if group.leader is not None:
            keeps = [member for member in group.voters if member in alive]
            if group.leader not in alive or 2 * len(keeps) <= len(group.voters):
                group.leader = None
        if group.leader is None:
            self._elect(group, number, alive)
        leader = alive.get(group.leader) if group.leader is not None else None
        if leader is None:
            return
        group.led = self.time
        group.name = leader.name
        self._follow(group)
        leader.disk.length += self.random.randint(0, 3)
        for member, process in sorted(alive.items()):
            if member == group.leader or member not in group.voters | group.learners:
                continue
            behind = leader.disk.length - process.disk.length
            process.disk.length = max(process.disk.length, 0) + self.random.randint(min(behind, 5), behind)
            process.disk.voters = group.voters
            process.disk.remembers = process.disk.remembers or process.disk.length >= group.acknowledged
        leader.disk.voters = group.voters
        lengths = sorted((alive[member].disk.length if member in alive else 0 for member in group.voters), reverse=True)
        group.acknowledged = max(group.acknowledged, lengths[len(lengths) // 2])

    def _follow(self, group: RaftGroup) -> None:
        master = self.old.get(group.name)
        if master is None:
            return
        assert group.copied is not None or master.is_replaced, f"{group.name} serves clients beside its master"
        if group.is_promoted or group.copied is None:
            assert not master.accepts, f"{group.name} has two masters"
        elif master.is_up and not master.problem:
            group.copied += self.random.randint(0, 20)
            group.copied = min(group.copied, master.length)
        if master.accepts:
            master.length += self.random.randint(0, 3)

    def _elect(self, group: RaftGroup, number: int, alive: dict[int, Process]) -> None:
        able = {member: process for member, process in alive.items() if process.disk.remembers}
        for member, process in sorted(able.items(), key=lambda item: (-item[1].disk.length, item[0])):
            voters = process.disk.voters
            votes = [other for other in voters if other in able and able[other].disk.length <= process.disk.length]
            if member in voters and 2 * len(votes) > len(voters):
                if group.term == 0:
                    group.voters = voters
                    group.copied = 0 if process.is_slave else None
                group.leader, group.term = member, group.term + 1
                assert process.disk.length >= group.acknowledged, (
                    f"n{member} of group {number} leads with {process.disk.length} of {group.acknowledged} acknowledged"
                )
                return

    def _probes(self) -> None:
        for pod in self._pods():
            machine = pod["spec"].get("nodeName")
            if machine is None or not self.machines[machine] or "deletionTimestamp" in pod["metadata"]:
                continue
            process = self.processes.get(pod["metadata"]["uid"])
            ready = process is not None and self._serves(process)
            if not claims_of(pod):  # a name server
                ready = pod["spec"]["containers"][0]["image"] not in self.broken_images
            set_ready(pod, ready, self.time)

    def _serves(self, process: Process) -> bool:
        group = self.groups.get(process.group)
        if group is None or group.leader is None or process.member not in group.voters | group.learners:
            return False
        leader = self.alive(process.group).get(group.leader)
        if not process.linked:
            return False
        return leader is not None and leader.disk.length - process.disk.length <= 10 and process.disk.remembers


def is_going(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def set_ready(pod: Json, ready: bool, now: float) -> None:
    conditions = pod["status"].setdefault("conditions", [])
    word = "True" if ready else "False"
    for each in conditions:
        if each["type"] == "Ready":
            if each["status"] != word:
                each |= {"status": word, "lastTransitionTime": stamp(now)}
            return
    conditions.append({"type": "Ready", "status": word, "lastTransitionTime": stamp(now)})


class Nodes:
    """`NodeApi` of the simulated processes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def ask(
        self,
        node: NodeName | NameServerName,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_seconds: float = 5,
    ) -> Any:
        self._cluster.count_call()
        if isinstance(node, NameServerName):
            if path == "/node":
                return {
                    "tls": self._cluster.tls.report(
                        self._cluster.api.get("pods", f"{CLUSTER}-nameserver-{node.number}")
                    )
                }
            return self._survey(node)
        process = self._cluster.process(node.group, node.member)
        if process is None or not process.heard or not self._cluster.machines[process.machine]:
            raise UnreachableError(f"{node}: no answer")
        group = self._cluster.groups.setdefault(node.group, RaftGroup())
        if path == "/node":
            tls = self._cluster.tls.report(self._cluster.pod(node.group, node.member))
            return {"copy": self._copy(group, process), "tls": tls}
        if method == "GET":
            return self._status(group, process)
        if group.leader != node.member:
            raise NodeRefusedError("does not lead", status=409, leader=group.leader)
        if path == "/migration/comparison":
            return self._comparison(group)
        if path == "/promotion":
            self._cluster.count_write()
            return self._promotion(group, method, process)
        self._cluster.judge.asked(node, method, path, body)
        if path == "/group/transfer":
            return self._transfer(group, node, body["target"])
        if method == "POST":
            return self._admit(node.group, group, body["member"], body["role"])
        return self._remove(node.group, group, int(path.rpartition("/")[2]))

    def _status(self, group: RaftGroup, process: Process) -> Json:
        leads = group.leader == process.member
        alive = self._cluster.alive(process.group)
        known = process.member in group.voters | group.learners and group.term > 0
        peers = [
            {
                "member": member,
                "connected": member in alive and process.linked,
                "seconds_since_heard": 0.1,
                "lag_bytes": max(process.disk.length - alive[member].disk.length, 0) << 20
                if member in alive
                else 1 << 40,
                "doubt": "none" if member in alive and alive[member].disk.remembers else "votes",
                "disk": "ok",
            }
            for member in sorted((group.voters | group.learners) - {process.member})
        ]
        return {
            "group": f"{CLUSTER}-{process.group}",
            "member": process.member,
            "role": "leader" if leads else "follower",
            "term": group.term,
            "leader": group.leader if known else None,
            "ready": leads,
            "voters": sorted(group.voters if known else process.disk.voters),
            "learners": sorted(group.learners) if known else [],
            "membership_committed": True,
            "commit_index": group.acknowledged - 1 if known else -1,
            "fatal": None,
            "last_error": "",
            "disk": "ok",
            "doubt": "none" if process.disk.remembers else "votes",
            "peers": peers if leads else [],
        }

    def _survey(self, server: NameServerName) -> Json:
        """What a name server says about the RocketMQ cluster."""
        cluster = self._cluster
        pod = cluster.api.get("pods", f"{CLUSTER}-nameserver-{server.number}")
        if pod is None or not is_ready(pod):
            raise UnreachableError(f"{server}: no answer")
        if not cluster.old_names_answer:
            raise NodeRefusedError(f"{server}: no name server answers: old-ns:9876: no route", status=502)
        return {"brokers": [self._old_row(name, each) for name, each in sorted(cluster.old.items())]}

    def _old_row(self, name: str, master: OldMaster) -> Json:
        row: Json = {"broker": name, "cluster": self._cluster.old_names, "addresses": {"0": master.address}}
        row |= {"master": master.address, "error": ""}
        if not master.is_up:
            return row | {"error": f"its master {master.address} does not answer: refused"} | master.row
        levels = {"messageDelayLevel": "1s 5s 10s", "maxMessageSize": "4194304"}
        row |= {"version": "V4_8_0", "bytes": master.length, "topics": 2, "groups": 1, "obstacles": []}
        row |= {"different": [], "settings": levels, "defaults": levels}
        return row | master.row

    def _copy(self, group: RaftGroup, process: Process) -> Json | None:
        master = self._cluster.old.get(group.name)
        if group.copied is None or master is None:
            return None
        if group.is_promoted:
            return {"state": "promoted", "reason": None, "lasting": False, "promotedAtPos": group.copied}
        if group.leader != process.member:
            return {"state": "member", "reason": f"n{group.leader} leads and copies", "lasting": False}
        behind = master.length - group.copied
        state = master.problem or ("unreachable" if not master.is_up else "copying" if behind > 10 else "following")
        lasting = state in ("diverged", "ahead", "unsupported", "bad-record", "wrong-part", "deleted")
        reason = None if state in ("following", "copying") else f"{master.address} is {state}"
        return {
            **{"state": state, "reason": reason, "lasting": lasting, "master": master.address},
            **{"behindBytes": behind << 20, "fenced": group.fences},
        }

    def _promotion(self, group: RaftGroup, method: str, process: Process) -> Json:
        """One request for a promotion, and what may go wrong in it."""
        cluster, master = self._cluster, self._cluster.old[group.name]
        if method == "DELETE":
            if group.is_promoted or not group.fences or not master.is_up:
                raise NodeRefusedError("no master was fenced from here", status=409)
            group.fences = master.is_fenced = False
            return {"master": master.address}
        if group.is_promoted:
            return {"end": group.copied}
        assert group.copied is not None, f"{group.name} never followed a master"
        goes = cluster.promotions.pop(0) if cluster.promotions else ""
        if goes == "refused" or not master.is_up or master.problem:
            raise NodeRefusedError("the copy is not complete", status=409)
        others = [name for name, each in cluster.old.items() if each.is_fenced and not each.is_replaced]
        assert set(others) <= {group.name}, f"{group.name} and {others} are fenced at one time"
        master.is_fenced = group.fences = True
        if goes == "fenced":
            cluster.processes.pop(process.pod_uid)
            raise UnreachableError("the connection ended")
        group.copied, group.is_promoted, group.fences, master.is_replaced = master.length, True, False, True
        cluster.switches.append(group.name)
        if goes == "silent":
            raise UnreachableError("no answer in time")
        return {"end": group.copied, "strayBytes": 0}

    def _comparison(self, group: RaftGroup) -> Json:
        master = self._cluster.old[group.name]
        if not master.is_up:
            raise NodeRefusedError(f"{master.address} refused", status=502)
        differs = self._cluster.promotions[:1] == ["differs"]
        if differs:
            self._cluster.promotions.pop(0)
        found: Json = {"with": master.address, "queues": 2, "offsets": 1, "sampled": 10, "behind": 0}
        return found | {"lateOffsets": 0, "problems": ["T queue 0 with 5 messages is missing"] if differs else []}

    def _transfer(self, group: RaftGroup, node: NodeName, target: int) -> Json:
        alive = self._cluster.alive(node.group)
        if target not in group.voters or target not in alive or self._cluster.random.random() < 0.2:
            raise NodeRefusedError("not done in time", status=409, leader=group.leader)
        alive[target].disk.length = max(alive[target].disk.length, alive[node.member].disk.length)
        group.leader, group.term = target, group.term + 1
        return {"leader": target}

    def _admit(self, number: int, group: RaftGroup, member: int, role: str) -> Json:
        if role == "learner" and member not in group.voters:
            return self._changed(number, group.voters, group.learners | {member})
        if role == "voter" and member in group.learners:
            return self._changed(number, group.voters | {member}, group.learners - {member})
        return {"index": 1}

    def _remove(self, number: int, group: RaftGroup, member: int) -> Json:
        return self._changed(number, group.voters - {member}, group.learners - {member})

    def _changed(self, number: int, voters: frozenset[int], learners: frozenset[int]) -> Json:
        """Committed when a majority of the new voters has it; they have all before it, too."""
        group, alive = self._cluster.groups[number], self._cluster.alive(number)
        present = [member for member in voters if member in alive and alive[member].disk.remembers]
        if 2 * len(present) <= len(voters) or group.leader not in alive:
            raise NodeRefusedError("not committed", status=503, leader=group.leader)
        group.voters, group.learners = voters, learners
        length = alive[group.leader].disk.length + 1
        for member in {*present, group.leader}:
            alive[member].disk.length, alive[member].disk.voters = length, voters
        return {"index": length}


class Judge:
    """Looks at each thing that the operator does, before it is done, and says what is wrong with it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.stopped: set[tuple[int, int]] = set()
        """Members that the operator made unavailable, until they are ready again."""
        self.proven: set[str] = set()
        """Images on which a broker was ready."""
        self.may_lose: set[str] = set()
        """Claims that a user gave up."""

    def write(self, method: str, resource: kube.Resource, key: Key, body: Json | None, subresource: str) -> None:
        cluster = self._cluster
        if resource is kube.EVENTS:
            return
        cluster.count_write()
        if resource is kube.PODS:
            self._pod(key[2])
        elif resource is kube.CLAIMS and method == "DELETE":
            decided = key[2] in self.may_lose or self._is_replaced(key[2])
            assert decided, f"{key[2]} was deleted without a decision"
        elif resource is kube.STATEFUL_SETS and ((body or {}).get("spec") or {}).get("replicas") == 0:
            self._emptied(key[2])
        elif resource is kube.BROKER_NODES and method == "DELETE":
            group, member = map(int, key[2].split("-")[-2:])
            raft = cluster.groups[group]
            assert member not in raft.voters | raft.learners, f"{key[2]} was deleted and is a member"

    def _is_replaced(self, name: str) -> bool:
        """Whether a user wants other volumes than this claim, and has said that members are replaced for it."""
        storage, claim = self._cluster.spec.get("storage") or {}, self._cluster.api.get("persistentvolumeclaims", name)
        assert claim is not None
        has = claim["spec"].get("storageClassName"), claim["spec"]["resources"]["requests"]["storage"]
        wanted = storage.get("storageClassName", has[0]), storage.get("size", "10Gi")
        return storage.get("changePolicy") == "ReplaceMembers" and has != wanted

    def _emptied(self, name: str) -> None:
        """A StatefulSet gets no replicas: only if a user asked for it."""
        cluster = self._cluster
        body = cluster.api.get("brokerclusters", CLUSTER)
        assert body is not None
        notes = body["metadata"].get("annotations") or {}
        asleep, fenced = notes.get("tallystick.dev/hibernation") == "on", notes.get("tallystick.dev/fenced") or ""
        if name == f"{CLUSTER}-nameserver":
            brokers = [pod["metadata"]["name"] for pod in cluster.api.all("pods") if claims_of(pod)]
            assert asleep and not self._members(brokers), f"{name} was stopped before {brokers}"
            return
        assert asleep or {"*", name} & set(fenced.replace(" ", "").split(",")), (
            f"{name} was stopped, and no annotation asks for it"
        )
        self.stopped.discard((int(name.split("-")[-2]), int(name.split("-")[-1])))

    def _members(self, pods: list[str]) -> list[str]:
        sets = {f"{body['metadata']['name']}-0" for body in self._cluster.api.all("statefulsets")}
        return [name for name in pods if name in sets and self._is_ours(name)]

    def _is_ours(self, name: str) -> bool:
        owners = {body["metadata"]["uid"] for body in self._cluster.api.all("statefulsets")}
        pod = self._cluster.api.get("pods", name) or {"metadata": {}}
        return any(owner["uid"] in owners for owner in pod["metadata"].get("ownerReferences") or ())

    def _pod(self, name: str) -> None:
        cluster, pod = self._cluster, self._cluster.api.get("pods", name)
        if pod is None:
            return
        if name.startswith(f"{CLUSTER}-nameserver-"):
            self._name_server(pod)
            return
        group, member = (int(part) for part in name.split("-")[-3:-1])
        raft, alive = cluster.groups.setdefault(group, RaftGroup()), cluster.alive(group)
        voting = [each for each in raft.voters if each in alive and alive[each].disk.remembers]
        # One that was without a leader for long, and could have one just now, was down: nothing was taken away.
        had = 2 * len(voting) > len(raft.voters) and cluster.time - raft.led < 60.0
        has = 2 * sum(each != member for each in voting) > len(raft.voters)
        assert not (had and not has and len(raft.voters) > 1), (
            f"{name} was stopped, and the majority of {voting} with it"
        )
        if is_ready(pod) and raft.leader is not None:
            assert not self.stopped - {(group, member)}, f"{name} was stopped while {self.stopped} are not back"
            away = [
                each["metadata"]["name"]
                for each in cluster.api.all("pods")
                if self._is_of(group, each) and not is_ready(each)
            ]
            assert not away, f"{name} was stopped while {away} are not ready"
            assert raft.leader != member or len(raft.voters) == 1, f"{name} was stopped, and it leads"
            self.stopped.add((group, member))

    def _is_of(self, group: int, pod: Json) -> bool:
        """Whether it belongs to a StatefulSet of this group; pods of others may have the same labels."""
        owners = {body["metadata"]["uid"] for body in self._cluster.api.all("statefulsets")}
        labels = pod["metadata"].get("labels") or {}
        mine = any(owner["uid"] in owners for owner in pod["metadata"].get("ownerReferences") or ())
        return mine and labels.get("tallystick.dev/group") == str(group)

    def _name_server(self, pod: Json) -> None:
        api = self._cluster.api
        pods = [each for each in api.all("pods") if each["metadata"]["name"].startswith(f"{CLUSTER}-nameserver-")]
        others = [each for each in pods if each is not pod and is_ready(each) and not is_going(each)]
        wanted = self._cluster.spec.get("nameServers", {}).get("replicas", 2)
        assert not is_ready(pod) or others or wanted == 1, "the last name server was stopped"
        live = api.get("statefulsets", f"{CLUSTER}-nameserver")
        assert live is not None
        (now,), (then,) = live["spec"]["template"]["spec"]["containers"], pod["spec"]["containers"]
        assert now["image"] in {then["image"], *self.proven}, (
            f"a name server was stopped for {now['image']}, which no broker ran"
        )

    def asked(self, node: NodeName, method: str, path: str, body: Any) -> None:
        cluster = self._cluster
        cluster.count_write()
        if method == "DELETE":
            member = int(path.rpartition("/")[2])
            raft, replicas = cluster.groups[node.group], cluster.spec.get("replicas", 3)
            rest = raft.voters - {member}
            if member in raft.voters:
                assert set(range(replicas)) <= rest, f"n{member} left, and {replicas} are wanted of {sorted(rest)}"
                alive = [each for each in rest if each in cluster.alive(node.group) or each == node.member]
                assert 2 * len(alive) > len(rest), f"n{member} left, and {alive} are no majority of {sorted(rest)}"

    def look(self) -> None:
        for pod in self._cluster.api.all("pods"):
            if is_ready(pod) and claims_of(pod):
                self.proven.add(pod["spec"]["containers"][0]["image"])
        for group, member in list(self.stopped):
            pod = self._cluster.pod(group, member)
            back = pod is not None and is_ready(pod) and "deletionTimestamp" not in pod["metadata"]
            live = self._cluster.api.get("statefulsets", f"{CLUSTER}-{group}-{member}")
            fenced = live is not None and live["spec"]["replicas"] == 0
            if back or fenced or (pod is None and (group, member) not in self._wanted()):
                self.stopped.discard((group, member))

    def _wanted(self) -> set[tuple[int, int]]:
        spec = self._cluster.spec
        return {(group, member) for group in range(spec.get("groups", 1)) for member in range(spec.get("replicas", 3))}
