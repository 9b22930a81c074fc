"""Both ways between dledger and us: logs that RocketMQ wrote in DLedger mode open here, ours open there."""

from __future__ import annotations

import json
import lzma
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ledger_twin import TwinLedger

from tallystick.replication.ledger import dledger_files
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.vote import Identity, VoteFile
from tallystick.store._kernel import Door
from tallystick.store.findings import FindingKind
from tallystick.store.formats.ledger_format import EntryHeader, EntryKind
from tallystick.store.formats.message import Host
from tallystick.store.formats.record import Record

SEGMENT_BYTES = 262_144
HOST = Host("127.0.0.1", 10911)
NOW_MS = 1_700_000_000_000
Golden = Callable[[str], Path]


def opened(folder: Path, boot: int = 1) -> Ledger:
    return Ledger.open(
        folder,
        Door(),
        segment_bytes=SEGMENT_BYTES,
        max_message_bytes=200_000,
        store_host=HOST.encode(),
        boot_id=boot.to_bytes(16, "big"),
    )


def expected(golden_folder: Path, name: str) -> dict[str, Any]:
    with lzma.open(golden_folder / name / "expected.json.xz", "rt") as file:
        found: dict[str, Any] = json.load(file)["onDisk"]["dledger"]
    return found


def data_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "data").iterdir())}


@pytest.mark.parametrize("member", ["n0", "n1", "n2"])
def test_a_log_that_dledger_wrote_opens(member: str, golden: Golden, golden_folder: Path) -> None:
    folder = golden(f"dledger-{member}") / f"dledger-{member}"
    wanted, before = expected(golden_folder, f"dledger-{member}"), data_of(folder)
    ledger = opened(folder)
    assert ledger.damage is None
    assert [note for note in ledger.recovered.findings if note.kind is not FindingKind.REMOVED] == []
    assert (ledger.first_index, ledger.last_index) == (wanted["ledgerBeginIndex"], wanted["ledgerEndIndex"])
    assert ledger.log.written == wanted["writePos"]
    assert ledger.committed_hint == wanted["committedIndex"]
    assert dledger_files.read_term(folder) == (wanted["currTerm"], int(wanted["currVoteFor"][1:]))
    for entry in wanted["entries"]:
        assert ledger.log.unit(entry["index"]) == (entry["pos"], entry["size"], entry["term"])
        record = Record.decode(ledger.record_of(entry["index"]))
        assert record.pos == entry["commitLogOffset"]
    assert data_of(folder) == before
    again = opened(folder)
    assert again.recovered.walked_from == wanted["writePos"], "it was read once, and has a mark now"


def test_a_log_of_dledger_is_continued(golden: Golden, golden_folder: Path) -> None:
    """New entries have CRCs, a chain that begins behind the old ones; a follower takes all of it."""
    folder = golden("dledger-n1") / "dledger-n1"
    ledger = opened(folder)
    last = ledger.last_index
    ledger.log.set_term(2)
    assert ledger.append_own(EntryKind.NO_OP, b"", NOW_MS, HOST.encode()) == last + 1
    ledger.log.write_out()
    ledger.log.sync()
    again = opened(folder, boot=2)
    assert (again.last_index, again.term_of(last + 1), again.damage) == (last + 1, 2, None)
    pos, _, term, kind, chain, crc = again.log.header(last + 1)
    assert (term, kind) == (2, EntryKind.NO_OP) and chain and crc
    follower = opened(folder.parent / "follower")
    at = 0
    while at <= again.last_index:
        end = again.extent(at, 100_000)
        follower.append_entries(
            follower.check(again.log.read_range(at, end), at - 1, follower.term_of(at - 1) or 0), at
        )
        follower.log.write_out()
        at = end + 1
    follower.log.sync()
    follower.save_mark()
    shared_segments = data_of(folder).items() & data_of(folder.parent / "follower").items()
    assert len(shared_segments) == 3
    assert pos


def test_entries_that_dledger_put_behind_ours_are_not_cut(tmp_path: Path) -> None:
    """They have no CRC: they count as damage, on which an operator has to decide, and are never truncated silently."""
    ledger = opened(tmp_path)
    ledger.log.set_term(1)
    ledger.append_own(EntryKind.NO_OP, b"", NOW_MS, HOST.encode())
    ledger.close()
    twin = TwinLedger(SEGMENT_BYTES)
    twin.append([Record("TALLY_SYS_GROUP_LOG", 0, b"", store_timestamp_ms=NOW_MS, store_host=HOST)], 1, 1)
    twin.append([Record("T", 0, b"theirs")], 2, crc=False)
    header, body = twin.entries[1]
    end = ledger.log.written
    body = Record.decode(body)._replace(pos=end + 48).encode()
    Door().write(tmp_path / "data" / f"{0:020}", end, header._replace(pos=end).encode() + body)
    again = opened(tmp_path)
    assert again.damage is not None
    assert (again.damage.index, again.damage.reason) == (1, "no CRC behind an entry that has one")


def test_the_small_files_are_javas(tmp_path: Path) -> None:
    dledger_files.write_checkpoint(Door(), tmp_path, 41, 40)
    dledger_files.write_term(Door(), tmp_path, 3, 1)
    assert (tmp_path / "checkpoint").read_text() == "endIndex=41\ncommittedIndex=40\n"
    assert (tmp_path / "currterm").read_text() == "currTerm=3\nvoteLeader=n1\n"
    assert dledger_files.read_committed_index(tmp_path) == 40
    assert dledger_files.read_term(tmp_path) == (3, 1)
    (tmp_path / "currterm").write_text("#Sat Nov 21\nvoteLeader=\ncurrTerm=7\n")
    assert dledger_files.read_term(tmp_path) == (7, None)
    (tmp_path / "currterm").write_text("currTerm=x\n")
    assert dledger_files.read_term(tmp_path) == (-1, None)
    (tmp_path / "checkpoint").write_text("committedIndex\n")
    assert dledger_files.read_committed_index(tmp_path) == -1
    assert dledger_files.read_term(tmp_path / "nowhere") == (-1, None)


def test_term_and_vote_are_written_for_dledger(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.save_mark()
    assert not (tmp_path / "currterm").exists(), "no vote was given here"
    vote = VoteFile.open(tmp_path, Door(), Identity("c", "g", 0), new_member=True)
    vote.save(4, 2)
    ledger.close(committed_index=-1)
    assert dledger_files.read_term(tmp_path) == (4, 2)
    assert (tmp_path / "checkpoint").read_text() == "endIndex=-1\ncommittedIndex=-1\n"


# -- the other way -----------------------------------------------------------------------------------------------------


@pytest.fixture
def peer(shared: Path) -> Path:
    script = shared / "peer" / "peer.sh"
    if os.environ.get("TALLYSTICK_PEER") != "1":
        pytest.skip("runs RocketMQ itself, some 20 s: set TALLYSTICK_PEER=1")
    if not script.is_file():
        pytest.skip(f"needs the peer lab: {script} is not there")
    return script


def opened_by_rocketmq(peer: Path, root: Path) -> dict[str, Any]:
    command = [str(peer), "open-store", str(root), "--dledger", "n0", "--set", "mappedFileSizeConsumeQueue=6000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    listing: dict[str, Any] = json.loads(done.stdout)
    return listing


def test_rocketmq_opens_our_log(tmp_path: Path, peer: Path) -> None:
    """Entries of all kinds, fillers, several terms, a cut: RocketMQ 4.8.0 reads each message at its place."""
    folder, dice = tmp_path / "dledger-n0", random.Random(4)
    ledger = opened(folder)
    placed: list[tuple[int, bytes, str]] = []
    for term in (1, 2, 5):
        ledger.log.set_term(term)
        index = ledger.append_own(EntryKind.NO_OP, b"", NOW_MS, HOST.encode())
        placed.append((ledger.pos_of(index) + 48, b"", "TALLY_SYS_GROUP_LOG"))
        for number in range(300):
            body = dice.randbytes(dice.randrange(1, 3000))
            pos, _, _, _ = ledger.log.append(
                b"T%d" % (number % 3),
                number % 2,
                body,
                b"KEYS\x01k%d\x02" % number,
                now_ms=NOW_MS,
                born_timestamp=NOW_MS,
                born_host=HOST.encode(),
            )
            placed.append((pos, body, f"T{number % 3}"))
        ledger.log.write_out()
        ledger.truncate(ledger.last_index - 7)
        del placed[-7:]
        ledger.log.reset_offsets()
        ledger.log.take_offsets(0)
    dledger_files.write_term(Door(), folder, 5, 0)
    ledger.close(committed_index=ledger.last_index)
    assert len(data_of(folder)) > 4, "it has several segments"

    listing = opened_by_rocketmq(peer, tmp_path)

    entries = listing["onDisk"]["dledger"]["entries"]
    assert [(entry["index"], entry["term"]) for entry in entries] == [
        (index, ledger.term_of(index)) for index in range(ledger.last_index + 1)
    ]
    for entry in entries:
        header = EntryHeader.decode(ledger.log.read_range(entry["index"], entry["index"]))
        assert entry["chainCrc"] & 0xFFFFFFFF == header.chain_crc
        assert entry["bodyCrc"] & 0xFFFFFFFF == header.body_crc
    seen = [(message["offset"], message["topic"]) for message in listing["opened"]["messages"]]
    assert seen == [(pos, topic) for pos, _, topic in placed]
    assert listing["opened"]["maxPhyOffset"] == ledger.log.written
    offsets = {row["topic"]: row for row in listing["opened"]["queues"]} if listing["opened"]["queues"] else {}
    assert {"T0", "T1", "T2", "TALLY_SYS_GROUP_LOG"} <= set(offsets)
