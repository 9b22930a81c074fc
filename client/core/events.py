"""What happens in a client beside its calls: connections, routes, assignments.

An application gives `Client(on_event=...)` a function, which gets every event and must not block. Events inform; the
client acts on what they report without help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "connected",
    "reconnected",
    "disconnected",
    "connect-failed",
    "route-changed",
    "assigned",
    "revoked",
    "problem",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `subject`: an address for connections, a topic for routes, a group for assignments; `detail`: words
    for people."""

    kind: Kind
    subject: str
    detail: str = ""


OnEvent = Callable[[Event], None]
