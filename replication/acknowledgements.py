"""A follower's answers that wait for its disk: what they say must be durable before they go (D2).

Many requests may wait for one sync. An answer says "agrees up to here", so of those that one sync covers only the one
that says most is sent.
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
        """One that says no more than another one which waits is dropped: a repeated or overtaken request's."""
        if not self._waiting or reply.match_index > self._waiting[-1].match_index:
            self._waiting.append(reply)

    def covered(self, synced_index: int) -> AppendReply | None:
        """The answer to send when the log is durable up to `synced_index`, if there is one."""
        reply = None
        while self._waiting and self._waiting[0].match_index <= synced_index:
            reply = self._waiting.popleft()
        return reply

    def forget_above(self, last_index: int) -> None:
        """What was to be written there is not."""
        while self._waiting and self._waiting[-1].match_index > last_index:
            self._waiting.pop()

    def clear(self) -> None:
        self._waiting.clear()
