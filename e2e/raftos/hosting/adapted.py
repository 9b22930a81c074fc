"""raftos 0.2.6 as it was published, and all that has to be done from outside for it to run here.

For a Python of today
- `asyncio.Queue` no longer takes a `loop`: the module that gives it one sees a Queue that drops it;
- `asyncio.futures.InvalidStateError` is `asyncio.InvalidStateError` now: the module that names it finds it in both
  places. Without it, every follower would raise for each entry that it applies;
- cryptography 1.5.3, which it pins, is not installed: raftos supports that, and sends plain datagrams then.
  msgpack-python 0.4.8, which it also pins, is installed; its C part no longer compiles, and its Python part does
  the same.

For more than one history
- its log goes through its JSONSerializer, a setting. With the default, MessagePackSerializer, it cannot read its own
  log (`test_disks` shows it), and no history would get further than that.

For a history that can be told again
- its files are `files.Files` (`open` and `os.makedirs` of its storage module);
- its dice are seeded (`random` of its state module);
- each node has a separate State class, as it has in a separate process: raftos stores the known leader in the class;
- a node's cluster is an ordered collection where raftos has a set, whose order changes from process to process.

No function of raftos is replaced or changed.
"""

from __future__ import annotations

import asyncio
import os
import random
from types import SimpleNamespace
from typing import Any

import raftos.conf
import raftos.cryptors
import raftos.serializers
import raftos.server
import raftos.state
import raftos.storage

from .files import Files

PORT = 9000

Leader = raftos.state.Leader
Candidate = raftos.state.Candidate
Follower = raftos.state.Follower
JSONSerializer = raftos.serializers.JSONSerializer
MessagePackSerializer = raftos.serializers.MessagePackSerializer


def unpack(data: bytes) -> Any:
    """With the serializer of the group that is hosted. ValueError: it cannot."""
    return raftos.conf.config.serializer.unpack(data)


class _Asyncio:
    """asyncio, with a Queue that takes a loop, and an exception where it once was."""

    futures = SimpleNamespace(InvalidStateError=asyncio.InvalidStateError)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    def Queue(*, loop: asyncio.AbstractEventLoop) -> asyncio.Queue[Any]:  # noqa: N802
        del loop
        return asyncio.Queue()


def host(files: Files, dice: random.Random, *, heartbeat_seconds: float, default_serializer: bool) -> None:
    """From now on raftos runs on these: one group at a time. Other settings are raftos' defaults."""
    raftos.server.asyncio = raftos.state.asyncio = _Asyncio()
    raftos.storage.open = files.open
    raftos.storage.os = SimpleNamespace(path=os.path, makedirs=lambda *_, **__: None)
    raftos.state.random = dice
    raftos.conf.configure(
        {
            "log_path": "/",
            "serializer": MessagePackSerializer if default_serializer else JSONSerializer,
            "heartbeat_interval": heartbeat_seconds,
        }
    )


def address(member: int) -> tuple[str, int]:
    return f"10.0.0.{member}", PORT


def member_of(host_and_port: tuple[str, int]) -> int:
    return int(host_and_port[0].rsplit(".", 1)[1])


def path(member: int, suffix: str) -> str:
    """Of a member's file: "log", "storage" (term and vote) or "state_machine"."""
    return f"/{address(member)[0]}_{PORT}.{suffix}"


def new_node(member: int, size: int, loop: asyncio.AbstractEventLoop) -> Any:
    """A node of a cluster of `size`, not started. To be called in its loop. Whatever raftos raises on its files."""
    raftos.server.State = type("State", (raftos.state.State,), {})
    node = raftos.server.Node(address(member), loop=loop)
    raftos.server.Node.nodes.clear()
    node.cluster = dict.fromkeys(address(each) for each in range(size) if each != member)
    return node
