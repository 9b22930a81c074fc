"""A tallystick master and a RocketMQ 4.8.0 slave, with a name server that neither of them takes along when it dies."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lab.peer import Peer
from lab.places import HOST, PEER, TALLY, free_block
from lab.processes import ProcessError, Server, clean_environment

from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson

BROKER_NAME = "pair"
CLUSTER = "PairCluster"
_SLAVE = "slave"
_WAIT_S = 180.0


class NotReadyError(Exception):
    """A broker refused a request that it serves later."""


class Nameserver:
    """`tally nameserver`."""

    def __init__(self, folder: Path) -> None:
        self.address = f"{HOST}:{free_block()}"
        command = [str(TALLY), "nameserver", "--host", HOST, "--port", self.address.rpartition(":")[2]]
        self._server = Server([*command, "--http-port", "-1"], folder / "nameserver.log", clean_environment())
        self._server.wait_for("tally is ready", 60)

    def stop(self) -> None:
        self._server.stop()


class TallyBroker:
    """`tally broker` with its store in `folder`. A start after `kill` or `stop` uses the same ports and store."""

    start_s = 180.0
    """How long a start may take."""

    def __init__(self, folder: Path, log: Path, nameserver: str, settings: Iterable[str]) -> None:
        self._folder, self._nameserver, self._settings = folder, nameserver, list(settings)
        first = free_block()
        self.port, self.http_port = first + 2, first + 5
        self.log = log
        self._server: Server | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def http(self) -> str:
        return f"{HOST}:{self.http_port}"

    @property
    def commitlog(self) -> Path:
        """The folder of the segments."""
        return self._folder / "commitlog"

    def start(self, *extra: str) -> None:
        """ProcessError: it did not become ready."""
        assert self._server is None, "the broker is already running"
        command = [str(TALLY), "broker", "--dir", str(self._folder), "--host", HOST]
        command += ["--port", str(self.port), "--http-port", str(self.http_port), "--nameserver", self._nameserver]
        for setting in (*self._settings, *extra):
            command += ["--set", setting]
        self._server = Server(command, self.log, clean_environment())
        self._server.wait_for("tally is ready", self.start_s)

    def kill(self) -> None:
        """kill -9; nothing happens when it does not run."""
        server, self._server = self._server, None
        if server is not None:
            server.kill()

    def stop(self) -> None:
        """In order; nothing happens when it does not run."""
        server, self._server = self._server, None
        if server is not None and (status := server.stop(120)) != 0:
            raise ProcessError(f"the broker ended with status {status}, see {self.log}")

    def node(self) -> dict[str, Any]:
        """GET /node. OSError: it does not answer."""
        with urllib.request.urlopen(f"http://{self.http}/node", timeout=30) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._server is not None, "the broker does not run"
        return self._server.process.pid

    def own_memory_mib(self) -> int:
        """The present resident memory of the process without pages of files, which the system takes back."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.partition("RssAnon:")[2].split()[0]) >> 10

    def memory_mib(self) -> int:
        """The highest resident memory of the process so far."""
        assert self._server is not None
        text = Path(f"/proc/{self._server.process.pid}/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) >> 10


class Master(TallyBroker):
    """A master that accepts slaves at the port after its own."""

    def __init__(self, folder: Path, nameserver: str, settings: Iterable[str]) -> None:
        own = (f"brokerName={BROKER_NAME}", f"brokerClusterName={CLUSTER}")
        super().__init__(folder / "master", folder / "master.log", nameserver, (*own, *settings))

    def slaves(self) -> dict[str, Any]:
        """`slaves` of GET /node."""
        found: dict[str, Any] = self.node()["slaves"]
        return found


class RocketmqSlave:
    """RocketMQ 4.8.0 with brokerRole=SLAVE, as the lab starts its brokers."""

    def __init__(self, peer: Peer, nameserver: str, settings: Iterable[str]) -> None:
        self._peer = peer
        self.address = f"{HOST}:{peer.port}"
        self.store = peer.work / "store" / _SLAVE
        home = peer.work / "home"
        for folder in (home / "conf", home / "bin", peer.work / "log", peer.work / "pid", peer.work / "conf"):
            folder.mkdir(parents=True, exist_ok=True)
        for name in ("namesrv", "broker", "tools"):
            shutil.copy(PEER / "conf" / "logback.xml", home / "conf" / f"logback_{name}.xml")
        lines = [
            f"brokerClusterName={CLUSTER}",
            f"brokerName={BROKER_NAME}",
            "brokerId=1",
            "brokerRole=SLAVE",
            f"namesrvAddr={nameserver}",
            f"brokerIP1={HOST}",
            f"listenPort={peer.port}",
            f"haListenPort={peer.port + 1}",
            f"storePathRootDir={self.store}",
            f"storePathCommitLog={self.store}/commitlog",
            f"rocketmqHome={home}",
            "slaveReadEnable=true",
            "fileReservedTime=720",
            "diskMaxUsedSpaceRatio=95",
            *settings,
        ]
        (peer.work / "conf" / f"{_SLAVE}.conf").write_text("\n".join(lines) + "\n")

    @property
    def commitlog(self) -> Path:
        """The folder of the segments."""
        return self.store / "commitlog"

    def start(self) -> None:
        """ProcessError: it did not start."""
        if self._peer.call("start", _SLAVE)[0] != 0:
            raise ProcessError(f"the slave did not start, see {self._peer.work}/log")

    def stop(self) -> None:
        """In order; nothing happens when it does not run."""
        self._peer.call("stop", _SLAVE)

    def kill(self) -> None:
        """kill -9; nothing happens when it does not run."""
        self._peer.call("kill", _SLAVE)


async def runtime(address: str) -> dict[str, str]:
    """GET_BROKER_RUNTIME_INFO of a broker. RemotingError; NotReadyError."""
    client = RemotingClient(name="pair")
    try:
        answer = await client.call(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO), 30.0)
    finally:
        await client.close(grace_s=0.0)
    if answer.code != 0:
        raise NotReadyError(answer.remark)
    table: dict[str, str] = fastjson.loads(answer.body)["table"]
    return table


async def log_end(address: str) -> int:
    """Where the log of a broker ends, and is dispatched."""
    table = await runtime(address)
    return int(table["commitLogMaxOffset"]) - int(table["dispatchBehindBytes"])


async def wait_same_end(master: str, slave: str) -> int:
    """Returns the end of the log when the slave has the whole log of its master. ProcessError: it takes too long."""
    deadline = time.monotonic() + _WAIT_S
    ends: tuple[int, ...] = ()
    while time.monotonic() < deadline:
        try:
            before = await log_end(master)
            ends = (before, await log_end(slave), await log_end(master))
        except (RemotingError, NotReadyError):
            pass  # a broker that was just started
        else:
            if len(set(ends)) == 1:
                return ends[0]
        await asyncio.sleep(0.3)
    raise ProcessError(f"the slave does not reach the end of the log: master, slave, master at {ends}")


def first_difference(ours: Path, theirs: Path, end: int) -> int | None:
    """Position of the first byte in which two logs differ before `end`; None if there is none."""
    names = sorted(int(path.name) for path in theirs.iterdir() if path.name.isdigit() and int(path.name) < end)
    for begin in names:
        count = min(end - begin, (ours / f"{begin:020}").stat().st_size)
        one = (ours / f"{begin:020}").read_bytes()[:count]
        other = (theirs / f"{begin:020}").read_bytes()[:count]
        if one != other:
            return begin + next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return None
