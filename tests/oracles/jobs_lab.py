"""StoreJobs and all that they meet, in memory: machines that run pods, drivers with a script, people, and time.

Nothing here is the operator's. A driver does what its script says for each attempt: it takes a while, and ends well,
badly, or not at all; its machine may go. `JobJudge` looks at each write of the operator before it is done: pods of two
attempts or of two plans never meet, a broker's volume is only ever read, a run that is over stays over, and what a
driver said is what the status says.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from simulated_api import Json, Key, SimulatedApi, stamp
from simulated_cluster import Operated, operator_context

from tallystick.operator.core import kube
from tallystick.operator.core.metrics import Metrics
from tallystick.operator.core.node_api import NodeName, UnreachableError
from tallystick.operator.core.settings import Settings
from tallystick.operator.core.work_queue import Key as WorkKey
from tallystick.operator.core.work_queue import Kind
from tallystick.operator.jobs.metrics import JobMetrics
from tallystick.operator.jobs.observed import Progress
from tallystick.operator.jobs.reconcile import JobsReconciler

NAMESPACE, CLUSTER = "shop", "orders"
START = 1_774_000_000.0
OVER = ("Completed", "Failed")


def result(verdict: str = "Clean", via: str = "local", **more: Any) -> str:
    """What a driver leaves in its termination message."""
    rows = [{"node": f"{CLUSTER}-0-{member}", "bound": 100, "records": 5, "via": via} for member in range(3)]
    said = {"verdict": verdict, "message": f"said {verdict}", "seconds": 12.5, "figures": {"records": 15}}
    return json.dumps(said | {"sources": rows, "differences": [], "output": None} | more)


@dataclass(frozen=True, slots=True)
class Script:
    """One attempt: after `seconds` of running the driver ends with `code` and `message`. `code` None: it never does."""

    seconds: float = 10.0
    code: int | None = 0
    message: str = field(default_factory=result)


class JobLab(Operated[JobsReconciler]):
    """A cluster of `groups` groups of three, its volumes, and an operator that keeps StoreJobs over them."""

    def __init__(self, seed: int = 0, groups: int = 1, **settings: Any) -> None:
        self.random = random.Random(seed)
        self.time = START
        self.api = SimulatedApi(lambda: self.time)
        self.judge = JobJudge(self)
        self.api.hook = self.judge.write
        self.settings = Settings(
            **{"node_image": "node:1", "pod_name": "operator-0", "pod_namespace": "system", "jobs_image": "jobs:1"}
            | settings
        )
        self.metrics = Metrics()
        self.job_metrics = JobMetrics(self.metrics.registry)
        self.fuse: int | None = None
        """Writes until the operator's process ends, once, in whatever pass that is; of those that `fuse_counts`."""
        self.fuse_counts: Callable[[Key], bool] = lambda key: True
        self.scripts: dict[str, Sequence[Script]] = {}
        """By job: of each attempt; the last one counts for those after it, too. Runs are found by their template."""
        self.machine_up = True
        self.schedulable: Callable[[Json], bool] = lambda pod: True
        self.looked_at: list[WorkKey] = []
        self.uids: dict[str, str] = {}
        """Of the clusters, by name."""
        self.topics: dict[int, set[str]] = {}
        """Of the groups whose leaders answer."""
        self.make_cluster(groups)

    # -- people --------------------------------------------------------------------------------------------------------

    def make_cluster(self, groups: int = 1, name: str = CLUSTER) -> None:
        cluster = self.put("brokerclusters", name, {"spec": {"groups": groups, "replicas": 3}})
        self.uids[name] = cluster["metadata"]["uid"]
        for group in range(groups):
            for member in range(3):
                self.make_member(group, member, name)

    def make_member(self, group: int, member: int, cluster: str = CLUSTER, **more: Any) -> None:
        node = f"{cluster}-{group}-{member}"
        labels = {
            "tallystick.dev/cluster": cluster,
            "app.kubernetes.io/managed-by": "tallystick-operator",
            "tallystick.dev/group": str(group),
            "tallystick.dev/member": str(member),
        }
        owner = {"kind": "BrokerCluster", "name": cluster, "uid": self.uids[cluster], "controller": True}
        status = {"phase": "Ready", "role": "Leader" if member == 0 else "Follower"} | more
        spec = {"clusterName": cluster, "group": group, "member": member}
        self.put("brokernodes", node, {"spec": spec, "status": status}, labels=labels, ownerReferences=[owner])
        self.put(
            "persistentvolumeclaims",
            f"data-{node}",
            {"spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Bound"}},
            labels=labels,
            annotations={"tallystick.dev/formed": "true"},
        )

    def put(self, plural: str, name: str, content: Json, **metadata: Any) -> Json:
        """An object made by hand."""
        found = self.api._store((plural, NAMESPACE, name), {"metadata": {"name": name} | metadata, **content})
        return found

    def job(self, name: str = "audit", *scripts: Script, **spec: Any) -> None:
        if scripts:
            self.scripts[name] = scripts
        self.put("storejobs", name, {"spec": {"clusterName": CLUSTER, "job": "audit"} | spec})

    def change(self, name: str = "audit", **spec: Any) -> None:
        body = self.body(name)
        spec = {key: value for key, value in (body["spec"] | spec).items() if value is not None}
        self.api._store(("storejobs", NAMESPACE, name), {**body, "spec": spec})

    def delete(self, plural: str, name: str) -> None:
        self.api.hook, hook = (lambda *args: None), self.api.hook
        self.api.failing, failing = 0, self.api.failing
        self.api("DELETE", _resource(plural).path(NAMESPACE, name), {}, {}, "application/json")
        self.api.hook, self.api.failing = hook, failing

    # -- what is seen --------------------------------------------------------------------------------------------------

    def body(self, name: str = "audit") -> Json:
        found = self.api.get("storejobs", name)
        assert found is not None, f"there is no StoreJob {name}"
        return found

    def status(self, name: str = "audit") -> Json:
        found: Json = self.body(name).get("status") or {}
        return found

    def phase(self, name: str = "audit") -> str:
        return str(self.status(name).get("phase", ""))

    def condition(self, kind: str, name: str = "audit") -> Json:
        return next((each for each in self.status(name).get("conditions") or () if each["type"] == kind), {})

    def jobs(self) -> list[str]:
        return [body["metadata"]["name"] for body in self.api.all("storejobs")]

    def job_start(self, name: str = "audit") -> float:
        return datetime.fromisoformat(self.status(name)["startTime"]).timestamp()

    def pods(self, name: str = "audit") -> dict[str, Json]:
        return {
            body["metadata"]["name"]: body
            for body in self.api.all("pods")
            if body["metadata"]["labels"].get("tallystick.dev/job") == name
        }

    def plan(self, name: str = "audit") -> Json:
        found = self.api.get("configmaps", f"{name}-job")
        assert found is not None
        plan: Json = json.loads(found["data"]["plan.json"])
        return plan

    def events(self, name: str = "audit") -> list[str]:
        bodies = sorted(self.api.all("events"), key=lambda each: int(each["metadata"]["resourceVersion"]))
        return [each["reason"] for each in bodies if each["involvedObject"]["name"] == name]

    # -- the operator --------------------------------------------------------------------------------------------------

    def operator(self) -> JobsReconciler:
        if self.reconciler is None:
            context = operator_context(self, self.settings, Leaders(self))
            context = replace(context, look_at=self.looked_at.append)
            self.reconciler = JobsReconciler(context, self, self.job_metrics)
        return self.reconciler

    async def progress(self, address: str) -> Progress | None:
        """`Drivers`: of the pod that has this address."""
        self.judge.asked += 1
        for pod in self.api.all("pods"):
            if (pod.get("status") or {}).get("podIP") == address:
                done = int(self.time - pod["ran_since"])
                return Progress("reading", done, 100)
        return None

    def one_pass(self, name: str = "audit", writes: int | None = None) -> float | None:
        return self.pass_over(WorkKey(NAMESPACE, name, Kind.JOB), writes)

    def passes(self, name: str = "audit", count: int = 1, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.one_pass(name)
            self.tick(seconds)

    def until(self, phase: str, name: str = "audit", passes: int = 100) -> None:
        for _ in range(passes):
            self.one_pass(name)
            if self.phase(name) == phase:
                return
            self.tick()
        raise AssertionError(f"{name} does not come to be {phase}: {self.status(name)}")

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self, seconds: float = 1.0) -> None:
        """Everything but the operator does a little."""
        self.time += seconds
        self.api.collect()
        for pod in self.api.all("pods"):
            if self.machine_up:
                self._kubelet(pod)
        self.judge.look()

    def _kubelet(self, pod: Json) -> None:
        metadata, status = pod["metadata"], pod.setdefault("status", {})
        if "deletionTimestamp" in metadata:
            self.api.remove(("pods", NAMESPACE, metadata["name"]))
            return
        if "startTime" not in status:
            if self.schedulable(pod):
                address = f"10.1.0.{self.random.randint(1, 10**9)}"
                status |= {"startTime": stamp(self.time), "podIP": address, "phase": "Running"}
                status["containerStatuses"] = [{"name": "x", "state": {"running": {}}}]
                pod["ran_since"] = self.time
            return
        if status["phase"] != "Running" or metadata["labels"]["tallystick.dev/job-role"] != "driver":
            return
        ran = self.time - pod["ran_since"]
        script = self.script(metadata["labels"])
        if script.code is not None and ran >= script.seconds:
            self.end(pod, script.code, script.message)
        elif ran >= pod["spec"]["activeDeadlineSeconds"]:
            self.end(pod, 137, "", "DeadlineExceeded")

    def script(self, labels: Mapping[str, str]) -> Script:
        name, attempt = labels["tallystick.dev/job"], int(labels["tallystick.dev/job-attempt"])
        scripts = self.scripts.get(name) or self.scripts.get(name.rpartition("-")[0]) or (Script(),)
        return scripts[min(attempt, len(scripts)) - 1]

    def end(self, pod: Json, code: int, message: str, reason: str = "") -> None:
        """The driver's process is over."""
        status = pod["status"]
        status["phase"] = "Failed" if code else "Succeeded"
        if reason:
            status["reason"] = reason
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
        status["containerStatuses"] = [{"name": "x", "state": {"terminated": ended}}]
        pod["metadata"]["resourceVersion"] += "0"
        self.judge.ended(pod, code, message)

    def evict(self, name: str) -> None:
        """A pod is put off its machine before its container ran, or while it did."""
        pod = self.api.get("pods", name)
        assert pod is not None
        pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}


class Leaders:
    """`NodeApi` of the brokers: all that a job asks them is which topics there are."""

    def __init__(self, lab: JobLab) -> None:
        self._lab = lab

    async def ask(self, node: NodeName, method: str, path: str, body: Any = None, *, timeout_seconds: float = 5) -> Any:
        assert (method, path, node.member) == ("GET", "/topics", 0), "only leaders are asked, and nothing else"
        names = self._lab.topics.get(node.group)
        if names is None:
            raise UnreachableError(f"{node}: no answer")
        return {"topics": [{"name": name} for name in sorted(names)]}


class JobJudge:
    """Looks at each thing that the operator does, before it is done."""

    MAY_MAKE = frozenset({"pods", "services", "configmaps", "secrets", "networkpolicies", "storejobs"})

    def __init__(self, lab: JobLab) -> None:
        self._lab = lab
        self.asked = 0
        self.attempts: dict[str, list[int]] = {}
        """By uid of the job: attempts that pods were made for."""
        self.over: dict[str, str] = {}
        """By uid: how a run ended; it stays so."""
        self.said: dict[str, str] = {}
        """By uid: what a driver said that ended well."""
        self.runs: set[str] = set()
        """Names of all runs that were ever made from templates."""

    def write(self, method: str, resource: kube.Resource, key: Key, body: Json | None, subresource: str) -> None:
        if resource is kube.EVENTS:
            return
        lab = self._lab
        if lab.fuse is not None and lab.fuse_counts(key):
            if lab.fuse == 0:
                lab.fuse, lab.writes_left = None, 0  # and nothing more of this process
            else:
                lab.fuse -= 1
        lab.count_write()
        plural, _, name = key
        assert plural in self.MAY_MAKE, f"{method} {plural}/{name}: not the operator's of jobs"
        if plural == "storejobs" and subresource == "status":
            self._status(name, (body or {})["status"])
        elif plural == "storejobs":
            self._run(method, name)
        elif method == "DELETE":
            self._deleted(plural, name)
        else:
            self._made(method, plural, name, body or {})

    def _status(self, name: str, status: Json) -> None:
        uid, phase = self._lab.body(name)["metadata"]["uid"], status["phase"]
        if uid in self.over:
            assert phase == self.over[uid], f"{name} was {self.over[uid]}, and is {phase}"
        elif phase in OVER and "schedule" not in self._lab.body(name)["spec"]:
            self.over[uid] = phase
        if phase in ("Succeeding", "Completed"):
            said = json.loads(self.said[uid])
            assert status["result"]["verdict"] == said["verdict"], f"{name}: no driver said {status['result']}"
        assert status.get("attempt", 0) <= self._lab.body(name)["spec"].get("maxRetries", 1) + 1

    def _run(self, method: str, name: str) -> None:
        if method == "POST":
            assert name not in self.runs, f"{name} is made a second time"
            self.runs.add(name)
            template = self._lab.body(name.rpartition("-")[0])
            if template["spec"].get("concurrencyPolicy", "Forbid") != "Allow":
                going = [each for each in self._runs_of(template) if each["status"].get("phase") not in OVER]
                assert not going, f"{name} is made while {[each['metadata']['name'] for each in going]} continues"
            assert not template["spec"].get("suspend"), f"{name} is made, and the template is suspended"
        elif method == "DELETE":
            body = self._lab.body(name)
            template_name = (body["metadata"].get("labels") or {}).get("tallystick.dev/job-template")
            spec = self._lab.body(template_name)["spec"] if template_name in self._lab.jobs() else {}
            over, ttl = (body.get("status") or {}).get("phase") in OVER, body["spec"].get("ttlSecondsAfterFinished")
            replaces = spec.get("concurrencyPolicy") == "Replace"
            assert replaces or (over and (ttl is not None or template_name)), f"{name} is deleted without a request"
        else:
            raise AssertionError(f"{method} storejobs/{name}: people write what they want, not we")

    def _runs_of(self, template: Json) -> list[Json]:
        uid = template["metadata"]["uid"]
        return [
            {"status": {}, **body}
            for body in self._lab.api.all("storejobs")
            if any(owner["uid"] == uid for owner in body["metadata"].get("ownerReferences") or ())
        ]

    def _made(self, method: str, plural: str, name: str, body: Json) -> None:
        metadata = body["metadata"]
        (owner,) = metadata["ownerReferences"]
        job = self._lab.body(owner["name"])
        assert (owner["kind"], owner["uid"]) == ("StoreJob", job["metadata"]["uid"]), f"{name} is not its own"
        assert owner["uid"] not in self.over, f"{name} is made, and the run is over"
        live = self._lab.api.get(plural, name)
        if live is not None and method != "POST":
            owners = [each["uid"] for each in live["metadata"].get("ownerReferences") or ()]
            assert owner["uid"] in owners, f"{plural}/{name} belongs to another owner, and is overwritten"
        if plural == "configmaps":
            there = self._lab.pods(job["metadata"]["name"])
            assert not there, f"the plan is written while {sorted(there)} are there"
        if plural == "pods" and live is None:
            self._pod(job, body)

    def _pod(self, job: Json, pod: Json) -> None:
        labels, name = pod["metadata"]["labels"], job["metadata"]["name"]
        attempt, role = int(labels["tallystick.dev/job-attempt"]), labels["tallystick.dev/job-role"]
        others = self._lab.pods(name)
        strangers = [
            other
            for other, body in others.items()
            if int(body["metadata"]["labels"]["tallystick.dev/job-attempt"]) != attempt
            or body["metadata"]["ownerReferences"][0]["uid"] != job["metadata"]["uid"]
        ]
        assert not strangers, f"{pod['metadata']['name']} is made while {strangers} of another attempt are there"
        plan = self._lab.plan(name)
        assert (plan["attempt"], job["status"]["attempt"]) == (attempt, attempt), "plan, status and pods differ"
        workers = {each["node"] for each in plan["sources"] if each["host"]}
        if role == "driver":
            there = {body["metadata"]["labels"].get("tallystick.dev/job-node") for body in others.values()}
            assert workers <= there, f"the driver is made, and {workers - there} have no worker"
            made = self.attempts.setdefault(job["metadata"]["uid"], [])
            made.append(attempt)
        else:
            assert labels["tallystick.dev/job-node"] in workers
        self._mounts(pod)
        assert not job["spec"].get("suspend"), "pods of a run that is suspended"

    def _mounts(self, pod: Json) -> None:
        spec = pod["spec"]
        stores = {
            volume["name"]: volume["persistentVolumeClaim"]
            for volume in spec["volumes"]
            if volume.get("persistentVolumeClaim", {}).get("claimName", "").startswith("data-")
        }
        assert all(claim.get("readOnly") for claim in stores.values()), "a broker's volume could be written"
        if stores:
            assert "fsGroup" not in spec["securityContext"], "the kubelet would walk over a live log"
        for mount in spec["containers"][0]["volumeMounts"]:
            assert mount["name"] not in stores or mount.get("readOnly"), "a broker's volume could be written"

    def _deleted(self, plural: str, name: str) -> None:
        assert plural == "pods", f"{plural}/{name} is deleted: it goes with its owner"
        pod = self._lab.api.get("pods", name)
        if pod is None:
            return
        labels = pod["metadata"]["labels"]
        assert "tallystick.dev/job" in labels, f"{name} is deleted, and is no job's"
        job = self._lab.api.get("storejobs", labels["tallystick.dev/job"])
        uid = (pod["metadata"].get("ownerReferences") or [{"uid": ""}])[0]["uid"]
        if job is not None and job["metadata"]["uid"] == uid and labels["tallystick.dev/job-role"] == "driver":
            phase = (job.get("status") or {}).get("phase")
            assert phase not in ("Submitted", "Running"), f"{name} is deleted before the reason was reported"
            if uid in self.said:
                assert phase not in ("Succeeding", "Completed"), f"the log of {name} is thrown away"

    def ended(self, pod: Json, code: int, message: str) -> None:
        if code == 0:
            self.said[(pod["metadata"].get("ownerReferences") or [{"uid": ""}])[0]["uid"]] = message

    def look(self) -> None:
        """After each moment: who is not allowed to be there together."""
        for body in self._lab.api.all("storejobs"):
            found = {
                pod["metadata"]["labels"]["tallystick.dev/job-attempt"]
                for pod in self._lab.pods(body["metadata"]["name"]).values()
                if (pod["metadata"].get("ownerReferences") or [{"uid": ""}])[0]["uid"] == body["metadata"]["uid"]
            }
            assert len(found) <= 1, f"{body['metadata']['name']}: pods of attempts {found} are there together"


def _resource(plural: str) -> kube.Resource:
    return next(each for each in kube.RESOURCES if each.plural == plural)
