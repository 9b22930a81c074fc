"""Both sides of a run's contract: the plan that the operator writes is one that the job's runtime reads, and what that
leaves is what the operator understands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from jobs_lab import JobLab

from tallystick.operator.core.members import Refusal
from tallystick.operator.jobs import driver_http
from tallystick.operator.jobs.driver_http import DriverHttp
from tallystick.operator.jobs.observed import Ended
from tallystick.operator.jobs.program import Program, ProgramError
from tallystick.operator.jobs.result import Result, outcome, program_of
from tallystick.spark.cluster.configuration import fixed_settings
from tallystick.spark.cluster.java import Ports
from tallystick.spark.cluster.plan import BucketPlace, FolderPlace, JobPlan
from tallystick.spark.cluster.progress import READING, Progress, served
from tallystick.spark.cluster.result import failure_of, fitting, result_of

EXPORT = {"job": "export", "arguments": {"topics": ["a"], "queues": [0], "from": "0", "to": "9"}}


def plan_of(lab: JobLab, name: str = "audit") -> JobPlan:
    lab.one_pass(name)
    config = lab.api.get("configmaps", f"{name}-job")
    assert config is not None, lab.status(name)
    return JobPlan.parse(config["data"]["plan.json"])


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"job": "stats", "groups": [1]},
        {"job": "trace", "arguments": {"key": "k"}},
        {"job": "audit", "arguments": {"lagMillis": 0}, "executor": {"instances": 2, "cores": 3, "memory": "1Gi"}},
        EXPORT | {"output": {"s3": {"uri": "s3://lake"}}},
        EXPORT | {"output": {"claim": {"name": "lake", "path": "a"}}},
        {"job": "rebuild", "arguments": {"settings": {"a": "b"}}, "output": {"claim": {"name": "lake"}}},
        {"job": "program", "program": {"file": "/opt/job.py", "arguments": ["a"], "sparkConf": {"spark.x": "y"}}},
        {"job": "program", "program": {"file": "/opt/job.py"}, "executor": {"perVolume": 3}},
        {"job": "stats", "groups": [1], "source": {"destination": {"s3": {"bucket": "b", "credentialsSecret": "k"}}}},
    ],
)
def test_the_runtime_reads_every_plan(spec: dict[str, Any]) -> None:
    lab = JobLab(groups=2)
    lab.put("persistentvolumeclaims", "lake", {"spec": {"accessModes": ["ReadWriteMany"]}})
    lab.job("audit", **spec)
    plan = plan_of(lab)
    assert (plan.job.name, plan.name, plan.attempt) == (spec.get("job", "audit"), "audit", 1)
    pods = lab.pods()
    assert {place.node for place in plan.workers} == {
        pod["metadata"]["labels"]["tallystick.dev/job-node"] for name, pod in pods.items() if "-w-" in name
    }
    hosts = {f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}" for name, pod in pods.items() if "-w-" in name}
    assert hosts == set(plan.hosts) and len(hosts) == len(plan.hosts)
    for place in plan.workers:
        (pod,) = [each for each in pods.values() if each["spec"]["hostname"] == f"w-{place.node}"]
        assert place.host == f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}"
        paths = [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]]
        assert any(place.root.startswith(f"{path}/") for path in paths) == ("source" not in spec)
        assert (place.http is None) == place.root.startswith("backup:s3://b/") == ("source" in spec)
    assert plan.driver_host == f"driver.{pods['audit-driver']['spec']['subdomain']}"
    if "output" in spec:
        assert isinstance(plan.output, BucketPlace if "s3" in spec["output"] else FolderPlace)


def test_the_operator_understands_what_is_left() -> None:
    plan = plan_of(_with_job(JobLab()))
    summary = {"job": "audit", "clean": False, "differing": 1, "differences": [], "sources": []}
    said = fitting(result_of(plan, summary, lambda node: "local", 31.2)).decode()
    found = outcome(Ended(0, "Completed", said))
    assert isinstance(found, Result) and found.verdict == "DifferencesFound"
    assert found.status["figures"]["differing"] == 1
    assert [row["via"] for row in found.status["sources"]] == ["local"] * 3
    failure = outcome(Ended(2, "Error", fitting(failure_of(plan, "no store", 1.0)).decode()))
    assert failure == Refusal("NotDone", "no store")


def test_the_operator_refuses_each_setting_that_a_run_must_have() -> None:
    """Otherwise the one of the run would silently win."""
    settings = fixed_settings(plan_of(_with_job(JobLab())), "the secret", Ports(), "/tmp/x")
    for name in settings:
        with pytest.raises(ProgramError, match="is set by the operator"):
            Program.parse({"file": "/x", "sparkConf": {name: "x"}})


@pytest.mark.parametrize(("status", "log"), [(3, ["a", "b"]), (255, ["ö" * 200] * 10), (1, [])])
def test_the_operator_understands_how_a_program_failed(status: int, log: list[str]) -> None:
    plan = plan_of(_with_job(JobLab()))
    said = failure_of(plan, f"the program ended with exit status {status}", 1.0)
    ended = Ended(2, "Error", fitting(said | {"program": {"exitCode": status, "log": log}}).decode())
    assert len(ended.message.encode()) <= 4096
    assert outcome(ended) == Refusal("ProgramFailed", f"the program ended with exit status {status}")
    told = program_of(ended)
    assert told is not None and told["exitCode"] == status
    assert told["log"] == log[-len(told["log"]) :] if told["log"] else not log, "the last lines are kept"


@pytest.mark.parametrize("program", [None, 3, {}, {"exitCode": "1"}, {"exitCode": 1, "log": 3}])
def test_what_a_driver_says_of_a_program_is_not_trusted(program: object) -> None:
    told = program_of(Ended(2, "Error", json.dumps({"program": program})))
    assert told in (None, {"exitCode": 1, "log": []})


def _with_job(lab: JobLab) -> JobLab:
    lab.job("audit")
    return lab


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_progress_over_http(session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(3)
    progress.step(READING, 8)
    progress.advance()
    with served(progress, 0) as port:
        monkeypatch.setattr(driver_http, "DRIVER_HTTP", port)
        found = await DriverHttp(session).progress("127.0.0.1")
        assert found is not None and (found.step, found.done, found.of) == ("reading", 1, 8)
    assert await DriverHttp(session).progress("127.0.0.1") is None, "the driver must have ended"


def test_the_plan_in_the_config_map_is_plain_json() -> None:
    lab = _with_job(JobLab())
    lab.one_pass()
    assert json.loads(json.dumps(lab.plan())) == lab.plan()
