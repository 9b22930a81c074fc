"""`verify` finds each kind of damage that is planted in a store of RocketMQ's, and names the file and the place.

Each test says: flip this, and that is found there. Undamaged stores are sound, also those that were killed: what the
next start repairs is a note and no damage.
"""

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from index_lab import GEOMETRY, made_store

from tallystick.node.cli import main
from tallystick.store import findings
from tallystick.store.findings import Report
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.queue_format import INDEX_ENTRY, INDEX_HEADER, UNIT, IndexGeometry, IndexHeader
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.verify.report import Known, VerifyError, verify

Golden = Callable[[str], Path]

SOUND = ("clean", "cqext", "edge", "trimmed", "killed", "torn-tail", "lost-queues", "short-queues")
LEDGERS = ("dledger-n0", "dledger-n1", "dledger-n2")


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def read(path: Path, offset: int, size: int) -> bytes:
    return path.read_bytes()[offset : offset + size]


def record_positions(root: Path, entry_header_bytes: int = 0, folder: str = "commitlog") -> list[int]:
    with SegmentFiles(root / folder) as log:
        steps = walk(log, entry_header_bytes=entry_header_bytes)
        return [step.pos for step in steps if step.kind is StepKind.RECORD]


def place(root: Path, pos: int, folder: str = "commitlog") -> tuple[str, int]:
    """The log's file that holds byte `pos`, below the root, and the byte in it."""
    with SegmentFiles(root / folder) as log:
        start = log.start_of(pos)
        assert start is not None
        return f"{folder}/{segment_name(start)}", pos - start


def only_damage(report: Report) -> tuple[str, int, str]:
    assert report.damaged == len(report.damage) == 1, [str(finding) for finding in report.damage]
    return report.damage[0].file, report.damage[0].offset, report.damage[0].reason


@pytest.mark.parametrize("name", SOUND + LEDGERS)
def test_stores_of_rocketmq_are_sound(name: str, golden: Golden) -> None:
    report = verify(golden(name))
    assert report.damage == []
    assert report.records > 0
    assert bool(report.ledger_entries) == (name in LEDGERS)


def test_every_record_unit_and_entry_is_counted(golden: Golden) -> None:
    report = verify(golden("clean"))
    assert (report.records, report.units, report.queues, report.fillers) == (3313, 3313, 26, 3)
    assert (report.index_files, report.index_entries) == (5, 9585)
    assert (report.index_slots, report.index_entries_max) == (500, 2000)
    assert (report.log_segment_bytes, report.queue_segment_bytes) == (1048576, 6000)
    assert report.clean and report.notes == []


def test_what_a_kill_leaves_behind_is_noted(golden: Golden) -> None:
    torn = verify(golden("torn-tail"))
    assert not torn.clean
    assert any("torn last write" in note.reason for note in torn.notes)
    assert any("names a record at" in note.reason and note.file.startswith("consumequeue/") for note in torn.notes)
    short = verify(golden("short-queues"))
    assert len(short.notes) == short.queues == 10
    assert all(re.search("lacks the queue's last [1-7] messages", note.reason) for note in short.notes)
    lost = verify(golden("lost-queues"))
    assert [note.reason for note in lost.notes[10:]] == ["the index has no file, the log has 1929 records with keys"]
    assert all("the queue is missing" in note.reason for note in lost.notes[:10])


def test_lost_queues_are_damage_where_no_start_makes_them_again(golden: Golden) -> None:
    """Stopped in order, RocketMQ dispatches on from what the queues know: one that is gone stays gone."""
    root = golden("clean")
    shutil.rmtree(root / "consumequeue" / "GoldA" / "1")
    file, _, reason = only_damage(verify(root))
    assert file == "consumequeue/GoldA/1" and "the queue is missing" in reason


def test_a_removed_topic_needs_no_queues(golden: Golden) -> None:
    root = golden("clean")
    shutil.rmtree(root / "consumequeue" / "GoldA")
    table = json.loads((root / "config" / "topics.json").read_bytes())
    del table["topicConfigTable"]["GoldA"]
    (root / "config" / "topics.json").write_text(json.dumps(table))
    report = verify(root)
    assert report.damage == []
    assert any("its topic was removed" in note.reason for note in report.notes)


# -- the log -----------------------------------------------------------------------------------------------------------


def test_a_flipped_body(golden: Golden) -> None:
    file, offset, reason = only_damage(verify(golden("flipped-body")))
    assert (file, offset) == ("commitlog/00000000000001048576", 1199014 - 1048576)
    assert "CRC" in reason and "next sound record is at 1199583" in reason


def test_a_record_with_an_unknown_magic(golden: Golden) -> None:
    root = golden("clean")
    pos = record_positions(root)[100]
    file, offset = place(root, pos)
    patch(root / file, offset + 4, b"\0\0\0\1")
    report = verify(root)
    assert (file, offset) in {(finding.file, finding.offset) for finding in report.damage}
    # the record's queue unit and its index entries name bytes that are no record now
    assert {finding.file.split("/")[0] for finding in report.damage} == {"commitlog", "consumequeue", "index"}


def test_a_record_that_names_another_place(golden: Golden) -> None:
    root = golden("clean")
    pos = record_positions(root)[7]
    file, offset = place(root, pos)
    patch(root / file, offset + 28, struct.pack(">q", pos + 1))
    report = verify(root)
    assert (report.damage[0].file, report.damage[0].offset) == (file, offset)
    assert f"says that it lies at {pos + 1}" in report.damage[0].reason


def test_zeros_in_the_middle_of_the_log(golden: Golden) -> None:
    root = golden("clean")
    positions = record_positions(root)
    file, offset = place(root, positions[50])
    patch(root / file, offset, bytes(positions[52] - positions[50]))
    report = verify(root)
    assert (report.damage[0].file, report.damage[0].offset) == (file, offset)
    assert f"unwritten bytes between records; the next sound record is at {positions[52]}" in report.damage[0].reason


def test_a_filler_of_the_wrong_size(golden: Golden) -> None:
    root = golden("clean")
    path = root / "commitlog" / segment_name(0)
    patch(path, 1048413, struct.pack(">i", 99))
    file, offset, reason = only_damage(verify(root))
    assert (file, offset) == ("commitlog/00000000000000000000", 1048413)
    assert "a filler of 99 bytes where 163 are left" in reason


def test_a_segment_of_another_length(golden: Golden) -> None:
    root = golden("clean")
    path = root / "commitlog" / segment_name(2097152)
    os.truncate(path, 1000)
    report = verify(root)
    assert (report.damage[0].file, report.damage[0].offset) == (f"commitlog/{path.name}", 0)
    assert "has 1000 bytes instead of 1048576" in report.damage[0].reason
    assert any("the segment before this one is missing" in finding.reason for finding in report.damage)


# -- queues ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "data", "why"),
    [
        (0, struct.pack(">q", 1), "where no sound record begins"),
        (0, struct.pack(">q", 1 << 40), "the log ends at"),
        (8, struct.pack(">i", 77), "says 77 bytes"),
        (12, struct.pack(">q", 123456), "has tags code 123456"),
        (0, struct.pack(">qi", -5, 100), "unit 30 is not valid: position -5"),
    ],
)
def test_a_wrong_unit(field: int, data: bytes, why: str, golden: Golden) -> None:
    root = golden("clean")
    file = "consumequeue/GoldA/2/00000000000000000000"
    patch(root / file, 20 * 30 + field, data)
    found = only_damage(verify(root))
    assert found[:2] == (file, 600)
    assert why in found[2]


def test_a_unit_of_another_message_of_the_queue(golden: Golden) -> None:
    root = golden("clean")
    path = root / "consumequeue/GoldA/2/00000000000000000000"
    patch(path, 200, read(path, 220, UNIT.size))
    _, offset, reason = only_damage(verify(root))
    assert offset == 200 and reason.startswith("unit 10 names the record at")


def test_a_unit_of_another_queue(golden: Golden) -> None:
    root = golden("clean")
    path = root / "consumequeue/GoldA/2/00000000000000000000"
    patch(path, 200, read(root / "consumequeue/GoldB/0/00000000000000000000", 0, UNIT.size))
    assert "names a record of GoldB queue 0" in verify(root).damage[0].reason


def test_a_hole_in_a_queue(golden: Golden) -> None:
    root = golden("clean")
    file = "consumequeue/GoldA/2/00000000000000000000"
    patch(root / file, 200, bytes(40))
    found = only_damage(verify(root))
    assert found[:2] == (file, 200)
    assert "units follow an empty unit" in found[2]


def test_a_queue_that_lost_its_end(golden: Golden) -> None:
    root = golden("clean")
    file = "consumequeue/GoldA/2/00000000000000000000"
    last = max(at for at in range(0, 6000, 20) if read(root / file, at, 20) != bytes(20))
    patch(root / file, last - 20, bytes(40))
    found = only_damage(verify(root))
    assert found[:2] == (file, last - 20)
    assert "lacks the queue's last 2 messages" in found[2]


def test_a_wrong_address_of_an_extension_unit(golden: Golden) -> None:
    root = golden("cqext")
    file = "consumequeue/GoldExt/0/00000000000000000000"
    patch(root / file, 20 * 3 + 12, struct.pack(">q", (40 << 20) - (1 << 63)))
    found = only_damage(verify(root))
    assert found[:2] == (file, 60)
    assert "an extension unit at 41943040, which is not there" in found[2]


# -- index -------------------------------------------------------------------------------------------------------------


def index_file(root: Path) -> tuple[Path, IndexGeometry, IndexHeader]:
    path = min((root / "index").iterdir())
    header = IndexHeader(*INDEX_HEADER.unpack(read(path, 0, INDEX_HEADER.size)))
    return path, IndexGeometry(500, 2000), header


@pytest.mark.parametrize(
    ("field", "data", "why"),
    [
        (0, struct.pack(">i", 99), "has the hash 99, but no key of the record"),
        (0, struct.pack(">i", -3), "has the hash -3"),
        (4, struct.pack(">q", 3), "where no sound record begins"),
        (4, struct.pack(">q", 1 << 40), "the log ends at"),
        (12, struct.pack(">i", 1_000_000), "1000000 s after the file's begin"),
        (16, struct.pack(">i", 1999), "goes back to entry 1999"),
    ],
)
def test_a_wrong_index_entry(field: int, data: bytes, why: str, golden: Golden) -> None:
    root = golden("clean")
    path, geometry, _ = index_file(root)
    at = geometry.entry_at(700)
    patch(path, at + field, data)
    damage = verify(root).damage
    assert (damage[0].file, damage[0].offset) == (f"index/{path.name}", at)
    assert why in damage[0].reason


def test_a_slot_that_forgot_its_chain(golden: Golden) -> None:
    root = golden("clean")
    path, geometry, header = index_file(root)
    (key_hash, *_) = INDEX_ENTRY.unpack(read(path, geometry.entry_at(header.next_entry - 2), INDEX_ENTRY.size))
    at = geometry.slot_at(key_hash % 500)
    patch(path, at, bytes(4))
    found = only_damage(verify(root))
    assert found[:2] == (f"index/{path.name}", at)
    assert f"names entry 0 instead of {header.next_entry - 2}" in found[2]


def test_an_index_header_that_counts_too_few(golden: Golden) -> None:
    root = golden("clean")
    path, _, header = index_file(root)
    patch(path, 36, struct.pack(">i", header.next_entry - 1))
    for known in (Known(), Known(index_geometry=IndexGeometry(500, 2000))):
        assert verify(root, known=known).damage[0].offset == 24
    for other in root.glob("index/*"):
        if other != path:
            other.unlink()
    found = verify(root).damage[0]
    assert (found.file, found.offset) == (f"index/{path.name}", 0)
    assert "slots and entries do not fit the header" in found.reason


# -- dledger's layout --------------------------------------------------------------------------------------------------

LEDGER = "dledger-n0/data"


def test_a_flipped_entry_of_a_ledger(golden: Golden) -> None:
    root = golden("dledger-n0")
    pos = record_positions(root, 48, LEDGER)[20]
    file, offset = place(root, pos, LEDGER)
    patch(root / file, offset + 24, struct.pack(">q", pos + 8))
    report = verify(root)
    assert (report.damage[0].file, report.damage[0].offset) == (file, offset)
    assert f"the entry says that it lies at {pos + 8}" in report.damage[0].reason
    assert any("entry 21 follows entry 19" in finding.reason for finding in report.damage)


def test_a_term_that_goes_back(golden: Golden) -> None:
    root = golden("dledger-n0")
    positions = record_positions(root, 48, LEDGER)
    file, offset = place(root, positions[20], LEDGER)
    patch(root / file, offset + 16, struct.pack(">q", 7))
    damage = verify(root).damage
    assert [(finding.file, finding.offset) for finding in damage] == [place(root, positions[21], LEDGER)]
    assert "term" in damage[0].reason


def test_a_wrong_index_unit_of_a_ledger_is_made_again(golden: Golden) -> None:
    root = golden("dledger-n0")
    file = "dledger-n0/index/00000000000000000000"
    patch(root / file, 32 * 5 + 12, struct.pack(">i", 1))
    report = verify(root)
    assert report.sound
    assert [(note.file, note.offset) for note in report.notes] == [(file, 160)]


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_ahead_of_the_log(golden: Golden) -> None:
    root = golden("clean")
    patch(root / "checkpoint", 8, struct.pack(">q", 1 << 42))
    found = only_damage(verify(root))
    assert found[:2] == ("checkpoint", 8)
    assert "were durable, the log ends at" in found[2]


def test_a_checkpoint_of_the_wrong_length(golden: Golden) -> None:
    root = golden("clean")
    os.truncate(root / "checkpoint", 24)
    assert only_damage(verify(root)) == ("checkpoint", 0, "has 24 bytes instead of 4096")


def test_leftovers_behind_the_end_are_no_damage(golden: Golden) -> None:
    """RocketMQ leaves the bytes of an earlier cut in place: sound records may stand there, but no queue knows them."""
    root = golden("clean")
    positions = record_positions(root)
    end = 3175433
    file, offset = place(root, end)
    # a torn record, and behind it one that says that it belongs there
    data = bytearray(read(root / place(root, positions[-1])[0], place(root, positions[-1])[1], end - positions[-1]))
    data[28:36] = struct.pack(">q", end + 100)
    patch(root / file, offset, b"\0\0\0\7torn")
    patch(root / file, offset + 100, bytes(data))
    report = verify(root)
    assert report.sound
    assert report.end_pos == end
    assert any((note.file, note.offset) == (file, offset) and "no queue knows" in note.reason for note in report.notes)


def test_the_lists_of_findings_are_bounded(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "MAX_LISTED", 5)
    root = golden("clean")
    (root / "commitlog" / segment_name(0)).write_bytes(bytes(1048576))
    report = verify(root)
    assert len(report.damage) == 5 < report.damaged


def test_no_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match="neither commitlog nor dledger"):
        verify(tmp_path)
    with pytest.raises(VerifyError, match="is no folder"):
        verify(tmp_path / "nothing")


def test_nothing_is_written(golden: Golden) -> None:
    root = golden("killed")
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {path: path.stat() for path in root.rglob("*") if path.is_file()}
    verify(root)
    for path in [root, *root.rglob("*")]:
        assert path in before or path.is_dir()
        path.chmod(0o755 if path.is_dir() else 0o644)
    after = {path: path.stat() for path in before}
    assert {p: (s.st_mtime_ns, s.st_size) for p, s in before.items()} == {
        p: (s.st_mtime_ns, s.st_size) for p, s in after.items()
    }


def test_progress_is_reported(golden: Golden) -> None:
    stages: list[str] = []
    verify(golden("killed"), progress=lambda stage, done, total: stages.append(stage))
    assert stages[0] == "log" and "queues" in stages


def test_exit_codes_and_json(golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "verify", str(golden("clean"))]) == 0
    assert "sound" in capsys.readouterr().out
    assert main(["store", "verify", str(golden("flipped-body")), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["sound"] is False and report["damaged"] == 1
    assert report["damage"][0]["file"] == "commitlog/00000000000001048576"
    assert main(["store", "verify", str(tmp_path / "nothing")]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_a_pause_between_two_index_files_is_no_damage(tmp_path: Path) -> None:
    """The first entry of a file counts its seconds from the end of the file before, as RocketMQ's does."""
    files = made_store(tmp_path)
    heads = [IndexHeader(*INDEX_HEADER.unpack_from(path.read_bytes())) for path in files]
    assert any(one.begin_timestamp_ms - before.end_timestamp_ms > 1000 for before, one in pairwise(heads))
    report = verify(tmp_path, known=Known(index_geometry=GEOMETRY))
    assert (report.damage, report.index_files) == ([], len(files))
    at = GEOMETRY.entry_at(1)
    patch(files[1], at + 12, b"\0\0\0\7")
    file, offset, reason = only_damage(verify(tmp_path, known=Known(index_geometry=GEOMETRY)))
    assert (file, offset) == (f"index/{files[1].name}", at) and "says 7 s" in reason
