"""A million delayed messages on eighteen levels, with a stop, and kills while they are sent and delivered.

Required: each acknowledged message is delivered, not before its time, and once, except for messages that a kill may
repeat: those delivered since the offsets were last saved (`flushDelayOffsetInterval`). There are eighteen levels, as in
RocketMQ, with shorter times. Measured: their delay after the due time (by the store's clock), memory, the time of a
start after a kill.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

from attacks.arena import Arena, private_mib, until
from attacks.traffic import Pipe, ends, records, send_command
from lab.ledger import body_id
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient
from tallystick.node.remoting.command import Command
from tallystick.store.formats import properties

_COUNT = 1_000_000
_DELAYS_S = (1, 2, 3, 5, 8, 10, 12, 15, 18, 20, 25, 30, 35, 40, 50, 60, 80, 100)
_TOPIC, _QUEUES = "later", 4
_ATTEMPTS = 60  # a second between them
_SETTINGS = (
    f"messageDelayLevel={' '.join(f'{seconds}s' for seconds in _DELAYS_S)}",
    "mappedFileSizeCommitLog=268435456",
    "maxTransferCountOnMessageInMemory=1024",
    "maxTransferBytesOnMessageInMemory=4194304",
    "maxTransferCountOnMessageInDisk=1024",
    "maxTransferBytesOnMessageInDisk=4194304",
)


async def run(arena: Arena) -> None:
    tally = Tally(arena.work / "plain", _SETTINGS)
    count = arena.scaled(_COUNT)
    acknowledged: set[str] = set()
    try:
        tally.start()
        async with ClusterClient("", timeout_s=30) as client:
            await client.create_topic(tally.broker, _TOPIC, _QUEUES)
        peak = [0.0]
        watching = asyncio.create_task(_watch_memory(tally, peak))
        arena.figure("MiB of private memory, empty", private_mib(tally.server.process.pid))
        begin_s = time.monotonic()
        for part in range(3):
            sending = asyncio.create_task(_send(tally, part, count // 3, acknowledged))
            if part == 1:
                await asyncio.sleep(10 * min(1.0, arena.scale * 2))
                await _kill(arena, tally, "while messages were sent")
            await sending
            if part == 0:
                tally.stop()
                tally.start()
        seconds = time.monotonic() - begin_s
        arena.figure("acknowledged", len(acknowledged))
        arena.figure("acknowledged per second, while messages were delivered", round(len(acknowledged) / seconds))
        await _kill(arena, tally, "while messages were delivered")
        began_s = time.monotonic()
        rest = len(acknowledged)

        async def come() -> bool:
            return sum((await ends(tally.broker, _TOPIC, _QUEUES)).values()) >= rest

        await until(come, 900, 0.5)
        before = -1
        while (now := sum((await ends(tally.broker, _TOPIC, _QUEUES)).values())) != before:
            before = now
            await asyncio.sleep(12)
        arena.figure("seconds from the last kill until all were delivered", round(time.monotonic() - began_s - 12, 1))
        watching.cancel()
        arena.figure("MiB of private memory, at most", peak[0])
        await _check(arena, tally, acknowledged)
        tally.stop()
    finally:
        tally.kill()


async def _watch_memory(tally: Tally, peak: list[float]) -> None:
    while True:
        if tally.alive:
            peak[0] = max(peak[0], private_mib(tally.server.process.pid))
        await asyncio.sleep(0.5)


async def _send(tally: Tally, part: int, count: int, acknowledged: set[str]) -> None:
    """Sends until `count` messages of this part are acknowledged, over new connections if the broker is killed. No name
    is sent twice: a message that was not answered may be stored."""
    taken = 0

    def note(name: str, answer: Command) -> None:
        nonlocal taken
        if answer.code == 0:
            acknowledged.add(name)
            taken += 1

    def requests(attempt: int, wanted: int) -> Iterator[tuple[str, Command]]:
        for number in range(wanted):
            level = number % len(_DELAYS_S) + 1
            name = f"d{part}.{attempt}-{number}-{level}"
            pairs = {properties.DELAY: str(level), properties.UNIQ_KEY: name}
            yield name, send_command(_TOPIC, number % _QUEUES, f"{name}|".encode(), pairs)

    for attempt in range(_ATTEMPTS):
        await Pipe(tally.broker, note, window=2000).run(requests(attempt, count - taken))
        if taken >= count:
            return
        await asyncio.sleep(1)
    raise AssertionError(f"part {part}: {taken} of {count} messages were acknowledged")


async def _kill(arena: Arena, tally: Tally, when: str) -> None:
    tally.kill()
    begin_s = time.monotonic()
    tally.launch()
    await asyncio.to_thread(tally.wait_ready, 300)
    arena.figure(f"seconds of a start after kill -9 {when}", round(time.monotonic() - begin_s, 2))


async def _check(arena: Arena, tally: Tally, acknowledged: set[str]) -> None:
    times: Counter[str] = Counter()
    late_ms: list[int] = []
    early = 0
    async with ClusterClient("", timeout_s=60) as client:
        for queue_id in range(_QUEUES):
            async for record in records(client, tally.broker, _TOPIC, queue_id):
                if isinstance(record, int):
                    continue
                name = body_id(record.body)
                times[name] += 1
                # The client's time of the send is not later than the store's.
                late = (
                    record.store_timestamp_ms - record.born_timestamp_ms - 1000 * _DELAYS_S[int(name.split("-")[2]) - 1]
                )
                early += late < 0
                if times[name] == 1:
                    late_ms.append(late)
    missing = acknowledged - times.keys()
    arena.check(not missing, f"{len(missing)} acknowledged messages were never delivered: {sorted(missing)[:5]}")
    arena.check(not early, f"{early} messages were delivered too early")
    again = sum(count - 1 for count in times.values() if count > 1)
    arena.figure("delivered; delivered again after a kill", [len(times), again])
    arena.check(max(times.values()) <= 3, "a message was delivered more often than there were kills")
    late_ms.sort()
    parts = {part: late_ms[min(len(late_ms) - 1, int(len(late_ms) * part))] for part in (0.5, 0.9, 0.99, 1.0)}
    arena.figure("late, ms: median, 90 %, 99 %, most", list(parts.values()))
