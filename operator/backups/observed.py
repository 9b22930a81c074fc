"""The observed state of a Backup as values: the input of `decide.py`. Times are seconds since 1970.

Missing information counts as "not yet": an attempt has ended only when its pod or its Job says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tallystick.operator.core.kube import Json
from tallystick.operator.core.ownership import owned
from tallystick.operator.core.pods import pod_of
from tallystick.operator.core.times import seconds


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended. `code`: the exit status; None: the container never ran, or the pod is gone."""

    code: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A Kubernetes Job, and its pod."""

    name: str
    uid: str
    own: bool = True
    """Whether the Backup owns it. Another Job with the name is not changed."""
    created: float = 0.0
    """When the Job was created, in seconds since 1970."""
    deleting: bool = False
    started: bool = False
    """Whether its container runs or ran."""
    waiting: str = ""
    """Why the container does not run, as reported by Kubernetes."""
    ended: Ended | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a Backup. None: the object does not exist."""

    now: float
    cluster: Json | None = None
    nodes: Mapping[str, Json] = field(default_factory=dict)
    claims: Mapping[str, Json] = field(default_factory=dict)
    destination: Json | None = None
    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    terminating: bool = False
    """The namespace is being deleted."""


def attempts_of(uid: str, jobs: Iterable[Json], pods: Iterable[Json]) -> dict[str, Attempt]:
    """Returns the Jobs by name. `uid` of the Backup."""
    listed = list(pods)
    found = {}
    for job in jobs:
        metadata = job["metadata"]
        pod = next((each for each in listed if owned(each, {metadata.get("uid", "")})), None)
        found[metadata["name"]] = _attempt(job, pod, own=owned(job, {uid}))
    return found


def _attempt(job: Json, pod: Json | None, *, own: bool) -> Attempt:
    metadata = job["metadata"]
    ended, started, waiting = _ended_job(job), False, ""
    if pod is not None:
        common = pod_of(pod)
        status = pod.get("status") or {}
        container: Json = next(iter(status.get("containerStatuses") or ()), {})
        terminated = (container.get("state") or {}).get("terminated")
        if terminated is not None:
            code = terminated.get("exitCode")
            ended = Ended(
                None if code is None else int(code), str(terminated.get("message") or terminated.get("reason"))
            )
        elif status.get("phase") in ("Failed", "Succeeded"):
            ended = Ended(None, str(status.get("message") or status.get("reason") or status["phase"]))
        started = common.running or terminated is not None
        waiting = ": ".join(part for part in (common.waiting, common.message) if part)
    return Attempt(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        own=own,
        created=seconds(metadata.get("creationTimestamp")) or 0.0,
        deleting=bool(metadata.get("deletionTimestamp")),
        started=started,
        waiting=waiting,
        ended=ended,
    )


def _ended_job(job: Json) -> Ended | None:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            told = str(condition.get("message") or condition.get("reason") or condition["type"])
            return Ended(None, f"the pod of the Job is gone: {told}")
    return None
