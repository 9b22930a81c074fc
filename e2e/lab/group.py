"""A name server and the `tally broker` processes of one group, each with separate ports and a separate folder.

A member is ended by its pid, paused with SIGSTOP, and can be started again in the same folder. `Status` is a member's
answer to `GET /group`. Most groups have three members from begin to end; a group that grows has places for more members
than at its bootstrap, and `belong` has its present members.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lab.places import HOST, TALLY, free_block
from lab.processes import ProcessError, Server, clean_environment

BROKER_NAME = "raft-a"

_PORTS = 40
_MOST_MEMBERS = 5  # that the ports are enough for
_LOOK_S = 0.02
_ANSWER_S = 2.0
_CHANGE_S = 10.0
_STOP_S = 30.0


class AdminError(Exception):
    """A member answered no, or not at all; the text is its own."""


@dataclass(frozen=True, slots=True)
class Status:
    """One member's view of the group; indexes are those of log entries."""

    member: int
    role: str
    term: int
    leader: int | None
    ready: bool
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    last_index: int
    commit_index: int
    applied_index: int
    disk: str
    doubt: str
    trouble: str

    @classmethod
    def parse(cls, found: dict[str, Any]) -> Status:
        """KeyError: it says less than we need."""
        return cls(
            int(found["member"]),
            str(found["role"]).lower(),
            int(found["term"]),
            found["leader"],
            bool(found["ready"]),
            tuple(found["voters"]),
            tuple(found["learners"]),
            int(found["last_index"]),
            int(found["commit_index"]),
            int(found["applied_index"]),
            str(found["disk"]).lower(),
            str(found["doubt"]).lower(),
            str(found.get("fatal") or found.get("last_error") or ""),
        )


class Member:
    """One `tally broker`."""

    def __init__(self, group: Group, number: int, folder: Path, first_port: int) -> None:
        self._group = group
        self.number = number
        self.folder = folder
        self.http_port = first_port + 1 + number
        self.raft_port = first_port + 1 + _MOST_MEMBERS + number
        self.port = first_port + 3 + 2 * _MOST_MEMBERS + 4 * number  # and two below, where old clients send
        self.log = folder.parent / f"n{number}.log"
        self.paused = False
        self.env: Mapping[str, str] = {}
        """Variables of the next start, beside those of this process."""
        self._server: Server | None = None
        self._born = False

    @property
    def name(self) -> str:
        return f"n{self.number}"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def ledger(self) -> Path:
        """The folder that has `data` and `index`."""
        return self.folder / f"dledger-{self.name}"

    @property
    def alive(self) -> bool:
        return self._server is not None and self._server.alive

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._server is not None, f"{self.name} is not running"
        return self._server.process.pid

    @property
    def ended(self) -> bool:
        """Whether it was started, was not stopped, and has ended."""
        return self._server is not None and not self._server.alive

    def launch(self) -> None:
        """Starts the process and does not wait. Only a founder's very first start makes it a member of a new group: one
        whose disk was emptied since must find its way back (S14), and others have to be let in."""
        assert self._server is None, f"{self.name} runs"
        command = [str(TALLY), "broker", "--dir", str(self.folder), "--host", HOST, "--port", str(self.port)]
        command += ["--http-port", str(self.http_port), "--nameserver", self._group.nameserver]
        first = () if self._born or self.number not in self._group.founders else ("groupBootstrap=true",)
        for setting in (*self._group.settings_of(self), *first, *self._group.settings):
            command += ["--set", setting]
        self._born = True
        self._server = Server(command, self.log, clean_environment() | dict(self.env))

    def wait_ready(self, timeout_s: float = 60) -> str:
        """The line that says so. ProcessError: it ended or took too long."""
        assert self._server is not None, "launch the process first"
        return self._server.wait_for("tally is ready", timeout_s)

    def kill(self) -> None:
        """kill -9; nothing happens when it does not run."""
        server, self._server = self._server, None
        self.paused = False
        if server is not None:
            server.kill()

    def stop(self) -> None:
        """In order; nothing happens when it does not run. ProcessError: its exit status was not 0."""
        self.resume()
        server, self._server = self._server, None
        if server is not None and (status := server.stop(_STOP_S)) != 0:
            raise ProcessError(f"{self.name} ended with status {status}, see {self.log}")

    def pause(self) -> None:
        """SIGSTOP."""
        assert self._server is not None
        self._server.process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """SIGCONT; nothing happens when it was not paused."""
        if self.paused and self._server is not None:
            self._server.process.send_signal(signal.SIGCONT)
        self.paused = False

    def empty(self) -> None:
        """Its disk is a new one. The folder stays: a file system may be mounted there."""
        assert self._server is None, "kill the process first"
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def status(self) -> Status:
        """AdminError: it does not answer, or not so."""
        return Status.parse(self._ask("GET", "/group", _ANSWER_S))

    def transfer(self, target: int | None = None) -> None:
        """Hands leadership over; returns when that is done. AdminError: it was not."""
        body = {} if target is None else {"target": target}
        self._ask("POST", "/group/transfer", _CHANGE_S, json.dumps(body).encode())

    def admit(self, member: int, role: str) -> dict[str, Any]:
        """Asks this member to let another one in. AdminError: it said no."""
        return self._ask("POST", "/group/members", _CHANGE_S, json.dumps({"member": member, "role": role}).encode())

    def remove(self, member: int) -> dict[str, Any]:
        """Asks this member to take one out, itself perhaps. AdminError: it said no."""
        return self._ask("DELETE", f"/group/members/{member}", _CHANGE_S)

    def _ask(self, method: str, path: str, timeout_s: float, body: bytes | None = None) -> dict[str, Any]:
        url = f"http://{HOST}:{self.http_port}{path}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, data=body, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                found: dict[str, Any] = json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise AdminError(
                f"{self.name} {path}: {error.code} {error.read().decode(errors='replace')[:300]}"
            ) from None
        except (OSError, ValueError) as error:
            raise AdminError(f"{self.name} {path}: {error}") from None
        return found


class Group:
    """All of it. `settings` are every member's; the folder has a folder for each of `places`, who may be members. The
    group is made of the first `founders` of them, of all by default."""

    def __init__(self, folder: Path, settings: Iterable[str] = (), *, places: int = 3, founders: int = 0) -> None:
        assert 0 <= founders <= places <= _MOST_MEMBERS
        self.folder = folder
        self.settings = tuple(settings)
        self.founders = frozenset(range(founders or places))
        self.belong = set(self.founders)
        """The numbers of those who should be members now."""
        first = free_block(_PORTS)
        self._nameserver_port = first
        self._nameserver: Server | None = None
        self._over = False
        self.members = [Member(self, number, folder / f"n{number}", first) for number in range(places)]
        for member in self.members:
            member.folder.mkdir(parents=True, exist_ok=True)

    @property
    def nameserver(self) -> str:
        return f"{HOST}:{self._nameserver_port}"

    @property
    def belonging(self) -> list[Member]:
        """Those who should be members now."""
        return [member for member in self.members if member.number in self.belong]

    def settings_of(self, member: Member) -> list[str]:
        """What makes it this member of this group."""
        peers = ";".join(f"{other.name}-{HOST}:{other.raft_port}" for other in self.members)
        return [
            f"brokerName={BROKER_NAME}",
            f"bindAddress={HOST}",
            "enableDLegerCommitLog=true",
            f"dLegerGroup={BROKER_NAME}",
            f"dLegerPeers={peers}",
            f"dLegerSelfId={member.name}",
            f"groupBootstrapMembers={';'.join(f'n{number}' for number in sorted(self.founders))}",
        ]

    def start(self, timeout_s: float = 60) -> Member:
        """All of it; the leader. ProcessError: it did not come up in time."""
        if not TALLY.exists():
            raise ProcessError(f"{TALLY} is not built: make build")
        if self._nameserver is None:
            command = [str(TALLY), "nameserver", "--host", HOST, "--port", str(self._nameserver_port)]
            command += ["--http-port", "-1"]
            for setting in self.settings:
                if setting.startswith(("tls.", "aclEnable=", "aclFile=")):
                    command += ["--set", setting]
            self._nameserver = Server(command, self.folder / "nameserver.log", clean_environment())
            self._nameserver.wait_for("tally is ready", timeout_s)
        for member in self.belonging:
            if not member.alive:
                member.launch()
        self.wait(self.is_whole, timeout_s, "the group is complete")
        leader = self.leader()
        assert leader is not None, "a complete group has a leader"
        return leader

    def statuses(self) -> dict[int, Status]:
        """Of those that answer."""
        found = {}
        for member in self.members:
            if member.alive and not member.paused:
                try:
                    found[member.number] = member.status()
                except AdminError:
                    continue  # it is starting, or on its way out
        return found

    def leader(self) -> Member | None:
        """Who says that it leads and is ready, in the newest term of those that answer."""
        leading = [status for status in self.statuses().values() if status.role == "leader" and status.ready]
        newest = max(leading, key=lambda status: status.term, default=None)
        return None if newest is None else self.members[newest.member]

    def is_whole(self, within: int = 2000) -> str | None:
        """None: one leader, every member a voter of its term that lacks at most so many entries. Else what is amiss."""
        statuses = {number: status for number, status in self.statuses().items() if number in self.belong}
        if missing := [member.name for member in self.belonging if member.number not in statuses]:
            return f"{', '.join(missing)} do not answer"
        leading = [status for status in statuses.values() if status.role == "leader" and status.ready]
        if len(leading) != 1:
            return f"{len(leading)} ready leaders"
        leader = leading[0]
        if leader.voters != tuple(sorted(self.belong)) or leader.learners:
            return f"voters {leader.voters}, learners {leader.learners}"
        for status in statuses.values():
            if status.term != leader.term or status.leader != leader.member:
                return f"n{status.member} is in term {status.term} of {status.leader}, the leader in {leader.term}"
            if status.doubt not in ("", "none", "false"):
                return f"n{status.member} may have lost data: {status.doubt}"
            if status.disk != "ok":
                return f"the disk of n{status.member} is {status.disk}"
            if leader.commit_index - status.applied_index > within:
                return f"n{status.member} is at {status.applied_index} of {leader.commit_index}"
        return None

    def is_at_rest(self) -> str | None:
        """None: whole, and every member has applied all there is. Else what is amiss."""
        statuses = self.statuses()
        here = [status for number, status in statuses.items() if number in self.belong]
        ends = {status.last_index for status in here} | {status.applied_index for status in here}
        return self.is_whole() or (f"entries end at {sorted(ends)}" if len(ends) > 1 else None)

    def wait(self, condition: Callable[[], str | None], timeout_s: float, what: str) -> float:
        """Until `condition` finds nothing amiss; how long it took. ProcessError: too long, or a member ended."""
        begin = time.monotonic()
        while (amiss := condition()) is not None:
            self.look_at_processes()
            if self._over:
                raise ProcessError(f"timed out waiting: {what}")
            if time.monotonic() - begin > timeout_s:
                raise ProcessError(f"timed out after {timeout_s:g} s: {what}: {amiss}; see {self.folder}")
            time.sleep(_LOOK_S)
        return time.monotonic() - begin

    def look_at_processes(self) -> None:
        """ProcessError: a process ended that was not stopped."""
        for member in self.members:
            if member.ended:
                raise ProcessError(f"{member.name} ended unexpectedly, see {member.log}")

    def stop(self) -> None:
        """All members in order, at the same time, then the name server. ProcessError: a status was not 0."""
        problems = []
        with ThreadPoolExecutor(len(self.members)) as pool:
            stopping = [pool.submit(member.stop) for member in self.members]
        for done in stopping:
            if isinstance(error := done.exception(), ProcessError):
                problems.append(str(error))
        self.stop_nameserver()
        if problems:
            raise ProcessError("; ".join(problems))

    def stop_nameserver(self) -> None:
        if self._nameserver is not None:
            self._nameserver.stop()
            self._nameserver = None

    def kill(self) -> None:
        """Whatever runs, for good; for `finally` blocks. Threads that wait for something give up."""
        self._over = True
        for member in self.members:
            member.kill()
        if self._nameserver is not None:
            self._nameserver.kill()
            self._nameserver = None


class Mover:
    """Moves leadership to the next member, again and again, while the context lasts; `moves` and `failures` count."""

    def __init__(self, group: Group, every_s: float) -> None:
        self._group, self._every_s = group, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mover")
        self.moves = 0
        self.failures: list[str] = []

    def __enter__(self) -> Mover:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            leader = self._group.leader()
            if leader is None:
                self.failures.append("no member leads")
                continue
            try:
                leader.transfer((leader.number + 1) % len(self._group.members))
                self.moves += 1
            except AdminError as error:
                self.failures.append(str(error))
