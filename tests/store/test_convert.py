"""Conversions between the layouts of the log: nothing but positions changes, and nothing is lost on the way.

The stores are written by slow twins (`convert_lab`) or by RocketMQ, and both logs are read with the walk in Python,
which shares no code with the conversion.
"""

from __future__ import annotations

import errno
import json
import lzma
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from convert_lab import (
    COMMITTED,
    HALF,
    INDEX_BYTES,
    SMALL,
    PlainTwin,
    Sent,
    content_of,
    convert,
    ledger_store,
    plain_store,
    random_log,
    without_places,
)
from engine_lab import filled_store, opened, small

from tallystick.node.cli import main
from tallystick.store._kernel import Door
from tallystick.store.convert.conversion import Conversion, Options
from tallystick.store.convert.source import ConvertError
from tallystick.store.engine.lock import StoreLock, StoreLockedError
from tallystick.store.engine.recovery import RecoveryError
from tallystick.store.formats.conversion import FILE_NAME, JournalError, State
from tallystick.store.formats.ledger_format import GROUP_LOG_TOPIC
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.record import Record
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.verify.dump import dump
from tallystick.store.verify.repair import StoreRepair
from tallystick.store.verify.report import VerifyError, verify

SEGMENT = 4096
Golden = Callable[[str], Path]


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def positions(root: Path) -> list[int]:
    with SegmentFiles(root / "commitlog") as log:
        return [step.pos for step in walk(log) if step.kind is StepKind.RECORD]


# -- there and back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_there_and_back_only_positions_change(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    sent = random_log(dice, dice.randrange(1, 250))
    first = dice.choice((0, SEGMENT, 7 * SEGMENT))
    plain_store(tmp_path / "plain", sent, SEGMENT, first)
    before = tree(tmp_path / "plain")
    expected = without_places(sent)
    assert content_of(tmp_path / "plain") == expected, "the twin wrote what it was told"

    there = convert(tmp_path / "plain", tmp_path / "ledger", "dledger", segment_bytes=dice.choice((None, 8192, 3000)))
    assert content_of(tmp_path / "ledger") == expected
    assert (there.state.records, there.state.dangling) == (len(sent), 0)
    assert verify(tmp_path / "ledger").sound
    back = convert(tmp_path / "ledger", tmp_path / "back", "plain", segment_bytes=SEGMENT)
    assert content_of(tmp_path / "back") == expected
    assert verify(tmp_path / "back").sound
    assert back.state.references == there.state.references == sum(each.names >= 0 for each in sent)
    assert tree(tmp_path / "plain") == before, "the old store is not changed"
    old = tmp_path / "plain" / "commitlog"
    if first == 0:  # with the same size of files the log is the same, byte for byte
        assert {path.name: path.read_bytes() for path in old.iterdir()} == {
            path.name: path.read_bytes() for path in (tmp_path / "back" / "commitlog").iterdir()
        }


@pytest.mark.parametrize("crc", [True, False])
def test_an_old_ledger_becomes_a_new_one_with_a_chain_of_crcs(tmp_path: Path, crc: bool) -> None:
    sent = random_log(random.Random(5), 120)
    ledger_store(tmp_path / "old", sent, SEGMENT, crc=crc)
    convert(tmp_path / "old", tmp_path / "new", "dledger", member="n2")
    assert content_of(tmp_path / "new") == without_places(sent)
    report = verify(tmp_path / "new")
    assert report.sound and report.layout == "dledger-n2/data" and report.ledger_entries == len(sent)
    with SegmentFiles(tmp_path / "new" / "dledger-n2" / "data") as log:
        entries = [step.entry for step in walk(log, entry_header_bytes=48) if step.entry is not None]
    assert [(entry.log_index, entry.term) for entry in entries] == [(number + 1, 1) for number in range(len(sent))]
    assert all(entry.chain_crc for entry in entries)


def test_a_log_that_was_continued_in_dledger_mode_becomes_one_log(tmp_path: Path) -> None:
    """RocketMQ keeps the old log, and dledger's first entry begins behind it. A half message can be in the old part."""
    sent = random_log(random.Random(6), 160)
    split = 80
    places = plain_store(tmp_path / "old", sent[:split], SEGMENT)
    twin = PlainTwin(SEGMENT, 0)
    for record, names in sent[:split]:
        twin.append(record._replace(prepared_transaction_offset=places[names] if names >= 0 else 0))
    end = -(-twin.end // SEGMENT) * SEGMENT
    if twin.end % SEGMENT:
        left = end - twin.end
        file = tmp_path / "old" / "commitlog" / segment_name(end - SEGMENT)
        patch(file, SEGMENT - left, left.to_bytes(4, "big") + b"\xcb\xd4\x31\x94")
    write_entries_behind(tmp_path / "old" / "dledger-n0", sent, split, places, end)
    convert(tmp_path / "old", tmp_path / "plain", "plain")
    assert content_of(tmp_path / "plain") == without_places(sent)
    convert(tmp_path / "old", tmp_path / "ledger", "dledger")
    assert content_of(tmp_path / "ledger") == without_places(sent)


def write_entries_behind(folder: Path, sent: list[Sent], split: int, places: list[int], begin: int) -> None:
    from tallystick.store.formats.ledger_format import ENTRY_MAGIC, FILLER_MAGIC, EntryHeader

    places, data = list(places), bytearray()
    for number, (record, names) in enumerate(sent[split:]):
        size = 48 + record.size
        left = SEGMENT - len(data) % SEGMENT
        if size + 8 > left:
            data += (FILLER_MAGIC.to_bytes(4, "big", signed=True) + left.to_bytes(4, "big")).ljust(left, b"\0")
        pos = begin + len(data)
        places.append(pos + 48)
        named = places[names] if names >= 0 else 0
        body = record._replace(pos=pos + 48, prepared_transaction_offset=named).encode()
        data += EntryHeader(ENTRY_MAGIC, size, number, 0, pos, 0, 0, 0, len(body)).encode() + body
    (folder / "data").mkdir(parents=True)
    for at in range(0, len(data), SEGMENT):
        (folder / "data" / segment_name(begin + at)).write_bytes(bytes(data[at : at + SEGMENT]).ljust(SEGMENT, b"\0"))


def test_entries_of_the_old_group_are_left_out_with_their_queue(tmp_path: Path) -> None:
    """Placeholders in the place of their queue would stop RocketMQ's dispatch."""
    messages = without_places(random_log(random.Random(8), 60))
    own = Sent(Record(GROUP_LOG_TOPIC, 0, b"no-op"))
    mixed: list[Sent] = []
    for number, message in enumerate(messages):
        mixed += [own, message] if number % 5 == 0 else [message]
    numbers = [number for number, each in enumerate(mixed) if each is not own]
    mixed = [each if each.names < 0 else each._replace(names=numbers[each.names]) for each in mixed]
    ledger_store(tmp_path / "old", mixed, SEGMENT)
    (tmp_path / "old" / "dledger-n0" / "checkpoint").write_text(f"endIndex=71\ncommittedIndex={len(mixed) - 1}\n")
    with StoreRepair.opened(tmp_path / "old", SMALL) as repair:
        repair.run(repair.look())
    assert (tmp_path / "old" / "consumequeue" / GROUP_LOG_TOPIC).is_dir()
    for layout in ("plain", "dledger"):
        summary = convert(tmp_path / "old", tmp_path / layout, layout)
        assert (summary.state.records, summary.state.own_entries, summary.raised) == (60, 12, {})
        assert content_of(tmp_path / layout) == messages
        assert not (tmp_path / layout / "consumequeue" / GROUP_LOG_TOPIC).exists()


def test_an_empty_store_is_converted(tmp_path: Path) -> None:
    (tmp_path / "old" / "commitlog").mkdir(parents=True)
    (tmp_path / "old" / "config").mkdir()
    (tmp_path / "old" / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    summary = convert(tmp_path / "old", tmp_path / "new", "dledger")
    assert summary.state.records == 0
    assert (tmp_path / "new" / "config" / "topics.json").read_text() == '{"topicConfigTable":{}}'


# -- stores of RocketMQ ------------------------------------------------------------------------------------------------

SETS = (
    "clean",
    "killed",
    "torn-tail",
    "lost-queues",
    "short-queues",
    "cqext",
    "edge",
    "trimmed",
    "dledger-n0",
    "dledger-n1",
    "dledger-n2",
)


def settings_of_set(golden_folder: Path, name: str) -> dict[str, str]:
    text = (golden_folder / name / "settings.properties").read_text()
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize("name", SETS)
def test_stores_of_rocketmq_are_converted(name: str, golden: Golden, golden_folder: Path, tmp_path: Path) -> None:
    """The listing of the converted store has the messages, queues, keys and offsets that RocketMQ read from the old."""
    root = golden(name)
    chosen = settings_of_set(golden_folder, name)
    overrides = {key: value for key, value in chosen.items() if key == "messageDelayLevel"}
    with lzma.open(golden_folder / name / "expected.json.xz", "rt") as file:
        wanted: dict[str, Any] = json.load(file)["opened"]
    layout = "plain" if name.startswith("dledger") else "dledger"
    before = tree(root)
    summary = convert(root, tmp_path / "new", layout, overrides=overrides)
    assert tree(root) == before
    found = json.loads(json.dumps(dump(tmp_path / "new", chosen)))["opened"]
    compare_listings(wanted, found)
    assert summary.report.sound


_PLACES = (
    "offset",
    "size",
    "entryOffset",
    "entrySize",
    "msgId",
    "recordCrc32",
    "preparedTransactionOffset",
    "physicalOffset",
    "commitLogOffset",
    "offsetMsgId",
)


def compare_listings(wanted: dict[str, Any], found: dict[str, Any]) -> None:
    def bare(message: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in message.items() if key not in _PLACES}

    assert [bare(each) for each in found["messages"]] == [bare(each) for each in wanted["messages"]]
    old, new = ({(row["topic"], row["queueId"]): row for row in each["queues"]} for each in (wanted, found))
    assert old.keys() == new.keys()
    for key, row in new.items():
        assert row["maxOffset"] == old[key]["maxOffset"], key
        if row["entries"]:  # RocketMQ keeps the units of expired messages in a queue that has no others
            assert row["minOffset"] == old[key]["minOffset"], key
            assert sizes_and_codes(row) == sizes_and_codes(old[key]), key
    # The index has seconds since a file's first message. Its files begin elsewhere if the log was trimmed.
    for before, after in zip(wanted["keys"], found["keys"], strict=True) if wanted["minPhyOffset"] == 0 else ():
        assert (before["topic"], before["key"]) == (after["topic"], after["key"])
        # RocketMQ has some keys twice after a kill, and lost some others with an index file.
        assert len({*after["returned"]}) >= len({*before["returned"]}), before


def sizes_and_codes(queue: dict[str, Any]) -> list[tuple[int, int]]:
    """Of a queue's units. The code of a unit with an extension is an address, and bit maps are not kept."""
    return [(size, code if code > -(1 << 32) else 0) for _, size, code in queue["entries"]]


def test_a_damaged_record_of_rocketmq_is_left_out_only_if_asked_for(golden: Golden, tmp_path: Path) -> None:
    root = golden("flipped-body")
    with pytest.raises(ConvertError, match=r"commitlog/\d+ at byte \d+ is damaged \(body CRC differs\)"):
        convert(root, tmp_path / "new", "dledger")
    summary = convert(root, tmp_path / "new", "dledger", skip_damage=True)
    (gap,) = summary.state.gaps
    assert gap.reason == "body CRC differs" and summary.report.sound


# -- interruptions -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("old") / "store"
    plain_store(root, random_log(random.Random(1), 150), SEGMENT, SEGMENT)
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    return root


@pytest.fixture(scope="module")
def whole(old: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], int]:
    """The log of an uninterrupted conversion, and its calls to the disk."""
    target, door = tmp_path_factory.mktemp("whole") / "new", Door()
    convert(old, target, "dledger", door)
    return tree(target / "dledger-n0"), sum(door.counts().values())


def is_no_store(root: Path) -> bool:
    try:
        verify(root)
    except VerifyError:
        return True
    return False


@pytest.mark.parametrize("start", range(8))
def test_a_killed_conversion_is_no_store_and_continues(
    old: Path, whole: tuple[dict[str, bytes], int], tmp_path: Path, start: int
) -> None:
    log, calls = whole
    for at in range(start * 3 + 1, calls + 3, 24):
        target = tmp_path / str(at)
        door = Door()
        door.kill_after(at, at * 37 % 700)
        try:
            convert(old, target, "dledger", door)
        except OSError:
            finished = (target / "dledger-n0").exists()
            assert finished or is_no_store(target)
            if finished:  # it was killed behind the renaming
                options = Options("dledger", index_segment_bytes=INDEX_BYTES)
                if (target / FILE_NAME).exists():
                    assert Conversion(old, target, options, Door()).run() is None
            else:
                convert(old, target, "dledger")
        assert tree(target / "dledger-n0") == log
        assert verify(target).sound and not (target / FILE_NAME).exists()
        shutil.rmtree(target)


@pytest.mark.parametrize("seed", range(6))
def test_a_loss_of_power_loses_nothing_that_was_named(
    old: Path, whole: tuple[dict[str, bytes], int], tmp_path: Path, seed: int
) -> None:
    log, calls = whole
    dice = random.Random(seed)
    for turn in range(6):
        target = tmp_path / str(turn)
        target.mkdir()
        door = Door(record=True)
        door.kill_after(dice.randrange(1, calls), 0)
        try:
            convert(old, target, "dledger", door)
        except OSError:
            pass
        door.crash(seed * 100 + turn, None)
        if (target / "dledger-n0").exists() and not (target / FILE_NAME).exists():
            pass
        elif (target / "dledger-n0").exists():
            assert Conversion(old, target, Options("dledger", index_segment_bytes=INDEX_BYTES), Door()).run() is None
        else:
            convert(old, target, "dledger")
        assert tree(target / "dledger-n0") == log
        assert verify(target).sound


@pytest.mark.parametrize("call", ["write", "allocate", "create", "sync", "rename", "sync_dir"])
def test_a_full_or_failing_disk_is_named_and_the_next_run_continues(
    old: Path, whole: tuple[dict[str, bytes], int], tmp_path: Path, call: str
) -> None:
    for after in (0, 1, 3, 9, 30):
        target, door = tmp_path / f"{after}", Door()
        door.fail(call, str(target), errno.ENOSPC, after, 1)
        try:
            convert(old, target, "dledger", door)
        except OSError as error:
            assert error.errno == errno.ENOSPC and str(target) in str(error.filename)
            if not (target / "dledger-n0").exists():
                convert(old, target, "dledger")
        assert tree(target / "dledger-n0") == whole[0]


OFTEN: dict[str, Any] = {"turn_bytes": 1 << 16, "save_bytes": 1 << 17, "index_segment_bytes": 1 << 20}
"""The state is saved often."""


def interrupted(folder: Path, sent: list[Sent], *, after: int) -> State:
    """The saved state of a conversion of `old` to `new` that met an I/O error after so many writes."""
    plain_store(folder / "old", sent, 1 << 16)
    door = Door()
    door.fail("write", "converting", errno.EIO, after, None)
    with pytest.raises(OSError, match="Input/output"):
        convert(folder / "old", folder / "new", "dledger", door, **OFTEN)
    state = State.load(folder / "new")
    assert state is not None
    return state


def test_half_messages_of_before_an_interruption_are_found(tmp_path: Path) -> None:
    """What is kept in memory of half messages is gone: they are found by the places that were saved."""
    filler = [Sent(Record("T", 0, b"x" * 900, queue_offset=number)) for number in range(3000)]
    sent = [Sent(Record(HALF, 0, b"half")), *filler, Sent(Record("T", 1, b"end", sys_flag=COMMITTED), 0)]
    state = interrupted(tmp_path, sent, after=70)
    assert state.records > 100 and state.pairs > 1
    summary = convert(tmp_path / "old", tmp_path / "new", "dledger", **OFTEN)
    assert (summary.state.references, summary.state.dangling) == (1, 0)
    assert content_of(tmp_path / "new") == without_places(sent)


def test_files_behind_the_saved_state_are_removed(tmp_path: Path) -> None:
    """The log of the next run may end before them, when a part of the old log was damaged in between."""
    sent = [Sent(Record("T", 0, b"x" * 900, queue_offset=number)) for number in range(1000)]
    state = interrupted(tmp_path, sent, after=30)
    assert state.records > 100
    (folder,) = {path.parent for path in (tmp_path / "new").glob("**/data/*")}
    behind = folder / segment_name((state.target_pos // state.segment_bytes + 100) * state.segment_bytes)
    behind.write_bytes(b"x" * state.segment_bytes)
    convert(tmp_path / "old", tmp_path / "new", "dledger", **OFTEN)
    assert not list((tmp_path / "new").glob(f"**/data/{behind.name}"))
    assert content_of(tmp_path / "new") == without_places(sent)


def test_a_store_that_grew_is_continued_and_another_one_is_refused(old: Path, tmp_path: Path) -> None:
    sent = random_log(random.Random(3), 100)
    plain_store(tmp_path / "old", sent[:60], SEGMENT)
    door = Door()
    door.fail("create", "consumequeue", errno.ENOSPC, 0, None)
    door.fail("mkdir", "consumequeue", errno.ENOSPC, 0, None)
    with pytest.raises(OSError):
        convert(tmp_path / "old", tmp_path / "new", "dledger", door)
    with pytest.raises(ConvertError, match="another store"):
        convert(old, tmp_path / "new", "dledger")
    with pytest.raises(ConvertError, match="unfinished conversion to dledger n0"):
        convert(tmp_path / "old", tmp_path / "new", "plain")
    with pytest.raises(ConvertError, match="files of 4096 bytes, not 8192"):
        convert(tmp_path / "old", tmp_path / "new", "dledger", segment_bytes=8192)
    shutil.rmtree(tmp_path / "old")
    plain_store(tmp_path / "old", sent, SEGMENT)
    convert(tmp_path / "old", tmp_path / "new", "dledger")
    assert content_of(tmp_path / "new") == without_places(sent)


async def test_no_broker_opens_an_unfinished_conversion(old: Path, tmp_path: Path) -> None:
    door = Door()
    door.fail("rename", "converting", errno.EIO, 0, None)
    with pytest.raises(OSError):
        convert(old, tmp_path / "new", "plain", door)
    assert is_no_store(tmp_path / "new")
    with pytest.raises(RecoveryError, match="unfinished conversion"):
        async with opened(small(tmp_path / "new")):
            pass
    with pytest.raises(ConvertError, match="unfinished conversion"):
        convert(tmp_path / "new", tmp_path / "third", "dledger")
    convert(old, tmp_path / "new", "plain")
    async with opened(small(tmp_path / "new")) as store:
        assert store.recovered.from_mark and store.recovered.clean and store.findings.listed() == []


def test_a_damaged_state_is_named(old: Path, tmp_path: Path) -> None:
    door = Door()
    door.fail("rename", "converting", errno.EIO, 0, None)
    with pytest.raises(OSError):
        convert(old, tmp_path / "new", "plain", door)
    patch(tmp_path / "new" / FILE_NAME, 30, b"~")
    with pytest.raises(JournalError, match="its CRC differs"):
        convert(old, tmp_path / "new", "plain")


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_damage_stops_the_conversion_and_the_repaired_file_continues_it(tmp_path: Path) -> None:
    sent = random_log(random.Random(2), 100)
    plain_store(tmp_path / "old", sent, SEGMENT)
    pos = positions(tmp_path / "old")[50]
    path = tmp_path / "old" / "commitlog" / segment_name(pos - pos % SEGMENT)
    kept = path.read_bytes()
    patch(path, pos % SEGMENT + 4, b"\0\0\0\1")
    with pytest.raises(ConvertError, match=f"{path} at byte {pos % SEGMENT} is damaged .bad magic."):
        convert(tmp_path / "old", tmp_path / "new", "dledger")
    state = State.load(tmp_path / "new")
    assert state is not None and (state.records, state.pos, state.gaps) == (50, pos, [])
    path.write_bytes(kept)
    convert(tmp_path / "old", tmp_path / "new", "dledger")
    assert content_of(tmp_path / "new") == without_places(sent)


def test_what_is_left_out_keeps_its_queue_offset(tmp_path: Path) -> None:
    """In the middle of a queue a placeholder keeps it, at the end too: no offset is given out twice."""
    root = filled_store(small(tmp_path / "old"), 120)
    places = positions(root)
    for number in (60, 118):  # the last one of queue 0 is 118
        pos = places[number]
        patch(root / "commitlog" / segment_name(pos - pos % SEGMENT), pos % SEGMENT + 90, b"!")
    for layout in ("plain", "dledger"):
        summary = convert(root, tmp_path / layout, layout, skip_damage=True)
        assert [gap.reason for gap in summary.state.gaps] == ["body CRC differs"] * 2
        assert summary.raised == {("T", 0): 60}
        assert verify(tmp_path / layout).sound
        rows = {(row["topic"], row["queueId"]): row for row in dump(tmp_path / layout)["opened"]["queues"]}
        assert (rows["T", 0]["minOffset"], rows["T", 0]["maxOffset"]) == (0, 60)
        assert (rows["T", 1]["minOffset"], rows["T", 1]["maxOffset"]) == (0, 60)


def test_a_named_record_that_was_left_out_is_not_replaced_by_another(tmp_path: Path) -> None:
    sent = [
        Sent(Record(HALF, 0, b"half")),
        Sent(Record("T", 0, b"x")),
        Sent(Record("T", 0, b"e", sys_flag=COMMITTED, queue_offset=1), 0),
    ]
    places = plain_store(
        tmp_path / "old",
        [Sent(Record("T", 2, b"first")), *(each._replace(names=each.names + (each.names >= 0)) for each in sent)],
        SEGMENT,
    )
    patch(tmp_path / "old" / "commitlog" / segment_name(0), places[1] + 88, b"?")
    summary = convert(tmp_path / "old", tmp_path / "new", "dledger", skip_damage=True)
    assert (summary.state.references, summary.state.dangling) == (0, 1)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    plain_store(tmp_path / "old", random_log(random.Random(4), 80), SEGMENT)
    log = tmp_path / "old" / "commitlog"
    names = sorted(path.name for path in log.iterdir())
    kept = (log / names[1]).read_bytes()
    (log / names[1]).write_bytes(kept[:-1])
    with pytest.raises(ConvertError, match=f"{names[1]} has 4095 bytes instead of 4096"):
        convert(tmp_path / "old", tmp_path / "new", "dledger")
    (log / names[1]).unlink()
    with pytest.raises(ConvertError, match=f"{names[2]}: the file before this one is missing"):
        convert(tmp_path / "old", tmp_path / "new", "dledger")
    (log / names[1]).write_bytes(kept)
    (log / segment_name(len(names) * SEGMENT)).write_bytes(bytes(100))
    summary = convert(tmp_path / "old", tmp_path / "new", "dledger")
    assert any("its creation was interrupted" in note for note in summary.notes)


def test_a_record_that_does_not_fit_is_named(tmp_path: Path) -> None:
    record = Record("T", 0, b"x" * (SEGMENT - 91 - 1 - 8))
    assert record.size == SEGMENT - 8
    plain_store(tmp_path / "old", [Sent(Record("T", 1, b"y")), Sent(record)], SEGMENT)
    with pytest.raises(ConvertError, match=r"byte \d+ does not fit into a segment of 4096 bytes .* --segment-bytes"):
        convert(tmp_path / "old", tmp_path / "new", "dledger")
    shutil.rmtree(tmp_path / "new")
    convert(tmp_path / "old", tmp_path / "new", "dledger", segment_bytes=2 * SEGMENT)


def test_folders_that_do_not_fit_are_refused(old: Path, tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="is no folder"):
        convert(tmp_path / "nothing", tmp_path / "new", "plain")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConvertError, match="neither commitlog nor dledger"):
        convert(tmp_path / "empty", tmp_path / "new", "plain")
    with pytest.raises(ConvertError, match="not apart from"):
        convert(old, old / "new", "dledger")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(ConvertError, match=r"is not empty .mine.txt."):
        convert(old, tmp_path / "full", "dledger")
    lock_folder = tmp_path / "held"
    shutil.copytree(old, lock_folder)
    lock = StoreLock.acquire(lock_folder, Door())
    with pytest.raises(StoreLockedError):
        convert(lock_folder, tmp_path / "new", "dledger")
    lock.release()
    shutil.copytree(old / "commitlog", lock_folder / "dledger-n0" / "data")
    shutil.copytree(old / "commitlog", lock_folder / "dledger-n1" / "data")
    with pytest.raises(ConvertError, match="more than one dledger folder: dledger-n0, dledger-n1"):
        convert(lock_folder, tmp_path / "new", "dledger")


def test_a_damaged_table_is_not_copied_in_silence(old: Path, tmp_path: Path) -> None:
    shutil.copytree(old, tmp_path / "old")
    config = tmp_path / "old" / "config"
    shutil.copy(config / "topics.json", config / "topics.json.bak")
    (config / "topics.json").write_text('{"topicCon')
    (config / "consumerFilter.json").write_text("{")
    with pytest.raises(ConvertError, match=r"\.json is damaged.*--skip-damage"):
        convert(tmp_path / "old", tmp_path / "new", "dledger")
    convert(tmp_path / "old", tmp_path / "new", "dledger", skip_damage=True)
    assert (tmp_path / "new" / "config" / "topics.json").read_text() == '{"topicConfigTable":{}}'
    assert not (tmp_path / "new" / "config" / "consumerFilter.json").exists()


def test_a_queue_without_messages_keeps_its_offset(golden: Golden, golden_folder: Path, tmp_path: Path) -> None:
    """Its messages expired with the first segments of the log: only its ConsumeQueue says where it continues."""
    root = filled_store(small(tmp_path / "old"), 120)
    shutil.copytree(root / "consumequeue" / "T" / "1", root / "consumequeue" / "Idle" / "0")
    # Its units name positions before the log's begin.
    for path in sorted((root / "commitlog").iterdir())[:-2]:
        path.unlink()
    (root / "tally-progress").unlink()
    (root / "tally-queues").unlink()
    for file in sorted((root / "consumequeue" / "Idle" / "0").iterdir())[2:]:
        file.unlink()
    ends = {"plain": tmp_path / "plain", "dledger": tmp_path / "dledger"}
    for layout, target in ends.items():
        summary = convert(root, target, layout)
        assert summary.raised == {}
        old_rows = {(row["topic"], row["queueId"]): row for row in dump(root)["opened"]["queues"]}
        rows = dump(target)["opened"]["queues"]
        assert [row["maxOffset"] for row in rows if row["topic"] == "Idle"] == [32]
        for row in rows:
            before = old_rows[row["topic"], row["queueId"]]
            assert (row["minOffset"], row["maxOffset"]) == (before["minOffset"], before["maxOffset"])


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_converts_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = filled_store(small(tmp_path / "old"), 60)
    assert main(["store", "convert", str(root), str(tmp_path / "new"), "--to", "dledger", "--member", "n1"]) == 0
    text = capsys.readouterr().out
    assert "converted: the new store has the same messages, offsets and keys" in text
    assert any(line.split() == ["T", "2", "60", "0", "29"] for line in text.splitlines()), text
    assert "dledger-n1/data from 0 to" in text
    assert (tmp_path / "new" / "dledger-n1" / "checkpoint").read_text() == "endIndex=60\ncommittedIndex=60\n"
    assert main(["store", "convert", str(tmp_path / "new"), str(tmp_path / "back"), "--to", "plain", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["complete"] and result["records"] == 60
    assert content_of(tmp_path / "back") == content_of(root)
    assert main(["store", "convert", str(root), str(tmp_path / "new"), "--to", "dledger"]) == 2
    assert "is not empty" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "new")


def test_the_command_says_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = filled_store(small(tmp_path / "old"), 60)
    pos = positions(root)[30]
    patch(root / "commitlog" / segment_name(pos - pos % SEGMENT), pos % SEGMENT + 90, b"!")
    arguments = ["store", "convert", str(root), str(tmp_path / "new"), "--to", "plain"]
    assert main(arguments) == 2
    assert "is damaged (body CRC differs)" in capsys.readouterr().err
    assert main([*arguments, "--skip-damage"]) == 1
    text = capsys.readouterr().out
    assert "converted, without 1 damaged places" in text and "body CRC differs" in text
