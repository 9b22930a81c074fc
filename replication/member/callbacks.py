"""The events of a member, as lists of functions, which it calls in their order on the event loop.

The member calls them between the effects of one decision, in the order of the effects, and never takes one back. They
must not block. If one raises an exception, the member stops.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tallystick.replication.effects import Role
from tallystick.store.formats.ledger_format import EntryKind

Answers = list[tuple[int, bytes]]


class Callbacks:
    """Append functions before the member is started."""

    def __init__(self) -> None:
        self.on_role: list[Callable[[Role, int, int | None], None]] = []
        """(role, term, leader). A new leader's first entry is not staged yet: derive queue offsets from the whole log
        here (B3). When leadership is lost, stop what only a leader runs (B7)."""
        self.on_ready: list[Callable[[int], None]] = []
        """(term): this leader has committed an entry of its current term and applied everything before it (S11)."""
        self.on_accepting: list[Callable[[bool], None]] = []
        """The new value of `accepting`: let the kernel's `feed` serve sends, or stop it (`Log.set_hot`)."""
        self.on_commit: list[Callable[[int], None]] = []
        """(pos): the log is committed up to this byte. Answers to sends below it can be sent: `Log.release(pos)`."""
        self.on_apply: list[Callable[[int, EntryKind, bytes], object]] = []
        """(index, kind, body) of committed entries that are not messages, in order, each once, before `on_commit`."""
        self.on_truncate: list[Callable[[int, int], None]] = []
        """(pos, was_end): the log was truncated from `was_end` to `pos`. Counters roll back (B3)."""
        self.on_unknown: list[Callable[[], None]] = []
        """The outcome of what this member accepted as a leader and has not committed is unknown. Answer all waiting
        sends with "unknown" (`Log.expire`, B2). After a transfer this is called when the grace period is over, and not
        at all if the successor commits everything."""
        self.on_refused: list[Callable[[Answers], None]] = []
        """(answers) of the kernel's `abandon`: the answers to sends that were staged and not written. Send them."""
        self.on_abandoned: list[Callable[[int], None]] = []
        """(last_index): the log ends with this entry; what was staged behind it was not written and is dropped."""
        self.on_installed: list[Callable[[int, int], None]] = []
        """(index, pos): a snapshot replaced the log, which starts behind this entry at this byte. `restore` ran
        before."""
        self.on_repaired: list[Callable[[int, int], Awaitable[None] | None]] = []
        """(pos, end): these bytes of the log were damaged, or believed to be, and are sound now. Read them again and
        rebuild what is derived from them: the member can lead when the returned awaitable is done."""
        self.on_fatal: list[Callable[[str], None]] = []
        """(reason): the member stopped for good and keeps its disk as it is. End the process."""
        self.on_removed: list[Callable[[int], None]] = []
        """(index): by what is committed up to this entry this is not a member: stop it (M6, M7)."""
