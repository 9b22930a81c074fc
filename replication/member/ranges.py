"""The entries of an append request: the bytes that came are the entries that the message speaks of, and sound.

The kernel checks sizes, places, indexes, terms and CRCs, and, where a range begins at the own log's end, that its chain
of CRCs goes on with the own log's (S13). A range that fails is dropped as if it had not come: the leader sends again.
It may have been spoiled on the way, on the leader's disk, or be of a group that was made of something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.member.special import body_of
from tallystick.replication.membership import Membership, MembershipEntry, MembershipError
from tallystick.replication.messages import AppendRequest, TermRun
from tallystick.store._kernel import EntryError, check_entries
from tallystick.store.ledger_format import EntryKind

if TYPE_CHECKING:
    from tallystick.store._kernel import Entries


class RangeError(Exception):
    """A leader's entries are not taken; the text is for people."""


def checked(ledger: Ledger, request: AppendRequest, data: bytes) -> tuple[AppendRequest, Entries]:
    """The request, with the memberships that its bytes hold, and its entries. RangeError."""
    prev_index = request.prev_index
    try:
        _, last_index, last_term, chain = ledger.log.written_point()
        if prev_index == last_index and request.prev_term == last_term:
            entries = check_entries(data, ledger.segment_bytes, prev_index, last_term, chain)
        else:
            entries = ledger.check(data, prev_index, request.prev_term)
        runs = entries.runs
        told = (TermRun(runs[0][0], entries.last_index),) if len(runs) == 1 else _runs(prev_index, runs)
        if told != request.runs:
            raise RangeError(f"n{request.source} sent other entries than it said")
        if request.memberships or entries.special:
            found = tuple(
                MembershipEntry(index, Membership.decode(body_of(entries.record(index))))
                for index, kind, _, _ in entries.special
                if kind == EntryKind.MEMBERSHIP
            )
            if found != request.memberships:
                request = replace(request, memberships=found)
    except EntryError as error:
        raise RangeError(f"entry {error.index} from n{request.source}: {error.reason}") from error
    except MembershipError as error:
        raise RangeError(f"a membership from n{request.source}: {error.reason}") from error
    return request, entries


def _runs(prev_index: int, counts: Sequence[tuple[int, int]]) -> tuple[TermRun, ...]:
    runs, last_index = [], prev_index
    for term, entries in counts:
        last_index += entries
        runs.append(TermRun(term, last_index))
    return tuple(runs)
