"""StoreJobs: Spark beside the brokers' volumes, on live clusters: its verdicts, its outputs, and what it leaves.

An audit under load must be clean. It is also the strictest look at what the other tests did to the volumes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from harness import pods
from harness.brokers import Brokers
from harness.jobs import Ended, Jobs, Volume
from harness.lab import Lab
from harness.load import loaded
from harness.pods import Shell
from harness.waiting import NotYetError, wait_for

UNIT_BYTES = 20
UNIT = 3
COUNT = 500
CLAIM = "lake"
EVERY_MINUTE = "every-minute"

Row = tuple[int, int, int]


@pytest.fixture(scope="module")
def jobs(_orders: Brokers, lab: Lab) -> Iterator[Jobs]:
    """On the cluster that most tests share."""
    lab.images.load_jobs(lab.kind)
    found = Jobs(lab.api, _orders.namespace, _orders.name)
    found.claim(CLAIM)
    yield found
    for each in lab.api.list("storejobs", found.namespace):
        lab.api.delete("storejobs", found.namespace, each["metadata"]["name"])


def _beside_their_volumes(ended: Ended, brokers: Brokers) -> None:
    """Each volume was read from its mount, by a pod on the machine of the volume, and nowhere else."""
    nodes = set(brokers.nodes())
    assert set(ended.via()) <= nodes and ended.via()
    assert set(ended.via().values()) == {"local"}, ended.log
    assert ended.machines == {node: brokers.machine(node) for node in ended.via()}
    assert ended.condition("Local").get("status") == "True", ended.status
    for node in ended.via():
        assert f"read: {node} local on w-{node}." in ended.log, ended.log


def test_a_schedule_begins(jobs: Jobs) -> None:
    """It is looked at by the last test of this file: minutes pass by themselves."""
    jobs.apply(EVERY_MINUTE, "stats", schedule="* * * * *")


def test_an_audit_under_load_is_clean(orders: Brokers, jobs: Jobs, lab: Lab) -> None:
    with loaded(orders, lab.images.node) as load:
        ended = jobs.run("audit-under-load", "audit")
        load.finish()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    assert verdict.problems == [] and load.failed() == 0
    assert ended.result["verdict"] == "Clean", ended.log
    assert len(ended.via()) == orders.replicas() and ended.figures["records"] > 0
    _beside_their_volumes(ended, orders)


def test_an_export_has_each_message_once(orders: Brokers, jobs: Jobs, lab: Lab) -> None:
    """Under load a prefix of each queue; afterwards all of it; and once more, nothing new."""
    with loaded(orders, lab.images.node) as load:
        export: dict[str, Any] = {
            "arguments": {"topics": [load.topic]},
            "output": {"claim": {"name": CLAIM, "path": load.topic}},
        }
        first = jobs.run("export-under-load", "export", **export)
        prefix = jobs.exported(CLAIM, load.topic, lab.images.jobs)
        load.finish()
        final = {(queue[1], item.queue_offset): item.pos for queue, read in load.final().items() for item in read.items}
    assert len(prefix) == first.figures["rows"] > 0
    by_queue: dict[int, list[Row]] = defaultdict(list)
    for row in prefix:
        by_queue[row[0]].append(row)
    for queue, rows in by_queue.items():
        assert sorted(row[1] for row in rows) == list(range(len(rows))), f"queue {queue} has gaps or duplicate rows"
    assert all(final[queue, offset] == pos for queue, offset, pos in prefix)

    second = jobs.run("export-the-rest", "export", **export)
    rows = jobs.exported(CLAIM, load.topic, lab.images.jobs)
    assert {(queue, offset): pos for queue, offset, pos in rows} == final and len(rows) == len(final)
    assert second.figures["rows"] == len(final) - len(prefix)

    third = jobs.run("export-again", "export", **export)
    assert third.figures["rows"] == 0
    assert sorted(jobs.exported(CLAIM, load.topic, lab.images.jobs)) == sorted(rows)
    _beside_their_volumes(third, orders)
    lab.goals.store_job.add(second.seconds, third.seconds)


def test_a_flipped_bit_in_a_queue_is_named(orders: Brokers, jobs: Jobs, lab: Lab, shell: Shell) -> None:
    """In one unit of one member's ConsumeQueue: that unit and no other."""
    orders.topic("flipped", 1)
    shell.tally("produce", "flipped", "--count", "20")
    node = min(set(orders.nodes()) - {orders.leader()})
    volume = Volume(lab.kind, lab.api, orders.namespace, node)
    path, at = "consumequeue/flipped/0/00000000000000000000", UNIT * UNIT_BYTES + 7

    def written() -> None:
        if not any(volume.byte(path, UNIT * UNIT_BYTES + byte) for byte in range(UNIT_BYTES)):
            raise NotYetError("units are written out once a second")

    wait_for(f"{node} has written unit {UNIT}", written, 30)
    volume.flip(path, at)
    try:
        ended = jobs.run("audit-flipped", "audit")
    finally:
        volume.flip(path, at)
    assert ended.result["verdict"] == "DifferencesFound"
    assert ended.figures["differing"] == 1, ended.log
    (difference,) = ended.result["differences"]
    assert difference.startswith(f"{node}: queue: ") and f"/{path} at byte {UNIT * UNIT_BYTES}" in difference
    assert f": unit {UNIT} " in difference
    lab.goals.store_job.add(ended.seconds)


def test_rebuilt_files_are_the_brokers(orders: Brokers, jobs: Jobs, lab: Lab) -> None:
    """Rebuilds queues and index from the log of a running broker and compares them with those of the broker."""
    ended = jobs.run("rebuild", "rebuild", output={"claim": {"name": CLAIM, "path": "rebuilt"}})
    assert ended.result["verdict"] == "Clean", ended.log
    assert ended.figures["differing"] == 0, ended.log
    assert ended.figures["files"] > 4 and ended.figures["records"] > 0
    _beside_their_volumes(ended, orders)
    lab.goals.store_job.add(ended.seconds)


def test_without_workers_of_their_own_volumes_are_read_over_http(orders: Brokers, jobs: Jobs, lab: Lab) -> None:
    """One worker for three volumes: the verdict is the same, and the status says how the others were read."""
    ended = jobs.run("audit-over-http", "audit", executor={"instances": 1})
    assert ended.result["verdict"] == "Clean", ended.log
    assert sorted(ended.via().values()) == ["http", "http", "local"]
    assert ended.condition("Local")["status"] == "False"
    assert len(ended.machines) == 1


def test_two_groups(namespace: str, lab: Lab, jobs: Jobs) -> None:
    """Each group has its own log: an audit compares replicas within a group, and an export has both groups."""
    brokers, own = Brokers(lab.api, namespace, "pair"), Jobs(lab.api, namespace, "pair")
    brokers.apply({"groups": 2, "replicas": 1, "nameServers": {"replicas": 1}})

    def look() -> None:
        status = brokers.status()
        if status.get("phase") != "Ready" or status.get("readyNodes") != "2/2":
            raise NotYetError(str(status.get("phase")))

    wait_for("both groups are ready", look, 240)
    brokers.topic("both", 2)
    own_shell = pods.shell(lab.api, namespace, lab.images.node, brokers.name_servers(1))
    own_shell.tally("produce", "both", "--count", str(COUNT))
    audit = own.run("audit", "audit")
    assert audit.result["verdict"] == "Clean", audit.log
    assert set(audit.via().values()) == {"local"} and len(audit.via()) == 2
    own.claim(CLAIM)
    output = {"claim": {"name": CLAIM, "path": "both"}}
    export = own.run("export", "export", arguments={"topics": ["both"]}, output=output)
    assert export.figures["rows"] == COUNT
    assert len(own.exported(CLAIM, "both", lab.images.jobs)) == COUNT
    lab.goals.store_job.add(audit.seconds, export.seconds)


def test_a_trace_finds_a_message(orders: Brokers, jobs: Jobs, lab: Lab, shell: Shell) -> None:
    orders.topic("traced", 1)
    shell.tally("produce", "traced", "one", "--key", "find-me")
    ended = jobs.run("trace", "trace", arguments={"key": "find-me"})
    assert ended.figures["rows"] == 1 and "traced" in ended.log
    lab.goals.store_job.add(ended.seconds)


def test_nothing_is_left_of_a_job(jobs: Jobs) -> None:
    """Its workers go when it is over; the driver's pod, its log and everything else with the StoreJob."""

    def look() -> None:
        if [pod for pod in jobs.pods("trace") if pod["metadata"]["labels"].get("tallystick.dev/job-role") == "worker"]:
            raise NotYetError("workers exist")

    wait_for("the workers are deleted", look, 60)
    jobs.delete("trace")


def test_the_schedule_has_made_runs(jobs: Jobs, lab: Lab) -> None:
    def look() -> None:
        runs = [each for each in lab.api.list("storejobs", jobs.namespace) if _of_schedule(each)]
        done = [each for each in runs if (each.get("status") or {}).get("phase") == "Completed"]
        if not done:
            raise NotYetError(f"{len(runs)} runs")

    wait_for("a run of the schedule is done", look, 240)
    status = lab.api.get("storejobs", jobs.namespace, EVERY_MINUTE)["status"]
    assert status["phase"] == "Scheduled" and status["lastScheduleTime"]
    jobs.delete(EVERY_MINUTE)

    def gone() -> None:
        if [each for each in lab.api.list("storejobs", jobs.namespace) if _of_schedule(each)]:
            raise NotYetError("runs exist")

    wait_for("its runs are deleted as well", gone, 60)


def _of_schedule(job: dict[str, object]) -> bool:
    metadata = job["metadata"]
    assert isinstance(metadata, dict)
    return any(owner["name"] == EVERY_MINUTE for owner in metadata.get("ownerReferences") or ())
