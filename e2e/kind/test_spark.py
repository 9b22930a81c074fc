"""Users' own Spark: programs in a StoreJob, and `spark-submit --master k8s://`, as the examples in docs/ have them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from harness.api import Json
from harness.brokers import Brokers
from harness.jobs import Jobs
from harness.lab import Lab
from harness.places import ROOT
from harness.pods import Shell
from harness.shell import apply, kubectl
from harness.waiting import NotYetError, wait_for

EXAMPLES = ROOT / "docs" / "examples" / "spark"
TOPIC, COUNT = "programs", 200


@pytest.fixture(scope="module")
def jobs(_orders: Brokers, lab: Lab, shell: Shell) -> Iterator[Jobs]:
    """On the cluster that most tests share, which has `COUNT` messages of a topic."""
    lab.images.load_jobs(lab.kind)
    _orders.whole()
    _orders.topic(TOPIC, 4)
    shell.tally("produce", TOPIC, "--count", str(COUNT))
    found = Jobs(lab.api, _orders.namespace, _orders.name)
    yield found
    for each in lab.api.list("storejobs", found.namespace):
        lab.api.delete("storejobs", found.namespace, each["metadata"]["name"])


def example(name: str, **replaced: str) -> list[Json]:
    text = (EXAMPLES / name).read_text()
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    return [body for body in yaml.safe_load_all(text) if body]


@pytest.mark.ci
def test_a_program_from_a_config_map(orders: Brokers, jobs: Jobs, lab: Lab) -> None:
    config_map, job = example("program.yaml")
    apply(config_map)
    spec = job["spec"]
    spec["program"]["arguments"] = [TOPIC]
    ended = jobs.run("topics", spec.pop("job"), **{name: spec[name] for name in spec if name != "clusterName"})
    assert ended.result["message"] == "1 topics"
    assert (ended.figures["topics"], ended.figures["messages"]) == (1, COUNT)
    assert ended.status["program"]["exitCode"] == 0
    assert f"{TOPIC}: {COUNT} messages, " in ended.status["program"]["log"][-1]
    followers = set(orders.nodes()) - {orders.leader()}
    assert ended.machines == {node: orders.machine(node) for node in followers}, ended.status
    assert set(ended.via()) <= followers and set(ended.via().values()) == {"local"}, ended.status
    assert ended.condition("Local")["status"] == "True", ended.status
    lab.goals.store_job.add(ended.seconds)


def _program(jobs: Jobs, name: str, text: str, **spec: Any) -> None:
    metadata = {"name": name, "namespace": jobs.namespace}
    apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"job.py": textwrap.dedent(text)}})
    program = {"configMap": {"name": name, "key": "job.py"}} | spec.pop("program", {})
    jobs.apply(name, "program", program=program, **spec)


def _failed(jobs: Jobs, lab: Lab, name: str) -> Json:
    def look() -> Json:
        status = lab.api.get("storejobs", jobs.namespace, name).get("status") or {}
        if status.get("phase") != "Failed":
            raise NotYetError(json.dumps(status))
        return dict(status)

    return wait_for(f"the StoreJob {name} has failed", look, 180)


def test_a_program_that_fails_never_ends_or_writes_elsewhere(orders: Brokers, jobs: Jobs, lab: Lab) -> None:
    """All run at the same time; each says what happened."""
    once = {"maxRetries": 0, "executor": {"instances": 1}}
    _program(jobs, "raises", "print('before')\nraise KeyError('no such day')", **once)
    _program(jobs, "exits", "import sys\nprint('bad input')\nsys.exit(7)", **once)
    _program(jobs, "writes", "open('/opt/spark/x', 'w')", **once)
    _program(jobs, "endless", "import time\nwhile True: time.sleep(1)", activeDeadlineSeconds=60, **once)
    jobs.apply(
        "missing", "program", program={"configMap": {"name": "nowhere", "key": "job.py"}}, activeDeadlineSeconds=20
    )
    _program(jobs, "overrides", "pass", program={"sparkConf": {"spark.executor.memory": "9g"}}, **once)

    status = _failed(jobs, lab, "overrides")
    assert "spark.executor.memory is set by the operator: use spec.executor.memory" in status["message"]
    status = _failed(jobs, lab, "raises")
    assert status["message"] == "attempt 1: the program raised KeyError: 'no such day'"
    assert status["program"]["exitCode"] == 1
    assert status["program"]["log"][0] == "before" and status["program"]["log"][-1] == "KeyError: 'no such day'"
    status = _failed(jobs, lab, "exits")
    assert status["program"] == {"exitCode": 7, "log": ["bad input"]}
    assert [each["reason"] for each in status["conditions"] if each["type"] == "Failed"] == ["ProgramFailed"]
    assert "Read-only file system: '/opt/spark/x'" in _failed(jobs, lab, "writes")["message"]
    status = _failed(jobs, lab, "missing")
    assert "ConfigMap 'nowhere' of the program does not exist" in status["message"], status
    status = _failed(jobs, lab, "endless")
    assert [each["reason"] for each in status["conditions"] if each["type"] == "Failed"] == ["DeadlineExceeded"]


def test_several_workers_beside_each_volume(orders: Brokers, jobs: Jobs, lab: Lab) -> None:
    """A program whose tasks say on which host they run; and a secret, which is a file."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "spice", "namespace": jobs.namespace}}
    apply(secret | {"stringData": {"word": "saffron"}})
    text = """
        import os, socket
        from pyspark.sql import SparkSession
        from tallystick.spark.program import set_result

        spark = SparkSession.builder.getOrCreate()
        hosts = set(spark.sparkContext.range(64, numSlices=64).map(lambda _: socket.gethostname()).collect())
        word = open("/etc/tallystick-program-secret/word").read()
        assert "secret" not in " ".join(os.environ).lower().replace("pyspark_gateway_secret", "")
        set_result(f"{word} {sorted(hosts)}", hosts=len(hosts))
    """
    _program(jobs, "several", text, executor={"perVolume": 2}, program={"secretName": "spice"})
    ended = jobs.wait("several")
    assert ended.figures["hosts"] == 4 and ended.result["message"].startswith("saffron "), ended.status
    assert len(ended.workers) == 4


@pytest.mark.ci
def test_spark_submit_in_cluster_mode(orders: Brokers, jobs: Jobs, lab: Lab, shell: Shell) -> None:
    secrets = kubectl(
        "get", "secrets", "-n", jobs.namespace, "-l", f"tallystick.dev/cluster={jobs.cluster}", "-o", "name"
    )
    (reader,) = [each.partition("/")[2] for each in secrets.split() if "-reader-" in each]
    apply(*example("spark-submit.yaml", IMAGE=lab.images.jobs, READER_SECRET=reader))

    def look() -> Json:
        pods = lab.api.list("pods", jobs.namespace, "spark-role=driver")
        if not pods or pods[0]["status"]["phase"] not in ("Succeeded", "Failed"):
            raise NotYetError(str([pod["status"]["phase"] for pod in pods]))
        return pods[0]

    driver = wait_for("the driver has ended", look, 240)
    log = kubectl("logs", driver["metadata"]["name"], "-n", jobs.namespace)
    assert driver["status"]["phase"] == "Succeeded", log[-3000:]
    (line,) = [line for line in log.splitlines() if line.startswith("messages:")]
    assert int(line.split()[1]) >= COUNT
    assert "executors: ['messages-" in log
    kubectl("wait", "job/messages", "-n", jobs.namespace, "--for=condition=Complete", "--timeout=60s")
