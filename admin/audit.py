"""The audit log: the messages of the topic `rmq_sys_audit`, which brokers of tallystick write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tallystick.admin.backwards import Backwards
from tallystick.admin.models import AuditLine, Page
from tallystick.admin.names import AUDIT_TOPIC
from tallystick.admin.paging import checked_limit
from tallystick.admin.routing import places_of, route_of
from tallystick.admin.servers import Servers
from tallystick.client import NotFound, ProtocolError, Stored

_OWN_FIELDS = ("time", "broker", "user", "from", "request", "result")


class Audit:
    """The audit log of all clusters that the name servers know."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def lines(self, *, cursor: str | None = None, limit: int = 64) -> Page[AuditLine]:
        """Returns lines by the time at which brokers stored them, the newest first. Empty: there is no audit log.
        ClientError: no broker answers."""
        checked_limit(limit)
        question = self._servers.question()
        try:
            places = {place.name: place for place in await places_of(question, AUDIT_TOPIC)}
            queues = (await route_of(question, AUDIT_TOPIC)).read
        except NotFound:
            return Page([])
        reading = Backwards(question, places)
        messages, following = await reading.part([each for each in queues if each.broker in places], cursor, limit)
        question.need_some(reading.was_read)
        return Page([_line(message) for message in messages], following, question.problems)


def _line(message: Stored) -> AuditLine:
    """A line that cannot be read has its text in `fields`."""
    try:
        found = orjson.loads(message.body)
    except (ValueError, ProtocolError):
        found = None
    row: Mapping[str, Any] = found if isinstance(found, dict) else {"text": repr(message.stored_body)[:1000]}
    named = row.get("fields")
    more = {name: value for name, value in row.items() if name not in (*_OWN_FIELDS, "fields")}
    resources = [str(value) for value in named.values()] if isinstance(named, dict) else []
    time_ms = row.get("time")
    return AuditLine(
        time_ms if isinstance(time_ms, int) else message.store_ms,
        str(row.get("broker") or message.broker),
        str(row.get("user") or ""),
        str(row.get("from") or ""),
        str(row.get("request") or ""),
        " ".join(resources),
        row.get("result") == "allowed",
        {**more, **(named if isinstance(named, dict) else {})},
    )
