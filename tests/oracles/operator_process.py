"""The operator's process as a whole, on an API server in memory: its settings, and what tests wait for."""

from __future__ import annotations

import asyncio
from typing import Any

from simulated_cluster import Cluster

from tallystick.operator.core.settings import Settings

SETTINGS = Settings(
    node_image="node:1",
    pod_name="operator-0",
    pod_namespace="system",
    http_port=0,
    resync_seconds=0.05,
    node_url_template="http://127.0.0.1:1/{node}",
)


def holder(world: Cluster) -> str | None:
    """The process that holds the lease of the release; None: there is no lease."""
    lease = world.api.objects.get(("leases", "system", "tallystick-operator"))
    return None if lease is None else str(lease["spec"]["holderIdentity"])


async def until(condition: Any) -> None:
    """TimeoutError: it did not come true in half a minute."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
