"""Errors of the disk (EIO) only under `config/`: the log takes messages, the tables cannot be saved.

Each kind of call fails by itself: to open, to write, to sync, to rename. Required each time: a send to a topic that
does not exist yet is refused, because its row cannot be durable; sends to existing topics and pulls continue; an
administrator's change is not answered with success; the metric of unsaved tables says so; when the disk works again,
sends to new topics are taken without a restart; after `kill -9` all acknowledged messages are readable. A stop during
the errors completes, and loses no acknowledged message.
"""

from __future__ import annotations

import asyncio
import time

from attacks.arena import Arena, ask, metric, until
from attacks.disk_shim import Call, DiskErrors
from attacks.folders import SETTINGS
from attacks.traffic import Acknowledged, Pipe, send_command
from lab.processes import ProcessError
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.errors import RemotingError

_OLD = "old"
_NEW_TOPICS, _SENDS = 40, 300


async def run(arena: Arena) -> None:
    errors = DiskErrors(arena.work / "shim", "/config/")
    for call in (Call.OPEN, Call.WRITE, Call.SYNC, Call.RENAME):
        await _refused_and_back(arena, errors, call)
    await _stopped(arena, errors)


async def _started(folder: str, arena: Arena, errors: DiskErrors) -> tuple[Tally, Acknowledged]:
    tally = Tally(arena.work / folder, (*SETTINGS, "flushConsumerOffsetInterval=500"))
    tally.env = errors.env
    errors.fail(Call.NONE)
    tally.start()
    async with ClusterClient("", timeout_s=30) as client:
        await client.create_topic(tally.broker, _OLD, 1)
    sent = Acknowledged()
    await _send(tally, sent, {f"before.{number}": _OLD for number in range(_SENDS)})
    return tally, sent


async def _send(tally: Tally, sent: Acknowledged, topics: dict[str, str]) -> list[str]:
    """Sends these messages to these topics; returns the names of the acknowledged ones."""
    before = set(sent.at)
    pipe = Pipe(tally.broker, lambda name, answer: sent.note(topics[name], 0, name, answer), window=20)
    requests = ((name, send_command(topic, 0, f"{name}|".encode())) for name, topic in topics.items())
    await asyncio.wait_for(pipe.run(requests), 60)
    return sorted(set(sent.at) - before)


async def _refused_and_back(arena: Arena, errors: DiskErrors, call: Call) -> None:
    what = f"EIO of {call.name}"
    tally, sent = await _started(f"{call.name}", arena, errors)
    try:
        errors.fail(call)
        asked = {f"{call.name}-new-{number}.1": f"{call.name}-new-{number}" for number in range(_NEW_TOPICS)}
        begin_s = time.monotonic()
        taken = await _send(tally, sent, asked)
        arena.check(not taken, f"{what}: {len(taken)} sends to new topics were acknowledged: {taken[:3]}")
        reason, refused = next(iter(sent.refused.items()), ("", 0))
        arena.check(len(sent.refused) == _NEW_TOPICS, f"{what}: {len(sent.refused)} topics refused, {refused} times")
        arena.figure(f"{what}: refusal; seconds of {_NEW_TOPICS}", [reason, round(time.monotonic() - begin_s, 2)])
        taken = await _send(tally, sent, {f"during.{number}": _OLD for number in range(_SENDS)})
        arena.check(len(taken) == _SENDS, f"{what}: {len(taken)} of {_SENDS} sends to an old topic: {sent.refused}")
        async with ClusterClient("", timeout_s=30) as client:
            pulled = await client.pull(QueueAddress(_OLD, "", tally.broker, 0), 0, group="g")
            arena.check(bool(pulled.records), f"{what}: a pull returned no message")
            try:
                await client.create_topic(tally.broker, f"{call.name}-admin", 1)
                arena.check(False, f"{what}: the creation of a topic by an administrator succeeded")
            except RemotingError as error:
                arena.figure(f"{what}: answer to an administrator", str(error)[:160])
        await asyncio.sleep(1.5)  # offsets are saved every 0.5 s
        arena.figure(f"{what}: /healthz, /readyz", [ask(tally.http_port, path) for path in ("/healthz", "/readyz")])
        unsaved = metric(tally, "rocketmq_storage_unsaved_tables")
        arena.check(unsaved >= 1, f"{what}: the metric reports {unsaved} tables as not saved")
        errors.fail(Call.NONE)
        again = {f"{call.name}-new-{number}.2": f"{call.name}-new-{number}" for number in range(_NEW_TOPICS)}

        async def taken_again() -> bool:
            left = {name: topic for name, topic in again.items() if name not in sent.at}
            await _send(tally, sent, left)
            return set(again) <= set(sent.at)

        seconds = await until(taken_again, 30, 0.1)
        arena.check(seconds is not None, f"{what}: new topics are refused although the disk works: {sent.refused}")
        arena.figure(f"{what}: seconds until new topics are accepted again", seconds and round(seconds, 2))
        await _readable(arena, what, tally, sent)
    finally:
        errors.fail(Call.NONE)
        tally.kill()


async def _readable(arena: Arena, what: str, tally: Tally, sent: Acknowledged) -> None:
    """After `kill -9` all acknowledged messages exist, and the process never printed a traceback."""
    tally.kill()
    tally.start()
    for wrong in await sent.missing(tally.broker):
        arena.check(False, f"{what}: {wrong}")
    text = tally.log.read_text()
    arena.check("Traceback" not in text, f"{what}: a traceback, see {tally.log}")
    arena.check(len(text.splitlines()) < 300, f"{what}: {len(text.splitlines())} lines in the log")
    arena.figure(f"{what}: acknowledged and readable; lines in the log", [len(sent.at), len(text.splitlines())])
    tally.stop()


async def _stopped(arena: Arena, errors: DiskErrors) -> None:
    """An orderly stop while nothing can be saved."""
    tally, sent = await _started("stopped", arena, errors)
    try:
        async with ClusterClient("", timeout_s=30) as client:
            await client.commit(QueueAddress(_OLD, "", tally.broker, 0), "g", 7)
        errors.fail(Call.OPEN | Call.WRITE | Call.SYNC | Call.RENAME)
        begin_s = time.monotonic()
        try:
            await asyncio.to_thread(tally.stop)
            status = "0"
        except ProcessError as error:
            status = str(error).split(",")[0]
        arena.figure(
            "a stop without a disk for tables: status, seconds", [status, round(time.monotonic() - begin_s, 1)]
        )
        arena.figure("a stop without a disk for tables: last output", tally.log.read_text().splitlines()[-3:])
        errors.fail(Call.NONE)
        tally.start()
        await _readable(arena, "a stop without a disk for tables", tally, sent)
    finally:
        errors.fail(Call.NONE)
        tally.kill()
