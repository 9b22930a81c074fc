"""One attempt to send, noted in the history: what was asked, when, and what became of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.history import History, Outcome, Queue, Send
from lab.ledger import digest
from lab.load import batch_entry

from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.node.remoting.errors import RemotingBusyError, RemotingError
from tallystick.store.formats import properties
from tallystick.store.formats.message_id import decode_message_id

PRODUCER_GROUP = "group-faults"
SEND_S = 3.0  # what the Java client gives a send by default, all its tries together

# With these codes a broker says that it has not stored the message and never will. Every other refusal is a doubt.
CERTAIN = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)


@dataclass(frozen=True, slots=True)
class Post:
    """Messages as (key, body), a batch if they are several. `stored_in`: the queue that a broker puts them into first,
    if it is another one; `pairs` and `sys_flag` are what makes it do so."""

    queue: Queue
    messages: list[tuple[str, bytes]]
    stored_in: Queue | None = None
    pairs: Mapping[str, str] = field(default_factory=dict)
    sys_flag: int = 0


class GroupSender:
    """One connection to each broker that ever led; one attempt a call."""

    def __init__(
        self,
        name: str,
        history: History,
        header: HeaderType,
        client: RemotingClient | None = None,
        sign: Callable[[Command], None] = lambda _: None,
    ) -> None:
        """`sign`: adds a signature to each request."""
        self._sign = sign
        self._name, self._history, self._header = name, history, header
        self._client = client or RemotingClient(name=f"group.{name}", connect_timeout_s=1.0)

    async def close(self) -> None:
        await self._client.close(grace_s=0.0)

    async def send(self, broker: str, post: Post, timeout_s: float = SEND_S) -> Send | None:
        """One attempt for all of them together, noted; the first one's note if they were acknowledged."""
        invoked_s = time.monotonic()
        outcome, reason, offset, positions = Outcome.UNKNOWN, "cancelled", -1, list[int]()
        sends = []
        try:
            outcome, reason, offset, positions = await self._attempt(broker, post, timeout_s)
        finally:  # an attempt that was cut short may have been stored
            ended_s, queue = time.monotonic(), post.stored_in or post.queue
            for number, (key, body) in enumerate(post.messages):
                place = (offset + number, positions[number]) if positions else (-1, -1)
                sends.append(
                    Send(self._name, queue, key, digest(body), invoked_s, ended_s, outcome, *place, broker, reason)
                )
            self._history.sends += sends
        return sends[0] if outcome is Outcome.OK else None

    async def _attempt(self, broker: str, post: Post, timeout_s: float) -> tuple[Outcome, str, int, list[int]]:
        """Outcome, reason, first offset in the queue, positions in the log."""
        begin_s = time.monotonic()
        try:
            link = await self._client.connection(broker)
        except RemotingError:
            return Outcome.REFUSED, "no link", -1, []
        try:
            left_s = max(0.0, timeout_s - (time.monotonic() - begin_s))
            answer = await link.call(self._command(post), left_s)
        except RemotingBusyError:
            return Outcome.REFUSED, "our own limit", -1, []
        except RemotingError as error:
            return Outcome.UNKNOWN, type(error).__name__, -1, []
        if answer.code != ResponseCode.SUCCESS:
            outcome = Outcome.REFUSED if answer.code in CERTAIN else Outcome.UNKNOWN
            return outcome, f"{answer.code} {(answer.remark or '')[:80]}", -1, []
        fields = answer.ext or {}
        positions = [decode_message_id(each)[1] for each in fields["msgId"].split(",")]
        assert len(positions) == len(post.messages), "an id for each message"
        return Outcome.OK, "", int(fields["queueOffset"]), positions

    def _command(self, post: Post) -> Command:
        entries = [(body, _pairs(key)) for key, body in post.messages]
        batch = len(entries) > 1
        body, pairs = entries[0]
        if batch:
            body, pairs = b"".join(batch_entry(*entry) for entry in entries), {properties.WAIT: "true"}
        ext = {
            "a": PRODUCER_GROUP,
            "b": post.queue[0],
            "c": "TBW102",
            "d": "4",
            "e": str(post.queue[1]),
            "f": str(post.sys_flag),
            "g": str(time.time_ns() // 1_000_000),
            "h": "0",
            "i": properties.encode({**pairs, **post.pairs}),
            "j": "0",
            "k": "false",
            "m": "true" if batch else "false",
        }
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        command = Command(code, ext=ext, body=body, header_type=self._header)
        self._sign(command)
        return command


async def steadily(
    begin: Callable[[], Coroutine[Any, Any, None]], stop: asyncio.Event, *, period_s: float, most: int
) -> None:
    """Begins one each period, whatever became of those before, so that nothing it waits for hides when a group serves
    again; `most` at a time. After `stop` it waits for the last ones."""
    under_way: set[asyncio.Task[None]] = set()
    next_s = time.monotonic()
    try:
        while not stop.is_set():
            if len(under_way) < most:
                task = asyncio.create_task(begin())
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            next_s = max(next_s + period_s, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
        if under_way:
            await asyncio.wait(under_way)
    finally:
        for task in under_way:
            task.cancel()


def unique_key(key: str) -> str:
    """What a client gives the message of this key as its UNIQ_KEY."""
    return f"{key:>32}".replace(" ", "0").upper()


def _pairs(key: str) -> dict[str, str]:
    return {properties.UNIQ_KEY: unique_key(key), properties.WAIT: "true"}
