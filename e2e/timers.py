"""`make timers`: messages that wait for their time, on one broker that is killed, and how late they are delivered.

    python e2e/timers.py --pending 4000 --kills 3 --seed 1
    python e2e/timers.py --pending 1000000 --kills 10 --limit-ms 100

The broker gets `--pending` timers whose times are `--rate` a second, from when all of them are stored and all kills are
over. Meanwhile senders store timers with times of up to 3 s and recall some of them, and the broker is killed with
kill -9 and started again. When no timer waits, everything is read back: an acknowledged timer must be in its
topic once and not before its time, and one whose recall was acknowledged must not be there.

The lateness is the store time of the delivery minus the time for which its producer asked. It counts for the pending
timers that were due after the last start. The times do not depend on the broker: if it is too slow, they are late.

Exit status: 0 all is right, 1 a timer was lost, doubled, early or (`--limit-ms`) too late, 2 the test could not run.
After 1 and 2 the store and the log stay in build/e2e.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
import urllib.request
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from lab.load import send_fields
from lab.places import HOST, work_folder
from lab.processes import ProcessError, end_on_signals
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record

TOPIC, QUEUES = "timers", 4
SETTINGS = ("flushDiskType=SYNC_FLUSH", "recallMessageEnable=true")
ANSWER_S = 30.0
DELIVERY_S = 120.0
"""Longest time without a delivery while timers wait."""
SENDERS = 64
SHORT_MS = (20, 200, 1000, 3000)
KILL_AFTER_S = (0.3, 1.5)
ROUND_S = 6.0
"""A round with its kill, its start and its readback, generously."""


@dataclass
class Told:
    """What the clients asked for, and what they were told."""

    times: dict[bytes, int] = field(default_factory=dict)
    acknowledged: set[bytes] = field(default_factory=set)
    recalled: set[bytes] = field(default_factory=set)
    doubtful: set[bytes] = field(default_factory=set)
    """Their recall had no answer."""


class Sender:
    """Sends timers over one connection."""

    def __init__(self, broker: str, told: Told) -> None:
        self._broker, self._told = broker, told
        self._client = RemotingClient(name="timers")

    async def close(self) -> None:
        await self._client.close(grace_s=0.0)

    async def send(self, name: str, at_ms: int) -> str:
        """The handle for a recall; "" if the time has passed. RemotingError: no answer, or a refusal."""
        body = name.encode()
        self._told.times[body] = at_ms
        pairs = {properties.UNIQ_KEY: name, properties.TIMER_DELIVER_MS: str(at_ms)}
        ext = send_fields("timers", TOPIC, zlib.crc32(body) % QUEUES, pairs)
        answer = await self._client.call(
            self._broker, Command(RequestCode.SEND_MESSAGE_V2, ext=ext, body=body), ANSWER_S
        )
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingError(f"a send was refused: {answer.code} {answer.remark}")
        self._told.acknowledged.add(body)
        return (answer.ext or {}).get("recallHandle", "")

    async def recall(self, name: str, handle: str) -> None:
        body = name.encode()
        try:
            ext = {"topic": TOPIC, "producerGroup": "timers", "recallHandle": handle}
            answer = await self._client.call(self._broker, Command(RequestCode.RECALL_MESSAGE, ext=ext), ANSWER_S)
        except RemotingError:
            self._told.doubtful.add(body)
            raise
        if answer.code == ResponseCode.SUCCESS:
            self._told.recalled.add(body)
        elif answer.code != ResponseCode.ILLEGAL_OPERATION:
            self._told.doubtful.add(body)


async def fill(broker: str, told: Told, count: int, begin_ms: int, rate: float) -> None:
    """Stores the pending timers. RemotingError: not all of them were acknowledged."""
    sender = Sender(broker, told)
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await sender.send(f"pending-{number}", begin_ms + int(number * 1000 / rate))

    try:
        await asyncio.gather(*(work() for _ in range(SENDERS)))
    finally:
        await sender.close()


async def load(broker: str, told: Told, label: str, rng: random.Random) -> None:
    """Sends and recalls short timers until the broker is gone."""
    sender = Sender(broker, told)
    number = 0
    try:
        while True:
            number += 1
            name = f"{label}-{number}"
            handle = await sender.send(name, time.time_ns() // 1_000_000 + rng.choice(SHORT_MS))
            if handle and rng.random() < 0.2:
                await sender.recall(name, handle)
    except RemotingError:
        pass
    finally:
        await sender.close()


async def kills(tally: Tally, told: Told, rounds: int, rng: random.Random) -> None:
    """Kills the broker under load, and starts it again."""
    for number in range(rounds):
        loads = [asyncio.create_task(load(tally.broker, told, f"short-{number}-{each}", rng)) for each in range(4)]
        await asyncio.sleep(rng.uniform(*KILL_AFTER_S))
        await asyncio.to_thread(tally.kill)
        await asyncio.gather(*loads)
        begin = time.monotonic()
        await asyncio.to_thread(tally.start)
        print(f"kill {number + 1}: {len(told.acknowledged)} acknowledged, start {time.monotonic() - begin:.1f} s")


def waiting(tally: Tally) -> int:
    """Timers that are stored and not delivered. OSError."""
    with urllib.request.urlopen(f"http://{HOST}:{tally.http_port}/metrics", timeout=ANSWER_S) as answer:
        lines = answer.read().decode().splitlines()
    names = ("rocketmq_timing_messages", "rocketmq_timer_enqueue_lag")
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(names))


async def deliveries(tally: Tally) -> None:
    """Returns when nothing waits. ProcessError: nothing was delivered for too long after its time."""
    left, since = -1, time.monotonic()
    while (now := await asyncio.to_thread(waiting, tally)) > 0:
        if now != left:
            left, since = now, time.monotonic()
        elif time.monotonic() - since > DELIVERY_S:
            raise ProcessError(f"{now} timers wait, and none was delivered for {DELIVERY_S:.0f} s")
        await asyncio.sleep(0.5)


async def read_all(broker: str) -> list[Record]:
    """All messages of the topic."""
    found: list[Record] = []
    async with ClusterClient("", timeout_s=ANSWER_S) as client:
        for queue_id in range(QUEUES):
            queue = QueueAddress(TOPIC, "", broker, queue_id)
            at, end = await client.offset_range(queue)
            while at < end:
                pulled = await client.pull(queue, at, group="timers-reader")
                if pulled.next_offset <= at:
                    raise ProcessError(f"no message at {at} of queue {queue_id}, which ends at {end}")
                found += pulled.records
                at = pulled.next_offset
    return found


def wrong(told: Told, records: list[Record]) -> list[str]:
    """What is not as it was promised."""
    found = Counter(record.body for record in records)
    early = [record.body for record in records if record.store_timestamp_ms < told.times[record.body]]
    checks = {
        "lost": told.acknowledged - told.recalled - told.doubtful - found.keys(),
        "delivered twice": {body for body, count in found.items() if count > 1},
        "recalled and delivered": told.recalled & found.keys(),
        "delivered before their time": set(early),
    }
    return [f"{len(bodies)} {what}: {sorted(bodies)[:5]}" for what, bodies in checks.items() if bodies]


def lateness(told: Told, records: list[Record], after_ms: int) -> list[int]:
    """Of the pending timers due after that time, in ms, sorted."""
    return sorted(
        record.store_timestamp_ms - told.times[record.body]
        for record in records
        if record.body.startswith(b"pending-") and told.times[record.body] > after_ms
    )


async def run(options: argparse.Namespace, folder: Path) -> int:
    """The exit status."""
    rng, told = random.Random(options.seed), Told()
    tally = Tally(folder, SETTINGS)
    try:
        await asyncio.to_thread(tally.start)
        async with ClusterClient("", timeout_s=ANSWER_S) as client:
            await client.create_topic(tally.broker, TOPIC, QUEUES)
        lead_s = options.pending / options.send_rate + options.kills * ROUND_S + 5
        begin_ms = int((time.time() + lead_s) * 1000)
        await fill(tally.broker, told, options.pending, begin_ms, options.rate)
        print(f"{options.pending} timers wait; the first one is due in {begin_ms / 1000 - time.time():.1f} s")
        await kills(tally, told, options.kills, rng)
        started_ms = int(time.time() * 1000) + 1000
        await deliveries(tally)
        records = await read_all(tally.broker)
        await asyncio.to_thread(tally.stop)
    finally:
        await asyncio.to_thread(tally.kill)
    problems = wrong(told, records)
    late = lateness(told, records, started_ms)
    counts = f"{len(told.acknowledged)} acknowledged, {len(told.recalled)} recalled, {len(records)} delivered"
    print(f"{counts}, {options.kills} kills")
    if late:
        p50, p99 = (late[min(len(late) - 1, int(len(late) * part))] for part in (0.5, 0.99))
        print(f"late, of {len(late)} at {options.rate:g} a second: p50 {p50} ms, p99 {p99} ms, most {late[-1]} ms")
        if options.limit_ms and p99 > options.limit_ms:
            problems.append(f"p99 is above {options.limit_ms} ms")
    elif options.limit_ms:
        problems.append("no lateness was measured: the timers were due before the last start (--send-rate)")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--pending", type=int, default=4000, help="timers that wait (4000)")
    parser.add_argument("--rate", type=float, default=2000.0, help="how many of them are due in a second (2000)")
    parser.add_argument(
        "--send-rate", type=float, default=1500.0, help="how many the machine stores in a second (1500)"
    )
    parser.add_argument("--kills", type=int, default=3, help="kill -9 under load (3)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-ms", type=int, default=0, help="longest lateness of 99 %% (0: any)")
    options = parser.parse_args(arguments)
    end_on_signals()
    with work_folder("timers-", "store and log") as work:
        try:
            work.status = asyncio.run(run(options, work.path))
        except (ProcessError, RemotingError, OSError) as error:
            print(f"ended early: {error}", file=sys.stderr)
    return work.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
