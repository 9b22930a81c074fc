"""Objects of the name servers: a StatefulSet without volumes, a headless Service for brokers, a Service for clients.

The operator updates them one at a time (`name_servers.py`). Their only state is what brokers register every 30 seconds.
"""

from __future__ import annotations

from tallystick.operator.clusters.cluster_manifests import TOKEN_KEY, names_of, owner_of, pod_spec
from tallystick.operator.clusters.observed import TlsView
from tallystick.operator.clusters.pod_template import spread
from tallystick.operator.clusters.security_manifests import (
    ACCESS_FOLDER,
    ACCOUNTS,
    add_files,
    stage_annotation,
    tls_variables,
)
from tallystick.operator.clusters.spec import Cluster, External
from tallystick.operator.core.kube import SERVICES, STATEFUL_SETS, Json
from tallystick.operator.core.manifests import apart, container_security, digest, environment, manifest, port, probe
from tallystick.operator.core.names import HTTP, NAME_SERVER, NAME_SERVER_OUTSIDE, TEMPLATE
from tallystick.operator.security.spec import Stage

SETTLED_SECONDS = 35
"""minReadySeconds: brokers register every 30 s, so a new name server knows all brokers before the next restart."""

_TOKEN_FOLDER = "/etc/tallystick-admin"
NO_TLS = TlsView()


def name_server_services(cluster: Cluster) -> list[Json]:
    names, spec = names_of(cluster), cluster.spec
    labels, selector = names.labels("nameserver"), names.name_server_selector()
    headless = {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # brokers must find a name server that is starting, and register
            "selector": selector,
            "ports": [port("nameserver", NAME_SERVER)],
        }
    }
    inside = {"spec": {"type": "ClusterIP", "selector": selector, "ports": [port("nameserver", NAME_SERVER)]}}
    owner = owner_of(cluster)
    services = [
        manifest(SERVICES, cluster.namespace, names.name_server_headless, labels, headless, owner=owner),
        manifest(SERVICES, cluster.namespace, names.name_server, labels, inside, owner=owner),
    ]
    if spec.listener.type is not External.NONE:
        outside = port("nameserver", NAME_SERVER, "outside")
        if spec.listener.type is External.NODE_PORT and spec.listener.name_server_port is not None:
            outside["nodePort"] = spec.listener.name_server_port
        content = {"spec": {"type": spec.listener.type.value, "selector": selector, "ports": [outside]}}
        services.append(
            manifest(
                SERVICES,
                cluster.namespace,
                names.name_server_external,
                labels,
                content,
                owner=owner,
                annotations=spec.listener.annotations,
            )
        )
    return services


def name_server_set(cluster: Cluster, image: str, replicas: int, tls: TlsView = NO_TLS) -> Json:
    """Returns the StatefulSet. `image`: see `name_servers.image_of`. `replicas`: none while the cluster hibernates."""
    names, spec = names_of(cluster), cluster.spec
    placement = spec.name_server_placement
    container: Json = {
        "name": "nameserver",
        "image": image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": ["tally", "nameserver"],
        "env": environment(
            {
                "TALLY_HTTP_HOST": "0.0.0.0",
                "TALLY_HTTP_PORT": str(HTTP),
                "TALLY_NAMESERVER_BINDADDRESS": "0.0.0.0",
                "TALLY_NAMESERVER_LISTENPORT": str(NAME_SERVER),
                "TALLY_NAMESERVER_EXTERNALLISTENPORT": str(
                    0 if spec.listener.type is External.NONE else NAME_SERVER_OUTSIDE
                ),
                "TALLY_NAMESERVER_KVCONFIGPATH": "/tmp/kvConfig.json",
                "HOME": "/tmp",
            }
        ),
        "ports": [
            {"name": "nameserver", "containerPort": NAME_SERVER, "protocol": "TCP"},
            {"name": "outside", "containerPort": NAME_SERVER_OUTSIDE, "protocol": "TCP"},
            {"name": "http", "containerPort": HTTP, "protocol": "TCP"},
        ],
        "startupProbe": probe("/healthz", "http", period=1, failures=60),
        "livenessProbe": probe("/healthz", "http", period=10, failures=3),
        "readinessProbe": probe("/readyz", "http", period=2, failures=2),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    if placement.resources:
        container["resources"] = placement.resources
    volumes: list[Json] = []
    _add_security(cluster, container, volumes, tls)
    pod = pod_spec(spec, placement, names.account, container, volumes)
    pod["affinity"] = placement.affinity or apart(names.name_server_selector())
    pod["terminationGracePeriodSeconds"] = 30
    if constraints := spread(placement.spread, names.name_server_selector()):
        pod["topologySpreadConstraints"] = constraints
    placement.template.apply(pod, container)
    added = [dict(placement.template.labels), dict(placement.template.annotations)]
    if tls.stage is not Stage.OFF:  # a pod of each stage is known by its template, also if nothing else differs
        added.append(stage_annotation(tls.stage))
    labels, version = names.labels("nameserver"), digest([pod, added] if any(added) else pod)
    own = {TEMPLATE: version} | stage_annotation(tls.stage)
    content = {
        "spec": {
            "replicas": replicas,
            "serviceName": names.name_server_headless,
            "podManagementPolicy": "Parallel",
            "minReadySeconds": SETTLED_SECONDS,
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": names.name_server_selector()},
            "template": {"metadata": placement.template.metadata(labels, own), "spec": pod},
        }
    }
    return manifest(STATEFUL_SETS, cluster.namespace, names.name_server, labels, content, owner=owner_of(cluster))


def _add_security(cluster: Cluster, container: Json, volumes: list[Json], tls: TlsView) -> None:
    """Adds variables and files of access control, TLS, and of the HTTP port."""
    names, spec = names_of(cluster), cluster.spec
    if spec.security.access_control:
        container["env"] += environment(
            {"TALLY_NAMESERVER_ACLENABLE": "true", "TALLY_NAMESERVER_ACLFILE": f"{ACCESS_FOLDER}/{ACCOUNTS}"}
        )
    container["env"] += environment(tls_variables(tls.stage, spec.security))
    secret = tls.secret or names.tls(names.name_server)
    add_files(container, volumes, spec.security, tls.stage, secret, names.access)
    if spec.adopt is not None or spec.security.access_control or tls.stage is not Stage.OFF:
        # The operator asks it about the cluster that is adopted, and which accounts and certificates it uses.
        container["env"] += environment({"TALLY_HTTP_ADMINTOKENFILE": f"{_TOKEN_FOLDER}/{TOKEN_KEY}"})
        container["volumeMounts"].append({"name": "admin", "mountPath": _TOKEN_FOLDER, "readOnly": True})
        volumes.append({"name": "admin", "secret": {"secretName": names.admin(cluster.uid)}})
