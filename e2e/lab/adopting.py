"""The parts of `migrate_lab.py` in which a tallystick slave takes the place of a RocketMQ 4.8.0 master."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lab.adoption import NAME, AdoptLab, CuttingProxy
from lab.load import TOPICS, create_topics
from lab.pair import first_difference, log_end, wait_same_end
from lab.places import HOST
from lab.processes import ProcessError
from lab.readback import check_everything, wait_for_deliveries
from lab.send_again import JavaProducer, Sent

from tallystick.node.core.client import ClusterClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.store import fastjson

TWO, ONE, READ = "send-two", "send-one", "adopt-read"
JAVA_MESSAGES = 500
_CONSUME_S = 180
_GAP_LIMIT_S = 3.0
_AGAIN_S = 90.0
_PAUSE_S = 4


async def adopt(lab: AdoptLab) -> None:
    """A master is replaced under load: nothing acknowledged is lost or doubled, and the old master becomes a slave."""
    await prepare(lab)
    lab.say(f"tally migrate plan:\n{lab.migrate('plan')}")
    await lab.load(lab.messages // 2, lab.master)
    lab.slave.start()
    lab.other.start()
    lab.migrate("attach")
    await lab.load(lab.messages * 3 // 4, lab.master)
    lab.migrate("watch")
    lab.say(f"the slave follows: {await lab.follows()}")
    await java(lab, "produce", "--count", str(JAVA_MESSAGES), "--size", "200", "--mode", "sync")
    await consume(lab, JAVA_MESSAGES)
    with producing(lab):
        lab.say(f"tally migrate rehearse:\n{lab.migrate('rehearse', '--sample', '200')}")
        pause = ("--pause", str(_PAUSE_S))
        said = await lab.load(lab.messages, lab.master, then=lambda: lab.migrate("switch", *pause))
        lab.say(f"tally migrate switch:\n{said}")
        done = lab.slave.promote()  # it is done already: the figures
        lab.say(f"promoted: {done}, highest memory {lab.slave.memory_mib()} MiB")
    lab.say(f"tally migrate verify:\n{lab.migrate('verify')}")
    if done["strayBytes"]:
        lab.problems.add(f"the old master has messages that were not copied: {done}")
    await _compare(lab, done["end"])
    await lab.load(lab.messages + lab.messages // 10, lab.slave.address)
    await check_deliveries(lab, lab.slave.address)
    await java(lab, "produce", "--count", str(JAVA_MESSAGES), "--size", "200", "--mode", "sync")
    await consume(lab, JAVA_MESSAGES)
    await _return_as_slave(lab)


async def adopt_kill(lab: AdoptLab) -> None:
    """The master is killed with -9, the slave promoted without it; what is lost is counted, and all else is there. The
    old master comes back, and is made a slave."""
    await prepare(lab)
    lab.slave.start()
    await lab.load(lab.messages // 2, lab.master)
    await lab.follows()
    lab.slave.kill()
    lab.slave.start()
    await lab.load(lab.messages, lab.master, then=lambda: lab.peer.call("kill", NAME))
    done = await asyncio.to_thread(lab.slave.promote, "--master-is-stopped")
    lost = {name for name, place in lab.ledger.places.items() if place.pos >= done["end"]}
    for name in lost:
        del lab.ledger.places[name]
    lab.ledger.rows &= set(TOPICS)
    lab.ledger.delayed -= lost
    lab.ledger.committed.clear()  # ends of transactions have no place: one may be among what was not sent
    lab.say(f"killed and promoted: {done}; {len(lost)} acknowledged messages were not sent to the slave")
    read = await check_everything(lab.slave.address, lab.ledger, lab.rng, lab.problems)
    lab.say(f"the other {len(lab.ledger.places)} acknowledged messages are there ({read} read)")
    if await asyncio.to_thread(lambda: lab.peer.call("start", NAME)[0]) != 0:
        raise ProcessError("the old master did not start again")
    await _until_slave(lab)
    lab.slave.kill()
    lab.slave.start()
    lab.ledger.refused.clear()
    await lab.load(len(lab.ledger.places) + lab.messages // 10, lab.slave.address)
    await wait_for_deliveries(lab.slave.address, lab.ledger, lab.rng, lab.problems)


async def cuts(lab: AdoptLab) -> None:
    """The connection is cut 20 times at random bytes under load, and the slave killed twice: the logs are the same."""
    await prepare(lab)
    proxy = CuttingProxy(lab.peer.port + 1, 20, lab.rng, max(100_000, lab.messages * 15))
    port = await proxy.start()
    try:
        through = f"haMasterAddress={HOST}:{port}"
        lab.slave.start(through)
        for part in (1, 2, 3):
            await lab.load(lab.messages * part // 3, lab.master)
            if part < 3:
                lab.slave.kill()
                lab.slave.start(through)
        deadline = time.monotonic() + _AGAIN_S
        while proxy.left > 0 and time.monotonic() < deadline:
            await lab.load(len(lab.ledger.places) + lab.messages // 20, lab.master)
            await asyncio.sleep(1.0)
        await lab.follows()
        if proxy.left > 0:
            lab.problems.add(f"{proxy.left} of 20 cuts were not made")
        await _compare(lab, await wait_same_end(lab.master, lab.slave.address))
        lab.say(f"20 cuts and 2 kills: {lab.slave.copy()}")
    finally:
        await proxy.close()


# -- what the parts share ----------------------------------------------------------------------------------------------


@contextmanager
def producing(lab: AdoptLab) -> Iterator[None]:
    """Two Java producers send meanwhile, and have to send again afterwards; then they are judged."""
    producers = [JavaProducer(lab.peer, lab.peer.nameserver, 1000, topic) for topic in (TWO, ONE)]
    try:
        for producer in producers:
            producer.wait_for_send(0)
        began_ms = now_ms()
        yield
        ended_ms = now_ms()
        for producer in producers:
            producer.wait_for_send(ended_ms)
    finally:
        for producer in producers:
            producer.end()
    judge(lab, producers, began_ms)


async def check_deliveries(lab: AdoptLab, address: str) -> None:
    """All acknowledged messages are at the broker, and what waits is delivered once."""
    again = await wait_for_deliveries(address, lab.ledger, lab.rng, lab.problems)
    if again:
        lab.problems.add(f"{again} delayed or committed messages came more than once")
    lab.say(f"all {len(lab.ledger.places)} acknowledged messages are at their places, {again} came twice")


async def prepare(lab: AdoptLab) -> None:
    await create_topics(lab.master)
    async with ClusterClient(lab.peer.nameserver, timeout_s=30) as client:
        for topic in (TWO, ONE, READ):
            await client.create_topic(lab.master, topic, 4)
        await client.create_topic(f"{HOST}:{lab.peer.port + 10}", TWO, 4)


async def java(lab: AdoptLab, what: str, *arguments: str) -> None:
    """Runs RocketMQ's Java client with topic READ."""
    command = ["probe", what, "--topic", READ, *arguments, "-n", lab.peer.nameserver]
    status, output = await asyncio.to_thread(lab.peer.call, *command)
    if status != 0:
        lab.problems.add(f"the Java client's {what} failed: {output[-300:]}")


async def consume(lab: AdoptLab, count: int) -> None:
    """A Java group reads exactly the messages that it has not read."""
    options = ("--expect", str(count), "--group", "adopt-group", "--timeout", str(_CONSUME_S), "--quiet")
    await java(lab, "consume-push", *options)
    lab.say(f"a Java group read the {count} messages that it had not read")


def judge(lab: AdoptLab, producers: list[JavaProducer], began_ms: int) -> None:
    two, one = ([sent for sent in producer.sends() if sent.end_ms >= began_ms] for producer in producers)
    failed = [sent for sent in two if not sent.ok]
    lab.say(f"a producer with two groups: {len(two)} sends, {len(failed)} failed; longest {_longest(two):.2f} s")
    if failed:
        lab.problems.add(f"a producer with two groups saw {len(failed)} failed sends: {failed[0].text}")
    gap = _gap(one)
    refused = sum(not sent.ok for sent in one)
    lab.say(f"a producer with one group: {len(one)} sends, {refused} failed; no success for {gap:.2f} s")
    if gap >= _GAP_LIMIT_S:
        lab.problems.add(f"a producer with one group could not send for {gap:.2f} s")


def _longest(sends: list[Sent]) -> float:
    return max((sent.end_ms - sent.begin_ms for sent in sends), default=0) / 1000


def _gap(sends: list[Sent]) -> float:
    """The longest time from an acknowledged send to the next one."""
    ends = [sent.end_ms for sent in sends if sent.ok]
    return max((b - a for a, b in itertools.pairwise(ends)), default=0) / 1000


async def _compare(lab: AdoptLab, end: int) -> None:
    at = first_difference(lab.commitlog, lab.slave.commitlog, end)
    if at is not None:
        lab.problems.add(f"the slave's log differs from the master's at byte {at} of {end}")
    lab.say(f"the first {end} bytes of both logs are the same")


async def addresses(lab: AdoptLab) -> dict[int, str]:
    async with ClusterClient(lab.peer.nameserver, timeout_s=30) as client:
        answer = await client.ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO, {})
    found = fastjson.loads(answer.body)["brokerAddrTable"][NAME]["brokerAddrs"]
    return {int(number): address for number, address in found.items()}


async def _until_slave(lab: AdoptLab) -> None:
    """Returns when the name server has this broker as the master, and the old one as its slave."""
    wanted, found = {0: lab.slave.address, 1: lab.master}, {}
    deadline = time.monotonic() + _AGAIN_S
    while time.monotonic() < deadline:
        found = await addresses(lab)
        if found == wanted:
            lab.say(f"the name server has {found}")
            return
        await asyncio.sleep(0.2)
    lab.problems.add(f"the name server has {found}, not {wanted}")


async def _return_as_slave(lab: AdoptLab) -> None:
    """The old master, started again as the promotion has left it, copies what the new one has."""
    await _until_slave(lab)
    for what in ("stop", "start"):
        if await asyncio.to_thread(lambda what=what: lab.peer.call(what, NAME)[0]) != 0:  # type: ignore[misc]
            raise ProcessError(f"the old master: {what} failed")
    await _until_slave(lab)
    end = await wait_same_end(lab.slave.address, lab.master)
    await _compare(lab, end)
    lab.say(f"the old master is a slave of the new one, at {await log_end(lab.master)}")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
