"""Kubernetes Events on clusters and nodes: what the operator did, and why. `kubectl describe` shows them.

The same message about the same object within ten minutes increments the count of the existing Event, so that retries do
not fill the store of the API server. An Event that cannot be written is dropped: nothing depends on it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from tallystick.operator.core.kube import EVENTS, FIELD_MANAGER, Json, Kube, KubeError
from tallystick.operator.core.times import timestamp

_logger = logging.getLogger(__name__)

SAME_SECONDS = 600.0
REMEMBERED = 1000
MAX_MESSAGE = 1000


@dataclass(frozen=True, slots=True)
class Reference:
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @classmethod
    def to(cls, body: Json) -> Reference:
        metadata = body["metadata"]
        return cls(body["apiVersion"], body["kind"], metadata["namespace"], metadata["name"], metadata.get("uid", ""))


@dataclass(frozen=True, slots=True)
class Told:
    """What a decision says about an object: an event to write."""

    reason: str
    message: str
    warning: bool = False


class Events:
    """Writes Events. `now()` returns seconds since 1970; `instance` is the name of this operator's pod."""

    def __init__(self, kube: Kube, instance: str, now: Callable[[], float]) -> None:
        self._kube = kube
        self._instance = instance
        self._now = now
        self._recent: OrderedDict[tuple[Reference, str, str], tuple[str, int, float]] = OrderedDict()

    async def post(self, about: Reference, reason: str, message: str, *, warning: bool = False) -> None:
        """Writes an Event. `reason` is machine-readable, in CamelCase; `message` is for humans. Errors are logged."""
        message, now = message[:MAX_MESSAGE], self._now()
        same = (about, reason, message)
        name, count, since = self._recent.get(same, ("", 0, 0.0))
        try:
            if name and now - since < SAME_SECONDS:
                body: Json = {"count": count + 1, "lastTimestamp": timestamp(now)}
                await self._kube.patch(EVENTS, about.namespace, name, body)
                self._recent[same] = (name, count + 1, since)
            else:
                made = await self._kube.create(EVENTS, about.namespace, self._event(about, reason, message, warning))
                self._recent[same] = (made["metadata"]["name"], 1, now)
        except KubeError as error:
            self._recent.pop(same, None)
            _logger.warning("could not write an event: %s", error, extra={"reason": reason})
        while len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)

    def _event(self, about: Reference, reason: str, message: str, warning: bool) -> Json:
        now = timestamp(self._now())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{about.name}.", "namespace": about.namespace},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
