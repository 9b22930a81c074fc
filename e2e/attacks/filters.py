"""SQL92 filters with bit maps against a real broker that is killed, and whose settings change.

Three groups pull with expressions while messages are sent; one of them changes its expression. The broker ends by
`kill -9` during sends, or in order, and starts again with extensions and bit maps on or off. Required after each
start: each group gets exactly the acknowledged messages that its expression accepts, by the subscription of its
heartbeat (which uses bit maps) and by an expression in the pull (which does not); `tally store verify` finds nothing
at the end.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from attacks.arena import Arena
from attacks.traffic import Acknowledged, Pipe, send_command
from lab.ledger import body_id
from lab.tally import Tally

from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command
from tallystick.store.formats.record import Record

_TOPIC, _SEED = "filtered", 7
_SIZES = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=20000",
    "mappedFileSizeConsumeQueueExt=65536",
    "flushDiskType=SYNC_FLUSH",
    "enablePropertyFilter=true",
    "diskSpaceWarningLevelRatio=1.0",
    "diskSpaceCleanForciblyRatio=1.0",
)
_MESSAGES, _ROUNDS = 20_000, 8
Number = Callable[[int], bool]
_EXPRESSIONS: dict[str, Number] = {
    "n > 90": lambda n: n > 90,
    "n BETWEEN 10 AND 14 OR n = 50": lambda n: 10 <= n <= 14 or n == 50,
    "color = 'red'": lambda n: n % 3 == 1,
    "color IS NULL AND n < 30": lambda n: n % 3 == 0 and n < 30,
}


class Consumer:
    """One group. Its clock is a counter."""

    def __init__(self, group: str, expression: str) -> None:
        self.group, self.expression, self.version = group, expression, 1

    def change(self, expression: str) -> None:
        self.expression, self.version = expression, self.version + 1

    async def subscribe(self, client: RemotingClient, broker: str) -> None:
        """A heartbeat with the expression."""
        subscription = {
            "classFilterMode": False, "codeSet": [], "expressionType": "SQL92", "subString": self.expression,
            "subVersion": self.version, "tagsSet": [], "topic": _TOPIC,
        }  # fmt: skip
        group = {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY", "groupName": self.group,
            "messageModel": "CLUSTERING", "subscriptionDataSet": [subscription], "unitMode": False,
        }  # fmt: skip
        body = json.dumps({"clientID": self.group, "consumerDataSet": [group], "producerDataSet": []}).encode()
        await client.call(broker, Command(RequestCode.HEART_BEAT, ext={}, body=body), 30)

    async def pull_all(self, client: RemotingClient, broker: str, *, by_bits: bool) -> set[str]:
        """The ids of all messages that the group gets from the queue's beginning on."""
        names: set[str] = set()
        at, end = 0, 1
        while at < end:
            fields = {} if by_bits else {"subscription": self.expression, "expressionType": "SQL92"}
            ext = {
                "consumerGroup": self.group, "topic": _TOPIC, "queueId": "0", "queueOffset": str(at),
                "maxMsgNums": "1000", "sysFlag": "0" if by_bits else "4", "commitOffset": "0",
                "suspendTimeoutMillis": "0", "subVersion": str(self.version), **fields,
            }  # fmt: skip
            answer = await client.call(broker, Command(RequestCode.PULL_MESSAGE, ext=ext), 30)
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                break
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer
            place = 0
            while place < len(answer.body):
                record = Record.decode(answer.body, place)
                names.add(body_id(record.body))
                place += record.size
            at, end = int((answer.ext or {})["nextBeginOffset"]), int((answer.ext or {})["maxOffset"])
        return names


class Filtered:
    """The broker, the acknowledged messages and their numbers."""

    def __init__(self, arena: Arena, folder: Path) -> None:
        self.arena, self.folder = arena, folder
        self.rng = random.Random(_SEED)
        self.tally = Tally(folder, _SIZES)
        self.sent = Acknowledged()
        self.numbers: dict[str, int] = {}
        self.groups = [Consumer(f"g{at}", text) for at, text in enumerate(list(_EXPRESSIONS)[:3])]

    def start(self, ext: bool, maps: bool) -> None:
        switches = {"enableConsumeQueueExt": ext, "enableCalcFilterBitMap": maps}
        self.tally.settings = [*_SIZES, *(f"{name}={str(on).lower()}" for name, on in switches.items())]
        self.tally.start()

    def _requests(self, count: int) -> Iterator[tuple[str, Command]]:
        for _ in range(count):
            name, number = f"m{len(self.numbers)}", self.rng.randrange(100)
            self.numbers[name] = number
            pairs = {"n": str(number)} | ({"color": ("", "red", "blue")[number % 3]} if number % 3 else {})
            yield name, send_command(_TOPIC, 0, f"{name}|".encode().ljust(60, b"x"), pairs)

    async def send(self, count: int) -> None:
        """Sends until all is sent, or the broker is gone."""
        pipe = Pipe(self.tally.broker, lambda name, answer: self.sent.note(_TOPIC, 0, name, answer))
        await asyncio.wait_for(pipe.run(self._requests(count)), 300)

    async def check(self, client: RemotingClient, what: str) -> None:
        """Every group gets what it has to get, on both ways."""
        for group in self.groups:
            await group.subscribe(client, self.tally.broker)
            by_bits = await group.pull_all(client, self.tally.broker, by_bits=True)
            plain = await group.pull_all(client, self.tally.broker, by_bits=False)
            accepts = _EXPRESSIONS[group.expression]
            wanted = {name for name in self.sent.at if accepts(self.numbers[name])}
            text = f"{what}: {group.group} with {group.expression}"
            self.arena.check(by_bits == plain, f"{text}: {len(plain - by_bits)} of {len(plain)} skipped by bit maps")
            self.arena.check(not wanted - by_bits, f"{text}: {len(wanted - by_bits)} acknowledged messages are missing")
            wrong = [name for name in by_bits if not accepts(self.numbers[name])]
            self.arena.check(not wrong, f"{text}: {len(wrong)} messages do not match")


async def run(arena: Arena) -> None:
    filtered = Filtered(arena, arena.work / "filtered")
    tally, rng = filtered.tally, filtered.rng
    each = arena.scaled(_MESSAGES, 3000) // _ROUNDS
    try:
        for number in range(_ROUNDS):
            filtered.start(ext=rng.random() < 0.8, maps=rng.random() < 0.8 or number == 0)
            client = RemotingClient(name="filters")
            if number:
                await filtered.check(client, f"start {number}")
            for group in filtered.groups:
                await group.subscribe(client, tally.broker)
            await filtered.send(each)
            filtered.groups[0].change(rng.choice(list(_EXPRESSIONS)))
            await filtered.check(client, f"round {number}")
            await client.close()
            if number % 2:
                tally.stop()
            else:
                sending = asyncio.create_task(filtered.send(each))
                await asyncio.sleep(rng.uniform(0.01, 0.5))
                tally.kill()
                await sending
        filtered.start(ext=True, maps=True)
        tally.stop()
        arena.figure("messages acknowledged, by groups with filters read", len(filtered.sent.at))
        arena.check_store(tally.store, "filters")
    finally:
        tally.kill()
