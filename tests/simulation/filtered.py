"""Consumers with SQL92 filters, in seeds whose brokers write bit maps: a pull that skips by bit maps gets what one gets
that evaluates each message.

    F1  a message that the filter accepts, in a range that a pull has passed, was in the pull's answer

The rule is checked where no file rots: a bit that rotted away hides a message until a scrub finds it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random

from simulation.clients import Client, Read
from simulation.violation import ViolationError
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.errors import RemotingError

SETTINGS = {
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "enablePropertyFilter": "true",
    "mappedFileSizeConsumeQueueExt": "1000",
}
"""Of the brokers."""
CHANGES = {"enableConsumeQueueExt": ("true", "false"), "enableCalcFilterBitMap": ("true", "false")}
"""Settings of these brokers that may change from one start to the next."""
_EXPRESSIONS = ("TAGS = 'a'", "TAGS = 'b'", "TAGS IS NULL", "TAGS = 'a' OR TAGS = 'b'")
_PASSED = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)


def is_filtered(seed: int) -> bool:
    """Whether the brokers of this seed write bit maps. The seed's dice are not thrown for it."""
    return seed % 16 == 11


class FilteredConsumer:
    """One consumer of one group, which changes its expression now and then."""

    def __init__(self, client: Client, group: str, dice: Random, address: Callable[[str], str]) -> None:
        self._client = client
        self._group = group
        self._dice = dice
        self._address = address
        self._expression = _EXPRESSIONS[0]
        self._version = 1
        self.compared = 0

    async def work(self, brokers: list[str], topics: int, stopping: Callable[[], bool]) -> None:
        """Subscribes and pulls until `stopping()`."""
        dice = self._dice
        while not stopping():
            if dice.random() < 0.2:
                self._expression, self._version = dice.choice(_EXPRESSIONS), self._version + 1
            address = self._address(dice.choice(brokers))
            topic, queue_id = f"T{dice.randrange(topics)}", dice.randrange(2)
            try:
                await self._subscribe(address, topics)
                high = await self._client.offset(address, RequestCode.GET_MAX_OFFSET, topic, queue_id)
                end = int((high.ext or {}).get("offset") or 0)
                at = dice.randrange(max(0, end - 40), end + 1)
                await self._compare(address, topic, queue_id, at)
            except RemotingError:
                pass
            await asyncio.sleep(dice.expovariate(1 / 0.5))

    async def _subscribe(self, address: str, topics: int) -> None:
        subscriptions = [
            {
                "classFilterMode": False, "codeSet": [], "expressionType": "SQL92", "subString": self._expression,
                "subVersion": self._version, "tagsSet": [], "topic": f"T{number}",
            }
            for number in range(topics)
        ]  # fmt: skip
        group = {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
            "groupName": self._group, "messageModel": "CLUSTERING", "subscriptionDataSet": subscriptions,
            "unitMode": False,
        }  # fmt: skip
        body = {"clientID": self._group, "consumerDataSet": [group], "producerDataSet": []}
        await self._client.call(address, RequestCode.HEART_BEAT, {}, json.dumps(body).encode())

    async def _compare(self, address: str, topic: str, queue_id: int, at: int) -> None:
        read = await self._pull(address, topic, queue_id, at, by_bits=True)
        if read.code not in _PASSED or read.next_offset <= at:
            return
        got = {record.queue_offset for record in read.records}
        place = at
        while place < read.next_offset:
            plain = await self._pull(address, topic, queue_id, place, by_bits=False)
            if plain.code not in _PASSED or plain.next_offset <= place:
                return
            for record in plain.records:
                if record.queue_offset < read.next_offset and record.queue_offset not in got:
                    raise ViolationError(
                        "F1",
                        f"{self._group} pulled {topic} {queue_id} from {at} to {read.next_offset} by bit maps with "
                        f"{self._expression}, and did not get {record.queue_offset}",
                    )
            place = plain.next_offset
        self.compared += 1

    async def _pull(self, address: str, topic: str, queue_id: int, offset: int, *, by_bits: bool) -> Read:
        subscription = {} if by_bits else {"subscription": self._expression, "expressionType": "SQL92"}
        return await self._client.pull(
            address, self._group, topic, queue_id, offset, filtered_by=subscription, version=self._version
        )
