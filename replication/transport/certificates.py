"""Certificates in PEM files that can change at any time; the names, the end and the fingerprint of a certificate.

If certificate and key are replaced one after the other, they do not match in between; the old pair then stays in use,
and the next look at the files (`FileWatch`) finds the second change. The content of a file is never logged.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tallystick.store.file_watch import FileWatch
from tallystick.store.limited_log import LimitedLog

Loaded = TypeVar("Loaded")

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_MAX_BYTES = 1 << 20
_SEQUENCE, _INTEGER, _VERSION = 0x30, 0x02, 0xA0
_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""The forms of UTCTime and GeneralizedTime by their tags."""


class TlsError(Exception):
    """The files cannot be used; the message names the file and the reason."""


class ReloadedFiles(Generic[Loaded]):
    """What `load` makes of some files: the present ones, or, while those cannot be used, the last ones that could."""

    def __init__(self, paths: Iterable[Path], load: Callable[[], Loaded], log: LimitedLog) -> None:
        """`load` may raise TlsError; it is raised only here."""
        self._load = load
        self._log = log
        self.loads = 1
        """How often the files were loaded successfully."""
        self.last_error = ""
        """Why the present files are not in use; empty if they are."""
        self._watch = FileWatch(paths)
        self.loaded = load()

    def refresh(self) -> bool:
        """Loads changed files. If they cannot be used, it logs that and keeps the previous ones. Returns whether
        others are in use."""
        if not self._watch.changed():
            return False
        try:
            self.loaded = self._load()
        except TlsError as error:
            self.last_error = str(error)
            self._log.warning("tls files", "new TLS files are not used, the old ones stay in use: %s", str(error))
            return False
        self.loads += 1
        self.last_error = ""
        return True


def load_authorities(context: ssl.SSLContext, path: Path) -> None:
    """The certificates of these authorities are accepted. TlsError."""
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise TlsError(f"{path}: {_words(error)}") from None


def load_chain(context: ssl.SSLContext, certificate: Path, key: Path, password: str = "") -> None:
    """The certificate that is presented, and its key. TlsError."""
    try:
        # Without a password, OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: password)
    except (OSError, ValueError) as error:
        raise TlsError(f"{certificate} with {key}: {_words(error)}") from None


def certificate_names(certificate: Mapping[str, Any]) -> list[str]:
    """DNS names and URIs of a certificate; its common name only if it has none of these (RFC 6125, section 6.4.4)."""
    names = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    return names or common_names(certificate)


def common_names(certificate: Mapping[str, Any]) -> list[str]:
    """The common names in the subject of a certificate, as `SSLObject.getpeercert` returns it."""
    parts = (part for relative in certificate.get("subject", ()) for part in relative)
    return [str(value) for key, value in parts if key == "commonName"]


@dataclass(frozen=True, slots=True)
class Presented:
    """The certificate that a process presents."""

    sha256: str
    """Fingerprint: hexadecimal digits."""
    expires_s: float
    """When it ends, in seconds since 1970."""

    @classmethod
    def read(cls, path: Path) -> Presented:
        """The first certificate of a file. TlsError: it cannot be read.

        Call it before the file is loaded: if the file changes between the two, the older certificate is reported, and
        the next look at the file corrects it.
        """
        try:
            with path.open("rb") as file:
                block = _BLOCK.search(file.read(_MAX_BYTES))
            if block is None:
                raise ValueError("no certificate")
            der = ssl.PEM_cert_to_DER_cert(block[0].decode("ascii"))
            return cls(hashlib.sha256(der).hexdigest(), _not_after(der).timestamp())
        except OSError as error:
            raise TlsError(f"{path}: {_words(error)}") from None
        except (ValueError, IndexError):
            raise TlsError(f"{path}: not a certificate") from None


def described(presented: Presented | None, context: ssl.SSLContext) -> dict[str, Any]:
    """What a context presents and which authorities it trusts, as JSON: fingerprints, and the end in seconds since
    1970. Authorities of the operating system that were not needed yet are missing."""
    authorities = sorted(hashlib.sha256(der).hexdigest() for der in context.get_ca_certs(binary_form=True))
    found: dict[str, Any] = {"sha256": None, "expires": None, "authorities": authorities}
    if presented is not None:
        found |= {"sha256": presented.sha256, "expires": int(presented.expires_s)}
    return found


def _not_after(der: bytes) -> datetime.datetime:
    """The field notAfter of a certificate (RFC 5280, section 4.1). The `ssl` module shows that of a peer's only."""
    _, certificate = _value(der, 0)
    _, fields = _value(certificate, 0)
    at = 0
    if fields[at] == _VERSION:
        at = _end(fields, at)
    for kind in (_INTEGER, _SEQUENCE, _SEQUENCE):  # serial number, algorithm, issuer
        if fields[at] != kind:
            raise ValueError("not a certificate")
        at = _end(fields, at)
    _, validity = _value(fields, at)
    kind, text = _value(validity, _end(validity, 0))
    form = _TIMES.get(kind, "")
    return datetime.datetime.strptime(text.decode("ascii"), form).replace(tzinfo=datetime.UTC)


def _header(data: bytes, at: int) -> tuple[int, int]:
    """Begin and length of the value of a DER element."""
    size = data[at + 1]
    if size < 0x80:
        return at + 2, size
    digits = size & 0x7F
    return at + 2 + digits, int.from_bytes(data[at + 2 : at + 2 + digits], "big")


def _value(data: bytes, at: int) -> tuple[int, bytes]:
    begin, size = _header(data, at)
    return data[at], data[begin : begin + size]


def _end(data: bytes, at: int) -> int:
    begin, size = _header(data, at)
    return begin + size


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not a PEM file of that kind"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
