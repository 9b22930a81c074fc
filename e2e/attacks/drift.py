"""A wall clock that drifts: ten percent too fast, then ten percent too slow, while messages wait.

That is thousands of times more than NTP allows, so that a run of a minute shows what a year would. Required: delayed
messages come once each, after their delay by the drifting clock and a second or two; store timestamps never go back
while the clock does not; a lock keeps its owner; after `kill -9` all acknowledged messages are at their offsets.
"""

from __future__ import annotations

import asyncio
import time

from attacks.arena import Arena, until
from attacks.clock_clients import DELAY_S, HELD_TOPIC, LATER_TOPIC, TOPIC, Arrivals, ClockClients
from attacks.clock_shim import WallClock
from attacks.traffic import Acknowledged, Pipe, records, send_command
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient

_RATES = {"10 % fast": 0.1, "10 % slow": -0.1}
_SECONDS = 30.0
_LATE_S = 3.0


async def run(arena: Arena) -> None:
    clock = WallClock(arena.work / "shim")
    tally = Tally(arena.work / "plain", ("mappedFileSizeCommitLog=1048576", "mappedFileSizeConsumeQueue=6000"))
    tally.env = clock.env
    clock.set(0)
    sent = Acknowledged()
    drifting: asyncio.Task[None] | None = None
    tally.start()
    clients, arrivals = ClockClients(tally.broker), Arrivals(tally.broker)
    watching: asyncio.Task[None] | None = None
    try:
        async with ClusterClient("", timeout_s=30) as client:
            for topic in (TOPIC, HELD_TOPIC, LATER_TOPIC):
                await client.create_topic(tally.broker, topic, 1)
        watching = asyncio.create_task(arrivals.watch())
        for name, rate in _RATES.items():
            drifting = asyncio.create_task(_drift(clock, rate))
            await _under(arena, tally, clients, arrivals, sent, name, rate)
            drifting.cancel()
        times = await _timestamps(tally)
        arena.check(times == sorted(times), "store timestamps went back although the clock did not")
        arena.figure("messages acknowledged under drift; delayed ones", [len(sent.at), len(arrivals.came)])
        arena.check(not sent.refused, f"sends were refused: {sent.refused}")
        again = [name for name, came in arrivals.came.items() if len(came) > 1]
        arena.check(not again, f"{len(again)} delayed messages were delivered more than once")
        tally.kill()
        tally.start()
        for wrong in await sent.missing(tally.broker):
            arena.check(False, wrong)
    finally:
        for task in (drifting, watching):
            if task is not None:
                task.cancel()
        await clients.close()
        tally.kill()


async def _drift(clock: WallClock, rate: float) -> None:
    begin_s, offset_s = time.monotonic(), clock.offset_s
    while True:
        clock.set(offset_s + rate * (time.monotonic() - begin_s))
        await asyncio.sleep(0.01)


async def _under(
    arena: Arena,
    tally: Tally,
    clients: ClockClients,
    arrivals: Arrivals,
    sent: Acknowledged,
    name: str,
    rate: float,
) -> None:
    asked: dict[str, float] = {}
    locked = list(_RATES).index(name)  # a separate queue: the previous lock lasts longer than this
    arena.check(await clients.lock(name, locked), f"{name}: a free lock was not granted")
    end_s = time.monotonic() + max(5.0, _SECONDS * min(1.0, arena.scale))
    while time.monotonic() < end_s:
        label = f"{name} {len(asked)}"
        asked[label] = time.monotonic()
        await clients.later(label)
        names = [f"{label}.{number}" for number in range(100)]
        pipe = Pipe(tally.broker, lambda key, answer: sent.note(TOPIC, 0, key, answer))
        await pipe.run((key, send_command(TOPIC, 0, f"{key}|".encode())) for key in names)
        await asyncio.sleep(0.2)
    arena.check(not await clients.lock(f"{name}, another", locked), f"{name}: the lock was granted to another owner")
    await until(lambda: all(label in arrivals.came for label in asked), DELAY_S * 2 + 30)
    waited = [arrivals.came[label][0] - begin_s for label, begin_s in asked.items() if label in arrivals.came]
    arena.check(len(waited) == len(asked), f"{name}: {len(asked) - len(waited)} delayed messages were not delivered")
    due_s = DELAY_S / (1 + rate)
    arena.check(
        min(waited) > due_s - 0.2, f"{name}: a message was delivered after {min(waited):.2f} s, due after {due_s:.2f}"
    )
    arena.check(max(waited) < due_s + _LATE_S, f"{name}: a message was delivered after {max(waited):.2f} s")
    arena.figure(f"{name}: delayed by {DELAY_S:g} s; least and most seconds", [
        len(waited), round(min(waited), 2), round(max(waited), 2),
    ])  # fmt: skip


async def _timestamps(tally: Tally) -> list[int]:
    async with ClusterClient("", timeout_s=30) as client:
        found = records(client, tally.broker, TOPIC, 0)
        return [item.store_timestamp_ms async for item in found if not isinstance(item, int)]
