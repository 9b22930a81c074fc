"""The admin core against our node, our group of three, and RocketMQ, compared with what RocketMQ's admin tool shows.

    .venv/bin/python e2e/admin_lab.py --system rocketmq

Each step reads or changes something with `tallystick.admin`, and `mqadmin` says what is there. Java clients of RocketMQ
produce and consume.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable

from client_suite.access import Access
from client_suite.running import add_system_options, try_systems
from client_suite.systems import System
from lab.peer import Peer
from lab.processes import ProcessError

from tallystick.admin import Admin, OffsetTarget
from tallystick.admin.models import Change, Consumption, OffsetChange, StepState, TopicConfig
from tallystick.client import Start

_TOPIC, _GROUP, _MESSAGES = "AdminLab", "admin-lab", 40
_WAIT_S = 60.0


class Lab:
    """The admin core and the admin tool of one system."""

    def __init__(self, admin: Admin, peer: Peer, nameserver: str) -> None:
        self.admin = admin
        self._peer = peer
        self._nameserver = nameserver

    async def mqadmin(self, *arguments: str) -> str:
        """What the admin tool prints."""
        return (await self._call("mqadmin", *arguments))[1]

    async def probe(self, *arguments: str) -> None:
        """A program with the Java client. ProcessError: it did not do what it should."""
        status, output = await self._call("probe", *arguments)
        if status != 0:
            raise ProcessError(f"probe {arguments[0]}: {output[-300:]}")

    async def _call(self, *arguments: str) -> tuple[int, str]:
        return await asyncio.to_thread(self._peer.call, *arguments, "-n", self._nameserver, timeout_s=120)


def _failed(result: Change | OffsetChange) -> list[str]:
    return [f"{step}" for step in result.steps if step.state is StepState.FAILED]


async def topics(lab: Lab) -> list[str]:
    """A topic that is created here is the one that the admin tool shows."""
    wanted = {"read_queues": 4, "write_queues": 4}
    wrong = _failed(await lab.admin.topics.put(_TOPIC, wanted, dry_run=True))
    if _TOPIC in (await lab.mqadmin("topicList")).split():
        wrong.append("the dry run created the topic")
    wrong += _failed(await lab.admin.topics.put(_TOPIC, wanted))
    topic = (await lab.admin.topics.get(_TOPIC)).topic
    if list(topic.configs.values()) != [TopicConfig(4, 4)]:
        wrong.append(f"it is {topic.configs}")
    if _TOPIC not in (await lab.mqadmin("topicList")).split():
        wrong.append("mqadmin does not list the topic")
    listed = {each.name for each in (await lab.admin.topics.list(system=True)).items}
    of_tool = set((await lab.mqadmin("topicList")).split())
    if missing := {name for name in of_tool - listed if re.fullmatch(r"[%|\w-]+", name)}:
        wrong.append(f"mqadmin lists {missing} as well")
    return wrong


async def offsets_of_queues(lab: Lab) -> list[str]:
    """The offsets of queues are those of `topicStatus`."""
    await lab.probe(
        *("produce", "--topic", _TOPIC, "--count", str(_MESSAGES), "--size", "50", "--mode", "sync", "--tag", "A,B"),
        *("--key", "k%d"),
    )
    detail = await lab.admin.topics.get(_TOPIC)
    mine = {(each.broker, each.queue, each.min, each.max) for each in detail.queues}
    rows = re.findall(r"(?m)^(\S+)\s+(\d+)\s+(\d+)\s+(\d+)", await lab.mqadmin("topicStatus", "-t", _TOPIC))
    theirs = {(broker, int(queue), int(low), int(high)) for broker, queue, low, high in rows}
    return [] if mine == theirs and detail.topic.messages == _MESSAGES else [f"{mine} is not {theirs}"]


async def progress(lab: Lab) -> list[str]:
    """Lag and offsets of a group are those of `consumerProgress`."""
    await lab.probe("consume-push", "--topic", _TOPIC, "--sub", "*", "--group", _GROUP, "--expect", str(_MESSAGES))
    await lab.probe("produce", "--topic", _TOPIC, "--count", "8", "--size", "50", "--mode", "sync")
    detail = await lab.admin.groups.get(_GROUP)
    mine = {
        (each.broker, each.queue, each.broker_offset, each.consumer_offset)
        for each in detail.queues
        if each.topic == _TOPIC
    }
    output = await lab.mqadmin("consumerProgress", "-g", _GROUP)
    rows = re.findall(rf"(?m)^{_TOPIC}\s+(\S+)\s+(\d+)\s+(\d+)\s+(\d+)", output)
    theirs = {(broker, int(queue), int(end), int(offset)) for broker, queue, end, offset in rows}
    total = re.search(r"Diff Total: (\d+)", output)
    wrong = [] if mine == theirs else [f"{mine} is not {theirs}"]
    if total is None or detail.group.lag != int(total[1]):
        wrong.append(f"the lag {detail.group.lag} is not that of mqadmin: {total}")
    if not all(each.lag_s is not None and each.lag_s > 0 for each in detail.queues if each.lag):
        wrong.append("a queue with lag has no age")
    listed = {each.name: each.lag for each in (await lab.admin.groups.list()).items}
    if listed.get(_GROUP) != detail.group.lag:
        wrong.append(f"the list shows the lag {listed.get(_GROUP)}")
    return wrong


async def messages(lab: Lab) -> list[str]:
    """Messages are found by id, by key and in a window, and the admin tool shows the same."""
    everything, cursor = [], None
    while True:
        page = await lab.admin.messages.search(_TOPIC, 0, 1 << 60, cursor=cursor, limit=7)
        everything += page.items
        cursor = page.cursor
        if cursor is None:
            break
    wrong = [] if len({each.id for each in everything}) == len(everything) == _MESSAGES + 8 else ["the window differs"]
    (found,) = await lab.admin.messages.by_key(_TOPIC, "k7")
    message = await lab.admin.messages.get(found.id)
    shown = await lab.mqadmin("queryMsgById", "-i", found.id)
    for text in (found.id, found.born_host, "k7"):
        if text not in shown:
            wrong.append(f"mqadmin does not show {text}: {shown[:500]}")
    if not message.body_crc_ok or (await lab.admin.messages.by_unique_key(_TOPIC, found.unique_key))[0].id != found.id:
        wrong.append("the message is not found by its unique key")
    tracks = {each.group: each.state for each in await lab.admin.messages.tracks(message)}
    if tracks.get(_GROUP) is not Consumption.CONSUMED:
        wrong.append(f"the track is {tracks}")
    return wrong


async def offsets(lab: Lab) -> list[str]:
    """Offsets of a group without members are reset and cloned, as the admin tool then shows."""

    async def diff(group: str) -> int:
        total = re.search(r"Diff Total: (\d+)", await lab.mqadmin("consumerProgress", "-g", group))
        return -1 if total is None else int(total[1])

    wrong = []
    for target, lag in (
        (OffsetTarget.earliest(), _MESSAGES + 8),
        (OffsetTarget.latest(), 0),
        (OffsetTarget.shift(-1), 4),
        (OffsetTarget.timestamp(0), _MESSAGES + 8),
    ):
        wrong += _failed(await lab.admin.offsets.reset(_GROUP, _TOPIC, target))
        if (found := await diff(_GROUP)) != lag:
            wrong.append(f"after a reset to {target} the lag is {found}")
    await lab.admin.groups.put("admin-lab-clone", {})
    wrong += _failed(await lab.admin.offsets.clone(_GROUP, "admin-lab-clone", _TOPIC))
    detail = await lab.admin.groups.get("admin-lab-clone")
    if detail.group.lag != _MESSAGES + 8:
        wrong.append(f"the clone has the lag {detail.group.lag}")
    return wrong


async def members(lab: Lab) -> list[str]:
    """Connected members are shown, and take a reset of their offsets."""
    admin = lab.admin
    async with admin.client.consumer("admin-lab-online", _TOPIC, start=Start.FIRST) as consumer:
        seen: set[str] = set()
        wrong: list[str] = []
        told = False
        async with asyncio.timeout(_WAIT_S):
            async for message in consumer:
                async with message.process(reraise=True):
                    seen.add(message.message_id)
                if len(seen) == _MESSAGES + 8 and not told:
                    await consumer.commit()
                    told = True
                    seen.clear()
                    detail = await admin.groups.get("admin-lab-online")
                    if [each.connection.client_id for each in detail.members] != [admin.client.id] or detail.problems:
                        wrong.append(f"members {detail.members}, problems {detail.problems}")
                    change = await admin.offsets.reset("admin-lab-online", _TOPIC, OffsetTarget.earliest())
                    if not change.online or _failed(change):
                        wrong.append(f"the reset is {change}")
                elif told and len(seen) == _MESSAGES + 8:
                    break
    return wrong


async def dead_letters(lab: Lab) -> list[str]:
    """Dead letters are listed, although their topic cannot be read, and consumed after they are sent again."""
    admin, group = lab.admin, "admin-lab-dead"
    async with asyncio.timeout(_WAIT_S), admin.client.consumer(group, _TOPIC, start=Start.FIRST) as consumer:
        count = 0
        async for message in consumer:
            if count < 5:
                await message.dead_letter()
            else:
                await message.ack()
            count += 1
            if count == _MESSAGES + 8:
                break
    found = {each.group: each.messages for each in await admin.dead_letters.groups()}
    page = await admin.dead_letters.list(group)
    wrong = [] if found.get(group) == len(page.items) == 5 else [f"{found}, listed {len(page.items)}"]
    wrong += [str(each) for each in await admin.dead_letters.resend(group, None) if each.state is not StepState.DONE]
    async with asyncio.timeout(_WAIT_S), admin.client.consumer(group, _TOPIC) as consumer:
        again = set()
        async for message in consumer:
            async with message.process(reraise=True):
                again.add((message.topic, message.unique_key))
            if len(again) == 5:
                break
    if again != {(_TOPIC, each.unique_key) for each in page.items}:
        wrong.append(f"{again} came again")
    return wrong


async def settings(lab: Lab) -> list[str]:
    """A setting that is changed here is what the admin tool shows."""
    cluster = (await lab.admin.clusters.list())[0].name
    wrong = _failed(await lab.admin.config.set(cluster, {"transactionCheckMax": "20"}, dry_run=True))
    wrong += _failed(await lab.admin.config.set(cluster, {"transactionCheckMax": "20"}))
    if not re.search(r"transactionCheckMax\s+=\s+20\b", await lab.mqadmin("getBrokerConfig", "-c", cluster)):
        wrong.append("mqadmin shows another value")
    found = {each.name: each for each in await lab.admin.config.settings(cluster)}
    if set(found["transactionCheckMax"].values.values()) != {"20"}:
        wrong.append(f"it is {found['transactionCheckMax']}")
    return wrong


async def brokers(lab: Lab) -> list[str]:
    """Brokers are those of `clusterList`."""
    clusters = await lab.admin.clusters.list()
    mine = {(cluster.name, each.name, str(each.id), each.address) for cluster in clusters for each in cluster.brokers}
    rows = set(re.findall(r"(?m)^(\w\S*)\s+(\S+)\s+(\d+)\s+(\d+\.\d+\.\d+\.\d+:\d+)", await lab.mqadmin("clusterList")))
    wrong = [] if mine == rows else [f"{mine} is not {rows}"]
    return wrong + [str(each) for cluster in clusters for each in cluster.brokers if not each.reachable]


async def ends(lab: Lab) -> list[str]:
    """Groups and topics that are deleted here are gone for the admin tool."""
    wrong = _failed(await lab.admin.groups.delete("admin-lab-clone"))
    wrong += _failed(await lab.admin.topics.delete(_TOPIC))
    if _TOPIC in (await lab.mqadmin("topicList")).split():
        wrong.append("mqadmin still lists the topic")
    return wrong


STEPS: tuple[Callable[[Lab], Awaitable[list[str]]], ...] = (
    *(topics, offsets_of_queues, progress, messages, offsets, members, dead_letters, settings, brokers, ends),
)


async def _steps(system: System, peer: Peer) -> bool:
    """Runs all steps. Returns whether something is wrong."""
    failed = False
    async with Admin(system.nameserver, timeout=15.0) as admin:
        lab = Lab(admin, peer, system.nameserver)
        for step in STEPS:
            begin_s = time.monotonic()
            try:
                wrong = await step(lab)
            except Exception as error:
                wrong = [f"{type(error).__name__}: {error}", *traceback.format_tb(error.__traceback__)[-2:]]
            failed |= bool(wrong)
            print(f"{'WRONG' if wrong else 'ok':5} {step.__name__} ({time.monotonic() - begin_s:.1f} s)", flush=True)
            for line in wrong[:10]:
                print(f"      {line}", flush=True)
    return failed


def main() -> int:
    """Returns the exit code of `try_systems`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_system_options(parser)
    return try_systems(
        "admin",
        parser.parse_args(),
        lambda folder: Access(),
        lambda system, peer: asyncio.run(_steps(system, peer)),
    )


if __name__ == "__main__":
    sys.exit(main())
