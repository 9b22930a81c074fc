"""A job as one object. `registry.py` finds it; the command and the processes of a StoreJob run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tallystick.spark.options import ReadOptions
from tallystick.spark.outputs import Output
from tallystick.spark.reads import CountingRunner
from tallystick.spark.runner import Runner

Summary = Mapping[str, Any]
"""What a job found, as a JSON object. `job` is the name of the job."""
CLEAN, DIFFERENCES, DAMAGE, DONE = "Clean", "DifferencesFound", "DamageFound", "Done"
"""Verdicts. `Clean` and `DifferencesFound` are those of a job that compares."""


class Kind(Enum):
    """The type of an argument: its name in messages."""

    TEXT = "a text"
    NUMBER = "a whole number"
    TABLE = "an object of texts"
    """On the command line an option that can be repeated, KEY=VALUE."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a job, beyond the stores and what to read of them.

    `name`: its key in `spec.arguments` of a StoreJob, in the plan of a run, and in `Call.arguments`. `flag`: the option
    of `tally-job`, such as `--lag-ms`; empty: a positional argument, which is always required. `default`: its value if
    it is not given.
    """

    name: str
    help: str
    flag: str = ""
    kind: Kind = Kind.TEXT
    metavar: str | None = None
    default: Any = None
    local: bool = False
    """Only `tally-job` has it, a StoreJob does not."""

    @property
    def required(self) -> bool:
        return not self.flag


SETTINGS = Argument(
    "settings",
    "a setting of the store that its files do not contain; can be repeated",
    "--set",
    kind=Kind.TABLE,
    metavar="KEY=VALUE",
)


class OutputUse(Enum):
    """Whether a job writes files: never, if it is given a place, or always."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Call:
    """What a job is called with. `arguments`: a value for each argument of the job, by name."""

    options: ReadOptions
    runner: Runner
    output: Output | None
    arguments: Mapping[str, Any]


def damage_verdict(summary: Summary) -> str:
    """Returns the verdict of a job that does not compare."""
    return DAMAGE if summary.get("damaged") else DONE


def damage_listed(summary: Summary) -> Sequence[str]:
    """Returns the damaged places that a summary lists."""
    return [str(each) for each in summary.get("damage", ())]


@dataclass(frozen=True, slots=True)
class Job:
    """One of the jobs. All functions of a summary are pure.

    `run` raises OptionError, VolumeError, OutputError, OSError, ValueError, or an exception of `failures`. `figures`:
    the counters of a StoreJob's result that this job has (`cluster/result.py`). `message`: one line for users, without
    damaged places. `findings`: differences or damage, one line each. `page`: the summary as an HTML page, None: it has
    none.
    """

    name: str
    help: str
    run: Callable[[Call], dict[str, Any]]
    text: Callable[[Summary], str]
    figures: Callable[[Summary], Mapping[str, int]]
    message: Callable[[Summary, Mapping[str, int]], str]
    arguments: tuple[Argument, ...] = ()
    reads_a_part: bool = False
    """It can be limited to topics, queues, and a range of offsets or times. Other jobs read the whole store."""
    all_members: bool = False
    """It reads each member of a group; other jobs read one, because all have the same log."""
    followers: bool = False
    """It reads any follower of a group: a StoreJob has workers beside all of them that are ready."""
    only_in_cluster: bool = False
    """`tally-job` does not have it."""
    output: OutputUse = OutputUse.NONE
    output_help: str = "folder or s3://bucket/prefix for the result"
    verdict: Callable[[Summary], str] = damage_verdict
    findings: Callable[[Summary], Sequence[str]] = damage_listed
    page: Callable[[Summary], str] | None = None
    needs_session: Callable[[Mapping[str, Any]], bool] = lambda arguments: False
    """Whether a run with these arguments needs a session of Spark, however small the stores are."""
    failures: tuple[type[Exception], ...] = ()
    """Its own exceptions whose cause is outside the job."""

    def summary_of(self, call: Call) -> dict[str, Any]:
        """Runs the job. Returns its summary, with `bytes_read`: what the tasks read of logs. As `run`, it raises."""
        counting = CountingRunner(call.runner)
        summary = self.run(replace(call, runner=counting))
        return summary | {"bytes_read": counting.reads.bytes}
