"""Members of one ordered group: three Python consumers and a Java client. Each notes what it processes, and when."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from lab.peer import Peer
from lab.processes import ProcessError, Server

from client_suite.systems import System
from tallystick.client import Client, Delivery, Event, Start


class Seen(NamedTuple):
    """One processing of a message. `body` is `key:number`."""

    at_ms: int
    member: str
    queue: int
    offset: int
    body: str


class PythonMember:
    """A client with one ordered consumer."""

    def __init__(self, name: str, system: System, group: str, topic: str, strategy: str) -> None:
        self.name = name
        self.seen: list[Seen] = []
        self.events: list[Event] = []
        self._client = Client(system.nameserver, on_event=self.events.append, **system.access.client())
        self._where = group, topic, strategy
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self.queues: list[int] = []

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.is_set():
            ready.cancel()
            await self._task

    async def stop(self) -> None:
        """Leaves the group in order."""
        if self._task is not None and not self._task.done():
            await self._consumer.close()
            await self._task

    async def _run(self) -> None:
        group, topic, strategy = self._where
        async with self._client as client:
            self._consumer = client.consumer(
                group,
                topic,
                start=Start.FIRST,
                ordered=True,
                strategy=strategy,  # type: ignore[arg-type]
            )
            async with self._consumer as consumer:
                self._ready.set()
                async for message in consumer:
                    async with message.process(reraise=True):
                        self._note(message)
                        await asyncio.sleep(0)  # other messages and events come between
                    self.queues = [queue.id for queue in consumer.queues]

    def _note(self, message: Delivery) -> None:
        now_ms = time.time_ns() // 1_000_000
        self.seen.append(Seen(now_ms, self.name, message.queue_id, message.offset, message.body.decode()))


class JavaMember:
    """A process with RocketMQ's push consumer."""

    name = "java"

    def __init__(self, peer: Peer, nameserver: str, group: str, topic: str, strategy: str) -> None:
        source = Path(__file__).with_name("JavaMember.java")
        self._log = peer.work / "java-member.log"
        self._server = Server(peer.client_command(source, nameserver, group, topic, strategy), self._log)
        self._server.wait_for("started", 120)

    @property
    def seen(self) -> list[Seen]:
        found = []
        for line in self._log.read_text().splitlines():
            parts = line.split(" ")
            if len(parts) == 4 and parts[0].isdecimal() and ":" in parts[3]:
                found.append(Seen(int(parts[0]), self.name, int(parts[1]), int(parts[2]), parts[3]))
        return found

    def stop(self) -> None:
        self._server.kill()


def complaints(seen: list[Seen], acknowledged: set[str]) -> list[str]:
    """What is wrong: acknowledged messages that no member processed, offsets that were left out, and messages that were
    processed for the first time before the message that precedes them in the queue.

    After a failure messages can be processed again. A queue is then read again from an earlier offset, so its messages
    still come for the first time in their order.
    """
    found = [f"{body} was acknowledged and never processed" for body in sorted(acknowledged - {s.body for s in seen})]
    first: dict[tuple[int, int], Seen] = {}
    for each in sorted(seen):
        first.setdefault((each.queue, each.offset), each)
    by_queue: dict[int, list[Seen]] = defaultdict(list)
    for (queue, _), each in sorted(first.items()):
        by_queue[queue].append(each)
    for queue, each_queue in by_queue.items():
        for before, after in itertools.pairwise(each_queue):
            if after.offset != before.offset + 1:
                found.append(f"queue {queue}: offsets {before.offset + 1} to {after.offset - 1} were never processed")
            if after.at_ms < before.at_ms:
                found.append(f"queue {queue}: {after} came before {before}")
    return found


async def everything_is_processed(members: list[PythonMember | JavaMember], bodies: set[str], timeout_s: float) -> None:
    """ProcessError: it takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while missing := bodies - {each.body for member in members for each in member.seen}:
        if time.monotonic() > deadline_s:
            raise ProcessError(
                f"{len(missing)} messages were not processed within {timeout_s:g} s: {sorted(missing)[:5]}"
            )
        await asyncio.sleep(0.1)
