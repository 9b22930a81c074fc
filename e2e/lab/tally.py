"""One `tally run` under test, with separate ports and a separate folder."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lab.places import HOST, TALLY, free_block
from lab.processes import ProcessError, Server, clean_environment

# A broker that asks producers early about transactions: the suite's step transaction-check waits for it.
EARLY_CHECKS = ("transactionTimeOut=2000", "transactionCheckInterval=3000")


class Tally:
    """Name server, broker and HTTP in one process. A start after `stop` or `kill` uses the same ports and store."""

    def __init__(self, folder: Path, settings: Iterable[str] = (), *, first_port: int | None = None) -> None:
        self.folder = folder
        self.settings = list(settings)
        first = free_block() if first_port is None else first_port
        self.port, self.nameserver_port, self.http_port = first + 2, first + 4, first + 5
        self.log = folder / "tally.log"
        self.env: Mapping[str, str] = {}
        """Variables of the next start, beside those of this process."""
        self.wrap: Sequence[str] = ()
        """A command that runs the next start, and ends by executing it: `prlimit --nofile=64`."""
        self._server: Server | None = None

    @property
    def store(self) -> Path:
        """The folder that has commitlog, consumequeue and so on."""
        return self.folder / "data" / "store"

    @property
    def nameserver(self) -> str:
        return f"{HOST}:{self.nameserver_port}"

    @property
    def broker(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def alive(self) -> bool:
        return self._server is not None and self._server.alive

    @property
    def server(self) -> Server:
        """The running process."""
        assert self._server is not None, "the process is not running"
        return self._server

    def launch(self, *extra: str) -> None:
        """Starts the process and does not wait; `extra` are settings for this run only."""
        assert self._server is None, "the process is already running"
        if not TALLY.exists():
            raise ProcessError(f"{TALLY} is not built: make build")
        ports = ["--port", str(self.port), "--nameserver-port", str(self.nameserver_port)]
        command = [*self.wrap, str(TALLY), "run", "--dir", str(self.folder / "data"), "--host", HOST, *ports]
        command += ["--http-port", str(self.http_port)]
        for setting in (*self.settings, *extra):
            command += ["--set", setting]
        self._server = Server(command, self.log, clean_environment() | dict(self.env))

    def wait_ready(self, timeout_s: float = 60) -> str:
        """The line that says so. ProcessError: it ended or took too long."""
        assert self._server is not None, "launch the process first"
        return self._server.wait_for("tally is ready", timeout_s)

    def start(self, *extra: str) -> str:
        """Starts and waits until it serves."""
        self.launch(*extra)
        return self.wait_ready()

    def stop(self, timeout_s: float = 60) -> None:
        """In order; nothing happens when it does not run. ProcessError: its exit status was not 0, or it took longer
        than `timeout_s` and was killed."""
        server, self._server = self._server, None
        if server is not None and (status := server.stop(timeout_s)) != 0:
            raise ProcessError(f"tally ended with status {status}, see {self.log}")

    def kill(self) -> None:
        """kill -9; nothing happens when it does not run."""
        server, self._server = self._server, None
        if server is not None:
            server.kill()
