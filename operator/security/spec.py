"""BrokerCluster.spec.security as values, and the order in which a running cluster begins to use TLS. Pure.

A process changes its settings of TLS only when it is restarted, and all processes of a cluster talk to each other. So
the pods of a cluster go through stages, one after the other; pods of neighbouring stages understand each other:

    stage        members accept   members connect   clients may use   own connections to brokers and name servers
    0 Off        without TLS      without TLS       both (*)          without TLS
    1 Accepting  both             without TLS       both              without TLS
    2 Preferring both             with TLS          both              with TLS
    3 Mutual     with TLS         with TLS          both              with TLS
    4 Enforcing  with TLS         with TLS          TLS               with TLS

(*) With a certificate that a process makes for itself, which no client can verify. A new cluster begins with the stage
that its spec wants.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from tallystick.operator.core.names import TLS_STAGE


class SecuritySpecError(ValueError):
    """A field is invalid. The text begins with its path."""


class Stage(IntEnum):
    """See above."""

    OFF = 0
    ACCEPTING = 1
    PREFERRING = 2
    MUTUAL = 3
    ENFORCING = 4


class Clients(StrEnum):
    """Which connections of clients are served."""

    PERMISSIVE = "Permissive"
    ENFORCING = "Enforcing"


@dataclass(frozen=True, slots=True)
class TlsSpec:
    clients: Clients = Clients.PERMISSIVE
    secret: str = ""
    """Secret with the certificate of all processes, for example of cert-manager; empty: the operator issues them."""

    @property
    def stage(self) -> Stage:
        return Stage.ENFORCING if self.clients is Clients.ENFORCING else Stage.MUTUAL


@dataclass(frozen=True, slots=True)
class SecuritySpec:
    access_control: bool = False
    tls: TlsSpec | None = None
    """None: no TLS."""

    @property
    def stage(self) -> Stage:
        """The stage that all pods are to have in the end."""
        return Stage.OFF if self.tls is None else self.tls.stage

    @classmethod
    def parse(cls, spec: Mapping[str, Any]) -> SecuritySpec:
        """Parses spec.security of a BrokerCluster. SecuritySpecError."""
        security = spec.get("security") or {}
        access, tls = security.get("accessControl") or {}, security.get("tls")
        if tls is None:
            return cls(bool(access.get("enabled", False)))
        clients = tls.get("clients") or Clients.PERMISSIVE.value
        if clients not in tuple(Clients):
            allowed = ", ".join(Clients)
            raise SecuritySpecError(f"spec.security.tls.clients: must be one of {allowed}, not {clients!r}")
        return cls(bool(access.get("enabled", False)), TlsSpec(Clients(clients), str(tls.get("secretName") or "")))


def stage_of(metadata: Mapping[str, Any]) -> Stage:
    """Returns the stage of a pod or of a pod template, as its annotation says."""
    text = str((metadata.get("annotations") or {}).get(TLS_STAGE) or "0")
    return Stage(int(text)) if text in {str(each.value) for each in Stage} else Stage.OFF


def next_stage(target: Stage, present: Collection[Stage], *, settled: bool) -> Stage:
    """Returns the stage that all pods are to get now. `present`: those of pods and of their templates.

    `settled`: all pods are ready and have the stage of their template. No pod is more than one stage away from another.
    """
    if not present:
        return target
    low, high = min(present), max(present)
    if low == high:
        if low == target or not settled:
            return low
        return Stage(low + 1 if low < target else low - 1)
    return high if target >= high else low
