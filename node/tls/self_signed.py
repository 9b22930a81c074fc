"""The certificate of the test mode: made at the first use, and no client can verify it. It protects against readers of
the network only: RocketMQ's clients accept each certificate in this mode."""

from __future__ import annotations

import datetime
import os
import ssl
import tempfile
from pathlib import Path

from tallystick.replication.transport.certificates import TlsError, load_chain

_DAYS = 3650


def load_self_signed(context: ssl.SSLContext) -> None:
    """Makes a key and a certificate, and presents it. TlsError: the library that makes them is missing."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise TlsError(
            "no certificate is configured (tls.server.certPath), and the library that makes one for tests is missing: "
            "pip install cryptography"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tallystick self-signed")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - datetime.timedelta(days=1))
    made = made.not_valid_after(now + datetime.timedelta(days=_DAYS))
    certificate = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    # OpenSSL's module loads files only. The folder is this user's alone.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.pem"
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(private + certificate)
        load_chain(context, path, path)
