"""The checkpoint: RocketMQ's bytes, and a file in place that no crash tears."""

import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.store._kernel import Door
from tallystick.store.formats.checkpoint import CHECKPOINT_BYTES, StoreCheckpoint

_LONGS = st.integers(-(2**63), 2**63 - 1)


def test_the_vector():
    data = bytes.fromhex("000001a1fb437edb000001a1fb437ef1000001a1fb437ef00000000000000000").ljust(4096, b"\0")
    checkpoint = StoreCheckpoint.decode(data)
    assert checkpoint == StoreCheckpoint(0x1A1FB437EDB, 0x1A1FB437EF1, 0x1A1FB437EF0)
    assert checkpoint.encode() == data


@pytest.mark.parametrize("name", ["clean", "killed", "edge", "cqext"])
def test_a_golden_store(golden, golden_folder, name):
    path = golden(name) / "checkpoint"
    expected = json.loads(lzma.decompress((golden_folder / name / "expected.json.xz").read_bytes()))["onDisk"]
    checkpoint = StoreCheckpoint.load(path)
    assert checkpoint.physic_timestamp_ms == expected["checkpoint"]["physicMsgTimestamp"]
    assert checkpoint.logics_timestamp_ms == expected["checkpoint"]["logicsMsgTimestamp"]
    assert checkpoint.index_timestamp_ms == expected["checkpoint"]["indexMsgTimestamp"]
    assert checkpoint.encode() == path.read_bytes()


@given(_LONGS, _LONGS, _LONGS, _LONGS, _LONGS)
def test_round_trip(physic, logics, index, flushed, confirmed):
    checkpoint = StoreCheckpoint(physic, logics, index, flushed, confirmed)
    assert StoreCheckpoint.decode(checkpoint.encode()) == checkpoint
    assert len(checkpoint.encode()) == CHECKPOINT_BYTES


def test_recovery_begins_three_seconds_before_the_older_one():
    checkpoint = StoreCheckpoint(10_000, 20_000, 5_000)
    assert checkpoint.min_timestamp_ms == 7_000
    assert checkpoint.min_timestamp_index_ms == 5_000
    assert StoreCheckpoint(2_000, 2_000, 9).min_timestamp_ms == 0


def test_a_store_without_one_begins_at_zero(tmp_path):
    path = tmp_path / "checkpoint"
    assert StoreCheckpoint.load(path) == StoreCheckpoint()
    path.write_bytes(b"\0\0\0\0\0\0\0\x05\0")
    assert StoreCheckpoint.load(path) == StoreCheckpoint(5)


def test_saved_and_loaded(tmp_path):
    path = tmp_path / "checkpoint"
    StoreCheckpoint(1, 2, 3).save(Door(), path)
    StoreCheckpoint(4, 5, 6).save(Door(), path)
    assert StoreCheckpoint.load(path) == StoreCheckpoint(4, 5, 6)
    assert path.stat().st_size == CHECKPOINT_BYTES


@pytest.mark.parametrize("seed", range(40))
def test_power_loss_leaves_the_last_one_or_the_one_on_its_way(tmp_path, seed):
    path = tmp_path / "checkpoint"
    door = Door(record=True)
    StoreCheckpoint(1, 1, 1).save(door, path)
    door.fail("sync", "checkpoint", 5)
    with pytest.raises(OSError, match="checkpoint"):
        StoreCheckpoint(2, 2, 2).save(door, path)
    door.crash(seed)
    assert StoreCheckpoint.load(path) in (StoreCheckpoint(1, 1, 1), StoreCheckpoint(2, 2, 2))
