"""Metrics of a process apart from those of its broker, for `/metrics`: its name server, the memory of connections, TLS.

Their names begin with `tally_`, because RocketMQ has no such metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tallystick.node.http.bounded_series import Sample
from tallystick.node.http.metric import MetricDeclaration, MetricsPart, counter, gauge
from tallystick.store.clock import wall_ms

if TYPE_CHECKING:
    from tallystick.node.nameserver.server import NameServer
    from tallystick.node.tls.process import ProcessTls
    from tallystick.store.memory_budget import MemoryBudget

_DAY_MS = 86_400_000


class MemoryMetrics(MetricsPart["MemoryBudget"]):
    """The memory that the connections of the process hold."""

    def __init__(self, budget: MemoryBudget) -> None:
        super().__init__(budget, MEMORY_METRICS)


class TlsMetrics(MetricsPart["ProcessTls"]):
    """TLS of the process."""

    def __init__(self, tls: ProcessTls) -> None:
        super().__init__(tls, TLS_METRICS)


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


def _days_left(tls: ProcessTls) -> Iterator[Sample]:
    if tls.certificate.expires_s is not None:
        yield (), (tls.certificate.expires_s * 1000 - wall_ms()) / _DAY_MS


def _handshakes(tls: ProcessTls) -> Iterator[Sample]:
    yield ("completed",), tls.handshakes.completed
    yield ("failed",), tls.handshakes.failed


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

TLS_METRICS: tuple[MetricDeclaration[ProcessTls], ...] = (
    gauge(
        "tally_tls_certificate_expiry_days",
        "days",
        "Days until the certificate for clients ends; negative after that. No series without `tls.server.certPath`.",
        "the certificate that is in use",
        _days_left,
    ),
    gauge(
        "tally_tls_certificate_unusable",
        "0 or 1",
        "1 if the files of the certificate cannot be used as they are. The process uses the last good ones.",
        "the last look at the files",
        lambda tls: float(tls.certificate.problem != ""),
    ),
    counter(
        "tally_tls_handshakes_total",
        "handshakes",
        "TLS handshakes of clients, by result: `completed` or `failed`. A handshake also fails if the client leaves, if"
        " it takes too long, or if it is ended for newer ones.",
        "the end of each handshake",
        _handshakes,
        "result",
    ),
    gauge(
        "tally_tls_handshakes",
        "handshakes",
        "TLS handshakes of clients that are in progress.",
        "handshakes of all ports of the process",
        lambda tls: len(tls.handshakes),
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
