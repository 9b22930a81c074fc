"""The spec of a StoreJob as values, with the defaults of the CRD.

The schema rejects most invalid specs. This module checks what the schema cannot: schedules without a time and unknown
time zones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from tallystick.operator.core.backup_place import BackupPlaceError
from tallystick.operator.core.kube import Json
from tallystick.operator.core.quantity import quantity
from tallystick.operator.core.schedule import Schedule, ScheduleError
from tallystick.operator.core.times import seconds
from tallystick.operator.jobs.backup_source import BackupSource
from tallystick.operator.jobs.program import Program, ProgramError

MIB = 1 << 20
RUN_FIELDS = (
    *("clusterName", "job", "groups", "arguments", "executor", "driver", "output", "activeDeadlineSeconds"),
    *("maxRetries", "ttlSecondsAfterFinished", "image", "nodeSelector", "tolerations", "program", "source"),
)
"""Fields that a run copies from its template."""
# The schema lists the jobs. This is what the operator must know of some of them; `spark/jobs` declares it, and a test
# compares the two. Another job reads one member of each group, and needs neither an argument nor an output.
READ_ALL_MEMBERS = frozenset({"audit"})
"""Jobs that read every member of a group."""
READ_FOLLOWERS = frozenset({"program"})
"""Jobs that read any follower of a group."""
REQUIRED_ARGUMENTS = {"trace": ("key",)}
OUTPUT_REQUIRED = frozenset({"export"})
PROGRAM = "program"
COMPARE_DERIVED_FILES = frozenset({"audit", "rebuild"})
"""Jobs that compare queues and index, which a backup does not have."""
TAKE_SETTINGS = frozenset({"audit", "rebuild"})
"""Jobs with the argument `settings`. They get the settings of the cluster as well."""


class JobSpecError(ValueError):
    """The spec is invalid; retrying will not help. The message names the field."""


def _check_bound(name: str, text: Any) -> None:
    """JobSpecError: it is neither a queue offset nor an ISO 8601 time. The job parses it in the same way."""
    if text is None or str(text).isdecimal():
        return
    try:
        datetime.fromisoformat(str(text))
    except ValueError:
        raise JobSpecError(
            f"spec.arguments.{name} must be a queue offset or an ISO 8601 time, not {str(text)!r}"
        ) from None


class Concurrency(StrEnum):
    """What happens if a run is due while another is running."""

    ALLOW = "Allow"
    FORBID = "Forbid"
    REPLACE = "Replace"


@dataclass(frozen=True, slots=True)
class Process:
    """Settings of driver or workers. `resources`: as in a Pod; empty: derived from memory and cores."""

    memory_mib: int = 512
    """Heap of the Java process in MiB."""
    cores: int = 1
    resources: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimOutput:
    """Output to a volume. `path`: a folder in it; empty: the root folder."""

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
    """None: all groups of the cluster."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    executor: Process = field(default_factory=Process)
    instances: int | None = None
    """Maximum number of volumes with workers; None: all."""
    per_volume: int = 1
    """Number of workers for each of these."""
    driver: Process = field(default_factory=Process)
    output: ClaimOutput | S3Output | None = None
    deadline_seconds: int = 3600
    max_retries: int = 1
    ttl_seconds: int | None = None
    image: str = ""
    program: Program | None = None
    source: BackupSource | None = None
    """None: the volumes of the cluster."""
    node_selector: Json = field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()
    suspend: bool = False
    schedule: Schedule | None = None
    concurrency: Concurrency = Concurrency.FORBID
    starting_deadline_seconds: int | None = None
    successes_kept: int = 3
    failures_kept: int = 1

    @property
    def reads_all_members(self) -> bool:
        """It compares replicas."""
        return self.job in READ_ALL_MEMBERS

    @property
    def reads_followers(self) -> bool:
        """It reads all ready followers of a group."""
        return self.job in READ_FOLLOWERS

    @classmethod
    def parse(cls, spec: Mapping[str, Any]) -> JobSpec:
        """Parses a spec. JobSpecError: it is invalid."""
        job = str(spec.get("job") or "")
        if not job:
            raise JobSpecError("spec.job is required")
        arguments, executor = dict(spec.get("arguments") or {}), spec.get("executor") or {}
        for name in REQUIRED_ARGUMENTS.get(job, ()):
            if not arguments.get(name):
                raise JobSpecError(f"spec.arguments.{name} is required for job {job}")
        for name in ("from", "to"):
            _check_bound(name, arguments.get(name))
        output = _output(spec.get("output"))
        if job in OUTPUT_REQUIRED and output is None:
            raise JobSpecError(f"spec.output is required for job {job}")
        groups = spec.get("groups")
        program, source = _program(job, spec), _source(job, spec)
        return cls(
            cluster=str(spec.get("clusterName") or ""),
            job=job,
            groups=tuple(sorted({int(group) for group in groups})) if groups else None,
            arguments=arguments,
            executor=_process("executor", executor),
            instances=executor.get("instances"),
            per_volume=int(executor.get("perVolume") or 1),
            driver=_process("driver", spec.get("driver") or {}),
            output=output,
            deadline_seconds=int(spec.get("activeDeadlineSeconds", 3600)),
            max_retries=int(spec.get("maxRetries", 1)),
            ttl_seconds=spec.get("ttlSecondsAfterFinished"),
            image=str(spec.get("image") or ""),
            program=program,
            source=source,
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
    """A StoreJob: its identity, spec and current status."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: float
    spec: JobSpec
    status: Json

    @classmethod
    def parse(cls, body: Json) -> Job:
        """Parses a StoreJob. JobSpecError: see JobSpec.parse."""
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
        """Empty: it has not been reconciled yet."""
        return str(self.status.get("phase") or "")

    @property
    def attempt(self) -> int:
        """0: no attempt has started."""
        return int(self.status.get("attempt") or 0)

    @property
    def deadline(self) -> float:
        """When the run is stopped: counted from its start, before that from its creation."""
        return (seconds(self.status.get("startTime")) or self.created) + self.spec.deadline_seconds


def _process(name: str, spec: Mapping[str, Any]) -> Process:
    text = str(spec.get("memory") or "512Mi")
    try:
        memory = int(quantity(text) // MIB)
    except ValueError as error:
        raise JobSpecError(f"spec.{name}.memory: {error}") from error
    return Process(memory, int(spec.get("cores") or 1), dict(spec.get("resources") or {}))


def _program(job: str, spec: Mapping[str, Any]) -> Program | None:
    given = spec.get("program")
    if (job == PROGRAM) != (given is not None):
        raise JobSpecError(f"spec.program is required for job {PROGRAM}, and only for it")
    if given is None:
        return None
    if spec.get("arguments"):
        raise JobSpecError(f"spec.arguments has no meaning for job {PROGRAM}: use spec.program.arguments")
    try:
        return Program.parse(given)
    except ProgramError as error:
        raise JobSpecError(str(error)) from error


def _source(job: str, spec: Mapping[str, Any]) -> BackupSource | None:
    given = spec.get("source")
    if given is None:
        return None
    if job in COMPARE_DERIVED_FILES:
        raise JobSpecError(f"spec.source: job {job} compares queues and index, which a backup does not have")
    if given.get("destination") and not spec.get("groups"):
        raise JobSpecError("spec.groups is required with spec.source.destination")
    try:
        return BackupSource.parse(given)
    except BackupPlaceError as error:
        raise JobSpecError(str(error)) from error


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
