"""Reads the state of a cluster: its objects from the API server, and the answers of its nodes. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from tallystick.operator.clusters import adoption, adoption_status
from tallystick.operator.clusters.adoption_plan import AdoptionPlan, find_plan
from tallystick.operator.clusters.adoption_source import Survey, Unanswered, survey_of
from tallystick.operator.clusters.reading import Objects, objects_of, running_members
from tallystick.operator.clusters.recovery import FIRST, told_before
from tallystick.operator.clusters.recovery_source import SOURCE_MISSING, Problem, Source, find_source
from tallystick.operator.clusters.security import Secrets, read_secrets
from tallystick.operator.clusters.spec import Cluster
from tallystick.operator.clusters.tls_stage import tls_view
from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.core.kube import Json, Resource
from tallystick.operator.core.names import ADOPTED, BROKER_NAME, FORMED, GROUP_LABEL, Names, is_set
from tallystick.operator.core.node_api import NameServerName, NodeError, NodeName, NodeRefusedError, every
from tallystick.operator.core.pods import pod_of

KINDS: tuple[Resource, ...] = (
    *(kube.BROKER_NODES, kube.STATEFUL_SETS, kube.PODS, kube.SERVICES, kube.CLAIMS),
    *(kube.CONFIG_MAPS, kube.SERVICE_ACCOUNTS, kube.DISRUPTION_BUDGETS, kube.NETWORK_POLICIES),
)
ASK_SECONDS = 3.0
"""Timeout for the state of a member. An unresponsive member delays each pass by it."""
SURVEY_SECONDS = 20.0
"""Timeout for the state of a RocketMQ cluster: a name server asks all of its masters."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Objects and answers, read at one time."""

    objects: Objects
    answers: dict[tuple[int, int], object]
    source: Source | Problem | None = None
    """The backups from which the cluster starts; None: it is not being recovered."""
    copies: Mapping[tuple[int, int], object] = field(default_factory=dict)
    """Bodies of GET /node of members of groups that follow a RocketMQ master."""
    plan: AdoptionPlan | Problem | None = None
    """Which group takes the place of which master; None: none does, or all have begun, and the status has it."""
    secrets: Secrets = field(default_factory=Secrets)
    """Those of TLS."""


async def look(context: Context, cluster: Cluster, body: Json) -> Sight:
    """Reads a cluster; objects with its labels that do not belong to it are left out.

    KubeError: the API server did not respond. Errors of nodes are values of `answers`.
    """
    names = Names(cluster.namespace, cluster.name)
    lists = await asyncio.gather(
        *(context.kube.list(resource, cluster.namespace, names.selector()) for resource in KINDS)
    )
    by_kind = {
        resource.kind: {item["metadata"]["name"]: item for item in found}
        for resource, found in zip(KINDS, lists, strict=True)
    }
    objects = objects_of(cluster, body, by_kind)
    secrets = await read_secrets(context, cluster, objects, tls_view(cluster, objects))
    members = running_members(cluster, objects)
    asked = [
        context.nodes.ask(
            NodeName(cluster.namespace, cluster.name, *member), "GET", "/group", timeout_seconds=ASK_SECONDS
        )
        for member in members
    ]
    answers = dict(zip(members, await every(asked), strict=True))
    source = await _source(context, cluster, objects)
    return Sight(
        objects,
        answers,
        source,
        await _copies(context, cluster, objects),
        await _plan(context, cluster, objects),
        secrets,
    )


async def _copies(context: Context, cluster: Cluster, objects: Objects) -> dict[tuple[int, int], object]:
    """Asks members what they copy, as long as a group of the cluster may follow a master."""
    marked = any(ADOPTED in (each["metadata"].get("annotations") or {}) for each in objects.all(kube.CLAIMS.kind))
    if not marked or adoption.told_before(objects.cluster) == "True":
        return {}
    members = running_members(cluster, objects)
    asked = [
        context.nodes.ask(
            NodeName(cluster.namespace, cluster.name, *member), "GET", "/node", timeout_seconds=ASK_SECONDS
        )
        for member in members
    ]
    return dict(zip(members, await every(asked), strict=True))


async def _plan(context: Context, cluster: Cluster, objects: Objects) -> AdoptionPlan | Problem | None:
    """Returns which group takes the place of which master, until all groups have begun and the status has the plan."""
    adopt = cluster.spec.adopt
    if adopt is None or adoption.told_before(objects.cluster) == "True":
        return None
    begun = {
        str((each["metadata"].get("labels") or {}).get(GROUP_LABEL)) for each in objects.all(kube.STATEFUL_SETS.kind)
    }
    rows = adoption_status.rows_of(objects.cluster.get("status") or {})
    told = {str(number) for number, row in rows.items() if row.broker_name}
    if {str(group) for group in range(cluster.spec.groups)} <= begun & told:
        return None
    return find_plan(cluster, await _survey(context, cluster, objects, ";".join(adopt.name_servers)), _named(objects))


def _named(objects: Objects) -> dict[int, str]:
    """Returns the broker names that claims have, by number of the group."""
    found = {}
    for each in objects.all(kube.CLAIMS.kind):
        name = str((each["metadata"].get("annotations") or {}).get(BROKER_NAME) or "")
        if name:
            found[int(each["metadata"]["labels"][GROUP_LABEL])] = name
    return found


async def _survey(context: Context, cluster: Cluster, objects: Objects, nameservers: str) -> Survey:
    """Asks the first of our name servers that is ready about the RocketMQ cluster."""
    names = Names(cluster.namespace, cluster.name)
    for number in range(cluster.spec.name_servers):
        body = objects.get("Pod", f"{names.name_server}-{number}")
        if body is None or not pod_of(body).ready:
            continue
        server = NameServerName(cluster.namespace, cluster.name, number)
        try:
            answer = await context.nodes.ask(
                server, "POST", "/migration/plan", {"nameServers": nameservers}, timeout_seconds=SURVEY_SECONDS
            )
        except NodeError as error:
            told = isinstance(error, NodeRefusedError) and error.status == 502
            return Unanswered(str(error), "OldClusterUnreachable" if told else "PlanFailed")
        return survey_of(answer)
    return Unanswered("the old name servers are asked when a name server of this cluster is ready", "PlanPending")


async def _source(context: Context, cluster: Cluster, objects: Objects) -> Source | Problem | None:
    """Returns where the groups of a new cluster are restored from; None: it is not, or no longer, recovered."""
    recovery = cluster.spec.recovery
    if recovery is None or told_before(objects.cluster) == "True":
        return None
    backup = None
    if recovery.backup:
        backup = await context.kube.find(kube.BACKUPS, cluster.namespace, recovery.backup)
    found = find_source(recovery, cluster.name, cluster.spec.groups, backup)
    if isinstance(found, Source) and any(_waits(cluster, objects, group) for group in range(cluster.spec.groups)):
        return await _missing(context, cluster.namespace, found) or found
    return found


def _waits(cluster: Cluster, objects: Objects, group: int) -> bool:
    """Whether the first pod of a group has yet to mount what it restores."""
    names = Names(cluster.namespace, cluster.name)
    claim = objects.get("PersistentVolumeClaim", names.claim(group, FIRST))
    body = objects.get("Pod", names.pod(group, FIRST))
    if claim is not None and is_set(claim["metadata"], FORMED):
        return False
    pod = None if body is None else pod_of(body)
    return pod is None or not (pod.init_running or pod.init_ended is not None)


async def _missing(context: Context, namespace: str, source: Source) -> Problem | None:
    """Returns what a pod would wait for without an end or a message: a claim or a Secret that does not exist."""
    place = source.place
    if place.claim and await context.kube.find(kube.CLAIMS, namespace, place.claim) is None:
        return Problem(SOURCE_MISSING, f"the PersistentVolumeClaim {place.claim} of the backups does not exist")
    for name in (place.credentials, place.key_secret):
        if name and await context.kube.secret_exists(namespace, name) is False:
            return Problem(SOURCE_MISSING, f"the Secret {name} does not exist")
    return None
