"""Three real processes, and one damaged entry of a table in the log of one member, which then is made the leader."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from group_lab import NAME, GroupLab, until

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.replication.ledger.mark import LedgerMark
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES, GROUP_LOG_TOPIC
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.segment_files import SegmentFiles

pytestmark = pytest.mark.process


def entry_of_topic(data: Path, topic: str) -> int:
    """Where the METADATA entry that makes the topic begins in the log."""
    with SegmentFiles(data, 1048576) as log:
        for step in walk(log, entry_header_bytes=ENTRY_HEADER_BYTES):
            if step.kind is not StepKind.RECORD or step.record is None:
                continue
            if step.record.topic == GROUP_LOG_TOPIC and f'"{topic}"'.encode() in step.record.body:
                return step.pos
    raise AssertionError(f"no entry makes {topic}")


def flip(data: Path, pos: int) -> None:
    start = pos - pos % 1048576
    path = data / f"{start:020d}"
    content = bytearray(path.read_bytes())
    content[pos - start] ^= 0x04
    path.write_bytes(content)


@pytest.mark.parametrize("offset", [12, 200], ids=["header", "body"])
async def test_a_member_with_a_damaged_entry_of_a_table_leads_with_all_topics(tmp_path: Path, offset: int) -> None:
    with GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver) as client:
            leader, ledger = await lab.with_topic(client, "first", 2)
            await ledger.produce(20, 2, b"first")
            await client.create_topic(lab.address(leader), "second", 2)
            await client.create_topic(lab.address(leader), "third", 2)
            await ledger.produce(20, 2, b"more")
            number = (leader + 1) % 3
            data = lab.folder / f"n{number}" / "store" / f"dledger-n{number}" / "data"

            async def there() -> int | None:
                try:
                    pos = entry_of_topic(data, "third")
                except AssertionError:
                    return None
                mark = LedgerMark.load(data.parent)  # what is behind it is read, and cut, by every start
                return pos if mark is not None and mark.synced.pos > pos else None

            await until("the follower has the topics, and knows them to be durable", there)
            lab.kill(number)
            (lab.folder / f"n{number}" / "store" / "config" / "tally-metadata").unlink(missing_ok=True)
            flip(data, entry_of_topic(data, "second") + offset)
            lab.start(number)
            await lab.ready()
            await lab.hand_over(number)
            assert await lab.leader() == number
            await lab.master(client, number)
            ledger.check(await ledger.read(lab.address(number)))
            for topic in ("second", "third"):
                assert await client.offset_range(QueueAddress(topic, NAME, lab.address(number), 0)) == (0, 0)
            log = lab.members[number].log.read_text()
            assert "found damage in" in log and "were replaced with those of n" in log, log
            assert entry_of_topic(data, "second")


@pytest.mark.parametrize(("hit", "offset"), [("middle", 100), ("last", 100), ("last", 15)])
async def test_queues_and_index_that_were_built_over_damage_get_what_was_repaired(
    tmp_path: Path, hit: str, offset: int
) -> None:
    """All derived files of a member are gone, and its log is damaged in a message that was applied long ago."""
    with GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver) as client:
            leader, ledger = await lab.with_topic(client, "first", 1)
            await ledger.produce(20, 1, b"first")
            number = (leader + 1) % 3
            store = lab.folder / f"n{number}" / "store"
            await lab.ready()
            process = lab.members.pop(number)
            assert process.end() == 0
            process.__exit__(None, None, None)
            data = store / f"dledger-n{number}" / "data"
            with SegmentFiles(data, 1048576) as log:
                steps = [
                    step.pos
                    for step in walk(log, entry_header_bytes=ENTRY_HEADER_BYTES)
                    if step.record is not None and step.record.topic == "first"
                ]
            flip(data, steps[10 if hit == "middle" else -1] + ENTRY_HEADER_BYTES + offset)
            for name in ("consumequeue", "index"):
                shutil.rmtree(store / name)
            for name in ("tally-progress", "tally-queues"):
                (store / name).unlink(missing_ok=True)
            lab.start(number)
            await lab.ready()
            await lab.hand_over(number)
            await lab.master(client, number)
            ledger.check(await ledger.read(lab.address(number)))
            await ledger.produce(5, 1, b"behind")
            ledger.check(await ledger.read(lab.address(number)))
