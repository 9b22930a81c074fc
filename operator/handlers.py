"""The watches of kopf. A handler adds the key of the cluster or job to the queue, and does nothing else.

Handlers of `on.event` keep no annotations, finalizers or progress in objects of users, unlike change handlers. A lost
event delays a reconciliation until the next resync.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from tallystick.operator.core import kube
from tallystick.operator.core.names import BACKUP_LABEL, JOB_LABEL, SCHEDULE_LABEL
from tallystick.operator.core.settings import Settings
from tallystick.operator.core.work_queue import Key, Kind
from tallystick.operator.jobs.names import TEMPLATE_LABEL

CLUSTER_LABEL = "tallystick.dev/cluster"
MANAGED = {"app.kubernetes.io/managed-by": kube.FIELD_MANAGER}
OWNED = (
    *(kube.PODS, kube.STATEFUL_SETS, kube.SERVICES, kube.CLAIMS, kube.CONFIG_MAPS),
    *(kube.SERVICE_ACCOUNTS, kube.DISRUPTION_BUDGETS, kube.NETWORK_POLICIES),
)
"""Kinds with the labels of a cluster or a job. A label selector limits the watches; Secrets are not watched."""
OF_TOPICS = (kube.TOPICS, kube.CONSUMER_GROUPS)

WATCH_SECONDS = 240
"""Timeout of a watch at the server; kopf then starts a new watch."""
SILENCE_SECONDS = 70.0
"""A watch without any event for so long counts as broken: the server sends a bookmark every minute."""


def settings_for_kopf(operator: Settings) -> kopf.OperatorSettings:
    """Returns settings of kopf: no events, no peering (the lease replaces it), and watches with timeouts."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True  # otherwise kopf watches CRDs and namespaces of the whole cluster
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 30
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = SILENCE_SECONDS
    settings.watching.chunk_size = kube.PAGE
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.queueing.idle_timeout = 1.0
    settings.process.ultimate_exiting_timeout = 20
    selector = ",".join(f"{name}={value}" for name, value in MANAGED.items())
    for resource in OWNED:
        settings.watching.label_selectors[_selector(resource)] = selector
    return settings


def registry_for(look_at: Callable[[Key], None]) -> kopf.OperatorRegistry:
    """Returns the handlers. They call `look_at` often, in the event loop; it must not block."""
    registry = kopf.OperatorRegistry()

    def on_cluster(name: str, namespace: str, **_: Any) -> None:
        look_at(Key(namespace, name, Kind.CLUSTER))
        look_at(Key(namespace, name, Kind.TOPICS))
        look_at(Key(namespace, name, Kind.USERS))

    async def cluster(name: str, namespace: str, **_: Any) -> None:
        on_cluster(name, namespace)

    async def broker_node(spec: Any, namespace: str, **_: Any) -> None:
        if name := spec.get("clusterName"):
            look_at(Key(namespace, name, Kind.CLUSTER))

    async def owned(labels: Any, namespace: str, **_: Any) -> None:
        if name := labels.get(JOB_LABEL):
            look_at(Key(namespace, name, Kind.JOB))
        elif name := labels.get(BACKUP_LABEL):
            look_at(Key(namespace, name, Kind.BACKUP))
        elif name := labels.get(CLUSTER_LABEL):
            look_at(Key(namespace, name, Kind.CLUSTER))

    async def store_job(name: str, labels: Any, namespace: str, **_: Any) -> None:
        look_at(Key(namespace, name, Kind.JOB))
        if template := labels.get(TEMPLATE_LABEL):
            look_at(Key(namespace, template, Kind.JOB))

    async def backup(name: str, labels: Any, namespace: str, **_: Any) -> None:
        look_at(Key(namespace, name, Kind.BACKUP))
        if schedule := labels.get(SCHEDULE_LABEL):
            look_at(Key(namespace, schedule, Kind.SCHEDULE))

    async def scheduled_backup(name: str, namespace: str, **_: Any) -> None:
        look_at(Key(namespace, name, Kind.SCHEDULE))

    async def of_topics(spec: Any, namespace: str, **_: Any) -> None:
        if name := spec.get("clusterName"):
            look_at(Key(namespace, name, Kind.TOPICS))

    async def user(spec: Any, namespace: str, **_: Any) -> None:
        if name := spec.get("clusterName"):
            look_at(Key(namespace, name, Kind.USERS))

    def register(resource: kube.Resource, handler: Callable[..., Any]) -> None:
        kopf.on.event(*_selector(resource), registry=registry, id=resource.plural)(handler)

    register(kube.CLUSTERS, cluster)
    register(kube.BROKER_NODES, broker_node)
    for resource in OWNED:
        register(resource, owned)
    for resource in OF_TOPICS:
        register(resource, of_topics)
    register(kube.USERS, user)
    register(kube.STORE_JOBS, store_job)
    register(kube.BACKUPS, backup)
    register(kube.SCHEDULED_BACKUPS, scheduled_backup)
    kopf.on.login(registry=registry, id="login")(login)
    return registry


def _selector(resource: kube.Resource) -> tuple[str, str, str]:
    group, _, version = resource.api_version.rpartition("/")
    return group, version, resource.plural


def login(*, settings: kopf.OperatorSettings, logger: Any, **_: Any) -> kopf.ConnectionInfo | None:
    """Logs in with the simple methods of kopf. Its default imports all models of the official client."""
    return kopf.login_with_service_account(settings=settings, logger=logger) or kopf.login_with_kubeconfig(
        settings=settings, logger=logger
    )
