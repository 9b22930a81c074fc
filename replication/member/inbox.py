"""What other members send: entries are checked before the core hears of them, bases are fetched first.

What the core decides on comes back as an effect: `Write` of the entries that were delivered last, `InstallBase` of the
base. Both are kept here until then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tallystick.replication.effects import Effect, InstallBase, Write
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.mark import EntryPoint
from tallystick.replication.member.core_calls import CoreCalls
from tallystick.replication.member.ranges import RangeError, checked
from tallystick.replication.messages import AppendRequest, InstallRequest, Message
from tallystick.replication.raft import Raft

if TYPE_CHECKING:
    from tallystick.store._kernel import Entries


class Inbox:
    """`fetch_base(request)`: it is to be fetched, and told by `base_arrived`. `refuse(reason)`: entries were dropped as
    if they had not come."""

    def __init__(
        self,
        raft: Raft,
        ledger: Ledger,
        calls: CoreCalls,
        *,
        fetch_base: Callable[[InstallRequest], None],
        refuse: Callable[[str], None],
    ) -> None:
        self._raft, self._ledger, self._calls = raft, ledger, calls
        self._fetch_base, self._refuse = fetch_base, refuse
        self._entries: Entries | None = None
        self._base: tuple[EntryPoint, bytes] | None = None

    def deliver(self, message: Message, payload: memoryview | None) -> None:
        """A message, as the transport hands it over."""
        if type(message) is AppendRequest:
            if message.runs:
                self._deliver_entries(message, payload)
                return
        elif type(message) is InstallRequest and not (
            message.term < self._raft.term or message.base_index <= self._raft.commit_index
        ):
            self._fetch_base(message)
            return
        self._calls.call(self._raft.step, message)

    def base_arrived(self, request: InstallRequest, point: EntryPoint, blob: bytes) -> None:
        """All of a base is here."""
        self._calls.call(self._step_base, request, point, blob)

    def entries_of(self, effect: Write) -> Entries:
        """What is to be written."""
        entries = self._entries
        assert entries is not None and entries.last_index == effect.request.last_index
        return entries

    def base_of(self, effect: InstallBase) -> tuple[EntryPoint, bytes]:
        """What is to be installed; it is forgotten here."""
        base, self._base = self._base, None
        assert base is not None and base[0].index == effect.request.base_index
        return base

    def _deliver_entries(self, request: AppendRequest, payload: memoryview | None) -> None:
        """Checked before the core hears of them: what it does not know of needs not be taken back.

        The kernel gets a copy: some 15 us for 230 KiB, where to check them takes 65 and to write them 230. A view would
        be kept as long as the entries are, and its connection had to take a new buffer for each range.
        """
        try:
            request, entries = checked(self._ledger, request, bytes(payload or b""))
        except RangeError as error:
            self._refuse(str(error))
            return
        self._calls.call(self._step_entries, request, entries)

    def _step_entries(self, now: float, request: AppendRequest, entries: Entries) -> Sequence[Effect]:
        self._entries = entries
        return self._raft.step(now, request)

    def _step_base(self, now: float, request: InstallRequest, point: EntryPoint, blob: bytes) -> Sequence[Effect]:
        self._base = point, blob
        return self._raft.step(now, request)
