"""The file of the replicated tables: power loss at every step, damage at every byte."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tallystick.replication.metadata import snapshot
from tallystick.replication.metadata.entry import MetadataError
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store._kernel import Door

OLD = ReplicatedTables(3, {"topics.json": {"topicConfigTable": {"T": {"perm": 6}}}})
NEW = ReplicatedTables(9, {"topics.json": {"topicConfigTable": {"U": {"perm": 4}}}, "consumerOffset.json": {}})


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    assert snapshot.load(tmp_path) is None
    for tables in (OLD, NEW):
        snapshot.save(Door(), tmp_path, snapshot.encode(tables))
        assert snapshot.load(tmp_path) == tables
    assert [path.name for path in tmp_path.iterdir()] == ["tally-metadata"]


@pytest.mark.parametrize("seed", range(40))
def test_power_loss_while_saving_leaves_one_whole_pair_of_index_and_tables(tmp_path: Path, seed: int) -> None:
    door = Door(record=True)
    snapshot.save(door, tmp_path, snapshot.encode(OLD))
    operation = ("write", "sync", "rename", "sync_dir", None)[seed % 5]
    if operation is not None:
        door.fail(operation, "tally-metadata" if operation != "sync_dir" else str(tmp_path), errno.EIO, 0, 1)
    try:
        snapshot.save(door, tmp_path, snapshot.encode(NEW))
        saved = True
    except OSError:
        saved = False
    door.crash(seed)
    found = snapshot.load(tmp_path)
    assert found == NEW if saved else found in (OLD, NEW)


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    data = snapshot.encode(NEW)
    path = tmp_path / snapshot.FILE_NAME
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(snapshot.SnapshotError, match=str(path)):
            snapshot.load(tmp_path)


def test_a_file_of_any_other_length_is_noticed() -> None:
    data = snapshot.encode(NEW)
    for size in range(len(data)):
        with pytest.raises(MetadataError):
            snapshot.decode(data[:size])
    with pytest.raises(MetadataError):
        snapshot.decode(data + b" ")
