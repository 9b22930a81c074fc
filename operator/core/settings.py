"""What the operator is told by its environment. What clusters are like stands in their resources, not here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter


class SettingsError(ValueError):
    """A variable has a value that cannot be. The message names it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One operator process. Each field is the variable with its name in capitals, unless it says otherwise."""

    node_image: str
    """TALLYSTICK_NODE_IMAGE: what clusters run that name no image themselves."""
    pod_name: str
    """Who holds the lease. Two operators with one name would both believe that they hold it."""
    pod_namespace: str
    """Where the lease and the operator's own key are."""
    watch_namespaces: tuple[str, ...] = ()
    """Comma-separated; empty: all. One that is left out is not looked at, and its clusters stay as they are."""
    lease_name: str = "tallystick-operator"
    lease_seconds: float = 15.0
    """How long a silent holder keeps others out: what a killed operator costs. Renewed at a third of it."""
    http_port: int = 8081
    node_url_template: str = "http://{node}.{namespace}.svc:8080"
    """Where a member's HTTP is; {node} and {namespace} are replaced."""
    resync_seconds: float = 10.0
    """A cluster about which there is no news is looked at this often. Shorter costs a dozen requests each time."""
    workers: int = 4
    """Clusters that are worked at once."""
    kube_threads: int = 8
    """Requests to the API server under way at once."""
    pass_seconds: float = 60.0
    """A pass that takes longer is ended, and tried again."""
    log_level: str = "INFO"
    jobs_image: str = ""
    """TALLYSTICK_JOBS_IMAGE: what StoreJobs run that name no image themselves. Empty: those say that."""
    jobs_priority_class: str = ""
    """Of the pods of StoreJobs, so that brokers come before them; empty: none."""

    @classmethod
    def parse(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """From the environment. SettingsError: a value cannot be, or one is missing that has no default."""
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
