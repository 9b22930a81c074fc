"""Asks the broker at the other end of a connection whether it still lives.

A connection whose other host lost its power, or whose network was cut, looks open for minutes. Before a registration
may take the place of one that came over such a connection, the name server sends a request over it. Every broker
answers: one of RocketMQ says that it does not support the code. An answer within the time, whatever it says, or a
registration that came meanwhile, is a sign of life.

A flood of registrations asks a broker once at a time, and not again within 0.2 s after it answered.
"""

from __future__ import annotations

import asyncio
import weakref

from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.errors import RemotingBusyError, RemotingError

ANSWER_S = 2.0
"""How long a broker has to answer. Brokers wait 6 s for the answer to their registration, so one that takes the place
of a dead one still hears of it."""
_VALID_S = 0.2  # an answer counts for so long


class Inquiries:
    """Who was asked, and who answered lately, by the event loop's clock."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._asking: weakref.WeakKeyDictionary[Connection, asyncio.Task[bool]] = weakref.WeakKeyDictionary()
        self._answered_s: weakref.WeakKeyDictionary[Connection, float] = weakref.WeakKeyDictionary()

    async def alive(self, owner: object) -> bool:
        """Whether the peer of this connection answered. False: it did not in time, or the connection is closed."""
        if not isinstance(owner, Connection) or owner.closed:
            return False
        if asyncio.get_running_loop().time() - self._answered_s.get(owner, float("-inf")) < _VALID_S:
            return True
        asking = self._asking.get(owner)
        if asking is None or asking.done():
            asking = self._asking[owner] = asyncio.get_running_loop().create_task(self._ask(owner))
        return await asyncio.shield(asking)  # several may wait for one answer

    async def _ask(self, connection: Connection) -> bool:
        try:
            await connection.call(Command(RequestCode.ARE_YOU_THERE), self._answer_s)
        except RemotingBusyError:
            pass  # so many of our questions are under way: no reason to take its place
        except RemotingError:
            return False
        self._answered_s[connection] = asyncio.get_running_loop().time()
        return True
