"""Golden stores through the kernel's derived side: recovered, dispatched and asked as RocketMQ 4.8.0 was."""

from __future__ import annotations

import json
import lzma
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.store._kernel import Dispatch, Door, key_hash, scan
from tallystick.store.formats.message import GetStatus

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SETS = [
    "clean",
    "edge",
    "trimmed",
    "cqext",
    "killed",
    "torn-tail",
    "flipped-body",
    "lost-queues",
    "short-queues",
    "dledger-n0",
    "dledger-n1",
    "dledger-n2",
]
LIMITS = (262144, 32, 65536, 8)
STATUSES = [status.name for status in GetStatus]

Golden = Callable[[str], Path]


class Opened:
    """A golden store behind a Dispatch, and what RocketMQ said of it."""

    def __init__(self, root: Path, expected: dict[str, Any]) -> None:
        self.root, self.expected, self.answers = root, expected, expected["opened"]
        settings = expected["settings"]
        member = settings["dledger"]
        self.log_dir = root / f"dledger-{member}" / "data" if member else root / "commitlog"
        self.entry_header_bytes = 48 if member else 0
        self.segment_bytes = settings["mappedFileSizeCommitLog"]
        self.dispatch = Dispatch(
            Door(),
            str(root),
            str(self.log_dir),
            log_segment_bytes=self.segment_bytes,
            queue_segment_bytes=settings["mappedFileSizeConsumeQueue"],
            index_slots=settings["maxHashSlotNum"],
            index_entries=settings["maxIndexNum"],
            delay_ms=[int(part[:-1]) * SECONDS[part[-1]] * 1000 for part in settings["messageDelayLevel"].split()],
            entry_header_bytes=self.entry_header_bytes,
        )

    def scan(self) -> Any:
        start = self.answers["minPhyOffset"]
        return scan(str(self.log_dir), self.segment_bytes, start, True, self.entry_header_bytes)

    def recover(self) -> None:
        """As RocketMQ after an unclean stop that trusts nothing: index back to the checkpoint, all of the log again."""
        lowest, end = self.answers["minPhyOffset"], self.answers["maxPhyOffset"]
        self.dispatch.load()
        if self.dispatch.recover_queues() >= end:
            self.dispatch.truncate_queues(end)
        self.dispatch.correct_min_offsets(lowest)
        if self.expected["onDisk"]["abort"]:
            self.dispatch.drop_index_after(self.expected["onDisk"]["checkpoint"]["indexMsgTimestamp"])
        self.dispatch.start(lowest)
        result = self.dispatch.run(end, 1 << 62)
        assert (result.pos, result.stopped, result.skipped) == (end, None, [])
        self.dispatch.write_out()
        self.dispatch.correct_min_offsets(lowest)


@pytest.fixture
def opened(golden: Golden, golden_folder: Path) -> Callable[[str], Opened]:
    def open_set(name: str) -> Opened:
        with lzma.open(golden_folder / name / "expected.json.xz") as file:
            return Opened(golden(name), json.load(file))

    return open_set


@pytest.mark.parametrize("name", SETS)
def test_the_scan_ends_where_rocketmq_ends(opened: Callable[[str], Opened], name: str) -> None:
    store = opened(name)
    found = store.scan()
    assert (found.end, found.records) == (store.answers["maxPhyOffset"], store.answers["messageCount"])
    reasons = {"torn-tail": "lengths do not add up", "flipped-body": "body CRC differs"}
    assert found.stopped == reasons.get(name, "unwritten")


@pytest.mark.parametrize("name", SETS)
def test_answers_are_rocketmqs(opened: Callable[[str], Opened], name: str) -> None:
    store = opened(name)
    store.recover()
    dispatch, answers = store.dispatch, store.answers
    queues = [(queue["topic"].encode(), queue["queueId"], queue) for queue in answers["queues"]]
    assert dispatch.queues() == [
        (topic, q, queue["minOffset"], queue["maxOffset"], queue["minLogicOffset"], queue["maxPhysicOffset"])
        for topic, q, queue in queues
    ]
    for topic, q, queue in queues:
        assert dispatch.units(topic, q, queue["minOffset"], 1 << 30) == [tuple(unit) for unit in queue["entries"]]
        for unit in queue.get("ext", []):
            found = (unit["size"], unit["tagsCode"], unit["msgStoreTime"], bytes.fromhex(unit["bitMap"]))
            assert dispatch.ext_unit(topic, q, unit["address"]) == found
    for get in answers["gets"]:
        # asked as a slave: an offset out of range comes back unchanged
        got = dispatch.get(
            get["topic"].encode(),
            get["queueId"],
            get["offset"],
            get["max"],
            None,
            answers["maxPhyOffset"],
            1 << 40,
            LIMITS,
            correct=False,
        )
        expected = [get[key] for key in ("status", "nextBeginOffset", "minOffset", "maxOffset", "count", "bytes")]
        assert [STATUSES[got[0]], *got[1:5], len(got[5])] == expected
    for times in answers["times"]:
        for time, offset in times["asked"]:
            assert dispatch.offset_by_time(times["topic"].encode(), times["queueId"], time, by_mtime=True) == (
                offset,
                -1,
            )
    for key in answers["keys"]:
        hashed = key_hash(f"{key['topic']}#{key['key']}".encode())
        positions, time, pos = dispatch.lookup(hashed, min(key["max"], 64), key["begin"], key["end"])
        assert (time, pos) == (key["indexLastUpdateTimestamp"], key["indexLastUpdatePhyoffset"])
        # after a crash RocketMQ may have a record twice; each once is as good
        assert list(dict.fromkeys(positions)) == list(dict.fromkeys(key["phyOffsets"]))
    assert dispatch.damaged == 0


def test_every_record_is_found_at_its_place(opened: Callable[[str], Opened]) -> None:
    store = opened("edge")
    end = store.answers["maxPhyOffset"]
    for message in store.answers["messages"]:
        record = store.dispatch.record_at(message["offset"], end)
        assert record is not None and len(record) == message["size"]
        assert store.dispatch.record_at(message["offset"] + 1, end) is None
        assert store.dispatch.log_bytes(message["offset"], message["size"]) == record


@pytest.mark.parametrize("name", ["clean", "edge", "dledger-n0"])
def test_rebuilt_queues_are_rocketmqs_byte_for_byte(opened: Callable[[str], Opened], name: str) -> None:
    store = opened(name)
    originals = {
        file.relative_to(store.root): file.read_bytes()
        for file in (store.root / "consumequeue").rglob("*")
        if file.is_file()
    }
    shutil.rmtree(store.root / "consumequeue")
    shutil.rmtree(store.root / "index")
    store.recover()
    store.dispatch.sync()
    store.dispatch.sync_index()
    for path, original in originals.items():
        assert (store.root / path).read_bytes() == original, path
    expected = store.expected["onDisk"]["index"]
    header = ("beginTimestamp", "endTimestamp", "beginPhyOffset", "endPhyOffset", "hashSlotCount", "indexCount")
    assert [list(row[1:]) for row in store.dispatch.index_files()] == [
        [file[key] for key in header] for file in expected
    ]
    slots = store.expected["settings"]["maxHashSlotNum"]
    for (name, *_), file in zip(store.dispatch.index_files(), expected, strict=True):
        data = (store.root / "index" / name).read_bytes()
        entries = struct.iter_unpack(">iqii", data[40 + 4 * slots : 40 + 4 * slots + 20 * file["indexCount"]])
        assert [list(entry) for entry in entries] == file["entries"]
        found = struct.unpack_from(f">{slots}i", data, 40)
        assert [[slot, value] for slot, value in enumerate(found) if value] == file["slots"]
