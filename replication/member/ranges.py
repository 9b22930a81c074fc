"""Checks the entries of an append request: the received bytes are sound and are the entries that the request names.

The kernel checks sizes, positions, indexes, terms and CRCs. If a range begins at the own log's end, the kernel also
checks that its chain of CRCs continues the own log's (S13). A range that fails is dropped as if it had not arrived, and
the leader sends it again. Possible causes are the network, the leader's disk, or a group with a different first entry.
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
from tallystick.store.formats.ledger_format import EntryKind

if TYPE_CHECKING:
    from tallystick.store._kernel import Entries


class RangeError(Exception):
    """A leader's entries were refused; the text is for people."""


def checked(ledger: Ledger, request: AppendRequest, data: bytes) -> tuple[AppendRequest, Entries]:
    """The request, with the memberships that its bytes contain, and its entries. Raises RangeError."""
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
            raise RangeError(f"n{request.source} sent other entries than it announced")
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
