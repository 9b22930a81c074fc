"""The two replicated sides: three members on one machine, ours and RocketMQ's in DLedger mode.

Both replicate every message to a majority before they answer. RocketMQ's DLedger answers when the message is in the
page caches; ours syncs on a majority first (its default). Clients use the leader, whose address comes from the name
server after each start. CPU and memory are those of all members.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

from harness import interrupts
from harness.children import ChildError, Server
from harness.control import Control, ControlError
from harness.rows import Mode
from harness.sides import HOST, SEGMENT_BYTES, PeerSide, Side, end_stale, forget_cached

MEMBERS = (0, 1, 2)
CLUSTER_INFO = 106

_START_S = 120.0
# fastjson writes number keys bare: "brokerAddrs":{0:"127.0.0.1:10911",2:"..."}
_LEADER = re.compile(rb'[{,]"?0"?:"[^":]+:(\d+)"')


def leader_port(nameserver: Control) -> int | None:
    """The port of the broker that is registered as number 0; None: there is none now."""
    try:
        found = _LEADER.search(nameserver.call(CLUSTER_INFO).body)
    except ControlError:
        return None
    return None if found is None else int(found[1])


def wait_leader(nameserver_port: int, alive: Callable[[], bool], timeout_s: float = _START_S) -> int:
    """Waits until a leader is registered and answers; its port. ChildError: not in time, or a member ended."""
    nameserver = Control(HOST, nameserver_port)
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        port = leader_port(nameserver)
        if port is not None and Control(HOST, port).answers():
            return port
        if not alive():
            raise ChildError("a member of the group ended before there was a leader")
        time.sleep(0.02)
    raise ChildError(f"no leader is registered {timeout_s:g} s after the start")


class OurGroup(Side):
    """A name server and three `tally broker`."""

    name = "ours"
    title = "tallystick, 3 members"
    warm_up_s = 0.0

    def __init__(self, work: Path, port_base: int, tally: Path, settings: tuple[str, ...] = ()) -> None:
        super().__init__(work, port_base + 20, port_base + 77)
        self._tally, self._settings = tally, settings
        self._first_port = port_base + 20
        self._members: dict[int, Server] = {}
        self._killed: int | None = None
        self._nameserver: Server | None = None
        self._log = work / "ours-group.log"
        work.mkdir(parents=True, exist_ok=True)
        for pid_file in work.glob("ours-group-*.pid"):
            end_stale(pid_file, str(work))

    @property
    def store(self) -> Path:
        return self.work / "ours-group"

    def pids(self) -> list[int]:
        return [server.process.pid for server in self._members.values()]

    def helpers(self) -> list[int]:
        return [] if self._nameserver is None else [self._nameserver.process.pid]

    def _launch(self, name: str, *arguments: str) -> Server:
        with interrupts.held():
            server = Server([str(self._tally), *arguments], self._log)
            (self.work / f"ours-group-{name}.pid").write_text(str(server.process.pid))
        return server

    def _folder(self, member: int) -> Path:
        return self.store / f"n{member}"

    def _port(self, member: int) -> int:
        return self._first_port + 10 * member

    def _member(self, member: int) -> Server:
        folder = self._folder(member)
        peers = ";".join(f"n{other}-{HOST}:{self._first_port + 30 + other}" for other in MEMBERS)
        options = [
            f"flushDiskType={self.mode.flush}",
            f"mappedFileSizeCommitLog={SEGMENT_BYTES}",
            "brokerName=raft-a",
            f"bindAddress={HOST}",
            "enableDLegerCommitLog=true",
            "dLegerGroup=raft-a",
            f"dLegerPeers={peers}",
            f"dLegerSelfId=n{member}",
            *([] if folder.exists() else ["groupBootstrap=true"]),  # only at its first start
            *self._settings,
        ]
        arguments = ["broker", "--dir", str(folder), "--host", HOST]
        arguments += ["--port", str(self._port(member)), "--http-port", str(self._first_port + 40 + member)]
        arguments += ["--nameserver", f"{HOST}:{self.nameserver_port}"]
        for option in options:
            arguments += ["--set", option]
        return self._launch(f"n{member}", *arguments)

    def start_again(self) -> None:
        arguments = ["--host", HOST, "--port", str(self.nameserver_port), "--http-port", "-1"]
        self._nameserver = self._launch("namesrv", "nameserver", *arguments)
        self._nameserver.wait_ready(_START_S)
        self._members = {member: self._member(member) for member in MEMBERS}
        self.running = True
        self._find_leader()

    def _find_leader(self) -> None:
        self.port = wait_leader(
            self.nameserver_port, lambda: all(server.process.poll() is None for server in self._members.values())
        )
        self.control = Control(HOST, self.port)

    # -- one member --------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kills the leader (kill -9). The others continue."""
        self._killed = next(member for member in MEMBERS if self._port(member) == self.port)
        with interrupts.held():
            self._members.pop(self._killed).kill()

    def forget_cached(self) -> None:
        """The killed member's store has to be read from the disk."""
        assert self._killed is not None
        forget_cached(self._folder(self._killed))

    def seconds_to_ready(self) -> float:
        """Starts the killed member with the store as it is: seconds from exec to the line that says ready."""
        assert self._killed is not None
        member, self._killed = self._killed, None
        self._members[member] = self._member(member)
        seconds = self._members[member].wait_ready(_START_S)
        self._find_leader()
        return seconds

    def time_start(self, readable: Callable[[], bool]) -> float:
        raise AssertionError("no run times the start of a whole group")

    def stop_broker(self) -> None:
        self.stop()

    def stop(self) -> None:
        with interrupts.held():
            for server in [*self._members.values(), *([] if self._nameserver is None else [self._nameserver])]:
                server.stop()
        self._members, self._nameserver, self.running, self.warm = {}, None, False, False
        for pid_file in self.work.glob("ours-group-*.pid"):
            pid_file.unlink(missing_ok=True)


class PeerGroup(PeerSide):
    """RocketMQ 4.8.0 in DLedger mode, three brokers, as the peer lab runs it."""

    title = "RocketMQ 4.8.0, DLedger, 3 brokers"

    def __init__(self, work: Path, port_base: int, lab: Path) -> None:
        super().__init__(work, port_base, lab, name="peer")

    @property
    def store(self) -> Path:
        return self.work / "store"

    def pids(self) -> list[int]:
        return [pid for member in MEMBERS for pid in self._pid(f"broker-n{member}")]

    def start_fresh(self, mode: Mode) -> None:
        self.stop()
        self.mode = mode
        self.generation += 1
        self.lab("up", "--mode", "dledger", "--flush", mode.flush)
        self.running = True
        self.port = wait_leader(self.nameserver_port, lambda: len(self.pids()) == len(MEMBERS))
        self.control = Control(HOST, self.port)

    def start_again(self) -> None:
        raise AssertionError("no run starts a group on a store that is there")

    time_start = OurGroup.time_start

    def stop_broker(self) -> None:
        self.stop()
