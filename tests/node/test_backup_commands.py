"""The command `tally backup`: its output, its exit codes, and one line for each wrong argument."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from backup_lab import NAME, back_up, fill

from tallystick.node.cli import main
from tallystick.node.commands.backup import _rate, _time


async def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(["backup", *arguments])
    except SystemExit as ended:
        code = int(str(ended.code))
    out, err = capsys.readouterr()
    return code, out, err


async def test_a_backup_from_its_creation_to_its_deletion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, place, to = str(tmp_path / "store"), str(tmp_path / "place"), str(tmp_path / "to")
    await fill(tmp_path / "store", 30)
    code, out, _ = await run(capsys, "list", place)
    assert (code, out) == (0, f"no backups in {place}\n")
    code, out, _ = await run(capsys, "create", store, place, "--name", str(NAME), "--json")
    made = json.loads(out)
    assert code == 0 and made["previous"] is None and made["sharedBytes"] == 0 and made["key"] is None
    assert made["address"].startswith(f"{place}/lab/broker-a/")
    code, out, _ = await run(capsys, "create", store, place, "--name", str(NAME))
    assert code == 0 and f"0 bytes stored, {made['committed']} bytes shared with {made['id']}" in out
    code, out, _ = await run(capsys, "list", place, "--json")
    assert code == 0 and [each["broker"] for each in json.loads(out)] == ["broker-a", "broker-a"]
    code, out, _ = await run(capsys, "verify", f"{place}/lab/broker-a/latest")
    assert code == 0 and out.endswith("sound\n")
    code, out, _ = await run(capsys, "restore", made["address"], to, "--json")
    assert code == 0 and json.loads(out)["messages"] == 30 and json.loads(out)["sound"]
    code, _, err = await run(capsys, "restore", made["address"], to)
    assert code == 2 and "is not empty" in err and err.count("\n") == 1
    code, out, _ = await run(capsys, "delete", made["address"], "--json")
    assert code == 0 and json.loads(out)["backups"] == [made["id"]] and json.loads(out)["objects"] == 0


async def test_damage_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "place"
    await fill(tmp_path / "store", 20)
    made = back_up(tmp_path / "store", place).manifest
    address = f"{place}/{NAME.folder}/{made.id}"
    path = place / NAME.folder / made.log[0].name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    code, out, _ = await run(capsys, "verify", address)
    assert code == 1 and f"{made.log[0].name} is damaged: its SHA-256 differs" in out and "1 damaged" in out
    code, _, err = await run(capsys, "restore", address, str(tmp_path / "to"))
    assert code == 1 and "its SHA-256 differs" in err and err.count("\n") == 1
    (place / NAME.folder / made.name).write_text("{}")
    code, out, _ = await run(capsys, "list", str(place))
    assert code == 1 and "is not a manifest" in out
    code, out, _ = await run(capsys, "list", str(place), "--json")
    assert code == 1 and "is not a manifest" in json.loads(out)[0]["fault"]


WRONG = [
    (("create", "STORE", "PLACE"), "does not contain the name of its broker: add --name CLUSTER/BROKER"),
    (("create", "STORE", "PLACE", "--name", "x"), "'x' is not of the form CLUSTER/BROKER"),
    (("create", "STORE", "PLACE", "--bytes-per-second", "fast"), "must be a number of bytes"),
    (("create", "STORE", "PLACE", "--http", "nowhere"), "must be host:port"),
    (("create", "PLACE", "PLACE", "--name", "a/b"), "is not a store: it has neither commitlog nor dledger-*/data"),
    (("create", "STORE", "ftp://x/y", "--name", "a/b"), "is a folder or s3://bucket/prefix"),
    (("create", "STORE", "PLACE", "--name", "a/b", "--key-file", "NONE"), "No such file"),
    (("verify", "PLACE/a/b"), "the address of a backup is PLACE/CLUSTER/BROKER/ID"),
    (("verify", "PLACE/a/b/latest"), "there is no backup of a/b"),
    (("verify", "PLACE/a/b/20261125T000000Z-abcd"), "there is no object a/b/backups/20261125T000000Z-abcd.json"),
    (("delete", "PLACE/a/b/latest"), "name the backups to delete by their ids"),
    (("restore", "PLACE/lab/broker-a/latest", "NONE", "--until-time", "2026-11-25"), "has no time zone"),
    (("restore", "PLACE/lab/broker-a/latest", "NONE", "--until-time", "noon"), "must be a time such as"),
    (("restore", "PLACE/lab/broker-a/latest", "NONE", "--until-offset", "0"), "must be a whole number from 1"),
    (("restore", "PLACE/lab/broker-a/latest", "NONE", "--group", "g"), "--group is for the backup of a member"),
    (("restore", "PLACE/lab/broker-a/latest", "STORE"), "is not empty"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
async def test_wrong_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    await fill(tmp_path / "STORE", 5)
    back_up(tmp_path / "STORE", tmp_path / "PLACE")
    found = [text.replace("PLACE", str(tmp_path / "PLACE"), 1) for text in arguments]
    found = [str(tmp_path / text) if text in ("STORE", "NONE") else text for text in found]
    code, out, err = await run(capsys, *found)
    assert code == 2 and said in err and out == ""
    assert not (tmp_path / "NONE").exists()


def test_rates_and_times() -> None:
    assert [_rate(text) for text in ("1", "2k", "3M", "4MiB", "1g")] == [1, 2048, 3 << 20, 4 << 20, 1 << 30]
    assert _time("1764066600000") == 1764066600000
    assert _time("2026-11-25T10:00:00Z") == _time("2026-11-25T11:00:00.000+01:00") == 1795600800000


async def test_a_key_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "key"
    code, out, _ = await run(capsys, "new-key", str(path))
    assert code == 0 and path.read_text().strip() not in out
    code, _, err = await run(capsys, "new-key", str(path))
    assert code == 2 and "File exists" in err
