"""The dependencies of every reconciliation: API server, nodes, events, metrics and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tallystick.operator.core.admin_token import AdminTokens
from tallystick.operator.core.events import Events
from tallystick.operator.core.kube import Kube
from tallystick.operator.core.metrics import Metrics
from tallystick.operator.core.node_api import NodeApi, Trust
from tallystick.operator.core.settings import Settings
from tallystick.operator.core.work_queue import Key


@dataclass(frozen=True, slots=True)
class Context:
    """One instance for the process."""

    kube: Kube
    nodes: NodeApi
    settings: Settings
    events: Events
    metrics: Metrics
    token: AdminTokens
    """Returns the admin token of a cluster, by namespace and name."""
    look_at: Callable[[Key], None]
    """Adds a key to the queue."""
    now: Callable[[], float]
    """Seconds since 1970, for timestamps. Intervals are measured with the clock of the event loop."""
    other_operator: Callable[[str], str] = lambda namespace: ""
    """Returns another operator that watches a namespace and waits; empty: there is none."""
    trust: Trust = field(default_factory=Trust)
    """Which nodes serve TLS, and which authorities the operator trusts for them: `nodes` uses it."""
