"""The parts of a pod that users may set, besides scheduling: `podTemplate` of a spec. Pure.

The operator keeps what its decisions and the brokers depend on: the labels that select pods, the settings of a broker
(`TALLY_...`), its folders, and a pod that the restricted Pod Security Standard permits. What a user sets is added to
that. The CEL rules of the schema reject the same names (`RESERVED_...`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tallystick.operator.core.backup_place import FOLDER, KEY_FOLDER, S3_FOLDER
from tallystick.operator.core.backup_place import VOLUMES as BACKUP_VOLUMES
from tallystick.operator.core.kube import GROUP, Json

RESERVED_PREFIXES = (f"{GROUP}/", "statefulset.kubernetes.io/", "apps.kubernetes.io/")
"""Prefixes of labels and annotations that the operator and the controller of StatefulSets set."""
RESERVED_LABELS = (
    *("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"),
    *("app.kubernetes.io/managed-by", "controller-revision-hash"),
)
RESERVED_VARIABLES = ("HOME", "HOST_IP")
SETTINGS_PREFIX = "TALLY_"
"""Prefix of variables that are settings of a broker or name server. `spec.config` sets them, and is checked."""
RESERVED_VOLUMES = ("data", "tmp", "config", "admin", "reader", *BACKUP_VOLUMES)
RESERVED_FOLDERS = (
    *("/data", "/tmp", "/etc/tallystick", "/etc/tallystick-admin", "/etc/tallystick-reader"),
    *(FOLDER, S3_FOLDER, KEY_FOLDER),
)
SOURCES = ("configMap", "secret", "emptyDir", "projected", "csi")
"""Kinds of volumes. Claims are excluded: two pods could use the same one, and each member has its own."""
ZONES: Json = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
"""The default spread: over zones as evenly as possible. Kubernetes nodes without this label are not affected."""


class PodTemplateError(ValueError):
    """A template is invalid. `field`: the path below `podTemplate`."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """What is added to the pods. `grace_seconds`, `account`: None, empty: the defaults of the operator."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    priority_class: str = ""
    scheduler: str = ""
    account: str = ""
    grace_seconds: int | None = None
    security: Json = field(default_factory=dict)
    env: tuple[Json, ...] = ()
    volumes: tuple[Json, ...] = ()
    mounts: tuple[Json, ...] = ()

    @classmethod
    def parse(cls, spec: Mapping[str, Any]) -> PodTemplate:
        """Parses a template. PodTemplateError: it would break the pods of the operator."""
        grace = spec.get("terminationGracePeriodSeconds")
        found = cls(
            labels=dict(spec.get("labels") or {}),
            annotations=dict(spec.get("annotations") or {}),
            priority_class=spec.get("priorityClassName") or "",
            scheduler=spec.get("schedulerName") or "",
            account=spec.get("serviceAccountName") or "",
            grace_seconds=None if grace is None else int(grace),
            security=dict(spec.get("securityContext") or {}),
            env=tuple(spec.get("env") or ()),
            volumes=tuple(spec.get("volumes") or ()),
            mounts=tuple(spec.get("volumeMounts") or ()),
        )
        for place, reason in found._problems():
            raise PodTemplateError(place, reason)
        return found

    def metadata(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Json:
        """Returns labels and annotations of the pods; those of the operator have priority."""
        return {"labels": {**self.labels, **labels}, "annotations": {**self.annotations, **annotations}}

    def apply(self, pod: Json, container: Json) -> None:
        """Adds the template to the spec of a pod and to its container."""
        # After the variables of the operator, because a variable can reference earlier ones.
        container["env"] = [*container["env"], *self.env]
        container["volumeMounts"] = [*container["volumeMounts"], *self.mounts]
        pod["volumes"] = [*pod["volumes"], *self.volumes]
        pod["securityContext"] = {**pod["securityContext"], **self.security}
        wanted = {
            "priorityClassName": self.priority_class,
            "schedulerName": self.scheduler,
            "serviceAccountName": self.account,
            "terminationGracePeriodSeconds": self.grace_seconds,
        }
        pod.update({name: value for name, value in wanted.items() if value})

    def _problems(self) -> Iterator[tuple[str, str]]:
        for place, names, taken in (("labels", self.labels, RESERVED_LABELS), ("annotations", self.annotations, ())):
            for name in names:
                if name in taken or name.startswith(RESERVED_PREFIXES):
                    yield place, f"{name} is set by the operator or by Kubernetes"
        if self.grace_seconds is not None and self.grace_seconds < 1:
            yield "terminationGracePeriodSeconds", f"must be at least 1, not {self.grace_seconds}"
        if self.security.get("runAsNonRoot") is False or self.security.get("runAsUser") == 0:
            yield "securityContext", "the pods must not run as root"
        for name in _names(self.env, "env"):
            if name in RESERVED_VARIABLES or name.upper().startswith(SETTINGS_PREFIX):
                yield "env", f"{name} is set by the operator; spec.config sets the settings of brokers"
        volumes = _names(self.volumes, "volumes")
        for volume in self.volumes:
            if volume["name"] in RESERVED_VOLUMES:
                yield "volumes", f"{volume['name']} is a volume of the operator"
            if len(volume.keys() & set(SOURCES)) != 1 or volume.keys() - {"name", *SOURCES}:
                yield "volumes", f"{volume['name']} needs exactly one of {', '.join(SOURCES)}"
        yield from _problems_of_mounts(self.mounts, volumes)


def _problems_of_mounts(mounts: Sequence[Json], volumes: Sequence[str]) -> Iterator[tuple[str, str]]:
    paths = [str(mount.get("mountPath") or "") for mount in mounts]
    for mount, path in zip(mounts, paths, strict=True):
        if mount.get("name") not in volumes:
            yield "volumeMounts", f"{path} needs a volume of podTemplate.volumes, not {mount.get('name')!r}"
        parts = path.split("/")
        if not path.startswith("/") or any(part in ("", ".", "..") for part in parts[1:]):
            yield "volumeMounts", f"{path!r} must be an absolute path without empty parts, '.' or '..'"
        if any(path == folder or path.startswith(f"{folder}/") for folder in RESERVED_FOLDERS):
            yield "volumeMounts", f"{path} is in a folder of the operator"
        if paths.count(path) > 1:
            yield "volumeMounts", f"{path} occurs twice"


def _names(items: Sequence[Json], place: str) -> list[str]:
    """Returns the names of items. PodTemplateError: one is missing, or occurs twice."""
    names = [str(item.get("name") or "") for item in items]
    if "" in names or len(set(names)) != len(names):
        raise PodTemplateError(place, "each item needs a name, and each name may occur once")
    return names


def spread(constraints: Sequence[Json] | None, selector: Mapping[str, str]) -> list[Json]:
    """Returns the spread constraints of pods. None: the default; an empty list: none.

    `selector`: labels of the pods that a constraint without a labelSelector counts.
    """
    counted = {"labelSelector": {"matchLabels": dict(selector)}}
    return [counted | each for each in ((ZONES,) if constraints is None else constraints)]
