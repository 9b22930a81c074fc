"""The log of elections: one line when the member leads, follows a leader, asks for votes, or loses its leadership.

Each line names the group, the term and the reason. The lines of the members agree: for each term at most one member
logs that it became leader, and the others log that they follow that one. A member logs at most `_BURST` lines at once
and `_LINES_PER_S` after that; the next line says how many were left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from tallystick.replication.effects import Role

_logger = logging.getLogger("tallystick.replication")
_BURST = 20.0
_LINES_PER_S = 2.0


class RoleLog:
    """The log of one member. The member reports every change of role, in order."""

    def __init__(self, member: int, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._me, self._group = f"n{member}", group
        self._clock = clock
        self._allowed, self._allowed_at = _BURST, clock()
        self._left_out = 0
        self._role = Role.FOLLOWER
        self._leader: int | None = None
        self._last_leader: int | None = None
        self._term = 0

    def changed(
        self, role: Role, term: int, leader: int | None, why: str, votes: Iterable[int], silent_s: float | None
    ) -> None:
        """Logs the change if it is one.

        `why`: the reason, if leadership was lost. `votes`: the members that elected this leader. `silent_s`: time since
        the member last heard a leader; None: it never heard one.
        """
        was, self._role = self._role, role
        followed, self._leader = (self._leader, self._term), leader
        self._term = term
        if was is Role.LEADER and role is not Role.LEADER:
            self._line(logging.WARNING, "%s: lost leadership of group %s, now in term %d: %s",
                       self._me, self._group, term, why or "another member leads")  # fmt: skip
        if role is Role.LEADER and (was is not Role.LEADER or followed != (leader, term)):
            self._line(logging.INFO, "%s: became leader of group %s in term %d (votes: %s; %s)",
                       self._me, self._group, term, ", ".join(f"n{vote}" for vote in sorted(votes)),
                       self._silence(silent_s))  # fmt: skip
        elif role is Role.FOLLOWER and leader is not None and (leader, term) != followed:
            self._line(logging.INFO, "%s: follows n%d, leader of group %s in term %d",
                       self._me, leader, self._group, term)  # fmt: skip
        elif role is Role.PRE_CANDIDATE and was is Role.FOLLOWER:
            self._line(logging.INFO, "%s: asks for votes to lead group %s after term %d: %s",
                       self._me, self._group, term, self._silence(silent_s))  # fmt: skip
        if leader is not None:
            self._last_leader = leader

    def _line(self, level: int, text: str, *args: object) -> None:
        now = self._clock()
        self._allowed = min(_BURST, self._allowed + (now - self._allowed_at) * _LINES_PER_S)
        self._allowed_at = now
        if self._allowed < 1:
            self._left_out += 1
            return
        self._allowed -= 1
        if self._left_out:
            text, args = text + " (%d lines were left out before this one)", (*args, self._left_out)
            self._left_out = 0
        _logger.log(level, text, *args)

    def _silence(self, silent_s: float | None) -> str:
        if silent_s is None or self._last_leader is None:
            return "no leader was heard before"
        return f"{silent_s * 1000:.0f} ms after n{self._last_leader} was last heard"
