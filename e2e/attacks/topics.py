"""A hundred thousand topics: all of them made by sends, with kills in between; then half by an administrator.

    alone   SYNC_FLUSH; each send makes a topic, and `kill -9` ends the broker several times meanwhile
    both    ASYNC_FLUSH; half of the topics by an administrator's lists, half by sends; a kill and a stop at the end

Required: each topic whose making or first message was acknowledged is there after `kill -9`, with its message, and the
name server knows it; sends and routes are answered all the time. Measured: memory, times of saving, of registration,
of each restart, the size of the tables, the slowest answer to a client while the tables grow.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
import urllib.request

from attacks.arena import Arena, private_mib, until
from attacks.traffic import Acknowledged, Pipe, ends, send_command
from lab.places import HOST
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson

_TOPICS = 100_000
_LIST = 1000  # of one request over HTTP
_KILLS, _SEED = 6, 7
_PIPES, _WINDOW = 4, 1000  # sends that wait for a table are saved together: more of them at once are faster
_ROUND_S = 1800.0
_STOP_S = 900.0  # a stop with 50 000 queues took more than a minute
_SMALL = ("mappedFileSizeCommitLog=67108864", "mappedFileSizeConsumeQueue=2000", "defaultTopicQueueNums=1")


async def run(arena: Arena) -> None:
    await _alone(arena)
    await _both(arena)


async def _alone(arena: Arena) -> None:
    tally = Tally(arena.work / "alone", (*_SMALL, "flushDiskType=SYNC_FLUSH"))
    names = [f"alone-{number:06}" for number in range(arena.scaled(_TOPICS))]
    rng, sent, starts_s, peak_mib = random.Random(_SEED), Acknowledged(), [], 0.0
    # A kill comes when so many topics are acknowledged.
    kills = [*sorted(rng.sample(range(len(names) // 10, len(names)), _KILLS - 1)), len(names)]
    begin_s = time.monotonic()
    try:
        tally.start()
        for kill_at in kills:
            peak_mib = max(peak_mib, await _kill_at(arena, tally, names, sent, kill_at))
            tally.launch()
            launched_s = time.monotonic()
            await asyncio.to_thread(tally.wait_ready, 600)
            starts_s.append([len(sent.at), round(time.monotonic() - launched_s, 1)])
            await _has_topics(arena, tally, sent, f"after a kill at {kill_at}")
        arena.figure(
            f"alone: seconds to create {len(names)} topics by sends, with kills", round(time.monotonic() - begin_s)
        )
        arena.figure("alone: topics acknowledged, seconds of the start after a kill there", starts_s)
        arena.figure("alone: refused", sent.refused)
        arena.figure("alone: MiB of private memory before a kill, at most; after the last", [
            peak_mib, private_mib(tally.server.process.pid),
        ])  # fmt: skip
        await _known(arena, tally, list(sent.at), "alone")
        lost = await _lost(tally, sent)
        arena.check(not lost, f"alone: {len(lost)} acknowledged messages are lost: {lost[:5]}")
        stopped_s = time.monotonic()
        await asyncio.to_thread(tally.stop, _STOP_S)
        arena.figure("alone: seconds of an orderly stop", round(time.monotonic() - stopped_s, 1))
        launched_s = time.monotonic()
        tally.launch()
        await asyncio.to_thread(tally.wait_ready, 600)
        queues = sum(1 for _ in (tally.store / "consumequeue").glob("*/*"))
        arena.figure(
            f"alone: seconds of a start with {queues} queues after a stop", round(time.monotonic() - launched_s, 1)
        )
        tally.kill()
    finally:
        tally.kill()
    shutil.rmtree(tally.folder)


async def _kill_at(arena: Arena, tally: Tally, names: list[str], sent: Acknowledged, count: int) -> float:
    """Sends to the topics without an acknowledged message, and kills the broker when `count` topics have one, with
    sends in progress; its private memory before (MiB)."""
    left = [name for name in names if name not in sent.at]
    pipes = [
        Pipe(tally.broker, lambda name, answer: sent.note(name, 0, name, answer), window=_WINDOW) for _ in range(_PIPES)
    ]
    tasks = [
        asyncio.create_task(pipe.run((name, send_command(name, 0, f"{name}|".encode())) for name in left[part::_PIPES]))
        for part, pipe in enumerate(pipes)
    ]
    reached = await until(lambda: len(sent.at) >= count or all(task.done() for task in tasks), _ROUND_S, 0.01)
    memory_mib = private_mib(tally.server.process.pid)
    tally.kill()
    await asyncio.gather(*tasks)
    arena.check(reached is not None, f"alone: {len(sent.at)} of {count} topics within {_ROUND_S:g} s")
    arena.check(len(sent.at) >= count, f"alone: {len(sent.at)} of {count} acknowledged: {sent.refused}")
    return memory_mib


async def _has_topics(arena: Arena, tally: Tally, sent: Acknowledged, when: str) -> None:
    """The broker has the row of each topic, and a sample of the messages."""
    async with ClusterClient("", timeout_s=60) as client:
        answer = await client.call(tally.broker, RequestCode.GET_ALL_TOPIC_CONFIG, {})
    missing = sent.at.keys() - set(fastjson.loads(answer.body)["topicConfigTable"])
    arena.check(not missing, f"{when}: {len(missing)} acknowledged topics have no row: {sorted(missing)[:3]}")
    lost = await _lost(tally, sent, random.Random(len(sent.at)).sample(list(sent.at), min(len(sent.at), 500)))
    arena.check(not lost, f"{when}: {len(lost)} acknowledged messages are lost: {lost[:5]}")


async def _lost(tally: Tally, sent: Acknowledged, names: list[str] | None = None) -> list[str]:
    """Which of these messages (all) are not at their offset."""
    names, lost = list(sent.at) if names is None else names, []
    async with ClusterClient("", timeout_s=60) as client:
        for first in range(0, len(names), 200):
            some = names[first : first + 200]
            found = await asyncio.gather(*(_body(client, tally.broker, name, sent.at[name][2]) for name in some))
            lost += [name for name, body in zip(some, found, strict=True) if body != f"{name}|".encode()]
    return lost


async def _both(arena: Arena) -> None:
    tally = Tally(arena.work / "plain", (*_SMALL, "flushDiskType=ASYNC_FLUSH"))
    half = arena.scaled(_TOPICS) // 2
    named = [f"admin-{number:06}" for number in range(half)]
    sent_to = [f"sent-{number:06}" for number in range(half)]
    probe = asyncio.create_task(asyncio.sleep(0))
    try:
        tally.start()
        arena.figure("MiB of private memory, empty", private_mib(tally.server.process.pid))
        slowest = [0.0, 0]
        probe = asyncio.create_task(_probe(tally, slowest))
        await _by_admin(arena, tally, named)
        sent = await _by_sends(arena, tally, sent_to)
        arena.figure("MiB of private memory, with all topics", private_mib(tally.server.process.pid))
        arena.figure("slowest send to another topic in the meantime, s; failed", [round(slowest[0], 2), slowest[1]])
        arena.figure("MiB of topics.json", round((tally.store / "config" / "topics.json").stat().st_size / 2**20, 1))
        await _known(arena, tally, [*named, *sent.at.keys()], "after they were created")
        probe.cancel()
        tally.kill()
        await _restart(arena, tally, [*named, *sent.at.keys()], sent, "kill -9")
        begin_s = time.monotonic()
        await asyncio.to_thread(tally.stop, _STOP_S)
        arena.figure("seconds of an orderly stop", round(time.monotonic() - begin_s, 1))
        await _restart(arena, tally, [*named, *sent.at.keys()], sent, "an orderly stop")
    finally:
        probe.cancel()
        tally.kill()


async def _by_admin(arena: Arena, tally: Tally, names: list[str]) -> None:
    slowest_s = 0.0
    begin_s = time.monotonic()
    for first in range(0, len(names), _LIST):
        rows = [{"name": name, "readQueues": 1, "writeQueues": 1} for name in names[first : first + _LIST]]
        asked_s = time.monotonic()
        await asyncio.to_thread(_post, tally.http_port, rows)
        slowest_s = max(slowest_s, time.monotonic() - asked_s)
    seconds = time.monotonic() - begin_s
    arena.figure(
        f"seconds to create {len(names)} topics by lists of {_LIST}; slowest list",
        [round(seconds, 1), round(slowest_s, 2)],
    )


def _post(port: int, rows: list[dict[str, object]]) -> None:
    body = json.dumps(rows).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{HOST}:{port}/topics", data=body, method="POST", headers=headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


async def _by_sends(arena: Arena, tally: Tally, names: list[str]) -> Acknowledged:
    sent = Acknowledged()
    pipe = Pipe(tally.broker, lambda name, answer: sent.note(name, 0, name, answer), window=500)
    begin_s = time.monotonic()
    await pipe.run((name, send_command(name, 0, f"{name}|".encode())) for name in names)
    seconds = time.monotonic() - begin_s
    arena.figure(f"seconds to create {len(names)} topics by sends, 500 at a time", round(seconds, 1))
    arena.check(not pipe.broken, f"the connection broke: {pipe.broken}")
    arena.check(len(sent.at) == len(names), f"{len(sent.at)} of {len(names)} sends acknowledged: {sent.refused}")
    return sent


async def _probe(tally: Tally, slowest: list[float]) -> None:
    """Sends to one topic all the time."""
    async with ClusterClient("", timeout_s=60) as client:
        await client.create_topic(tally.broker, "probe", 1)
        while True:
            begin_s = time.monotonic()
            try:
                await client.send(QueueAddress("probe", "", tally.broker, 0), b"probe|")
            except RemotingError:
                slowest[1] += 1
            slowest[0] = max(slowest[0], time.monotonic() - begin_s)
            await asyncio.sleep(0.05)


async def _known(arena: Arena, tally: Tally, names: list[str], when: str) -> None:
    """The name server knows all of them, soon."""
    wanted = set(names)
    missing: set[str] = set()

    async def known() -> bool:
        nonlocal missing
        async with ClusterClient(tally.nameserver, timeout_s=60) as client:
            answer = await client.ask_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        missing = wanted - set(fastjson.loads(answer.body)["topicList"])
        return not missing

    seconds = await until(known, 120, 0.5)
    arena.check(
        seconds is not None, f"{when}: the name server does not know {len(missing)} topics: {sorted(missing)[:3]}"
    )
    arena.figure(f"{when}: seconds until the name server knows all of them", seconds and round(seconds, 2))


async def _restart(arena: Arena, tally: Tally, names: list[str], sent: Acknowledged, what: str) -> None:
    begin_s = time.monotonic()
    tally.launch()
    await asyncio.to_thread(tally.wait_ready, 300)
    arena.figure(f"seconds of a start after {what}", round(time.monotonic() - begin_s, 1))
    await _known(arena, tally, names, f"after {what}")
    lost = await _lost(tally, sent)
    arena.check(not lost, f"after {what}: {len(lost)} acknowledged messages are lost: {lost[:5]}")
    sampled = names[:: max(1, len(names) // 50)]
    arena.check(all([(await ends(tally.broker, name, 1)) is not None for name in sampled]), "offsets are answered")
    arena.figure(f"MiB of private memory after {what}", private_mib(tally.server.process.pid))


async def _body(client: ClusterClient, broker: str, name: str, offset: int) -> bytes | None:
    try:
        pulled = await client.pull(QueueAddress(name, "", broker, 0), offset, group="attack")
    except RemotingError:
        return None
    return pulled.records[0].body if pulled.records else None
