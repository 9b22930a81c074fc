"""rocketmq-rust 1.0.0, a third broker beside ours and RocketMQ: `make bench ARGS='--rust FOLDER'`.

The folder is that of `cargo install --locked --root FOLDER rocketmq-namesrv@1.0.0 rocketmq-broker@1.0.0`. Its figures
stand in a column of their own; no verdict depends on them. It takes part in the rows of one broker that send or pull.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import interrupts
from harness.children import ChildError, end_group
from harness.control import Control
from harness.rows import OpenLoop, Produce, Pull, Run
from harness.sides import HOST, SEGMENT_BYTES, Side, end_stale

VERSION = "1.0.0"
_PROGRAMS = ("rocketmq-namesrv-rust", "rocketmq-broker-rust")
_START_S = 60.0


class RustSide(Side):
    """A name server and a broker, each a process. ChildError: the folder does not have the two programs."""

    name = "rust"
    title = f"rocketmq-rust {VERSION}"
    warm_up_s = 9.0  # nothing is compiled while it runs; its first seconds are those of a new store, as at RocketMQ

    def __init__(self, work: Path, port_base: int, folder: Path) -> None:
        super().__init__(work / "rust", port_base + 131, port_base + 186)
        self._programs = [folder / "bin" / name for name in _PROGRAMS]
        for program in self._programs:
            if not program.is_file():
                raise ChildError(f"{program} is missing: cargo install --locked --root {folder} ...@{VERSION}")
        self._processes: list[subprocess.Popen[str]] = []
        self.work.mkdir(parents=True, exist_ok=True)
        for program in self._programs:
            end_stale(self._pid_file(program), program.name)

    @property
    def store(self) -> Path:
        return self.work / "store"

    @staticmethod
    def takes_part(run: Run) -> bool:
        """Whether this side can run it: one broker without TLS, under a load that the generator makes."""
        return (
            isinstance(run, Produce | OpenLoop | Pull)
            and run.layout == "single"
            and not run.ours_only
            and not run.access
            and not (isinstance(run, Produce) and run.tls)
        )

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes[1:]]

    def helpers(self) -> list[int]:
        return [process.pid for process in self._processes[:1]]

    def start_again(self) -> None:
        assert not self.running
        self.store.mkdir(parents=True, exist_ok=True)
        configuration = self.work / "broker.toml"
        configuration.write_text(self._configuration())
        name_server, broker = (str(program) for program in self._programs)
        commands = (
            [name_server, "--listenPort", str(self.nameserver_port), "--bindAddress", HOST],
            [broker, "-n", f"{HOST}:{self.nameserver_port}", "-c", str(configuration)],
        )
        ready = (Control(HOST, self.nameserver_port).accepts, self.control.answers)
        self.running = True
        for command, is_ready in zip(commands, ready, strict=True):
            self._launch(command, is_ready)

    def time_start(self, readable: Callable[[], bool]) -> float:
        raise NotImplementedError("its starts are not measured")

    def stop_broker(self) -> None:
        raise NotImplementedError("its starts are not measured")

    def stop(self) -> None:
        with interrupts.held():
            while self._processes:
                end_group(self._processes.pop())
        for program in self._programs:
            self._pid_file(program).unlink(missing_ok=True)
        self.running = self.warm = False

    def _pid_file(self, program: Path) -> Path:
        return self.work / f"{program.name}.pid"

    def _launch(self, command: Sequence[str], is_ready: Callable[[], bool]) -> None:
        program = Path(command[0])
        log = self.work / f"{program.name}.log"
        environment = {"HOME": str(self.work), "ROCKETMQ_HOME": str(self.work), "PATH": "/usr/bin:/bin"}
        with interrupts.held(), log.open("w") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                cwd=self.work,
                start_new_session=True,
            )
            self._processes.append(process)
            self._pid_file(program).write_text(str(process.pid))
        end = time.monotonic() + _START_S
        while not is_ready():
            if process.poll() is not None or time.monotonic() > end:
                raise ChildError(f"{program.name} does not answer; status {process.poll()}, see {log}")
            time.sleep(0.05)

    def _configuration(self) -> str:
        """Its broker's file: the segments, the addresses and the flush type of the other sides."""
        return f"""[broker]
listenPort = {self.port}
storePathRootDir = "{self.store}"

[broker.brokerServerConfig]
bindAddress = "{HOST}"

[broker.brokerIdentity]
brokerName = "broker-a"
brokerClusterName = "DefaultCluster"
brokerId = 0

[store]
storePathRootDir = "{self.store}"
storePathCommitLog = "{self.store / "commitlog"}"
mappedFileSizeCommitLog = {SEGMENT_BYTES}
brokerRole = "ASYNC_MASTER"
flushDiskType = "{self.mode.flush}"
haListenAddress = "{HOST}"
haListenPort = {self.port + 1}
"""
