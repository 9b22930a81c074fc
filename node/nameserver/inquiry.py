"""Inquiries: the name server asks the broker at the other end of a connection whether it is alive.

If the other host loses its power, or the network is interrupted, a connection looks open for minutes. So before a
registration replaces one of another connection, the name server sends a request over that connection. Every broker
answers; a broker of RocketMQ answers that it does not support the code. Any answer in time means that the broker is
alive, and so does a registration in the meantime.

A broker gets one inquiry at a time, and none within 0.2 s after its answer, however many registrations arrive.
"""

from __future__ import annotations

import asyncio
import weakref

from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.errors import RemotingBusyError, RemotingError

ANSWER_S = 2.0
"""How long a broker has to answer. Brokers wait 6 s for the answer to their registration, so a broker that replaces a
dead one still gets its answer."""
_VALID_S = 0.2  # an answer is valid for this time


class Inquiries:
    """The inquiries in progress and the recent answers, by the event loop's clock."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._asking: weakref.WeakKeyDictionary[Connection, asyncio.Task[bool]] = weakref.WeakKeyDictionary()
        self._answered_s: weakref.WeakKeyDictionary[Connection, float] = weakref.WeakKeyDictionary()

    async def alive(self, owner: object) -> bool:
        """Returns whether the broker of this connection answers in time. False also if the connection is closed."""
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
            pass  # too many requests wait for its answers: that does not mean that it is dead
        except RemotingError:
            return False
        self._answered_s[connection] = asyncio.get_running_loop().time()
        return True
