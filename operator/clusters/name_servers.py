"""How name servers are updated. Pure.

Kubernetes does not update them (`OnDelete`): it would begin with the highest number, even if that is the last one that
serves. The operator stops one at a time, and the last one that serves only if the spec wants a single one. A new image
is proven by a broker first: name servers get it when a broker is ready on it.
"""

from __future__ import annotations

from tallystick.operator.clusters.observed import NameServers, Observed
from tallystick.operator.core.pods import Pod


def image_of(observed: Observed, wanted: str) -> str:
    """Returns the image for the name servers: `wanted` once a broker is ready on it, until then the present one."""
    present = observed.name_servers.image
    if present in ("", wanted):
        return wanted
    proven = any(member.ready and member.pod is not None and member.pod.image == wanted for member in observed.members)
    return wanted if proven else present


def next_restart(servers: NameServers) -> tuple[str, Pod] | None:
    """Returns name and pod of the name server to stop now, so that a current one takes its place; None: none.

    One that serves is stopped only if all wanted ones serve and know the brokers (`minReadySeconds`).
    """
    if not servers.current or not servers.template:
        return None
    outdated = [(name, pod) for name, pod in servers.pods if pod.template != servers.template and not pod.deleting]
    for name, pod in outdated:
        if not pod.ready:
            return name, pod
    serving = sum(pod.ready and not pod.deleting for _, pod in servers.pods)
    complete = serving == len(servers.pods) and min(serving, servers.available) >= servers.wanted
    return outdated[-1] if outdated and complete else None


def is_updating(servers: NameServers) -> bool:
    """Whether a name server is outdated, or its pod does not exist."""
    return not servers.current or servers.updated < servers.wanted
