"""Listening sockets, and the ends of accepted connections, as the product holds them before the loop takes over."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from simulation.patches import World
from simulation.world import Process, current

if TYPE_CHECKING:
    from simulation.network import Transport


class ListenSocket:
    """Bound to an address of its host. Connections are refused until it listens."""

    def __init__(self, owner: Process, port: int) -> None:
        self.owner = owner
        self.port = port
        self.listening = False
        self.closed = False
        self.factory: Any = None
        self.context: Any = None
        self.backlog: list[Transport] = []
        self.waiter: Any = None

    def getsockname(self) -> tuple[str, int]:
        return self.owner.host.ip, self.port

    def setblocking(self, flag: bool) -> None:
        pass

    def listen(self, backlog: int) -> None:
        self.listening = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            assert World.loop is not None
            World.loop.network.unbind(self)


class AcceptedSocket:
    """One accepted connection, before a protocol has it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def close(self) -> None:
        if self.transport.protocol is None:
            self.transport.abort()


def bind_one(family: int, address: tuple[Any, ...]) -> Any:
    """The product's `_bind_one`. OSError: another live process of the host has the port."""
    process, loop = current.get(), World.loop
    assert process is not None and loop is not None
    bound = ListenSocket(process, address[1])
    if not loop.network.bind(bound):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    return bound
