"""Generates metrics.md from the declarations of the metrics: names, types, units, labels, meaning, sources.

`python docs/metrics_reference.py` writes docs/metrics.md. A test compares the page with the declarations, and with what
the processes expose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

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


def declared(*titles: str) -> list[Declared]:
    """Returns the metrics of some parts, of all parts without an argument."""
    chosen = titles or tuple(PARTS)
    return [metric for title in chosen for metrics in PARTS[title][1].values() for metric in metrics]


def shown_names(metric: Declared) -> list[str]:
    """Returns the names under which Prometheus stores the metric."""
    if metric.type == "histogram":
        return [f"{metric.name}_{suffix}" for suffix in ("bucket", "sum", "count")]
    return [metric.name]


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
        f"  one more series with the label value `{OTHER}` has the sum of the rest. The series of a topic or group end",
        "  when it is deleted.",
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
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
