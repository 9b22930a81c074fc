"""Java consumers of three kinds that run through a switch: SQL92 in a group, orderly in a group, broadcasting.

Each of them must get every message of its topic that it subscribed to, sent before the switch and after it, once.
"""

from __future__ import annotations

import asyncio
import time

from lab.adoption import AdoptLab
from lab.processes import ProcessError

from tallystick.node.core.client import ClusterClient, RequestRefusedError
from tallystick.node.remoting.codes import RequestCode

TOPIC = "adopt-kinds"
MESSAGES = 400
"""That `send` sends at a time."""
_QUEUES = 4
_JOIN_S = 90.0
_KINDS = {
    "sql": ("--sql", f"num >= {MESSAGES // 2}"),
    "orderly": ("--orderly",),
    "broadcasting": ("--model", "broadcasting"),
}
_PARTS = {"sql": 2, "orderly": 1, "broadcasting": 1}  # one message in so many is for this kind


class Consumers:
    """The consumers of one lab. Call `start`, then `send` and `judge` around the switch."""

    def __init__(self, lab: AdoptLab) -> None:
        self._lab = lab
        self._sent = 0
        self._tasks: dict[str, asyncio.Task[tuple[int, str]]] = {}

    async def start(self, sends: int, timeout_s: int) -> None:
        """Starts them; they wait for so many calls of `send`. ProcessError: they do not connect."""
        lab = self._lab
        async with ClusterClient(lab.peer.nameserver, timeout_s=30) as client:
            await client.create_topic(lab.master, TOPIC, _QUEUES)
        for kind, options in _KINDS.items():
            expect = sends * MESSAGES // _PARTS[kind]
            command = ["probe", "consume-push", "--topic", TOPIC, *options, "--group", f"adopt-{kind}", "--quiet"]
            command += ["--expect", str(expect), "--timeout", str(timeout_s), "--settle", "3000"]
            command += ["-n", lab.peer.nameserver]
            self._tasks[kind] = asyncio.create_task(asyncio.to_thread(lab.peer.call, *command))
        deadline = time.monotonic() + _JOIN_S
        missing = set(_KINDS)
        async with ClusterClient(lab.peer.nameserver, timeout_s=30) as client:
            while missing:
                if time.monotonic() > deadline:
                    raise ProcessError(f"these consumers do not connect: {sorted(missing)}")
                for kind in tuple(missing):
                    ext = {"consumerGroup": f"adopt-{kind}"}
                    try:
                        await client.call(lab.master, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
                    except RequestRefusedError:
                        continue  # no consumer of this group yet
                    missing.discard(kind)
                await asyncio.sleep(0.2)

    async def send(self) -> None:
        """Sends `MESSAGES` messages with a property that rises from 0."""
        lab = self._lab
        command = ["probe", "produce", "--topic", TOPIC, "--count", str(MESSAGES), "--size", "200", "--mode", "sync"]
        command += ["--prop", "num=%d", "--seed", str(self._sent), "-n", lab.peer.nameserver]
        self._sent += 1
        status, output = await asyncio.to_thread(lab.peer.call, *command)
        if status != 0:
            lab.problems.add(f"messages for consumers of all kinds: {output[-300:]}")

    async def judge(self) -> None:
        """Waits for the consumers, and notes what they did not get, or got twice."""
        for kind, task in self._tasks.items():
            status, output = await task
            if status != 0:
                self._lab.problems.add(f"the {kind} consumer: {output[-400:]}")
        self._lab.say(
            f"consumers of the kinds {', '.join(self._tasks)} got all of {self._sent * MESSAGES} messages once"
        )
