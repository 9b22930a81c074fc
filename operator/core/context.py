"""What every pass is given: the way to the API server, to the nodes, and to whoever has to hear of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tallystick.operator.core.admin_token import AdminTokens
from tallystick.operator.core.events import Events
from tallystick.operator.core.kube import Kube
from tallystick.operator.core.metrics import Metrics
from tallystick.operator.core.node_api import NodeApi
from tallystick.operator.core.settings import Settings
from tallystick.operator.core.work_queue import Key


@dataclass(frozen=True, slots=True)
class Context:
    """One for the process."""

    kube: Kube
    nodes: NodeApi
    settings: Settings
    events: Events
    metrics: Metrics
    token: AdminTokens
    """Of a namespace's cluster: what its nodes ask for."""
    look_at: Callable[[Key], None]
    """Asks for a pass of a key, soon."""
    now: Callable[[], float]
    """Seconds since 1970: for what people read. Waits are measured by the loop's clock."""
