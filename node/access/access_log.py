"""The access log: refused requests and changes, as lines of the logger `tallystick.access`.

The message of a line is a JSON object:

    {"result": "denied", "reason": "not_permitted", "user": "tenant01", "from": "10.0.0.7:51234", "code": 310,
     "request": "SEND_MESSAGE_V2", "fields": {"b": "orders"}, "left_out": 0}

At most `_BURST` lines of a kind come at once, then one in `_INTERVAL_S`; `left_out` of the next line says how many were
not written. Bodies, signatures and secrets are never in it. If the client has a certificate that was verified,
`certificate` has its names.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from tallystick.node.access.signatures import ACCESS_KEY
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command

_logger = logging.getLogger("tallystick.access")

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


class AccessLog:
    """Writes the lines of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s: dict[str, float] = {}
        """By kind: when the lines written so far would have been written at one per interval."""
        self._left_out: dict[str, int] = {}

    def denied(self, command: Command, client: str, reason: str, names: Sequence[str] = ()) -> None:
        """A refused request. `names`: those of the client's certificate."""
        self.write(reason, logging.WARNING, {"result": "denied", "reason": reason, **_about(command, client, names)})

    def allowed(self, command: Command, client: str, names: Sequence[str] = (), *, by: str) -> None:
        """An administrative request; `by`: why it was allowed."""
        self.write("allowed", logging.INFO, {"result": "allowed", "by": by, **_about(command, client, names)})

    def write(self, kind: str, level: int, line: dict[str, Any]) -> None:
        """One line, if the lines of this kind were not too many."""
        now_s = self._clock()
        next_s = max(now_s, self._next_s.get(kind, now_s))
        if next_s - now_s > (_BURST - 1) * _INTERVAL_S:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._next_s[kind] = next_s + _INTERVAL_S
        _logger.log(level, "%s", json.dumps(line | {"left_out": self._left_out.pop(kind, 0)}))


def _about(command: Command, client: str, names: Sequence[str]) -> dict[str, Any]:
    ext = command.ext or {}
    return {
        "user": ext.get(ACCESS_KEY, "")[:LONGEST],
        **({"certificate": [name[:LONGEST] for name in names[:_MOST_NAMES]]} if names else {}),
        "from": client,
        "code": command.code,
        "request": _name(command.code),
        "fields": {field: ext[field][:LONGEST] for field in _SHOWN if field in ext},
    }


def _name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return "UNKNOWN"
