"""One pass over one Backup. The order of its parts makes it safe to interrupt it anywhere.

1. observe its Jobs and pods, and the members and volumes of its cluster
2. decide (pure)
3. add the finalizer, if the stored backup is to be deleted with the resource
4. write the status: the attempts that begin, and how the others ended
5. delete the Jobs of ended attempts, because their pods keep the claim of a member in use
6. create missing Jobs, or remove the finalizer
"""

from __future__ import annotations

import logging
from dataclasses import replace

from tallystick.operator.backups.carry_out import Hands
from tallystick.operator.backups.decide import Decision, decide
from tallystick.operator.backups.metrics import BackupMetrics
from tallystick.operator.backups.observe import observe
from tallystick.operator.backups.reasons import OVER, Phase
from tallystick.operator.backups.spec import FINALIZER, Backup, BackupSpecError
from tallystick.operator.backups.status import backup_status, refused_status
from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.core.events import Reference
from tallystick.operator.core.kube import Json
from tallystick.operator.core.times import seconds
from tallystick.operator.core.work_queue import Key

_logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
WAITING_SECONDS = 10.0


class BackupsReconciler:
    """Runs the passes for keys of Backups."""

    def __init__(self, context: Context, metrics: BackupMetrics) -> None:
        self._context = context
        self._kube = context.kube
        self._hands = Hands(context)
        self._metrics = metrics

    async def reconcile(self, key: Key) -> float | None:
        """Runs one pass. Returns the seconds until the next; None: nothing is left to do. KubeError: retry."""
        body = await self._kube.find(kube.BACKUPS, key.namespace, key.name)
        if body is None:
            self._metrics.forgot(key.namespace, key.name)
            return None
        try:
            backup = Backup.parse(body)
        except BackupSpecError as error:
            await self._refuse(body, str(error))
            return None
        if backup.deleting and not backup.marked:
            self._metrics.forgot(key.namespace, key.name)
            return None  # garbage collection deletes the Jobs
        seen = await observe(self._context, backup)
        decision = decide(backup, seen)
        if decision.mark:
            await self._hands.mark(body)
            body = await self._kube.get(kube.BACKUPS, key.namespace, key.name)
        await self._say(backup, body, decision, seen.now)
        if decision.release:
            await self._hands.delete_jobs(backup, seen, set())
            await self._hands.release(await self._kube.get(kube.BACKUPS, key.namespace, key.name))
            return None
        wanted = decision.wanted(backup)
        left = await self._hands.delete_jobs(backup, seen, set(wanted))
        for name, group in wanted.items():
            attempt = seen.attempts.get(name)
            due = seen.now >= (seconds(group.get("retryTime")) or 0.0)
            if (attempt is not None and attempt.own) or not due:
                continue
            if refusal := await self._hands.create(backup, group, seen):
                told = replace(decision, reason=refusal.reason, message=refusal.message, told=())
                await self._say(backup, await self._kube.get(kube.BACKUPS, key.namespace, key.name), told, seen.now)
                return WAITING_SECONDS
        if decision.phase in OVER:
            return POLL_SECONDS if left else None
        return (
            POLL_SECONDS if wanted or (decision.phase is not Phase.PENDING and not decision.asleep) else WAITING_SECONDS
        )

    async def _say(self, backup: Backup, body: Json, decision: Decision, now: float) -> None:
        """Writes the status if it changed, and events and metrics if the phase changed."""
        before = body.get("status") or {}
        status = backup_status(replace(backup, status=before), decision, now)
        self._metrics.saw(backup.namespace, backup.name, backup.cluster, status, backup.schedule)
        if status == before:
            return
        await self._kube.apply_status(kube.BACKUPS, body, status)
        about = Reference.to(body)
        for reason, message in decision.told:
            await self._context.events.post(about, reason, message, warning=True)
        if status["phase"] == before.get("phase"):
            return
        _logger.info("%s/%s: %s %s", backup.namespace, backup.name, status["phase"], status["message"])
        failed = decision.phase is Phase.FAILED
        if failed:
            self._metrics.count_failure(backup.namespace, backup.cluster)
        if decision.phase in (*OVER, Phase.RUNNING):
            await self._context.events.post(about, str(decision.phase), status["message"] or "started", warning=failed)

    async def _refuse(self, body: Json, message: str) -> None:
        """An invalid spec. Nothing was stored, or nothing is known about it: the finalizer is removed."""
        metadata, before = body["metadata"], body.get("status") or {}
        if metadata.get("deletionTimestamp"):
            if FINALIZER in (metadata.get("finalizers") or ()):
                await self._hands.release(body)
            return
        status = refused_status(metadata.get("generation", 0), self._context.now(), message, before)
        if status != before:
            await self._kube.apply_status(kube.BACKUPS, body, status)
            await self._context.events.post(Reference.to(body), status["reason"], message, warning=True)
