"""What a member tells whoever builds on it: lists of functions, called in their order, on the event loop.

They are called between the effects of one decision, in the order of these: nothing of it is taken back afterwards. They
must not block, and one that raises stops the member.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tallystick.replication.effects import Role
from tallystick.store.ledger_format import EntryKind

Answers = list[tuple[int, bytes]]


class Callbacks:
    """Add to them before the member is started."""

    def __init__(self) -> None:
        self.on_role: list[Callable[[Role, int, int | None], None]] = []
        """(role, term, leader). Before a new leader's first entry is staged: derive queue offsets from the whole log
        here (B3). When leadership is lost: stop what only a leader runs (B7)."""
        self.on_ready: list[Callable[[int], None]] = []
        """(term): this leader has committed an entry of its own, and all before it is applied (S11)."""
        self.on_accepting: list[Callable[[bool], None]] = []
        """Whether `accepting` is true now: let the kernel's `feed` serve sends or not (`Log.set_hot`)."""
        self.on_commit: list[Callable[[int], None]] = []
        """(pos): the log is committed up to this byte. Answers of sends below may go: `Log.release(pos)`."""
        self.on_apply: list[Callable[[int, EntryKind, bytes], None]] = []
        """(index, kind, body) of committed entries that are no messages, in order, each once, before `on_commit`."""
        self.on_truncate: list[Callable[[int, int], None]] = []
        """(pos, was_end): the log ends at `pos` now, what was behind it is gone. Counters roll back (B3)."""
        self.on_unknown: list[Callable[[], None]] = []
        """What this member took in as a leader and has not committed: nobody knows what becomes of it. Answer all sends
        that wait with "unknown" (`Log.expire`, B2). After a transfer not before its grace is over, and not at all if
        the successor commits everything."""
        self.on_refused: list[Callable[[Answers], None]] = []
        """(answers) of the kernel's `abandon`: sends that were staged and not written. Deliver them."""
        self.on_abandoned: list[Callable[[int], None]] = []
        """(last_index): the log ends with this entry; what was staged behind it was not written and is dropped."""
        self.on_installed: list[Callable[[int, int], None]] = []
        """(index, pos): the log begins anew behind this entry, at this byte; `restore` was called before."""
        self.on_repaired: list[Callable[[int, int], Awaitable[None] | None]] = []
        """(pos, end): these bytes of the log were damaged, or taken for it, and are sound now. Read them again, and
        make what is derived from them again: the member may lead when what was returned is done."""
        self.on_fatal: list[Callable[[str], None]] = []
        """(reason): the member stopped for good, its disk is kept as it is. End the process."""
        self.on_removed: list[Callable[[int], None]] = []
        """(index): by all that is committed up to this entry this is no member: stop it (M6, M7)."""
