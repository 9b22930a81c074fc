"""The operator's process: its settings, its health, its logs, what it asks kopf for."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import kopf
import pytest
from aiohttp.test_utils import TestClient, TestServer
from metrics_page import check_page
from prometheus_client.metrics import MetricWrapperBase

from tallystick.operator import handlers
from tallystick.operator.backups.metrics import BACKUP_METRICS, BackupMetrics
from tallystick.operator.core import kube
from tallystick.operator.core.health import Pulse, application, trouble
from tallystick.operator.core.logs import JsonFormatter
from tallystick.operator.core.metrics import CORE_METRICS, Metrics
from tallystick.operator.core.settings import Settings, SettingsError
from tallystick.operator.core.work_queue import Key, Kind
from tallystick.operator.jobs.metrics import JOB_METRICS, JobMetrics
from tallystick.operator.schedules.metrics import SCHEDULE_METRICS, ScheduleMetrics
from tallystick.operator.topics.metrics import TOPIC_METRICS, TopicMetrics

ENVIRONMENT = {"TALLYSTICK_NODE_IMAGE": "node:1", "POD_NAME": "p", "POD_NAMESPACE": "system"}


def test_settings_with_their_defaults() -> None:
    found = Settings.parse(ENVIRONMENT | {"WATCH_NAMESPACES": " b, a,,a "})
    assert found.watch_namespaces == ("a", "b")
    assert (found.http_port, found.lease_seconds, found.resync_seconds) == (8081, 15.0, 10.0)
    assert found.node_url_template.format(node="orders-0-1", namespace="shop") == "http://orders-0-1.shop.svc:8080"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("POD_NAME", ""),
        ("TALLYSTICK_NODE_IMAGE", " "),
        ("LEASE_SECONDS", "1"),
        ("LEASE_SECONDS", "soon"),
        ("HTTP_PORT", "70000"),
        ("NODE_URL_TEMPLATE", "http://{who}"),
        ("NODE_URL_TEMPLATE", "{node}:8080"),
        ("LOG_LEVEL", "LOUD"),
    ],
)
def test_settings_that_cannot_be_name_their_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.parse(ENVIRONMENT | {name: value})


@pytest.mark.parametrize(
    ("pulse", "sick"),
    [
        (Pulse(leads=False), False),
        (Pulse(leads=True), False),
        (Pulse(True, keys=1, longest_wait=5.0, last_pass_age=5.0), False),
        (Pulse(True, keys=1, longest_wait=200.0, last_pass_age=1.0), True),
        (Pulse(True, keys=1, longest_wait=0.0, last_pass_age=200.0), True),
        (Pulse(True, keys=0, longest_wait=0.0, last_pass_age=200.0), False),
        (Pulse(True, keys=1, longest_wait=5.0, last_pass_age=None), False),
    ],
)
def test_it_is_healthy_while_work_gets_done(pulse: Pulse, sick: bool) -> None:
    assert bool(trouble(pulse, 100.0)) is sick


async def test_what_its_port_answers() -> None:
    metrics = Metrics()
    metrics.saw_cluster("shop", "orders", "Ready", 3, 2)
    pulse = Pulse(True, keys=1, longest_wait=200.0)
    async with TestClient(TestServer(application(metrics, lambda: pulse, 100.0))) as client:
        assert (await client.get("/healthz")).status == 500
        assert (await client.get("/readyz")).status == 200
        text = await (await client.get("/metrics")).text()
    assert 'tallystick_operator_clusters{phase="Ready"} 1.0' in text
    assert 'tallystick_operator_nodes{state="ready"} 2.0' in text
    assert "process_resident_memory_bytes" in text
    metrics.forgot_cluster("shop", "orders")
    assert b'phase="Ready"' not in metrics.text()


def test_groups_without_a_leader_are_counted_by_cluster() -> None:
    """Zero is a value: an alert needs the series before anything happens. A failed pass changes nothing."""
    metrics = Metrics()
    series = b'tallystick_operator_groups_without_leader{cluster="orders",cluster_namespace="shop"}'
    metrics.saw_cluster("shop", "orders", "Ready", 3, 3, 0)
    assert series + b" 0.0" in metrics.text()
    metrics.saw_cluster("shop", "orders", "Degraded", 3, 0, 1)
    metrics.saw_cluster("shop", "orders", "Unknown", 3, 0)
    assert series + b" 1.0" in metrics.text()
    metrics.forgot_cluster("shop", "orders")
    metrics.forgot_cluster("shop", "never-read")
    assert b'cluster="orders"' not in metrics.text()


def test_findings_of_jobs_are_shown_until_the_job_is_deleted() -> None:
    metrics = Metrics()
    jobs = JobMetrics(metrics.registry)
    series = b'tallystick_operator_store_jobs_with_findings{verdict="DifferencesFound"}'
    assert series + b" 0.0" in metrics.text()
    jobs.saw("shop", "audit", {"phase": "Running"})
    jobs.saw("shop", "audit", {"phase": "Completed", "result": {"verdict": "DifferencesFound"}})
    jobs.saw("shop", "stats", {"phase": "Completed", "result": {"verdict": "Done"}})
    assert series + b" 1.0" in metrics.text()
    assert b'tallystick_operator_store_jobs{phase="Completed"} 2.0' in metrics.text()
    jobs.forgot("shop", "audit")
    assert series + b" 0.0" in metrics.text()


@pytest.mark.parametrize("leads", [True, False])
async def test_its_metrics_are_those_of_the_reference(leads: bool) -> None:
    """docs/metrics.md; an operator on standby has no metrics of jobs and topics."""
    metrics = Metrics()
    declared = list(CORE_METRICS)
    if leads:  # as the work queue does it
        JobMetrics(metrics.registry)
        BackupMetrics(metrics.registry)
        ScheduleMetrics(metrics.registry)
        TopicMetrics(metrics.registry)
        declared += [*JOB_METRICS, *BACKUP_METRICS, *SCHEDULE_METRICS, *TOPIC_METRICS]
    for made in set(metrics.registry._collector_to_names):
        if isinstance(made, MetricWrapperBase) and made._labelnames:
            made.labels(*("x" for _ in made._labelnames))  # a sample, which shows its labels
    async with TestClient(TestServer(application(metrics, lambda: Pulse(leads=leads), 100.0))) as client:
        text = await (await client.get("/metrics")).text()
    if leads:
        assert check_page(text, "Operator") == {metric.name for metric in declared}
    found = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ") and "_created " not in line}
    assert found == {metric.name for metric in declared}


def test_a_line_of_the_log_is_json_without_objects() -> None:
    record = logging.makeLogRecord(
        {
            "name": "tallystick.operator.x",
            "msg": "done %s",
            "args": ("it",),
            "levelname": "INFO",
            "key": "k",
            "object": {},
        }
    )
    line = json.loads(JsonFormatter().format(record))
    assert {name: line[name] for name in ("level", "logger", "message", "key")} == {
        "level": "INFO",
        "logger": "operator.x",
        "message": "done it",
        "key": "k",
    }
    assert "object" not in line
    try:
        raise ValueError("why")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert "ValueError: why" in json.loads(JsonFormatter().format(record))["error"]


# -- kopf --------------------------------------------------------------------------------------------------------------


def test_kopf_writes_nothing_and_its_watches_end() -> None:
    settings = handlers.settings_for_kopf(Settings.parse(ENVIRONMENT))
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True
    assert settings.scanning.disabled is True
    assert settings.watching.server_timeout and settings.watching.inactivity_timeout < 120
    assert settings.watching.client_timeout and settings.watching.client_timeout > settings.watching.server_timeout


def watched() -> dict[str, Any]:
    registry = handlers.registry_for(lambda key: None)
    return {handler.id: handler for handler in registry._watching.get_all_handlers()}


def test_every_kind_that_the_operator_makes_is_watched_but_secrets() -> None:
    expected = {
        *(each.plural for each in handlers.OWNED),
        *(
            each.plural
            for each in (kube.CLUSTERS, kube.BROKER_NODES, kube.TOPICS, kube.CONSUMER_GROUPS, kube.STORE_JOBS)
        ),
        kube.USERS.plural,
        kube.BACKUPS.plural,
        kube.SCHEDULED_BACKUPS.plural,
    }
    assert set(watched()) == expected
    assert "secrets" not in expected


def test_no_handler_of_changes_that_would_leave_marks_on_objects() -> None:
    registry = handlers.registry_for(lambda key: None)
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()


@pytest.mark.parametrize(
    ("resource", "body", "expected"),
    [
        ("storejobs", {"name": "orders"}, {Kind.JOB}),
        ("backups", {"name": "orders"}, {Kind.BACKUP}),
        ("backups", {"name": "orders", "labels": {"tallystick.dev/schedule": "orders"}}, {Kind.BACKUP, Kind.SCHEDULE}),
        ("scheduledbackups", {"name": "orders"}, {Kind.SCHEDULE}),
        ("storejobs", {"name": "orders-1", "labels": {"tallystick.dev/job-template": "orders"}}, {Kind.JOB}),
        (
            "pods",
            {"name": "o", "labels": {"tallystick.dev/cluster": "c", "tallystick.dev/job": "orders"}},
            {Kind.JOB},
        ),
        ("brokerclusters", {"name": "orders"}, {Kind.CLUSTER, Kind.TOPICS, Kind.USERS}),
        ("users", {"name": "alice", "spec": {"clusterName": "orders"}}, {Kind.USERS}),
        ("brokernodes", {"name": "orders-0-1", "spec": {"clusterName": "orders"}}, {Kind.CLUSTER}),
        ("pods", {"name": "orders-0-1-0", "labels": {"tallystick.dev/cluster": "orders"}}, {Kind.CLUSTER}),
        ("pods", {"name": "other", "labels": {}}, set()),
        ("topics", {"name": "t", "spec": {"clusterName": "orders"}}, {Kind.TOPICS}),
        ("topics", {"name": "t", "spec": {}}, set()),
    ],
)
async def test_an_event_says_which_cluster_to_look_at(resource: str, body: dict[str, Any], expected: set[Kind]) -> None:
    seen: set[Key] = set()
    registry = handlers.registry_for(seen.add)
    (handler,) = [each for each in registry._watching.get_all_handlers() if each.id == resource]
    await handler.fn(namespace="shop", **{"spec": {}, "labels": {}} | body)  # type: ignore[misc]
    itself = {Key("shop", "orders-1", Kind.JOB)} if body["name"] == "orders-1" else set()
    assert seen - itself == {Key("shop", "orders", kind) for kind in expected}
    assert itself <= seen


def test_selectors_name_one_kind_each() -> None:
    assert handlers._selector(kube.PODS) == ("", "v1", "pods")
    assert handlers._selector(kube.TOPICS) == ("tallystick.dev", "v1beta1", "topics")
    assert isinstance(handlers.registry_for(lambda key: None), kopf.OperatorRegistry)
