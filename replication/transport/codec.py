"""The core's messages as bytes: each has a kind, a version and a layout, big-endian.

The table at the end lists all of them. A layout never changes: a different layout gets a new version, and the version
of the protocol (`handshake`) determines which one a peer understands. In all layouts a member takes 4 bytes, and a term
or an index 8. An optional value has a byte before it that states whether it is present; an enumeration takes a byte.

The payload of an append or a snapshot is not part of the layout: it follows the message in the frame. Decoding returns
it in the message's field `payload`, as a view of the received bytes.

A message that no member of this version can have sent is an error here (`bounds`): its connection ends, and neither the
core nor the disk ever sees such a number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from tallystick.replication.bounds import impossible
from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.membership import Membership, MembershipEntry, MembershipError
from tallystick.replication.messages import (
    BULK,
    AppendReply,
    AppendRequest,
    EntriesLost,
    Heartbeat,
    HeartbeatReply,
    InstallRequest,
    Message,
    PreVoteReply,
    PreVoteRequest,
    ReadReply,
    ReadRequest,
    Removed,
    TermRun,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from tallystick.replication.transport.frames import FrameError, FrameHeader
from tallystick.replication.transport.handshake import Lane

C = TypeVar("C", bound=Message)
View = memoryview


@dataclass(frozen=True, slots=True)
class Layout:
    """How one type of message is sent. `encode` returns the message's bytes, `decode` reverses it.

    `encode` raises struct.error for values that do not fit, which is an internal error. `decode` raises struct.error or
    ValueError for bytes that are not such a message, which is the peer's error (`Codec` turns it into a FrameError).
    """

    kind: int
    version: int
    message: type
    lane: Lane
    payload: bool
    encode: Callable[[Any], bytes]
    decode: Callable[[View, View | None], Any]


class Codec:
    """A set of layouts. Kinds and types are unique in it."""

    def __init__(self, layouts: Iterable[Layout]) -> None:
        self._by_type: dict[type, Layout] = {}
        self._by_kind: dict[int, Layout] = {}
        for layout in layouts:
            assert layout.message not in self._by_type and layout.kind not in self._by_kind
            self._by_type[layout.message] = layout
            self._by_kind[layout.kind] = layout

    def layout(self, message: object) -> Layout:
        """The layout of a message's type. Raises KeyError if it is not a message."""
        return self._by_type[type(message)]

    def check(self, header: FrameHeader) -> None:
        """Raises FrameError if no such frame is known. Called before the link waits for the frame's bytes."""
        layout = self._by_kind.get(header.kind)
        if layout is None:
            raise FrameError(f"a frame of unknown kind {header.kind}")
        if header.version != layout.version:
            raise FrameError(f"a frame of kind {header.kind} in the unknown version {header.version}")
        if header.payload_bytes and not layout.payload:
            raise FrameError(f"a frame of kind {header.kind} with a payload, which it cannot have")

    def decode(self, header: FrameHeader, message: View, payload: View | None) -> Any:
        """The message of a frame that `check` accepted. Raises FrameError if the bytes are invalid."""
        layout = self._by_kind[header.kind]
        try:
            return layout.decode(message, payload)
        except (struct.error, ValueError) as error:
            raise FrameError(f"an invalid {layout.message.__name__}: {error}") from None


# -- parts -------------------------------------------------------------------------------------------------------------

_ABSENT = 0
_COUNT = struct.Struct(">I")
_RUN = struct.Struct(">qq")
_ENTRY = struct.Struct(">qHH")


def _optional(value: int | None) -> tuple[bool, int]:
    return (False, _ABSENT) if value is None else (True, value)


def _encode_runs(runs: tuple[TermRun, ...]) -> bytes:
    flat = [number for run in runs for number in run]
    return struct.pack(f">I{len(flat)}q", len(runs), *flat)


def _decode_runs(view: View, offset: int, prev_index: int) -> tuple[tuple[TermRun, ...], int]:
    (count,) = _COUNT.unpack_from(view, offset)
    begin = offset + _COUNT.size
    end = begin + count * _RUN.size
    if end > len(view):
        raise ValueError(f"{count} runs do not fit into the message")
    runs = tuple(map(TermRun._make, _RUN.iter_unpack(view[begin:end])))
    last_index = prev_index
    for run in runs:
        if run.last_index <= last_index:
            raise ValueError(f"a run up to index {run.last_index} after index {last_index}")
        last_index = run.last_index
    return runs, end


def _encode_entry(entry: MembershipEntry) -> bytes:
    voters, learners = sorted(entry.membership.voters), sorted(entry.membership.learners)
    members = voters + learners
    return _ENTRY.pack(entry.index, len(voters), len(learners)) + struct.pack(f">{len(members)}i", *members)


def _decode_entry(view: View, offset: int) -> tuple[MembershipEntry, int]:
    index, voters, learners = _ENTRY.unpack_from(view, offset)
    begin = offset + _ENTRY.size
    members = struct.unpack_from(f">{voters + learners}i", view, begin)
    try:
        membership = Membership.of(members[:voters], members[voters:])
    except MembershipError as error:
        raise ValueError(error.reason) from None
    return MembershipEntry(index, membership), begin + 4 * len(members)


def _at_end(view: View, offset: int) -> None:
    if offset != len(view):
        raise ValueError(f"{len(view) - offset} extra bytes")


# -- election ----------------------------------------------------------------------------------------------------------

_PRE_VOTE_REQUEST = struct.Struct(">iiqqqq")
_PRE_VOTE_REPLY = struct.Struct(">iiqqq?B")
_VOTE_REQUEST = struct.Struct(">iiqqqq?")
_VOTE_REPLY = struct.Struct(">iiqq?B")


def _encode_pre_vote_request(m: PreVoteRequest) -> bytes:
    return _PRE_VOTE_REQUEST.pack(m.source, m.target, m.asked_term, m.campaign, m.last_term, m.last_index)


def _decode_pre_vote_request(view: View, payload: View | None) -> PreVoteRequest:
    return PreVoteRequest(*_PRE_VOTE_REQUEST.unpack(view))


def _encode_pre_vote_reply(m: PreVoteReply) -> bytes:
    return _PRE_VOTE_REPLY.pack(m.source, m.target, m.term, m.asked_term, m.campaign, m.granted, m.possible_loss)


def _decode_pre_vote_reply(view: View, payload: View | None) -> PreVoteReply:
    source, target, term, asked_term, campaign, granted, loss = _PRE_VOTE_REPLY.unpack(view)
    return PreVoteReply(source, target, term, asked_term, campaign, granted, PossibleLoss(loss))


def _encode_vote_request(m: VoteRequest) -> bytes:
    return _VOTE_REQUEST.pack(m.source, m.target, m.term, m.campaign, m.last_term, m.last_index, m.transfer)


def _decode_vote_request(view: View, payload: View | None) -> VoteRequest:
    return VoteRequest(*_VOTE_REQUEST.unpack(view))


def _encode_vote_reply(m: VoteReply) -> bytes:
    return _VOTE_REPLY.pack(m.source, m.target, m.term, m.campaign, m.granted, m.possible_loss)


def _decode_vote_reply(view: View, payload: View | None) -> VoteReply:
    source, target, term, campaign, granted, loss = _VOTE_REPLY.unpack(view)
    return VoteReply(source, target, term, campaign, granted, PossibleLoss(loss))


# -- replication -------------------------------------------------------------------------------------------------------

_APPEND_REQUEST = struct.Struct(">iiqqqqq")
"""Followed by the runs (4 bytes count, 16 each) and the memberships (4 bytes count, each 12 and 4 per member)."""
_APPEND_REPLY = struct.Struct(">iiqqq?qqB?qq")
_HEARTBEAT = struct.Struct(">iiqqdqq?q")
_HEARTBEAT_REPLY = struct.Struct(">iiqqdqqBB")
_INSTALL_REQUEST = struct.Struct(">iiqqqq")
"""Followed by one membership."""


def _encode_append_request(m: AppendRequest) -> bytes:
    head = _APPEND_REQUEST.pack(
        m.source, m.target, m.term, m.session, m.prev_index, m.prev_term, m.commit_index
    )  # fmt: skip
    entries = map(_encode_entry, m.memberships)
    return b"".join((head, _encode_runs(m.runs), _COUNT.pack(len(m.memberships)), *entries))


def _decode_append_request(view: View, payload: View | None) -> AppendRequest:
    source, target, term, session, prev_index, prev_term, commit_index = _APPEND_REQUEST.unpack_from(view)
    runs, offset = _decode_runs(view, _APPEND_REQUEST.size, prev_index)
    (count,) = _COUNT.unpack_from(view, offset)
    offset += _COUNT.size
    memberships: list[MembershipEntry] = []
    for _ in range(count):
        entry, offset = _decode_entry(view, offset)
        memberships.append(entry)
    _at_end(view, offset)
    return AppendRequest(
        source, target, term, session, prev_index, prev_term, runs, commit_index, tuple(memberships),
        b"" if payload is None else payload,
    )  # fmt: skip


def _encode_append_reply(m: AppendReply) -> bytes:
    return _APPEND_REPLY.pack(
        m.source, m.target, m.term, m.session, m.incarnation, m.success, m.prev_index, m.match_index, m.disk,
        *_optional(m.conflict_term), m.conflict_index,
    )  # fmt: skip


def _decode_append_reply(view: View, payload: View | None) -> AppendReply:
    (
        source, target, term, session, incarnation, success, prev_index, match_index, disk,
        in_conflict, conflict_term, conflict_index,
    ) = _APPEND_REPLY.unpack(view)  # fmt: skip
    return AppendReply(
        source, target, term, session, incarnation, success, prev_index, match_index, DiskState(disk),
        conflict_term if in_conflict else None, conflict_index,
    )  # fmt: skip


def _encode_heartbeat(m: Heartbeat) -> bytes:
    return _HEARTBEAT.pack(
        m.source, m.target, m.term, m.round, m.sent_at, m.commit_index, m.incarnation, *_optional(m.readmit_index)
    )


def _decode_heartbeat(view: View, payload: View | None) -> Heartbeat:
    (
        source, target, term, round_, sent_at, commit_index, incarnation, readmitted, readmit_index,
    ) = _HEARTBEAT.unpack(view)  # fmt: skip
    return Heartbeat(
        source, target, term, round_, sent_at, commit_index, incarnation, readmit_index if readmitted else None
    )


def _encode_heartbeat_reply(m: HeartbeatReply) -> bytes:
    return _HEARTBEAT_REPLY.pack(
        m.source, m.target, m.term, m.round, m.sent_at, m.commit_index, m.incarnation, m.possible_loss, m.disk
    )


def _decode_heartbeat_reply(view: View, payload: View | None) -> HeartbeatReply:
    source, target, term, round_, sent_at, commit_index, incarnation, loss, disk = _HEARTBEAT_REPLY.unpack(view)
    return HeartbeatReply(
        source, target, term, round_, sent_at, commit_index, incarnation, PossibleLoss(loss), DiskState(disk)
    )


def _encode_install_request(m: InstallRequest) -> bytes:
    head = _INSTALL_REQUEST.pack(m.source, m.target, m.term, m.session, m.snapshot_index, m.snapshot_term)
    return head + _encode_entry(m.membership)


def _decode_install_request(view: View, payload: View | None) -> InstallRequest:
    source, target, term, session, snapshot_index, snapshot_term = _INSTALL_REQUEST.unpack_from(view)
    membership, offset = _decode_entry(view, _INSTALL_REQUEST.size)
    _at_end(view, offset)
    return InstallRequest(
        source, target, term, session, snapshot_index, snapshot_term, membership, b"" if payload is None else payload
    )


# -- reads, transfer, leaving ------------------------------------------------------------------------------------------

_READ_REQUEST = struct.Struct(">iiqq")
_READ_REPLY = struct.Struct(">iiqq?q")
_TIMEOUT_NOW = struct.Struct(">iiq")
_REMOVED = struct.Struct(">iiqq")
_ENTRIES_LOST = struct.Struct(">iiqq")


def _encode_read_request(m: ReadRequest) -> bytes:
    return _READ_REQUEST.pack(m.source, m.target, m.term, m.token)


def _decode_read_request(view: View, payload: View | None) -> ReadRequest:
    return ReadRequest(*_READ_REQUEST.unpack(view))


def _encode_read_reply(m: ReadReply) -> bytes:
    return _READ_REPLY.pack(m.source, m.target, m.term, m.token, *_optional(m.index))


def _decode_read_reply(view: View, payload: View | None) -> ReadReply:
    source, target, term, token, known, index = _READ_REPLY.unpack(view)
    return ReadReply(source, target, term, token, index if known else None)


def _encode_timeout_now(m: TimeoutNow) -> bytes:
    return _TIMEOUT_NOW.pack(m.source, m.target, m.term)


def _decode_timeout_now(view: View, payload: View | None) -> TimeoutNow:
    return TimeoutNow(*_TIMEOUT_NOW.unpack(view))


def _encode_removed(m: Removed) -> bytes:
    return _REMOVED.pack(m.source, m.target, m.term, m.commit_index)


def _decode_removed(view: View, payload: View | None) -> Removed:
    return Removed(*_REMOVED.unpack(view))


def _encode_entries_lost(m: EntriesLost) -> bytes:
    return _ENTRIES_LOST.pack(m.source, m.target, m.term, m.match_index)


def _decode_entries_lost(view: View, payload: View | None) -> EntriesLost:
    return EntriesLost(*_ENTRIES_LOST.unpack(view))


# -- the table ---------------------------------------------------------------------------------------------------------


def _layout(
    kind: int, message: type[C], encode: Callable[[C], bytes], decode: Callable[[View, View | None], C]
) -> Layout:
    def decode_checked(view: View, payload: View | None) -> C:
        decoded = decode(view, payload)
        reason = impossible(decoded)
        if reason is not None:
            raise ValueError(reason)
        return decoded

    lane = Lane.BULK if message in BULK else Lane.CONTROL
    return Layout(kind, 1, message, lane, message in (AppendRequest, InstallRequest), encode, decode_checked)


# Do not change the kinds: other members use them. 1 to 15 belong to the handshake, 64 and above to `shipping`.
LAYOUTS = (
    _layout(16, PreVoteRequest, _encode_pre_vote_request, _decode_pre_vote_request),
    _layout(17, PreVoteReply, _encode_pre_vote_reply, _decode_pre_vote_reply),
    _layout(18, VoteRequest, _encode_vote_request, _decode_vote_request),
    _layout(19, VoteReply, _encode_vote_reply, _decode_vote_reply),
    _layout(20, AppendRequest, _encode_append_request, _decode_append_request),
    _layout(21, AppendReply, _encode_append_reply, _decode_append_reply),
    _layout(22, Heartbeat, _encode_heartbeat, _decode_heartbeat),
    _layout(23, HeartbeatReply, _encode_heartbeat_reply, _decode_heartbeat_reply),
    _layout(24, InstallRequest, _encode_install_request, _decode_install_request),
    _layout(25, ReadRequest, _encode_read_request, _decode_read_request),
    _layout(26, ReadReply, _encode_read_reply, _decode_read_reply),
    _layout(27, TimeoutNow, _encode_timeout_now, _decode_timeout_now),
    _layout(28, Removed, _encode_removed, _decode_removed),
    _layout(29, EntriesLost, _encode_entries_lost, _decode_entries_lost),
)
