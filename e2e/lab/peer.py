"""The peer lab: real RocketMQ 4.8.0 and its clients, as `../shared/peer/peer.sh` runs them.

A lab has its work folder (processes, logs, stores), its ports, and a version, which is the *client's*: a server is
4.8.0 unless `up` is asked for another. So a newer client against RocketMQ 4.8.0 takes two labs, one that is up and one
that probes.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.places import HOST, PEER, free_block
from lab.processes import ProcessError, run

SERVER_VERSION = "4.8.0"


class PeerMissingError(Exception):
    """There is no peer lab beside the repository, or Java and Maven for it are not here."""


@dataclass(frozen=True, slots=True)
class Step:
    """What became of one step of the suite."""

    name: str
    ok: bool
    ms: int
    failures: tuple[str, ...]


def need_peer() -> None:
    """PeerMissingError: the lab cannot be used, and the text says what is missing."""
    if not (PEER / "peer.sh").is_file():
        raise PeerMissingError(f"the peer lab {PEER}/peer.sh is not here (TALLYSTICK_SHARED names another folder)")
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if missing:
        raise PeerMissingError(f"the peer lab needs {', '.join(missing)}")


class Peer:
    """One work folder of the lab. `version` selects the client."""

    def __init__(self, work: Path, version: str = SERVER_VERSION, *, ports: int = 20) -> None:
        """`ports`: how many neighbouring ones it may use; a group of DLedger needs 130."""
        need_peer()
        self.work = work
        self.version = version
        self.log = work / "peer.log"
        first = free_block(ports)
        self.port, self.nameserver_port = first + 2, first + 6
        self._running = False
        self.java_options = ""
        """Further options of the JVM of `client_command`, separated by spaces."""
        self.environment = {
            **os.environ,
            "PEER_WORK": str(work),
            "PEER_VERSION": version,
            "PEER_PORT": str(self.port),
            "PEER_NS_PORT": str(self.nameserver_port),
        }
        self.environment.pop("NAMESRV_ADDR", None)
        work.mkdir(parents=True, exist_ok=True)

    @property
    def nameserver(self) -> str:
        return f"{HOST}:{self.nameserver_port}"

    @property
    def broker(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def store(self) -> Path:
        """The folder that `up(keep=True)` starts with."""
        return self.work / "store" / "broker-a"

    def call(
        self, *arguments: str, timeout_s: float = 600, on_line: Callable[[str], None] | None = None
    ) -> tuple[int, str]:
        """One command of peer.sh: its status and standard output. ProcessError: it took too long.

        It runs in the work folder: `mqadmin consumerStatus` leaves a folder where it is called.
        """
        command = [str(PEER / "peer.sh"), *arguments]
        return run(command, timeout_s=timeout_s, log=self.log, cwd=self.work, env=self.environment, on_line=on_line)

    def client_command(self, source: Path, *arguments: str) -> list[str]:
        """What runs a Java program, given as its source, with RocketMQ's client. ProcessError: it cannot be had."""
        status, path = self.call("classpath")
        if status != 0:
            raise ProcessError(f"peer.sh classpath ended with status {status}, see {self.log}")
        options = ["--add-opens", "java.base/java.nio=ALL-UNNAMED", "-Djava.net.preferIPv4Stack=true", "-Xmx256m"]
        options += [f"-Duser.home={self.work}", "-Drocketmq.client.logUseSlf4j=true", *self.java_options.split()]
        return ["java", *options, "-cp", path.strip(), str(source), *arguments]

    def up(
        self, settings: Iterable[str] = (), *, keep: bool = False, version: str = SERVER_VERSION, mode: str = "single"
    ) -> None:
        """RocketMQ of this version: one master, or another `mode` of the lab. ProcessError: it did not start."""
        arguments = ["up", "--version", version, "--mode", mode, *(["--keep"] if keep else [])]
        for setting in settings:
            arguments += ["--set", setting]
        self._running = True  # before it is up: half of it may run when the start fails
        status, _ = self.call(*arguments)
        if status != 0:
            raise ProcessError(f"RocketMQ {version} did not start, see {self.log} and {self.work}/log")

    def down(self, *, kill: bool = False) -> None:
        """Stops what `up` started, the broker in order or by kill -9; nothing happens when there was none."""
        if self._running:
            self.call("down", *(["--kill"] if kill else []))
            self._running = False

    def suite(
        self,
        nameserver: str,
        *,
        only: str = "",
        skip: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> list[Step]:
        """All steps of the suite against any name server. ProcessError: it did not come to its end.

        The suite takes its expectations from the client's release, but one of them is the server's to fulfil: where a
        pull behind the end is sent. Here the server is 4.8.0, or behaves so.
        """
        arguments = ["probe", "suite", "-n", nameserver, "--check-seconds", "30", "--illegal-rule", "start", "--trace"]
        for option, value in (("--only", only), ("--skip", skip)):
            if value:
                arguments += [option, value]
        _, output = self.call(*arguments, timeout_s=900, on_line=on_line)
        steps = _last_object(output).get("steps")
        if not steps:
            raise ProcessError(f"the suite printed no result, see {self.log}\n{output[-2000:]}")
        return [Step(each["step"], each["ok"], each["ms"], tuple(each["failures"])) for each in steps]

    def open_store(self, folder: Path, settings: Iterable[str], out: Path, *, dledger: str = "") -> dict[str, Any]:
        """What RocketMQ 4.8.0 sees in a copy of a store. ProcessError: it could not load it or did not catch up.

        `dledger`: the member's name, if the store is one of a group; it is opened as a group of one.
        """
        arguments = ["open-store", str(folder), "--out", str(out), *(["--dledger", dledger] if dledger else [])]
        for setting in settings:
            arguments += ["--set", setting]
        status, _ = self.call(*arguments)
        if status != 0:
            raise ProcessError(f"RocketMQ {SERVER_VERSION} cannot open {folder} (status {status}), see {self.log}")
        listing: dict[str, Any] = json.loads(out.read_text())
        return listing


def _last_object(output: str) -> dict[str, Any]:
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                found: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            return found
    return {}
