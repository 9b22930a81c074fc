"""A follower's answers that wait for its disk: their content must be durable before they are sent (D2).

Many requests can wait for one sync. An answer states "agrees up to here", so of the answers that one sync covers, the
member sends only the last one.
"""

from __future__ import annotations

from collections import deque

from tallystick.replication.messages import AppendReply


class Acknowledgements:
    """Answers to one leader in one term, in rising order of their match index."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[AppendReply] = deque()

    def add(self, reply: AppendReply) -> None:
        """Adds an answer. It drops one that states no more than a waiting one: its request was repeated or
        overtaken."""
        if not self._waiting or reply.match_index > self._waiting[-1].match_index:
            self._waiting.append(reply)

    def covered(self, synced_index: int) -> AppendReply | None:
        """The answer to send when the log is durable up to `synced_index`, or None."""
        reply = None
        while self._waiting and self._waiting[0].match_index <= synced_index:
            reply = self._waiting.popleft()
        return reply

    def forget_above(self, last_index: int) -> None:
        """Drops answers for entries above `last_index`, which will not be written."""
        while self._waiting and self._waiting[-1].match_index > last_index:
            self._waiting.pop()

    def clear(self) -> None:
        self._waiting.clear()
