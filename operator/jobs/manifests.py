"""The objects of one run. Pure: they follow from the job and the plan of its attempt.

A run is a separate Spark cluster: a driver, and a worker for each volume, which the affinity of the volume places. No
pod has a service account token, writes to the volume of a broker, or changes the owner of its files, as an `fsGroup`
would.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.operator.core.backup_place import BackupPlace
from tallystick.operator.core.kube import (
    CONFIG_MAPS,
    GROUP,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    STORE_JOBS,
    Json,
)
from tallystick.operator.core.manifests import USER, container_security, environment, manifest, owned_by, port
from tallystick.operator.core.names import JOB_LABEL, Names, numbers_of
from tallystick.operator.core.ownership import owned
from tallystick.operator.jobs.backup_source import environment_of
from tallystick.operator.jobs.names import DRIVER, WORKER, JobNames
from tallystick.operator.jobs.plan import OUT, STORES, text_of
from tallystick.operator.jobs.program import FOLDER, SECRET_FOLDER, Program
from tallystick.operator.jobs.spec import ClaimOutput, Job, Process, S3Output

PLAN_KEY, SECRET_KEY = "plan.json", "secret"
OUTPUT_S3_FOLDER = "/etc/tallystick-output-s3"
PLAN_FILE = f"/etc/tallystick-job/{PLAN_KEY}"
WITHOUT_CLAIM = f"{GROUP}/without-claim"
"""Annotation of the ConfigMap: nodes whose worker mounts no volume, separated by commas."""
DRIVER_HTTP = 8080
GRACE_SECONDS = 5
"""Termination grace period: the pods have no state to save."""
TMP_LIMIT = "4Gi"
"""Limit of local files of a pod: spilled data of Spark, and files read over HTTP."""
OVERHEAD_MIB = 640
"""Memory besides 1.1 times the heap: Python, batches of Arrow, page cache of written files."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Settings of pods that do not come from the StoreJob."""

    image: str
    priority_class: str = ""
    pull_secrets: tuple[Json, ...] = ()
    """Pull secrets of the cluster, because images of brokers usually come from the same registry."""
    reader_secret: str = ""
    """Secret of the cluster with the token for reading files of stores; empty: the cluster does not exist."""
    account: str = ""
    """Service account of the cluster, without permissions; empty: that of the namespace."""
    backups: BackupPlace | None = None
    """Where the backups are that the run reads; None: it reads volumes of brokers."""


def service(job: Job) -> Json:
    """Returns the headless Service that gives each pod a DNS name, also before it is ready."""
    names = names_of(job)
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {JOB_LABEL: job.name},
        "ports": [port("http", DRIVER_HTTP) | {"targetPort": DRIVER_HTTP}],
    }
    return manifest(SERVICES, job.namespace, names.shared, names.labels(), {"spec": spec}, owner=owner_of(job))


def secret(job: Job, value: str) -> Json:
    """Returns the shared secret of the Spark processes of this run. It is created once and never read."""
    names = names_of(job)
    content = {"type": "Opaque", "data": {SECRET_KEY: base64.b64encode(value.encode()).decode()}}
    return manifest(SECRETS, job.namespace, names.secret(job.uid), names.labels(), content, owner=owner_of(job))


def config_map(job: Job, plan: Json, without_claim: Iterable[str]) -> Json:
    names = names_of(job)
    return manifest(
        CONFIG_MAPS,
        job.namespace,
        names.shared,
        names.labels(),
        {"data": {PLAN_KEY: text_of(plan)}},
        owner=owner_of(job),
        annotations={WITHOUT_CLAIM: ",".join(without_claim)},
    )


def network_policy(job: Job) -> Json:
    """Returns the policy: pods of the run reach each other on all ports; every pod can read the progress."""
    names, own = names_of(job), {"matchLabels": {JOB_LABEL: job.name}}
    rules: list[Json] = [
        {"from": [{"podSelector": own}]},
        {"from": [{"namespaceSelector": {}}], "ports": [{"port": DRIVER_HTTP, "protocol": "TCP"}]},
    ]
    content = {"spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": rules}}
    return manifest(NETWORK_POLICIES, job.namespace, names.shared, names.labels(), content, owner=owner_of(job))


def worker_nodes(plan: Json) -> list[tuple[str, int]]:
    """Returns node and number of each worker, in the order of the plan."""
    return [
        (source["node"], number)
        for source in plan["sources"]
        if source["host"] is not None
        for number in range(1, len(source.get("moreHosts") or ()) + 2)
    ]


def driver_pod(job: Job, plan: Json, frame: Frame, seconds_left: int) -> Json:
    """Returns the driver pod. After `seconds_left` the kubelet stops it and keeps the pod with its log."""
    names = names_of(job)
    pod = _pod(job, frame, DRIVER, ["driver"], job.spec.driver, cpu_limit="2")
    pod |= {"hostname": "driver", "restartPolicy": "Never", "activeDeadlineSeconds": seconds_left}
    if isinstance(job.spec.output, ClaimOutput):
        # A new volume may belong to root. The driver mounts no volume of a broker.
        pod["securityContext"] |= {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"}
        _mount_output(pod, job.spec.output)
    labels = names.pod_labels(DRIVER, plan["attempt"])
    return manifest(PODS, job.namespace, names.driver, labels, {"spec": pod}, owner=owner_of(job))


def worker_pod(
    job: Job, plan: Json, node: str, frame: Frame, seconds_left: int, *, claim: bool = True, number: int = 1
) -> Json:
    """Returns a worker of a node, which mounts the volume read-only; without `claim`, it mounts no volume. `number`:
    which of the workers of the node it is, from 1."""
    names, cores = names_of(job), job.spec.executor.cores
    pod = _pod(job, frame, WORKER, ["worker"], job.spec.executor, cpu_limit=str(cores))
    pod["containers"][0]["command"] += ["--node", node] + (["--number", str(number)] if number > 1 else [])
    pod |= {
        "hostname": names.worker_hostname(node, number),
        "restartPolicy": "OnFailure",
        "activeDeadlineSeconds": seconds_left,
    }
    if claim:
        name = Names(job.namespace, job.spec.cluster).claim(*numbers_of(node))
        _mount(pod, "store", f"{STORES}/{node}", {"persistentVolumeClaim": {"claimName": name, "readOnly": True}})
    if isinstance(job.spec.output, ClaimOutput) and (plan["output"] or {}).get("shared"):
        _mount_output(pod, job.spec.output)
    labels = names.pod_labels(WORKER, plan["attempt"], node)
    return manifest(PODS, job.namespace, names.worker(node, number), labels, {"spec": pod}, owner=owner_of(job))


def names_of(job: Job) -> JobNames:
    return JobNames(job.namespace, job.name, job.spec.cluster)


def owner_of(job: Job) -> Json:
    """Returns the owner reference for objects of a job."""
    return owned_by(STORE_JOBS, job.name, job.uid)


def owns(job: Job, body: Json) -> bool:
    """Whether this very StoreJob owns an object, and not an earlier one of the same name."""
    return owned(body, {job.uid})


def _pod(job: Job, frame: Frame, name: str, command: Sequence[str], process: Process, cpu_limit: str) -> Json:
    names = names_of(job)
    memory = process.memory_mib
    container: Json = {
        "name": name,
        "image": job.spec.image or frame.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["tally-spark", *command, "--plan", PLAN_FILE],
        "env": environment({"HOME": "/tmp"}),
        "resources": process.resources
        or {
            "requests": {"cpu": "100m", "memory": f"{memory}Mi"},
            "limits": {"cpu": cpu_limit, "memory": f"{memory + memory // 10 + OVERHEAD_MIB}Mi"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": [],
    }
    pod: Json = {
        "subdomain": names.shared,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [],
    }
    _mount(pod, "tmp", "/tmp", {"emptyDir": {"sizeLimit": TMP_LIMIT}})
    _mount(pod, "plan", "/etc/tallystick-job", {"configMap": {"name": names.shared}}, read_only=True)
    _mount(
        pod, "secret", "/etc/tallystick-job-secret", {"secret": {"secretName": names.secret(job.uid)}}, read_only=True
    )
    if frame.reader_secret:
        reader = {"secretName": frame.reader_secret, "optional": True}
        _mount(pod, "reader", "/etc/tallystick-reader", {"secret": reader}, read_only=True)
    if isinstance(job.spec.output, S3Output) and job.spec.output.secret:
        _mount_credentials(pod, job.spec.output.secret)
    if frame.account:
        pod["serviceAccountName"] = frame.account
    if frame.backups is not None:
        _mount_backups(pod, frame.backups)
    if job.spec.program is not None:
        _mount_program(pod, job.spec.program)
    if frame.priority_class:
        pod["priorityClassName"] = frame.priority_class
    if frame.pull_secrets:
        pod["imagePullSecrets"] = list(frame.pull_secrets)
    if job.spec.node_selector:
        pod["nodeSelector"] = job.spec.node_selector
    if job.spec.tolerations:
        pod["tolerations"] = list(job.spec.tolerations)
    return pod


def _mount_backups(pod: Json, place: BackupPlace) -> None:
    """The pod mounts no volume of a broker, so a group can own the files of the Secrets."""
    volumes, mounts = place.volumes(read_only=True)
    pod["volumes"] += volumes
    pod["containers"][0]["volumeMounts"] += mounts
    pod["containers"][0]["env"] += environment(environment_of(place))
    pod["securityContext"] |= {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"}


def _mount_program(pod: Json, program: Program) -> None:
    if program.config_map:
        _mount(pod, "program", FOLDER, {"configMap": {"name": program.config_map}}, read_only=True)
    if program.secret:
        secret_volume = {"secret": {"secretName": program.secret, "defaultMode": 0o444}}
        _mount(pod, "program-secret", SECRET_FOLDER, secret_volume, read_only=True)


def _mount_credentials(pod: Json, secret: str) -> None:
    """Of an output in S3, as files: the environment of a process is shown by many tools."""
    volume = {"secret": {"secretName": secret, "defaultMode": 0o444}}
    _mount(pod, "output-s3", OUTPUT_S3_FOLDER, volume, read_only=True)
    pod["containers"][0]["env"] += environment({"TALLYSTICK_OUTPUT_S3_SETTINGS": OUTPUT_S3_FOLDER})


def _mount_output(pod: Json, output: ClaimOutput) -> None:
    _mount(pod, "out", OUT, {"persistentVolumeClaim": {"claimName": output.name}})


def _mount(pod: Json, name: str, path: str, volume: dict[str, Any], *, read_only: bool = False) -> None:
    claim = volume.get("persistentVolumeClaim") or {}
    mount: Json = {"name": name, "mountPath": path}
    if read_only or claim.get("readOnly"):
        mount["readOnly"] = True
    pod["volumes"].append({"name": name, **volume})
    pod["containers"][0]["volumeMounts"].append(mount)
