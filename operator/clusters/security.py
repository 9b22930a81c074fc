"""TLS of a cluster: which stage its pods get, the Secrets with their certificates, and the rotation of the authority.

The operator reads and writes these Secrets, and no others of the namespace except those that a resource names:

    orders-ca               the authority with its key; no pod mounts it
    orders-0-1-tls          certificate, key and trusted authorities of a member
    orders-nameserver-tls   the same for the name servers

A Secret with one of these names that the cluster does not own is neither used nor changed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tallystick.operator.clusters.cluster_manifests import names_of, owner_of
from tallystick.operator.clusters.observed import Observed, SecurityView, TlsView
from tallystick.operator.clusters.reading import Objects
from tallystick.operator.clusters.spec import Cluster, External
from tallystick.operator.clusters.tls_stage import TLS_VOLUME, secret_of
from tallystick.operator.core.context import Context
from tallystick.operator.core.kube import SECRETS, ForbiddenError, InvalidError, Json
from tallystick.operator.core.manifests import manifest
from tallystick.operator.core.names import GROUP_LABEL, MEMBER_LABEL, ROTATE
from tallystick.operator.core.node_api import NameServerName, NodeError, NodeName, every
from tallystick.operator.core.ownership import owned, taken
from tallystick.operator.security.authority import (
    CERTIFICATE,
    TRUSTED,
    Authority,
    Process,
    Report,
    advanced,
    files,
    first_authority,
)
from tallystick.operator.security.certificates import CertificateError, facts_of, fingerprints
from tallystick.operator.security.spec import Stage, stage_of

Address = NodeName | NameServerName

ASK_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class TlsPod:
    """A pod whose process has files of TLS."""

    address: Address
    secret: str
    """The Secret that it mounts."""


@dataclass(slots=True)
class Secrets:
    """The Secrets of TLS of a cluster, as they were read."""

    authority: Json | None = None
    files: dict[str, Json | None] = field(default_factory=dict)
    """Those of processes, by name; None: it does not exist."""
    taken: list[str] = field(default_factory=list)
    """Secrets of other owners that have a name of the cluster."""
    refused: str = ""
    """Why they cannot be read; empty: they can."""
    lacks_accounts: bool = False
    """Access control is wanted, and the Secret with the accounts does not exist yet."""
    pods: tuple[TlsPod, ...] = ()
    answers: Mapping[str, Any] = field(default_factory=dict)
    """By name of a process: the body of GET /node, or the NodeError."""


def tls_pods(cluster: Cluster, objects: Objects) -> tuple[TlsPod, ...]:
    """Returns the pods of a cluster that have files of TLS, also those that are being deleted."""
    names, found = names_of(cluster), []
    for name, body in sorted(objects.by_kind.get("Pod", {}).items()):
        if stage_of(body["metadata"]) is Stage.OFF:
            continue
        labels = body["metadata"].get("labels") or {}
        group, member = str(labels.get(GROUP_LABEL, "")), str(labels.get(MEMBER_LABEL, ""))
        address: Address
        if group.isdecimal() and member.isdecimal():
            address = NodeName(cluster.namespace, cluster.name, int(group), int(member))
        elif name.rpartition("-")[0] == names.name_server:
            address = NameServerName(cluster.namespace, cluster.name, int(name.rpartition("-")[2]))
        else:
            continue
        found.append(TlsPod(address, secret_of(body, TLS_VOLUME)))
    return tuple(found)


async def read_secrets(context: Context, cluster: Cluster, objects: Objects, view: TlsView) -> Secrets:
    """Reads the Secrets of a cluster, lets the client for nodes trust their authorities, and asks processes which
    certificates they use. KubeError."""
    found = Secrets(pods=tls_pods(cluster, objects))
    try:
        await _read(context, cluster, objects, view, found)
    except ForbiddenError as error:
        found.refused = error.said
    trusted = b"".join(sorted({data_of(body).get(TRUSTED, b"") for body in found.files.values() if body is not None}))
    context.trust.set(cluster.namespace, cluster.name, trusted, frozenset(str(pod.address) for pod in found.pods))
    asked = [context.nodes.ask(pod.address, "GET", "/node", timeout_seconds=ASK_SECONDS) for pod in found.pods]
    found.answers = dict(zip((str(pod.address) for pod in found.pods), await every(asked), strict=True))
    return found


async def _read(context: Context, cluster: Cluster, objects: Objects, view: TlsView, found: Secrets) -> None:
    names = names_of(cluster)
    if cluster.spec.security.access_control:
        body = await context.kube.find(SECRETS, cluster.namespace, names.access)
        found.lacks_accounts = body is None or not owned(body, {cluster.uid})
    if not view.active:
        return
    wanted = {view.secret} if view.secret else {names.authority, *_own_names(cluster, objects)}
    for name in sorted(wanted):
        body = await context.kube.find(SECRETS, cluster.namespace, name)
        if body is not None and not view.secret and not owned(body, {cluster.uid}):
            found.taken.append(taken({"kind": "Secret", **body}))
        elif name == names.authority:
            found.authority = body
        else:
            found.files[name] = body


def _own_names(cluster: Cluster, objects: Objects) -> set[str]:
    """Returns the Secrets of all processes that exist or will exist."""
    names = names_of(cluster)
    nodes = {
        names.node(group, member) for group in range(cluster.spec.groups) for member in range(cluster.spec.replicas)
    }
    nodes |= set(objects.by_kind.get("BrokerNode", {})) | set(objects.by_kind.get("StatefulSet", {}))
    return {names.tls(node) for node in {*nodes, names.name_server}}


async def keep_secrets(
    context: Context, cluster: Cluster, objects: Objects, observed: Observed, secrets: Secrets
) -> tuple[SecurityView, int]:
    """Creates and changes the Secrets of a cluster. Returns what the status tells, and the number of writes. KubeError,
    except for rejections."""
    view = observed.tls
    if secrets.refused:
        return SecurityView(problem=f"Secrets cannot be read: {secrets.refused}", reason="SecretRefused"), 0
    if secrets.lacks_accounts:
        text = f"the Secret {names_of(cluster).access} with the accounts does not exist yet"
        return SecurityView(problem=text, reason="AccountsMissing"), 0
    if not view.active:
        return SecurityView(), 0
    try:
        if view.secret:
            return _foreign(view.secret, secrets), 0
        if secrets.taken:
            return SecurityView(problem="; ".join(secrets.taken), reason="NameTaken"), 0
        return await _keep_own(context, cluster, objects, observed, secrets)
    except CertificateError as error:
        return SecurityView(problem=f"a Secret of the cluster was damaged: {error}", reason="SecretDamaged"), 0
    except (ForbiddenError, InvalidError) as error:
        return SecurityView(problem=f"a Secret cannot be written: {error.said}", reason="SecretRefused"), 0


def _foreign(name: str, secrets: Secrets) -> SecurityView:
    body = secrets.files.get(name)
    if body is None:
        return SecurityView(problem=f"the Secret {name} does not exist", reason="SecretMissing")
    data = data_of(body)
    missing = [key for key in ("tls.crt", "tls.key", "ca.crt") if not data.get(key)]
    if missing:
        return SecurityView(problem=f"the Secret {name} has no {', '.join(missing)}", reason="SecretInvalid")
    facts = facts_of(data[CERTIFICATE])
    fingerprints(data[TRUSTED])
    behind = [
        str(pod.address)
        for pod in secrets.pods
        if any(
            report.sha256 not in (None, facts.sha256) for report in reports_of(secrets.answers[str(pod.address)]) or ()
        )
    ]
    waits = f"not in use yet: {', '.join(behind)}" if behind else ""
    return SecurityView(ends=facts.ends, waits=waits, trusted=data[TRUSTED])


async def _keep_own(
    context: Context, cluster: Cluster, objects: Objects, observed: Observed, secrets: Secrets
) -> tuple[SecurityView, int]:
    now, asked, writes = context.now(), cluster.rotation, 0
    present: Authority | None = None
    contents = {name: data_of(body) for name, body in secrets.files.items() if body is not None}
    if secrets.authority is None:
        if contents:
            problem = f"the Secret {names_of(cluster).authority} was deleted: restore it, or delete all Secrets of TLS"
            return SecurityView(problem=problem, reason="AuthorityMissing"), 0
        authority, waits = first_authority(cluster.name, now, asked), ""
    else:
        noted = (secrets.authority["metadata"].get("annotations") or {}).get(ROTATE, "")
        present = Authority.parse(data_of(secrets.authority), noted)
        processes = [
            Process(str(pod.address), pod.secret, reports_of(secrets.answers[str(pod.address)])) for pod in secrets.pods
        ]
        authority, waits = advanced(present, cluster.name, now, asked, processes, contents)
    if authority is not present:
        await _apply(context, _authority_manifest(cluster, authority), secrets.authority)
        writes += 1
    ends = []
    for name in sorted(secrets.files):
        body = secrets.files[name]
        wanted = files(authority, contents.get(name), _certificate_names(cluster, observed, name), now)
        ends.append(facts_of(wanted[CERTIFICATE]).ends)
        if wanted != contents.get(name):
            await _apply(context, _files_manifest(cluster, name, wanted), body)
            writes += 1
    facts = facts_of(authority.active.certificate)
    view = SecurityView(
        phase=authority.phase.value,
        waits=waits or ("processes take new certificates" if writes else ""),
        ends=min(ends, default=None),
        authority_ends=facts.ends,
        authority=facts.sha256,
        trusted=authority.trusted,
        old_until=facts_of(authority.cross).ends if authority.cross else None,
    )
    return view, writes


async def _apply(context: Context, body: Json, live: Json | None) -> None:
    await context.kube.apply(body, live)
    context.metrics.writes.labels("Secret").inc()


def _certificate_names(cluster: Cluster, observed: Observed, secret: str) -> list[str]:
    """Returns the names in the certificate of a process: what others connect to, and who it is for other members."""
    names = names_of(cluster)
    if secret == names.tls(names.name_server):
        headless = names.name_server_headless
        hosts = [names.host(names.name_server), names.name_server]
        hosts += [names.host(f"{names.name_server}-{number}.{headless}") for number in range(cluster.spec.name_servers)]
        outside = observed.name_servers.external
    else:
        node = secret.removesuffix("-tls")
        group, _, member = node.rpartition("-")
        hosts = [names.host(node), node, f"n{member}.{group}"]
        outside = next(
            (
                each.external
                for each in observed.members
                if f"{each.group}-{each.number}" == node[len(cluster.name) + 1 :]
            ),
            "",
        )
    listener = cluster.spec.listener
    if (listener.type is External.LOAD_BALANCER and outside) or listener.host:
        hosts.append(listener.host or outside.rpartition(":")[0])
    return list(dict.fromkeys(host for host in hosts if host))


def reports_of(answer: Any) -> tuple[Report, ...] | None:
    """Returns which certificates a process uses, from the body of GET /node; None: it does not say so."""
    if isinstance(answer, NodeError) or answer is None:
        return None
    try:
        tls = answer["tls"]
        server = tls["server"]
        if server is None:
            return None
        found = [Report(server["sha256"], frozenset(server["authorities"]) or None)]
        for place in ("client", "member"):
            part = tls.get(place)
            if part is not None:
                found.append(Report(part["sha256"], frozenset(part["authorities"])))
        return tuple(found)
    except (KeyError, TypeError, AttributeError):
        return None


def data_of(body: Json) -> dict[str, bytes]:
    """Returns the content of a Secret. Values that are not base64 are left out."""
    found = {}
    for key, value in (body.get("data") or {}).items():
        try:
            found[key] = base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            continue
    return found


def _authority_manifest(cluster: Cluster, authority: Authority) -> Json:
    return _secret(cluster, names_of(cluster).authority, "Opaque", authority.to_data(), {ROTATE: authority.asked})


def _files_manifest(cluster: Cluster, name: str, content: Mapping[str, bytes]) -> Json:
    return _secret(cluster, name, "kubernetes.io/tls", content)


def _secret(
    cluster: Cluster, name: str, kind: str, data: Mapping[str, bytes], annotations: Mapping[str, str] | None = None
) -> Json:
    content = {"type": kind, "data": {key: base64.b64encode(value).decode() for key, value in sorted(data.items())}}
    labels = names_of(cluster).labels()
    return manifest(SECRETS, cluster.namespace, name, labels, content, owner=owner_of(cluster), annotations=annotations)
