"""Runs in a pod beside the cluster, with nothing but the node image: clients that note all they do.

load.py send NAMESERVERS BROKER TOPIC QUEUES LABEL   until SIGUSR1; then it writes /tmp/history.jsonl
load.py read TOPIC QUEUES MEMBER...                  every queue as each member has it: a line for it, one a
                                    message, and an empty one between queues; before them, how many seconds it
                                    took until all members had the same ends of queues, at most a minute

`send` has two senders at their ease, and a probe that begins a send every 20 ms whatever became of those before, and
sends a message again until it is acknowledged, for as long as a Java client would (3 s). Twice a second it prints how
it stands. A name server that is gone takes a second to be found so; therefore each is asked on its own, and the last
one that has news is believed.

A connection to a broker that led is closed when all that was sent on it is over, as a client does that has seen another
route: a member that stops waits for those that have not.

With a folder /ca, connections use TLS and trust the authorities that the folder had when the program began. With
folders /users/NAME, requests are signed as the user whose name is in the file /tmp/user, with the password of that
folder.

Times are of the monotonic clock, which containers of one machine share with who watches them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import ssl
import sys
import time
from dataclasses import astuple, dataclass, field
from pathlib import Path

from lab.group_sender import SEND_S, GroupSender, Post, steadily
from lab.history import History, Outcome
from lab.ledger import body_id, digest

from tallystick.node.access.signatures import sign
from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.node.remoting.errors import RemotingError

HISTORY = Path("/tmp/history.jsonl")
_AUTHORITIES, _USERS, _USER = Path("/ca/ca.crt"), Path("/users"), Path("/tmp/user")

_SENDERS = 2
_REST_S = 0.08
_PROBE_PERIOD_S = 0.02
_PROBES_AT_A_TIME = 300
_LOOK_S = 0.02
_TELL_S = 0.5
_CATCH_UP_S = 60


class Identity:
    """How the clients connect and sign."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None
        if _AUTHORITIES.exists():
            self._context = ssl.create_default_context(cadata=_AUTHORITIES.read_text())
        self._signs = _USERS.exists()
        self.user, self._password = "", ""
        self.look()

    def look(self) -> None:
        """Takes the user of the file."""
        if self._signs:
            names = sorted(each.name for each in _USERS.iterdir())
            self.user = _USER.read_text().strip() if _USER.exists() else names[0]
            self._password = (_USERS / self.user / "password").read_text()

    def tls(self) -> ssl.SSLContext | None:
        return self._context

    def sign(self, command: Command) -> None:
        if self._signs:
            sign(command, self.user, self._password)

    def cluster(self, name_servers: str, timeout_s: float) -> ClusterClient:
        return ClusterClient(name_servers, timeout_s=timeout_s, tls=self.tls, sign=self.sign)


_me = Identity()


@dataclass(slots=True)
class Target:
    """Where the leader is, by the name servers."""

    name_servers: list[str]
    broker: str
    address: str = ""
    known: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, name_server: str) -> None:
        """Until it is cancelled."""
        before = ""
        async with _me.cluster(name_server, 1.0) as client:
            while True:
                try:
                    address = (await client.masters()).get(self.broker, "")
                    if address and address != before:
                        self.address = before = address
                        self.known.set()
                except (RemotingError, KeyError, ValueError):
                    before = ""  # what it says when it is back is news
                await asyncio.sleep(_LOOK_S)


class Sender:
    """Sends to the current leader; pending sends to an earlier leader continue."""

    def __init__(self, name: str, history: History, header: HeaderType, target: Target) -> None:
        self._name, self._history, self._header, self._target = name, history, header, target
        self._address, self._sender = target.address, self._make()
        self._closing: set[asyncio.Task[None]] = set()

    async def send(self, post: Post, timeout_s: float = SEND_S) -> bool:
        if self._target.address != self._address:
            self._closing.add(asyncio.create_task(self._close(self._sender)))
            self._address, self._sender = self._target.address, self._make()
        return await self._sender.send(self._address, post, timeout_s) is not None

    def _make(self) -> GroupSender:
        client = RemotingClient(name=f"load.{self._name}", connect_timeout_s=1.0, tls=_me.tls)
        return GroupSender(self._name, self._history, self._header, client, _me.sign)

    async def close(self) -> None:
        for task in self._closing:
            task.cancel()
        await self._sender.close()

    async def _close(self, sender: GroupSender) -> None:
        await asyncio.sleep(SEND_S)
        await sender.close()


class Load:
    def __init__(self, target: Target, topic: str, queues: int, label: str) -> None:
        self.history = History()
        self.deliveries: list[tuple[float, float | None, int]] = []
        self._target, self._topic, self._queues, self._label = target, topic, queues, label
        self._numbers = itertools.count()
        self._last_s = 0.0
        self._stop = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(self._target.follow(each)) for each in self._target.name_servers]
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._stop.set)
            await self._target.known.wait()
            telling = tasks.create_task(self._tell())
            working = [tasks.create_task(self._send_many(number)) for number in range(_SENDERS)]
            working.append(tasks.create_task(self._probe()))
            await asyncio.wait(working)
            for task in (*following, telling):
                task.cancel()

    async def _tell(self) -> None:
        while True:
            acknowledged = sum(send.outcome is Outcome.OK for send in self.history.sends)
            _me.look()
            print(f"acknowledged {acknowledged} last {self._last_s:.3f} leader {self._target.address}", flush=True)
            await asyncio.sleep(_TELL_S)

    def _message(self, size: int) -> tuple[str, bytes]:
        key = f"{self._label}.{next(self._numbers)}"
        return key, f"{key}|".encode() + random.randbytes(size)

    async def _send_many(self, number: int) -> None:
        sender = Sender(f"sender-{number}", self.history, HeaderType.JSON, self._target)
        try:
            while not self._stop.is_set():
                queue = self._topic, random.randrange(self._queues)
                post = Post(queue, [self._message(random.choice((0, 100, 1000))) for _ in range(random.choice((1, 4)))])
                while not await sender.send(post):
                    if self._stop.is_set() or random.random() < 0.1:  # some are given up
                        break
                    await asyncio.sleep(random.uniform(0, 2 * _LOOK_S))
                await asyncio.sleep(random.uniform(0, _REST_S))
        finally:
            await sender.close()

    async def _probe(self) -> None:
        sender = Sender("probe", self.history, HeaderType.ROCKETMQ, self._target)
        try:
            await steadily(lambda: self._deliver(sender), self._stop, period_s=_PROBE_PERIOD_S, most=_PROBES_AT_A_TIME)
        finally:
            await sender.close()

    async def _deliver(self, sender: Sender) -> None:
        message, begin_s, tries = self._message(50), time.monotonic(), 0
        while (left_s := begin_s + SEND_S - time.monotonic()) > 0:
            tries += 1
            if await sender.send(Post((self._topic, 0), [message]), max(0.1, left_s)):
                self._last_s = max(self._last_s, begin_s)
                self.deliveries.append((begin_s, time.monotonic(), tries))
                return
            await asyncio.sleep(_LOOK_S)
        self.deliveries.append((begin_s, None, tries))

    def write(self) -> None:
        """A line for each attempt, and one for each message of the probe."""
        with HISTORY.open("w") as file:
            for send in self.history.sends:
                client, queue, key, body, invoked_s, ended_s, outcome, *place, broker, reason = astuple(send)
                row = [client, queue, key, body.hex(), invoked_s, ended_s, outcome.value, *place, broker, reason]
                file.write(json.dumps({"send": row}) + "\n")
            for delivery in self.deliveries:
                file.write(json.dumps({"delivery": delivery}) + "\n")


async def send(name_servers: str, broker: str, topic: str, queues: int, label: str) -> None:
    load = Load(Target(name_servers.split(";"), broker), topic, queues, label)
    await load.run()
    load.write()
    print(f"finished {len(load.history.sends)}", flush=True)
    await asyncio.Event().wait()  # the test that started it fetches the file first


async def _wait_for_equal_ends(client: ClusterClient, topic: str, queues: int, members: list[str]) -> float:
    """Returns after how many seconds no member was behind another one, or after a minute.

    A follower that was cut off for a moment is Ready all the time, because no probe met the moment. It still has to
    fetch what was acknowledged meanwhile.
    """
    begin_s = time.monotonic()
    while time.monotonic() < begin_s + _CATCH_UP_S:
        ends = [
            [(await client.offset_range(QueueAddress(topic, "", member, queue)))[1] for queue in range(queues)]
            for member in members
        ]
        if all(theirs == ends[0] for theirs in ends):
            break
        await asyncio.sleep(_LOOK_S)
    return time.monotonic() - begin_s


async def read(topic: str, queues: int, members: list[str]) -> None:
    texts = []
    async with _me.cluster("", 30.0) as client:
        texts.append(json.dumps(await _wait_for_equal_ends(client, topic, queues, members)))
        for member in members:
            for queue in range(queues):
                where = QueueAddress(topic, "", member, queue)
                low, high = await client.offset_range(where)
                rows: list[object] = [{"member": member, "queue": queue, "first": low}]
                at = low
                while at < high:
                    pulled = await client.pull(where, at, group="e2e-final")
                    if not pulled.records:
                        sys.exit(f"{member}: {topic} {queue}: no message at {at}, although the queue ends at {high}")
                    for record in pulled.records:
                        rows.append([record.queue_offset, body_id(record.body), digest(record.body).hex(), record.pos])
                    at += len(pulled.records)
                texts.append("\n".join(json.dumps(row) for row in rows))
    print("\n\n".join(texts))


def main(words: list[str]) -> None:
    match words:
        case ["send", name_servers, broker, topic, queues, label]:
            asyncio.run(send(name_servers, broker, topic, int(queues), label))
        case ["read", topic, queues, *members]:
            asyncio.run(read(topic, int(queues), members))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
