"""Groups that start on stores which no member wrote: those of RocketMQ in DLedger mode, and converted ones."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from convert_lab import Sent, content_of, ledger_store
from engine_lab import filled_store, small
from group_lab import NAME, GroupLab, until
from tally_process import tally

from tallystick.node.broker.group import queue_ends
from tallystick.node.broker.group.adoption import adopted_tables
from tallystick.node.broker.group.conversion import tables_of_member
from tallystick.node.broker.group.membership import forget_derived
from tallystick.node.cli import main
from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.replication.durable import PossibleLoss
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.vote import Identity, VoteFile
from tallystick.replication.member.opening import open_disk
from tallystick.replication.membership import Membership
from tallystick.replication.metadata import snapshot
from tallystick.replication.transport import handshake as transport
from tallystick.store import fastjson
from tallystick.store._kernel import Door
from tallystick.store.formats.record import Record
from tallystick.store.formats.segment_files import segment_name

SEGMENT = 262_144
SIZES = (
    f"mappedFileSizeCommitLog={SEGMENT}",
    "mappedFileSizeConsumeQueue=6000",
    "maxHashSlotNum=500",
    "maxIndexNum=2000",
    "fileReservedTime=720000",
    "autoCreateTopicEnable=true",
)
IDENTITY = Identity("DefaultCluster", NAME, 0)


# -- what a first start takes over -------------------------------------------------------------------------------------


def test_a_member_continues_dledgers_term_and_vote(tmp_path: Path) -> None:
    """A member of dledger may have entries of this term that others lack: no other entry may get the same term."""

    def opened() -> VoteFile:
        def open_ledger(store_id: bytes) -> Ledger:
            return Ledger.open(
                tmp_path, Door(), segment_bytes=4096, max_message_bytes=1000, store_host=bytes(8), store_id=store_id,
                index_segment_bytes=512,
            )  # fmt: skip

        identity = transport.Identity("DefaultCluster", NAME, 0)
        founders = Membership.of([0, 1, 2])
        disk = open_disk(
            tmp_path, Door(), identity, open_ledger, bootstrap=founders, asynchronous=False, boot_id=bytes(16)
        )
        return disk.vote

    (tmp_path / "currterm").write_text("voteLeader=n2\ncurrTerm=9\n")
    vote = opened()
    assert (vote.record.term, vote.record.voted_for, vote.record.possible_loss) == (9, 2, PossibleLoss.NONE)
    vote.save(11, 1)
    assert opened().record == vote.record, "it is ahead of dledger's file"
    (tmp_path / "currterm").write_text("voteLeader=\ncurrTerm=12\n")
    assert (opened().record.term, opened().record.voted_for) == (12, None), "RocketMQ had the folder meanwhile"
    (tmp_path / "currterm").write_text("voteLeader=\ncurrTerm=9999999999\n")
    assert opened().record.term == 12, "no group gets there"


def trimmed(root: Path) -> int:
    """Deletes the first segment, as RocketMQ does when it expires; the index of the entry that is the first one now."""
    (data,) = root.glob("dledger-*/data")
    first, second = sorted(data.iterdir())[:2]
    first.unlink()
    return int.from_bytes(second.read_bytes()[8:16], "big")


def test_the_tables_of_a_log_of_dledger_are_complete(golden: Any) -> None:
    root = golden("dledger-n0")
    config, ledger = root / "config", root / "dledger-n0"
    assert adopted_tables(Door(), config, ledger, SEGMENT).applied_index == -1
    assert snapshot.load(config) is None, "nothing to note"
    first = trimmed(root)
    assert adopted_tables(Door(), config, ledger, SEGMENT).applied_index == first - 1 > 0
    noted = snapshot.load(config)
    assert noted is not None and (noted.applied_index, noted.pictures()) == (first - 1, {})
    (config / snapshot.FILE_NAME).unlink()
    VoteFile.open(ledger, Door(), IDENTITY, new_member=True)
    assert adopted_tables(Door(), config, ledger, SEGMENT).applied_index == -1, "it was a member before"


def test_a_member_that_lost_its_files_is_not_taken_for_dledgers(tmp_path: Path) -> None:
    """Its log has entries of tables, which may be among the deleted ones."""
    ledger_store(tmp_path, [Sent(Record("T", 0, b"x" * 900)) for _ in range(20)], 4096)
    data = tmp_path / "dledger-n0" / "data"
    sorted(data.iterdir())[0].unlink()
    assert adopted_tables(Door(), tmp_path / "config", tmp_path / "dledger-n0", 4096).applied_index == -1


def test_the_queues_of_a_log_of_rocketmq_stay(golden: Any) -> None:
    """It writes no progress mark. Without its queues, an idle one would begin at 0 again."""
    root = golden("dledger-n0")
    trimmed(root)
    before = sorted(path.name for path in (root / "consumequeue").iterdir())
    assert not forget_derived(Door(), root, SEGMENT)
    assert sorted(path.name for path in (root / "consumequeue").iterdir()) == before
    assert forget_derived(Door(), root, 1 << 40), "these are of a log before a snapshot"
    assert not any((root / "consumequeue").rglob("0*"))


def test_tables_of_a_member_are_those_at_the_end_of_its_log(tmp_path: Path) -> None:
    from ledger_twin import TwinLedger

    from tallystick.replication.metadata.entry import TablePatch, encode
    from tallystick.replication.metadata.tables import ReplicatedTables
    from tallystick.store.formats.ledger_format import GROUP_LOG_TOPIC, EntryKind

    twin = TwinLedger(4096)
    for number in range(40):
        patch = {"offsetTable": {"orders@readers": {"3": number}}}
        (body,) = encode(TablePatch("consumerOffset.json", patch))
        twin.append([Record(GROUP_LOG_TOPIC, 0, body)], 1, EntryKind.METADATA)
        twin.append([Record("orders", 3, b"x" * 200, queue_offset=number)], 1)
    ledger = tmp_path / "dledger-n0"
    (ledger / "data").mkdir(parents=True)
    for at in range(0, len(twin.data()), 4096):
        (ledger / "data" / segment_name(at)).write_bytes(twin.data()[at : at + 4096])
    tables = ReplicatedTables(20, {"consumerOffset.json": {"offsetTable": {"orders@readers": {"3": 10, "4": 1}}}})
    snapshot.save(Door(), tmp_path / "config", snapshot.encode(tables))
    (data,) = tables_of_member(tmp_path / "config", ledger).values()
    assert fastjson.loads(data)["offsetTable"] == {"orders@readers": {3: 39, 4: 1}}
    assert tables_of_member(tmp_path / "nowhere", ledger) == {}


# -- real processes ----------------------------------------------------------------------------------------------------


def put(root: Path, lab_folder: Path, number: int) -> Path:
    target = lab_folder / f"n{number}" / "store"
    target.parent.mkdir(parents=True)
    return shutil.copytree(root, target)


Ends = dict[tuple[str, int], int]


def ends_of(root: Path) -> Ends:
    """The next offset of each queue, by the records of the log, but not of those that a start continues."""
    ends: Ends = {}
    for record, _ in content_of(root):
        if not record.topic.startswith(("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS")) and record.sys_flag & 12 in (0, 8):
            ends[record.topic, record.queue_id] = record.queue_offset + 1
    return ends


async def check_messages(client: ClusterClient, address: str, ends: Ends, first: int) -> None:
    """This member has the messages of each queue at their offsets, from `first` on or from where its log begins."""
    for (topic, queue_id), end in ends.items():
        queue = QueueAddress(topic, NAME, address, queue_id)
        low, high = await client.offset_range(queue)
        assert high >= end, topic
        if first == 0:
            assert low == 0, topic
        found: list[int] = []
        while low < end:
            pulled = await client.pull(queue, low, group="reader")
            found += [record.queue_offset for record in pulled.records]
            low = pulled.next_offset
        # Of a queue whose messages expired, nothing is left but its end.
        assert found == list(range(end - len(found), end)) and (found or first), topic


@pytest.mark.process
@pytest.mark.parametrize("is_trimmed", [False, True])
async def test_a_group_starts_on_the_folders_of_rocketmqs_members(
    golden: Any, tmp_path: Path, is_trimmed: bool
) -> None:
    """As operation.md says: every member gets the tables of the old master first."""
    lab_folder = tmp_path / "lab"
    roots = [golden(f"dledger-n{number}") for number in range(3)]
    ends: Ends = {}
    for root in roots:
        ends |= {queue: max(end, ends.get(queue, 0)) for queue, end in ends_of(root).items()}
    first = max(trimmed(root) for root in roots) if is_trimmed else 0
    master = max(roots, key=lambda root: len((root / "config" / "consumerOffset.json").read_bytes()))
    offsets = fastjson.loads((master / "config" / "consumerOffset.json").read_bytes())
    for number, root in enumerate(roots):
        stored = put(root, lab_folder, number)
        shutil.rmtree(stored / "config")
        shutil.copytree(master / "config", stored / "config")
    with GroupLab(lab_folder, *SIZES) as lab:
        async with ClusterClient(lab.nameserver) as client:
            leader = await lab.leader()
            await lab.ready()
            assert sorted((await lab.status(leader))["voters"]) == [0, 1, 2]
            for number in range(3):
                await check_messages(client, lab.address(number), ends, first)
                answer = await client.call(lab.address(number), 43, {})
                assert fastjson.loads(answer.body)["offsetTable"].items() >= offsets["offsetTable"].items()
            # New entries go behind the old ones, and a member that loses its disk gets all of it.
            _, ledger = await lab.with_topic(client, "orders", 2)
            await ledger.produce(30, 4, b"new")
            other = (await lab.leader() + 1) % 3
            lab.kill(other)
            shutil.rmtree(lab_folder / f"n{other}" / "store")
            lab.start(other)
            await lab.ready()
            await lab.hand_over(other)
            await ledger.produce(30, 4, b"newer")
            ledger.check(await ledger.read(lab.address(other)))


@pytest.mark.process
async def test_a_group_grows_from_a_converted_store(tmp_path: Path) -> None:
    """Also an idle queue, whose end only the converted member knew, continues at its offset under another leader."""
    root = await asyncio.to_thread(filled_store, small(tmp_path / "old"), 120)
    shutil.copytree(root / "consumequeue" / "T" / "1", root / "consumequeue" / "Idle" / "0")
    for path in sorted((root / "commitlog").iterdir())[:-2]:
        path.unlink()
    for name in ("tally-progress", "tally-queues"):
        (root / name).unlink()
    for file in sorted((root / "consumequeue" / "Idle" / "0").iterdir())[2:]:
        file.unlink()
    topics = {name: {"topicName": name, "perm": 6, "readQueueNums": 2, "writeQueueNums": 2} for name in ("T", "Idle")}
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@readers":{"0":59}}}')
    store = tmp_path / "lab" / "n0" / "store"
    arguments = ["store", "convert", str(root), str(store), "--to", "dledger", "--segment-bytes", "1048576"]
    assert await asyncio.to_thread(main, arguments) == 0
    assert queue_ends.load(store / "config") == {("Idle", 0): 32}
    sizes = ("mappedFileSizeConsumeQueue=320", "maxHashSlotNum=32", "maxIndexNum=64", "fileReservedTime=720000")
    with GroupLab(tmp_path / "lab", "groupBootstrapMembers=n0", *sizes) as lab:
        async with ClusterClient(lab.nameserver) as client:
            assert await lab.leader() == 0
            for number in (1, 2):
                http = lab.members[0].places["http"]
                answer = await asyncio.to_thread(tally, "group", "add", f"n{number}", "--http", http, cwd=tmp_path)
                assert answer.returncode == 0, answer.stderr
            await lab.ready()

            async def whole() -> bool | None:
                return (await lab.status(0))["voters"] == [0, 1, 2] or None

            await until("three members vote", whole)
            lab.kill(0)
            leader = await lab.leader()
            await lab.master(client, leader)
            address = lab.address(leader)
            for queue_id in (0, 1):
                queue = QueueAddress("T", NAME, address, queue_id)
                low, high = await client.offset_range(queue)
                assert high == 60
                records = (await client.pull(queue, low, group="x")).records
                assert [record.queue_offset for record in records] == list(range(low, low + len(records)))
            assert await client.committed(QueueAddress("T", NAME, address, 0), "readers") == 59
            _, offset = await client.send(QueueAddress("Idle", NAME, address, 0), b"the next one")
            assert offset == 32
            _, offset = await client.send(QueueAddress("T", NAME, address, 0), b"the next one")
            assert offset == 60
