"""The log of elections: one line when the member leads, follows a leader, asks for votes, or loses its leadership.

Each line names the group, the term and the reason. The lines of the members agree: for each term at most one member
logs that it became leader, and the others log that they follow that one. Of each kind, a member logs at most
`_BURST` lines at once and one per `_INTERVAL_S` after that; the next line of the kind says how many were left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from tallystick.replication.effects import Role
from tallystick.store.limited_log import LimitedLog

_logger = logging.getLogger("tallystick.replication")
_INTERVAL_S = 1.0
_BURST = 10


class RoleLog:
    """The log of one member. The member reports every change of role, in order."""

    def __init__(self, member: int, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._me, self._group = f"n{member}", group
        self._log = LimitedLog(_logger, clock, _INTERVAL_S, _BURST)
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
            self._log.warning("lost", "%s: lost leadership of group %s, now in term %d: %s",
                              self._me, self._group, term, why or "another member leads")  # fmt: skip
        if role is Role.LEADER and (was is not Role.LEADER or followed != (leader, term)):
            self._log.info("leads", "%s: became leader of group %s in term %d (votes: %s; %s)",
                          self._me, self._group, term, ", ".join(f"n{vote}" for vote in sorted(votes)),
                          self._silence(silent_s))  # fmt: skip
        elif role is Role.FOLLOWER and leader is not None and (leader, term) != followed:
            self._log.info("follows", "%s: follows n%d, leader of group %s in term %d",
                          self._me, leader, self._group, term)  # fmt: skip
        elif role is Role.PRE_CANDIDATE and was is Role.FOLLOWER:
            self._log.info("stands", "%s: asks for votes to lead group %s after term %d: %s",
                          self._me, self._group, term, self._silence(silent_s))  # fmt: skip
        if leader is not None:
            self._last_leader = leader

    def _silence(self, silent_s: float | None) -> str:
        if silent_s is None or self._last_leader is None:
            return "no leader was heard before"
        return f"{silent_s * 1000:.0f} ms after n{self._last_leader} was last heard"
