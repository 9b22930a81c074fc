"""The figures of a process beside its broker's, for `/metrics`: the name server in it, and memory of connections.

They are read when somebody asks. Names begin with `tally_`, as RocketMQ has no such figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from tallystick.node.nameserver.server import NameServer
    from tallystick.store.memory_budget import MemoryBudget


class _Part:
    """A separate Prometheus collector."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """This part of `/metrics`."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Each figure once."""
        raise NotImplementedError


class MemoryMetrics(_Part):
    """What all connections of the process hold."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        """Each figure once."""
        for name, help_text, value in (
            ("tally_connection_memory_bytes", "unfinished frames, unsent bytes, bodies that wait", self._budget.used),
            ("tally_connection_memory_limit_bytes", "above, the largest connections are cut", self._budget.limit),
        ):
            family = GaugeMetricFamily(name, help_text)
            family.add_metric([], value)
            yield family
        cut = CounterMetricFamily("tally_connection_memory_cuts", "connections that were cut for their memory")
        cut.add_metric([], self._budget.cut_count)
        yield cut


class NameServerMetrics(_Part):
    """A Prometheus collector over one name server."""

    def __init__(self, nameserver: NameServer) -> None:
        self._nameserver = nameserver
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        """Each figure once."""
        routes, brokers = self._nameserver.routes, self._nameserver.brokers
        for name, help_text, value in (
            ("tally_nameserver_brokers", "broker addresses in the routes", routes.address_count),
            ("tally_nameserver_waiting", "registrations behind another connection's", routes.waiting_count),
            ("tally_nameserver_topics", "topics in the routes", len(routes.topics())),
        ):
            family = GaugeMetricFamily(name, help_text)
            family.add_metric([], value)
            yield family
        refused = CounterMetricFamily("tally_nameserver_refused", "refused registrations", labels=["reason"])
        for reason, count in sorted(brokers.refused.items()):
            refused.add_metric([reason], count)
        yield refused
        displaced = CounterMetricFamily(
            "tally_nameserver_displaced", "registrations whose broker did not answer when another one came"
        )
        displaced.add_metric([], brokers.displaced)
        yield displaced
