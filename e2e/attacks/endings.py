"""Signals in a long recovery: SIGTERM, SIGINT, a second one, kill -9, and again.

The store's process was killed and its marks are removed, so that a start reads the whole log. Required: probes are
answered all the time (alive, not ready, `recovering`); SIGTERM and SIGINT end the process soon, with status 0; a second
signal ends it at once; after each kind of end, the next start begins the recovery again. After a complete recovery all
acknowledged messages are at their offsets, and the verifier finds no damage.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time

from attacks.arena import Arena, ask, disk_bytes, node, private_mib, until
from attacks.traffic import Acknowledged, Pipe, ends, fill, send_command
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient

TOPIC, QUEUES, NAMED_TOPIC = "long", 4, "named"
_BYTES = 2 << 30
_BODY_BYTES = 100  # the time of a recovery depends on the number of messages
_SOON_S = 5.0
_PROBE_S = 1.0


async def run(arena: Arena) -> None:
    tally = Tally(arena.work / "plain", ("mappedFileSizeCommitLog=268435456",))
    rng = random.Random(1)
    try:
        filled, named = await _prepare(arena, tally)
        for sent, within_s, status in (
            ((signal.SIGTERM,), _SOON_S, 0),
            ((signal.SIGINT,), _SOON_S, 0),
            ((signal.SIGTERM, signal.SIGTERM), 1.0, 130),
            ((signal.SIGINT, signal.SIGTERM), 1.0, 130),
        ):
            await _interrupt(arena, tally, sent, within_s, status, rng.uniform(0.1, 0.4))
        for _ in range(5):
            _lose_marks(tally)
            tally.launch()
            await asyncio.sleep(rng.uniform(0.3, 3.0))
            tally.kill()
        _lose_marks(tally)
        await _complete(arena, tally, filled, named)
    finally:
        tally.kill()


async def _prepare(arena: Arena, tally: Tally) -> tuple[dict[int, int], Acknowledged]:
    tally.start()
    async with ClusterClient("", timeout_s=30) as client:
        await client.create_topic(tally.broker, TOPIC, QUEUES)
        await client.create_topic(tally.broker, NAMED_TOPIC, 1)
    named = Acknowledged()
    pipe = Pipe(tally.broker, lambda name, answer: named.note(NAMED_TOPIC, 0, name, answer))
    begin_s = time.monotonic()
    filled = await fill(tally.broker, TOPIC, QUEUES, arena.scaled(_BYTES) // 3, _BODY_BYTES, keys=True)
    arena.figure("messages in the store", sum(filled.values()))
    arena.figure(
        "messages acknowledged per second while it was filled",
        round(sum(filled.values()) / (time.monotonic() - begin_s)),
    )
    arena.figure("MiB of log", round(disk_bytes(tally.store / "commitlog") / 2**20))
    names = [f"named-{number}" for number in range(2000)]
    await pipe.run((name, send_command(NAMED_TOPIC, 0, f"{name}|".encode())) for name in names)
    tally.kill()
    return filled, named


def _lose_marks(tally: Tally) -> None:
    for name in ("tally-progress", "checkpoint"):
        (tally.store / name).unlink(missing_ok=True)


def _read_part(tally: Tally) -> float:
    """The part of the log that a recovery has read; 0 if unknown."""
    recovery = node(tally).get("recovery") or {}
    total, done = recovery.get("totalBytes") or 0, recovery.get("doneBytes") or 0
    return float(done / total) if total else 0.0


async def _interrupt(
    arena: Arena, tally: Tally, signals: tuple[signal.Signals, ...], within_s: float, status: int, part: float
) -> None:
    what = " and ".join(each.name for each in signals)
    _lose_marks(tally)
    tally.launch()
    slowest_s, health, ready = 0.0, set(), set()

    async def probed() -> bool:
        nonlocal slowest_s
        begin_s = time.monotonic()
        found = [await asyncio.to_thread(ask, tally.http_port, path) for path in ("/healthz", "/readyz")]
        slowest_s = max(slowest_s, time.monotonic() - begin_s) if found[0][0] else slowest_s
        health.add(found[0][0])
        ready.add(found[1][0])
        return await asyncio.to_thread(_read_part, tally) >= part or not tally.alive

    await until(probed, 60, 0.02)
    phase = node(tally).get("phase")
    if not arena.check(phase == "recovering", f"{what}: the phase is {phase}, not a recovery"):
        tally.kill()
        return
    arena.check(
        health <= {0, 200} and ready <= {0, 503}, f"{what}: probes answered {health} and {ready} during recovery"
    )
    arena.check(slowest_s < _PROBE_S, f"{what}: probes took {slowest_s:.2f} s")
    begin_s = time.monotonic()
    process = tally.server.process
    for number, each in enumerate(signals):
        await asyncio.sleep(0.05 if number else 0)
        process.send_signal(each)
    ended_s = await until(lambda: process.poll() is not None, 60)
    arena.figure(f"{what} at {part:.0%} of a recovery: seconds to the exit", round(time.monotonic() - begin_s, 2))
    if arena.check(ended_s is not None and ended_s < within_s, f"{what}: the process ended after {ended_s} s"):
        # The first one may have been enough; and one that comes while Python ends is the default: it kills.
        allowed = {status} if status == 0 else {status, 0, -signals[-1]}
        arena.check(process.returncode in allowed, f"{what}: exit status {process.returncode} instead of {status}")
    arena.check("Traceback" not in tally.server.said(), f"{what}: a traceback, see {tally.log}")
    tally.kill()


async def _complete(arena: Arena, tally: Tally, filled: dict[int, int], named: Acknowledged) -> None:
    begin_s = time.monotonic()
    tally.launch()
    await asyncio.to_thread(tally.wait_ready, 600)
    arena.figure("seconds of a complete recovery without marks", round(time.monotonic() - begin_s, 1))
    arena.figure("MiB of private memory after it", private_mib(tally.server.process.pid))
    found = await ends(tally.broker, TOPIC, QUEUES)
    arena.check(found == filled, f"queues end at {found}, {filled} messages were acknowledged")
    for wrong in await named.missing(tally.broker):
        arena.check(False, wrong)
    tally.stop()
    await asyncio.to_thread(arena.check_store, tally.store, "at the end")
