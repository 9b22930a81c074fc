"""AUDIT_LINES (31006): lines of the audit become messages of its topic.

A member of a group sends them to its leader inside an envelope, and a broker to itself; no client can send them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tallystick.node.access.access_log import AUDIT_TOPIC
from tallystick.node.broker.processors.answers import objects, read_body
from tallystick.node.broker.processors.sending import rows_durable
from tallystick.node.core.settings import PERMISSION_READ
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, ResponseError
from tallystick.store.formats import properties
from tallystick.store.formats.message import Host, Message

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.endpoint import Handler


class AuditProcessor:
    """Stores lines of this broker, or of another member of its group."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.AUDIT_LINES: self.store}

    async def store(self, connection: Any, command: Command) -> Command:
        """The body has `lines`, a list of objects. ResponseError 14: not all of them are stored."""
        broker, lines = self._broker, objects(read_body(command).get("lines"), "lines of an audit")
        if broker.topics.create_on_send_back(AUDIT_TOPIC, 1, PERMISSION_READ) is None:
            raise ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, f"{AUDIT_TOPIC} cannot be created")
        await rows_durable(broker, AUDIT_TOPIC, 0)
        puts = [broker.store.writes.put(self._message(line, connection.remote)) for line in lines]
        results = await asyncio.gather(*puts)
        failed = [result for result in results if not result.status.stored]
        if failed:
            raise ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, f"{failed[0].status.name}: {failed[0].detail}")
        return command.reply()

    def _message(self, line: Mapping[Any, Any], source: Host) -> Message:
        keys = " ".join(word for name in ("user", "request") if (word := _key(line.get(name))))
        names = {properties.TAGS: _key(line.get("result")), properties.KEYS: keys}
        names[properties.UNIQ_KEY] = _key(line.get("id"))
        return Message(
            AUDIT_TOPIC,
            0,
            json.dumps(line).encode(),
            properties.encode({name: value for name, value in names.items() if value}),
            born_timestamp_ms=self._broker.now_ms(),
            born_host=source,
        )


def _key(text: Any) -> str:
    """A text as a key of a message; empty if it cannot be one. Names of users come from strangers."""
    return text if isinstance(text, str) and text.isascii() and text.isprintable() and " " not in text else ""
