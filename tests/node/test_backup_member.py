"""Backups of a member of a group, on files alone: its tables are exact at each entry, and its log may begin late."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backup_lab import back_up, log_bytes, restore
from ledger_lab import HOST, NOW_MS, STORE_ID, open_ledger

from tallystick.node.backup.create import Outcome
from tallystick.node.backup.errors import BackupError, DamagedBackupError
from tallystick.node.backup.restore import Point, Restored
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.mark import LedgerMark
from tallystick.replication.ledger.vote import Identity, VoteFile, VoteRecord
from tallystick.replication.member.origin import Origin
from tallystick.replication.member.special import body_of
from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.metadata import snapshot
from tallystick.replication.metadata.entry import TablePatch, encode
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store._kernel import Door
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.verify.report import verify

WHO = Identity("lab", "group-a", 0)
THREE = Membership.of([0, 1, 2])
TABLES = [("topics.json", "topicConfigTable"), ("consumerOffset.json", "offsetTable")]


class Member:
    """A stopped member, whose log grows in steps. `at`: the tables behind each entry; `ends`: its end."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "dledger-n0"
        self.dice = random.Random(1)
        self.tables = ReplicatedTables()
        self.at: list[dict[str, Any]] = []
        self.ends: list[int] = []
        ledger = open_ledger(self.folder)
        Origin(MembershipEntry(-1, THREE), asynchronous=False).save(Door(), self.folder)
        VoteFile(self.folder, Door(), VoteRecord(WHO, STORE_ID)).save(1, 0)
        ledger.close()

    def grow(self, count: int) -> None:
        """Messages, and changes of tables."""
        ledger = open_ledger(self.folder)
        ledger.log.set_term(1)
        ledger.log.take_offsets(ledger.first_index)
        for number in range(count):
            index = ledger.last_index + 1
            if not index:
                ledger.append_own(EntryKind.MEMBERSHIP, THREE.encode(), NOW_MS, HOST.encode())
            elif number % 4 == 1:
                name, rows = self.dice.choice(TABLES)
                row = {"perm": index} if "topics" in name else {"0": index}
                (body,) = encode(TablePatch(name, {rows: {f"T@{index % 5}": row}}))
                ledger.append_own(EntryKind.METADATA, body, NOW_MS + index, HOST.encode())
                self.tables.apply(index, body)
            else:
                self._message(ledger, index)
            ledger.log.write_out()
            ledger.log.sync()
            self.tables.pass_over(index)
            self.at.append(self.tables.pictures())
            self.ends.append(ledger.end_of(index))
        ledger.close(ledger.last_index)

    def _message(self, ledger: Ledger, index: int) -> None:
        host = HOST.encode()
        body = b"%d " % index + self.dice.randbytes(self.dice.choice([5, 200, 900]))
        ledger.log.append(
            b"T", index % 2, body, b"TAGS\x01t\x02", now_ms=NOW_MS + index, born_timestamp=NOW_MS, born_host=host,
            kind=EntryKind.MESSAGE,
        )  # fmt: skip

    def save_tables(self) -> None:
        """As the broker does now and then."""
        snapshot.save(Door(), self.root / "config", snapshot.encode(self.tables))

    def begin_later(self) -> int:
        """Retention deletes the first two segments. Returns the entry before the first kept one."""
        ledger = open_ledger(self.folder)
        ledger.release_before(ledger.base.pos + 2 * 4096)
        ledger.delete_released()
        base = ledger.base.index
        ledger.close(ledger.last_index)
        return base


def tables_of(root: Path) -> tuple[ReplicatedTables, int]:
    """The tables with which a restored member begins: the saved ones, and what the log has behind them. And the last
    entry of the log before the membership that the restore adds."""
    found = snapshot.load(root / "config") or ReplicatedTables()
    ledger = open_ledger(root / "dledger-n0")
    assert found.applied_index >= ledger.base.index, "otherwise a start is refused"
    for index in range(max(ledger.first_index, found.applied_index + 1), ledger.last_index + 1):
        header = ledger.log.header(index)
        assert header is not None
        if header[3] == EntryKind.METADATA:
            found.apply(index, body_of(ledger.record_of(index)))
    return found, ledger.last_index - 1


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    yield Member(tmp_path / "store")


def check(member: Member, outcome: Outcome, result: Restored, root: Path, index: int) -> None:
    begin = outcome.manifest.begin
    assert result.end == member.ends[index] and verify(root).sound
    logs = (log_bytes(folder / "data", begin, result.end) for folder in (root / "dledger-n0", member.folder))
    assert len(set(logs)) == 1
    tables, last = tables_of(root)
    assert (tables.pictures(), last) == (member.at[index], index)


def test_tables_are_exact_at_each_entry(member: Member, tmp_path: Path) -> None:
    member.grow(20)
    member.save_tables()
    member.grow(12)
    outcome = back_up(member.root, tmp_path / "place")
    result = restore(outcome, tmp_path / "place", tmp_path / "whole")
    check(member, outcome, result, tmp_path / "whole", 31)
    mark = LedgerMark.load(tmp_path / "whole/dledger-n0")
    assert mark is not None and mark.store_id != STORE_ID
    for index in (0, 5, 19, 20, 30):
        to = tmp_path / f"to-{index}"
        result = restore(outcome, tmp_path / "place", to, point=Point(offset=member.ends[index]))
        assert not result.notes
        check(member, outcome, result, to, index)
    result = restore(outcome, tmp_path / "place", tmp_path / "time", point=Point(time_ms=NOW_MS + 17))
    check(member, outcome, result, tmp_path / "time", 17)


def test_a_log_that_begins_late_needs_tables_from_behind_its_begin(member: Member, tmp_path: Path) -> None:
    place = tmp_path / "place"
    member.grow(40)
    base = member.begin_later()
    assert base >= 0
    with pytest.raises(BackupError, match=f"begins behind entry {base} now, and the tables were saved at entry -1"):
        back_up(member.root, place)
    member.save_tables()
    first = back_up(member.root, place)
    member.grow(20)
    member.save_tables()
    second = back_up(member.root, place)
    assert second.shared_bytes > 0
    check(member, second, restore(second, place, tmp_path / "whole"), tmp_path / "whole", 59)
    # Between both: the tables of the first backup, and the log behind them.
    result = restore(second, place, tmp_path / "between", point=Point(offset=member.ends[50]))
    assert not result.notes
    check(member, second, result, tmp_path / "between", 50)
    # Before both: no backup has such tables.
    result = restore(second, place, tmp_path / "early", point=Point(offset=member.ends[30]))
    assert any("no backup has the tables from before this point" in note for note in result.notes)
    tables, last = tables_of(tmp_path / "early")
    assert last == 30 and tables.applied_index == 30 and verify(tmp_path / "early").sound
    topics = tables.picture("topics.json")
    assert topics == member.at[59]["topics.json"]
    assert first.manifest.begin == second.manifest.begin > 0


def test_only_what_is_committed_is_in_a_backup(member: Member, tmp_path: Path) -> None:
    member.grow(25)
    outcome = back_up(member.root, tmp_path / "place", committed=lambda: member.ends[17])
    check(member, outcome, restore(outcome, tmp_path / "place", tmp_path / "to"), tmp_path / "to", 17)
    behind = member.ends[-1] + 100
    with pytest.raises(DamagedBackupError, match="is damaged at byte"):
        back_up(member.root, tmp_path / "place", committed=lambda: behind)  # the position of another member


def test_a_damaged_member_is_not_backed_up(member: Member, tmp_path: Path) -> None:
    member.grow(30)
    path = member.folder / "data" / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[member.ends[2] + 90] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedBackupError, match="back up another member meanwhile"):
        back_up(member.root, tmp_path / "place", committed=lambda: member.ends[-1])
