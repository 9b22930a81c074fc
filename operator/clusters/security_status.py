"""What the status of a cluster tells about its security. Pure."""

from __future__ import annotations

from tallystick.operator.clusters.observed import Observed
from tallystick.operator.clusters.spec import Cluster
from tallystick.operator.core.conditions import Condition
from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import Names
from tallystick.operator.core.times import timestamp
from tallystick.operator.security.spec import Stage

EXPIRING_SECONDS = 14 * 86_400.0
"""Certificates are renewed a month before they end: one that ends so soon was not renewed."""


def security_condition(cluster: Cluster, observed: Observed) -> Condition:
    """Returns the condition SecurityReady: True if all that the spec wants is in use, and it wants access control and
    TLS."""
    wanted, tls, view = cluster.spec.security, observed.tls, observed.security
    if view.problem:
        return Condition("SecurityReady", False, view.reason, view.problem)
    if not wanted.access_control and wanted.tls is None and not tls.active:
        text = "neither access control nor TLS: every client that reaches the brokers can do everything"
        return Condition("SecurityReady", False, "Disabled", text)
    if view.ends is not None and view.ends - observed.now < EXPIRING_SECONDS:
        return Condition("SecurityReady", False, "CertificateExpires", f"a certificate ends at {timestamp(view.ends)}")
    if not tls.reached:
        names = {stage: stage.name.capitalize() for stage in Stage}
        text = f"pods change from one stage of TLS to the next: {names[tls.stage]} now, {names[tls.target]} in the end"
        return Condition("SecurityReady", False, "TlsChanging", text)
    if wanted.access_control and not tls.access_control:
        return Condition("SecurityReady", False, "AccessControlStarting", "not all pods have access control yet")
    if not wanted.access_control:
        return Condition("SecurityReady", False, "NoAccessControl", f"{_told(cluster)}; no access control")
    if wanted.tls is None:
        return Condition("SecurityReady", False, "NoTls", f"{_told(cluster)}; no TLS")
    return Condition("SecurityReady", True, "AsSpecified", _told(cluster))


def _told(cluster: Cluster) -> str:
    wanted = cluster.spec.security
    parts = ["access control"] if wanted.access_control else []
    if wanted.tls is not None:
        also = "" if wanted.stage is Stage.ENFORCING else " (connections without TLS are served too)"
        parts += ["TLS between members", f"TLS for clients{also}"]
    return ", ".join(parts) + (" are in use" if len(parts) > 1 else " is in use")


def security_status(cluster: Cluster, observed: Observed) -> Json:
    """Returns status.security; empty: nothing of it is wanted or in use."""
    wanted, tls, view = cluster.spec.security, observed.tls, observed.security
    found: Json = {}
    if tls.access_control or wanted.access_control:
        names = Names(cluster.namespace, cluster.name)
        found |= {"accessControl": tls.access_control, "superuserSecretName": names.superuser}
    if not tls.active:
        return found
    found["tlsStage"] = tls.stage.name.capitalize()
    if view.ends is not None:
        found["certificatesExpire"] = timestamp(view.ends)
    if view.phase:
        found["authority"] = {"phase": view.phase}
        if view.authority_ends is not None:
            found["authority"] |= {"sha256": view.authority, "expires": timestamp(view.authority_ends)}
        if view.old_until is not None:
            found["authority"]["previousExpires"] = timestamp(view.old_until)
    if view.waits:
        found["waitsFor"] = view.waits[:1000]
    return found


def security_events(observed: Observed) -> list[tuple[str, str, bool]]:
    """Returns reason, message and whether it is a warning, for each thing that users should see once."""
    view = observed.security
    told = [(view.reason, view.problem, True)] if view.problem else []
    if view.phase in ("Trusting", "Issuing"):
        new = "all processes learn to trust a new authority"
        text = new if view.phase == "Trusting" else "all processes get certificates of the new authority"
        told.append(("AuthorityRotates", text, False))
    return told
