"""What a StoreJob asks for, as values. Defaults are those of the CRD, for objects that never met it.

The schema refuses most of what cannot be. What it cannot see (whether a schedule has a time, whether there is such a
time zone, whether the operator knows an image) is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tallystick.operator.core.kube import Json
from tallystick.operator.core.quantity import quantity
from tallystick.operator.core.times import seconds
from tallystick.operator.jobs.schedule import Schedule, ScheduleError

JOBS = ("stats", "audit", "export", "rebuild", "trace")
MIB = 1 << 20
RUN_FIELDS = (
    *("clusterName", "job", "groups", "arguments", "executor", "driver", "output", "activeDeadlineSeconds"),
    *("maxRetries", "ttlSecondsAfterFinished", "image", "nodeSelector", "tolerations"),
)
"""What a run takes over from the template that it is made from."""


class JobSpecError(ValueError):
    """The job cannot be as it is asked for; only its author can mend it. The message names the field."""


class Concurrency(StrEnum):
    """What happens when it is time and a run is still going."""

    ALLOW = "Allow"
    FORBID = "Forbid"
    REPLACE = "Replace"


@dataclass(frozen=True, slots=True)
class Process:
    """Driver or worker. `resources`: Kubernetes' own words, in place of what follows from the rest; empty: none
    given."""

    memory_mib: int = 512
    """Heap of the Java process."""
    cores: int = 1
    resources: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimOutput:
    """`path`: a folder in it, empty for its top."""

    name: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class S3Output:
    uri: str
    endpoint: str = ""
    region: str = ""
    secret: str = ""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """StoreJob.spec with its defaults."""

    cluster: str
    job: str
    groups: tuple[int, ...] | None = None
    """None: all that the cluster has."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    executor: Process = field(default_factory=Process)
    instances: int | None = None
    """Workers at most; None: one for each volume."""
    driver: Process = field(default_factory=Process)
    output: ClaimOutput | S3Output | None = None
    deadline_seconds: int = 3600
    max_retries: int = 1
    ttl_seconds: int | None = None
    image: str = ""
    node_selector: Json = field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()
    suspend: bool = False
    schedule: Schedule | None = None
    concurrency: Concurrency = Concurrency.FORBID
    starting_deadline_seconds: int | None = None
    successes_kept: int = 3
    failures_kept: int = 1

    @classmethod
    def parse(cls, spec: Mapping[str, Any]) -> JobSpec:
        """JobSpecError: it cannot be so."""
        job = str(spec.get("job") or "")
        if job not in JOBS:
            raise JobSpecError(f"spec.job must be one of {', '.join(JOBS)}, not {job!r}")
        arguments, executor = dict(spec.get("arguments") or {}), spec.get("executor") or {}
        if job == "trace" and not arguments.get("key"):
            raise JobSpecError("spec.arguments.key is required for job trace")
        output = _output(spec.get("output"))
        if job == "export" and output is None:
            raise JobSpecError("spec.output is required for job export")
        groups = spec.get("groups")
        return cls(
            cluster=str(spec.get("clusterName") or ""),
            job=job,
            groups=tuple(sorted({int(group) for group in groups})) if groups else None,
            arguments=arguments,
            executor=_process("executor", executor),
            instances=executor.get("instances"),
            driver=_process("driver", spec.get("driver") or {}),
            output=output,
            deadline_seconds=int(spec.get("activeDeadlineSeconds", 3600)),
            max_retries=int(spec.get("maxRetries", 1)),
            ttl_seconds=spec.get("ttlSecondsAfterFinished"),
            image=str(spec.get("image") or ""),
            node_selector=dict(spec.get("nodeSelector") or {}),
            tolerations=tuple(spec.get("tolerations") or ()),
            suspend=bool(spec.get("suspend", False)),
            schedule=_schedule(spec),
            concurrency=Concurrency(spec.get("concurrencyPolicy") or "Forbid"),
            starting_deadline_seconds=spec.get("startingDeadlineSeconds"),
            successes_kept=int(spec.get("successfulJobsHistoryLimit", 3)),
            failures_kept=int(spec.get("failedJobsHistoryLimit", 1)),
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A StoreJob: who it is, what it asks for, and what its status says so far."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: float
    spec: JobSpec
    status: Json

    @classmethod
    def parse(cls, body: Json) -> Job:
        """JobSpecError: see JobSpec.parse."""
        metadata = body["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            generation=int(metadata.get("generation") or 0),
            created=seconds(metadata.get("creationTimestamp")) or 0.0,
            spec=JobSpec.parse(body.get("spec") or {}),
            status=body.get("status") or {},
        )

    @property
    def phase(self) -> str:
        """Empty: nobody has looked at it yet."""
        return str(self.status.get("phase") or "")

    @property
    def attempt(self) -> int:
        """0: none was begun."""
        return int(self.status.get("attempt") or 0)

    @property
    def deadline(self) -> float:
        """When it is stopped: counted from its start, or from its creation while it cannot start."""
        return (seconds(self.status.get("startTime")) or self.created) + self.spec.deadline_seconds


def _process(name: str, spec: Mapping[str, Any]) -> Process:
    text = str(spec.get("memory") or "512Mi")
    try:
        memory = int(quantity(text) // MIB)
    except ValueError as error:
        raise JobSpecError(f"spec.{name}.memory: {error}") from error
    return Process(memory, int(spec.get("cores") or 1), dict(spec.get("resources") or {}))


def _output(spec: Mapping[str, Any] | None) -> ClaimOutput | S3Output | None:
    if spec is None:
        return None
    claim, s3 = spec.get("claim"), spec.get("s3")
    if (claim is None) == (s3 is None):
        raise JobSpecError("spec.output must have exactly one of claim and s3")
    if claim is not None:
        path = str(claim.get("path") or "")
        if path.startswith("/") or {".", ".."} & set(path.split("/")):
            raise JobSpecError(f"spec.output.claim.path must be a folder in the volume, not {path!r}")
        return ClaimOutput(str(claim["name"]), path)
    assert s3 is not None
    names = ("uri", "endpoint", "region", "secretName")
    return S3Output(*(str(s3.get(name) or "") for name in names))


def _schedule(spec: Mapping[str, Any]) -> Schedule | None:
    text = spec.get("schedule")
    if text is None:
        return None
    try:
        return Schedule.parse(str(text), str(spec.get("timeZone") or "UTC"))
    except ScheduleError as error:
        raise JobSpecError(str(error)) from error
