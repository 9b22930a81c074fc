"""The Kubernetes Job of an attempt. Pure.

The pod of a backup mounts the volume of the member read-only, on the Kubernetes node where its broker runs: a volume
with the access mode ReadWriteOnce can be mounted there. No pod has a token for the API server or a writable root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from tallystick.operator.backups.decide import job_name
from tallystick.operator.backups.reasons import Phase
from tallystick.operator.backups.spec import Backup
from tallystick.operator.core.kube import BACKUPS, FIELD_MANAGER, JOBS, Json
from tallystick.operator.core.manifests import USER, container_security, environment, manifest, owned_by, pod_security
from tallystick.operator.core.names import BACKUP_LABEL, GROUP_LABEL, MEMBER_LABEL, Names, numbers_of
from tallystick.operator.core.node_api import NodeName

STORE_FOLDER, READER_FOLDER = "/data", "/etc/tallystick-reader"
RESULT_FILE = "/dev/termination-log"
GRACE_SECONDS = 10
ATTEMPT_SECONDS = 86400


@dataclass(frozen=True, slots=True)
class Frame:
    """Settings of pods that do not come from the Backup."""

    image: str
    reader_secret: str = ""
    pull_secrets: Sequence[Json] = ()
    tolerations: Sequence[Json] = ()
    priority_class: str = ""
    url_template: str = "http://{node}.{namespace}.svc:8080"


def labels_of(backup: Backup) -> dict[str, str]:
    """Returns the labels of all objects. Network policies of the cluster admit `component: job` to the HTTP port."""
    return Names(backup.namespace, backup.cluster).labels("job") | {BACKUP_LABEL: backup.name}


def selector_of(backup: Backup) -> str:
    return f"{BACKUP_LABEL}={backup.name},app.kubernetes.io/managed-by={FIELD_MANAGER}"


def job(backup: Backup, group: Json, frame: Frame) -> Json:
    """Returns the Job of the current attempt of an active group."""
    phase = Phase(group["phase"])
    place, creates = backup.place, phase is Phase.RUNNING
    reads_contents = phase is not Phase.DELETING
    volumes, mounts = place.volumes(read_only=phase is Phase.VERIFYING, key=reads_contents)
    volumes.append({"name": "tmp", "emptyDir": {}})
    mounts.append({"name": "tmp", "mountPath": "/tmp"})
    command = ["tally", "backup"]
    pod: Json = {}
    if creates:
        number = numbers_of(group["node"])[1]
        names = Names(backup.namespace, backup.cluster)
        claim = {"claimName": names.claim(group["group"], number), "readOnly": True}
        volumes.append({"name": "store", "persistentVolumeClaim": claim})
        mounts.append({"name": "store", "mountPath": STORE_FOLDER, "readOnly": True})
        volumes.append({"name": "reader", "secret": {"secretName": frame.reader_secret, "defaultMode": 0o440}})
        mounts.append({"name": "reader", "mountPath": READER_FOLDER, "readOnly": True})
        command += ["create", f"{STORE_FOLDER}/store", place.address, "--http", _http(backup, group, number, frame)]
        command += ["--token-file", f"{READER_FOLDER}/token"]
        command += ["--bytes-per-second", backup.bytes_per_second] if backup.bytes_per_second else []
        pod["affinity"] = _beside(backup, group["group"], number)
    else:
        command += ["verify" if phase is Phase.VERIFYING else "delete", group["address"]]
    command += [*place.arguments(key=reads_contents), "--json", "--result", RESULT_FILE]
    container: Json = {
        "name": "backup",
        "image": frame.image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "env": environment({"HOME": "/tmp"} | place.environment()),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }
    pod |= {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        # The group of the destination. The kubelet does not change a volume that it mounts read-only.
        "securityContext": pod_security() | {"runAsUser": USER},
        "containers": [container],
        "volumes": volumes,
    }
    if frame.pull_secrets:
        pod["imagePullSecrets"] = list(frame.pull_secrets)
    if frame.tolerations:
        pod["tolerations"] = list(frame.tolerations)
    if frame.priority_class:
        pod["priorityClassName"] = frame.priority_class
    content = {
        "spec": {
            "backoffLimit": 0,  # the operator takes another member for the next attempt
            "activeDeadlineSeconds": ATTEMPT_SECONDS,
            "template": {"metadata": {"labels": labels_of(backup)}, "spec": pod},
        }
    }
    # A deletion in the foreground would otherwise delete the Job that deletes the stored backup.
    owner = owned_by(BACKUPS, backup.name, backup.uid) | {"blockOwnerDeletion": False}
    return manifest(JOBS, backup.namespace, job_name(backup, group), labels_of(backup), content, owner=owner)


def _http(backup: Backup, group: Json, number: int, frame: Frame) -> str:
    name = NodeName(backup.namespace, backup.cluster, group["group"], number)
    return urlsplit(frame.url_template.format(node=name, namespace=backup.namespace)).netloc


def _beside(backup: Backup, group: int, number: int) -> Json:
    """Returns an affinity to the pod of the broker."""
    labels = Names(backup.namespace, backup.cluster).broker_selector()
    labels |= {GROUP_LABEL: str(group), MEMBER_LABEL: str(number)}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
