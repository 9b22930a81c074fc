"""Timers of a group of three processes whose leaders are killed: each is delivered once, recalled ones never."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from group_lab import NAME, GroupLab, until

from tallystick.node.core.client import ClusterClient, QueueAddress, RequestRefusedError
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.errors import RemotingError
from tallystick.store.clock import wall_ms
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record

pytestmark = pytest.mark.process

QUEUES = 2
TOPIC = "orders"


class Timers:
    """Sends timers, recalls some of them, and remembers what it was told."""

    def __init__(self, client: ClusterClient, rng: random.Random) -> None:
        self._client = client
        self._rng = rng
        self.times: dict[bytes, int] = {}
        self.acknowledged: set[bytes] = set()
        self.recalled: set[bytes] = set()
        self.doubtful: set[bytes] = set()

    async def _call(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> Any:
        address = (await self._client.masters()).get(NAME)
        if address is None:
            raise RemotingError("no master is known")
        return await self._client.call(address, code, ext, body)

    async def work(self, name: str, stopping: asyncio.Event) -> None:
        """Until `stopping` is set."""
        number = 0
        while not stopping.is_set():
            number += 1
            body = f"{name}-{number}".encode()
            self.times[body] = at_ms = wall_ms() + self._rng.choice((50, 500, 2000, 4000))
            text = properties.encode({"UNIQ_KEY": body.decode(), "TIMER_DELIVER_MS": str(at_ms)})
            ext = {"a": "pg", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % QUEUES), "f": "0", "g": "0"}
            try:
                answer = await self._call(RequestCode.SEND_MESSAGE_V2, {**ext, "h": "0", "i": text}, body)
            except (RequestRefusedError, RemotingError):
                await asyncio.sleep(0.05)
                continue
            self.acknowledged.add(body)
            handle = (answer.ext or {}).get("recallHandle")
            if handle and self._rng.random() < 0.2:
                await self._recall(body, handle)
            await asyncio.sleep(0.01)

    async def _recall(self, body: bytes, handle: str) -> None:
        try:
            await self._call(RequestCode.RECALL_MESSAGE, {"topic": TOPIC, "recallHandle": handle})
        except RequestRefusedError as error:
            if error.code != 604:
                self.doubtful.add(body)
        except RemotingError:
            self.doubtful.add(body)
        else:
            self.recalled.add(body)

    def check(self, records: list[Record]) -> None:
        """`records`: all of the topic."""
        found = Counter(record.body for record in records)
        assert {body: count for body, count in found.items() if count > 1} == {}, "delivered twice"
        assert self.acknowledged - self.recalled - self.doubtful - found.keys() == set(), "lost"
        assert self.recalled & found.keys() == set(), "recalled and delivered"
        early = [record.body for record in records if record.store_timestamp_ms < self.times[record.body]]
        assert early == [], "early"


async def all_records(client: ClusterClient, address: str) -> list[Record]:
    found: list[Record] = []
    for queue_id in range(QUEUES):
        queue = QueueAddress(TOPIC, NAME, address, queue_id)
        offset, end = await client.offset_range(queue)
        while offset < end:
            pulled = await client.pull(queue, offset, group="reader")
            found += [record for record in pulled.records if isinstance(record, Record)]
            assert pulled.next_offset > offset
            offset = pulled.next_offset
    return found


@pytest.mark.parametrize("kills", [4])
async def test_timers_survive_their_leaders(tmp_path: Path, kills: int) -> None:
    rng = random.Random(kills)
    with GroupLab(tmp_path, "recallMessageEnable=true") as lab:
        async with ClusterClient(lab.nameserver) as client:
            await lab.with_topic(client, TOPIC, QUEUES)
            timers = Timers(client, rng)
            stopping = asyncio.Event()
            workers = [asyncio.create_task(timers.work(f"w{number}", stopping)) for number in range(3)]
            for turn in range(kills):
                goal = len(timers.acknowledged) + 60

                async def sent(goal: int = goal) -> bool | None:
                    return len(timers.acknowledged) >= goal or None

                await until("timers are taken", sent)
                leader = await lab.leader()
                if turn % 2:
                    await lab.hand_over(leader)
                else:
                    lab.kill(leader)
                    await asyncio.to_thread(lab.start, leader)
            stopping.set()
            await asyncio.gather(*workers)
            await lab.ready()
            leader = await lab.leader()

            async def none_waits() -> bool | None:
                _, metrics = await asyncio.to_thread(lab.members[leader].get, "/metrics")
                lines = [line for line in metrics.splitlines() if line.startswith("rocketmq_timing_messages")]
                return all(line.split()[-1] in ("0", "0.0") for line in lines) or None

            await until("all timers are delivered", none_waits)
            for number in lab.members:
                timers.check(await all_records(client, lab.address(number)))
