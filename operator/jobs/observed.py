"""The observed state of a run as values: the input of `decide.py` and `status.py`.

It contains all pods with the label of the job, of any attempt. Times are seconds since 1970. Missing information counts
as "not yet": an attempt has ended only when the status of its driver pod says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tallystick.operator.core.kube import Json
from tallystick.operator.core.ownership import owned
from tallystick.operator.core.pods import pod_of
from tallystick.operator.jobs.manifests import PLAN_KEY, WITHOUT_CLAIM
from tallystick.operator.jobs.names import ATTEMPT_LABEL, DRIVER, NODE_LABEL, ROLE_LABEL
from tallystick.operator.jobs.plan import plan_of


@dataclass(frozen=True, slots=True)
class Ended:
    """How the driver ended. `exit_code`: None if its container never ran or the code is unknown. `reason`: the reason
    of Kubernetes."""

    exit_code: int | None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobPod:
    """A pod of the job. `attempt`: 0 without a label."""

    name: str
    uid: str
    role: str
    attempt: int
    node: str = ""
    running: bool = False
    deleting: bool = False
    address: str = ""
    waiting: str = ""
    """Why it is not running, as reported by Kubernetes."""
    ended: Ended | None = None
    """How a driver ended; None: it has not ended, or the pod is a worker."""
    own: bool = True
    """Whether the StoreJob owns it. Another pod with its labels is waited for and never deleted."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a running driver. `of`: number of tasks, None: unknown."""

    step: str
    done: int = 0
    of: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of one run. `plan`: the plan of the last prepared attempt; None: it does not exist."""

    now: float
    pods: tuple[JobPod, ...] = ()
    plan: Json | None = None
    without_claim: frozenset[str] = frozenset()
    progress: Progress | None = None

    @property
    def driver(self) -> JobPod | None:
        return next((pod for pod in self.pods if pod.role == DRIVER and pod.own), None)

    @property
    def workers(self) -> tuple[JobPod, ...]:
        return tuple(pod for pod in self.pods if pod.role != DRIVER and pod.own)

    def planned(self, attempt: int) -> bool:
        """Whether the plan of this attempt exists."""
        return self.plan is not None and self.plan["attempt"] == attempt

    def unfinished(self) -> tuple[JobPod, ...]:
        """Returns the pods to delete when the run has ended: all except an ended driver, which keeps its log."""
        return tuple(pod for pod in self.pods if pod.own and not pod.deleting and pod.ended is None)


def seen_of(
    now: float, pods: Iterable[Json], config_map: Json | None, progress: Progress | None = None, uid: str | None = None
) -> Seen:
    """Returns the state. `uid` of the StoreJob: pods of other owners are not its own; None: all pods are."""
    data, metadata = (config_map or {}).get("data") or {}, (config_map or {}).get("metadata") or {}
    without = str((metadata.get("annotations") or {}).get(WITHOUT_CLAIM, ""))
    return Seen(
        now=now,
        pods=tuple(
            sorted((job_pod_of(body, own=uid is None or owned(body, {uid})) for body in pods), key=lambda pod: pod.name)
        ),
        plan=plan_of(str(data.get(PLAN_KEY, ""))),
        without_claim=frozenset(node for node in without.split(",") if node),
        progress=progress,
    )


def job_pod_of(body: Json, *, own: bool = True) -> JobPod:
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
        own=own,
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
    """Parses the body of the driver's GET /progress; None: it is invalid."""
    if not isinstance(answer, dict) or not isinstance(answer.get("step"), str):
        return None
    done, of = answer.get("done"), answer.get("of")
    return Progress(
        answer["step"][:64],
        done if isinstance(done, int) else 0,
        of if isinstance(of, int) and of > 0 else None,
    )
