"""The two brokers that are compared: ours, and RocketMQ 4.8.0 from the peer lab, each with a store to throw away.

Equal conditions: loopback, segments of 256 MiB, the same flush type, everything else as each ships it (RocketMQ with
its heap of 1 GiB). Ports below 32768: the kernel gives higher ones to clients, and RocketMQ has lost a port to one.
"""

import os
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from harness import access, interrupts, usage
from harness.children import ChildError, Server, run, running
from harness.control import Control
from harness.rows import Mode

HOST = "127.0.0.1"
SEGMENT_BYTES = 256 * 1024 * 1024
_START_S = 180.0


def stored_bytes(folder: Path) -> int:
    """Bytes that a folder's files take on the disk, holes not counted."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_blocks * 512
            except FileNotFoundError:
                pass  # a segment that was deleted while we counted takes nothing
    return total


def forget_cached(folder: Path) -> None:
    """Nothing of these files is in the page cache afterwards. No process may map them."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fdatasync(file.fileno())  # what is dirty cannot be dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def end_stale(pid_file: Path, marker: str) -> None:
    """Ends what an earlier benchmark left behind when it was killed, if the process still carries our folder's name."""
    try:
        pid = int(pid_file.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (OSError, ValueError):
        pid_file.unlink(missing_ok=True)
        return
    if marker in command:
        os.kill(pid, 9)
    pid_file.unlink(missing_ok=True)


class Side(ABC):
    """One broker. `generation` counts its fresh stores: what was put into an earlier one is gone."""

    name: str
    title: str
    warm_up_s: float

    def __init__(self, work: Path, port: int, nameserver_port: int) -> None:
        self.work = work
        self.port, self.nameserver_port = port, nameserver_port
        self.control = Control(HOST, port)
        self.generation = 0
        self.running = False
        self.warm = False
        self.mode = Mode()

    @property
    @abstractmethod
    def store(self) -> Path:
        """The folder that a fresh start empties."""

    def store_root(self) -> Path:
        """The folder that has commitlog, config and the marks. ChildError: there is none, it has not run."""
        for part in ("commitlog", "config"):  # RocketMQ makes the log's folder with the first message
            for folder in sorted(self.store.rglob(part)):
                return folder.parent
        raise ChildError(f"no store in {self.store}")

    @abstractmethod
    def pids(self) -> list[int]:
        """The processes under test."""

    def helpers(self) -> list[int]:
        """Other processes of this side."""
        return []

    @abstractmethod
    def start_again(self) -> None:
        """Starts with the store as it is, and returns when the broker answers."""

    @abstractmethod
    def time_start(self, readable: Callable[[], bool]) -> float:
        """Starts with the store as it is: seconds from exec until `readable` says yes."""

    @abstractmethod
    def stop_broker(self) -> None:
        """Stops the broker in order and keeps its store; `start_again` or `time_start` follows."""

    @abstractmethod
    def stop(self) -> None:
        """Stops all of it in order; nothing happens when it does not run."""

    def start_fresh(self, mode: Mode) -> None:
        """Starts with an empty store."""
        self.stop()
        shutil.rmtree(self.store, ignore_errors=True)
        self.mode = mode
        self.generation += 1
        self.warm = False
        self.start_again()

    def anonymous_bytes(self) -> int:
        """Anonymous memory of the processes under test."""
        return usage.anonymous_bytes(self.pids())


def _wait(readable: Callable[[], bool], alive: Callable[[], bool], timeout_s: float) -> float:
    """The time (monotonic) at which `readable` said yes. ChildError: the process ended or the time is over."""
    end = time.monotonic() + timeout_s
    while not readable():
        if not alive():
            raise ChildError("the broker ended before its messages could be read")
        if time.monotonic() > end:
            raise ChildError(f"the messages cannot be read {timeout_s:g} s after the start")
        time.sleep(0.005)
    return time.monotonic()


class OurSide(Side):
    """`tally run`: name server, broker and HTTP in one process."""

    name = "ours"
    title = "tallystick"
    warm_up_s = 0.0  # nothing is compiled while it runs; each turn's own warm-up fills the caches

    def __init__(self, work: Path, port_base: int, tally: Path, settings: tuple[str, ...] = ()) -> None:
        super().__init__(work, port_base + 11, port_base + 76)
        self._http_port = port_base + 80
        self._tally, self._settings = tally, settings
        self._server: Server | None = None
        self._pid_file = work / "ours.pid"
        self._log = work / "ours.log"
        work.mkdir(parents=True, exist_ok=True)
        end_stale(self._pid_file, str(work))

    @property
    def store(self) -> Path:
        return self.work / "ours"

    def pids(self) -> list[int]:
        return [] if self._server is None else [self._server.process.pid]

    def _launch(self) -> Server:
        options = [f"flushDiskType={self.mode.flush}", f"mappedFileSizeCommitLog={SEGMENT_BYTES}", *self._settings]
        if self.mode.access:
            options += access.our_settings(self.work)
        command = [str(self._tally), "run", "--dir", str(self.store), "--host", HOST, "--port", str(self.port)]
        command += ["--nameserver-port", str(self.nameserver_port), "--http-port", str(self._http_port)]
        for option in options:
            command += ["--set", option]
        with interrupts.held():
            self._server = Server(command, self._log)
            self._pid_file.write_text(str(self._server.process.pid))
        self.running = True
        return self._server

    def start_again(self) -> None:
        self.seconds_to_ready()

    def seconds_to_ready(self) -> float:
        """Starts with the store as it is: seconds from exec to the line that says ready."""
        assert not self.running
        return self._launch().wait_ready(_START_S)

    def time_start(self, readable: Callable[[], bool]) -> float:
        assert not self.running
        server = self._launch()
        return _wait(readable, lambda: server.process.poll() is None, _START_S) - server.started_at

    def stop_broker(self) -> None:
        self._end(Server.stop)

    def stop(self) -> None:
        self._end(Server.stop)

    def kill(self) -> None:
        """kill -9."""
        self._end(Server.kill)

    def forget_cached(self) -> None:
        """Its store has to be read from the disk. Only while it does not run."""
        forget_cached(self.store)

    def _end(self, how: Callable[[Server], None]) -> None:
        if self._server is not None:
            with interrupts.held():
                how(self._server)
        self._server, self.running, self.warm = None, False, False
        self._pid_file.unlink(missing_ok=True)


class PeerSide(Side):
    """RocketMQ 4.8.0 as the peer lab runs it."""

    name = "peer"
    title = "RocketMQ 4.8.0"
    warm_up_s = 9.0  # seen: 14 000, 37 000, 52 000 messages/s in the first three periods of 3 s after the start

    def __init__(self, work: Path, port_base: int, lab: Path, name: str = "peer", java_options: str = "") -> None:
        super().__init__(work / name, port_base + 111, port_base + 176)
        self.name = name
        self._lab = lab / "peer.sh"
        self._environment = {
            **os.environ,
            "PEER_WORK": str(self.work),
            "PEER_NS_PORT": str(self.nameserver_port),
            "PEER_PORT": str(self.port),
            "PEER_COMMITLOG_SIZE": str(SEGMENT_BYTES),
            "PEER_JAVA_OPTS": f"{os.environ.get('PEER_JAVA_OPTS', '')} {java_options}".strip(),
        }
        self._environment.pop("NAMESRV_ADDR", None)
        for pid_file in (self.work / "pid").glob("*"):
            end_stale(pid_file, str(self.work))

    @property
    def store(self) -> Path:
        return self.work / "store" / "broker-a"

    def lab(self, *arguments: str, timeout_s: float = _START_S) -> str:
        """One command of the peer lab, its standard output. ChildError: it failed."""
        return run([str(self._lab), *arguments], timeout_s=timeout_s, env=self._environment)

    def java_producer(
        self, topic: str, threads: int, size: int, nameserver_port: int, seconds: float
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """RocketMQ's benchmark producer at work inside the `with`, for `seconds` at most, by any name server."""
        options = ["--seconds", str(round(seconds)), "-t", topic, "-w", str(threads), "-s", str(size)]
        command = [str(self._lab), "bench-produce", *options, "-n", f"{HOST}:{nameserver_port}"]
        return running(command, env=self._environment)

    def _pid(self, name: str) -> list[int]:
        try:
            return [int((self.work / "pid" / name).read_text())]
        except (FileNotFoundError, ValueError):
            return []  # not up, or its pid is just being written

    def pids(self) -> list[int]:
        return self._pid("broker-a")

    def helpers(self) -> list[int]:
        return self._pid("namesrv")

    def start_fresh(self, mode: Mode) -> None:
        self.stop()
        self.mode = mode
        self.generation += 1
        if mode.access:
            access.write_accounts(self.work / "home" / "conf" / "plain_acl.yml")
        self.lab("up", "--flush", mode.flush, "--set", f"aclEnable={str(mode.access).lower()}")
        self.running = True

    def start_again(self) -> None:
        self.lab("start", "broker-a")
        self.running = True

    def time_start(self, readable: Callable[[], bool]) -> float:
        # The lab looks for the open port every 200 ms, and its own first steps are not RocketMQ's: we look ourselves,
        # and count from the time that the kernel has for the start of the process.
        with running([str(self._lab), "start", "broker-a"], env=self._environment) as lab:
            while not (pids := self.pids()):
                if lab.poll() is not None:
                    raise ChildError(f"{self.title} did not start: see {self.work}/log")
                time.sleep(0.005)
            done = _wait(readable, lambda: usage.process_stat(pids[0]) is not None, _START_S)
            age_s = usage.seconds_since_start(pids[0])
            assert age_s is not None, "it has just answered"
            seconds = age_s - (time.monotonic() - done)
            lab.wait(_START_S)
        self.running = True
        return seconds

    def stop_broker(self) -> None:
        self.lab("stop", "broker-a")
        self.running = self.warm = False

    def stop(self) -> None:
        if any((self.work / "pid").glob("*")):  # its name server at least, or the beginnings of a start
            self.lab("down")
        self.running = self.warm = False
