"""The audit: lines of the access log as messages of the topic `rmq_sys_audit`, one message for each line.

    access log ──▶ lines that wait, at most `MOST_LINES` ──▶ here, or the leader of the group ──▶ the topic
                          └─ no room: dropped and counted

No request waits for its line, and none fails because of it. Lines that could not be stored are tried again each second,
so a line may be stored twice: `id` is the same then. The messages have the result as tag (`allowed`, `denied`,
`throttled`), and the user and the name of the request as keys. Clients cannot send to the topic or delete it; with
access control its readers need `Get` on the cluster. Messages expire with the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from tallystick.node.access.access_log import AUDIT_TOPIC
from tallystick.node.core.settings import AuditTopic
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, ResponseError
from tallystick.store.formats.message import Host

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.endpoint import Handler

_logger = logging.getLogger("tallystick.access")

MOST_LINES = 2000
"""Lines that wait to be stored."""
_BATCH = 64
_AGAIN_S = 1.0
_LAST_S = 2.0


class _Self:
    """The broker, in place of a connection."""

    closed = False

    def __init__(self, remote: Host) -> None:
        self.remote = remote


class AuditTrail:
    """The lines of one broker on their way to the topic. `stored` and `dropped`: numbers of lines."""

    def __init__(self, broker: BrokerContext) -> None:
        self.stored = self.dropped = 0
        self._broker = broker
        self._lines: deque[dict[str, Any]] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._handler: Handler = lambda *_: None

    @property
    def waiting(self) -> int:
        """Lines that are not stored yet."""
        return len(self._lines)

    def record(self, line: dict[str, Any]) -> None:
        """Takes one line, if it is to be stored and there is room."""
        settings = self._broker.settings
        wanted = settings.auditTopic
        if wanted is AuditTopic.off or (wanted is AuditTopic.auto and not settings.aclEnable):
            return
        if len(self._lines) >= MOST_LINES:
            self.dropped += 1
            return
        about = {"id": uuid.uuid4().hex.upper(), "time": self._broker.now_ms(), "broker": settings.brokerName}
        self._lines.append(about | line)
        self._wake.set()

    def start(self, handler: Handler) -> None:
        """Stores lines from now on. `handler`: serves AUDIT_LINES here, or at the leader."""
        self._handler = handler
        self._task = asyncio.get_running_loop().create_task(self._run(), name="audit")

    async def stop(self) -> None:
        """Tries for a moment to store what waits, and ends."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                while self._lines and await self._store_some():
                    pass
        if self._lines:
            self.dropped += len(self._lines)
            _logger.warning("%d lines of the audit were not stored in %s", len(self._lines), AUDIT_TOPIC)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._lines:
                if not await self._store_some():
                    await asyncio.sleep(_AGAIN_S)

    async def _store_some(self) -> bool:
        """Stores the oldest lines. Returns whether all of these are stored."""
        lines = list(islice(self._lines, _BATCH))
        command = Command(RequestCode.AUDIT_LINES, body=json.dumps({"lines": lines}).encode())
        try:
            answer = await self._handler(_Self(self._broker.host), command)  # type: ignore[misc, arg-type]
        except (ResponseError, OSError):
            return False
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return False
        for _ in lines:
            self._lines.popleft()
        self.stored += len(lines)
        return True
