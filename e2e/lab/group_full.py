"""The part of `migrate_lab.py` that moves a store of 2 GiB under 5 000 messages a second: `make migrate-lab FULL=1`.

RocketMQ's benchmark producer fills the store of the master, and sends on during the load; the lab's own producers send
delayed messages, batches, transactions and messages that consumers send back; Java consumers of three kinds run through
the switch. The rates are measured, because no machine promises them.
"""

from __future__ import annotations

import asyncio
import time

from lab.adopting import JAVA_MESSAGES, consume, java, prepare, producing
from lab.consumers import Consumers
from lab.group_adopting import GroupAdoptLab, judge_group
from lab.group_chaos import compare_with_master, ledger_of
from lab.load import Shape, run_load
from lab.pair import NotReadyError, log_end, runtime
from lab.processes import ProcessError

from tallystick.node.core.client import ClusterClient
from tallystick.node.remoting.errors import RemotingError

LOG_BYTES = 64 << 20
STORE_BYTES = 2 << 30
RATE = 5000
"""Messages a second that the load shall reach."""
_TOPIC = "adopt-bench"
_FILL_S = 20
_MOST_FILLS = 15
_LOAD_S = 60
_SHAPE = Shape(connections=2, senders=4, rest_s=0.02, new_topics=0.0)
_CONSUMERS_S = 500
_PAUSE_S = 4


async def full(lab: GroupAdoptLab) -> None:
    """See the module."""
    await prepare(lab)
    async with ClusterClient(lab.peer.nameserver, timeout_s=30) as client:
        await client.create_topic(lab.master, _TOPIC, 8)
    await _fill(lab)
    end, began = await log_end(lab.master), time.monotonic()
    await asyncio.to_thread(lab.start, "flushDiskType=SYNC_FLUSH")
    await asyncio.to_thread(lab.other.start)
    await lab.group_follows()
    seconds = time.monotonic() - began
    rate = f"{end / seconds / 1e6:.0f} MB/s, memory of its members {_memory(lab)}"
    lab.say(f"the group has {end >> 20} MiB {seconds:.0f} s after its start: {rate}")
    consumers = Consumers(lab)
    await consumers.start(2, _CONSUMERS_S)
    await consumers.send()
    await java(lab, "produce", "--count", str(JAVA_MESSAGES), "--size", "200", "--mode", "sync")
    await consume(lab, JAVA_MESSAGES)
    await _load(lab)
    await _switch(lab)
    await consumers.send()
    await consumers.judge()
    lab.ledger.forget_positions()
    await judge_group(lab)


async def _bench(lab: GroupAdoptLab, seconds: int, threads: int, size: int) -> None:
    command = ["bench-produce", "--seconds", str(seconds), "-t", _TOPIC, "-w", str(threads), "-s", str(size)]
    status, output = await asyncio.to_thread(lab.peer.call, *command, "-n", lab.peer.nameserver)
    if status != 0:
        lab.problems.add(f"RocketMQ's benchmark producer: {output[-300:]}")


async def _fill(lab: GroupAdoptLab) -> None:
    """Fills the store of the master. ProcessError: it takes too long."""
    for _ in range(_MOST_FILLS):
        await _bench(lab, _FILL_S, 8, 4096)
        if (end := await log_end(lab.master)) >= STORE_BYTES:
            lab.say(f"the master has {end >> 20} MiB")
            return
    raise ProcessError(f"the master has only {await log_end(lab.master) >> 20} MiB")


async def _load(lab: GroupAdoptLab) -> None:
    """All kinds of messages, and the benchmark's, for a minute, in which the leader and another member are killed."""
    stop = asyncio.Event()
    mixed = asyncio.create_task(run_load(lab.master, lab.ledger, f"{lab.seed}.full", _SHAPE, lab.seed, stop))
    bench = asyncio.create_task(_bench(lab, _LOAD_S, 8, 512))
    await asyncio.sleep(_LOAD_S / 6)  # the benchmark has to start
    before, began = await _puts(lab), time.monotonic()
    for victim in (lab.leader(), lab.rng.choice(lab.members)):
        await asyncio.sleep(_LOAD_S / 6)
        victim.kill()
        await asyncio.sleep(2.0)
        await asyncio.to_thread(victim.start, "flushDiskType=SYNC_FLUSH")
    rate = (await _puts(lab) - before) / (time.monotonic() - began)
    behind = await _behind(lab)
    await bench
    stop.set()
    await mixed
    lab.say(f"{rate:.0f} messages a second, of {RATE} wanted, and 2 kills; the group was then {behind} bytes behind")
    began = time.monotonic()
    await lab.group_follows()
    lab.say(f"the group has all of it {time.monotonic() - began:.1f} s after the load ended")


def _memory(lab: GroupAdoptLab) -> str:
    """Of the members, without pages of files."""
    return ", ".join(f"{member.own_memory_mib()} MiB" for member in lab.members)


async def _puts(lab: GroupAdoptLab) -> int:
    return int((await runtime(lab.master))["putMessageTimesTotal"])


async def _behind(lab: GroupAdoptLab) -> str:
    try:
        copy = (await asyncio.to_thread(lambda: lab.leader().node()))["copy"]
        return str(await log_end(lab.master) - int(copy["safePos"]))
    except (OSError, KeyError, RemotingError, NotReadyError):
        return "an unknown number of"


async def _switch(lab: GroupAdoptLab) -> None:
    with producing(lab):
        said = await lab.load(
            len(lab.ledger.places) + 2000, lab.master, then=lambda: lab.migrate("switch", "--pause", str(_PAUSE_S))
        )
        done = await asyncio.to_thread(lab.promote)
    lab.say(f"tally migrate switch:\n{said}promoted: {done}\n{lab.migrate('verify')}")
    if done["strayBytes"]:
        lab.problems.add(f"the old master has messages that were not copied: {done}")
    arguments = (lab.commitlog, ledger_of(lab.leader()), done["end"], lab.problems)
    count = await asyncio.to_thread(lambda: compare_with_master(*arguments, more=True))
    lab.say(f"the group has all {count} records of the master's log; memory of its members {_memory(lab)}")
