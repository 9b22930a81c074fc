"""The access log: refused requests and changes, as lines of the logger `tallystick.access`.

The message of a line is a JSON object:

    {"result": "denied", "reason": "not_permitted", "user": "tenant01", "from": "10.0.0.7:51234", "code": 310,
     "request": "SEND_MESSAGE_V2", "fields": {"b": "orders"}, "left_out": 0}
    {"result": "allowed", "by": "signature", "answer": 0, "user": "admin01", "from": "10.0.0.7:51236", "code": 215,
     "request": "DELETE_TOPIC_IN_BROKER", "fields": {"topic": "orders"}, "left_out": 0}

At most `_BURST` lines of a kind come at once, then one in `_INTERVAL_S`; `left_out` of the next line says how many were
not written. `on_line` gets the same lines, and each allowed change also if it is left out. Bodies, signatures and
secrets are never in it. If the client has a certificate that was verified, `certificate` has its names.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tallystick.node.access.signatures import ACCESS_KEY
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, ResponseError

if TYPE_CHECKING:
    from tallystick.node.remoting.connection import Connection
    from tallystick.node.remoting.endpoint import Handler

_logger = logging.getLogger("tallystick.access")

AUDIT_TOPIC = "rmq_sys_audit"
"""The topic in which a broker stores the lines."""

_INTERVAL_S = 1.0
_BURST = 20
_SHOWN = (
    *("topic", "b", "originTopic", "consumerGroup", "group", "groupName", "producerGroup", "srcGroup", "destGroup"),
    *("accessKey", "globalWhiteAddrs", "brokerName", "namespace", "key"),
    *("username", "subject", "resource", "policyType"),
)
"""Extension fields that say what a request concerns."""
LONGEST = 128
"""Characters of a value that are shown."""
_MOST_NAMES = 4
_MOST_BODY = 4096
_GROUP_NAME = re.compile(r'"groupName"\s*:\s*"([^"\\]*)"')


class AccessLog:
    """Writes the lines of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s: dict[str, float] = {}
        """By kind: when the lines written so far would have been written at one per interval."""
        self._left_out: dict[str, int] = {}
        self.on_line: Callable[[dict[str, Any]], None] = lambda _: None

    def denied(self, command: Command, client: str, reason: str, names: Sequence[str] = ()) -> None:
        """A refused request. `names`: those of the client's certificate."""
        self.write(reason, logging.WARNING, {"result": "denied", "reason": reason, **_about(command, client, names)})

    def allowed(
        self, command: Command, client: str, names: Sequence[str] = (), *, by: str, answer: int | None = None
    ) -> None:
        """An administrative request; `by`: why it was allowed; `answer`: the code that it got, None if it got none."""
        line = {"result": "allowed", "by": by, "answer": answer, **_about(command, client, names)}
        self.write("allowed", logging.INFO, line, is_change=True)

    def throttled(self, command: Command, client: str, scope: str, limit: str) -> None:
        """A request that found no room in the quota of its client or user."""
        line = {"result": "throttled", "reason": f"{limit} of the {scope}", **_about(command, client, ())}
        self.write("throttled", logging.INFO, line)

    def write(self, kind: str, level: int, line: dict[str, Any], *, is_change: bool = False) -> None:
        """One line, if the lines of this kind were not too many."""
        now_s = self._clock()
        next_s = max(now_s, self._next_s.get(kind, now_s))
        if next_s - now_s > (_BURST - 1) * _INTERVAL_S:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            if is_change:
                self.on_line(line)
            return
        self._next_s[kind] = next_s + _INTERVAL_S
        line = line | {"left_out": self._left_out.pop(kind, 0)}
        _logger.log(level, "%s", json.dumps(line))
        self.on_line(line)

    def recorded(self, by: str, handler: Handler, connection: Connection, command: Command) -> Any:
        """Serves an administrative request with this handler, and writes a line when its answer is known."""
        names = connection.certificate_names

        def write(answer: Command | None) -> Command | None:
            self.allowed(command, connection.id, names, by=by, answer=None if answer is None else answer.code)
            return answer

        def failed(error: BaseException) -> None:
            code = error.code if isinstance(error, ResponseError) else ResponseCode.SYSTEM_ERROR
            self.allowed(command, connection.id, names, by=by, answer=int(code))

        async def finish(result: Awaitable[Command | None]) -> Command | None:
            try:
                answer = await result
            except BaseException as error:
                failed(error)
                raise
            return write(answer)

        try:
            result = handler(connection, command)
        except Exception as error:
            failed(error)
            raise
        return finish(result) if inspect.isawaitable(result) else write(result)

    def guard(self, routes: Mapping[int, Handler], codes: Mapping[int, bool]) -> dict[int, Handler]:
        """The same routes, of a process without access control. `codes`: whether requests are administrative."""

        def recorded(handler: Handler) -> Handler:
            return lambda connection, command: self.recorded("no access control", handler, connection, command)

        return {code: recorded(handler) if codes.get(code, True) else handler for code, handler in routes.items()}


def _about(command: Command, client: str, names: Sequence[str]) -> dict[str, Any]:
    ext = command.ext or {}
    return {
        "user": (command.user or ext.get(ACCESS_KEY, ""))[:LONGEST],
        **({"certificate": [name[:LONGEST] for name in names[:_MOST_NAMES]]} if names else {}),
        "from": client,
        "code": command.code,
        "request": _name(command.code),
        "fields": {field: ext[field][:LONGEST] for field in _SHOWN if field in ext} | _named_in_body(command),
    }


def _named_in_body(command: Command) -> dict[str, str]:
    """The names of changed settings, or of a changed group: they are in the body, beside values that are not shown."""
    if command.code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG):
        lines = command.body[:_MOST_BODY].decode("utf-8", "replace").splitlines()
        return {"settings": ",".join(line.partition("=")[0].strip() for line in lines if "=" in line)[:LONGEST]}
    if command.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
        found = _GROUP_NAME.search(command.body[:_MOST_BODY].decode("utf-8", "replace"))
        return {"group": found[1][:LONGEST]} if found else {}
    return {}


def _name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return "UNKNOWN"
