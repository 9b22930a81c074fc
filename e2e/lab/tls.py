"""Certificates of a lab, made by `openssl`, and what makes servers and Java clients use them."""

import shutil
import subprocess
from pathlib import Path

PASSWORD = "of-the-lab"
_DAYS = "30"


class OpensslMissingError(Exception):
    """There is no `openssl` here."""


class Certificates:
    """An authority in a folder, with a certificate for servers at 127.0.0.1 and one for a client."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            raise OpensslMissingError("the lab needs openssl")
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", _DAYS)
        self._openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", f"/CN={folder.name}")
        self.issue("server", "IP:127.0.0.1,DNS:localhost")
        self.issue("client", "DNS:orders.shop")

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, name: str, names: str) -> None:
        """A certificate with these alternative names, and an RSA key in PKCS#8, which is what Java reads."""
        extension = self.folder / f"{name}.ext"
        extension.write_text(f"subjectAltName={names}\n")
        key = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        self._openssl("req", *key)
        by = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", _DAYS, "-extfile", extension.name)
        self._openssl("x509", "-req", "-in", f"{name}.csr", *by, "-out", f"{name}.new")
        (self.folder / f"{name}.new").replace(self.folder / f"{name}.pem")

    def encrypt_key(self, name: str) -> Path:
        """The key of a certificate in a file that needs `PASSWORD`."""
        made = self.folder / f"{name}-encrypted.key"
        self._openssl("pkcs8", "-topk8", "-in", f"{name}.key", "-out", made.name, "-passout", f"pass:{PASSWORD}")
        return made

    def server_settings(self, mode: str = "enforcing") -> list[str]:
        """Settings of our processes: they serve with the certificate, and verify each other's."""
        return [
            f"tls.server.mode={mode}",
            f"tls.server.certPath={self.folder / 'server.pem'}",
            f"tls.server.keyPath={self.folder / 'server.key'}",
            "tls.enable=true",
            f"tls.client.trustCertPath={self.authority}",
        ]

    def java_options(self, *, with_certificate: bool = False) -> str:
        """Options of a JVM whose client verifies servers; `with_certificate`: and shows its own."""
        options = [
            "-Dtls.enable=true",
            "-Dtls.test.mode.enable=false",
            "-Dtls.client.authServer=true",
            f"-Dtls.client.trustCertPath={self.authority}",
        ]
        if with_certificate:
            options.append(f"-Dtls.client.certPath={self.folder / 'client.pem'}")
            options.append(f"-Dtls.client.keyPath={self.folder / 'client.key'}")
        return " ".join(options)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)
