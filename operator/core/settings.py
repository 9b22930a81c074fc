"""Settings of the operator process, from environment variables. The resources contain the settings of clusters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter


class SettingsError(ValueError):
    """A variable is missing or invalid. The message names it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one process. The variable of a field has the same name in upper case, unless stated otherwise."""

    node_image: str
    """TALLYSTICK_NODE_IMAGE: image of clusters without spec.image."""
    pod_name: str
    """Identity of the holder of the lease. It must be unique: two operators with one name would both hold the lease."""
    pod_namespace: str
    """Namespace of the lease and of the key of the operator."""
    watch_namespaces: tuple[str, ...] = ()
    """Watched namespaces, separated by commas; empty: all. Clusters in other namespaces are not reconciled."""
    lease_name: str = "tallystick-operator"
    lease_seconds: float = 15.0
    """Time until another operator takes over from one that was killed. The lease is renewed every third of it."""
    http_port: int = 8081
    node_url_template: str = "http://{node}.{namespace}.svc:8080"
    """URL of the HTTP API of a member; {node} and {namespace} are replaced."""
    resync_seconds: float = 10.0
    """Interval of reconciling a cluster without events. Each time costs a dozen requests."""
    workers: int = 4
    """Number of concurrent passes."""
    kube_threads: int = 8
    """Number of concurrent requests to the API server."""
    pass_seconds: float = 60.0
    """Time limit of a pass. A longer pass is cancelled and retried."""
    log_level: str = "INFO"
    jobs_image: str = ""
    """TALLYSTICK_JOBS_IMAGE: image of StoreJobs without spec.image. Empty: such a StoreJob cannot start."""
    jobs_priority_class: str = ""
    """Priority class of the pods of StoreJobs; empty: no priority class."""

    @classmethod
    def parse(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Parses environment variables. SettingsError: a value is invalid, or a required variable is missing."""
        template = environment.get("NODE_URL_TEMPLATE") or "http://{node}.{namespace}.svc:8080"
        unknown = {name for _, name, _, _ in Formatter().parse(template) if name} - {"node", "namespace"}
        if unknown or not template.startswith(("http://", "https://")):
            raise SettingsError(f"NODE_URL_TEMPLATE must be a URL with {{node}} and {{namespace}}, not {template!r}")
        level = (environment.get("LOG_LEVEL") or "INFO").upper()
        if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise SettingsError(f"LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR, not {level!r}")
        return cls(
            node_image=_needed(environment, "TALLYSTICK_NODE_IMAGE"),
            pod_name=_needed(environment, "POD_NAME"),
            pod_namespace=_needed(environment, "POD_NAMESPACE"),
            watch_namespaces=tuple(
                sorted({name.strip() for name in environment.get("WATCH_NAMESPACES", "").split(",") if name.strip()})
            ),
            lease_name=environment.get("LEASE_NAME") or "tallystick-operator",
            lease_seconds=_number(environment, "LEASE_SECONDS", 15.0, 3.0, 300.0),
            http_port=int(_number(environment, "HTTP_PORT", 8081, 0, 65535)),
            node_url_template=template,
            resync_seconds=_number(environment, "RESYNC_SECONDS", 10.0, 0.5, 600.0),
            workers=int(_number(environment, "WORKERS", 4, 1, 64)),
            kube_threads=int(_number(environment, "KUBE_THREADS", 8, 1, 64)),
            pass_seconds=_number(environment, "PASS_SECONDS", 60.0, 5.0, 600.0),
            log_level=level,
            jobs_image=environment.get("TALLYSTICK_JOBS_IMAGE", "").strip(),
            jobs_priority_class=environment.get("JOBS_PRIORITY_CLASS", "").strip(),
        )


def _needed(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set")
    return value


def _number(environment: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = environment.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise SettingsError(f"{name} must be a number from {least:g} to {most:g}, not {text!r}")
    return value
