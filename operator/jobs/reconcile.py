"""One pass over one StoreJob. The order of its parts makes it safe to interrupt it anywhere.

    a run         1. observe its pods, its plan and the progress of its driver
                  2. decide (pure)
                  3. to prepare an attempt: choose volumes; create Service, NetworkPolicy, Secret, then the plan
                  4. write the status
                  5. create pods, delete pods, or delete the StoreJob
    a template    delete old runs, create the run that is due, write the status

The next pass, of this operator or another one, continues an interrupted pass: see `decide.py`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.core.events import Reference
from tallystick.operator.core.kube import ConflictError, Json
from tallystick.operator.core.members import Refusal
from tallystick.operator.core.times import seconds
from tallystick.operator.core.work_queue import Key, Kind
from tallystick.operator.jobs import reasons
from tallystick.operator.jobs.carry_out import Hands
from tallystick.operator.jobs.decide import Action, Decision, decide, expires_at, held
from tallystick.operator.jobs.manifests import (
    config_map,
    owns,
)
from tallystick.operator.jobs.metrics import JobMetrics
from tallystick.operator.jobs.names import TEMPLATE_LABEL
from tallystick.operator.jobs.observe import POLL_SECONDS, Drivers, Observer
from tallystick.operator.jobs.observed import Seen
from tallystick.operator.jobs.plan import plan as plan_for
from tallystick.operator.jobs.reasons import OVER, Phase
from tallystick.operator.jobs.result import FOUND
from tallystick.operator.jobs.sources import Choice, choose, unknown_topics
from tallystick.operator.jobs.spec import Job, JobSpecError
from tallystick.operator.jobs.status import refused_status, run_status
from tallystick.operator.jobs.template import run_manifest, run_of, template_status, turn

_logger = logging.getLogger(__name__)

MOVING_SECONDS = 1.0
WAITING_SECONDS = 10.0
TEMPLATE_SECONDS = 60.0
"""Longest interval of passes over a template, because clocks can be adjusted."""
EXPIRY_SECONDS = 300.0

NEXT: dict[Phase, float | None] = {
    Phase.SUBMITTED: POLL_SECONDS,
    Phase.RUNNING: POLL_SECONDS,
    Phase.SUCCEEDING: MOVING_SECONDS,
    Phase.FAILING: MOVING_SECONDS,
    Phase.PENDING_RERUN: MOVING_SECONDS,
    Phase.SUBMISSION_FAILED: WAITING_SECONDS,
    Phase.SUSPENDED: WAITING_SECONDS,
}


@dataclass(slots=True)
class _Memory:
    """Memory about one StoreJob for the life of the process. Losing it is harmless."""

    told: set[tuple[str, str]] = field(default_factory=set)
    """Events of the last pass, to record each once."""


class JobsReconciler:
    """Runs the passes for keys of StoreJobs."""

    def __init__(self, context: Context, drivers: Drivers, metrics: JobMetrics) -> None:
        self._context = context
        self._kube = context.kube
        self._observer = Observer(context, drivers)
        self._hands = Hands(context)
        self._metrics = metrics
        self._memory: dict[tuple[str, str], _Memory] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Runs one pass. Returns the seconds until the next; None: nothing is left to do. KubeError: retry."""
        body = await self._kube.find(kube.STORE_JOBS, key.namespace, key.name)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._memory.pop((key.namespace, key.name), None)
            self._observer.forget(key.namespace, key.name)
            self._metrics.forgot(key.namespace, key.name)
            return None  # garbage collection deletes the objects
        try:
            job = Job.parse(body)
        except JobSpecError as error:
            return await self._refuse(body, str(error))
        if job.spec.schedule is not None:
            return await self._template(job, body)
        return await self._run(job, body)

    # -- a run ---------------------------------------------------------------------------------------------------------

    async def _run(self, job: Job, body: Json) -> float | None:
        seen = await self._observer.observe(job)
        decision = decide(job, seen)
        if decision.action is Action.PREPARE:
            decision, seen = await self._prepare(job, seen, decision)
        job = await self._say(job, body, seen, decision)
        refusal = None
        match decision.action:
            case Action.START:
                refusal = await self._hands.start(job, seen)
            case Action.DELETE_PODS:
                await self._hands.delete_pods(job, decision.delete)
            case Action.EXPIRE:
                await self._hands.delete(job.name, job.namespace, job.uid)
                return None
        if refusal is not None:
            await self._say(job, body, seen, replace(decision, reason=refusal.reason, message=refusal.message))
            return WAITING_SECONDS
        if decision.phase not in OVER:
            return NEXT[decision.phase]
        if decision.delete:
            return MOVING_SECONDS
        self._memory.pop((job.namespace, job.name), None)
        self._observer.forget(job.namespace, job.name)
        expires = expires_at(job)
        return None if expires is None else min(max(expires - seen.now, MOVING_SECONDS), EXPIRY_SECONDS)

    async def _prepare(self, job: Job, seen: Seen, decision: Decision) -> tuple[Decision, Seen]:
        """Creates all objects of an attempt except its pods; the plan last, because it implies the others."""
        if not (job.spec.image or self._context.settings.jobs_image):
            told = "no image for jobs is configured: set spec.image, or TALLYSTICK_JOBS_IMAGE of the operator"
            return held(job, decision, Refusal(reasons.NO_IMAGE, told)), seen
        choice = choose(job, await self._observer.scene(job))
        if isinstance(choice, Refusal):
            return held(job, decision, choice), seen
        if refusal := unknown_topics(job, await self._observer.topics(job, choice)):
            return held(job, decision, refusal), seen
        plan = plan_for(job, choice, decision.attempt, self._context.settings.node_url_template)
        without_claim = [source.node for source in choice.sources if source.hosts and source.claim is None]
        if refusal := await self._hands.set_up(job, config_map(job, plan, without_claim)):
            return held(job, decision, refusal), seen
        await self._tell_begun(job, decision.attempt, choice)
        prepared = replace(seen, plan=plan, without_claim=frozenset(without_claim))
        return replace(decision, action=Action.START), prepared

    # -- a template ----------------------------------------------------------------------------------------------------

    async def _template(self, job: Job, body: Json) -> float:
        label = f"{TEMPLATE_LABEL}={job.name}"
        bodies = await self._kube.list(kube.STORE_JOBS, job.namespace, label)
        runs = [run_of(each) for each in bodies if owns(job, each)]
        now = self._context.now()
        chosen = turn(job, runs, now)
        for run in chosen.delete:
            await self._hands.delete(run.name, job.namespace, run.uid)
        about, memory = Reference.to(body), self._memory.setdefault((job.namespace, job.name), _Memory())
        if chosen.make:
            assert chosen.scheduled is not None
            try:
                made = await self._kube.create(
                    kube.STORE_JOBS, job.namespace, run_manifest(job, body["spec"], chosen.scheduled)
                )
                self._context.look_at(Key(job.namespace, made["metadata"]["name"], Kind.JOB))
            except ConflictError as error:
                _logger.warning("%s/%s: the name of the run already exists: %s", job.namespace, job.name, error)
        for told in chosen.told:
            if (told.reason, told.message) not in memory.told:
                await self._context.events.post(about, told.reason, told.message, warning=told.warning)
        memory.told = {(told.reason, told.message) for told in chosen.told}
        status = template_status(job, runs, chosen, now)
        if status != job.status:
            await self._kube.apply_status(kube.STORE_JOBS, body, status)
        self._metrics.saw(job.namespace, job.name, status)
        wait = TEMPLATE_SECONDS if chosen.next is None else chosen.next - now
        return min(max(wait, 0.0) + 0.05, TEMPLATE_SECONDS)

    # -- status, events and metrics -----------------------------------------------------------------------------------

    async def _say(self, job: Job, body: Json, seen: Seen, decision: Decision) -> Job:
        """Writes the status if it changed, and events and metrics if the phase changed."""
        status = run_status(job, seen, decision)
        self._metrics.saw(job.namespace, job.name, status)
        if status == job.status:
            return job
        await self._kube.apply_status(kube.STORE_JOBS, body, status)
        before, job = job, replace(job, status=status)
        if before.phase != job.phase:
            _logger.info("%s/%s: %s %s", job.namespace, job.name, job.phase, status.get("message", ""))
            await self._tell_phase(before, job, body, decision)
        return job

    async def _tell_phase(self, before: Job, job: Job, body: Json, decision: Decision) -> None:
        about, told = Reference.to(body), str(job.status.get("message") or "")
        match decision.phase:
            case Phase.SUCCEEDING:
                assert decision.result is not None, "a result precedes this phase"
                verdict = decision.result.verdict
                await self._context.events.post(about, verdict, told, warning=verdict in FOUND)
            case Phase.PENDING_RERUN | Phase.FAILING:
                self._metrics.attempts_failed.labels(decision.reason).inc()
                await self._context.events.post(about, decision.reason, told, warning=True)
            case Phase.SUBMISSION_FAILED if decision.reason:
                await self._context.events.post(about, decision.reason, told, warning=True)
            case Phase.COMPLETED | Phase.FAILED:
                verdict = str((job.status.get("result") or {}).get("verdict") or Phase.FAILED)
                self._metrics.ends.labels(job.spec.job, verdict).inc()
                begun, ended = (seconds(job.status.get(name)) for name in ("startTime", "completionTime"))
                if begun is not None and ended is not None:
                    self._metrics.seconds.labels(job.spec.job).observe(ended - begun)
                if before.phase != Phase.FAILING and decision.phase is Phase.FAILED:
                    await self._context.events.post(about, decision.reason, told, warning=True)

    async def _tell_begun(self, job: Job, attempt: int, choice: Choice) -> None:
        about = Reference(kube.STORE_JOBS.api_version, kube.STORE_JOBS.kind, job.namespace, job.name, job.uid)
        remote = [source.node for source in choice.sources if source.claim is None]
        read = ", ".join(source.node for source in choice.sources)
        over = f"; over HTTP: {', '.join(remote)}" if remote else ""
        await self._context.events.post(about, "Submitted", f"attempt {attempt} reads {read}{over}")

    async def _refuse(self, body: Json, message: str) -> float | None:
        metadata, before = body["metadata"], body.get("status") or {}
        status = refused_status(metadata.get("generation", 0), self._context.now(), message, before)
        if before.get("phase") in OVER and before.get("phase") != Phase.FAILED:
            return None  # an ended run keeps its status when its spec changes
        if status != before:
            await self._kube.apply_status(kube.STORE_JOBS, body, status)
            await self._context.events.post(Reference.to(body), reasons.INVALID_SPEC, message, warning=True)
        self._metrics.saw(metadata["namespace"], metadata["name"], status)
        return None
