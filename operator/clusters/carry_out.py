"""Carries out one step of `decide.py` and records an event.

Each step can be interrupted after any write and retried: the next pass observes the state and decides again.
"""

from __future__ import annotations

import logging
from typing import Any

from tallystick.operator.clusters import adoption
from tallystick.operator.clusters.decide import Action, Step
from tallystick.operator.clusters.observed import AdoptionRow, Member, Observed
from tallystick.operator.clusters.reading import Objects
from tallystick.operator.clusters.spec import Cluster
from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.core.events import Reference
from tallystick.operator.core.kube import ConflictError, NotFoundError, UnavailableError
from tallystick.operator.core.names import LEFT, REPLACE, Names
from tallystick.operator.core.node_api import NodeError, NodeName
from tallystick.operator.core.pods import Pod

_logger = logging.getLogger(__name__)

CHANGE_SECONDS = 15.0
"""Timeout for a transfer of leadership or a membership change."""
SWITCH_SECONDS = 45.0
"""Timeout for a switch, or a comparison with a master. A switch that takes longer continues without its caller."""


class BlockedError(Exception):
    """The leader, a PodDisruptionBudget or an admission policy does not permit the step now."""


async def carry_out(
    context: Context, cluster: Cluster, objects: Objects, observed: Observed, step: Step
) -> AdoptionRow | None:
    """Carries out a step. KubeError, NodeError, BlockedError: the step is not done, or only in part.

    Returns what it found out about the switch of a group; None: the step is another one."""
    row: AdoptionRow | None = None
    names = Names(cluster.namespace, cluster.name)
    name = names.node(step.group, step.member)
    _logger.info("%s %s: %s", step.action.value, name, step.message, extra={"step": step.action.value, "node": name})
    await _tell(context, objects, name, step)
    member = next(
        (each for each in observed.members if (each.group, each.number) == (step.group, step.member)),
        Member(step.group, step.member),
    )
    work = _Work(context, cluster, names, objects, observed, member, step)
    match step.action:
        case Action.STOP:
            await work.stop_member()
        case Action.RESTART:
            await work.stop_pod()
        case Action.REPLACE:
            await work.replace()
        case Action.FORCE:
            await work.force()
        case Action.MOVE:
            await work.ask_leader("POST", "/group/transfer", {"target": step.to})
        case Action.ADD:
            await work.ask_leader("POST", "/group/members", {"member": step.member, "role": "learner"})
        case Action.PROMOTE:
            await work.ask_leader("POST", "/group/members", {"member": step.member, "role": "voter"})
        case Action.REMOVE:
            await work.ask_leader("DELETE", f"/group/members/{step.member}", None)
        case Action.DELETE:
            await work.delete_node()
        case Action.SWITCH:
            await work.ask_leader("POST", "/promotion", {}, SWITCH_SECONDS)
            row = work.row().with_changes(error="")
        case Action.TAKE_BACK:
            await work.ask_leader("DELETE", "/promotion", None, SWITCH_SECONDS)
        case Action.REHEARSE | Action.VERIFY:
            row = await work.compare()
    context.metrics.steps.labels(step.action.value).inc()
    return row


async def restart_name_server(context: Context, objects: Objects, name: str, pod: Pod) -> None:
    """Stops an outdated name server; its StatefulSet creates a current one. KubeError, BlockedError: it is not done."""
    namespace = objects.cluster["metadata"]["namespace"]
    await _try_successor(context, objects, namespace, name.rpartition("-")[0])
    message = f"{name}: the pod is outdated"
    await context.events.post(Reference.to(objects.cluster), "RestartNameServer", message)
    try:
        if pod.ready:
            await context.kube.evict(namespace, name, uid=pod.uid)
        else:
            await context.kube.delete(kube.PODS, namespace, name, uid=pod.uid)
    except (NotFoundError, ConflictError):
        pass  # this pod no longer exists
    except UnavailableError as error:
        if error.status != 429:
            raise
        _logger.info("%s is not restarted now: %s", name, error.said)


async def _try_successor(context: Context, objects: Objects, namespace: str, stateful_set: str) -> None:
    """Lets the API server try a pod of the present template, so that a template that it refuses stops no pod.

    A StatefulSet is accepted with an unknown priority class or service account, or against a policy for pods. Only its
    next pod would be refused. BlockedError: it would be.
    """
    live = objects.get("StatefulSet", stateful_set)
    if live is None:
        return
    template = live["spec"]["template"]
    owner = {"apiVersion": live["apiVersion"], "kind": "StatefulSet", "name": stateful_set, "controller": True}
    metadata = {
        **(template.get("metadata") or {}),
        "name": f"{stateful_set}-trial",
        "namespace": namespace,
        "ownerReferences": [owner | {"uid": live["metadata"]["uid"]}],  # policies refuse pods without an owner
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    if why := await context.kube.refusal(kube.PODS, namespace, body):
        raise BlockedError(f"the API server would refuse the new pod: {why}")


async def _tell(context: Context, objects: Objects, name: str, step: Step) -> None:
    await context.events.post(Reference.to(objects.cluster), step.action.value, f"{name}: {step.message}")
    node = objects.get("BrokerNode", name)
    if node is not None:
        await context.events.post(Reference.to(node), step.action.value, step.message)


class _Work:
    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        names: Names,
        objects: Objects,
        observed: Observed,
        member: Member,
        step: Step,
    ) -> None:
        self._context = context
        self._cluster = cluster
        self._names = names
        self._objects = objects
        self._observed = observed
        self._member = member
        self._step = step

    async def stop_pod(self) -> None:
        """Evicts a ready pod, so that the PodDisruptionBudget counts all evictions together; deletes another pod."""
        pod, namespace = self._member.pod, self._cluster.namespace
        if pod is None:
            return
        name = self._names.pod(self._member.group, self._member.number)
        if self._step.action is Action.RESTART:
            set_name = self._names.node(self._member.group, self._member.number)
            await _try_successor(self._context, self._objects, namespace, set_name)
        try:
            if pod.ready:
                await self._context.kube.evict(namespace, name, uid=pod.uid)
            else:
                await self._context.kube.delete(kube.PODS, namespace, name, uid=pod.uid)
        except (NotFoundError, ConflictError):
            pass  # this pod no longer exists
        except UnavailableError as error:
            if error.status == 429:
                raise BlockedError(str(error)) from error
            raise

    async def stop_member(self) -> None:
        """Transfers leadership, then takes the replica from the StatefulSet, which stops the pod and keeps the claim.

        A user decided this, perhaps because the member is ill. So a refused transfer does not prevent it: a broker also
        transfers leadership when it is stopped.
        """
        live = self._objects.get("StatefulSet", self._names.node(self._member.group, self._member.number))
        if live is None:
            return
        if self._step.to is not None:
            try:
                await self.ask_leader("POST", "/group/transfer", {"target": self._step.to})
            except (NodeError, BlockedError) as error:
                _logger.warning("leadership was not transferred before the member is stopped: %s", error)
        try:
            await self._context.kube.patch_live({"kind": "StatefulSet", **live}, {"spec": {"replicas": 0}})
        except (NotFoundError, ConflictError):
            pass  # it changed since: the next pass decides again

    async def force(self) -> None:
        pod = self._member.pod
        if pod is None:
            return
        name = self._names.pod(self._member.group, self._member.number)
        try:
            await self._context.kube.delete(kube.PODS, self._cluster.namespace, name, uid=pod.uid, grace_seconds=0)
        except (NotFoundError, ConflictError):
            pass  # its Kubernetes node has confirmed that it stopped

    async def replace(self) -> None:
        """Deletes the claim, which exists as long as its pod; then removes the annotation; then stops the pod.

        Interrupted after the first write, the next pass continues because the claim is being deleted. Interrupted
        before the annotation is removed, `reconcile.py` removes it without a second replacement.
        """
        namespace, member = self._cluster.namespace, self._member
        claim = member.claim
        if claim is not None and not claim.deleting and self._step.reason != "ClaimRenewed":
            name = self._names.claim(member.group, member.number)
            try:
                await self._context.kube.delete(kube.CLAIMS, namespace, name, uid=claim.uid)
            except (NotFoundError, ConflictError):
                pass  # the name already belongs to a new claim
        await self.take_back_wish()
        await self.stop_pod()

    async def take_back_wish(self) -> None:
        live = self._objects.get("BrokerNode", self._names.node(self._member.group, self._member.number))
        if self._member.replace and live is not None:
            await self._context.kube.patch_live(live, {"metadata": {"annotations": {REPLACE: None}}})

    async def delete_node(self) -> None:
        """Annotates the claim before: without the BrokerNode only the claim records that the member has left."""
        member, namespace = self._member, self._cluster.namespace
        live = self._objects.get("PersistentVolumeClaim", self._names.claim(member.group, member.number))
        if live is not None:
            await self._context.kube.patch_live(live, {"metadata": {"annotations": {LEFT: "true"}}})
        name = self._names.node(member.group, member.number)
        try:
            await self._context.kube.delete(kube.BROKER_NODES, namespace, name, uid=self._step.uid)
        except (NotFoundError, ConflictError):
            pass  # the BrokerNode no longer exists

    def row(self) -> AdoptionRow:
        """Returns what is recorded about the switch of the group."""
        return self._observed.rows.get(self._step.group, AdoptionRow())

    async def compare(self) -> AdoptionRow:
        """Compares the group with its master, or old master. An old master may not answer any longer."""
        row, now = self.row(), self._context.now()
        rehearses = self._step.action is Action.REHEARSE
        try:
            answer = await self.ask_leader("POST", "/migration/comparison", {"sample": adoption.SAMPLE}, SWITCH_SECONDS)
            return (adoption.rehearsed if rehearses else adoption.verified)(row, answer, now)
        except (NodeError, KeyError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, NodeError) else f"the leader gave an invalid answer: {error!r}"
            if rehearses:
                return row.with_changes(compared=now, rehearsal="", error=f"{adoption.REHEARSAL}{why}")
            return adoption.unverified(row, why, now)

    async def ask_leader(self, method: str, path: str, body: object, timeout_seconds: float = CHANGE_SECONDS) -> Any:
        """Sends a request to the leader on whose membership the decision is based, and to no other member."""
        group = next(group for group in self._observed.groups if group.number == self._step.group)
        assert group.leader is not None, "no change is decided on without a leader"
        node = NodeName(self._cluster.namespace, self._cluster.name, group.number, group.leader.number)
        return await self._context.nodes.ask(node, method, path, body, timeout_seconds=timeout_seconds)
