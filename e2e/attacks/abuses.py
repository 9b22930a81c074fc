"""Abuses: what a stranger can do to a server without breaking a rule of TCP, one after the other, each on a new server.

Beside each of them one client sends a message and pulls it, again and again. Windows with and without the abuse take
turns, so that what else the machine does affects both. The abuser is a process of the lowest priority: it takes the
processor time that the server and the client leave, as if it ran on another machine.

Required: no request of the client fails, and each acknowledged message is there; private memory grows by less than the
abuse's limit, and connections are closed afterwards; the log grows by less than `_LOG_KIB` and has no traceback; the
process serves to its end. Reported: p99 of the client's requests without and with the abuse (the median of windows),
their ratio, memory, and what the abuser got.

The variable ABUSES selects some: cut-handshakes,locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from attacks.abuse_list import ABUSES, Listed, Place
from attacks.abuser import Target, trusting
from attacks.arena import Arena, ask, private_mib, until
from lab.group import BROKER_NAME, Group
from lab.tally import Tally
from lab.tls import Certificates

from tallystick.node.access.signatures import sign
from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError

_TOPIC = "neighbour"
_ROUNDS, _WINDOW_S = 5, 1.5
_PAUSE_S = 0.004
_LOG_KIB = 64
_ACCOUNTS = """accounts:
- {accessKey: neighbour, secretKey: neighbour-secret, admin: true}
- {accessKey: abuser-account, secretKey: abuser-secret, topicPerms: [neighbour=PUB|SUB]}
"""
_FILLED = 2000
_SMALL_FILES = ("mappedFileSizeCommitLog=67108864", "maxHashSlotNum=500000", "maxIndexNum=2000000")
"""All other settings have their defaults."""


@dataclass(slots=True)
class Measured:
    """The client's requests in ms, of each window; `failed`: texts of errors."""

    without: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    peak_mib: float = 0.0
    got: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Server:
    """What is abused. `pids` are the processes whose memory counts, `logs` their logs."""

    target: Target
    client: ClusterClient
    queue: QueueAddress
    pids: list[int]
    logs: list[Path]
    http_port: int

    def mib(self) -> float:
        """Private memory of all processes."""
        return sum(private_mib(pid) for pid in self.pids)

    def sockets(self) -> int:
        """Open sockets of all processes."""
        found = 0
        for pid in self.pids:
            for path in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):  # closed in the meantime
                    found += path.readlink().name.startswith("socket:")
        return found

    def log_text(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self.logs)


async def run(arena: Arena) -> None:
    """Each abuse, and a table of all."""
    wanted = (os.environ.get("ABUSES") or ",".join(ABUSES)).split(",")
    rows = []
    for name in wanted:
        rows.append(await _one(arena, name, ABUSES[name]))
    path = arena.work.parent / "abuses.md"
    path.write_text("\n".join(_table(rows)) + "\n")
    arena.say(f"the table is in {path}")


async def _one(arena: Arena, name: str, abuse: Listed) -> dict[str, Any]:
    problems = arena.problems.count
    async with _PLACES[abuse.place](arena.work / name) as server:
        await _fill(server)
        begin_mib, sockets, log_bytes = server.mib(), server.sockets(), len(server.log_text())
        measured = await _measure(arena, name, server)
        arena.check(not measured.failed, f"{name}: requests of the client failed: {dict(measured.failed)}")
        grown = measured.peak_mib - begin_mib
        arena.check(
            grown < abuse.memory_mib, f"{name}: {grown:.0f} MiB more private memory, limit {abuse.memory_mib:g}"
        )
        free = await until(lambda: server.sockets() <= sockets + 8, 60, 0.5)
        arena.check(free is not None, f"{name}: {server.sockets()} connections are open, {sockets} before")
        _, high = await server.client.offset_range(server.queue)
        arena.check(high == measured.sent + _FILLED, f"{name}: {measured.sent} acknowledged, the queue ends at {high}")
        health = (await asyncio.to_thread(ask, server.http_port, "/healthz"))[0]
        arena.check(health == 200, f"{name}: /healthz answers {health}")
        text = server.log_text()
        arena.check("Traceback" not in text, f"{name}: a traceback in {server.logs}")
        more_kib = (len(text) - log_bytes) / 1024
        arena.check(more_kib < _LOG_KIB, f"{name}: the log grew by {more_kib:.0f} KiB")
    if arena.problems.count == problems:
        shutil.rmtree(arena.work / name)
    before, during = statistics.median(measured.without), statistics.median(measured.beside)
    row = {
        "abuse": abuse.text, "place": abuse.place.value, "before_ms": round(before, 2), "during_ms": round(during, 2),
        "ratio": round(during / before, 2), "mib": round(grown, 1), "log_kib": round(more_kib, 1),
        "got": dict(measured.got.most_common(4)),
    }  # fmt: skip
    arena.figure(f"{name}: p99 in ms before, during, ratio; MiB; KiB of log; got", [
        row["before_ms"], row["during_ms"], row["ratio"], row["mib"], row["log_kib"], row["got"],
    ])  # fmt: skip
    return row


def _table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| abuse | p99 without, with (ms) | ratio | memory (MiB) | what the abuser got |",
        "| --- | --- | --- | --- | --- |",
    ]
    for place in Place:
        for row in (row for row in rows if row["place"] == place.value):
            got = ", ".join(f"{count:,} {what}".replace(",", " ") for what, count in row["got"].items())
            times = f"{row['before_ms']:.1f}, {row['during_ms']:.1f}"
            lines.append(f"| {row['abuse']} | {times} | {row['ratio']:.1f} | {max(0.0, row['mib']):.0f} | {got} |")
    return lines


# -- the client that is measured ---------------------------------------------------------------------------------------


async def _fill(server: Server) -> None:
    """Messages with keys, which abuses search and pull."""
    limit = asyncio.Semaphore(64)

    async def one(number: int) -> None:
        async with limit:
            await server.client.send(server.queue, bytes(1000), key=f"k{number % 50}")

    await asyncio.gather(*(one(number) for number in range(_FILLED)))


async def _measure(arena: Arena, name: str, server: Server) -> Measured:
    """Windows without and with the abuse in turns."""
    measured = Measured()
    window_s = max(0.3, _WINDOW_S * min(1.0, arena.scale))
    for _ in range(max(2, round(_ROUNDS * min(1.0, arena.scale)))):
        measured.without.append(await _window(server, measured, window_s))
        abuser = await _start(name, server.target)
        watching = asyncio.create_task(_watch(server, measured))
        try:
            measured.beside.append(await _window(server, measured, window_s))
        finally:
            watching.cancel()
            measured.got.update(await _stop(abuser))
        await asyncio.sleep(0.1)
    return measured


async def _window(server: Server, measured: Measured, window_s: float) -> float:
    """p99 in ms of sends and pulls."""
    times: list[float] = []
    end_s = time.monotonic() + window_s
    offset = _FILLED + measured.sent
    while time.monotonic() < end_s:
        for step in ("send", "pull"):
            begin_s = time.perf_counter()
            try:
                if step == "send":
                    _, offset = await server.client.send(server.queue, b"beside|")
                    measured.sent += 1
                else:
                    found = await server.client.pull(server.queue, offset, group="neighbour", count=1)
                    if [record.queue_offset for record in found.records] != [offset]:
                        measured.failed["a pull without the message"] += 1
            except (RemotingError, OSError) as error:
                measured.failed[str(error)] += 1
            times.append((time.perf_counter() - begin_s) * 1000)
        await asyncio.sleep(_PAUSE_S)
    return statistics.quantiles(times, n=100)[98]


async def _watch(server: Server, measured: Measured) -> None:
    while True:
        measured.peak_mib = max(measured.peak_mib, server.mib())
        await asyncio.sleep(0.1)


async def _start(name: str, target: Target) -> asyncio.subprocess.Process:
    program = Path(__file__).with_name("abuser.py")
    abuser = await asyncio.create_subprocess_exec(
        sys.executable, str(program), name, json.dumps(asdict(target)), stdout=subprocess.PIPE, limit=1 << 20
    )
    assert abuser.stdout is not None
    async with asyncio.timeout(60):
        line = await abuser.stdout.readline()
    if line.strip() != b"ready":
        raise RuntimeError(f"the abuser {name} did not begin")
    return abuser


async def _stop(abuser: asyncio.subprocess.Process) -> dict[str, int]:
    with contextlib.suppress(ProcessLookupError):
        abuser.terminate()
    try:
        async with asyncio.timeout(30):
            output, _ = await abuser.communicate()
    except TimeoutError:
        abuser.kill()
        await abuser.wait()
        return {"the abuser did not end": 1}
    found: dict[str, int] = json.loads(output or b"{}")
    return found


# -- the servers -------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _open(folder: Path) -> AsyncIterator[Server]:
    async with _tally(Tally(folder, _SMALL_FILES), ClusterClient("", timeout_s=30)) as server:
        yield server


@contextlib.asynccontextmanager
async def _guarded(folder: Path) -> AsyncIterator[Server]:
    certificates = Certificates(folder / "tls")
    for name, text in (
        ("plain_acl.yml", _ACCOUNTS),
        ("tools.yml", "accessKey: neighbour\nsecretKey: neighbour-secret\n"),
        ("token", "a-token-of-the-lab\n"),
    ):
        (folder / name).write_text(text)
    settings = [
        *_SMALL_FILES, *certificates.server_settings(), "aclEnable=true", f"aclFile={folder / 'plain_acl.yml'}",
        f"aclCredentialsFile={folder / 'tools.yml'}", f"http.adminTokenFile={folder / 'token'}",
    ]  # fmt: skip

    def signed(command: Command) -> None:
        sign(command, "neighbour", "neighbour-secret")

    client = ClusterClient("", timeout_s=30, tls=trusting, sign=signed)
    async with _tally(Tally(folder, settings), client) as server:
        server.target = replace(server.target, tls=True, account=("abuser-account", "abuser-secret"))
        yield server


@contextlib.asynccontextmanager
async def _tally(tally: Tally, client: ClusterClient) -> AsyncIterator[Server]:
    try:
        await asyncio.to_thread(tally.start)
        async with client:
            await client.create_topic(tally.broker, _TOPIC, 1)
            await client.create_topic(tally.broker, "abused", 1)
            target = Target(tally.port, tally.nameserver_port, tally.http_port, _TOPIC, slaves=tally.port + 1)
            queue = QueueAddress(_TOPIC, "", tally.broker, 0)
            yield Server(target, client, queue, [tally.server.process.pid], [tally.log], tally.http_port)
        await asyncio.to_thread(tally.stop)
    finally:
        tally.kill()


@contextlib.asynccontextmanager
async def _group(folder: Path) -> AsyncIterator[Server]:
    group = Group(folder, _SMALL_FILES)
    try:
        leader = await asyncio.to_thread(group.start)
        term = leader.status().term
        async with ClusterClient("", timeout_s=30) as client:
            await client.create_topic(leader.address, _TOPIC, 1)
            follower = next(member for member in group.members if member is not leader)
            target = Target(
                leader.port, 0, leader.http_port, _TOPIC, member=leader.raft_port, leader=leader.number,
                follower=follower.number, group=BROKER_NAME,
            )  # fmt: skip
            pids, logs = [member.pid for member in group.members], [member.log for member in group.members]
            queue = QueueAddress(_TOPIC, "", leader.address, 0)
            yield Server(target, client, queue, pids, logs, leader.http_port)
        status = leader.status()
        if status.role != "leader" or status.term != term:
            raise RuntimeError(f"the leader changed: it is {status.role} of term {status.term}, and was in {term}")
        await asyncio.to_thread(group.stop)
    finally:
        group.kill()


_PLACES: dict[Place, Callable[[Path], contextlib.AbstractAsyncContextManager[Server]]] = {
    Place.open: _open,
    Place.guarded: _guarded,
    Place.group: _group,
}
