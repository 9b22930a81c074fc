"""Requests that only a group's leader can answer, at a member that does not lead: held, forwarded, answered.

    client ──▶ this member ── leader known ──▶ leader        the answer goes the same way back
                   └─ no leader: held, at most `HOLD_S`, then refused

A RocketMQ client checks its routes every 30 s. Until then it considers the old leader the master, whatever that one
answers, and sends its retries there too. The old leader therefore forwards its requests, and holds them while no leader
is known: a planned transfer is over before a producer notices it. A leader that hands over holds requests in the same
way.

The held requests are limited in number (`HELD_MAX`), in bytes (`HELD_BYTES_MAX`) and in time; above the first two
limits requests are refused at once. Requests are forwarded in the order in which they arrived, and never twice: the
receiver serves a forwarded request or answers that it does not lead, and then it is held here again.

If the link to the leader breaks, or the leader does not answer in time, it is unknown whether a request was executed. A
change is then answered with "unknown" (SYSTEM_ERROR, B2), a question from what this member has.

Source: the codes on which DefaultMQProducerImpl of RocketMQ 4.8.0 retries (1, 14, 16, 17, 204, 205), and its timeout of
3 s for a send including all attempts.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from tallystick.node.broker.group import envelope
from tallystick.node.broker.processors.sending import SENDS, region
from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import (
    FrameError,
    HeaderError,
    RemotingBusyError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeout,
)
from tallystick.replication.member.errors import ReadError

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.group.leader_place import Place
    from tallystick.node.remoting.client import RemotingClient
    from tallystick.node.remoting.connection import Connection
    from tallystick.node.remoting.endpoint import Handler

HOLD_S = 2.5
"""How long a change waits for a leader. Elections take one to two seconds; clients give a send 3 s."""
ASK_S = 1.0
"""How long a question waits for a leader, before it is answered from what is committed here."""
CALL_S = 5.0
"""How long to wait for the leader's answer."""
AGAIN_S = 0.05
"""Wait between the first two attempts with a leader that does not lead yet, or accepts nothing at present. It doubles
each time, so that held requests do not load an overloaded leader."""
HELD_MAX = 4096
HELD_BYTES_MAX = 64 << 20
_OVERHEAD_BYTES = 512  # of a request in addition to its fields and body
_UNKNOWN = "UNKNOWN_ERROR: the leader did not answer; the request may have been executed"


class Leadership(Protocol):
    """What a group states about its leader: `group.BrokerGroup`."""

    @property
    def leads(self) -> bool: ...

    @property
    def on_change(self) -> list[Callable[[], None]]:
        """Functions to call when one of the answers below may have changed."""

    def refusal(self) -> str | None:
        """Why changes are not accepted here now; None if they are."""

    def hopeless(self) -> bool:
        """Whether waiting is useless: a disk is full, or this member has stopped."""

    def place(self) -> Place | None:
        """Where another member leads."""

    async def read(self) -> None:
        """Waits until everything that is committed now is applied here. Raises ReadError."""


_Work = Coroutine[Any, Any, Command | None]
_Result = tuple[bool, Command | None]
"""Whether it was executed, and the answer if the client expects one."""


class _Unknown(Exception):  # noqa: N818  # it never leaves this module
    """It is unknown whether the leader executed the request."""


class Turn:
    """Wakes all waiting callers, in the order in which they came."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def tell(self) -> None:
        waited, self._next = self._next, None
        if waited is not None and not waited.done():
            waited.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Waits for the signal, or for that time."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._next], timeout=timeout_s)


class Forwarder:
    """Holds and forwards requests for one member. `client` is used only for links to leaders.

    `held` and `held_bytes`: of requests that are held or forwarded now; `forwarded`: number of received answers.
    """

    def __init__(self, broker: BrokerContext, leadership: Leadership, client: RemotingClient) -> None:
        self.held = self.held_bytes = self.forwarded = 0
        self._broker = broker
        self._group = leadership
        self._client = client
        self._turn = Turn()
        self._gate = asyncio.Lock()  # fair: first come, first served
        self._queued = 0
        leadership.on_change.append(self._turn.tell)

    # -- what routes are wrapped in ------------------------------------------------------------------------------------

    def change(self, handler: Handler) -> Handler:
        """Wraps handlers of requests that change something."""

        def handle(connection: Any, command: Command) -> Any:
            # While others wait, a new request waits behind them.
            if self._group.refusal() is not None or self._queued:
                return self._change(handler, connection, command)
            result = handler(connection, command)
            return self._begun(result, handler, connection, command) if inspect.iscoroutine(result) else result

        return handle

    def ask(self, handler: Handler) -> Handler:
        """Wraps handlers of questions about what only a leader's memory has, or has first."""

        def handle(connection: Any, command: Command) -> Any:
            if self._group.leads:
                return handler(connection, command)
            return self._ask(handler, connection, command)

        return handle

    def catch_up(self, handler: Handler) -> Handler:
        """Wraps handlers of questions about the log: answered after everything acknowledged before, by any member
        (R2)."""

        def handle(connection: Any, command: Command) -> Any:
            if self._group.leads or self._group.place() is None:
                return handler(connection, command)
            return self._catch_up(handler, connection, command)

        return handle

    # -- the three ways ------------------------------------------------------------------------------------------------

    async def _begun(self, work: _Work, handler: Handler, connection: Any, command: Command) -> Command | None:
        """Starts a request. It begins in a later turn of the loop than this call, and leadership may be lost
        meanwhile."""
        if self._group.refusal() is None:
            return await work
        work.close()
        return await self._change(handler, connection, command)

    async def _change(self, handler: Handler, connection: Any, command: Command) -> Command | None:
        clock = asyncio.get_running_loop().time
        deadline_s, pause_s = clock() + HOLD_S, AGAIN_S
        with self._room(command) as room:
            while room:
                try:
                    async with asyncio.timeout_at(deadline_s):
                        started = await self._start(handler, connection, command)
                except TimeoutError:
                    break
                if started is None:
                    break
                try:
                    done, answer = await started
                except _Unknown:
                    return self._refused(command, ResponseCode.SYSTEM_ERROR, _UNKNOWN)
                if done:
                    return answer
                left_s = deadline_s - clock()
                if left_s <= 0:
                    break
                await self._turn.wait(min(pause_s, left_s))
                pause_s *= 2
        reason = self._group.refusal() or "too many requests wait for a leader"
        return self._refused(command, ResponseCode.SERVICE_NOT_AVAILABLE, reason)

    async def _start(self, handler: Handler, connection: Any, command: Command) -> asyncio.Task[_Result] | None:
        """Waits for its turn and for a leader, and starts the request. None if waiting is useless."""
        group, begin = self._group, asyncio.get_running_loop().create_task
        self._queued += 1
        try:
            async with self._gate:
                while True:
                    if connection.closed and not command.is_oneway:
                        return begin(_nothing())  # the client has retried elsewhere: executing it would duplicate it
                    if group.refusal() is None:
                        return begin(self._here(handler, connection, command))
                    place = group.place()
                    if place is None and group.hopeless():
                        return None
                    link = None if place is None else await self._link(place)
                    if place is not None and link is not None:
                        return begin(self._answer(link, place, connection, command))
                    await self._turn.wait(HOLD_S if place is None else AGAIN_S)
        finally:
            self._queued -= 1

    async def _ask(self, handler: Handler, connection: Any, command: Command) -> Command | None:
        group, clock = self._group, asyncio.get_running_loop().time
        deadline_s = clock() + ASK_S
        with self._room(command) as room:
            while room and not (group.leads or group.hopeless()):
                place, pause_s = group.place(), ASK_S
                if place is not None:
                    try:
                        done, answer = await self._call(place, connection, command)
                    except _Unknown:
                        break
                    if done and (answer is None or answer.code != ResponseCode.SYSTEM_ERROR):
                        return answer
                    if done:
                        break  # this member's own error says as much
                    pause_s = AGAIN_S
                left_s = deadline_s - clock()
                if left_s <= 0:
                    break
                await self._turn.wait(min(pause_s, left_s))
        return await _served(handler, connection, command)

    async def _catch_up(self, handler: Handler, connection: Any, command: Command) -> Command | None:
        try:
            async with asyncio.timeout(ASK_S):
                await self._group.read()
        except (ReadError, TimeoutError):
            pass  # without a leader, read from what is committed here
        return await _served(handler, connection, command)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def tell(self, place: Place, connection: Any, command: Command) -> bool:
        """Sends the leader a request without an answer to a client; returns whether the leader accepted it."""
        try:
            return (await self._call(place, connection, command))[0]
        except _Unknown:
            return False

    async def tell_left(self, place: Place, connection: Any) -> None:
        """Informs the leader that a client has disconnected."""
        try:
            await self._client.oneway(place.address, envelope.left(connection.remote, place.key))
        except RemotingError:
            pass  # then the leader has lost the link and all clients of it

    async def _call(self, place: Place, connection: Any, command: Command) -> _Result:
        link = await self._link(place)
        return (False, None) if link is None else await self._answer(link, place, connection, command)

    async def _link(self, place: Place) -> Connection | None:
        """Returns the link to the leader, and connects if necessary; None if that fails."""
        try:
            return await self._client.connection(place.address)
        except RemotingConnectError:
            return None

    async def _here(self, handler: Handler, connection: Any, command: Command) -> _Result:
        if self._group.refusal() is not None:  # leadership was lost meanwhile
            return False, None
        return True, await _served(handler, connection, command)

    async def _answer(self, link: Connection, place: Place, connection: Any, command: Command) -> _Result:
        """(True, the leader's answer), or (False, None) if nothing was done. Raises _Unknown."""
        try:
            asked = envelope.forwarded(command, connection.remote, place.key)
        except (FrameError, HeaderError) as error:
            return True, self._refused(command, ResponseCode.MESSAGE_ILLEGAL, f"cannot be forwarded: {error}")
        if link.closed:
            return False, None
        try:
            outer = await link.call(asked, CALL_S)
            if outer.code != ResponseCode.SUCCESS:
                return False, None
            answer = envelope.opened(outer)
        except RemotingBusyError:
            return False, None
        except (RemotingConnectError, RemotingTimeout, FrameError, HeaderError) as error:
            raise _Unknown(str(error)) from error
        self.forwarded += 1
        return True, None if command.is_oneway else answer

    def _refused(self, command: Command, code: int, remark: str) -> Command | None:
        if command.code in SENDS and code != ResponseCode.MESSAGE_ILLEGAL:
            self._broker.stats.send_failures += 1
        if command.is_oneway:
            return None
        # The fields of a send's answer: without any field, a 4.8 client fails because its map is null.
        return command.reply(code, ext=region(self._broker), remark=remark)

    @contextmanager
    def _room(self, command: Command) -> Iterator[bool]:
        """Counts a request while it is here; yields False if there is no space for it."""
        size = _OVERHEAD_BYTES + len(command.body) + sum(map(len, (command.ext or {}).values()))
        if self.held >= HELD_MAX or self.held_bytes + size > HELD_BYTES_MAX:
            yield False
            return
        self.held += 1
        self.held_bytes += size
        try:
            yield True
        finally:
            self.held -= 1
            self.held_bytes -= size


async def _served(handler: Handler, connection: Any, command: Command) -> Command | None:
    result = handler(connection, command)
    if inspect.isawaitable(result):
        return await result
    return result


async def _nothing() -> _Result:
    return True, None
