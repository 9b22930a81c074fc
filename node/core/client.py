"""A small client of a cluster, for the command line and tests: routes, topics, sends, pulls.

It does not rebalance groups, does not retry, and has no threads: each call sends one request or two. Applications use
RocketMQ's clients. Errors: RequestRefusedError has the code and remark of the answer; other subclasses of RemotingError
mean that there was no answer.
"""

from __future__ import annotations

import itertools
import os
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tallystick.client.wire.pulling import pull_fields
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson
from tallystick.store.clock import wall_ms
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record
from tallystick.store.formats.sending import send_fields

_READ, _WRITE = 4, 2


class RequestRefusedError(RemotingError):
    """The server refused the request. `code` and `remark` are those of its answer."""

    def __init__(self, address: str, code: int, remark: str | None) -> None:
        # Remarks of route errors end with a link to RocketMQ's FAQ on a separate line.
        reason = (remark or "no reason given").partition("\nSee http")[0].strip()
        super().__init__(f"{address} refused: {reason} (code {code})")
        self.code = code
        self.remark = remark


class NoNameServerError(RemotingError):
    """No name server answered. The text has their addresses, and the last error."""


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """One queue of a topic, and the address of its master."""

    topic: str
    broker_name: str
    address: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull. The next pull begins at `next_offset`."""

    records: list[Record]
    next_offset: int
    min_offset: int
    max_offset: int


class ClusterClient:
    """Sends requests to name servers (`host:port;host:port`) and to their brokers. An async context manager."""

    def __init__(
        self,
        nameservers: str,
        *,
        timeout_s: float = 3.0,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        sign: Callable[[Command], None] | None = None,
    ) -> None:
        """`tls`: the context of a new connection; None: without TLS. `sign`: adds a signature to each request."""
        self.nameservers = [part.strip() for part in nameservers.split(";") if part.strip()]
        self._timeout_s = timeout_s
        self._client = RemotingClient(name="client", tls=tls, sign=sign)
        self._counter = itertools.count(random.getrandbits(16))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._client.close()

    async def call(self, address: str, code: int, ext: dict[str, str], body: bytes = b"", wait_s: float = 0) -> Command:
        """Sends one request to one server. Returns the answer; RequestRefusedError if its code is not 0."""
        answer = await self._client.call(address, Command(code, ext=ext, body=body), self._timeout_s + wait_s)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestRefusedError(address, answer.code, answer.remark)
        return answer

    async def ask_nameserver(self, code: int, ext: dict[str, str]) -> Command:
        """Sends a request to the first name server that answers. NoNameServerError: none of them answers."""
        problem: RemotingError | str = "no address is given"
        for address in self.nameservers:
            try:
                return await self.call(address, code, ext)
            except RequestRefusedError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    problem = f"{address} is not a name server, perhaps it is a broker: {error.remark}"
                    continue
                raise  # an answer: the other name servers would give the same one
            except RemotingError as error:
                problem = error
        raise NoNameServerError(f"no name server answers: {problem}")

    async def masters(self) -> dict[str, str]:
        """Returns the addresses of the masters by broker name."""
        answer = await self.ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        table = fastjson.loads(answer.body)["brokerAddrTable"]
        found = {name: _address(data["brokerAddrs"], 0) for name, data in table.items()}
        return {name: address for name, address in sorted(found.items()) if address is not None}

    async def queues(self, topic: str, *, writable: bool) -> list[QueueAddress]:
        """Returns the writable or readable queues of a topic. RequestRefusedError 17: the topic does not exist."""
        answer = await self.ask_nameserver(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        route = fastjson.loads(answer.body)
        addresses = {data["brokerName"]: _address(data["brokerAddrs"], 0) for data in route["brokerDatas"]}
        found = []
        for row in sorted(route["queueDatas"], key=lambda row: str(row["brokerName"])):
            address = addresses.get(row["brokerName"])
            if address is not None and row["perm"] & (_WRITE if writable else _READ):
                count = row["writeQueueNums" if writable else "readQueueNums"]
                found += [QueueAddress(topic, row["brokerName"], address, number) for number in range(count)]
        return found

    async def create_topic(
        self,
        broker: str,
        topic: str,
        queues: int,
        *,
        perm: int = _READ | _WRITE,
        read_queues: int | None = None,
        sys_flag: int = 0,
        attributes: str = "",
    ) -> str:
        """Creates or changes a topic at one broker, with this number of queues to write and, without another number, to
        read. `attributes`: changes, as `+name=value,-name`. Returns what the broker says about it, mostly nothing."""
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues if read_queues is None else read_queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": str(sys_flag),
            "order": "false",
            **({"attributes": attributes} if attributes else {}),
        }
        answer = await self.call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        return answer.remark or ""

    async def send(
        self, queue: QueueAddress, body: bytes, *, tag: str = "", key: str = "", group: str = "tally"
    ) -> tuple[str, int]:
        """Sends one message. Returns its id, which the broker assigns, and its offset in the queue."""
        pairs = {properties.UNIQ_KEY: self._unique_id(), properties.WAIT: "true"}
        if key:
            pairs[properties.KEYS] = key
        if tag:
            pairs[properties.TAGS] = tag
        ext = send_fields(group, queue.topic, queue.queue_id, properties.encode(pairs), wall_ms())
        answer = await self.call(queue.address, RequestCode.SEND_MESSAGE_V2, ext, body)
        fields = answer.ext or {}
        return fields["msgId"], int(fields["queueOffset"])

    async def offset_range(self, queue: QueueAddress) -> tuple[int, int]:
        """Returns the oldest offset that is kept, and the one that the next message will get."""
        where = {"topic": queue.topic, "queueId": str(queue.queue_id)}
        low = await self.call(queue.address, RequestCode.GET_MIN_OFFSET, where)
        high = await self.call(queue.address, RequestCode.GET_MAX_OFFSET, where)
        return int((low.ext or {})["offset"]), int((high.ext or {})["offset"])

    async def pull(
        self, queue: QueueAddress, offset: int, *, group: str, tags: str = "*", count: int = 32, wait_s: float = 0
    ) -> Pulled:
        """Pulls messages of a queue from `offset` on. The broker waits at most `wait_s` for the first one."""
        ext = pull_fields(group, queue.topic, queue.queue_id, offset, count=count, wait_s=wait_s, expression=tags)
        command = Command(RequestCode.PULL_MESSAGE, ext=ext)
        answer = await self._client.call(queue.address, command, self._timeout_s + wait_s)
        nothing = (
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        )
        if answer.code != ResponseCode.SUCCESS and answer.code not in nothing:
            raise RequestRefusedError(queue.address, answer.code, answer.remark)
        fields: dict[str, Any] = dict(answer.ext or {})
        records = []
        at = 0
        while at < len(answer.body):
            record = Record.decode(answer.body, at)
            records.append(record)
            at += record.size
        return Pulled(records, int(fields["nextBeginOffset"]), int(fields["minOffset"]), int(fields["maxOffset"]))

    async def committed(self, queue: QueueAddress, group: str) -> int | None:
        """Returns the committed offset of a group; None: it never committed one."""
        where = {"consumerGroup": group, "topic": queue.topic, "queueId": str(queue.queue_id)}
        try:
            answer = await self.call(queue.address, RequestCode.QUERY_CONSUMER_OFFSET, where)
        except RequestRefusedError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return int((answer.ext or {})["offset"])

    async def commit(self, queue: QueueAddress, group: str, offset: int) -> None:
        """Commits `offset`: the group has consumed all messages before it."""
        where = {"consumerGroup": group, "topic": queue.topic, "queueId": str(queue.queue_id)}
        await self.call(queue.address, RequestCode.UPDATE_CONSUMER_OFFSET, where | {"commitOffset": str(offset)})

    def _unique_id(self) -> str:
        # Process, time and counter, with the length and the characters that tools expect.
        pid, now_ms, count = os.getpid() & 0xFFFFFFFF, wall_ms(), next(self._counter)
        return f"{pid:08X}{now_ms & 0xFFFFFFFFFFFF:012X}{count & 0xFFFFFFFFFFFF:012X}"


def _address(addresses: dict[Any, str], broker_id: int) -> str | None:
    return next((address for key, address in addresses.items() if int(key) == broker_id), None)
