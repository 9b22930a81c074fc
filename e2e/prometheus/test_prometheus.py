"""The rules, the alerts and the dashboard of the chart in a real Prometheus, which scrapes a real group of brokers."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer
from group_lab import NAME, GroupLab, until
from metrics_lab import Load
from server import (
    NAMESPACE,
    RELEASE,
    Prometheus,
    Target,
    chart_rules,
    dashboard_queries,
    dashboard_variables,
    tool,
)
from tally_process import tally

from tallystick.operator.backups.metrics import BackupMetrics
from tallystick.operator.core.health import Pulse, application
from tallystick.operator.core.metrics import Metrics
from tallystick.operator.jobs.metrics import JobMetrics
from tallystick.operator.schedules.metrics import ScheduleMetrics
from tallystick.operator.topics.metrics import TopicMetrics

TOPIC, GROUP = "orders", "billing"

WITHOUT_SERIES = {
    "tallystick_operator_errors_total": "no reconciliation failed",
    "rocketmq_storage_findings_total": "nothing is damaged",
}
"""Metrics of the dashboard that have no series in a healthy cluster, and why."""
OF_SLOW_MACHINES = {"TallystickSlowSendsFast", "TallystickSlowSendsSlow", "TallystickFlushSlow"}


@pytest.fixture(autouse=True)
def _tools() -> None:
    missing = [name for name in ("prometheus", "promtool", "helm") if not tool(name)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: `make prometheus-tools` builds Prometheus from its Go module")


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return chart_rules(tmp_path)


def _operator() -> Metrics:
    """The metrics of an operator that leads, and to which one healthy cluster belongs."""
    metrics = Metrics()
    for kind in (JobMetrics, BackupMetrics, ScheduleMetrics, TopicMetrics):
        kind(metrics.registry)
    metrics.saw_cluster("shop", "orders", "Ready", 3, 3, 0)
    return metrics


@asynccontextmanager
async def _scraped(folder: Path, rules: Path, lab: GroupLab) -> AsyncIterator[Prometheus]:
    """A Prometheus that has evaluated all rules over a group and an operator."""
    server = TestServer(application(_operator(), lambda: Pulse(leads=True), 100.0))
    async with server:
        targets = [Target(f"127.0.0.1:{server.port}", {"job": f"{RELEASE}-tallystick", "namespace": NAMESPACE})]
        targets += [
            Target(
                process.places["http"],
                {"job": "tallystick-broker", "namespace": "shop", "pod": f"orders-0-{number}-0"},
            )
            for number, process in lab.members.items()
        ]
        with Prometheus(folder, rules, targets) as prometheus:
            await prometheus.started()

            async def all_up() -> bool | None:
                found = await prometheus.query("up")
                return (len(found) == len(targets) and all(each["value"][1] == "1" for each in found)) or None

            await until("all targets are scraped", all_up)
            await _evaluated(prometheus)
            yield prometheus


async def _evaluated(prometheus: Prometheus) -> None:
    """Until each rule was evaluated twice from now on: the second time with what the first one recorded."""
    for _ in range(2):
        before = {_identity(rule): rule["lastEvaluation"] for rule in await prometheus.rules()}

        async def again(before: dict[str, str] = before) -> bool | None:
            return all(rule["lastEvaluation"] > before[_identity(rule)] for rule in await prometheus.rules()) or None

        await until("all rules are evaluated again", again)


def _identity(rule: dict[str, str]) -> str:
    return f"{rule['type']} {rule['name']} {rule['query']}"


def _run(lab: GroupLab, *words: str) -> None:
    said = tally(*words, "--nameserver", lab.nameserver)
    assert said.returncode == 0, said.stderr


async def _load(lab: GroupLab, load: Load) -> None:
    """Messages that a consumer group reads, sends back and gives up, and transactions that end and one that does not,
    so that every panel has something to show."""
    await asyncio.to_thread(_run, lab, "produce", TOPIC, "--count", "200")
    await asyncio.to_thread(_run, lab, "consume", TOPIC, "--once", "--commit", "--group", GROUP)
    for record in (await load.pull(32))[:2]:
        await load.dead(record)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[GroupLab]:
    with GroupLab(tmp_path / "group", reserved=2) as found:
        yield found


def test_promtool_accepts_the_rules(rules: Path) -> None:
    said = subprocess.run([tool("promtool"), "check", "rules", str(rules)], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stdout + said.stderr


async def test_rules_and_dashboard_over_a_healthy_group(tmp_path: Path, rules: Path, lab: GroupLab) -> None:
    """Only the alert of the dead letters is pending, every rule can be evaluated, and every panel shows something."""
    await lab.leader()
    await lab.ready()
    async with _scraped(tmp_path, rules, lab) as prometheus:
        _run(lab, "topic", "create", TOPIC, "--queues", "4")
        load = Load(lab.members[await lab.leader()].places["broker"])
        await load.run()

        async def shown() -> bool | None:
            """A counter that begins with a load has a rate only after the next one."""
            await _load(lab, load)
            names = ("rocketmq_messages_out_total", "rocketmq_send_to_dlq_messages_total")
            found = [await prometheus.query(f"sum(rate({name}[10s])) > 0") for name in names]
            return all(found) or None

        await until("the load is scraped", shown)
        empty = [
            f"{title}: {expression}"
            for title, expression in dashboard_queries()
            if not await prometheus.query(expression) and not any(name in expression for name in WITHOUT_SERIES)
        ]
        assert empty == []
        await load.close()
        for metric, label in dashboard_variables():
            assert await prometheus.label_values(metric, label), f"{metric}, {label}"
        await _evaluated(prometheus)
        refused = {rule["name"]: rule["lastError"] for rule in await prometheus.rules() if rule["health"] != "ok"}
        assert refused == {}
        assert await prometheus.alerts() - OF_SLOW_MACHINES == {"TallystickDeadLetters"}


async def test_alerts_of_a_group_that_loses_its_members(tmp_path: Path, rules: Path, lab: GroupLab) -> None:
    """As in tests/charts, where the same rules are evaluated by a model of PromQL."""
    leader = await lab.leader()
    await lab.ready()
    async with _scraped(tmp_path, rules, lab) as prometheus:
        assert await prometheus.alerts() == set()
        gone = (leader + 1) % 3
        lab.kill(gone)
        expected = {"TallystickMemberUnreachable", "TallystickQuorumAtRisk", "TallystickMetricsMissing"}

        async def raised() -> bool | None:
            return await prometheus.alerts() == expected or None

        await until("the alerts of a lost member are raised", raised)
        (series,) = await prometheus.query("ALERTS{alertname='TallystickMemberUnreachable'}")
        assert (series["metric"]["peer"], series["metric"]["node_id"]) == (f"n{gone}", NAME)
        lab.kill(({0, 1, 2} - {leader, gone}).pop())

        async def leaderless() -> bool | None:
            return "TallystickGroupWithoutLeader" in await prometheus.alerts() or None

        await until("the group has no leader", leaderless)
