"""From which RocketMQ cluster a new cluster takes over: `spec.adoptFrom`, and what is known about its masters. Pure.

The operator does not speak RocketMQ's protocol. A name server of the new cluster asks the old name servers and masters
(`POST /migration/plan` of its HTTP API), from the network of the new brokers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FIELD = "spec.adoptFrom"
MOST_NAME_SERVERS = 16
PAUSE_SECONDS = 30
"""Clients of RocketMQ look for new routes this often."""
_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:[1-9][0-9]{0,4}")


class AdoptSpecError(ValueError):
    """`spec.adoptFrom` is invalid. The text begins with the path of the field."""


@dataclass(frozen=True, slots=True)
class AdoptSpec:
    """`spec.adoptFrom`."""

    name_servers: tuple[str, ...]
    cluster: str = ""
    """Name of the RocketMQ cluster; empty: the only one that the name servers know."""
    automatic: bool = False
    """Groups take the places of their masters as soon as all of them are ready."""
    pause_seconds: int = PAUSE_SECONDS
    """Time between the switches of two groups."""

    @classmethod
    def parse(cls, spec: Mapping[str, Any]) -> AdoptSpec | None:
        """Parses the spec of a BrokerCluster; None: it adopts nothing. AdoptSpecError: the field is invalid."""
        found = spec.get("adoptFrom")
        if not found:
            return None
        servers = tuple(str(each).strip() for each in found.get("nameServers") or ())
        wrong = [each for each in servers if not _ADDRESS.fullmatch(each)]
        if not servers or len(servers) > MOST_NAME_SERVERS or wrong:
            shown = f", not {wrong[0]!r}" if wrong else ""
            raise AdoptSpecError(f"{FIELD}.nameServers: must be 1 to {MOST_NAME_SERVERS} of host:port{shown}")
        switch = found.get("switch") or "Manual"
        if switch not in ("Manual", "Automatic"):
            raise AdoptSpecError(f"{FIELD}.switch: must be Manual or Automatic, not {switch!r}")
        pause = found.get("pauseSeconds", PAUSE_SECONDS)
        if isinstance(pause, bool) or not isinstance(pause, int) or not 0 <= pause <= 86_400:
            raise AdoptSpecError(f"{FIELD}.pauseSeconds: must be a number from 0 to 86400, not {pause!r}")
        return cls(servers, str(found.get("cluster") or ""), switch == "Automatic", pause)


@dataclass(frozen=True, slots=True)
class OldBroker:
    """One broker name of the RocketMQ cluster, and what its master says about itself."""

    name: str
    cluster: str = ""
    master: str = ""
    """host:port of its master; empty: it has none."""
    slaves: Mapping[int, str] = field(default_factory=dict)
    """Addresses of its slaves by broker id."""
    error: str = ""
    """Why nothing is known about the master; empty: it answered."""
    version: str = ""
    log_bytes: int = 0
    obstacles: tuple[str, ...] = ()
    """Why no group can take its place."""
    different: tuple[str, ...] = ()
    """What will behave differently afterwards."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Its settings that the new brokers must or should have as well."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The defaults of these settings at the new brokers."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The old cluster was not asked, or gave no answer. The reason is one of the condition `Adopted`."""

    message: str
    reason: str = "PlanFailed"


Survey = Sequence[OldBroker] | Unanswered
"""All brokers that the old name servers know, or why they are not known."""


def survey_of(answer: Any) -> Survey:
    """Parses the body of POST /migration/plan."""
    try:
        return [_broker_of(row) for row in answer["brokers"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Unanswered(f"the name server gave an invalid answer: {error!r}")


def _broker_of(row: Any) -> OldBroker:
    addresses = {int(number): str(address) for number, address in row["addresses"].items()}
    return OldBroker(
        name=str(row["broker"]),
        cluster=str(row.get("cluster") or ""),
        master=str(row.get("master") or ""),
        slaves={number: address for number, address in addresses.items() if number != 0},
        error=str(row.get("error") or ""),
        version=str(row.get("version") or ""),
        log_bytes=int(row.get("bytes") or 0),
        obstacles=tuple(str(each) for each in row.get("obstacles") or ()),
        different=tuple(str(each) for each in row.get("different") or ()),
        settings={str(key): str(value) for key, value in (row.get("settings") or {}).items()},
        defaults={str(key): str(value) for key, value in (row.get("defaults") or {}).items()},
    )
