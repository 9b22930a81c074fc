"""Stores that RocketMQ 4.8 wrote open to the listing that its own classes gave: every set, every field.

Among them stores that were killed, torn, that lost their queues or the ends of them: there the listing says how
RocketMQ recovered, and we must recover the same.
"""

import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.node.cli import main
from tallystick.store.verify.dump import dump

SETS = (
    "clean",
    "killed",
    "torn-tail",
    "flipped-body",
    "lost-queues",
    "short-queues",
    "cqext",
    "dledger-n0",
    "dledger-n1",
    "dledger-n2",
    "edge",
    "trimmed",
)

Golden = Callable[[str], Path]


def settings(golden_folder: Path, name: str) -> dict[str, str]:
    text = (golden_folder / name / "settings.properties").read_text()
    return dict(line.split("=", 1) for line in text.splitlines())


def expected(golden_folder: Path, name: str) -> dict[str, Any]:
    with lzma.open(golden_folder / name / "expected.json.xz", "rt") as file:
        listing: dict[str, Any] = json.load(file)
    return listing


@pytest.mark.parametrize("name", [name for name in SETS if name != "flipped-body"])
def test_listing_is_rocketmqs(name: str, golden: Golden, golden_folder: Path) -> None:
    root = golden(name)
    wanted = expected(golden_folder, name)

    listing = json.loads(json.dumps(dump(root, settings(golden_folder, name))))

    for section in wanted["opened"]:  # one by one: a difference in `messages` alone would be pages
        assert listing["opened"][section] == wanted["opened"][section], section
    assert set(listing["opened"]) == set(wanted["opened"])
    assert listing["settings"] == wanted["settings"]


def test_what_rocketmq_cuts_behind_a_damaged_record_is_kept(golden: Golden, golden_folder: Path) -> None:
    """Killed, one record's body damaged: RocketMQ ends the log there. What it keeps is kept, and the rest as well."""
    wanted = expected(golden_folder, "flipped-body")["opened"]["afterLoad"]
    before = expected(golden_folder, "killed")["opened"]["afterLoad"]
    opened = dump(golden("flipped-body"), settings(golden_folder, "flipped-body"))["opened"]
    listing = json.loads(json.dumps(opened))["afterLoad"]
    assert listing["maxPhyOffset"] > wanted["maxPhyOffset"]
    assert listing["maxPhyOffset"] == before["maxPhyOffset"]
    for name, (low, high, _) in wanted["queues"].items():
        assert listing["queues"][name][0] == low and listing["queues"][name][1] >= high
    gets = {(get["topic"], get["queueId"], get["offset"]) for get in opened["gets"] if get["count"]}
    assert len(gets) > 10


def test_sizes_and_index_geometry_are_found_by_looking(golden: Golden, golden_folder: Path) -> None:
    listing = dump(golden("trimmed"))
    assert listing["settings"] == expected(golden_folder, "trimmed")["settings"]


def test_dump_does_not_touch_the_store(golden: Golden) -> None:
    root = golden("flipped-body")

    def state() -> dict[Path, tuple[int, bytes]]:
        files = (path for path in root.rglob("*") if path.is_file())
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = state()
    dump(root)
    assert state() == before


@pytest.mark.parametrize("name", ["killed", "flipped-body", "torn-tail", "short-queues"])
def test_a_recovered_store_recovers_again_to_the_same(name: str, golden: Golden, golden_folder: Path) -> None:
    """What recovery left on disk is itself a store: opening it in place twice changes nothing more."""
    root = golden(name)
    first = dump(root, settings(golden_folder, name), in_place=True)["opened"]
    again = dump(root, settings(golden_folder, name), in_place=True)["opened"]
    for listing in (first, again):
        del listing["afterLoad"]
        del listing["times"]  # opening wrote to files, by whose times RocketMQ searches
    assert again["queues"] == first["queues"]
    assert again["messages"] == first["messages"]
    assert again["gets"] == first["gets"]
    positions = [[sorted(set(query["phyOffsets"])) for query in listing["keys"]] for listing in (first, again)]
    assert positions[0] == positions[1]


def test_a_killed_ledger_makes_its_index_again(golden: Golden, golden_folder: Path) -> None:
    root = golden("dledger-n0")
    (root / "abort").touch()
    listing = dump(root, settings(golden_folder, "dledger-n0"))
    wanted = expected(golden_folder, "dledger-n0")["opened"]
    assert listing["opened"]["keys"] == wanted["keys"]
    assert listing["opened"]["maxPhyOffset"] == wanted["maxPhyOffset"]


def test_command_writes_what_compare_accepts(golden: Golden, golden_folder: Path, shared: Path, tmp_path: Path) -> None:
    root, out = golden("killed"), tmp_path / "actual.json"
    options = ["--settings", str(golden_folder / "killed" / "settings.properties")]
    assert main(["store", "dump", str(root), "--json", str(out), *options]) == 0

    compare = [sys.executable, str(shared / "peer" / "compare.py")]
    wanted = str(golden_folder / "killed" / "expected.json.xz")
    done = subprocess.run([*compare, wanted, str(out)], capture_output=True, text=True, check=False, env=os.environ)
    assert done.stdout == "0 differences\n"
    assert done.returncode == 0


def test_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "dump", str(tmp_path / "nothing"), "--json", "-"]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["store", "dump", str(tmp_path), "--json", "-", "--set", "maxIndexNumber=3"]) == 2
    assert "maxIndexNumber: there is no such setting" in capsys.readouterr().err
    assert main(["store", "dump", str(tmp_path), "--json", "-", "--set", "maxIndexNum=many"]) == 2
    assert "maxIndexNum: must be int, not 'many'" in capsys.readouterr().err
