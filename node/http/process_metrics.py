"""Metrics of a process apart from those of its broker, for `/metrics`: its name server, and the memory of connections.

Their names begin with `tally_`, because RocketMQ has no such metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tallystick.node.http.metric import MetricDeclaration, MetricsPart, Sample, counter, gauge

if TYPE_CHECKING:
    from tallystick.node.nameserver.server import NameServer
    from tallystick.store.memory_budget import MemoryBudget


class MemoryMetrics(MetricsPart["MemoryBudget"]):
    """The memory that the connections of the process hold."""

    def __init__(self, budget: MemoryBudget) -> None:
        super().__init__(budget, MEMORY_METRICS)


class NameServerMetrics(MetricsPart["NameServer"]):
    """The metrics of one name server."""

    def __init__(self, nameserver: NameServer) -> None:
        super().__init__(nameserver, NAMESERVER_METRICS)


def _refused(nameserver: NameServer) -> Iterator[Sample]:
    for reason, count in sorted(nameserver.brokers.refused.items()):
        yield (reason,), count


def _denied(nameserver: NameServer) -> Iterator[Sample]:
    if nameserver.access is not None:
        for reason, count in nameserver.access.denied.items():
            yield (reason,), count


MEMORY_METRICS: tuple[MetricDeclaration[MemoryBudget], ...] = (
    gauge(
        "tally_connection_memory_bytes",
        "bytes",
        "Memory that the process holds for its peers: unfinished frames, unsent bytes, and bodies of requests in"
        " progress.",
        "memory budget of the process",
        lambda budget: budget.used,
    ),
    gauge(
        "tally_connection_memory_limit_bytes",
        "bytes",
        "Limit of that memory. Above it the process closes the connections that hold most.",
        "setting `connectionMemoryBytes`, or the default for this machine",
        lambda budget: budget.limit,
    ),
    counter(
        "tally_connection_memory_cuts_total",
        "connections",
        "Connections that the process closed because of that limit.",
        "memory budget of the process",
        lambda budget: budget.cut_count,
    ),
)

NAMESERVER_METRICS: tuple[MetricDeclaration[NameServer], ...] = (
    gauge(
        "tally_nameserver_brokers",
        "addresses",
        "Addresses of brokers that are in the routes.",
        "registrations that are in effect",
        lambda nameserver: nameserver.routes.address_count,
    ),
    gauge(
        "tally_nameserver_waiting",
        "registrations",
        "Registrations that wait because another connection holds the address, or the name and id.",
        "registrations that are not in effect",
        lambda nameserver: nameserver.routes.waiting_count,
    ),
    gauge(
        "tally_nameserver_topics",
        "topics",
        "Topics that are in the routes.",
        "registrations that are in effect",
        lambda nameserver: len(nameserver.routes.topics()),
    ),
    counter(
        "tally_nameserver_refused_total",
        "requests",
        "Registrations and unregistrations that the name server refused, by reason: `bounds` (a value outside its"
        " limits), `stale term` (an older leader), `held` (another connection holds the place) or `farewell` (an"
        " unregistration of what another connection holds). A reason appears with its first refusal.",
        "each refused request",
        _refused,
        "reason",
    ),
    counter(
        "tally_nameserver_denied_total",
        "requests",
        "Requests that access control refused, by reason, as the metric of brokers. No series without `aclEnable`.",
        "each refused request",
        _denied,
        "reason",
    ),
    gauge(
        "tally_nameserver_accounts_unusable",
        "0 or 1",
        "1 if the account file cannot be used as it is. The name server uses the last good accounts.",
        "the last look at the account file",
        lambda nameserver: float(nameserver.accounts is not None and nameserver.accounts.problem != ""),
    ),
    counter(
        "tally_nameserver_displaced_total",
        "registrations",
        "Registrations that ended because their broker did not answer when another connection registered the same"
        " place.",
        "each displaced registration",
        lambda nameserver: nameserver.brokers.displaced,
    ),
)
