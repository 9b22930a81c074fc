"""Three real `tally broker` processes that are one group, and a name server, on loopback."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ports import free_ports
from tally_process import SMALL, TallyProcess, tally

from tallystick.node.core.client import ClusterClient, QueueAddress, RequestRefusedError
from tallystick.node.remoting.errors import RemotingError
from tallystick.store.formats.record import Record

PATIENCE_S = 120.0
"""For anything that is to become true. Only a broken group ever takes so long."""
NAME = "group-a"
T = TypeVar("T")


async def until(what: str, look: Callable[[], Awaitable[T | None]]) -> T:
    """The first answer that is one, asked again and again."""
    deadline = time.monotonic() + PATIENCE_S
    problem: object = "nothing"
    while time.monotonic() < deadline:
        try:
            found = await look()
        except (RemotingError, OSError) as error:
            found, problem = None, error
        if found is not None:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"timed out: {what}; the last problem was {problem}")


class GroupLab:
    """A context manager. Members are started with the group and may be killed and started again."""

    def __init__(self, folder: Path, *settings: str, reserved: int = 0) -> None:
        """`reserved`: number of processes that `dLegerPeers` names in addition and that never start."""
        self.folder = folder
        self._settings = (*settings, "groupBootstrapMembers=n0;n1;n2") if reserved else settings
        ports = free_ports(6 + reserved)
        self._ports, peers = ports[:3], ports[3:]
        self._peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(peers))
        self.members: dict[int, TallyProcess] = {}
        self.nameserver_process: TallyProcess | None = None

    def __enter__(self) -> Self:
        folder = self.folder / "names"
        folder.mkdir(parents=True)
        kv = f"nameserver.kvConfigPath={folder / 'kv.json'}"
        given = [part for setting in self._settings if setting.startswith("tls.") for part in ("--set", setting)]
        self.nameserver_process = TallyProcess(
            folder, "--host", "127.0.0.1", "--port", "0", "--set", kv, *given, what="nameserver"
        ).__enter__()
        try:
            for number in range(3):
                self.start(number, bootstrap=True)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for process in [*self.members.values(), self.nameserver_process]:
            if process is not None:
                process.__exit__(None, None, None)

    @property
    def nameserver(self) -> str:
        assert self.nameserver_process is not None
        return self.nameserver_process.nameserver

    def start(self, number: int, *, bootstrap: bool = False) -> TallyProcess:
        """Starts a member, with what its folder has; returns when it serves."""
        folder = self.folder / f"n{number}"
        folder.mkdir(exist_ok=True)
        arguments = self._arguments(number, self._peers, self._ports[number], bootstrap)
        process = TallyProcess(folder, *arguments, what="broker")
        self.members[number] = process
        return process.__enter__()

    def start_beside(self, number: int) -> subprocess.CompletedProcess[str]:
        """A second process on a member's folder that shares nothing else with it, as in a pod with its own address."""
        port, own = free_ports(2)
        peers = self._peers.split(";")
        peers[number] = f"n{number}-127.0.0.1:{own}"
        arguments = self._arguments(number, ";".join(peers), port, bootstrap=False)
        for setting in SMALL:
            arguments += ["--set", setting]
        return tally("broker", "--http-port", "0", *arguments, cwd=self.folder)

    def _arguments(self, number: int, peers: str, port: int, bootstrap: bool) -> list[str]:
        settings = [
            "enableDLegerCommitLog=true",
            f"dLegerPeers={peers}",
            f"dLegerSelfId=n{number}",
            f"brokerName={NAME}",
            "bindAddress=127.0.0.1",
            "vipListenerEnable=false",
            f"groupBootstrap={str(bootstrap).lower()}",
            *self._settings,
        ]
        store = self.folder / f"n{number}" / "store"
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--dir", str(store), "--nameserver", self.nameserver]
        for setting in settings:
            arguments += ["--set", setting]
        return arguments

    def kill(self, number: int) -> None:
        """kill -9."""
        process = self.members.pop(number)
        process.end(signal.SIGKILL)
        process.__exit__(None, None, None)

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self._ports[number]}"

    async def status(self, number: int) -> dict[str, Any]:
        """GET /group of a member."""
        _, text = await asyncio.to_thread(self.members[number].get, "/group")
        found: dict[str, Any] = json.loads(text)
        return found

    async def hand_over(self, number: int) -> None:
        """Makes a member the leader with `tally group transfer`. A leader that is not done in time, as on a busy
        machine, stays the leader and is asked again."""

        async def moved() -> bool | None:
            leader = await self.leader()
            if leader == number:
                return True
            http = self.members[leader].places["http"]
            answer = await asyncio.to_thread(tally, "group", "transfer", f"n{number}", "--http", http, cwd=self.folder)
            if answer.returncode == 0:
                assert answer.stdout == f"n{number} leads\n"
                return True
            assert "not done in time" in answer.stderr, answer.stderr
            return None

        await until(f"n{number} leads", moved)

    async def ready(self, *numbers: int) -> None:
        """Returns when /readyz of these members says yes: each leads, or follows closely."""
        for number in numbers or tuple(self.members):

            async def look(process: TallyProcess = self.members[number]) -> bool | None:
                return (await asyncio.to_thread(process.get, "/readyz"))[0] == 200 or None

            await until(f"n{number} is ready", look)

    async def leader(self) -> int:
        """The member that leads and takes messages, when there is one."""

        async def look() -> int | None:
            for number in self.members:
                status = await self.status(number)
                if status["broker"]["leads"] and status["accepting"]:
                    return number
            return None

        return await until("a member leads", look)

    async def leader_of_any(self) -> int:
        """The member that leads, whether it takes messages or not."""

        async def look() -> int | None:
            for number in self.members:
                if (await self.status(number))["broker"]["leads"]:
                    return number
            return None

        return await until("a member leads", look)

    async def with_topic(self, client: ClusterClient, topic: str, queues: int) -> tuple[int, Ledger]:
        """Who leads, when the name server sends producers there, and a producer of a new topic."""
        leader = await self.leader()
        await self.master(client, leader)
        await client.create_topic(self.address(leader), topic, queues)
        return leader, Ledger(client, topic, queues)

    async def master(self, client: ClusterClient, number: int) -> None:
        """Returns when the name server sends producers to this member."""

        async def look() -> bool | None:
            return (await client.masters()).get(NAME) == self.address(number) or None

        await until(f"n{number} is the master", look)


class Ledger:
    """Sends, and remembers what was acknowledged: (queue id, offset) by body."""

    def __init__(self, client: ClusterClient, topic: str, queues: int) -> None:
        self._client = client
        self._topic = topic
        self._queues = queues
        self._address: str | None = None
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.refused = 0

    async def send(self, body: bytes, queue_id: int) -> None:
        """Until it is acknowledged, as a producer does: with another body each time, since an old one may be stored."""
        for attempt in range(10_000):
            tried = body + b"#%d" % attempt
            try:
                address = await self._where()
                queue = QueueAddress(self._topic, NAME, address, queue_id)
                _, offset = await self._client.send(queue, tried)
            except RequestRefusedError as error:
                assert error.code in (1, 14), f"a client would not try again on {error}"
                self._failed()
            except RemotingError:
                self._failed()
            else:
                self.acknowledged[tried] = queue_id, offset
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{body!r} was never taken")

    def forget_address(self) -> None:
        """Asks the name server before the next send."""
        self._address = None

    def _failed(self) -> None:
        self.refused += 1
        self._address = None

    async def _where(self) -> str:
        if self._address is None:
            masters = await self._client.masters()
            self._address = masters.get(NAME)
            if self._address is None:
                await asyncio.sleep(0.02)
                raise RemotingError("no master is known")
        return self._address

    async def produce(self, count: int | None, workers: int, prefix: bytes) -> None:
        """`count` messages by so many senders at once; None: until it is cancelled."""
        numbers = itertools.count() if count is None else iter(range(count))

        async def work() -> None:
            for number in numbers:
                await self.send(b"%s-%d" % (prefix, number), number % self._queues)

        await asyncio.gather(*(work() for _ in range(workers)))

    async def read(self, address: str) -> dict[tuple[int, int], bytes]:
        """Every message of the topic as this member has it, by (queue id, offset)."""
        found: dict[tuple[int, int], bytes] = {}
        for queue_id in range(self._queues):
            queue = QueueAddress(self._topic, NAME, address, queue_id)
            # Not by what pulls say of the end: they may come before the last messages are in their queue.
            offset, end = await self._client.offset_range(queue)
            while offset < end:
                pulled = await self._client.pull(queue, offset, group="reader")
                for record in pulled.records:
                    assert isinstance(record, Record)
                    assert (queue_id, record.queue_offset) not in found, "two messages at one offset"
                    found[queue_id, record.queue_offset] = record.body
                assert pulled.next_offset > offset, f"queue {queue_id} ends at {offset}, before {end}"
                offset = pulled.next_offset
        return found

    def check(self, found: dict[tuple[int, int], bytes]) -> None:
        """Each acknowledged message is where it was acknowledged, and no queue has a gap."""
        for body, place in self.acknowledged.items():
            assert found.get(place) == body, f"{body!r} was acknowledged at {place}, there is {found.get(place)!r}"
        for queue_id in range(self._queues):
            offsets = sorted(offset for number, offset in found if number == queue_id)
            assert offsets == list(range(len(offsets))), f"queue {queue_id} has gaps"
