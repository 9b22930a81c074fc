"""A backlog of 10 GiB: a consumer that begins at offset 0 while producers continue, and `kill -9` in the middle.

`run_limited` does the same with 4.5 GiB, under a limit of memory that is far below the backlog: a cgroup where systemd
runs, otherwise limits of the process (`prlimit`): of its data, which is its private memory, and of its address space,
in which the backlog cannot be mapped as a whole. Also required: only the attack ends the broker.

The log is filled, the broker stopped, and the log's pages are dropped from the page cache, so that the first reads come
from the disk. Then one consumer per queue reads from 0, while a producer sends one message after the other to another
topic and others add to the backlog's topic. Half-way through the broker is killed and started again, and consumers
continue where they stopped.

Required: every acknowledged message is read at its offset, in order, with its own body; sends are answered all the
time. Measured: rates, times of sends alone, beside readers, and behind the kill, private memory, pages in the cache.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence

from attacks.arena import Arena, disk_bytes, metric, node, private_mib, resident_mib, until
from attacks.traffic import Pipe, send_command
from lab.load import batch_entry
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError
from tallystick.store.formats import properties

_BYTES, _LIMITED_BYTES = 10 << 30, 9 << 29
_CGROUP_MIB, _DATA_MIB, _SPACE_MIB = 256, 256, 2048
"""Limits: of a cgroup; of private writable memory; of the address space, including Python's libraries and stacks."""
_BODY, _BATCH, _QUEUES = 16 << 10, 16, 4
_TOPIC, _PROBED = "backlog", "probed"
_SETTINGS = ("mappedFileSizeCommitLog=268435456",)
_MORE = 0.05
"""The part of the backlog that is sent while it is read."""
_NUMBER = struct.Struct(">IQ")  # begins each body: queue and offset
_PAD = b"x" * (_BODY - _NUMBER.size)
_MOST_ERRORS = 100


class Backlog:
    """The acknowledged messages of each queue, and those that were read."""

    def __init__(self, arena: Arena, tally: Tally) -> None:
        self.arena, self.tally = arena, tally
        self.sent = [0] * _QUEUES
        self.acknowledged = [0] * _QUEUES
        self.read = [0] * _QUEUES
        self.done = asyncio.Event()
        """Sending has ended."""
        self.peak_mib = 0.0

    async def fill(self, total_bytes: int) -> None:
        """Sends in batches over one connection, while the broker runs: an unanswered batch has no known offset."""
        rounds = max(1, total_bytes // (_BATCH * _BODY))
        pipe = Pipe(self.tally.broker, self._note, window=8)
        await pipe.run(self._batches(rounds))
        self.arena.check(not pipe.broken or not self.tally.alive, f"a connection of the load broke: {pipe.broken}")

    def _batches(self, rounds: int) -> Iterator[tuple[str, Command]]:
        for number in range(rounds):
            queue_id = number % _QUEUES
            first = self.sent[queue_id]
            self.sent[queue_id] += _BATCH
            bodies = (_NUMBER.pack(queue_id, first + each) + _PAD for each in range(_BATCH))
            command = send_command(
                _TOPIC, queue_id, b"".join(batch_entry(b, {properties.WAIT: "true"}) for b in bodies)
            )
            command.code = RequestCode.SEND_BATCH_MESSAGE
            assert command.ext is not None
            command.ext["m"] = "true"
            yield f"{queue_id}.{first}", command

    def _note(self, name: str, answer: Command) -> None:
        queue_id, first = map(int, name.split("."))
        if not self.arena.check(answer.code == 0, f"a batch was refused: {answer.code} {answer.remark}"):
            return
        at = int((answer.ext or {})["queueOffset"].split(",")[0])
        self.arena.check(at == first, f"the batch {name} was acknowledged at offset {at}")
        self.acknowledged[queue_id] = max(self.acknowledged[queue_id], first + _BATCH)

    async def consume(self, queue_id: int) -> None:
        """Reads to the end of the acknowledged messages, across a kill."""
        queue = QueueAddress(_TOPIC, "", self.tally.broker, queue_id)
        errors = 0
        async with ClusterClient("", timeout_s=30) as client:
            while self.read[queue_id] < self.acknowledged[queue_id] or not self.done.is_set():
                try:
                    pulled = await client.pull(queue, self.read[queue_id], group="late", count=32, wait_s=1)
                except (RemotingError, OSError) as error:
                    errors += 1
                    if not self.arena.check(errors < _MOST_ERRORS, f"queue {queue_id} cannot be read: {error}"):
                        return
                    await asyncio.sleep(0.3)
                    continue
                for record in pulled.records:
                    at = self.read[queue_id]
                    right = record.queue_offset == at and record.body[:12] == _NUMBER.pack(queue_id, at)
                    if not self.arena.check(right, f"queue {queue_id} offset {at}: found {record.body[:12]!r}"):
                        return
                    self.read[queue_id] += 1
                if not pulled.records and pulled.next_offset > self.read[queue_id]:
                    self.arena.check(False, f"queue {queue_id}: gap: no message at {self.read[queue_id]}")
                    return

    async def watch(self) -> None:
        """Records the maximum of private memory."""
        while True:
            if self.tally.alive:
                self.peak_mib = max(self.peak_mib, private_mib(self.tally.server.process.pid))
            await asyncio.sleep(0.2)


async def run(arena: Arena) -> None:
    await _run(arena, arena.scaled(_BYTES, _BATCH * _BODY * 100), ())


async def run_limited(arena: Arena) -> None:
    limit: tuple[str, ...] = ("prlimit", f"--data={_DATA_MIB << 20}", f"--as={_SPACE_MIB << 20}", "--")
    scope = ("systemd-run", "--quiet", "--scope", "-p", f"MemoryMax={_CGROUP_MIB}M", "-p", "MemorySwapMax=0")
    if await asyncio.to_thread(_runs, scope):
        arena.figure("limit", f"a cgroup of {_CGROUP_MIB} MiB")
        limit = scope
    else:
        arena.figure("limit", f"no cgroup: {_DATA_MIB} MiB of data and {_SPACE_MIB} MiB of address space (prlimit)")
    await _run(arena, arena.scaled(_LIMITED_BYTES, _BATCH * _BODY * 100), limit)


def _runs(scope: Sequence[str]) -> bool:
    """Whether processes can be started with this command."""
    return bool(shutil.which(scope[0])) and subprocess.run([*scope, "true"], capture_output=True).returncode == 0


async def _run(arena: Arena, total: int, limit: Sequence[str]) -> None:
    """`limit`: a command that runs the broker."""
    tally = Tally(arena.work / "plain", _SETTINGS)
    tally.wrap = limit
    backlog = Backlog(arena, tally)
    tasks: list[asyncio.Task[None]] = []
    try:
        tally.start()
        async with ClusterClient("", timeout_s=30) as client:
            await client.create_topic(tally.broker, _TOPIC, _QUEUES)
            await client.create_topic(tally.broker, _PROBED, 1)
        tasks.append(asyncio.create_task(backlog.watch()))
        begin_s = time.monotonic()
        await backlog.fill(total)
        seconds = time.monotonic() - begin_s
        arena.figure("GiB of log", round(disk_bytes(tally.store / "commitlog") / 2**30, 2))
        arena.figure("MiB/s while the log was filled", round(total / 2**20 / seconds))
        tally.stop()
        _forget_pages(tally)
        tally.start()
        arena.figure("times of sends without readers", await _probe(tally, 5.0))
        await _read_all(arena, backlog, int(total * _MORE), tasks)
        arena.figure("MiB of private memory, at most", backlog.peak_mib)
        arena.figure("MiB resident with mapped files, at the end", resident_mib(tally.server.process.pid))
        arena.check(
            backlog.read == backlog.acknowledged,
            f"read {backlog.read} messages, {backlog.acknowledged} were acknowledged",
        )
        arena.figure("messages read", sum(backlog.read))
        arena.check(metric(tally, "rocketmq_storage_damaged_reads_total") == 0, "damaged reads were counted")
        arena.check(not node(tally)["findings"]["total"], f"findings: {node(tally)['findings']['newest']}")
        tally.stop()
        arena.check("Traceback" not in tally.log.read_text(), f"a traceback, see {tally.log}")
    finally:
        for task in tasks:
            task.cancel()
        tally.kill()


async def _read_all(arena: Arena, backlog: Backlog, more: int, tasks: list[asyncio.Task[None]]) -> None:
    """Consumers and a producer, with a kill when half of the backlog was read."""
    tally = backlog.tally
    half = sum(backlog.acknowledged) // 2
    readers = [asyncio.create_task(backlog.consume(number)) for number in range(_QUEUES)]
    tasks += readers
    begin_s = time.monotonic()
    probing = asyncio.create_task(_probe(tally, 3600))
    await backlog.fill(more)
    await until(lambda: sum(backlog.read) >= half or all(reader.done() for reader in readers), 1800)
    arena.check(tally.alive, "the broker ended while its messages were read")
    arena.figure("MiB/s read until the kill", round(half * _BODY / 2**20 / (time.monotonic() - begin_s)))
    tally.kill()
    arena.figure("times of sends beside readers", await probing)
    restarted_s = time.monotonic()
    tally.launch()
    await asyncio.to_thread(tally.wait_ready, 300)
    arena.figure("seconds of a start after kill -9", round(time.monotonic() - restarted_s, 2))
    backlog.done.set()
    probing = asyncio.create_task(_probe(tally, 3600, beside=readers))
    await asyncio.gather(*readers)
    arena.figure("times of sends beside readers, after the kill", await probing)
    arena.figure("seconds to read all", round(time.monotonic() - begin_s, 1))


async def _probe(tally: Tally, seconds: float, beside: list[asyncio.Task[None]] | None = None) -> str:
    """Sends one message after the other until the time is over, the broker has ended, or these tasks are done."""
    times: list[float] = []
    end_s = time.monotonic() + seconds
    async with ClusterClient("", timeout_s=60) as client:
        while time.monotonic() < end_s and not (beside and all(task.done() for task in beside)):
            begin_s = time.monotonic()
            try:
                await client.send(QueueAddress(_PROBED, "", tally.broker, 0), b"probe|" + _PAD[:1000])
            except (RemotingError, OSError):
                break
            times.append(time.monotonic() - begin_s)
            await asyncio.sleep(0.005)
    times.sort()
    parts = (
        [f"{times[min(len(times) - 1, int(len(times) * part))] * 1000:.1f}" for part in (0.5, 0.99, 1.0)]
        if times
        else []
    )
    return f"{len(times)}, ms: median, 99 %, most {', '.join(parts)}"


def _forget_pages(tally: Tally) -> None:
    """Drops the pages of the log from the page cache; no process has the files open."""
    for path in sorted((tally.store / "commitlog").iterdir()):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
