"""One pass over one ScheduledBackup. The order of its parts makes it safe to interrupt it anywhere.

1. observe its Backups, and the clusters that may be restored from them
2. decide (pure)
3. create the Backup that is due; delete one that the retention does not keep
4. write the status, events and metrics
"""

from __future__ import annotations

import logging
from dataclasses import replace

from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.core.events import Reference, Told
from tallystick.operator.core.kube import Json
from tallystick.operator.core.times import timestamp
from tallystick.operator.core.work_queue import Key, Kind
from tallystick.operator.schedules.carry_out import Hands
from tallystick.operator.schedules.decide import Decision, decide
from tallystick.operator.schedules.metrics import ScheduleMetrics
from tallystick.operator.schedules.observe import observe
from tallystick.operator.schedules.observed import Seen, run_name
from tallystick.operator.schedules.reasons import INVALID_SPEC, Phase
from tallystick.operator.schedules.spec import ScheduledBackup, ScheduledBackupSpecError
from tallystick.operator.schedules.status import refused_status, required_time, schedule_status

_logger = logging.getLogger(__name__)

WAITING_SECONDS = 10.0
LONGEST_SECONDS = 60.0
"""Longest interval of passes, because clocks can be adjusted."""


class SchedulesReconciler:
    """Runs the passes for keys of ScheduledBackups."""

    def __init__(self, context: Context, metrics: ScheduleMetrics) -> None:
        self._context = context
        self._kube = context.kube
        self._hands = Hands(context)
        self._metrics = metrics
        self._told: dict[tuple[str, str], set[Told]] = {}
        """Events of the last pass, to record each once. Losing it repeats an event."""

    async def reconcile(self, key: Key) -> float | None:
        """Runs one pass. Returns the seconds until the next; None: nothing is left to do. KubeError: retry."""
        body = await self._kube.find(kube.SCHEDULED_BACKUPS, key.namespace, key.name)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._told.pop((key.namespace, key.name), None)
            self._metrics.forgot(key.namespace, key.name)
            return None
        try:
            schedule = ScheduledBackup.parse(body)
        except ScheduledBackupSpecError as error:
            await self._refuse(body, str(error))
            return None
        seen = await observe(self._context, schedule)
        decision = await self._carry_out(schedule, seen, decide(schedule, seen))
        await self._say(schedule, body, seen, decision)
        if decision.waits is not None or decision.held is not None:
            return WAITING_SECONDS
        wait = LONGEST_SECONDS if decision.next is None else decision.next - seen.now
        return min(max(wait, 0.0) + 0.05, LONGEST_SECONDS)

    async def _carry_out(self, schedule: ScheduledBackup, seen: Seen, decision: Decision) -> Decision:
        """Creates and deletes Backups. Returns the decision with what the API server rejected."""
        if decision.make is not None:
            name = run_name(schedule, decision.make)
            if refusal := await self._hands.create(schedule, seen, decision.make):
                told = (*decision.told, Told(refusal.reason, refusal.message, True))
                last = schedule.last
                decision = replace(decision, phase=Phase.WAITING, make=None, last=last, waits=refusal, told=told)
            else:
                decision = replace(decision, told=(*decision.told, Told("BackupCreated", f"created {name}")))
                self._context.look_at(Key(schedule.namespace, name, Kind.BACKUP))
        for run in decision.spare:
            await self._hands.spare(schedule, run)
        if decision.prune is not None:
            if refusal := await self._hands.delete(schedule, decision.prune):
                told = (*decision.told, Told(refusal.reason, refusal.message, True))
                return replace(decision, held=refusal, told=told)
            self._context.look_at(Key(schedule.namespace, decision.prune.name, Kind.BACKUP))
        return decision

    async def _say(self, schedule: ScheduledBackup, body: Json, seen: Seen, decision: Decision) -> None:
        """Writes the status if it changed, metrics, and events that the last pass did not write."""
        status = schedule_status(schedule, seen, decision)
        if status != schedule.status:
            await self._kube.apply_status(kube.SCHEDULED_BACKUPS, body, status)
        required = required_time(schedule, status, seen.now)
        self._metrics.saw(schedule.namespace, schedule.name, schedule.cluster, status, required)
        told, before = set(decision.told), self._told.get((schedule.namespace, schedule.name), set())
        self._told[schedule.namespace, schedule.name] = told
        for each in decision.told:
            if each not in before:
                await self._context.events.post(Reference.to(body), each.reason, each.message, warning=each.warning)
        if decision.make is not None:
            _logger.info("%s/%s: created the Backup of %s", schedule.namespace, schedule.name, timestamp(decision.make))

    async def _refuse(self, body: Json, message: str) -> None:
        metadata, before = body["metadata"], body.get("status") or {}
        status = refused_status(metadata.get("generation", 0), self._context.now(), message, before)
        cluster = str(((body.get("spec") or {}).get("template") or {}).get("clusterName") or "")
        self._metrics.saw(metadata["namespace"], metadata["name"], cluster, status, None)
        if status != before:
            await self._kube.apply_status(kube.SCHEDULED_BACKUPS, body, status)
            await self._context.events.post(Reference.to(body), INVALID_SPEC, message, warning=True)
