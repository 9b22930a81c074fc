"""`make tls-lab`: TLS with RocketMQ's own Java client, its admin tool and openssl, against `tally run`.

    python e2e/tls_lab.py [--version 4.8.0]

Servers in each mode, with files of certificates and without, with and without certificates of clients; versions,
renegotiation, and a certificate that changes under a running server. Exit status: 0 as expected, 1 not, 2 the lab
cannot run; after a failure the logs stay in build/e2e.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab.peer import SERVER_VERSION, Peer, PeerMissingError
from lab.places import HOST, work_folder
from lab.processes import ProcessError, end_on_signals
from lab.tally import Tally
from lab.tls import PASSWORD, Certificates, OpensslMissingError

_TEST_MODE = "-Dtls.enable=true"
_MESSAGES = 20
_LOOK_S = 30.0


class Lab:
    """Runs checks and counts those that are wrong."""

    def __init__(self, work: Path, version: str) -> None:
        self.work = work
        self.client = Peer(work / "client", version)
        self.certificates = Certificates(work / "certificates")
        self.others = Certificates(work / "others")
        self.wrong = 0

    def check(self, what: str, right: bool, found: str = "") -> None:
        """Prints one line."""
        self.wrong += not right
        print(f"{'ok   ' if right else 'WRONG'} {what}{'' if right else f': {found[-300:]}'}", flush=True)

    def java(self, what: str, tally: Tally, options: str, *, served: bool) -> None:
        """A Java client sends and receives, or can do neither."""
        self.client.environment["PEER_JAVA_OPTS"] = options
        topic = f"Tls{os.urandom(4).hex()}"
        arguments = ("--topic", topic, "--count", str(_MESSAGES), "--mode", "sync")
        status, found = self.client.call("probe", "produce", *arguments, "-n", tally.nameserver)
        if served and status == 0:
            wanted = ("--topic", topic, "--expect", str(_MESSAGES), "--quiet")
            status, found = self.client.call("probe", "consume-push", *wanted, "-n", tally.nameserver)
        self.check(f"Java client, {what}: {'served' if served else 'not served'}", (status == 0) == served, found)

    def admin(self, what: str, tally: Tally, options: str) -> None:
        """The admin tool shows the broker."""
        self.client.environment["PEER_JAVA_OPTS"] = options
        _, found = self.client.call("mqadmin", "clusterList", "-n", tally.nameserver)
        self.check(f"mqadmin, {what}", tally.broker in found, found)

    def openssl(self, address: str, *options: str, input_text: str = "") -> str:
        """What `openssl s_client` prints."""
        command = ["openssl", "s_client", "-connect", address, *options]
        try:
            ended = subprocess.run(command, input=input_text, capture_output=True, text=True, timeout=20)
        except subprocess.TimeoutExpired as error:
            return f"no end within 20 s: {error.stdout!r}"
        return ended.stdout + ended.stderr


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default=SERVER_VERSION, help="of RocketMQ's client and admin tool")
    options = parser.parse_args(arguments)
    end_on_signals()
    with work_folder("tls-") as work:
        try:
            lab = Lab(work.path, options.version)
            for scene in (_without_files, _enforcing, _properties_file, _client_certificates, _changed, _disabled):
                _run(lab, scene)
            work.status = 1 if lab.wrong else 0
        except (PeerMissingError, OpensslMissingError) as error:
            print(f"cannot run: {error}", file=sys.stderr)
        except ProcessError as error:
            print(f"could not be tried: {error}", file=sys.stderr)
    return work.status


def _run(lab: Lab, scene: Callable[[Lab, Tally], None]) -> None:
    tally = Tally(lab.work / scene.__name__.strip("_"))
    try:
        scene(lab, tally)
        tally.stop()
    finally:
        tally.kill()


def _without_files(lab: Lab, tally: Tally) -> None:
    tally.start()
    lab.java("no settings, test mode", tally, _TEST_MODE, served=True)
    lab.java("no settings, without TLS", tally, "", served=True)
    lab.java("no settings, verifies", tally, lab.certificates.java_options(), served=False)
    lab.admin("no settings, test mode", tally, _TEST_MODE)


def _enforcing(lab: Lab, tally: Tally) -> None:
    tally.settings += [*lab.certificates.server_settings(), "http.tlsMode=enforcing"]
    tally.start()
    lab.java("enforcing, verifies", tally, lab.certificates.java_options(), served=True)
    lab.java("enforcing, test mode", tally, _TEST_MODE, served=True)
    lab.java("enforcing, without TLS", tally, "", served=False)
    lab.java("enforcing, trusts another authority", tally, lab.others.java_options(), served=False)
    lab.admin("enforcing, verifies", tally, lab.certificates.java_options())
    ca = ("-CAfile", str(lab.certificates.authority), "-verify_return_error", "-verify_ip", HOST)
    http = f"{HOST}:{tally.http_port}"
    for port, name in ((tally.broker, "broker"), (tally.nameserver, "name server"), (http, "HTTP")):
        found = lab.openssl(port, *ca, "-brief")
        lab.check(f"openssl, {name}: verified", "Verification: OK" in found, found)
        weak = ("-cipher", "ALL:@SECLEVEL=0", "-brief")
        for version in ("-tls1", "-tls1_1"):
            found = lab.openssl(port, *weak, version)
            lab.check(f"openssl, {name}, {version[1:]}: refused", "protocol version" in found, found)
        found = lab.openssl(port, *ca, "-tls1_2", "-brief")
        lab.check(f"openssl, {name}, tls1_2: forward secrecy", "ECDHE-RSA-AES" in found and "GCM" in found, found)
        found = lab.openssl(port, *ca, "-tls1_2", "-cipher", "AES128-SHA:AES256-SHA256", "-brief")
        lab.check(f"openssl, {name}: no suite without forward secrecy", "handshake failure" in found, found)
    found = lab.openssl(tally.broker, *ca, "-tls1_2", input_text="R\nR\nR\nR\nR\n")
    lab.check("openssl, renegotiation: refused", "no renegotiation" in found.lower(), found)
    found = lab.openssl(http, *ca, "-quiet", input_text="GET /healthz HTTP/1.0\r\n\r\n")
    lab.check("openssl, HTTP: answered", "200 OK" in found, found)


def _properties_file(lab: Lab, tally: Tally) -> None:
    """RocketMQ's own file, with an encrypted key."""
    folder = lab.certificates.folder
    properties = {
        "tls.test.mode.enable": "false",
        "tls.server.need.client.auth": "none",
        "tls.server.keyPath": lab.certificates.encrypt_key("server"),
        "tls.server.keyPassword": PASSWORD,
        "tls.server.certPath": folder / "server.pem",
        "tls.server.authClient": "false",
        "tls.server.trustCertPath": lab.certificates.authority,
    }
    file = folder / "tls.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    tally.settings += [f"tls.config.file={file}"]
    tally.start()
    lab.java("tls.properties of RocketMQ", tally, lab.certificates.java_options(), served=True)
    lab.check("the password is not in the log", PASSWORD not in tally.log.read_text())


def _client_certificates(lab: Lab, tally: Tally) -> None:
    folder = lab.certificates.folder
    tally.settings += [
        *lab.certificates.server_settings(),
        "tls.server.need.client.auth=require",
        f"tls.server.trustCertPath={lab.certificates.authority}",
        f"tls.client.certPath={folder / 'client.pem'}",
        f"tls.client.keyPath={folder / 'client.key'}",
    ]
    tally.start()
    known = lab.certificates.java_options(with_certificate=True)
    lab.java("certificates required, has one", tally, known, served=True)
    lab.java("certificates required, has none", tally, lab.certificates.java_options(), served=False)
    strange = lab.others.java_options(with_certificate=True).replace(
        str(lab.others.authority), str(lab.certificates.authority)
    )
    lab.java("certificates required, of another authority", tally, strange, served=False)


def _changed(lab: Lab, tally: Tally) -> None:
    tally.settings += lab.certificates.server_settings("permissive")
    tally.start()
    (lab.certificates.folder / "server.pem").write_text("broken")
    _until(lambda: "new TLS files are not used" in tally.log.read_text())
    lab.java("the new certificate is broken", tally, lab.certificates.java_options(), served=True)
    lab.certificates.issue("server", "IP:127.0.0.1,DNS:new.shop")
    _until(lambda: "is in use" in tally.log.read_text())
    found = lab.openssl(tally.broker, "-CAfile", str(lab.certificates.authority), "-verify_hostname", "new.shop")
    lab.check("openssl, the new certificate is served", "Verify return code: 0 (ok)" in found, found)
    lab.java("the certificate changed", tally, lab.certificates.java_options(), served=True)


def _disabled(lab: Lab, tally: Tally) -> None:
    tally.settings.append("tls.server.mode=disabled")
    tally.start()
    lab.java("disabled, test mode", tally, _TEST_MODE, served=False)
    lab.java("disabled, without TLS", tally, "", served=True)
    lines = tally.log.read_text().count("uses TLS, which is disabled")
    lab.check("disabled: few lines in the log", 1 <= lines <= 20, f"{lines} lines")


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _LOOK_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise ProcessError("the server did not notice the changed certificate")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
