"""A certificate for the rows with TLS: both brokers serve with the same one, beside connections without TLS."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from harness.children import ChildError


class Certificate(NamedTuple):
    """Files in PEM; the key is in PKCS#8, as Java reads it."""

    certificate: Path
    key: Path

    def settings(self) -> tuple[str, ...]:
        """RocketMQ's names, which both brokers use."""
        return (
            "tls.server.mode=permissive",
            "tls.test.mode.enable=false",
            f"tls.server.certPath={self.certificate}",
            f"tls.server.keyPath={self.key}",
        )

    def java_options(self) -> str:
        """The same as options of a JVM."""
        return " ".join(f"-D{setting}" for setting in self.settings())


def make(folder: Path) -> Certificate:
    """A new one with an RSA key of 2048 bits. ChildError: `openssl` cannot make it."""
    if shutil.which("openssl") is None:
        raise ChildError("the rows with TLS need openssl")
    made = Certificate(folder / "tls.crt", folder / "tls.key")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "7", "-subj", "/CN=localhost"]
    ended = subprocess.run(
        [*command, "-keyout", str(made.key), "-out", str(made.certificate)], capture_output=True, text=True
    )
    if ended.returncode != 0:
        raise ChildError(f"openssl made no certificate: {ended.stderr.strip()[-500:]}")
    return made
