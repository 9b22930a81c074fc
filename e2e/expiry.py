"""`make expiry`: messages that expire by the retention of their topic, beside RocketMQ after a clean.

    python e2e/expiry.py
    python e2e/expiry.py --only compare          beside real RocketMQ 4.8.0, with RocketMQ's clients and tool
    python e2e/expiry.py --only group            a group whose leaders are killed

compare: RocketMQ deletes segments of its log, and its queue then begins at some offset. Our broker gets as many old
messages through a wall clock that is set back, then as many young ones, and RocketMQ's own tool (5.5.0) sets the
retention. Then both have a queue with the same offsets, and must answer requests about it with the same codes, remarks
and fields; a push consumer of RocketMQ 4.8.0 whose offset is below the queue's begin gets the same messages from both,
and continues at the same offset. RocketMQ then opens a copy of our store.

group: leaders are killed while time passes and messages expire. No member shows a queue that begins earlier than it
did there before, and no new leader one that begins earlier than it did at the last leader. In the end all members begin
at the first message that has not expired.

Exit status: 0 all is right, 1 it is not, 2 the test could not run. After 1 and 2 stores and logs stay in build/e2e.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.arena import SkippedError
from attacks.clock_shim import WallClock
from lab.group import Group
from lab.load import pull_fields
from lab.peer import Peer, PeerMissingError
from lab.places import work_folder
from lab.processes import ProcessError, end_on_signals
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress, RequestRefusedError
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson
from tallystick.store.formats.record import Record

TOPIC, GROUP, HOUR_S, HOUR_MS = "Expiring", "behind", 3600.0, 3_600_000
MESSAGES, SIZE = 300, 1000
SEGMENT_BYTES = 64 << 10
EVERY_HOUR = ";".join(f"{hour:02}" for hour in range(24))
CLEANS_S = 150.0
"""RocketMQ cleans for the first time a minute after its start."""
RETENTION_HOURS = 2
KILLS = 8
STEP_S = 720.0


class WrongError(Exception):
    """Something is not as it must be; the text says what."""


# -- beside RocketMQ ---------------------------------------------------------------------------------------------------


async def ask(broker: str, code: int, ext: dict[str, str]) -> tuple[int, str, dict[str, str], list[Record]]:
    """Code, remark, fields and records of an answer."""
    client = RemotingClient(name="expiry")
    try:
        answer = await client.call(broker, Command(code, ext=ext), 30.0)
    finally:
        await client.close(grace_s=0.0)
    records, at = [], 0
    while code in (RequestCode.PULL_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID) and at < len(answer.body):
        records.append(Record.decode(answer.body, at))
        at += records[-1].size
    if code == RequestCode.GET_TOPIC_STATS_INFO:
        rows = fastjson.loads(answer.body)["offsetTable"].values()
        return answer.code, "", {f"{row['minOffset']} {row['maxOffset']}": "" for row in rows}, []
    return answer.code, answer.remark or "", dict(answer.ext or {}), records


async def pull(broker: str, offset: int, group: str = "asks") -> dict[str, Any]:
    code, remark, fields, records = await ask(broker, RequestCode.PULL_MESSAGE, pull_fields(group, TOPIC, offset))
    return {"code": code, "remark": remark, **fields, "offsets": [record.queue_offset for record in records]}


async def range_of(broker: str) -> tuple[int, int]:
    async with ClusterClient("", timeout_s=30) as client:
        return await client.offset_range(QueueAddress(TOPIC, "", broker, 0))


async def answers(broker: str, positions: dict[str, int]) -> dict[str, Any]:
    """What a broker answers to everything that depends on where the queue begins."""
    low, high = await range_of(broker)
    where = {"topic": TOPIC, "queueId": "0"}
    found: dict[str, Any] = {"range": (low, high)}
    for offset in (0, 1, low - 1, low, low + 1, high - 1, high, high + 1, high + 1000):
        found[f"pull {offset}"] = await pull(broker, offset)
    times = {
        offset: (await pull(broker, offset), await _time_at(broker, offset)) for offset in (low, low + 5, high - 1)
    }
    for name, time_ms in {"0": 0, "end": (1 << 40) * 2, **{str(at): each[1] for at, each in times.items()}}.items():
        ext = where | {"timestamp": str(time_ms)}
        # Several messages may have one store time: the messages' times count, not their offsets.
        offset = int((await ask(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext))[2]["offset"])
        found[f"search {name}"] = offset if name in ("0", "end") else await _time_at(broker, offset) == time_ms
    code, remark, fields, _ = await ask(broker, RequestCode.GET_EARLIEST_MSG_STORETIME, where)
    found["earliest"] = code, remark, int(fields["timestamp"]) == times[low][1]
    found["statistics"] = await ask(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC})
    for group in ("never seen", GROUP):
        code, remark, fields, _ = await ask(
            broker, RequestCode.QUERY_CONSUMER_OFFSET, where | {"consumerGroup": group.replace(" ", "_")}
        )
        found[f"offset of {group}"] = code, remark, fields
    for what, pos in positions.items():
        code, remark, _, records = await ask(broker, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(pos)})
        found[f"{what} by id"] = code, remark.replace(str(pos), "POS"), [record.queue_offset for record in records]
    return found


async def _time_at(broker: str, offset: int) -> int:
    async with ClusterClient("", timeout_s=30) as client:
        pulled = await client.pull(QueueAddress(TOPIC, "", broker, 0), offset, group="asks", count=1)
        return pulled.records[0].store_timestamp_ms


async def positions(broker: str, offsets: dict[str, int]) -> dict[str, int]:
    """Positions in the log of messages that can still be read."""
    async with ClusterClient("", timeout_s=30) as client:
        queue = QueueAddress(TOPIC, "", broker, 0)
        return {
            what: (await client.pull(queue, offset, group="asks", count=1)).records[0].pos
            for what, offset in offsets.items()
        }


def produce(peer: Peer, nameserver: str, count: int) -> None:
    arguments = ("--topic", TOPIC, "--count", str(count), "--size", str(SIZE), "--mode", "sync", "-n", nameserver)
    status, output = peer.call("probe", "produce", *arguments)
    if status != 0:
        raise ProcessError(f"the producer failed, see {peer.log}: {output[-500:]}")


def consume(peer: Peer, nameserver: str, expected: int) -> dict[str, Any]:
    """A push consumer of RocketMQ, until nothing more comes."""
    arguments = ("--topic", TOPIC, "--group", GROUP, "--expect", str(expected), "--timeout", "120", "--quiet")
    status, output = peer.call("probe", "consume-push", *arguments, "-n", nameserver)
    line = next((line for line in reversed(output.splitlines()) if line.startswith("{")), "{}")
    return {"status": status, "output": json.loads(line)}


async def _wait_for(what: str, look: Callable[[], Any], timeout_s: float) -> None:
    begin = time.monotonic()
    while not await look():
        if time.monotonic() - begin > timeout_s:
            raise WrongError(f"timed out after {timeout_s:.0f} s: {what}")
        await asyncio.sleep(0.2)


async def _cleaned(real: Peer, probe: Peer) -> tuple[int, int, dict[str, int]]:
    """RocketMQ with a topic whose first messages were deleted: where it begins and ends, and two positions."""
    settings = (
        f"mappedFileSizeCommitLog={SEGMENT_BYTES}",
        "fileReservedTime=0",
        f"deleteWhen={EVERY_HOUR}",
    )
    await asyncio.to_thread(real.up, settings)
    await asyncio.to_thread(_topic, probe, real.nameserver, real.broker)
    await asyncio.to_thread(produce, probe, real.nameserver, MESSAGES)
    places = await positions(real.broker, {"an expired message": 3})

    async def cleaned() -> bool:
        return (await range_of(real.broker))[0] > 0

    await _wait_for("RocketMQ deletes its segments", cleaned, CLEANS_S)
    arguments = ("-b", real.broker, "-k", "fileReservedTime", "-v", "72", "-n", real.nameserver)
    await asyncio.to_thread(probe.call, "mqadmin", "updateBrokerConfig", *arguments)
    await asyncio.to_thread(produce, probe, real.nameserver, MESSAGES)
    low, high = await range_of(real.broker)
    if not 10 < low < high - 10:
        raise ProcessError(f"RocketMQ kept {low} to {high}, which is no good example")
    return low, high, places | await positions(real.broker, {"a message that is kept": low})


def _topic(peer: Peer, nameserver: str, broker: str) -> None:
    arguments = ("-b", broker, "-t", TOPIC, "-r", "1", "-w", "1", "-n", nameserver)
    status, output = peer.call("mqadmin", "updateTopic", *arguments)
    if status != 0 or "success" not in output:
        raise ProcessError(f"the topic was not created: {output[-500:]}")


async def compare(folder: Path) -> None:
    old, new = Peer(folder / "peer-4.8.0"), Peer(folder / "peer-5.5.0", "5.5.0")
    clock = WallClock(folder / "shim")
    tally = Tally(folder / "tally", (f"mappedFileSizeCommitLog={SEGMENT_BYTES}", "cleanResourceInterval=200"))
    try:
        low, high, real_places = await _cleaned(old, old)
        print(f"RocketMQ: {low} of {high} messages are deleted")
        places = await _expired(tally, clock, old, new, low, high)
        print(f"ours: {low} of {high} messages have expired")
        for broker in (old.broker, tally.broker):
            async with ClusterClient("", timeout_s=30) as client:
                await client.commit(QueueAddress(TOPIC, "", broker, 0), GROUP, 3)
        _same(await answers(old.broker, real_places), await answers(tally.broker, places))
        consumed = [
            await asyncio.to_thread(consume, old, nameserver, high - low)
            for nameserver in (old.nameserver, tally.nameserver)
        ]
        for side, found in zip(("RocketMQ", "ours"), consumed, strict=True):
            print(f"{side}: {found}")
        if any(found["status"] != 0 for found in consumed):
            raise WrongError("a consumer did not get the messages that are kept, and no others")
        ends = [await pull_end(broker) for broker in (old.broker, tally.broker)]
        if ends[0] != ends[1] or ends[0] != high:
            raise WrongError(f"the consumers continue at {ends}, the queue ends at {high}")
        await asyncio.to_thread(tally.stop)
        _opens(old, tally, folder, high)
    finally:
        tally.kill()
        await asyncio.to_thread(old.down, kill=True)


async def pull_end(broker: str) -> int:
    """Where the group continues. A client commits on its way out, perhaps a moment after its end."""
    found = -1

    async def committed() -> bool:
        nonlocal found
        async with ClusterClient("", timeout_s=30) as client:
            found = await client.committed(QueueAddress(TOPIC, "", broker, 0), GROUP) or -1
        return found > 3

    await _wait_for("the consumer commits", committed, 60)
    return found


async def _expired(tally: Tally, clock: WallClock, old: Peer, new: Peer, low: int, high: int) -> dict[str, int]:
    """Our broker with as many expired messages, and as many that are kept."""
    tally.env = clock.env
    clock.set(-5 * HOUR_S)
    await asyncio.to_thread(tally.start)
    await asyncio.to_thread(_topic, old, tally.nameserver, tally.broker)
    await asyncio.to_thread(produce, old, tally.nameserver, low)
    places = await positions(tally.broker, {"an expired message": 3})
    await asyncio.to_thread(tally.kill)
    clock.set(0)
    await asyncio.to_thread(tally.start)
    await asyncio.to_thread(produce, old, tally.nameserver, high - low)
    arguments = ("-b", tally.broker, "-t", TOPIC, "-r", "1", "-w", "1", "-n", tally.nameserver)
    _, output = await asyncio.to_thread(
        new.call, "mqadmin", "updateTopic", *arguments, "-a", f"+retention.hours={RETENTION_HOURS}"
    )
    if "success" not in output:
        raise WrongError(f"mqadmin 5.5.0 could not set the retention: {output[-800:]}")

    async def expired() -> bool:
        return (await range_of(tally.broker))[0] == low

    await _wait_for("messages expire", expired, 30)
    await asyncio.to_thread(_topic, old, tally.nameserver, tally.broker)  # by 4.8.0, which does not know attributes
    await asyncio.to_thread(tally.kill)
    await asyncio.to_thread(tally.start)
    if await range_of(tally.broker) != (low, high):
        raise WrongError(f"after a kill the queue has {await range_of(tally.broker)}, not {(low, high)}")
    return places | await positions(tally.broker, {"a message that is kept": low})


def _same(real: dict[str, Any], ours: dict[str, Any]) -> None:
    wrong = [
        f"{what}:\n  RocketMQ {real[what]}\n  ours     {ours.get(what)}" for what in real if real[what] != ours[what]
    ]
    print(f"{len(real)} answers compared, {len(wrong)} differ")
    if wrong:
        raise WrongError("answers differ:\n" + "\n".join(wrong))


def _opens(peer: Peer, tally: Tally, folder: Path, high: int) -> None:
    """RocketMQ opens the store, with the attribute in topics.json and a table that it does not know."""
    row = json.loads((tally.store / "config/topics.json").read_bytes())["topicConfigTable"][TOPIC]
    if row.get("attributes") != {"retention.hours": str(RETENTION_HOURS)}:
        raise WrongError(f"topics.json has {row}: an update by the tool of 4.8.0 keeps the attribute")
    listing = peer.open_store(tally.store, (f"mappedFileSizeCommitLog={SEGMENT_BYTES}",), folder / "opened.json")
    queues = json.dumps(listing["opened"].get("queues", listing["opened"]))[:300]
    print(f"RocketMQ opens our store: {queues}")


# -- a group -----------------------------------------------------------------------------------------------------------


class Watch:
    """The first offsets that members have shown, by member and queue. WrongError: one shows a lower one than before."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], int] = {}
        self.looks = 0

    async def look(self, group: Group, *members: int) -> dict[int, list[int]]:
        """The first offsets of two queues at these members, or at all that answer."""
        found: dict[int, list[int]] = {0: [], 1: []}
        for member in group.members:
            if not member.alive or (members and member.number not in members):
                continue
            for queue_id, lows in found.items():
                if (low := await self._first(member.address, queue_id)) is not None:
                    before = self.seen.get((member.number, queue_id), 0)
                    if low < before:
                        raise WrongError(f"queue {queue_id} begins at {low} on {member.name}, and began at {before}")
                    self.seen[member.number, queue_id] = low
                    lows.append(low)
        self.looks += 1
        return found

    async def _first(self, broker: str, queue_id: int) -> int | None:
        async with ClusterClient("", timeout_s=5) as client:
            try:
                pulled = await client.pull(QueueAddress(TOPIC, "", broker, queue_id), 0, group="asks", count=1)
            except (RequestRefusedError, RemotingError, OSError):
                return None  # it starts, or does not know the topic yet
        return pulled.min_offset


async def group(folder: Path) -> None:
    clock = WallClock(folder / "shim")
    lab = Group(folder / "group", ("cleanResourceInterval=200", "mappedFileSizeCommitLog=1048576"))
    for member in lab.members:
        member.env = clock.env
    watch = Watch()
    try:
        clock.set(-5 * HOUR_S)
        await asyncio.to_thread(lab.start)
        while clock.offset_s < -2 * HOUR_S:
            await _send(lab, 2)
            await _pass_time(clock)
        await _set_retention(lab, RETENTION_HOURS)
        await _until_all(lab, watch, clock)
        print(f"all three members begin at {_lowest(watch)}")
        for number in range(KILLS):
            leader = lab.leader()
            if leader is None:
                raise ProcessError("no member leads")
            await _pass_time(clock)
            await _looks(lab, watch, 0.1 * number)
            shown = await watch.look(lab, leader.number)
            await asyncio.to_thread(leader.kill)
            await _leading(lab)
            taken_over = await watch.look(lab, *[member.number for member in lab.members if member is lab.leader()])
            if any(taken_over[queue_id] < lows for queue_id, lows in shown.items() if taken_over[queue_id]):
                raise WrongError(f"the new leader begins at {taken_over}, the killed one began at {shown}")
            await _looks(lab, watch, 3.0)
            await asyncio.to_thread(leader.launch)
            await asyncio.to_thread(lab.wait, lambda: lab.is_whole(0), 60, "the group is whole again")
            await _looks(lab, watch, 1.0)
            await _send(lab, 2)
            await _until_all(lab, watch, clock)
            print(f"kill {number + 1}: {watch.looks} looks, the queues begin at {_lowest(watch)}")
        await _set_retention(lab, 0)
        before = dict(watch.seen)
        await _looks(lab, watch, 1.0)
        await asyncio.to_thread(lab.stop)
        await asyncio.to_thread(lab.start)
        await _looks(lab, watch, 1.0)
        if watch.seen != before:
            raise WrongError(f"without a retention the queues begin at {watch.seen}, and began at {before}")
        await asyncio.to_thread(lab.stop)
    finally:
        lab.kill()


def _lowest(watch: Watch) -> list[int]:
    return [min(low for (_, queue_id), low in watch.seen.items() if queue_id == wanted) for wanted in (0, 1)]


async def _pass_time(clock: WallClock) -> None:
    """A step of the wall clock that brokers accept: less than an hour, and they look in between."""
    clock.set(clock.offset_s + STEP_S)
    await asyncio.sleep(0.5)


async def _leading(lab: Group) -> str:
    await asyncio.to_thread(lab.wait, lambda: None if lab.leader() else "no member leads", 60, "a member leads")
    leader = lab.leader()
    assert leader is not None, "it was waited for"
    return leader.address


async def _send(lab: Group, count: int) -> None:
    broker = await _leading(lab)
    async with ClusterClient(lab.nameserver, timeout_s=30) as client:
        try:
            await client.queues(TOPIC, writable=True)
        except RequestRefusedError:
            await client.create_topic(broker, TOPIC, 2)
        for number in range(count):
            await client.send(QueueAddress(TOPIC, "", broker, number % 2), b"%d" % number)


async def _set_retention(lab: Group, hours: int) -> None:
    async with ClusterClient("", timeout_s=30) as client:
        await client.create_topic(await _leading(lab), TOPIC, 2, attributes=f"+retention.hours={hours}")


async def _until_all(lab: Group, watch: Watch, clock: WallClock) -> None:
    """Returns when every member shows the first message that has not expired, in both queues."""

    async def begun() -> bool:
        found = await watch.look(lab)
        for queue_id, lows in found.items():
            wanted = await _first_kept(lab, clock, queue_id)
            if lows != [wanted] * len(lab.members):
                return False
        return True

    await _wait_for("all members begin at the first message that has not expired", begun, 60)


async def _first_kept(lab: Group, clock: WallClock, queue_id: int) -> int:
    """By the store times that the leader tells, and its clock. A message that expires in this minute counts as kept."""
    broker = await _leading(lab)
    now_ms = int((time.time() + clock.offset_s) * 1000)
    before_ms = (now_ms // 60_000 - RETENTION_HOURS * 60) * 60_000
    async with ClusterClient("", timeout_s=30) as client:
        queue = QueueAddress(TOPIC, "", broker, queue_id)
        low, high = await client.offset_range(queue)
        pulled = await client.pull(queue, low, group="asks")
    young = [each.queue_offset for each in pulled.records if each.store_timestamp_ms >= before_ms]
    return min(young, default=high)


async def _looks(lab: Group, watch: Watch, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await watch.look(lab)
        await asyncio.sleep(0.02)


RUNS = {"compare": compare, "group": group}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--only", choices=RUNS, help="one of the two")
    options = parser.parse_args(arguments)
    end_on_signals()
    with work_folder("expiry-", "stores and logs") as work:
        work.status = 0
        for name in [options.only] if options.only else RUNS:
            print(f"-- {name}")
            try:
                (work.path / name).mkdir()
                asyncio.run(RUNS[name](work.path / name))
            except WrongError as error:
                print(error, file=sys.stderr)
                work.status = max(work.status, 1)
            except (ProcessError, PeerMissingError, SkippedError, RemotingError, OSError) as error:
                print(f"{name} could not run: {error}", file=sys.stderr)
                work.status = 2
    return work.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
