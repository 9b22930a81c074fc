"""One pass over one cluster. The order of its parts makes it safe to interrupt it anywhere.

    1. observe: read all objects and ask all members
    2. apply objects that differ from their manifests, in an order that is valid after each write
    3. decide on a step (pure)
    4. write the status; a disruptive step is recorded before it is carried out
    5. observe again; carry out the step if the decision is still the same

The next pass, of this operator or another one, continues an interrupted pass. A pass that fails writes why to the
status and to an event, and leaves the rest of the status as it was.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from tallystick.operator.clusters import adoption_status
from tallystick.operator.clusters.carry_out import BlockedError, carry_out, restart_name_server
from tallystick.operator.clusters.decide import Action, Decision, Hold, Step, decide
from tallystick.operator.clusters.layout import Layout, layout, wanted_of
from tallystick.operator.clusters.name_servers import next_restart
from tallystick.operator.clusters.observe import Sight, look
from tallystick.operator.clusters.observed import AdoptionRow, Observed, SecurityView
from tallystick.operator.clusters.quorum import blind
from tallystick.operator.clusters.reading import read
from tallystick.operator.clusters.recovery import recovery_events
from tallystick.operator.clusters.security import keep_secrets
from tallystick.operator.clusters.security_status import security_events
from tallystick.operator.clusters.spec import Cluster, SpecError
from tallystick.operator.clusters.status import (
    cluster_status,
    failed_pass_status,
    failed_status,
    next_underway,
    node_status,
    unplanned_phase,
)
from tallystick.operator.clusters.stopping import fence_warnings, stopped_peers
from tallystick.operator.clusters.writing import Outcome, Writer
from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.core.events import Reference
from tallystick.operator.core.kube import ConflictError, Json, KubeError, NotFoundError, UnavailableError
from tallystick.operator.core.names import LEFT, REPLACE, Names
from tallystick.operator.core.node_api import NodeError
from tallystick.operator.core.work_queue import Key

_logger = logging.getLogger(__name__)

ROUNDS = 4
"""Limit of observations in one pass. Writes produce new values, such as the UID of a BrokerNode."""
MOVING_SECONDS = 1.0
"""Interval of passes during a change: no event reports that a member has caught up."""
STEPPED_SECONDS = 0.3
HINDERED_SECONDS = 5.0
"""Interval of passes while a recovery waits for its source, or groups follow masters: no event reports a change."""
SILENT_FAILURE_SECONDS = 20.0
"""A pass that fails because the API server does not answer, or because an object changed meanwhile, is retried for so
long before the status reports it."""


@dataclass(slots=True)
class _Memory:
    """Memory about one cluster for the life of the process. Losing it is harmless."""

    stuck_restarts: dict[str, int] = field(default_factory=dict)
    blocked: str = ""
    """Why the last step failed; empty: it did not."""
    name_server_blocked: str = ""
    """Why the last restart of a name server was not possible; empty: it was, or there was none."""
    failing_since: float | None = None
    """Since when every pass has failed, in seconds since 1970; None: the last one did not."""
    told: frozenset[tuple[str, str]] = frozenset()
    """Reasons and messages of the last pass, to record an event for each once."""
    rows: dict[int, AdoptionRow] = field(default_factory=dict)
    """What was found out about the switches of groups, and is not in the status yet."""


class ClusterReconciler:
    """Runs the passes for keys of clusters."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._writer = Writer(context)
        self._memory: dict[tuple[str, str], _Memory] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Runs one pass. Returns the seconds until the next; None: the cluster does not exist. KubeError: retry."""
        body = await self._context.kube.find(kube.CLUSTERS, key.namespace, key.name)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._forget(key)
            return None  # garbage collection deletes the objects, and claims are kept
        try:
            cluster = Cluster.parse(body, self._context.settings.node_image)
        except SpecError as error:
            await self._refuse(body, str(error))
            return self._context.settings.resync_seconds
        memory = self._memory.setdefault((cluster.namespace, cluster.name), _Memory())
        try:
            again = await self._pass(cluster, body, memory)
        except Exception as error:
            await self._tell_failure(cluster, body, memory, error)
            raise
        memory.failing_since = None
        return again

    async def _pass(self, cluster: Cluster, body: Json, memory: _Memory) -> float:
        refusals = await self._writer.ensure_secrets(cluster)
        for _ in range(ROUNDS):
            sight = await look(self._context, cluster, body)
            observed = self._read(cluster, sight, memory, Outcome())
            security, issued = await keep_secrets(self._context, cluster, sight.objects, observed, sight.secrets)
            observed = replace(observed, security=security)
            plan = _permitted(layout(cluster, observed), security)
            outcome = await self._writer.write(cluster, sight.objects, plan)
            changed = await self._clear_marks(cluster, sight, observed)
            if not (outcome.written or changed or issued):
                break
        if any(each.exists and not each.ready for each in observed.members):
            refusals = await self._writer.ensure_secrets(cluster, awaited=True) or refusals
        outcome.refusals += [*refusals, *([memory.name_server_blocked] if memory.name_server_blocked else [])]
        observed = replace(self._read(cluster, sight, memory, outcome), security=security)
        await self._tell_refusals(cluster, body, observed, memory)
        self._count_stuck(cluster, observed, memory)
        decision = decide(observed, wanted_of(cluster, plan))
        await self._write_status(cluster, sight, observed, plan, decision, memory)
        if decision.step is None:
            memory.blocked = ""
            await self._restart_name_server(cluster, sight, observed, memory)
            moving = sight.objects.cluster["status"]["phase"] in ("Creating", "Updating", "Scaling", "Hibernating")
            resync = self._context.settings.resync_seconds
            if observed.hindrance is not None or plan.adopting or security.moves:
                return min(HINDERED_SECONDS, resync)
            return MOVING_SECONDS if moving else resync
        await self._step(cluster, body, decision.step, observed, memory)
        return STEPPED_SECONDS if not memory.blocked else MOVING_SECONDS

    def _read(self, cluster: Cluster, sight: Sight, memory: _Memory, outcome: Outcome) -> Observed:
        return read(
            cluster,
            sight.objects,
            sight.answers,
            now=self._context.now(),
            stuck_restarts=memory.stuck_restarts,
            refusals=tuple(outcome.refusals),
            resize_refusals=tuple(outcome.resize_refusals),
            taken=tuple(outcome.taken),
            other_operator=self._context.other_operator(cluster.namespace),
            source=sight.source,
            copies=sight.copies,
            plan=sight.plan,
            rows=memory.rows,
        )

    async def _clear_marks(self, cluster: Cluster, sight: Sight, observed: Observed) -> bool:
        """Removes outdated annotations: `replace` after its claim was deleted, `left` of a wanted member."""
        names, changed = Names(cluster.namespace, cluster.name), False
        for member in observed.members:
            claim, marks = member.claim, []
            if member.replace and (claim is None or claim.deleting):
                marks.append((sight.objects.get("BrokerNode", names.node(member.group, member.number)), REPLACE))
            if claim is not None and claim.left and member.number < cluster.spec.replicas:
                live = sight.objects.get("PersistentVolumeClaim", names.claim(member.group, member.number))
                marks.append((live, LEFT))
            for live, annotation in marks:
                assert live is not None, "the mark was read from it"
                try:
                    await self._context.kube.patch_live(live, {"metadata": {"annotations": {annotation: None}}})
                except (ConflictError, NotFoundError):
                    pass  # the next round reads it again
                changed = True
        return changed

    async def _step(self, cluster: Cluster, body: Json, step: Step, before: Observed, memory: _Memory) -> None:
        """Carries out a step if it is still the next one. `before`: what it was decided from, with what was recorded
        before this step was."""
        rows, security = before.rows, before.security
        sight = await look(self._context, cluster, body)
        observed = self._read(cluster, sight, memory, Outcome())
        plan = _permitted(layout(cluster, observed), security)
        again = decide(replace(observed, rows=rows), wanted_of(cluster, plan)).step
        if again is None or (again.action, again.group, again.member, again.uid) != (
            *(step.action, step.group, step.member, step.uid),
        ):
            _logger.info("step is no longer needed: %s n%d of group %d", step.action.value, step.member, step.group)
            return
        if step.action is Action.RESTART and step.reason == "Stuck":
            name = Names(cluster.namespace, cluster.name).node(step.group, step.member)
            memory.stuck_restarts[name] = memory.stuck_restarts.get(name, 0) + 1
        try:
            row = await carry_out(self._context, cluster, sight.objects, observed, again)
            memory.blocked = ""
        except (NodeError, BlockedError) as error:
            row = None
            memory.blocked = str(error)
            if again.action is Action.SWITCH:
                row = observed.rows.get(again.group, AdoptionRow())
                row = row.with_changes(attempts=row.attempts + 1, error=f"switch: {error}")
            _logger.warning("%s failed: %s", step.action.value, error)
        if row is not None:
            memory.rows[again.group] = row
            await self._record(cluster, sight, again.group, row)

    async def _record(self, cluster: Cluster, sight: Sight, group: int, row: AdoptionRow) -> None:
        """Writes what was found out about the switch of a group: another process must not have to find it out again."""
        name = Names(cluster.namespace, cluster.name).group(group)
        live = sight.objects.cluster
        status = adoption_status.with_row(live.get("status") or {}, name, row)
        live["status"] = status
        await self._context.kube.apply_status(kube.CLUSTERS, live, status)

    async def _restart_name_server(self, cluster: Cluster, sight: Sight, observed: Observed, memory: _Memory) -> None:
        stale, memory.name_server_blocked = next_restart(observed.name_servers), ""
        if stale is None or cluster.paused or cluster.hibernating or observed.taken:
            return
        try:
            await restart_name_server(self._context, sight.objects, *stale)
        except BlockedError as error:
            memory.name_server_blocked = f"Pod {stale[0]}: {error}"
            _logger.warning("%s is not restarted: %s", stale[0], error)

    async def _write_status(
        self, cluster: Cluster, sight: Sight, observed: Observed, plan: Layout, decision: Decision, memory: _Memory
    ) -> None:
        names = Names(cluster.namespace, cluster.name)
        if decision.step is not None and memory.blocked:
            step = decision.step
            held = Hold(step.action, step.group, step.member, "Refused", memory.blocked)
            decision = Decision(step, (held, *decision.holds))
        underway = next_underway(observed, names, decision.step)
        before = sight.objects.cluster.get("status") or {}
        status = cluster_status(cluster, observed, plan, decision, underway, before)
        if status != before:
            await self._context.kube.apply_status(kube.CLUSTERS, sight.objects.cluster, status)
            sight.objects.cluster["status"] = status
        memory.rows.clear()  # the status has them
        for group in observed.groups:
            for member in group.members:
                node = sight.objects.get("BrokerNode", names.node(group.number, member.number))
                if node is None or member.node_uid is None:
                    continue
                generation = node["metadata"].get("generation", 0)
                old = node.get("status") or {}
                new = node_status(cluster, observed, plan, group, member, generation, old)
                if new == old:
                    continue
                try:
                    await self._context.kube.apply_status(kube.BROKER_NODES, node, new)
                except (NotFoundError, ConflictError):
                    pass  # the next pass observes that it was deleted
        leaderless = (
            0
            if cluster.hibernating
            else sum(group.formed and group.leader is None and not blind(group) for group in observed.groups)
        )
        self._context.metrics.saw_cluster(
            cluster.namespace, cluster.name, status["phase"], status["nodes"], status["ready"], leaderless
        )
        unplanned = unplanned_phase(cluster, observed, plan, decision, underway)
        self._context.metrics.saw_stops(cluster.namespace, cluster.name, unplanned, stopped_peers(cluster, observed))

    async def _refuse(self, body: Json, reason: str) -> None:
        metadata, before = body["metadata"], body.get("status") or {}
        status = failed_status(metadata.get("generation", 0), self._context.now(), "InvalidSpec", reason, before)
        if status != before:
            await self._context.kube.apply_status(kube.CLUSTERS, body, status)
            await self._context.events.post(Reference.to(body), "InvalidSpec", reason, warning=True)
        self._context.metrics.saw_cluster(metadata["namespace"], metadata["name"], "Failed", 0, 0)
        self._context.metrics.saw_stops(metadata["namespace"], metadata["name"], "Failed")

    async def _tell_refusals(self, cluster: Cluster, body: Json, observed: Observed, memory: _Memory) -> None:
        """Records an event for each new rejection of the API server, taken name, warning about a fence, and change of
        a recovery or an adoption."""
        told = [("NameTaken", message) for message in observed.taken]
        told += [("Refused", message) for message in observed.refusals]
        told += [("ResizeRefused", message) for message in observed.resize_refusals]
        told += fence_warnings(cluster, observed)
        all_told = [(*each, True) for each in told] + recovery_events(cluster, observed)
        all_told += adoption_status.adoption_events(cluster, observed)
        all_told += security_events(observed)
        for reason, message, warning in all_told:
            if (reason, message) not in memory.told:
                await self._context.events.post(Reference.to(body), reason, message, warning=warning)
        memory.told = frozenset((reason, message) for reason, message, _ in all_told)

    async def _tell_failure(self, cluster: Cluster, body: Json, memory: _Memory, error: Exception) -> None:
        """Writes to the status and to an event why a pass failed. The error of the pass is raised afterwards."""
        now = self._context.now()
        if memory.failing_since is None:
            memory.failing_since = now
        passing = isinstance(error, UnavailableError | ConflictError | NodeError)
        if passing and now - memory.failing_since < SILENT_FAILURE_SECONDS:
            return
        message = error.said if isinstance(error, KubeError) else f"{type(error).__name__}: {error}"
        before = body.get("status") or {}
        status = failed_pass_status(cluster, now, message, before)
        self._context.metrics.saw_cluster(
            cluster.namespace, cluster.name, "Unknown", status.get("nodes", 0), status.get("ready", 0)
        )
        self._context.metrics.saw_stops(cluster.namespace, cluster.name, "Unknown")
        try:
            if status != before:
                await self._context.kube.apply_status(kube.CLUSTERS, body, status)
                body["status"] = status
            if ("PassFailed", message) not in memory.told:
                await self._context.events.post(Reference.to(body), "PassFailed", message, warning=True)
                memory.told |= {("PassFailed", message)}
        except KubeError as failure:
            _logger.warning("could not report a failed pass: %s", failure)

    def _count_stuck(self, cluster: Cluster, observed: Observed, memory: _Memory) -> None:
        names = Names(cluster.namespace, cluster.name)
        for member in observed.members:
            if member.ready:
                memory.stuck_restarts.pop(names.node(member.group, member.number), None)

    def _forget(self, key: Key) -> None:
        self._memory.pop((key.namespace, key.name), None)
        self._writer.forget(key.namespace, key.name)
        self._context.trust.forget(key.namespace, key.name)
        self._context.metrics.forgot_cluster(key.namespace, key.name)


def _permitted(plan: Layout, security: SecurityView) -> Layout:
    """Returns the layout without StatefulSets and their templates, if the Secrets that pods mount cannot be used: a
    restarted pod would wait for them."""
    if not security.problem:
        return plan
    kept = tuple(each for each in plan.manifests if each["kind"] != "StatefulSet")
    return replace(plan, manifests=kept, templates={}, waits=((*plan.waits, ("Secrets", security.problem))))
