"""A cluster of RocketMQ 4.8.0 and a tallystick slave of its first master, which takes the master's place."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.ledger import Ledger, Problems
from lab.load import Shape, run_load
from lab.pair import NotReadyError, TallyBroker, log_end
from lab.peer import Peer
from lab.places import HOST, TALLY, free_block
from lab.processes import ProcessError

from tallystick.node.remoting.errors import RemotingError

MIX = Shape(connections=4, senders=8, rest_s=0.0, new_topics=0.0)
NAME = "broker-a"
CLUSTER = "PeerCluster"
_WAIT_S = 240.0


class TallySlave(TallyBroker):
    """A broker with brokerRole=SLAVE."""

    start_s = 240.0

    def __init__(self, folder: Path, nameserver: str, settings: tuple[str, ...], name: str = NAME) -> None:
        own = (f"brokerName={name}", f"brokerClusterName={CLUSTER}", "brokerRole=SLAVE", "brokerId=1")
        super().__init__(folder / f"slave-{name}", folder / f"slave-{name}.log", nameserver, (*own, *settings))

    def copy(self) -> dict[str, Any]:
        """`copy` of GET /node; empty if it does not answer."""
        try:
            return self.node()["copy"] or {}
        except OSError:
            return {}

    def promote(self, *options: str) -> dict[str, Any]:
        """`tally promote`. ProcessError: it was refused."""
        command = [str(TALLY), "promote", "--http", self.http, "--json", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        if done.returncode != 0:
            raise ProcessError(f"tally promote: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


class AdoptLab:
    """What the parts share: RocketMQ with two masters, the slave of the first one, and the ledger of its messages."""

    def __init__(
        self, work: Path, messages: int, seed: int, settings: tuple[str, ...], *, log_bytes: int = 4 << 20
    ) -> None:
        """`log_bytes`: of the masters' segments."""
        work.mkdir(parents=True)
        self.messages, self.seed = messages, seed
        self.problems, self.ledger = Problems(), Ledger()
        self.rng = random.Random(seed)
        self.peer = Peer(work / "peer")
        self.sizes = (f"mappedFileSizeCommitLog={log_bytes}", "mappedFileSizeConsumeQueue=60000")
        # On a machine that runs everything its threads are late, and each refusal would be a failed send.
        patient = ("waitTimeMillsInSendQueue=20000", "osPageCacheBusyTimeOutMills=20000")
        self.peer.up((*self.sizes, *patient, "registerNameServerPeriod=10000", *settings), mode="dual")
        own = ("maxHashSlotNum=5000", "maxIndexNum=20000", "fileReservedTime=720", "diskMaxUsedSpaceRatio=95")
        self.slave = TallySlave(work, self.peer.nameserver, (*self.sizes, *own))
        self.other = TallySlave(work, self.peer.nameserver, (*self.sizes, *own), "broker-b")
        self._began = time.monotonic()
        self._loads = 0

    @property
    def master(self) -> str:
        """The address of the first master."""
        return self.peer.broker

    @property
    def commitlog(self) -> Path:
        """The log of the first master."""
        return self.peer.store / "commitlog"

    def say(self, what: str) -> None:
        """A line of progress."""
        print(f"{time.monotonic() - self._began:6.1f} s  {what}", flush=True)

    def close(self) -> None:
        """Ends all processes."""
        self.slave.kill()
        self.other.kill()
        self.peer.down(kill=True)

    def slaves(self) -> list[TallyBroker]:
        """What takes the place of the masters."""
        return [self.slave, self.other]

    def migrate(self, action: str, *options: str) -> str:
        """`tally migrate` with the slaves of both masters; what it printed. ProcessError: it failed."""
        command = [str(TALLY), "migrate", action, "--from", self.peer.nameserver, *options]
        if action != "plan":
            command += [text for slave in self.slaves() for text in ("--slave", slave.http)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            raise ProcessError(f"tally migrate {action}: {done.stdout}{done.stderr}")
        return done.stdout

    async def load(self, until: int, broker: str, *, then: Callable[[], Any] | None = None) -> Any:
        """Sends until the ledger has so many acknowledged messages, then calls `then` on a thread while the load
        continues. Returns what `then` returned."""
        self._loads += 1
        stop, result = asyncio.Event(), None
        label = f"{self.seed}.{self._loads}"
        load = asyncio.create_task(run_load(broker, self.ledger, label, MIX, self.seed, stop))
        began, had = time.monotonic(), len(self.ledger.places)
        while len(self.ledger.places) < until and not load.done():  # noqa: ASYNC110  # the ledger has no event
            await asyncio.sleep(0.02)
        rate = (len(self.ledger.places) - had) / (time.monotonic() - began)
        self.say(f"{len(self.ledger.places)} messages acknowledged, {rate:.0f} a second")
        if then is not None:
            result = await asyncio.to_thread(then)
        stop.set()
        await load
        if len(self.ledger.places) < until:
            raise ProcessError(f"the load ended at {len(self.ledger.places)} of {until} messages")
        return result

    async def follows(self) -> dict[str, Any]:
        """Returns when the slave has the log and the tables of its master, as of now. ProcessError."""
        deadline = time.monotonic() + _WAIT_S
        copy: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                end = await log_end(self.master)
                copy = self.slave.copy()
                if copy.get("state") == "following" and copy["pos"] >= end and copy["tablesAgeMillis"] is not None:
                    return copy
            except (RemotingError, NotReadyError):
                pass
            await asyncio.sleep(0.2)
        raise ProcessError(f"the slave does not reach its master: {copy}")


class CuttingProxy:
    """Passes bytes on to `target`, and cuts `cuts` connections after a random number of bytes."""

    def __init__(self, target: int, cuts: int, rng: random.Random, most_bytes: int) -> None:
        self._target, self._rng, self._most_bytes = target, rng, most_bytes
        self.left = cuts
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """The port."""
        self._server = await asyncio.start_server(self._serve, HOST, free_block())
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Ends all connections."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(HOST, self._target)
        room = self._rng.randrange(self._most_bytes) if self.left > 0 else 1 << 62
        self.left -= 1
        pairs = ((reader, there[1], 1 << 62), (there[0], writer, room))
        tasks = [asyncio.ensure_future(self._pass(*pair)) for pair in pairs]
        self._tasks.update(tasks)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
            self._tasks.discard(task)
        for each in (writer, there[1]):
            each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, room: int) -> None:
        try:
            while room > 0 and (data := await reader.read(min(room, 65_536))):
                writer.write(data)
                await writer.drain()
                room -= len(data)
        except OSError:
            pass
