"""The small parts of a member, each by itself."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from ledger_lab import HOST, NOW_MS, entries_of, grow, open_ledger
from ledger_twin import TwinLedger

from tallystick.replication.durable import PossibleLoss
from tallystick.replication.effects import Send
from tallystick.replication.ledger.recovery import Damage
from tallystick.replication.member.core_calls import CoreCalls
from tallystick.replication.member.errors import DiskError, OutcomeUnknownError
from tallystick.replication.member.log_writer import LogWriter
from tallystick.replication.member.opening import _give_up_damaged, memberships_of, open_disk
from tallystick.replication.member.origin import FILE_NAME, Origin
from tallystick.replication.member.outbox import Outbox
from tallystick.replication.member.questions import Questions
from tallystick.replication.member.ranges import RangeError, checked
from tallystick.replication.member.reserve import RESERVE_BYTES, Reserve
from tallystick.replication.member.room import Room
from tallystick.replication.member.settings import MemberSettings
from tallystick.replication.member.special import SpecialEntries
from tallystick.replication.member.waiters import Waiters
from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.messages import AppendRequest, TermRun
from tallystick.replication.settings import RaftSettings
from tallystick.replication.transport.handshake import Identity
from tallystick.store._kernel import Door
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import FindingKind
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.formats.record import Record
from tallystick.store.settings import SettingsError


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.written = 0
        self.synced = asyncio.Event()
        self.failed: list[tuple[int | None, bool]] = []

    def log_written(self) -> None:
        self.written += 1

    def log_synced(self) -> None:
        self.synced.set()

    def log_failed(self, error: OSError, *, final: bool) -> None:
        self.failed.append((error.errno, final))
        if final:
            self.synced.set()


def stage(ledger, twin: TwinLedger) -> None:
    first = ledger.log.staged_index + 1
    grow(twin, random.Random(first), 3, 1)
    ledger.append_entries(entries_of(ledger, twin, first, twin.last_index), first)


# -- writing -----------------------------------------------------------------------------------------------------------


async def test_a_turn_writes_and_syncs_once(tmp_path: Path) -> None:
    ledger, twin, listener = open_ledger(tmp_path), TwinLedger(4096), Listener()
    writer = LogWriter(ledger.log, listener, sync=True)
    stage(ledger, twin)
    writer.kick()
    writer.kick()
    async with asyncio.timeout(10):
        await listener.synced.wait()
    assert listener.written == 1
    assert ledger.log.flushed == ledger.log.written == ledger.log.staged
    await writer.close()


async def test_bytes_that_another_sync_made_durable_are_reported(tmp_path: Path) -> None:
    ledger, twin, listener = open_ledger(tmp_path), TwinLedger(4096), Listener()
    writer = LogWriter(ledger.log, listener, sync=True)
    stage(ledger, twin)
    ledger.log.write_out()
    ledger.log.sync()
    assert writer.write() is None
    assert listener.synced.is_set()
    await writer.close()


async def test_a_failed_write_is_returned_and_reported(tmp_path: Path) -> None:
    door = Door()
    ledger, twin, listener = open_ledger(tmp_path, door), TwinLedger(4096), Listener()
    writer = LogWriter(ledger.log, listener, sync=True)
    stage(ledger, twin)
    door.fail("write", "data/", errno.ENOSPC)
    error = writer.write()
    assert error is not None and error.errno == errno.ENOSPC
    assert listener.failed == [(errno.ENOSPC, False)]
    await writer.close()


async def test_a_sync_that_fails_is_final(tmp_path: Path) -> None:
    door = Door()
    ledger, twin, listener = open_ledger(tmp_path, door), TwinLedger(4096), Listener()
    writer = LogWriter(ledger.log, listener, sync=True)
    stage(ledger, twin)
    door.fail("sync", "data/", errno.EIO)
    writer.write()
    async with asyncio.timeout(10):
        await listener.synced.wait()
    assert listener.failed == [(errno.EIO, True)]
    await writer.close()


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [None, MembershipEntry(41, Membership.of([0, 2], [5]))])
def test_an_origin_is_read_back(tmp_path: Path, entry: MembershipEntry | None) -> None:
    assert Origin.load(tmp_path) is None
    origin = Origin(entry, asynchronous=True)
    origin.save(Door(), tmp_path)
    assert Origin.load(tmp_path) == origin


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "index": 0, "voters": [0]}'])
def test_an_origin_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(DiskError, match=FILE_NAME):
        Origin.load(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_power_loss_leaves_the_old_origin_or_the_new_one(tmp_path: Path, seed: int) -> None:
    door = Door(record=True)
    door.mkdir(tmp_path / "n0")
    old, new = (Origin(MembershipEntry(index, Membership.of([0, 1, 2])), False) for index in (-1, 7))
    old.save(door, tmp_path / "n0")
    door.fail("sync_dir", "n0", errno.EIO)
    with pytest.raises(OSError):
        new.save(door, tmp_path / "n0")
    door.crash(seed)
    assert Origin.load(tmp_path / "n0") in (old, new)


def test_a_reserve_is_given_up_for_want_of_room_and_taken_again(tmp_path: Path) -> None:
    reserve, calls = Reserve(Door(), tmp_path), []

    def save(failing: int, number: int) -> None:
        calls.append(number)
        if len(calls) <= failing:
            raise OSError(number, "no")

    reserve.keep()
    reserve.use(lambda: save(1, errno.ENOSPC))
    assert len(calls) == 2
    calls.clear()
    reserve.use(lambda: save(1, errno.ENOSPC))
    assert len(calls) == 2, "the room was taken again at once: the next vote has it too"
    with pytest.raises(OSError):
        reserve.use(lambda: save(9, errno.ENOSPC))
    assert len(calls) == 4
    with pytest.raises(OSError):  # it was given up, and that was not enough
        reserve.use(lambda: save(9, errno.ENOSPC))
    assert len(calls) == 5
    reserve.keep()
    with pytest.raises(OSError):  # room does not help there
        reserve.use(lambda: save(9, errno.EIO))
    assert len(calls) == 6


def test_a_reserve_on_a_full_disk_takes_what_there_is(tmp_path: Path) -> None:
    door = Door()
    door.fail("create", "tally-reserve", errno.ENOSPC)
    Reserve(door, tmp_path).keep()
    assert not (tmp_path / "tally-reserve").exists()
    door.heal()
    Reserve(door, tmp_path).keep()
    assert (tmp_path / "tally-reserve").stat().st_size == RESERVE_BYTES


@pytest.mark.parametrize(
    ("written", "prepared", "free", "was_low", "short"),
    [
        (0, 1, 1000, False, False),
        (0, 1, 4, False, True),  # below a twentieth of the file system
        (900, 1, 5, False, True),  # the log has a tenth of a segment, and no other fits
        (900, 2, 60, False, False),  # one is prepared
        (400, 1, 60, False, False),
        (600, 1, 60, True, True),
        (300, 1, 60, False, False),
        (300, 1, 60, True, True),  # it takes twice as much to be out of it
        (0, 1, 7, False, False),
        (0, 1, 7, True, True),
    ],
)
def test_room_is_what_the_log_has_and_what_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int, prepared: int, free: int, was_low: bool, short: bool
) -> None:
    (tmp_path / "data").mkdir()
    for number in range(prepared):
        (tmp_path / "data" / f"{number * 1000:020}").touch()
    room = Room(tmp_path, 1000, 1 << 20)
    monkeypatch.setattr(Room, "_free", lambda self: (free, 100))
    assert (room.shortage(written, was_low=was_low) is not None) is short


@pytest.mark.parametrize(("written", "free", "enough"), [(600, 999, False), (400, 0, True), (600, 1000, True)])
def test_a_log_on_a_full_disk_is_tried_again_when_half_a_segment_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int, free: int, enough: bool
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{0:020}").touch()
    room = Room(tmp_path, 1000, 1 << 20)
    monkeypatch.setattr(Room, "_free", lambda self: (free, 1 << 20))
    assert room.for_log(written) is enough


def test_a_reserve_that_could_not_be_taken_is_tried_again(tmp_path: Path) -> None:
    """A file system may make the file, and have no blocks for it."""
    sizes: list[int] = []

    class Full:
        def create(self, path: Path, size: int, allocate: bool) -> None:
            path.touch()
            sizes.append(size)
            raise OSError(errno.ENOSPC, "No space left on device")

    reserve = Reserve(Full(), tmp_path)  # type: ignore[arg-type]
    for _ in range(2):
        reserve.keep()
    assert sizes == [RESERVE_BYTES >> n for n in range(4)] * 2
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_a_damaged_log_is_cut_before_the_doubt_is_durable(tmp_path: Path) -> None:
    """Else the member counts for what it lost, after a crash in between."""
    calls: list[object] = []

    def note_loss(loss: PossibleLoss) -> None:
        calls.append(loss)
        if len(calls) == 1:
            raise OSError(errno.EIO, "Input/output error")

    vote = SimpleNamespace(
        record=SimpleNamespace(identity=SimpleNamespace(member=1), membership_index=-1), note_loss=note_loss
    )
    ledger = SimpleNamespace(
        damage=Damage(20, 4096, "magic", 22),
        segment_bytes=4096,
        folder=tmp_path,
        findings=FindingLog(tmp_path),
        memberships=(),
        last_index=19,
        truncate=calls.append,
    )
    with pytest.raises(OSError):
        _give_up_damaged(ledger, vote, Origin(None, asynchronous=False))  # type: ignore[arg-type]
    assert calls == [PossibleLoss.LOG]
    _give_up_damaged(ledger, vote, Origin(None, asynchronous=False))  # type: ignore[arg-type]
    assert calls == [PossibleLoss.LOG, PossibleLoss.LOG, 19]


@pytest.mark.parametrize("how", ["after_power_loss", "at_end"])
@pytest.mark.parametrize("voters", [[1], [0, 1, 2]])
def test_entries_that_no_sound_one_proves_durable_may_have_been_acknowledged_all_the_same(
    tmp_path: Path, voters: list[int], how: str
) -> None:
    """A sector of zeros is what a loss of power leaves, and what a disk shows that lost durable bytes. Only other
    members can know. A lone member has no other copy, and nothing is wrong with its log if it was the loss of power.
    The same goes for changed bytes in the last entry."""
    record = SimpleNamespace(identity=SimpleNamespace(member=1), membership_index=3)
    damage = Damage(20, 4096, "magic", 22, **{how: True})
    vote = Mock(record=record)
    ledger = Mock(damage=damage, segment_bytes=4096, folder=tmp_path, memberships=(), last_index=19)
    _give_up_damaged(ledger, vote, Origin(MembershipEntry(3, Membership.of(voters)), asynchronous=False))
    assert vote.note_loss.called is (len(voters) > 1)
    ledger.truncate.assert_called_once_with(19)
    damaged = how == "at_end" and len(voters) > 1
    assert ledger.findings.add.call_args.args[0] is (FindingKind.DAMAGE if damaged else FindingKind.CUT)


def test_a_start_uses_the_memberships_in_the_log(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.log.set_term(1)
    for voters in ([0, 1], None, [0, 1, 2]):
        kind = EntryKind.NO_OP if voters is None else EntryKind.MEMBERSHIP
        ledger.append_own(kind, b"" if voters is None else Membership.of(voters).encode(), NOW_MS, HOST.encode())
    ledger.log.write_out()

    def found(origin: MembershipEntry) -> list[tuple[int, list[int]]]:
        return [(entry.index, sorted(entry.membership.voters)) for entry in memberships_of(ledger, origin)[0]]

    assert found(MembershipEntry(-1, Membership.of([0]))) == [(-1, [0]), (0, [0, 1]), (2, [0, 1, 2])]
    assert found(MembershipEntry(0, Membership.of([0, 1]))) == [(0, [0, 1]), (2, [0, 1, 2])]


def test_a_start_notes_the_newest_membership_of_the_log_beside_the_vote(tmp_path: Path) -> None:
    """A crash may come between the entry and its note. A member in doubt goes by the note alone (D8)."""
    disk = open_disk(
        tmp_path,
        Door(),
        Identity("cluster", "group", 0),
        lambda store_id: open_ledger(tmp_path / "log"),
        bootstrap=Membership.of([0, 1, 2]),
        asynchronous=False,
        boot_id=bytes(16),
    )
    assert [entry.index for entry in disk.memberships] == [-1, 0]
    assert disk.vote.record.membership_index == 0


@pytest.mark.parametrize(("noted", "gives_up"), [(3, False), (4, True)])
def test_a_lone_member_gives_up_only_where_a_newer_membership_may_be_in_the_damage(
    tmp_path: Path, noted: int, gives_up: bool
) -> None:
    """It is the only voter that it can read of. A membership that it knew of and lost may name others, with copies."""
    record = SimpleNamespace(identity=SimpleNamespace(member=1), membership_index=noted)
    vote, ledger = Mock(record=record), Mock(damage=Damage(20, 4096, "magic", 22), segment_bytes=4096, folder=tmp_path)
    ledger.memberships = ()
    origin = Origin(MembershipEntry(3, Membership.of([1])), asynchronous=False)
    with contextlib.nullcontext() if gives_up else pytest.raises(DiskError, match="entry 20"):
        _give_up_damaged(ledger, vote, origin)
    assert vote.note_loss.called is ledger.truncate.called is gives_up


# -- entries -----------------------------------------------------------------------------------------------------------


def test_special_entries_are_found_and_taken_in_order(tmp_path: Path) -> None:
    ledger, twin = open_ledger(tmp_path), TwinLedger(4096)
    grow(twin, random.Random(5), 60, 1)
    ledger.append_entries(entries_of(ledger, twin, 0, 59), 0)
    ledger.log.write_out()
    kinds = [(header.log_index, header.channel) for header, _ in twin.entries if header.channel]
    for first in (0, 10, 59, 60):
        special = SpecialEntries(ledger)
        special.find(first)
        wanted = [pair for pair in kinds if pair[0] >= first]
        assert [(index, int(kind)) for index, kind, _ in special.take(30)] == [p for p in wanted if p[0] <= 30]
        special.truncate(45)
        assert [(index, int(kind)) for index, kind, _ in special.take(99)] == [p for p in wanted if 30 < p[0] <= 45]
    one_by_one = SpecialEntries(ledger)
    one_by_one.find(0)
    taken = [(committed, index) for committed in range(60) for index, _, _ in one_by_one.take(committed)]
    assert taken == [(index, index) for index, _ in kinds], "none is applied before it is committed"
    from_a_leader = SpecialEntries(ledger)
    from_a_leader.extend(entries_of(ledger, twin, 0, 59), 10)
    from_disk = SpecialEntries(ledger)
    from_disk.find(10)
    assert list(from_a_leader.take(99)) == list(from_disk.take(99))


def request(twin: TwinLedger, first: int, last: int, **changes: object) -> AppendRequest:
    terms = [twin.entries[index][0].term for index in range(first, last + 1)]
    runs = [
        TermRun(term, index)
        for index, (term, after) in enumerate(zip(terms, [*terms[1:], None], strict=True), first)
        if term != after
    ]
    prev_term = twin.entries[first - 1][0].term if first else -1
    fields = {"prev_index": first - 1, "prev_term": prev_term, "runs": tuple(runs)} | changes
    return AppendRequest(0, 1, 9, 1, commit_index=-1, **fields)  # type: ignore[arg-type]


def grow_in_order(twin: TwinLedger, dice: random.Random, count: int, term: int) -> None:
    """As `grow`, and memberships are memberships."""
    for _ in range(count):
        kind = dice.choice([0, 0, 0, 1, 2, 3])
        body = Membership.of([0, 1, twin.last_index + 2]).encode() if kind == 2 else dice.randbytes(300)
        topic = "TALLY_SYS_GROUP_LOG" if kind else "T"
        twin.append([Record(topic, 0, body, store_timestamp_ms=NOW_MS, store_host=HOST)], term, kind)


def test_ranges_are_what_their_request_says(tmp_path: Path) -> None:
    ledger, twin = open_ledger(tmp_path), TwinLedger(4096)
    grow_in_order(twin, random.Random(5), 20, 1)
    grow_in_order(twin, random.Random(6), 20, 4)
    ledger.append_entries(entries_of(ledger, twin, 0, 14), 0)
    ledger.log.write_out()
    for first, last in ((15, 39), (3, 30), (20, 25), (15, 15)):
        taken, entries = checked(ledger, request(twin, first, last), twin.span(first, last))
        assert (entries.first_index, entries.last_index) == (first, last)
        own = [header.log_index for header, _ in twin.entries[first : last + 1] if header.channel == 2]
        assert [entry.index for entry in taken.memberships] == own
    data = twin.span(15, 30)
    for wrong in (
        request(twin, 15, 29),
        request(twin, 14, 30),
        request(twin, 15, 30, runs=(TermRun(4, 30),)),
        request(twin, 15, 30, prev_term=2),
    ):
        with pytest.raises(RangeError):
            checked(ledger, wrong, data)
    headers = [header for header, _ in twin.entries[15:31]]
    begin = headers[0].pos
    inside = [at for at in range(0, len(data), 97) if any(h.pos <= begin + at < h.pos + h.size for h in headers)]
    assert len(inside) > 20, "the rest lies in fillers, which say nothing"
    for at in inside:
        spoiled = bytearray(data)
        spoiled[at] ^= 4
        with pytest.raises(RangeError):
            checked(ledger, request(twin, 15, 30), bytes(spoiled))


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_waiters_are_resolved_in_the_order_of_indexes() -> None:
    waiters, order = Waiters(), []
    for index in (5, 3, 9, 3):
        waiters.add(index).add_done_callback(lambda future, i=index: order.append((i, future.exception() is None)))  # type: ignore[misc]
    waiters.resolve(2)
    assert len(waiters) == 4
    waiters.resolve(5)
    assert len(waiters) == 1
    waiters.fail_above(8, OutcomeUnknownError("lost"))
    await asyncio.sleep(0)
    assert order == [(3, True), (3, True), (5, True), (9, False)]
    assert len(waiters) == 0


def test_settings_that_cannot_work_are_named() -> None:
    for wrong, key in (
        (MemberSettings(max_uncommitted_bytes=0), "max_uncommitted_bytes"),
        (MemberSettings(raft=RaftSettings(max_append_bytes=1 << 25)), "max_append_bytes"),
    ):
        with pytest.raises(SettingsError, match=key):
            wrong.validate()


# -- sending -----------------------------------------------------------------------------------------------------------


def test_a_range_is_read_once_for_two_members_and_again_when_the_log_was_cut() -> None:
    ranges = {(3, 5): b"3 to 5", (3, 6): b"3 to 6"}
    reads, sent = [], []

    def read_range(first: int, last: int) -> bytes:
        reads.append((first, last))
        return ranges[first, last]

    outbox = Outbox(
        SimpleNamespace(peers={}),  # type: ignore[arg-type]
        SimpleNamespace(log=SimpleNamespace(read_range=read_range)),  # type: ignore[arg-type]
        SimpleNamespace(send=lambda message, payload: sent.append(payload) or True),  # type: ignore[arg-type, func-returns-value]
        SimpleNamespace(),  # type: ignore[arg-type]
        max_append_bytes=1 << 15,
        note=lambda text: None,
        repair=lambda first, end: None,
    )

    def send(target: int, last: int) -> bytes:
        outbox.send(Send(AppendRequest(0, target, 9, 1, 2, 1, (TermRun(1, last),), commit_index=-1)))
        return sent[-1]

    assert send(1, 5) == send(2, 5) == b"3 to 5"
    assert reads == [(3, 5)]
    assert send(1, 6) == b"3 to 6"
    assert send(2, 5) == b"3 to 5"
    ranges[3, 5] = b"other entries"
    outbox.forget_range()
    assert send(1, 5) == b"other entries"


# -- calls -------------------------------------------------------------------------------------------------------------


async def test_no_effect_is_carried_out_behind_one_that_failed() -> None:
    """A vote that is not saved must not be sent. The core hears of the failure before anything else."""
    done: list[object] = []

    def carry_out(effect: object) -> None:
        if effect == "fails":
            calls.then(lambda now: done.append("then") or [])  # type: ignore[func-returns-value]
            raise OSError(errno.EIO, "Input/output error")
        done.append(effect)

    def failed(effect: object, error: Exception) -> None:
        calls.instead(lambda now: done.append("told") or ["step down"])  # type: ignore[func-returns-value, list-item]

    calls = CoreCalls(
        SimpleNamespace(deadline=float("inf")),  # type: ignore[arg-type]
        carry_out,
        on_failed=failed,
        on_mistake=done.append,
        on_deadline=lambda: None,
        on_settled=lambda: None,
    )
    calls.call(lambda now: ["first", "fails", "never"])  # type: ignore[list-item]
    assert done == ["first", "told", "step down"]
    calls.halt()


@pytest.mark.parametrize("question", ["transfer", "change"])
async def test_what_was_accepted_is_written_before_the_core_is_asked(question: str) -> None:
    """The core counts on it: all that was accepted is in the log when leadership or the members change."""
    order = Mock()
    order.calls.call.side_effect = RuntimeError("the core was asked")
    questions = Questions(Mock(), order.calls, Mock(), Mock(), Mock(stopped=None), order.write)
    with pytest.raises(RuntimeError, match="the core was asked"):
        await getattr(questions, question)(7)
    assert [each[0] for each in order.mock_calls] == ["write", "calls.call"]
