"""Too few file descriptors, too little memory, and stopped processes.

Required: a broker that cannot open more files or get more memory refuses, says why, and keeps what it acknowledged; it
serves again when there is room. SIGSTOP of a broker and of a name server for a minute loses nothing, and clients are
served afterwards without a restart.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import time

from attacks.arena import Arena, ask, private_mib, until
from attacks.folders import SETTINGS
from attacks.traffic import Acknowledged, Pipe, send_command
from lab.places import HOST
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson

_FILES = 128
_PAUSE_S = 60.0
_HEADROOM = 192 << 20


async def run(arena: Arena) -> None:
    await _files(arena)
    await _memory(arena)
    await _pause(arena)


async def _send(tally: Tally, sent: Acknowledged, topic: str, label: str, count: int, size: int = 100) -> str:
    names = [f"{label}.{number}" for number in range(count)]
    pipe = Pipe(tally.broker, lambda name, answer: sent.note(topic, 0, name, answer), window=50)
    requests = ((n, send_command(topic, 0, f"{n}|".encode().ljust(size, b"x"))) for n in names)
    await asyncio.wait_for(pipe.run(requests), 120)
    return pipe.broken


async def _files(arena: Arena) -> None:
    """All descriptors taken by connections, while segments and queues want more."""
    tally = Tally(arena.work / "files", SETTINGS)
    tally.wrap = ("prlimit", f"--nofile={_FILES}:{_FILES}", "--")
    sent = Acknowledged()
    idle: list[socket.socket] = []
    try:
        tally.start()
        async with ClusterClient("", timeout_s=30) as client:
            await client.create_topic(tally.broker, "files", 1)
        await _send(tally, sent, "files", "before", 300)
        for _ in range(_FILES - 60):  # a few are left for connections, not for many files
            try:
                idle.append(socket.create_connection((HOST, tally.port), 1))
            except OSError:
                break
        await asyncio.sleep(1)
        before = len(sent.at)
        try:
            broken = await _send(tally, sent, "files", "full", 3000, 1000)
        except TimeoutError:
            broken = "no answer"
        arena.figure("no descriptors: acknowledged, refused, connection", [len(sent.at) - before, sent.refused, broken])
        arena.check(tally.alive, "no descriptors: the process ended")
        for each in idle:
            each.close()
        idle.clear()
        served = await until(lambda: _serves(tally), 30, 0.5)
        arena.check(served is not None, "no descriptors: the broker does not serve although connections were closed")
        await _send(tally, sent, "files", "after", 300)
        for wrong in await sent.missing(tally.broker):
            arena.check(False, f"no descriptors: {wrong}")
        lines = len(tally.server.said().splitlines())
        arena.figure("no descriptors: lines in the log", lines)
        arena.check(lines < 500, f"no descriptors: {lines} lines in the log")
        tally.stop()
    finally:
        for each in idle:
            each.close()
        tally.kill()


async def _serves(tally: Tally) -> bool:
    try:
        async with ClusterClient("", timeout_s=5) as client:
            await client.offset_range(QueueAddress("files", "", tally.broker, 0))
    except (RemotingError, OSError):
        return False
    return True


async def _memory(arena: Arena) -> None:
    """The address space is limited to a little more than is in use."""
    tally = Tally(arena.work / "memory", SETTINGS)
    sent = Acknowledged()
    try:
        tally.start()
        async with ClusterClient("", timeout_s=30) as client:
            await client.create_topic(tally.broker, "memory", 1)
        await _send(tally, sent, "memory", "before", 300)
        pid = tally.server.process.pid
        with open(f"/proc/{pid}/statm") as statm:  # noqa: ASYNC230, PTH123
            used = int(statm.read().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (used + _HEADROOM, resource.RLIM_INFINITY))
        begin_s = time.monotonic()
        pipes = [_send(tally, sent, "memory", f"big-{number}", 200, 700_000) for number in range(6)]
        outcomes = await asyncio.gather(*pipes, return_exceptions=True)
        arena.figure("no memory: connections that broke", sum(1 for each in outcomes if each))
        arena.figure(
            "no memory: acknowledged, refused, seconds",
            [len(sent.at), sent.refused, round(time.monotonic() - begin_s, 1)],
        )
        arena.figure("no memory: MiB private", private_mib(pid))
        alive = tally.alive
        arena.figure("no memory: the process", "runs" if alive else f"ended with {tally.server.process.returncode}")
        if alive:
            resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            arena.figure("no memory: /healthz afterwards", ask(tally.http_port, "/healthz"))
            broken = await _send(tally, sent, "memory", "after", 300)
            arena.figure("no memory: sends afterwards", broken or "acknowledged")
        tally.kill()
        tally.start()
        for wrong in await sent.missing(tally.broker):
            arena.check(False, f"no memory: {wrong}")
        tally.stop()
    finally:
        tally.kill()


async def _pause(arena: Arena) -> None:
    """SIGSTOP of broker and name server in one process, for a minute."""
    tally = Tally(arena.work / "pause", SETTINGS)
    sent = Acknowledged()
    try:
        tally.start()
        async with ClusterClient("", timeout_s=30) as client:
            await client.create_topic(tally.broker, "pause", 1)
        await _send(tally, sent, "pause", "before", 300)
        process = tally.server.process
        process.send_signal(signal.SIGSTOP)
        waiting = asyncio.create_task(_send(tally, sent, "pause", "meanwhile", 100))
        await asyncio.sleep(_PAUSE_S)
        arena.check(not waiting.done(), "a stopped process acknowledged a message")
        process.send_signal(signal.SIGCONT)
        begin_s = time.monotonic()
        broken = await asyncio.wait_for(waiting, 60)
        arena.figure(
            f"SIGSTOP for {_PAUSE_S:g} s: seconds until the waiting sends were answered",
            round(time.monotonic() - begin_s, 2),
        )
        arena.check(not broken, f"SIGSTOP: {broken}")
        arena.check(len(sent.at) == 400, f"SIGSTOP: {len(sent.at)} of 400 acknowledged: {sent.refused}")
        async with ClusterClient(tally.nameserver, timeout_s=10) as client:
            answer = await client.ask_nameserver(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "pause"})
            route = fastjson.loads(answer.body)
            arena.check(bool(route["brokerDatas"]), "SIGSTOP: the name server removed the broker")
        for wrong in await sent.missing(tally.broker):
            arena.check(False, f"SIGSTOP: {wrong}")
        tally.stop()
    finally:
        tally.kill()
