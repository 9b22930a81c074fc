"""Strangers at every port: unfinished frames at the VIP port and the external port, unfinished requests over HTTP,
unfinished TLS handshakes; and a name server that is stopped.

Required: private memory of the process stays below the memory budget and a margin, whichever port is used, and all
ports together; clients are served at the same time; memory of strangers is free again after they left or were cut. A
group keeps its leader and takes messages beside unfinished handshakes. While a name server is stopped (SIGSTOP),
producers and consumers continue with the routes that they have, and afterwards the broker is known again without a
restart.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

from attacks.arena import Arena, SkippedError, ask, metric, private_mib, until
from attacks.traffic import Acknowledged, Pipe, send_command
from lab.group import Group
from lab.places import HOST, TALLY, free_block
from lab.processes import Server
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson

_TOPIC = "strangers"
_BUDGET_MIB, _MARGIN_MIB = 128, 160
_FRAMES, _FRAME_MIB = 60, 8
_HTTP_LINKS = 700
_HTTP_CUT_S = 120.0
_STOPS_S = (10.0, 180.0)
_HANDSHAKES, _HANDSHAKES_OPEN, _HANDSHAKES_S = 50, 300, 15.0


async def run(arena: Arena) -> None:
    await _ports(arena)
    await _handshakes(arena)
    for seconds in _STOPS_S:
        await _stopped_nameserver(arena, max(3.0, seconds * min(1.0, arena.scale)))


async def _ports(arena: Arena) -> None:
    block = free_block()
    tally = Tally(
        arena.work / "ports",
        (f"connectionMemoryBytes={_BUDGET_MIB << 20}", f"externalListenPort={block}", "externalAddress=127.0.0.1:1"),
    )
    sent = Acknowledged()
    links: list[socket.socket] = []
    try:
        tally.start()
        pid = tally.server.process.pid
        async with ClusterClient("", timeout_s=30) as client:
            await client.create_topic(tally.broker, _TOPIC, 1)
        empty = private_mib(pid)
        arena.figure("MiB of private memory, empty", empty)
        ports = {"VIP port": tally.port - 2, "external port": block, "name server": tally.nameserver_port}
        for name, port in ports.items():
            links += await asyncio.to_thread(_unfinished_frames, port)
            await _look(arena, tally, sent, f"{_FRAMES} frames of {_FRAME_MIB} MiB at the {name}", empty)
        links += await asyncio.to_thread(_unfinished_heads, tally.http_port)
        await _look(arena, tally, sent, f"and {_HTTP_LINKS} unfinished heads over HTTP", empty)
        arena.figure(
            "connections closed because of the memory limit", metric(tally, "tally_connection_memory_cuts_total")
        )
        cut = await until(lambda: _descriptors(pid) < 300, _HTTP_CUT_S, 1)
        arena.figure("seconds until connections with unfinished requests were closed", cut and round(cut))
        for link in links:
            link.close()
        links.clear()
        free = await until(lambda: metric(tally, "tally_connection_memory_bytes") < 1 << 20, 30, 0.5)
        arena.check(free is not None, "memory is charged although the connections are closed")
        for wrong in await sent.missing(tally.broker):
            arena.check(False, wrong)
        tally.stop()
    finally:
        for link in links:
            link.close()
        tally.kill()


def _unfinished_frames(port: int) -> list[socket.socket]:
    """Connections that send all of a frame but its last byte."""
    links = []
    header = b'{"code":310,"flag":0,"language":"JAVA","opaque":1,"version":1}'
    size = _FRAME_MIB << 20
    head = struct.pack(">II", 4 + len(header) + size, len(header)) + header
    for _ in range(_FRAMES):
        link = socket.create_connection((HOST, port), 5)
        links.append(link)
        try:
            link.sendall(head + bytes(size - 1))
        except OSError:
            continue  # it was cut
    return links


def _unfinished_heads(port: int) -> list[socket.socket]:
    links = []
    for _ in range(_HTTP_LINKS):
        link = socket.create_connection((HOST, port), 5)
        links.append(link)
        try:
            link.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 4000)
        except OSError:
            continue
    return links


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def _look(arena: Arena, tally: Tally, sent: Acknowledged, what: str, empty_mib: float) -> None:
    """Clients are served, and memory is bounded."""
    names = [f"{len(sent.at)}.{number}" for number in range(200)]
    begin_s = time.monotonic()
    pipe = Pipe(tally.broker, lambda name, answer: sent.note(_TOPIC, 0, name, answer), window=20)
    await asyncio.wait_for(pipe.run((name, send_command(_TOPIC, 0, f"{name}|".encode())) for name in names), 60)
    arena.check(all(name in sent.at for name in names), f"{what}: sends failed: {pipe.broken} {sent.refused}")
    seconds = time.monotonic() - begin_s
    health = (await asyncio.to_thread(ask, tally.http_port, "/healthz"))[0]
    arena.check(health == 200, f"{what}: /healthz answers {health}")
    now = private_mib(tally.server.process.pid)
    arena.figure(f"{what}: MiB private; descriptors; seconds of 200 sends", [
        now, _descriptors(tally.server.process.pid), round(seconds, 2),
    ])  # fmt: skip
    arena.check(now < empty_mib + _BUDGET_MIB + _MARGIN_MIB, f"{what}: {now} MiB of private memory")


async def _handshakes(arena: Arena) -> None:
    """Strangers at a member's port with TLS: silent ones, begun handshakes, and rubbish; they come again when cut."""
    files = await asyncio.to_thread(_certificate, arena.work / "tls")
    group = Group(arena.work / "group", files)
    links: list[socket.socket] = []
    try:
        leader = await asyncio.to_thread(group.start)
        async with ClusterClient("", timeout_s=10) as client:
            await client.create_topic(leader.address, _TOPIC, 1)
            queue = QueueAddress(_TOPIC, "", leader.address, 0)
            empty, term, slowest_s, count, opened = private_mib(leader.pid), leader.status().term, 0.0, 0, 0
            end_s = time.monotonic() + _HANDSHAKES_S
            while time.monotonic() < end_s:
                links += await asyncio.to_thread(_begun_handshakes, leader.raft_port)
                opened += _HANDSHAKES
                begin_s = time.monotonic()
                await client.send(queue, b"beside|")
                count, slowest_s = count + 1, max(slowest_s, time.monotonic() - begin_s)
                while len(links) > _HANDSHAKES_OPEN:
                    links.pop(0).close()
            _, high = await client.offset_range(queue)
        arena.check(high == count, f"handshakes: {count} messages acknowledged, the queue ends at {high}")
        status = leader.status()
        arena.check(status.role == "leader" and status.term == term, "handshakes: the leader changed")
        now = private_mib(leader.pid)
        arena.check(now < empty + 64, f"handshakes: {now} MiB of private memory, {empty} before")
        arena.figure("unfinished handshakes at a leader; MiB before and after; slowest send in s", [
            opened, empty, now, round(slowest_s, 2),
        ])  # fmt: skip
        await asyncio.to_thread(group.stop)
    finally:
        for link in links:
            link.close()
        group.kill()


def _certificate(folder: Path) -> tuple[str, ...]:
    """Settings with one self-signed certificate for all members. SkippedError: there is no openssl."""
    folder.mkdir(parents=True)
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=member"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SkippedError(f"a certificate cannot be made: {error}") from error
    return f"groupTlsCa={certificate}", f"groupTlsCertificate={certificate}", f"groupTlsKey={key}"


def _begun_handshakes(port: int) -> list[socket.socket]:
    """Connections that are silent, that sent a part of a ClientHello, and that sent rubbish."""
    links = []
    for number in range(_HANDSHAKES):
        link = socket.create_connection((HOST, port), 5)
        links.append(link)
        # A record of a handshake with 512 bytes, of which a part comes; or no TLS at all.
        first = (b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20), b"GET / HTTP/1.1\r\n\r\n")[
            number % 3
        ]
        try:
            link.sendall(first)
        except OSError:
            continue
    return links


async def _stopped_nameserver(arena: Arena, seconds: float) -> None:
    """A name server in a separate process is stopped (SIGSTOP)."""
    what = f"SIGSTOP of the name server for {seconds:g} s"
    port = free_block()
    folder = arena.work / f"nameserver-{seconds:g}"
    command = [str(TALLY), "nameserver", "--host", HOST, "--port", str(port), "--http-port", "-1"]
    nameserver = Server(command, folder / "nameserver.log", dict(os.environ))
    broker: Server | None = None
    try:
        await asyncio.to_thread(nameserver.wait_for, "tally is ready", 60)
        broker, address = await asyncio.to_thread(_start_broker, folder, port)
        async with ClusterClient("", timeout_s=30) as client:
            await client.create_topic(address, _TOPIC, 1)
        await until(lambda: _known(port), 20)
        over = asyncio.Event()
        sending = asyncio.create_task(_produce(address, over))
        reading = asyncio.create_task(_consume(address, over))
        nameserver.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        async with ClusterClient("", timeout_s=60) as client:
            begin_s = time.monotonic()
            await client.send(QueueAddress("made-meanwhile", "", address, 0), b"made|")
            arena.figure(f"{what}: seconds of a send that creates a topic", round(time.monotonic() - begin_s, 2))
        nameserver.process.send_signal(signal.SIGCONT)
        known = await until(lambda: _known(port), 60)
        arena.check(known is not None, f"{what}: the name server does not know the broker afterwards")
        arena.figure(f"{what}: seconds until the name server knows the broker", known and round(known, 2))
        made = await until(lambda: _known(port, "made-meanwhile"), 60)
        arena.figure(
            f"{what}: seconds until the name server knows a topic created in the meantime", made and round(made, 2)
        )
        arena.check(made is not None, f"{what}: the name server does not know the topic created in the meantime")
        over.set()
        times, failed = await sending
        read = await reading
        arena.check(not failed, f"{what}: {failed} sends failed")
        arena.check(read == len(times), f"{what}: {len(times)} messages acknowledged, {read} consumed")
        arena.figure(f"{what}: sends, slowest in s", [len(times), round(max(times), 2)])
    finally:
        nameserver.process.send_signal(signal.SIGCONT)
        nameserver.kill()
        if broker is not None:
            broker.kill()


def _start_broker(folder: Path, nameserver_port: int) -> tuple[Server, str]:
    port = free_block() + 2
    command = [str(TALLY), "broker", "--dir", str(folder / "data"), "--host", HOST, "--port", str(port)]
    command += ["--http-port", "-1", "--nameserver", f"{HOST}:{nameserver_port}"]
    server = Server(command, folder / "broker.log", dict(os.environ))
    try:
        server.wait_for("tally is ready", 60)
    except BaseException:
        server.kill()
        raise
    return server, f"{HOST}:{port}"


async def _known(port: int, topic: str = _TOPIC) -> bool:
    try:
        async with ClusterClient(f"{HOST}:{port}", timeout_s=3) as client:
            answer = await client.ask_nameserver(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            return bool(fastjson.loads(answer.body)["brokerDatas"])
    except (RemotingError, OSError):
        return False


async def _produce(address: str, over: asyncio.Event) -> tuple[list[float], int]:
    times, failed = [], 0
    async with ClusterClient("", timeout_s=30) as client:
        while not over.is_set():
            begin_s = time.monotonic()
            try:
                await client.send(QueueAddress(_TOPIC, "", address, 0), b"message|")
                times.append(time.monotonic() - begin_s)
            except (RemotingError, OSError):
                failed += 1
            await asyncio.sleep(0.01)
    return times, failed


async def _consume(address: str, over: asyncio.Event) -> int:
    """The number of delivered messages, until the producer is done and no more arrive."""
    read = 0
    async with ClusterClient("", timeout_s=30) as client:
        while True:
            done = over.is_set()
            pulled = await client.pull(QueueAddress(_TOPIC, "", address, 0), read, group="reader", wait_s=1)
            read += len(pulled.records)
            if done and not pulled.records:
                return read
