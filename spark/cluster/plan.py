"""The plan of a run: `plan.json`, which the operator writes, and the driver and every worker read.

    {"version": 1, "job": "audit", "name": "nightly", "attempt": 1,
     "arguments": {"topics": ["orders"], "queues": [0], "from": "...", "to": "...", "lagMillis": 10000},
     "driver": {"host": "driver.nightly-job", "memoryMiB": 512}, "executor": {"cores": 1, "memoryMiB": 512},
     "executorsWaitSeconds": 60,
     "sources": [{"node": "c-0-1", "group": "c-0", "member": 1, "root": "/stores/c-0-1/store",
                  "host": "w-c-0-1.nightly-job", "http": "http://c-0-1.default.svc:8080"}],
     "output": null | {"folder": "/out/sub", "shared": false}
                    | {"s3": {"uri": "s3://bucket/prefix", "endpoint": "http://...", "region": "us-east-1"}},
     "program": {"file": "/etc/tallystick-program/job.py", "arguments": ["a"], "sparkConf": {"spark.x": "y"}}}

A plan also has the arguments of its job (`jobs/job.py`). An argument can be missing or null, unless the job requires
it, and so can `endpoint`, `region` and `output`. `program` is only in the plan of that job.
A source has `moreHosts` if several workers have its volume. An unknown key is an error, because the run would silently
ignore it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tallystick.spark.jobs import registry
from tallystick.spark.jobs.job import Argument, Job, Kind, OutputUse
from tallystick.spark.jobs.program import JOB as PROGRAM_JOB
from tallystick.spark.jobs.program import Program

VERSION = 1
LEAST_MEMORY_MIB = 480
"""Least memory in MiB with which Spark starts."""
T = TypeVar("T")


class PlanError(ValueError):
    """The plan is invalid. `field` is the place in it, such as `sources[1].host`."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"plan: {field or 'the file'} {reason}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Arguments:
    """What to read and how. `from_` and `to`: queue offsets or times, as in the option; None: no limit. `own`: a value
    for each argument of the job, by name."""

    topics: tuple[str, ...] | None = None
    queues: tuple[int, ...] | None = None
    from_: str | None = None
    to: str | None = None
    own: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A store. `root`: where its volume is mounted, if it is, or the address of a backup; `host`: its worker, None: it
    has no worker; `http`: its broker, None: it is a backup. `more_hosts`: further workers with its volume."""

    node: str
    group: str
    member: int
    root: str
    host: str | None
    http: str | None
    more_hosts: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """All workers that have the volume."""
        return () if self.host is None else (self.host, *self.more_hosts)

    @property
    def elsewhere(self) -> str:
        """Where a process reads the store that has not mounted its volume: the broker, or the backup."""
        return self.http or self.root


@dataclass(frozen=True, slots=True)
class FolderPlace:
    """A folder for the output. `shared`: the workers can access it, too."""

    folder: str
    shared: bool


@dataclass(frozen=True, slots=True)
class BucketPlace:
    uri: str
    endpoint: str | None
    region: str | None


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The size of an executor. The memory is that of Java, in MiB."""

    job: Job
    name: str
    attempt: int
    arguments: Arguments
    driver_host: str
    driver_memory_mib: int
    executor_cores: int
    executor_memory_mib: int
    executors_wait_s: int
    sources: tuple[Place, ...]
    output: FolderPlace | BucketPlace | None
    program: Program | None = None

    @property
    def workers(self) -> tuple[Place, ...]:
        """The sources that have a worker."""
        return tuple(place for place in self.sources if place.host is not None)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of all workers."""
        return tuple(host for place in self.sources for host in place.hosts)

    @classmethod
    def parse(cls, text: str) -> JobPlan:
        """Parses a plan. PlanError: it is invalid."""
        try:
            value = json.loads(text)
        except ValueError as error:
            raise PlanError("", f"is not JSON: {error}") from error
        top = _Fields("", value)
        top.integer("version", least=VERSION, most=VERSION)
        job = registry.jobs()[top.one_of("job", tuple(registry.jobs()))]
        driver, executor = top.fields("driver"), top.fields("executor")
        plan = cls(
            job=job,
            name=top.text("name"),
            attempt=top.integer("attempt", least=1),
            arguments=_arguments(top.fields("arguments"), job),
            driver_host=driver.text("host"),
            driver_memory_mib=driver.integer("memoryMiB", least=LEAST_MEMORY_MIB),
            executor_cores=executor.integer("cores", least=1),
            executor_memory_mib=executor.integer("memoryMiB", least=LEAST_MEMORY_MIB),
            executors_wait_s=top.integer("executorsWaitSeconds", least=0),
            sources=tuple(_place(each) for each in top.list_of_fields("sources")),
            output=top.optional("output", lambda name: _output(top.fields(name))),
            program=_program(top.fields("program")) if job is PROGRAM_JOB else None,
        )
        for fields in (driver, executor, top):
            fields.end()
        nodes = [place.node for place in plan.sources]
        if not nodes or len(set(nodes)) < len(nodes):
            raise PlanError("sources", f"must name at least one node, each once, not {nodes}")
        groups = [place.group for place in plan.sources]
        if not (job.all_members or job.followers) and len(set(groups)) < len(groups):
            raise PlanError("sources", f"must name one member of a group, for {job.name}, not {groups}")
        if job.output is OutputUse.REQUIRED and plan.output is None:
            raise PlanError("output", f"is needed for {job.name}")
        return plan


def _arguments(fields: _Fields, job: Job) -> Arguments:
    given = {argument.name: _value(fields, argument) for argument in registry.arguments().values()}
    found = Arguments(
        topics=fields.optional("topics", fields.texts),
        queues=fields.optional("queues", fields.integers),
        from_=fields.optional("from", fields.text),
        to=fields.optional("to", fields.text),
        own={
            argument.name: argument.default if given.get(argument.name) is None else given[argument.name]
            for argument in job.arguments
        },
    )
    fields.end()
    for argument in job.arguments:
        if argument.required and found.own[argument.name] is None:
            raise PlanError(fields.place(argument.name), f"is needed for {job.name}")
    return found


def _value(fields: _Fields, argument: Argument) -> Any:
    match argument.kind:
        case Kind.NUMBER:
            return fields.optional(argument.name, fields.integer)
        case Kind.TABLE:
            return fields.optional(argument.name, fields.table)
    return fields.optional(argument.name, fields.text)


def _place(fields: _Fields) -> Place:
    found = Place(
        node=fields.text("node"),
        group=fields.text("group"),
        member=fields.integer("member"),
        root=fields.text("root").rstrip("/"),
        host=fields.optional("host", fields.text),
        http=fields.optional("http", fields.text),
        more_hosts=fields.optional("moreHosts", fields.texts) or (),
    )
    fields.end()
    return found


def _program(fields: _Fields) -> Program:
    found = Program(fields.text("file"), fields.texts("arguments"), fields.table("sparkConf"))
    fields.end()
    return found


def _output(fields: _Fields) -> FolderPlace | BucketPlace:
    if "s3" not in fields:
        found = FolderPlace(fields.text("folder"), fields.boolean("shared"))
        fields.end()
        return found
    s3 = fields.fields("s3")
    fields.end()
    uri = s3.text("uri")
    if not uri.startswith("s3://"):
        raise PlanError(f"{s3.name}.uri", f"must begin with s3://, not {uri!r}")
    bucket = BucketPlace(uri.rstrip("/"), s3.optional("endpoint", s3.text), s3.optional("region", s3.text))
    s3.end()
    return bucket


class _Fields:
    """An object of the plan. Its keys are taken one by one; `end` refuses the rest."""

    def __init__(self, name: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise PlanError(name, f"must be an object, not {_shown(value)}")
        self.name = name
        self._values: Mapping[str, Any] = value
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def place(self, name: str) -> str:
        return f"{self.name}.{name}" if self.name else name

    def end(self) -> None:
        for name in self._values:
            if name not in self._taken:
                raise PlanError(self.place(name), "is unknown")

    def take(self, name: str, kind: type, word: str) -> Any:
        self._taken.add(name)
        if name not in self._values:
            raise PlanError(self.place(name), "is missing")
        value = self._values[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise PlanError(self.place(name), f"must be {word}, not {_shown(value)}")
        return value

    def optional(self, name: str, take: Callable[[str], T]) -> T | None:
        self._taken.add(name)
        return None if self._values.get(name) is None else take(name)

    def text(self, name: str) -> str:
        found: str = self.take(name, str, "a text")
        if not found:
            raise PlanError(self.place(name), "must not be empty")
        return found

    def boolean(self, name: str) -> bool:
        found: bool = self.take(name, bool, "true or false")
        return found

    def integer(self, name: str, least: int = 0, most: int = 2**63 - 1) -> int:
        found: int = self.take(name, int, "a whole number")
        if not least <= found <= most:
            wanted = f"{least}" if least == most else f"at least {least}"
            raise PlanError(self.place(name), f"must be {wanted}, not {found}")
        return found

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        found = self.text(name)
        if found not in choices:
            raise PlanError(self.place(name), f"must be one of {', '.join(choices)}, not {found!r}")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        return self._all(name, str, "a text")

    def integers(self, name: str) -> tuple[int, ...]:
        return self._all(name, int, "a whole number")

    def _all(self, name: str, kind: type, word: str) -> tuple[Any, ...]:
        items = self.take(name, list, "a list")
        for number, item in enumerate(items):
            if not isinstance(item, kind) or isinstance(item, bool):
                raise PlanError(f"{self.place(name)}[{number}]", f"must be {word}, not {_shown(item)}")
        return tuple(items)

    def table(self, name: str) -> dict[str, str]:
        table: dict[str, str] = self.take(name, dict, "an object")
        for key, value in table.items():
            if not isinstance(value, str):
                raise PlanError(f"{self.place(name)}.{key}", f"must be a text, not {_shown(value)}")
        return table

    def fields(self, name: str) -> _Fields:
        return _Fields(self.place(name), self.take(name, dict, "an object"))

    def list_of_fields(self, name: str) -> list[_Fields]:
        items = self.take(name, list, "a list")
        return [_Fields(f"{self.place(name)}[{number}]", item) for number, item in enumerate(items)]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
