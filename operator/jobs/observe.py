"""Reads the state of one StoreJob: its pods and plan, the progress of its driver, the volumes of its cluster.

Decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Protocol

from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.core.kube import Json
from tallystick.operator.core.members import members_of
from tallystick.operator.core.names import numbers_of
from tallystick.operator.core.node_api import NodeError, NodeName
from tallystick.operator.jobs.manifests import names_of, owns
from tallystick.operator.jobs.observed import Progress, Seen, seen_of
from tallystick.operator.jobs.sources import Choice, Scene
from tallystick.operator.jobs.spec import ClaimOutput, Job

_logger = logging.getLogger(__name__)

TOPICS_SECONDS = 3.0
"""Timeout for the topics of a leader."""
POLL_SECONDS = 2.0
"""Interval between two requests to a running driver. The status shows its progress no more often."""


class Drivers(Protocol):
    """The HTTP interface of drivers."""

    async def progress(self, address: str) -> Progress | None:
        """Returns the progress of the driver at an address; None: no valid answer."""


@dataclass(slots=True)
class _Shown:
    """The last progress of one run, and when it was read, in seconds since 1970."""

    progress: Progress | None = None
    at: float = float("-inf")


class Observer:
    """Reads the API server and drivers. It remembers the last progress of each run."""

    def __init__(self, context: Context, drivers: Drivers) -> None:
        self._context = context
        self._kube = context.kube
        self._drivers = drivers
        self._shown: dict[tuple[str, str], _Shown] = {}

    def forget(self, namespace: str, name: str) -> None:
        """The StoreJob is gone, or its run has ended."""
        self._shown.pop((namespace, name), None)

    async def observe(self, job: Job) -> Seen:
        """Returns pods, plan and progress of a run. KubeError: the API server did not answer."""
        names = names_of(job)
        pods, config = await asyncio.gather(
            self._kube.list(kube.PODS, job.namespace, names.selector()),
            self._kube.find(kube.CONFIG_MAPS, job.namespace, names.shared),
        )
        if config is not None and not owns(job, config):
            config = None
        seen = seen_of(self._context.now(), pods, config, uid=job.uid)
        driver = seen.driver
        if driver is None or not driver.running or driver.deleting or not driver.address:
            return seen
        shown = self._shown.setdefault((job.namespace, job.name), _Shown())
        if seen.now - shown.at < POLL_SECONDS * 0.9:
            return replace(seen, progress=shown.progress)
        progress = await self._drivers.progress(driver.address)
        shown.at = seen.now
        shown.progress = progress or shown.progress
        return replace(seen, progress=progress)

    async def scene(self, job: Job) -> Scene:
        """Returns what volumes are chosen from when an attempt starts. KubeError: the API server did not answer."""
        output = job.spec.output
        members = await members_of(self._kube, job.namespace, job.spec.cluster)
        claim = None
        if isinstance(output, ClaimOutput):
            claim = await self._kube.find(kube.CLAIMS, job.namespace, output.name)
        return Scene(*members, claim, await self._program(job), await self._backup(job))

    async def _backup(self, job: Job) -> Json | None:
        source = job.spec.source
        if source is None or not source.backup:
            return None
        return await self._kube.find(kube.BACKUPS, job.namespace, source.backup)

    async def _program(self, job: Job) -> Json | None:
        program = job.spec.program
        if program is None or not program.config_map:
            return None
        return await self._kube.find(kube.CONFIG_MAPS, job.namespace, program.config_map)

    async def topics(self, job: Job, choice: Choice) -> frozenset[str] | None:
        """Returns the topics that the leaders of the chosen groups know; None: one of them did not answer.

        Without a filter for topics, nothing is asked.
        """
        if not job.spec.arguments.get("topics"):
            return None
        leaders = [NodeName(job.namespace, job.spec.cluster, *numbers_of(node)) for node in choice.leaders]
        if len(leaders) < len({source.group for source in choice.sources}):
            return None
        asked = [self._context.nodes.ask(node, "GET", "/topics", timeout_seconds=TOPICS_SECONDS) for node in leaders]
        try:
            answers = await asyncio.gather(*asked)
            return frozenset(str(row["name"]) for answer in answers for row in answer["topics"])
        except (NodeError, KeyError, TypeError) as error:
            _logger.warning("could not check the topics of a StoreJob: %s", error)
            return None
