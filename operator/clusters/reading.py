"""Converts objects of the API server and answers of nodes to the values of `observed.py`.

Pure. A missing field counts as "no", because every decision then waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tallystick.operator.clusters import adoption, adoption_status
from tallystick.operator.clusters.adoption_plan import AdoptionPlan
from tallystick.operator.clusters.broker_manifests import members_of
from tallystick.operator.clusters.observed import (
    AdoptionRow,
    Answer,
    Claim,
    Copy,
    Group,
    Member,
    NameServers,
    Observed,
    Underway,
    understood,
)
from tallystick.operator.clusters.recovery import hindrance, told_before
from tallystick.operator.clusters.recovery_source import Problem, Source, restore_of
from tallystick.operator.clusters.spec import Cluster, External
from tallystick.operator.clusters.status import DISRUPTIVE, HELD
from tallystick.operator.clusters.tls_stage import tls_view
from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import (
    ADOPTED,
    BROKER_NAME,
    CLUSTER,
    FIRST_MEMBERS,
    FORMED,
    GROUP_LABEL,
    LEFT,
    MEMBER_LABEL,
    NAME_SERVER,
    RECOVERED,
    REMOTING,
    REPLACE,
    TEMPLATE,
    Names,
    is_claim_of,
    is_set,
)
from tallystick.operator.core.node_api import NodeError, UnauthorizedError, UnreachableError
from tallystick.operator.core.ownership import controller_of, owned
from tallystick.operator.core.pods import Pod, pod_of
from tallystick.operator.core.quantity import quantity
from tallystick.operator.core.times import seconds


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of one cluster, by kind and name."""

    cluster: Json
    by_kind: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)

    def get(self, kind: str, name: str) -> Json | None:
        return self.by_kind.get(kind, {}).get(name)

    def all(self, kind: str) -> Iterable[Json]:
        return self.by_kind.get(kind, {}).values()


def objects_of(cluster: Cluster, body: Json, by_kind: Mapping[str, Mapping[str, Json]]) -> Objects:
    """Returns the objects that belong to a cluster, of those with its labels.

    The cluster owns its shared objects and BrokerNodes, these own the objects of a member, and StatefulSets own pods.
    """
    nodes = _owned(by_kind, "BrokerNode", {cluster.uid})
    owners = {cluster.uid, *(each["metadata"]["uid"] for each in nodes.values())}
    found = {kind: _owned(by_kind, kind, owners) for kind in by_kind}
    sets = {each["metadata"]["uid"] for each in found.get("StatefulSet", {}).values()}
    claims = by_kind.get("PersistentVolumeClaim", {})
    found |= {
        "BrokerNode": nodes,
        "Pod": {
            name: each
            for name, each in by_kind.get("Pod", {}).items()
            if owned(each, sets) or _was_made_for(cluster, each)
        },
        "PersistentVolumeClaim": {name: each for name, each in claims.items() if is_claim_of(cluster.name, each)},
    }
    return Objects(body, found)


def belongs(live: Json, wanted: Json) -> bool:
    """Whether an object with the name of a manifest belongs to the owner that the manifest names.

    A claim has no owner: see `is_claim_of`.
    """
    if wanted["kind"] == "PersistentVolumeClaim":
        return is_claim_of(wanted["metadata"]["labels"][CLUSTER], live)
    return owned(live, {owner["uid"] for owner in wanted["metadata"]["ownerReferences"]})


def _was_made_for(cluster: Cluster, pod: Json) -> bool:
    """Whether a StatefulSet of this very cluster, which may be gone, made a pod.

    Its machine may not let go of the pod, which then outlives its StatefulSet. The name of the Secret that it mounts
    contains a digest of the UID of the cluster, so no pod of an earlier cluster of the same name counts.
    """
    owner, secret = controller_of(pod), Names(cluster.namespace, cluster.name).admin(cluster.uid)
    if owner is None or (owner.get("kind"), f"{owner.get('name')}-0") != ("StatefulSet", pod["metadata"]["name"]):
        return False
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return any((volume.get("secret") or {}).get("secretName") == secret for volume in volumes)


def _owned(by_kind: Mapping[str, Mapping[str, Json]], kind: str, uids: Collection[str]) -> dict[str, Json]:
    return {name: body for name, body in by_kind.get(kind, {}).items() if owned(body, uids)}


Answers = Mapping[tuple[int, int], Any]
"""By group and member: the body of GET /group, or the NodeError. Members that were not asked are missing."""


def read(
    cluster: Cluster,
    objects: Objects,
    answers: Answers,
    *,
    now: float,
    stuck_restarts: Mapping[str, int] | None = None,
    refusals: tuple[str, ...] = (),
    resize_refusals: tuple[str, ...] = (),
    taken: tuple[str, ...] = (),
    other_operator: str = "",
    source: Source | Problem | None = None,
    copies: Answers | None = None,
    plan: AdoptionPlan | Problem | None = None,
    rows: Mapping[int, AdoptionRow] | None = None,
) -> Observed:
    """Returns the observed state. `stuck_restarts`: by node, the number of restarts that did not help; `copies`: bodies
    of GET /node; `rows`: what this process has found out about switches, and the status does not have yet."""
    names = Names(cluster.namespace, cluster.name)
    numbers = _numbers(cluster, objects)
    groups = tuple(
        Group(
            group,
            tuple(
                _member(cluster, names, objects, answers, copies or {}, group, member, (stuck_restarts or {}))
                for member in sorted(numbers[group])
            ),
        )
        for group in sorted(numbers)
    )
    told, adopted = told_before(objects.cluster), adoption.told_before(objects.cluster)
    hindered = hindrance(cluster, groups, source, is_over=told == "True")
    hindered = hindered or adoption.hindrance(cluster, groups, plan, is_over=adopted == "True")
    return Observed(
        now=now,
        groups=groups,
        name_servers=_name_servers(cluster, names, objects),
        underway=underway_of(objects.cluster.get("status") or {}),
        refusals=refusals,
        resize_refusals=resize_refusals,
        taken=taken,
        other_operator=other_operator,
        source=source,
        recovered_before=told,
        hindrance=hindered,
        plan=plan,
        adopted_before=adopted,
        tls=tls_view(cluster, objects),
        rows={**adoption_status.rows_of(objects.cluster.get("status") or {}), **(rows or {})},
    )


def running_members(cluster: Cluster, objects: Objects) -> list[tuple[int, int]]:
    """Returns the members with a running container: only these can answer."""
    names = Names(cluster.namespace, cluster.name)
    found = []
    for group, members in sorted(_numbers(cluster, objects).items()):
        for member in sorted(members):
            body = objects.get("Pod", names.pod(group, member))
            if body is not None and pod_of(body).running:
                found.append((group, member))
    return found


def _numbers(cluster: Cluster, objects: Objects) -> dict[int, set[int]]:
    """Returns members that are wanted or have an object, by group."""
    numbers: dict[int, set[int]] = {group: set(range(cluster.spec.replicas)) for group in range(cluster.spec.groups)}
    for kind in ("BrokerNode", "StatefulSet", "Pod", "PersistentVolumeClaim"):
        for body in objects.all(kind):
            labels = body["metadata"].get("labels") or {}
            group, member = str(labels.get(GROUP_LABEL, "")), str(labels.get(MEMBER_LABEL, ""))
            if not (group.isdecimal() and member.isdecimal()):
                continue
            # A claim alone does not add a group: it may belong to an earlier cluster of the same name.
            if kind != "PersistentVolumeClaim" or int(group) in numbers:
                numbers.setdefault(int(group), set()).add(int(member))
    return numbers


def _member(
    cluster: Cluster,
    names: Names,
    objects: Objects,
    answers: Answers,
    copies: Answers,
    group: int,
    member: int,
    stuck_restarts: Mapping[str, int],
) -> Member:
    name = names.node(group, member)
    node, body = objects.get("BrokerNode", name), objects.get("Pod", names.pod(group, member))
    claim, stateful_set = (
        objects.get("PersistentVolumeClaim", names.claim(group, member)),
        objects.get("StatefulSet", name),
    )
    pod = None if body is None else pod_of(body)
    answer, refused = _answer(answers.get((group, member)), names.group(group), member)
    present = node is not None and not node["metadata"].get("deletionTimestamp")
    return Member(
        group=group,
        number=member,
        node_uid=node["metadata"]["uid"] if node is not None and present else None,
        replace=node is not None and is_set(node["metadata"], REPLACE),
        claim=None if claim is None else claim_of(claim),
        stateful_set=None if stateful_set is None else _template_of(stateful_set),
        restore=None if stateful_set is None else restore_of(stateful_set),
        stopped=stateful_set is not None and stateful_set["spec"].get("replicas") == 0,
        pod=pod,
        external=_external(cluster, objects.get("Service", names.external(group, member)), REMOTING, pod),
        answer=answer,
        copy=_copy(copies.get((group, member))) if answer is not None else None,
        refused=refused,
        unauthorized=isinstance(answers.get((group, member)), UnauthorizedError),
        stuck_restarts=stuck_restarts.get(name, 0),
    )


def _answer(found: Any, group: str, member: int) -> tuple[Answer | None, str]:
    """Returns the answer of a member, or why it is rejected. An address may lead to another member for a short time, so
    an answer contains the identity of its sender."""
    if found is None or isinstance(found, UnreachableError):
        return None, ""
    if isinstance(found, NodeError):
        return None, str(found)
    try:
        if (found["group"], found["member"]) != (group, member):
            return None, f"n{found['member']} of {found['group']} responds at the address of this member"
        return understood(found), ""
    except (KeyError, TypeError, ValueError) as error:
        return None, f"invalid response: {error!r}"


def _copy(found: Any) -> Copy | None:
    """Returns what a member says about the copy; None: it says nothing, or nothing that can be understood."""
    if found is None or isinstance(found, NodeError):
        return None
    try:
        return adoption.copy_from(found)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def claim_of(body: Json) -> Claim:
    metadata, status = body["metadata"], body.get("status") or {}
    annotations = metadata.get("annotations") or {}
    requested = ((body.get("spec") or {}).get("resources") or {}).get("requests") or {}
    wanted, capacity = str(requested.get("storage", "")), str((status.get("capacity") or {}).get("storage", ""))
    return Claim(
        uid=metadata.get("uid", ""),
        created=seconds(metadata.get("creationTimestamp")) or 0.0,
        lost=status.get("phase") == "Lost",
        deleting=bool(metadata.get("deletionTimestamp")),
        formed=is_set(metadata, FORMED),
        left=is_set(metadata, LEFT),
        first=members_of(annotations.get(FIRST_MEMBERS, "")),
        recovered=str(annotations.get(RECOVERED) or ""),
        storage_class=(body.get("spec") or {}).get("storageClassName"),
        adopted=str(annotations.get(ADOPTED) or ""),
        broker_name=str(annotations.get(BROKER_NAME) or ""),
        requested=wanted,
        capacity=capacity,
        resizing=_resizing(status, wanted, capacity),
    )


def _resizing(status: Json, wanted: str, capacity: str) -> str:
    try:
        growing = bool(capacity) and quantity(capacity) < quantity(wanted)
    except ValueError:
        growing = False
    if not growing:
        return ""
    pending = any(each.get("type") == "FileSystemResizePending" for each in status.get("conditions") or ())
    return f"{capacity} of {wanted}" + (", the file system is resized when the pod runs" if pending else "")


def _template_of(body: Json) -> str:
    """Returns the digest that the controller has processed; before that, a new pod may have the old template."""
    metadata, status = body["metadata"], body.get("status") or {}
    if status.get("observedGeneration", 0) < metadata.get("generation", 0):
        return ""
    template = body["spec"]["template"]["metadata"].get("annotations") or {}
    return str(template.get(TEMPLATE, ""))


def _external(cluster: Cluster, service: Json | None, target: int, pod: Pod | None) -> str:
    """Returns host:port for clients outside. The host is empty if the pod has no Kubernetes node yet."""
    listener = cluster.spec.listener
    if service is None or listener.type is External.NONE or service["spec"].get("type") != listener.type.value:
        return ""
    if listener.type is External.NODE_PORT:
        port = next((each.get("nodePort") for each in service["spec"].get("ports") or ()), None)
        host = listener.host or (pod.host_address if pod is not None else "")
        return f"{host}:{port}" if port else ""
    ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    host = next((each.get("hostname") or each.get("ip") for each in ingress), "")
    return f"{host}:{target}" if host else ""


def _name_servers(cluster: Cluster, names: Names, objects: Objects) -> NameServers:
    body = objects.get("StatefulSet", names.name_server) or {}
    status, metadata = body.get("status") or {}, body.get("metadata") or {}
    template = (body.get("spec") or {}).get("template") or {}
    digest = str(((template.get("metadata") or {}).get("annotations") or {}).get(TEMPLATE, ""))
    pods = tuple(
        (name, pod_of(pod))
        for name, pod in sorted(objects.by_kind.get("Pod", {}).items())
        if name.rpartition("-")[0] == names.name_server
    )
    placed = next((pod for _, pod in pods if pod.host_address), None)
    external = _external(cluster, objects.get("Service", names.name_server_external), NAME_SERVER, placed)
    return NameServers(
        wanted=cluster.spec.name_servers,
        ready=int(status.get("readyReplicas") or 0),
        updated=sum(pod.template == digest and not pod.deleting for _, pod in pods) if digest else 0,
        current=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        external=external if not external.startswith(":") else "",
        available=int(status.get("availableReplicas") or 0),
        template=digest,
        image=next((str(each.get("image", "")) for each in (template.get("spec") or {}).get("containers") or ()), ""),
        pods=pods,
    )


def underway_of(status: Json) -> Underway | None:
    """Returns the disruptive step that the status records as started; None: there is none, or it is blocked."""
    step = status.get("step") or {}
    action, reason = str(step.get("action", "")), str(step.get("reason", ""))
    if reason.startswith(HELD) or action not in {each.value for each in DISRUPTIVE}:
        return None
    return Underway(action, str(step.get("target", "")), reason, seconds(step.get("since")) or 0.0)
