"""Generates metrics.md from the declarations of the metrics: names, types, units, labels, meaning, sources.

`python docs/metrics_reference.py` writes docs/metrics.md. A test compares the page with the declarations, and with what
the processes expose.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tallystick.node.http.bounded_series import OTHER
from tallystick.node.http.metric import MAX_SERIES
from tallystick.node.http.metrics import (
    BROKER_METRICS,
    COMMON_LABELS,
    COPY_METRICS,
    GROUP_METRICS,
    LAG_METRICS,
    PAGE_METRICS,
    SLAVE_METRICS,
)
from tallystick.node.http.process_metrics import MEMORY_METRICS, NAMESERVER_METRICS, TLS_METRICS
from tallystick.operator.backups.metrics import BACKUP_METRICS
from tallystick.operator.core.metrics import CORE_METRICS
from tallystick.operator.jobs.metrics import JOB_METRICS
from tallystick.operator.schedules.metrics import SCHEDULE_METRICS
from tallystick.operator.topics.metrics import TOPIC_METRICS

PAGE = Path(__file__).with_name("metrics.md")
ROCKETMQ = Path(__file__).with_name("rocketmq_metrics.json")
"""What RocketMQ exposed to Prometheus after a small load: `make metrics-lab WRITE=1`."""


class Declared(Protocol):
    """What a declaration gives, of a node or of the operator."""

    @property
    def type(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...


Sections = Mapping[str, Sequence[Declared]]
_COMMON = ", ".join(f"`{label}`" for label in COMMON_LABELS)
PARTS: dict[str, tuple[str, Sections]] = {
    "Broker": (
        "Every process with a broker exposes these metrics as soon as its store is open. They have the labels"
        f" {_COMMON} in addition to those in the table: the cluster, `broker`, and the broker's name, which all members"
        " of a group share. Where RocketMQ 5 has a metric, the name is RocketMQ's.",
        BROKER_METRICS | {"Lag of consumer groups": LAG_METRICS, "Page": PAGE_METRICS},
    ),
    "Port for slaves": (
        "A broker that is not a member of a group also exposes these metrics, with the same labels as above, unless"
        " `haListenPort` is 0.",
        {"": SLAVE_METRICS},
    ),
    "Slave": (
        "A broker with `brokerRole=SLAVE`, in a group its leader, also exposes these metrics, with the same labels as"
        " above, until it is promoted.",
        {"": COPY_METRICS},
    ),
    "Member of a replicated group": (
        "A broker that is a member of a group also exposes these metrics, with the same labels as above. They show the"
        " group as this member sees it.",
        {"": GROUP_METRICS},
    ),
    "Name server": (
        "Every process with a name server (`tally run`, `tally nameserver`) exposes these metrics.",
        {"": NAMESERVER_METRICS},
    ),
    "Connections": (
        "Every `tally` process with an HTTP port exposes these metrics: broker, name server, or both.",
        {"": (*MEMORY_METRICS, *TLS_METRICS)},
    ),
    "Operator": (
        "Every operator exposes the first table, also while it is on standby. Only the operator that leads exposes the"
        " others.",
        {
            "Reconciliations": CORE_METRICS,
            "StoreJobs": JOB_METRICS,
            "Backups": BACKUP_METRICS,
            "ScheduledBackups": SCHEDULE_METRICS,
            "Topics and consumer groups": TOPIC_METRICS,
        },
    ),
}
"""The parts of the page: text, and metrics by section."""


ABSENT = {
    "rocketmq_pop_": "Only for consumers that use POP, which does not exist here.",
    "rocketmq_processor_watermark": "Length of the queues of thread pools, which do not exist here. Requests that are"
    " served late show in `rocketmq_rpc_latency_milliseconds`, pulls that wait in `rocketmq_held_pulls`.",
    "rocketmq_timer_dequeue_latency_milliseconds": "`rocketmq_timer_dequeue_latency_seconds`.",
    "rocketmq_timer_dequeue_lag": "`rocketmq_timing_messages` that are late show in"
    " `rocketmq_timer_dequeue_latency_seconds`.",
    "rocketmq_timer_enqueue_latency_milliseconds": "`rocketmq_timer_enqueue_lag` is 0 within a moment: the index reads"
    " messages as they are stored.",
    "rocketmq_timer_message_snapshot": "`rocketmq_timing_messages` has all of them, not by their time.",
    "rocketmq_topic_create_execution_time": "`rocketmq_rpc_latency_milliseconds` of `update_and_create_topic`.",
    "rocketmq_consumer_group_create_execution_time": "`rocketmq_rpc_latency_milliseconds` of"
    " `update_and_create_subscriptiongroup`.",
    "rocketmq_finish_message_latency_milliseconds": "`rocketmq_finish_message_latency_seconds`, without `topic`:"
    " RocketMQ records seconds under this name as well.",
}
"""Why a metric of RocketMQ, by the begin of its name, does not exist here, or what takes its place."""
NOTES = {
    "rocketmq_messages_in_total": "RocketMQ counts sends under the topic of the request. Here each put counts under the"
    " topic that the record has, so half and delayed messages count under a system topic first.",
    "rocketmq_throughput_in_total": "Counted as `rocketmq_messages_in_total`.",
    "rocketmq_message_size": "Counted as `rocketmq_messages_in_total`, for all topics together: a histogram"
    " of each would be too many series.",
    "rocketmq_storage_size_bytes": "RocketMQ's is the used space of the disk. Here it is the log alone.",
    "rocketmq_producer_connections": "RocketMQ shows versions of clients, here groups of producers are shown.",
    "rocketmq_consumer_lag_messages": "Here each group that committed an offset has a series. RocketMQ shows groups"
    " while they are connected.",
    "rocketmq_rpc_latency_milliseconds": "Sends that the kernel stores count as `send_message_v2`.",
}
"""How the value of a metric differs."""


def rocketmq() -> dict[str, dict[str, Any]]:
    """Returns type and labels of each metric of RocketMQ, without the labels of all metrics."""
    return dict(json.loads(ROCKETMQ.read_text())["metrics"])


def comparison(name: str, theirs: Mapping[str, Any]) -> str:
    """Returns how a metric of RocketMQ is here. KeyError: nothing says so."""
    mine = {metric.name: metric for metric in declared("Broker")}.get(name)
    if mine is None:
        return next((text for begin, text in ABSENT.items() if name.startswith(begin)), "") or _unknown(name)
    lacking = [
        f"`{label}`" for label in theirs["labels"] if label not in mine.labels and not label.startswith("storage_")
    ]
    more = [f"`{label}`" for label in mine.labels if label not in theirs["labels"]]
    labels = [f"without {', '.join(lacking)}"] * bool(lacking) + [f"with {', '.join(more)}"] * bool(more)
    return " ".join([f"yes{''.join(', ' + each for each in labels)}.", NOTES.get(name, "")]).strip()


def _unknown(name: str) -> str:
    raise KeyError(f"{name} of RocketMQ exists neither here nor in ABSENT")


def _comparison_lines() -> list[str]:
    version = json.loads(ROCKETMQ.read_text())["version"]
    return [
        f"## Beside RocketMQ {version}",
        "",
        f"RocketMQ {version} exposes these metrics after sends, pulls, transactions, delayed messages and dead letters",
        "(`metricsExporterType=PROM`). `make metrics-lab` drives the same load at both brokers and compares them.",
        "RocketMQ adds the labels `otel_scope_name`, and `storage_type` and `storage_medium` to those of the store.",
        "Its labels `is_system` and `is_retry` follow from the names of topics and groups (prefixes `%RETRY%`,",
        "`rmq_sys_` and `CID_RMQ_SYS_`).",
        "",
        "| RocketMQ | labels | here |",
        "| --- | --- | --- |",
        *(
            f"| `{name}` ({theirs['type']}) | {', '.join(f'`{label}`' for label in theirs['labels'])} |"
            f" {comparison(name, theirs)} |"
            for name, theirs in sorted(rocketmq().items())
        ),
        "",
    ]


def declared(*titles: str) -> list[Declared]:
    """Returns the metrics of some parts, of all parts without an argument."""
    chosen = titles or tuple(PARTS)
    return [metric for title in chosen for metrics in PARTS[title][1].values() for metric in metrics]


def _row(metric: Declared) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    cells = (f"`{metric.name}`", metric.type, metric.unit, labels, metric.help, metric.source)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def page() -> str:
    """Returns the content of the page."""
    lines = [
        "# Metrics",
        "",
        "<!-- generated from the declarations by docs/metrics_reference.py (`make metrics-reference`) -->",
        "",
        "Brokers and name servers serve their metrics under `/metrics` of the HTTP port (8080, setting `http.port`),",
        "the operator on port 8081 (`HTTP_PORT`). The format is the text format of Prometheus.",
        "[Operation](operation.md#monitoring-and-http-api) describes the port.",
        "",
        "- A *counter* begins at 0 when the process starts, and only grows. A *gauge* is the value at the time of the",
        "  scrape. A *histogram* has the series `NAME_bucket`, `NAME_sum` and `NAME_count`.",
        f"- Clients choose the names of topics and groups. A metric has at most {MAX_SERIES} series with such labels;",
        f"  one more series with the label value `{OTHER}` has the sum of the rest, of ages the greatest, and",
        "  `rocketmq_series_left_out` tells how many it stands for. The series of a topic or group end when it is",
        "  deleted.",
        "- The format is OpenMetrics 1.0 if the client prefers it (header `Accept`).",
        "- Beside each counter and histogram the operator exposes a gauge with the suffix `_created` (instead of",
        "  `_total`): the time when the series began, in seconds since 1970.",
        "",
        "The chart's alerts and dashboard use only metrics of this page. [Runbooks](runbooks/README.md) explains the",
        "alerts.",
        "",
    ]
    for title, (words, sections) in PARTS.items():
        lines += [f"## {title}", "", words, ""]
        for name, metrics in sections.items():
            if name:
                lines += [f"### {name}", ""]
            lines += [
                "| metric | type | unit | labels | meaning | counted or read from |",
                "| --- | --- | --- | --- | --- | --- |",
            ]
            lines += [_row(metric) for metric in metrics]
            lines.append("")
    lines += _comparison_lines()
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
