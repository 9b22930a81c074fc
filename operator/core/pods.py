"""Pods of the API server as values, with the fields that reconcilers use. Times are seconds since 1970."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import TEMPLATE
from tallystick.operator.core.times import seconds

RESTORE = "restore"
"""Name of the init container of brokers. Webhooks add others, which may run as long as the pod."""


@dataclass(frozen=True, slots=True)
class Pod:
    uid: str
    template: str
    """Digest of the pod template from which it was created."""
    ready: bool
    created: float
    started: float | None = None
    """When a kubelet accepted the pod; None: not yet. It uses the volume that its claim had at this time."""
    unready_since: float | None = None
    """None: it is ready."""
    deleting_since: float | None = None
    """When its termination grace period ended; None: it is not being deleted. Its process may still be running."""
    running: bool = False
    """Whether its container is running, as reported by the kubelet."""
    waiting: str = ""
    """Why its container is not running: CrashLoopBackOff, ImagePullBackOff, Unschedulable, ..."""
    message: str = ""
    node_name: str = ""
    host_address: str = ""
    image: str = ""
    init_running: bool = False
    """Whether its init container `restore` runs."""
    init_ended: int | None = None
    """Exit status of this init container; of the last attempt, if it is tried again. None: it has not ended yet."""
    init_message: str = ""
    """Termination message of that attempt."""

    @property
    def deleting(self) -> bool:
        return self.deleting_since is not None


def pod_of(body: Json) -> Pod:
    metadata, status = body["metadata"], body.get("status") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    is_ready = ready.get("status") == "True"
    container: Json = next(iter(status.get("containerStatuses") or ()), {})
    created = seconds(metadata.get("creationTimestamp")) or 0.0
    init: Json = next((each for each in status.get("initContainerStatuses") or () if each.get("name") == RESTORE), {})
    init_ended = _ended(init)
    is_initialized = not init or ((init.get("state") or {}).get("terminated") or {}).get("exitCode") == 0
    waiting, message = _waiting(container if is_initialized else init, conditions)
    spec_image = next((each.get("image", "") for each in (body.get("spec") or {}).get("containers") or ()), "")
    return Pod(
        uid=metadata.get("uid", ""),
        template=(metadata.get("annotations") or {}).get(TEMPLATE, ""),
        ready=is_ready,
        created=created,
        started=seconds(status.get("startTime")),
        unready_since=None if is_ready else seconds(ready.get("lastTransitionTime")) or created,
        deleting_since=seconds(metadata.get("deletionTimestamp")),
        running="running" in (container.get("state") or {}),
        waiting=waiting,
        message=message,
        node_name=(body.get("spec") or {}).get("nodeName") or "",
        host_address=status.get("hostIP") or "",
        image=spec_image,
        init_running="running" in (init.get("state") or {}),
        init_ended=init_ended.get("exitCode"),
        init_message=str(init_ended.get("message") or "").strip(),
    )


def _ended(container: Json) -> Json:
    """Returns how the last attempt of a container ended; empty: none has."""
    states = (container.get("state") or {}, container.get("lastState") or {})
    found: Json = next((state["terminated"] for state in states if state.get("terminated")), {})
    return found


def _waiting(container: Json, conditions: Mapping[Any, Json]) -> tuple[str, str]:
    """Returns why the container is not running, and the last line of its last termination message."""
    state = container.get("state") or {}
    ended = _ended(container)
    last = str(ended.get("message") or "").strip().splitlines()[-1:] or [""]
    told = last[0] or (f"exit status {ended['exitCode']}" if "exitCode" in ended else "")
    if "waiting" in state:
        reason = str(state["waiting"].get("reason") or "Waiting")
        quiet = reason in ("ContainerCreating", "PodInitializing")
        return ("", "") if quiet else (reason, told or str(state["waiting"].get("message") or ""))
    if "terminated" in state:
        return str(state["terminated"].get("reason") or "Ended"), told
    scheduled = conditions.get("PodScheduled") or {}
    if not state and scheduled.get("status") == "False":
        return str(scheduled.get("reason") or "Unschedulable"), str(scheduled.get("message") or "")
    return "", ""
