"""What a pass saw of a run, as values: all that `decide.py` and `status.py` may look at.

Pods are those with the job's label, whatever attempt made them. Times are seconds since 1970. What is not there, or
does not say, is taken for "not yet": only what a pod itself says of its end is an end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tallystick.operator.core.kube import Json
from tallystick.operator.core.pods import pod_of
from tallystick.operator.jobs.manifests import PLAN_KEY, WITHOUT_CLAIM
from tallystick.operator.jobs.names import ATTEMPT_LABEL, DRIVER, NODE_LABEL, ROLE_LABEL
from tallystick.operator.jobs.plan import plan_of


@dataclass(frozen=True, slots=True)
class Ended:
    """How the driver ended. `exit_code`: None if its container never ran, or nobody knows; `reason`: Kubernetes'
    word."""

    exit_code: int | None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobPod:
    """`attempt`: 0 for a pod that does not say."""

    name: str
    uid: str
    role: str
    attempt: int
    node: str = ""
    running: bool = False
    deleting: bool = False
    address: str = ""
    waiting: str = ""
    """Why it does not run, in Kubernetes' words."""
    ended: Ended | None = None
    """Of a driver: it is over, and does not begin again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the driver says while it runs; `of`: None if it does not know how much there is."""

    step: str
    done: int = 0
    of: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One run. `plan`: of the attempt that was prepared last; None: there is none."""

    now: float
    pods: tuple[JobPod, ...] = ()
    plan: Json | None = None
    without_claim: frozenset[str] = frozenset()
    progress: Progress | None = None

    @property
    def driver(self) -> JobPod | None:
        return next((pod for pod in self.pods if pod.role == DRIVER), None)

    @property
    def workers(self) -> tuple[JobPod, ...]:
        return tuple(pod for pod in self.pods if pod.role != DRIVER)

    def planned(self, attempt: int) -> bool:
        """There is a plan, and it is that attempt's."""
        return self.plan is not None and self.plan["attempt"] == attempt

    def unfinished(self) -> tuple[JobPod, ...]:
        """Pods that are of no use when the run is over, and are not on their way: all but a driver's, with its log."""
        return tuple(pod for pod in self.pods if not pod.deleting and pod.ended is None)


def seen_of(now: float, pods: Iterable[Json], config_map: Json | None, progress: Progress | None = None) -> Seen:
    data, metadata = (config_map or {}).get("data") or {}, (config_map or {}).get("metadata") or {}
    without = str((metadata.get("annotations") or {}).get(WITHOUT_CLAIM, ""))
    return Seen(
        now=now,
        pods=tuple(sorted((job_pod_of(body) for body in pods), key=lambda pod: pod.name)),
        plan=plan_of(str(data.get(PLAN_KEY, ""))),
        without_claim=frozenset(node for node in without.split(",") if node),
        progress=progress,
    )


def job_pod_of(body: Json) -> JobPod:
    metadata, status = body["metadata"], body.get("status") or {}
    labels = metadata.get("labels") or {}
    common, attempt, role = pod_of(body), str(labels.get(ATTEMPT_LABEL, "")), str(labels.get(ROLE_LABEL, ""))
    return JobPod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        role=role,
        attempt=int(attempt) if attempt.isdecimal() else 0,
        node=str(labels.get(NODE_LABEL, "")),
        running=common.running,
        deleting=common.deleting,
        address=str(status.get("podIP") or ""),
        waiting=": ".join(part for part in (common.waiting, common.message) if part),
        ended=_ended(status) if role == DRIVER else None,
    )


def _ended(status: Json) -> Ended | None:
    container: Json = next(iter(status.get("containerStatuses") or ()), {})
    terminated = (container.get("state") or {}).get("terminated")
    phase, reason = status.get("phase"), str(status.get("reason") or "")
    if terminated is not None:
        code, told = terminated.get("exitCode"), str(terminated.get("message") or "")
        return Ended(None if code is None else int(code), reason or str(terminated.get("reason") or ""), told)
    if phase in ("Succeeded", "Failed"):
        return Ended(None, reason or str(phase), str(status.get("message") or ""))
    return None


def progress_of(answer: object) -> Progress | None:
    """From the body of the driver's GET /progress; None: nobody understands it."""
    if not isinstance(answer, dict) or not isinstance(answer.get("step"), str):
        return None
    done, of = answer.get("done"), answer.get("of")
    return Progress(
        answer["step"][:64],
        done if isinstance(done, int) else 0,
        of if isinstance(of, int) and of > 0 else None,
    )
