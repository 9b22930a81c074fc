"""A stranger that reaches the ports of brokers, members and name servers, and sends whatever it likes.

    noise       random bytes
    announced   a frame header that announces too many, too few or negative bytes
    part        a valid request that ends too early; the connection stays open
    bent        a valid request with some bits changed
    request     a valid request of any code, its fields near the limits of their types
    member      a valid handshake in the name of a member, then messages with any numbers

The stranger uses its own topic, group and broker names, so that every effect of a valid request is allowed. No process
may end, no task may fail without a handler, and nothing that other clients were promised may change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from random import Random
from typing import TYPE_CHECKING, Any

from oracles.stranger import LAYOUTS, any_message

from simulation.nodes import BROKER_PORT, MEMBER_PORT, NAMES_PORT, Node
from simulation.world import Host, Process, current
from tallystick.node.remoting import codec
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.replication.transport.frames import encode_frame
from tallystick.replication.transport.handshake import HANDSHAKE_VERSION, KIND_HELLO, Hello, Identity, Lane

if TYPE_CHECKING:
    from simulation.loop import SimLoop

_NAMES = ("Stranger", "Stranger2", "%RETRY%Stranger", "%DLQ%Stranger", "", "../../Stranger", "Stranger\0", "S" * 300)
_NAME_FIELDS = (
    *("topic", "b", "consumerGroup", "producerGroup", "a", "group", "groupName", "srcGroup", "destGroup"),
    *("brokerName", "clusterName", "brokerAddr", "namespace", "clientID", "clientId", "unitTopic", "originTopic"),
)
_NUMBER_FIELDS = (
    *("queueId", "e", "queueOffset", "offset", "commitOffset", "maxMsgNums", "sysFlag", "f", "suspendTimeoutMillis"),
    *("timestamp", "delayLevel", "maxNum", "beginTimestamp", "endTimestamp", "flag", "h", "bornTimestamp", "g"),
    *("readQueueNums", "writeQueueNums", "perm", "topicSysFlag", "brokerId", "d", "j", "k", "subVersion"),
    *("tranStateTableOffset", "commitLogOffset", "commitOrRollback", "maxReconsumeTimes", "defaultTopicQueueNums"),
)
_TEXT_FIELDS = (
    "subscription",
    "expressionType",
    "properties",
    "i",
    "key",
    "msgId",
    "originMsgId",
    "c",
    "transactionId",
)
_NUMBERS = (
    *("0", "1", "-1", "4", "8", "12", "31", "2147483647", "-2147483648", "2147483648", "9223372036854775807"),
    *("-9223372036854775808", "9223372036854775808", "1e9", "", "x", "0" * 400),
)
_TEXTS = (
    "",
    "*",
    "a || b",
    "TAG",
    "SQL92",
    "a > 1 AND (b",
    "KEYS\x01x\x02",
    "\x01\x02\x01",
    "0" * 32,
    "é\ud7ff",
    "x" * 5000,
)
_BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b'{"clientID":1,"consumerDataSet":[{}]}',
    b"\x00" * 20,
    b"[" * 2000,
    b"\xff" * 300,
)
_WITHOUT_NAME = frozenset((RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.TRIGGER_DELETE_FILES))
"""Requests that change what belongs to all, and are allowed to: an administrator sends them on purpose."""
_CODES = tuple(code for code in RequestCode if code not in _WITHOUT_NAME)


class _Ignoring(asyncio.Protocol):
    """The stranger's end of a connection: it reads everything and says nothing by itself."""


class Stranger:
    """One process on a separate host."""

    def __init__(self, loop: SimLoop, dice: Random, ip: str = "10.0.6.6") -> None:
        self.loop = loop
        self.dice = dice
        self.host = Host("stranger", ip)
        loop.network.add(self.host)
        self.process = Process("stranger", self.host)
        self._transports: list[Any] = []

    async def visit(self, nodes: list[Node], connections: int) -> None:
        """So many connections, one after the other; some stay open."""
        context = copy_context()
        context.run(current.set, self.process)
        for _ in range(connections):
            task = context.copy().run(self.loop.create_task, self._visit_one(self.dice.choice(nodes)))
            with suppress(TimeoutError):
                await asyncio.wait_for(task, 5.0)
            if self.dice.random() < 0.5:
                await asyncio.sleep(self.dice.expovariate(1 / 0.05))

    async def stall(self, node: Node) -> None:
        """Begins a large frame at a node that serves, and waits."""
        context = copy_context()
        context.run(current.set, self.process)
        port = BROKER_PORT if node.is_broker else NAMES_PORT
        connecting = self.loop.network.connect(_Ignoring, node.host.ip, port)
        transport, _ = await context.run(self.loop.create_task, connecting)
        self._transports.append(transport)
        transport.write(self._most_of_a_frame())

    async def leave(self) -> None:
        """Ends all connections."""
        for transport in self._transports:
            self.dice.choice((transport.close, transport.abort))()
        self._transports.clear()

    async def _visit_one(self, node: Node) -> None:
        ports = (BROKER_PORT, BROKER_PORT, MEMBER_PORT) if node.is_broker else (NAMES_PORT,)
        port = self.dice.choice(ports)
        try:
            transport, _ = await self.loop.network.connect(_Ignoring, node.host.ip, port)
        except OSError:
            return  # no process listens there
        self._transports.append(transport)
        for _ in range(self.dice.randrange(1, 12)):
            if port == MEMBER_PORT and self.dice.random() < 0.8:
                transport.write(self._as_member(node))
            else:
                transport.write(self.dice.choice(_WAYS)(self))
            await asyncio.sleep(self.dice.choice((0.0, 0.001, 0.05)))

    # --- what it sends ---

    def _noise(self) -> bytes:
        return self.dice.randbytes(1 << self.dice.randrange(15))

    def _announced(self) -> bytes:
        total = self.dice.choice((0, 1, 3, 4, 100, 16_777_212, 16_777_213, 2**31 - 1, 2**32 - 1))
        mark = self.dice.choice((0, 1 << 24, 2 << 24, 255 << 24)) | self.dice.choice(
            (0, 1, 96, total & 0xFFFFFF, 0xFFFFFF)
        )
        return total.to_bytes(4, "big") + mark.to_bytes(4, "big") + self.dice.randbytes(self.dice.randrange(200))

    def _request(self) -> bytes:
        dice = self.dice
        ext = {field: dice.choice(_NAMES[:4] if dice.random() < 0.8 else _NAMES) for field in _NAME_FIELDS}
        ext |= {field: dice.choice(_NUMBERS[:8] if dice.random() < 0.8 else _NUMBERS) for field in _NUMBER_FIELDS}
        ext |= {field: dice.choice(_TEXTS) for field in _TEXT_FIELDS}
        if dice.random() < 0.3:
            ext = {field: text for field, text in ext.items() if dice.random() < 0.7}
        body = dice.choice(_BODIES) if dice.random() < 0.7 else dice.randbytes(dice.randrange(2000))
        code = int(dice.choice(_CODES)) if dice.random() < 0.95 else dice.randrange(-(2**31), 2**31)
        kind = dice.choice((HeaderType.JSON, HeaderType.ROCKETMQ))
        if kind == HeaderType.ROCKETMQ and not -(2**15) <= code < 2**15:
            kind = HeaderType.JSON
        flag = dice.choice((0, 0, 0, 0, 1, 2, 3, -1))
        return codec.encode(Command(code, dice.randrange(2**31), flag, "JAVA", 373, None, ext, body, kind))

    def _part(self) -> bytes:
        if self.dice.random() < 0.3:
            return self._most_of_a_frame()
        data = self._request()
        return data[: self.dice.randrange(len(data))]

    def _most_of_a_frame(self) -> bytes:
        """Of one MiB: its receiver has to keep it."""
        return (1 << 20).to_bytes(4, "big") + (96).to_bytes(4, "big") + bytes(self.dice.randrange(20_000, 400_000))

    def _bent(self) -> bytes:
        data = bytearray(self._request())
        for _ in range(self.dice.randrange(1, 8)):
            data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
        return bytes(data)

    def _as_member(self, node: Node) -> bytes:
        """A handshake in the name of a member, and messages at once: an answer is not waited for."""
        dice = self.dice
        cluster = dice.choice(("DefaultCluster", "DefaultCluster", "other"))
        group = dice.choice((node.settings["brokerName"], "other"))
        speaker = Identity(cluster, group, dice.choice((0, 1, 2, 3, 2**31 - 1)))
        hello = Hello(speaker, dice.randrange(4), dice.choice((int(Lane.CONTROL), int(Lane.BULK), 7)))
        pieces = [encode_frame(KIND_HELLO, HANDSHAKE_VERSION, hello.encode())]
        for _ in range(dice.randrange(8)):
            message = any_message(dice, dice.randrange(4), dice.randrange(4), dice.randrange(20), dice.randrange(1000))
            layout = LAYOUTS[type(message)]
            payload = dice.randbytes(dice.randrange(300)) if layout.payload else b""
            pieces.append(encode_frame(layout.kind, layout.version, layout.encode(message), len(payload)) + payload)
        return b"".join(pieces)


_WAYS: tuple[Callable[[Stranger], bytes], ...] = (
    *(Stranger._noise, Stranger._announced, Stranger._part, Stranger._bent),
    *(Stranger._request, Stranger._request, Stranger._request),
)
