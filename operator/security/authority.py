"""The authority of a cluster and its rotation. Pure, except for random keys.

    Steady     one authority, which all processes of the cluster trust, and which issues all certificates
    Trusting   a new one exists; processes are to trust it too, before anything that it issued is used
    Issuing    the new one issues; the old one is trusted until no process uses a certificate of it

A phase ends when every process has reported that it uses the files of this phase. At each time, and whatever files a
process has of this phase or the one before, each process trusts the authority of each other process's certificate
(`tests/operator/security`).

Clients cannot report. Certificates of the new authority are sent with a certificate for it by the old one, so that
clients that trust only the old one accept them until the old one would have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tallystick.operator.security.certificates import (
    CertificateError,
    Facts,
    Pair,
    cross_certificate,
    facts_of,
    fingerprints,
    is_issued_by,
    issue,
    new_authority,
)

AUTHORITY_SECONDS = 3650 * 86_400.0
CERTIFICATE_SECONDS = 90 * 86_400.0
RENEWED_AT = 1 / 3
"""Part of its time that is left when a certificate or an authority is renewed."""

CERTIFICATE, KEY, TRUSTED = "tls.crt", "tls.key", "ca.crt"
"""Keys of a Secret for a process, as in Secrets of cert-manager."""


class Phase(StrEnum):
    STEADY = "Steady"
    TRUSTING = "Trusting"
    ISSUING = "Issuing"


@dataclass(frozen=True, slots=True)
class Authority:
    """The content of the Secret of an authority."""

    active: Pair
    """Issues certificates."""
    upcoming: Pair | None = None
    """Will issue them next."""
    old: bytes = b""
    """Certificate of the one that issued them before, while it is still trusted."""
    cross: bytes = b""
    """Certificate of `active`, issued by the one before. It is sent to clients as long as it is valid."""
    asked: str = ""
    """The last request for a rotation that was begun."""

    @classmethod
    def parse(cls, data: Mapping[str, bytes], asked: str) -> Authority:
        """Reads the Secret. CertificateError: it was damaged."""
        found = cls(
            Pair(data.get(TRUSTED, b""), data.get("ca.key", b"")),
            Pair(data["next.crt"], data.get("next.key", b"")) if data.get("next.crt") else None,
            data.get("old.crt", b""),
            data.get("cross.crt", b""),
            asked,
        )
        fingerprints(found.trusted)
        return found

    def to_data(self) -> dict[str, bytes]:
        """Returns the content of the Secret."""
        found = {TRUSTED: self.active.certificate, "ca.key": self.active.key}
        if self.upcoming is not None:
            found |= {"next.crt": self.upcoming.certificate, "next.key": self.upcoming.key}
        return found | ({"old.crt": self.old} if self.old else {}) | ({"cross.crt": self.cross} if self.cross else {})

    @property
    def phase(self) -> Phase:
        if self.upcoming is not None:
            return Phase.TRUSTING
        return Phase.ISSUING if self.old else Phase.STEADY

    @property
    def trusted(self) -> bytes:
        """The certificates of all authorities that processes trust."""
        return self.active.certificate + (self.upcoming.certificate if self.upcoming else b"") + self.old


@dataclass(frozen=True, slots=True)
class Report:
    """The certificate that a process uses in one place: for clients, for own connections, or for other members."""

    sha256: str | None
    """Fingerprint of the certificate that it presents; None: it presents none there."""
    authorities: frozenset[str] | None
    """Fingerprints of the authorities that it trusts; None: it verifies nothing there."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the cluster that has files of the authority. `reports` None: it did not answer."""

    name: str
    secret: str
    """Name of its Secret."""
    reports: tuple[Report, ...] | None = None


def first_authority(name: str, now: float, asked: str) -> Authority:
    """Makes the authority of a new cluster."""
    return Authority(new_authority(name, now, AUTHORITY_SECONDS), asked=asked)


def advanced(
    authority: Authority,
    name: str,
    now: float,
    asked: str,
    processes: Collection[Process],
    secrets: Mapping[str, Mapping[str, bytes]],
) -> tuple[Authority, str]:
    """Returns the authority for the next phase, or the same one, and what the present phase waits for.

    `asked`: the present request for a rotation; it differs from the last one to begin another. `secrets`: the content
    of the Secrets of processes, as they were read.
    """
    if authority.phase is Phase.STEADY:
        due = facts_of(authority.active.certificate).remaining(now) <= RENEWED_AT
        if due or asked != authority.asked:
            return replace(authority, upcoming=new_authority(name, now, AUTHORITY_SECONDS), asked=asked), ""
        if authority.cross and facts_of(authority.cross).ends <= now:
            return replace(authority, cross=b""), ""
        return authority, ""
    if waits := waits_for(authority, processes, secrets):
        return authority, waits
    if authority.upcoming is None:
        return replace(authority, old=b""), ""
    cross = cross_certificate(authority.upcoming.certificate, authority.active)
    return Authority(authority.upcoming, None, authority.active.certificate, cross, authority.asked), ""


def waits_for(authority: Authority, processes: Collection[Process], secrets: Mapping[str, Mapping[str, bytes]]) -> str:
    """Returns why not every process is known to use its present files; empty: all are."""
    trusted = fingerprints(authority.trusted)
    for process in processes:
        data = secrets.get(process.secret)
        if data is None or data.get(TRUSTED) != authority.trusted or needs_issue(authority, data):
            return f"the Secret {process.secret} has yet to be written"
        if process.reports is None:
            return f"{process.name} has not reported which certificates it uses"
        presents = facts_of(data[CERTIFICATE]).sha256
        for report in process.reports:
            if report.authorities is not None and report.authorities != trusted:
                return f"{process.name} does not use the authorities of the Secret {process.secret} yet"
            if report.sha256 is not None and report.sha256 != presents:
                return f"{process.name} does not use the certificate of the Secret {process.secret} yet"
    return ""


def needs_issue(authority: Authority, data: Mapping[str, bytes]) -> bool:
    """Whether the certificate of a Secret is missing, damaged, or of another authority than the one that issues."""
    try:
        return not data.get(KEY) or not is_issued_by(data.get(CERTIFICATE, b""), authority.active.certificate)
    except CertificateError:
        return True


def files(
    authority: Authority, data: Mapping[str, bytes] | None, names: Collection[str], now: float
) -> dict[str, bytes]:
    """Returns the content of the Secret of a process. `data`: the present one; its certificate stays if it is good."""
    present = dict(data or {})
    kept = not needs_issue(authority, present) and _is_good(facts_of(present[CERTIFICATE]), names, now)
    if not kept:
        pair = issue(authority.active, names, now, CERTIFICATE_SECONDS, authority.cross)
        present = {CERTIFICATE: pair.certificate, KEY: pair.key}
    return {CERTIFICATE: present[CERTIFICATE], KEY: present[KEY], TRUSTED: authority.trusted}


def _is_good(facts: Facts, names: Collection[str], now: float) -> bool:
    return facts.names == frozenset(names) and facts.remaining(now) > RENEWED_AT
