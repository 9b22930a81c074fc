"""Reads the state of one ScheduledBackup: the Backups and clusters of its namespace. Decides nothing."""

from __future__ import annotations

import asyncio

from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.schedules.observed import Seen, seen_of
from tallystick.operator.schedules.spec import ScheduledBackup


async def observe(context: Context, schedule: ScheduledBackup) -> Seen:
    """Returns the state of a schedule. KubeError: the API server did not answer."""
    api, namespace = context.kube, schedule.namespace
    backups, clusters = await asyncio.gather(api.list(kube.BACKUPS, namespace), api.list(kube.CLUSTERS, namespace))
    return seen_of(schedule, context.now(), backups, clusters)
