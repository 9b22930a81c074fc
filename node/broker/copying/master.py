"""What a slave asks its master for, and tells it: positions, settings, tables, and that it no longer is the master.

Codes 28, 26, 21, 43, 45, 201, 202 and 25, as the slaves and the admin tools of RocketMQ 4.8 use them; and 10, a send
that is always refused (`Master.stores`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.node.core.java_properties import parse_properties
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson
from tallystick.store.fastjson import FastjsonError

_WAIT_S = 5.0
_NO_SEND = {
    "producerGroup": "TOOLS",
    "topic": "SELF_TEST_TOPIC",
    "queueId": "1000000",
    "defaultTopic": "SELF_TEST_TOPIC",
    "defaultTopicQueueNums": "1",
    "sysFlag": "0",
    "bornTimestamp": "0",
    "flag": "0",
    "properties": "",
}
"""A send that every broker refuses, because no topic has such a queue. It stores nothing and makes no topic."""


class MasterError(Exception):
    """The master does not answer, or with something else than what was asked for."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the master's log begins and ends. Of an empty log both are 0."""

    begin: int
    end: int


class Master:
    """Requests to the broker at `address`. Errors of all methods: MasterError."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client = client
        self.address = address

    async def extent(self) -> Extent:
        """The present extent of its log."""
        info = await self._json(RequestCode.GET_BROKER_RUNTIME_INFO)
        try:
            table = info["table"]
            begin, end = (int(table[key]) for key in ("commitLogMinOffset", "commitLogMaxOffset"))
        except (TypeError, KeyError, ValueError) as error:
            raise MasterError(f"{self.address} does not tell where its log ends: {error!r}") from error
        if end < 0 or begin > end:
            raise MasterError(f"{self.address} says that its log begins at {begin} and ends at {end}")
        return Extent(max(0, begin), end)  # the beginning of an empty log is -1

    async def stores(self) -> bool:
        """Whether a put that passed the check of its role may not be in its log yet.

        RocketMQ serves sends in one thread (`sendMessageThreadPoolNums`), in their order: when it has refused ours, it
        has stored all that it accepted before. Other threads put as well. Of these the one shows that holds the lock
        of the log, for example while the disk is slow.
        """
        command = Command(RequestCode.SEND_MESSAGE, ext=dict(_NO_SEND))
        if (await self._ask(command)).code == ResponseCode.SYSTEM_BUSY:
            return True  # it was refused before its turn
        info = await self._json(RequestCode.GET_BROKER_RUNTIME_INFO)
        try:
            return int(info["table"].get("pageCacheLockTimeMills", 0)) > 0
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise MasterError(f"{self.address} does not tell whether it stores messages: {error!r}") from error

    async def settings(self) -> dict[str, str]:
        """Its settings as text."""
        body = (await self._call(RequestCode.GET_BROKER_CONFIG)).body
        try:
            return parse_properties(body.decode())
        except ValueError as error:
            raise MasterError(f"{self.address} answered with what are no settings: {error}") from error

    async def table(self, code: int) -> dict[str, Any]:
        """One of its tables: the content of the file in `config/`."""
        return await self._json(code)

    async def queue_ends(self, topic: str) -> dict[int, int]:
        """The next offset of each queue of a topic, by queue id; {} if the master does not have the topic."""
        command = Command(RequestCode.GET_TOPIC_STATS_INFO, ext={"topic": topic})
        answer = await self._ask(command)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        try:
            table = fastjson.loads(self._checked(command, answer).body)["offsetTable"]
            return {int(dict(queue)["queueId"]): int(row["maxOffset"]) for queue, row in table.items()}
        except (FastjsonError, AttributeError, TypeError, KeyError, ValueError) as error:
            raise MasterError(f"{self.address} does not tell the ends of the queues of {topic}: {error!r}") from error

    async def change(self, settings: Mapping[str, str]) -> None:
        """Changes settings, in the order given, while it runs. RocketMQ also writes them to its configuration file."""
        body = "".join(f"{key}={text}\n" for key, text in settings.items()).encode()
        await self._call(RequestCode.UPDATE_BROKER_CONFIG, body)

    async def _json(self, code: int) -> dict[str, Any]:
        answer = await self._call(code)
        try:
            value = fastjson.loads(answer.body)
        except FastjsonError as error:
            raise MasterError(f"{self.address} answered request {code} with no JSON: {error}") from error
        if not isinstance(value, dict):
            raise MasterError(f"{self.address} answered request {code} with no JSON object")
        return value

    async def _call(self, code: int, body: bytes = b"") -> Command:
        command = Command(code, ext={}, body=body)
        return self._checked(command, await self._ask(command))

    async def _ask(self, command: Command) -> Command:
        try:
            return await self._client.call(self.address, command, _WAIT_S)
        except RemotingError as error:
            raise MasterError(f"the master does not answer: {error}") from error

    def _checked(self, command: Command, answer: Command) -> Command:
        if answer.code != 0:
            text = f"{self.address} refused request {command.code}: {answer.remark} (code {answer.code})"
            raise MasterError(text)
        return answer
