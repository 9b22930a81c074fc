"""A process that reaches a member's port and claims to be another member, with arbitrary numbers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.messages import Message, TermRun
from tallystick.replication.transport import codec
from tallystick.replication.transport.frames import HEADER_BYTES, decode_header, encode_frame
from tallystick.replication.transport.handshake import (
    HANDSHAKE_VERSION,
    KIND_HELLO,
    KIND_WELCOME,
    Hello,
    Identity,
    Lane,
)

LAYOUTS = {layout.message: layout for layout in codec.LAYOUTS}
MESSAGES: tuple[type, ...] = get_args(Message)
BOUNDARIES = (-(2**63), -(2**62), -2, -1, 0, 1, 2**20, 2**20 + 9, 2**31, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1)


class Line:
    """One connection; `welcome`: the member took it in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: bool) -> None:
        self._reader, self._writer, self.welcome = reader, writer, welcome

    @classmethod
    async def open(cls, port: int, speaker: Identity, wanted: int, lane: Lane, host: str = "127.0.0.1") -> Line:
        """OSError: no process listens."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        hello = Hello(speaker, wanted, lane)
        writer.write(encode_frame(KIND_HELLO, HANDSHAKE_VERSION, hello.encode()))
        try:
            head = await reader.readexactly(HEADER_BYTES)
            header = decode_header(memoryview(head), 0, 0)
            await reader.readexactly(header.message_bytes)
            kind = header.kind
        except (asyncio.IncompleteReadError, ConnectionError):
            kind = 0
        return cls(reader, writer, kind == KIND_WELCOME)

    def send(self, message: Any, payload: bytes = b"") -> None:
        layout = LAYOUTS[type(message)]
        self._writer.write(encode_frame(layout.kind, layout.version, layout.encode(message), len(payload)) + payload)

    @property
    def closed(self) -> bool:
        """The member, or this side, has ended it."""
        return self._reader.at_eof() or self._reader.exception() is not None or self._writer.is_closing()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def any_message(dice: random.Random, source: int, target: int, term: int, index: int) -> Message:
    """Of any type; each number near what the group has, or at a bound of what can be sent."""
    kind = dice.choice(MESSAGES)
    while True:
        message = kind(**{field: _value(dice, field, hint, term, index) for field, hint in _hints(kind)})
        message = replace(message, source=source, target=target)
        try:
            LAYOUTS[kind].encode(message)
        except struct.error:
            continue  # a number that no frame can carry
        return message


def _hints(kind: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(kind)
    return [(field.name, hints[field.name]) for field in fields(kind) if field.name != "payload"]


def _number(dice: random.Random, near: int) -> int:
    return dice.choice((near, near + 1, near - 1, dice.choice(BOUNDARIES)))


def _value(dice: random.Random, name: str, hint: Any, term: int, index: int) -> Any:
    if name == "runs":
        return tuple(TermRun(_number(dice, term), _number(dice, index + step)) for step in range(dice.randint(0, 3)))
    if name in ("memberships", "membership"):
        voters = dice.choice(((), (0,), (0, 1, 2), (1, 2**31 - 1)))
        entry = MembershipEntry(_number(dice, index), Membership.of(voters))
        return entry if name == "membership" else (entry,) * dice.randint(0, 2)
    if type(None) in get_args(hint) and dice.random() < 0.3:
        return None
    if hint is bool:
        return dice.random() < 0.6
    if hint is float:
        return dice.choice((0.0, -1.0, 1e300, float("inf"), float("nan")))
    if hint is DiskState or hint is PossibleLoss:
        return dice.choice(list(hint))
    return _number(dice, term if "term" in name else index if "index" in name else dice.randint(0, 5))
