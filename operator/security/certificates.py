"""Certificates as PEM: authorities, what they issue, and what a certificate says. Pure, except for random keys.

Keys are on the curve P-256, which every client of RocketMQ accepts. Times are seconds since 1970.
"""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATED_SECONDS = 300.0
"""Certificates begin this long before they are issued: clocks of Kubernetes nodes differ."""
_MAX_COMMON_NAME = 64


class CertificateError(ValueError):
    """A text is not the certificate or the key that it should be. The message contains no key."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate, followed by those of a chain, and its private key; both as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Facts:
    """What is written in a certificate."""

    sha256: str
    """Fingerprint: hexadecimal digits."""
    begins: float
    ends: float
    names: frozenset[str]
    """DNS names and addresses."""

    def remaining(self, now: float) -> float:
        """Which part of its time is left, from 1 to 0."""
        return max(0.0, min(1.0, (self.ends - now) / max(1.0, self.ends - self.begins)))


def facts_of(pem: bytes) -> Facts:
    """Reads the first certificate of a text. CertificateError."""
    certificate = _certificate(pem)
    names: list[str] = []
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]
    except x509.ExtensionNotFound:
        pass  # an authority has no names
    except ValueError as error:
        raise CertificateError(f"the certificate cannot be read: {error}") from error
    return Facts(
        certificate.fingerprint(hashes.SHA256()).hex(),
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
        frozenset(names),
    )


def fingerprints(pem: bytes) -> frozenset[str]:
    """Returns the fingerprints of all certificates of a text. CertificateError: there is none, or one is invalid."""
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise CertificateError("it has no certificate in PEM") from error
    return frozenset(each.fingerprint(hashes.SHA256()).hex() for each in found)


def is_issued_by(pem: bytes, authority: bytes) -> bool:
    """Whether the first certificate of a text has a signature of an authority. CertificateError."""
    try:
        _certificate(pem).verify_directly_issued_by(_certificate(authority))
    except CertificateError:
        raise
    except (
        Exception
    ):  # the library has several classes for an invalid signature, another issuer and another kind of key
        return False
    return True


def new_authority(name: str, now: float, seconds: float) -> Pair:
    """Makes an authority that signs its own certificate.

    Each one has another name: a certificate for the next one by this one would otherwise look as if it had signed
    itself, and clients would refuse it.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"{name[:40]} {secrets.token_hex(8)}")
    certificate = _authority(subject, subject, key.public_key(), now, now + seconds).sign(key, hashes.SHA256())
    return Pair(_pem(certificate), _key_pem(key))


def cross_certificate(new: bytes, old: Pair) -> bytes:
    """Returns a certificate for the key of a new authority, issued by the old one.

    A client that trusts only the old one accepts what the new one issues, if the server sends this certificate along.
    It ends with the old authority. CertificateError.
    """
    certificate, issuer = _certificate(new), _certificate(old.certificate)
    ends = min(certificate.not_valid_after_utc, issuer.not_valid_after_utc).timestamp()
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey), "authorities are made here"
    begins = certificate.not_valid_before_utc.timestamp() + BACKDATED_SECONDS
    builder = _authority(certificate.subject, issuer.subject, key, begins, ends)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(_public(issuer))
    return _pem(builder.add_extension(identifier, critical=False).sign(_private_key(old), hashes.SHA256()))


def issue(authority: Pair, names: Iterable[str], now: float, seconds: float, chain: bytes = b"") -> Pair:
    """Issues a certificate for servers and clients with these DNS names and addresses.

    The first one is the common name, too.
    It ends at the latest with its authority. `chain`: certificates to send along. CertificateError.
    """
    listed = list(dict.fromkeys(names))
    issuer = _certificate(authority.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    ends = min(now + seconds, issuer.not_valid_after_utc.timestamp())
    builder = (
        _builder(_name(listed[0]), issuer.subject, key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in listed]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(_public(issuer)), critical=False)
    )
    certificate = builder.sign(_private_key(authority), hashes.SHA256())
    return Pair(_pem(certificate) + chain, _key_pem(key))


def _authority(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: float, ends: float
) -> x509.CertificateBuilder:
    return (
        _builder(subject, issuer, key, now, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        .add_extension(_usage(authority=True), critical=True)
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: float, ends: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now - BACKDATED_SECONDS))
        .not_valid_after(_time(ends))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_MAX_COMMON_NAME])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise CertificateError("it is not a certificate in PEM") from error


def _public(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise CertificateError("the authority has a key of another kind")
    return key


def _private_key(pair: Pair) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pair.key, None)
    except (TypeError, ValueError):
        raise CertificateError("the key of the authority is not a private key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != _public(_certificate(pair.certificate)):
        raise CertificateError("the key of the authority does not match its certificate")
    return key
