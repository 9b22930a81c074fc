"""The wall clock of a running broker jumps: by hours and days, to 1970 and to 2100, and back.

Required at every jump, in both directions: nothing is deleted because of it; a lock keeps its owner for its time, and
no longer; clients stay known; held pulls are answered; the broker continues to sync derived files; delayed messages and
transactions that were not ended come within seconds of the time with a right clock, or earlier, never a jump later;
messages sent after a jump wait as long as required; after `kill -9` at any of these times all acknowledged messages
exist. In a group whose members disagree by a century nothing changes.
"""

from __future__ import annotations

import asyncio
import time

from attacks.arena import Arena, until
from attacks.clock_clients import DELAY_S, HELD_TOPIC, LATER_TOPIC, TOPIC, Arrivals, ClockClients
from attacks.clock_shim import WallClock
from attacks.traffic import Acknowledged, Pipe, read_queue, send_command
from lab.group import Group
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient

HOUR, DAY = 3600.0, 86400.0
SETTINGS = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=6000",
    "maxHashSlotNum=500",
    "maxIndexNum=3000",
    "cleanResourceInterval=500",
    f"deleteWhen={';'.join(f'{hour:02}' for hour in range(24))}",
    "flushConsumeQueueThoroughInterval=2000",
    "transactionTimeOut=2000",
    "transactionCheckInterval=3000",
)
_HOLD_S = 15.0
_SETTLE_S = 12.0  # clients and locks are checked every 10 s
_LATE_S = 20.0  # a worker checks every 10 s at least


def offsets() -> dict[str, float]:
    """Names of jumps, with seconds from the true time."""
    now_s = time.time()
    return {
        "+3 h": 3 * HOUR,
        "-3 h": -3 * HOUR,
        "+10 d": 10 * DAY,
        "-10 d": -10 * DAY,
        "2100": 4_102_444_800 - now_s,
        "1970": HOUR - now_s,
    }


async def run(arena: Arena) -> None:
    clock = WallClock(arena.work / "shim")
    await _jumps(arena, clock)
    await _kills(arena, clock)
    await _group(arena)


async def _send(broker: str, sent: Acknowledged, label: str, count: int, size: int = 100) -> None:
    """Sends this number of messages to both queues of the topic."""
    names = [f"{label}.{number}" for number in range(count)]
    queue_of = {name: number % 2 for number, name in enumerate(names)}
    pipe = Pipe(broker, lambda name, answer: sent.note(TOPIC, queue_of[name], name, answer))
    pad = b"x" * size
    await pipe.run((name, send_command(TOPIC, queue_of[name], f"{name}|".encode() + pad)) for name in names)


async def _create(broker: str) -> None:
    async with ClusterClient("", timeout_s=30) as client:
        for topic, queues in ((TOPIC, 2), (HELD_TOPIC, 1), (LATER_TOPIC, 1)):
            await client.create_topic(broker, topic, queues)


async def _jumps(arena: Arena, clock: WallClock) -> None:
    tally = Tally(arena.work / "plain", SETTINGS)
    tally.env = clock.env
    clock.set(0)
    tally.start()
    sent = Acknowledged()
    clients = ClockClients(tally.broker)
    arrivals = Arrivals(tally.broker)
    await _create(tally.broker)
    watching = asyncio.create_task(arrivals.watch())
    try:
        await _send(tally.broker, sent, "before", 5000, 1000)
        for name, offset_s in offsets().items():
            await _jump(arena, clock, tally, clients, arrivals, sent, name, offset_s)
            await _jump(arena, clock, tally, clients, arrivals, sent, f"{name} and back", 0.0)
        for wrong in await sent.missing(tally.broker):
            arena.check(False, wrong)
        arena.figure("messages acknowledged during the jumps", len(sent.at))
        arena.check(not sent.refused, f"sends were refused: {sent.refused}")
    finally:
        watching.cancel()
        await clients.close()
        tally.kill()


async def _jump(
    arena: Arena,
    clock: WallClock,
    tally: Tally,
    clients: ClockClients,
    arrivals: Arrivals,
    sent: Acknowledged,
    name: str,
    offset_s: float,
) -> None:
    await clients.heartbeat()
    owner = f"owner of {name}"
    queue_id = 1000 + len(arena.figures)  # a separate lock
    arena.check(await clients.lock(owner, queue_id), f"{name}: a free lock was not granted")
    held = asyncio.create_task(clients.held_pull(_HOLD_S))
    before, during = f"{name}, sent before", f"{name}, sent after"
    halves = f"half {name} before", f"half {name} after"
    await clients.later(before)
    await clients.half(halves[0])
    await asyncio.sleep(0.5)
    clock.set(offset_s)
    jumped_s = time.monotonic()
    await clients.later(during)
    await clients.half(halves[1])
    await _send(tally.broker, sent, name, 200)
    checkpoint = tally.store / "checkpoint"
    synced_ns = checkpoint.stat().st_mtime_ns
    await asyncio.sleep(1.5)
    arena.check(not await clients.lock("a thief", queue_id), f"{name}: the lock was granted to another client")
    await asyncio.sleep(max(0.0, jumped_s + _SETTLE_S - time.monotonic()))
    arena.check(await clients.is_known(), f"{name}: the broker no longer knows the client")
    arena.check(not await clients.lock("a thief", queue_id), f"{name}: the lock was given away after {_SETTLE_S:g} s")
    arena.check(checkpoint.stat().st_mtime_ns > synced_ns, f"{name}: derived files are no longer synced")
    async with ClusterClient("", timeout_s=30) as client:
        low, _ = await read_queue(client, tally.broker, TOPIC, 0)
    arena.check(low == 0, f"{name}: messages below {low} are DELETED")

    def all_came() -> bool:
        return all(key in arrivals.came for key in (before, during, *halves))

    await until(all_came, max(0.0, jumped_s + _LATE_S - time.monotonic()))
    for key in (before, during, *halves):
        arena.check(key in arrivals.came, f"{name}: {key!r} did not come within {_LATE_S:g} s of the jump")
    since_s = {key: arrivals.came[key][0] - jumped_s for key in (before, during) if key in arrivals.came}
    arena.figure(
        f"{name}: delayed by {DELAY_S:g} s, seconds after the jump [sent 0.5 s before, sent after]",
        [round(since_s[key], 1) if key in since_s else None for key in (before, during)],
    )
    waited_s = since_s.get(during, DELAY_S)
    arena.check(waited_s > DELAY_S - 0.5, f"{name}: {during!r} came {waited_s:.1f} s after it was sent")
    try:
        answered_s = await asyncio.wait_for(held, max(0.0, jumped_s + 2 * _LATE_S - time.monotonic()))
        arena.check(answered_s < _HOLD_S + 5, f"{name}: a pull was held for {answered_s:.1f} s")
    except TimeoutError:
        arena.check(False, f"{name}: a held pull was not answered")


async def _kills(arena: Arena, clock: WallClock) -> None:
    """kill -9 and restart, each time with another clock; with the mark of progress, and without it."""
    tally = Tally(arena.work / "kills", SETTINGS)
    tally.env = clock.env
    sent = Acknowledged()
    found = offsets()
    order = ["2100", "+3 h", "", "1970", "-10 d", "2100", "1970", ""]
    try:
        for number, name in enumerate(order):
            clock.set(found.get(name, 0.0))
            tally.start()
            if number == 0:
                await _create(tally.broker)
            for wrong in await sent.missing(tally.broker):
                arena.check(False, f"after kill {number}: {wrong}")
            await _send(tally.broker, sent, f"kill-{number}", 1500, 1000)
            clock.set(found.get(order[(number + 3) % len(order)], 0.0))
            await _send(tally.broker, sent, f"kill-{number}-b", 700, 1000)
            await asyncio.sleep(2.5 * (number % 2))  # with and without a checkpoint of this time
            tally.kill()
            if number % 3 == 2:
                (tally.store / "tally-progress").unlink(missing_ok=True)
        clock.set(0)
        tally.start()
        for wrong in await sent.missing(tally.broker):
            arena.check(False, f"at the end: {wrong}")
        tally.stop()
        await asyncio.to_thread(arena.check_store, tally.store, "at the end")
        arena.figure("messages acknowledged, with kills and changed clocks", len(sent.at))
    finally:
        tally.kill()


async def _group(arena: Arena) -> None:
    """Members whose clocks are a century apart, and jump."""
    group = Group(arena.work / "group", SETTINGS[:4])
    clocks = [WallClock(arena.work / f"shim-{member.number}") for member in group.members]
    for member, clock in zip(group.members, clocks, strict=True):
        member.env = clock.env
    found = offsets()
    sent = Acknowledged()
    try:
        leader = await asyncio.to_thread(group.start)
        await _create(leader.address)
        terms = {status.term for status in group.statuses().values()}
        for number, names in enumerate(
            [("2100", "1970", ""), ("", "2100", "1970"), ("1970", "", "2100"), ("", "", "")]
        ):
            for clock, name in zip(clocks, names, strict=True):
                clock.set(found.get(name, 0.0))
            await _send(leader.address, sent, f"group-{number}", 500)
            await asyncio.sleep(4)
            terms |= {status.term for status in group.statuses().values()}
        arena.check(len(terms) == 1, f"jumps of the clocks changed the term: {sorted(terms)}")
        clocks[0].set(found["2100"])
        clocks[1].set(found["1970"])
        for member in [*group.members, leader]:
            if group.leader() is not member:
                await asyncio.to_thread(leader.transfer, member.number)
                leader = member
                await asyncio.to_thread(group.wait, group.is_whole, 30, "the group is complete")
            await _send(leader.address, sent, f"led-by-{member.name}", 300)
        await asyncio.to_thread(group.wait, group.is_at_rest, 30, "all entries are applied")
        for member in group.members:
            for wrong in await sent.missing(member.address):
                arena.check(False, f"{member.name}: {wrong}")
        arena.check(not sent.refused, f"sends were refused: {sent.refused}")
        arena.figure("group: messages acknowledged, members' clocks a century apart", len(sent.at))
        await asyncio.to_thread(group.stop)
    finally:
        group.kill()
