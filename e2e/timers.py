"""`make timers`: messages that wait for their time, on brokers that are killed, and how late they are delivered.

    python e2e/timers.py --pending 4000 --kills 3 --seed 1
    python e2e/timers.py --pending 1000000 --kills 10 --limit-ms 100
    python e2e/timers.py --group --transfers 3                         a group; its leaders change
    python e2e/timers.py --compare --rounds 2                          in turn with RocketMQ 5.5.0

The broker gets `--pending` timers whose times are `--rate` a second, from when all of them are stored and all kills are
over. Meanwhile senders store timers with times of up to 3 s and recall some of them, and the broker is killed with
kill -9 and started again; in a group the leader is killed, or hands over to another member. When no timer waits,
everything is read back: an acknowledged timer must be in its topic once and not before its time, and one whose recall
was acknowledged must not be there.

The lateness is the store time of the delivery minus the time for which its producer asked. It counts for the pending
timers that were due after the last start. The times do not depend on the broker: if it is too slow, they are late.

With `--compare` the sides take turns with the same seed, so what the machine does meanwhile meets both. RocketMQ has no
transfers here: it is killed as often. Its wheel moves once in `timerPrecisionMs`, by default 1000.

Exit status: 0 all is right, 1 a timer of ours was lost, doubled, early or (`--limit-ms`) too late, 2 the test could not
run. What RocketMQ does is printed, and is no failure. After 1 and 2 the stores and the logs stay in build/e2e.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lab.load import send_fields
from lab.peer import PeerMissingError
from lab.places import work_folder
from lab.processes import ProcessError, end_on_signals
from lab.timer_sides import TRANSFER, Members, RocketMQ, Side, Single, elapsed, faults

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record

TOPIC, QUEUES = "timers", 4
ANSWER_S = 30.0
DELIVERY_S = 120.0
"""Longest time without a delivery while timers wait."""
QUIET_S = 10.0
"""A side that does not tell what waits has delivered everything when nothing comes for this time."""
SENDERS = 64
SHORT_MS = (20, 200, 1000, 3000)
KILL_AFTER_S = (0.3, 1.5)


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
        except BaseException:  # also if the sender is cancelled
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


async def disturb(side: Side, told: Told, wanted: list[str], rng: random.Random) -> None:
    """Makes the faults under load, one after another."""
    for number, fault in enumerate(wanted):
        broker = await asyncio.to_thread(side.broker)
        loads = [asyncio.create_task(load(broker, told, f"short-{number}-{each}", rng)) for each in range(4)]
        await asyncio.sleep(rng.uniform(*KILL_AFTER_S))
        await asyncio.to_thread(side.disturb, fault)
        if fault == TRANSFER:  # the senders' broker serves on
            await asyncio.sleep(rng.uniform(*KILL_AFTER_S))
            for task in loads:
                task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        begin_s = time.monotonic()
        await asyncio.to_thread(side.recover)
        print(f"{fault} {number + 1}: {len(told.acknowledged)} acknowledged, start {elapsed(begin_s):.1f} s")


async def deliveries(side: Side, told: Told) -> None:
    """Returns when nothing waits. ProcessError: nothing was delivered for too long after its time."""
    last_s = max(told.times.values(), default=0) / 1000
    left, since_s = -1, time.monotonic()
    while True:
        waits = await asyncio.to_thread(side.waiting)
        now = await _delivered(side) if waits is None else waits
        if waits == 0:
            return
        if now != left:
            left, since_s = now, time.monotonic()
        quiet_s = min(elapsed(since_s), time.time() - last_s)
        if waits is None and quiet_s > QUIET_S and now >= len(told.acknowledged - told.recalled - told.doubtful):
            return
        if quiet_s > DELIVERY_S:
            if waits is None:
                return  # what is missing is lost
            raise ProcessError(f"{now} timers wait, and none was delivered for {DELIVERY_S:.0f} s")
        await asyncio.sleep(0.5)


async def _delivered(side: Side) -> int:
    broker = await asyncio.to_thread(side.broker)
    async with ClusterClient("", timeout_s=ANSWER_S) as client:
        return sum([(await client.offset_range(QueueAddress(TOPIC, "", broker, each)))[1] for each in range(QUEUES)])


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


@dataclass
class Result:
    """What one side did."""

    name: str
    told: Told
    records: list[Record]
    problems: list[str]
    late: list[int]

    def lines(self, rate: float) -> list[str]:
        told, late = self.told, self.late
        counts = f"{len(told.acknowledged)} acknowledged, {len(told.recalled)} recalled, {len(self.records)} delivered"
        lines = [f"{self.name}: {counts}; " + ("; ".join(self.problems) or "none lost, doubled or early")]
        if late:
            p50, p99, p999 = (late[min(len(late) - 1, int(len(late) * part))] for part in (0.5, 0.99, 0.999))
            ends = f"least {late[0]} ms, p50 {p50} ms, p99 {p99} ms, p99.9 {p999} ms, most {late[-1]} ms"
            lines.append(f"{self.name}: late, of {len(late)} at {rate:g} a second: {ends}")
        return lines


async def run(options: argparse.Namespace, side: Side, seed: int) -> Result:
    """One side, from its start to its end."""
    rng, told = random.Random(seed), Told()
    wanted = faults(options.kills, options.transfers)
    try:
        await asyncio.to_thread(side.start)
        broker = await asyncio.to_thread(side.broker)
        async with ClusterClient("", timeout_s=ANSWER_S) as client:
            await client.create_topic(broker, TOPIC, QUEUES)
        lead_s = options.pending / options.send_rate + len(wanted) * side.round_s + 5
        begin_ms = int((time.time() + lead_s) * 1000)
        await fill(broker, told, options.pending, begin_ms, options.rate)
        print(f"{side.name}: {options.pending} timers wait; the first is due in {begin_ms / 1000 - time.time():.1f} s")
        await disturb(side, told, wanted, rng)
        started_ms = int(time.time() * 1000) + 1000
        await deliveries(side, told)
        records = await read_all(await asyncio.to_thread(side.broker))
        await asyncio.to_thread(side.stop)
    finally:
        await asyncio.to_thread(side.kill)
    problems = wrong(told, records)
    late = lateness(told, records, started_ms)
    if options.limit_ms:
        if not late:
            problems.append("no lateness was measured: the timers were due before the last start (--send-rate)")
        elif (p99 := late[min(len(late) - 1, int(len(late) * 0.99))]) > options.limit_ms:
            problems.append(f"p99 is {p99} ms, above {options.limit_ms} ms")
    return Result(side.name, told, records, problems, late)


def _sides(options: argparse.Namespace) -> list[tuple[Callable[[Path], Side], bool]]:
    """What makes each side, and whether its faults are failures."""
    ours: Callable[[Path], Side] = Members if options.group else Single
    sides = [(ours, True)]
    if options.compare:
        sides.append((lambda folder: RocketMQ(folder, options.peer_set), False))
    return sides


async def run_all(options: argparse.Namespace, folder: Path) -> int:
    """The exit status."""
    status, lines = 0, []
    for number in range(options.rounds):
        for which, (make, counts) in enumerate(_sides(options)):
            result = await run(options, make(folder / f"{number}-{which}"), options.seed + number)
            for line in result.lines(options.rate):
                print(line)
                lines.append(f"round {number + 1}: {line}")
            if counts and result.problems:
                status = 1
    print(f"{options.kills} kills, {options.transfers} transfers, seed {options.seed}", *lines, sep="\n")
    return status


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--pending", type=int, default=4000, help="timers that wait (4000)")
    parser.add_argument("--rate", type=float, default=2000.0, help="how many of them are due in a second (2000)")
    parser.add_argument(
        "--send-rate", type=float, default=1500.0, help="how many the machine stores in a second (1500)"
    )
    parser.add_argument("--kills", type=int, default=3, help="kill -9 under load (3)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--group", action="store_true", help="ours is a group of three")
    parser.add_argument("--transfers", type=int, default=0, help="changes of leader without a kill (0)")
    parser.add_argument("--compare", action="store_true", help="in turn with RocketMQ 5.5.0")
    parser.add_argument("--peer-set", action="append", default=[], metavar="KEY=VALUE", help="a setting of RocketMQ")
    parser.add_argument("--rounds", type=int, default=1, help="how often the sides take turns (1)")
    parser.add_argument("--limit-ms", type=int, default=0, help="longest lateness of 99 %% (0: any)")
    options = parser.parse_args(arguments)
    if options.transfers and not options.group:
        parser.error("--transfers needs --group: a broker without a group has no other leader")
    end_on_signals()
    with work_folder("timers-", "store and log") as work:
        try:
            work.status = asyncio.run(run_all(options, work.path))
        except (ProcessError, PeerMissingError, RemotingError, OSError) as error:
            print(f"ended early: {error}", file=sys.stderr)
    return work.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
