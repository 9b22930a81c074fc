"""Log lines about elections: when a member leads, follows a leader, stands for election, or loses leadership.

Each line states the group, the term and the reason. If a group changes its leader repeatedly, at most one line of each
kind is written per second, with the number of omitted ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from tallystick.replication.effects import Role
from tallystick.store.limited_log import LimitedLog

_logger = logging.getLogger("tallystick.replication")
_INTERVAL_S = 1.0


class RoleLog:
    """The log lines of one member. It must be told of every change of role, in order."""

    def __init__(self, member: int, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._me, self._group = f"n{member}", group
        self._log = LimitedLog(_logger, clock, _INTERVAL_S)
        self._role = Role.FOLLOWER
        self._leader: int | None = None
        self._last_leader: int | None = None

    def changed(
        self, role: Role, term: int, leader: int | None, why: str, votes: Iterable[int], silent_s: float | None
    ) -> None:
        """`why`: the reason why leadership was lost. `votes`: the members that elected a leader. `silent_s`: seconds
        since a leader was last heard; None if none was."""
        was, self._role = self._role, role
        followed, self._leader = self._leader, leader
        if was is Role.LEADER and role is not Role.LEADER:
            self._log.warning("lost", "%s: lost leadership of group %s, now in term %d: %s",
                              self._me, self._group, term, why or "another member leads")  # fmt: skip
        if role is Role.LEADER and was is not Role.LEADER:
            self._log.info("leads", "%s: became leader of group %s in term %d (votes: %s; %s)",
                           self._me, self._group, term, ", ".join(f"n{vote}" for vote in sorted(votes)),
                           self._silence(silent_s))  # fmt: skip
        elif role is Role.FOLLOWER and leader is not None and leader != followed:
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
