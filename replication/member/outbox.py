"""Sends the core's messages to other members, with the bytes of their entries.

A range that goes to two members is read once. If a lane refuses a message, the message is dropped: the core is told
when the lane accepts messages again, and then sends what is due.
"""

from __future__ import annotations

from collections.abc import Callable

from tallystick.replication.effects import Send
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.recovery import LedgerError
from tallystick.replication.member.core_calls import CoreCalls
from tallystick.replication.messages import AppendRequest
from tallystick.replication.peers import PeerState
from tallystick.replication.raft import Raft
from tallystick.replication.transport.transport import Transport
from tallystick.store._kernel import EntryError

_NOTHING = (0, -1, b"")


class Outbox:
    """`note(text)`: reports a problem, as a text for people. `repair(first, end_pos)`: checks the entries from `first`
    up to that byte, and fetches damaged ones again."""

    def __init__(
        self,
        raft: Raft,
        ledger: Ledger,
        transport: Transport,
        calls: CoreCalls,
        *,
        max_append_bytes: int,
        note: Callable[[str], None],
        repair: Callable[[int, int], None],
    ) -> None:
        self._raft, self._ledger, self._transport, self._calls = raft, ledger, transport, calls
        self._max_append_bytes = max_append_bytes
        self._note, self._repair = note, repair
        self._range = _NOTHING  # first index, last index, bytes
        self._refused: set[int] = set()  # members whose lane refused appends: it is full or closed

    def send(self, effect: Send) -> None:
        """Sends the message if its lane accepts it. Otherwise it is lost, as in the network."""
        message = effect.message
        payload: bytes | None = None
        if type(message) is AppendRequest and message.runs:
            payload = self._entries(message)
            if payload is None:
                return
        if not self._transport.send(message, payload) and type(message) is AppendRequest:
            self._refused.add(message.target)

    def forget_range(self) -> None:
        """The log was truncated or replaced by a snapshot, or may have been repaired."""
        self._range = _NOTHING

    def connected(self, member: int) -> None:
        """What was sent to this member on an earlier connection may be lost."""
        self._refused.discard(member)
        self._calls.call(self._raft.link_opened, member)

    def room(self, member: int) -> None:
        """Its lane accepts messages again. Appends that were refused are lost; those before them were sent."""
        if member in self._refused:
            self.connected(member)

    def _entries(self, request: AppendRequest) -> bytes | None:
        """The entries' bytes; None if they cannot be sent as they are."""
        first, last = request.prev_index + 1, request.last_index
        peer = self._raft.peers.get(request.target)
        if peer is not None and peer.state is PeerState.PROBE and not self._is_sound(first):
            return None
        if self._range[0] != first or self._range[1] != last:
            try:
                self._range = first, last, self._ledger.log.read_range(first, last)
            except EntryError as error:
                self._note(f"entry {error.index} cannot be read: {error.reason}")
                return None
        return self._range[2]

    def _is_sound(self, first: int) -> bool:
        """Checks what is sent next to a member that makes no progress: this member's disk may be damaged, and the other
        member refuses what it gets. If so, the entries are repaired, and sent when the core tries again."""
        last = self._ledger.log.extent(first, self._max_append_bytes)
        try:
            self._ledger.verified_range(first, last)
        except (EntryError, LedgerError) as error:
            self._note(f"entries {first} to {last}: {error}")
            self._repair(first, self._ledger.end_of(last) + self._ledger.segment_bytes)
            return False
        return True
