"""What the scanner reads from stores that RocketMQ wrote, against what RocketMQ says is in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_rows import expected, same

from tallystick.spark.columns import SCHEMA
from tallystick.spark.scan import DamageMetError, SplitScan
from tallystick.spark.splits import plan
from tallystick.spark.volume import Volume, open_volume

Golden = Callable[[str], Path]
SOUND = ["clean", "killed", "cqext", "edge", "trimmed", "lost-queues", "short-queues", "torn-tail"]
LEDGERS = ["dledger-n0", "dledger-n1", "dledger-n2"]


def read(volume: Volume, split_bytes: int = 1 << 30, **options: Any) -> tuple[list[dict[str, Any]], list[SplitScan]]:
    scans = [
        SplitScan(split, SCHEMA.names, check_crc=True, **options) for split in plan(volume, split_bytes=split_bytes)
    ]
    rows = [row for scan in scans for batch in scan for row in batch.to_pylist()]
    return rows, scans


@pytest.mark.parametrize("split_bytes", [1 << 30, 4096])
@pytest.mark.parametrize("name", SOUND + LEDGERS)
def test_every_message_with_every_field(name: str, split_bytes: int, golden: Golden, golden_folder: Path) -> None:
    known = expected(golden_folder, name)
    messages = known["opened"]["messages"]
    if name in LEDGERS:  # what a follower has behind the committed entry may yet be taken back
        committed = known["onDisk"]["dledger"]["committedPos"]
        messages = [message for message in messages if message["offset"] < committed]
        assert len(messages) > 100
    rows, scans = read(open_volume(golden(name), "n0"), split_bytes)
    assert [(row["physical_offset"], row["size"]) for row in rows] == [(m["offset"], m["size"]) for m in messages]
    for row, message in zip(rows, messages, strict=True):
        same(row, message)
    assert [scan.damage for scan in scans if scan.damage] == []
    if split_bytes == 4096 and name in ("clean", "killed", "dledger-n0"):
        assert len(scans) > len(open_volume(golden(name)).files), "files were cut within"


def test_a_flipped_body_is_named_and_the_rest_is_read(golden: Golden, golden_folder: Path) -> None:
    """RocketMQ cuts its log there at the next start; a reader beside it only tells."""
    opened = expected(golden_folder, "flipped-body")["opened"]
    rows, scans = read(open_volume(golden("flipped-body")))
    (damage,) = [damage for scan in scans for damage in scan.damage]
    assert (damage.position, damage.reason) == (opened["maxPhyOffset"], "body CRC differs")
    before = [row["physical_offset"] for row in rows if row["physical_offset"] < damage.position]
    assert before == [message["offset"] for message in opened["messages"]]
    behind = [row["physical_offset"] for row in rows if row["physical_offset"] >= damage.position]
    assert behind and behind[0] == damage.position + damage.size


def test_fail_fast_stops_at_it(golden: Golden, golden_folder: Path) -> None:
    with pytest.raises(DamageMetError, match="body CRC differs"):
        read(open_volume(golden("flipped-body")), fail_fast=True)


def test_a_bound_of_the_brokers_own_is_kept(golden: Golden, golden_folder: Path) -> None:
    messages = expected(golden_folder, "clean")["opened"]["messages"]
    rows, _ = read(open_volume(golden("clean"), committed=messages[100]["offset"]))
    assert len(rows) == 100
    rows, _ = read(open_volume(golden("clean"), committed=1 << 60))
    assert len(rows) < len(messages) + 1, "zeros behind the last record are no messages"


def test_without_queues_damage_in_the_middle_is_not_the_end(golden: Golden, golden_folder: Path) -> None:
    root = golden("lost-queues")
    messages = expected(golden_folder, "lost-queues")["opened"]["messages"]
    hurt = messages[len(messages) // 2]
    with (root / "commitlog" / f"{0:020d}").open("rb") as first:
        file_bytes = len(first.read())
    start = hurt["offset"] // file_bytes * file_bytes
    with (root / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(hurt["offset"] - start)
        file.write(bytes(12))
    rows, scans = read(open_volume(root))
    assert [row["physical_offset"] for row in rows] == [m["offset"] for m in messages if m is not hurt]
    (damage,) = [damage for scan in scans for damage in scan.damage]
    assert (damage.position, damage.size) == (hurt["offset"], hurt["size"])
