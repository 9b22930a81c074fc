"""Accounts of a lab, and Java clients that sign with one of them although their programs pass no hook."""

import subprocess
from pathlib import Path

from lab.peer import Peer
from lab.places import ROOT
from lab.processes import ProcessError

_AGENT = ROOT / "e2e" / "lab" / "SigningAgent.java"
_EXPORT = "--add-exports=java.base/jdk.internal.org.objectweb.asm=ALL-UNNAMED"
_USER, _SECRET = "administrator", "a-secret-of-the-lab"


class Accounts:
    """Files with one administrator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        account = f"accessKey: {_USER}\nsecretKey: {_SECRET}\n"
        (folder / "tools.yml").write_text(account)
        (folder / "plain_acl.yml").write_text(
            f"accounts:\n- {{accessKey: {_USER}, secretKey: {_SECRET}, admin: true}}\n"
        )

    @property
    def account(self) -> tuple[str, str]:
        """The administrator's access key and secret key."""
        return _USER, _SECRET

    def server_settings(self) -> list[str]:
        """Settings of our processes: they serve no request without a signature, and sign their requests."""
        return [
            "aclEnable=true",
            f"aclFile={self.folder / 'plain_acl.yml'}",
            f"aclCredentialsFile={self.folder / 'tools.yml'}",
        ]

    def java_options(self, client: Peer) -> str:
        """Options of a JVM whose RocketMQ clients sign. ProcessError: the agent cannot be compiled."""
        status, path = client.call("classpath")
        if status != 0:
            raise ProcessError(f"peer.sh classpath ended with status {status}, see {client.log}")
        classes = self.folder / f"agent-{client.version}"
        manifest = self.folder / "manifest"
        manifest.write_text("Premain-Class: SigningAgent\n")
        jar = self.folder / f"agent-{client.version}.jar"
        _tool("javac", "-nowarn", _EXPORT, "-cp", path.strip(), "-d", str(classes), str(_AGENT))
        _tool("jar", "--create", "--file", str(jar), "--manifest", str(manifest), "-C", str(classes), ".")
        return f"{_EXPORT} -javaagent:{jar}={_USER}:{_SECRET}"


def _tool(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if ended.returncode:
        raise ProcessError(f"{command[0]} failed: {ended.stderr.strip()[:2000]}")
