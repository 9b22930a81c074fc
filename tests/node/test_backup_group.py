"""Backups of real brokers under load: nothing that was acknowledged before is missing, and a new group continues."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import group_lab
import pytest
from backup_lab import log_bytes
from group_lab import GroupLab, Ledger
from tally_process import TallyProcess, command, environment, tally

from tallystick.node.core.client import ClusterClient
from tallystick.store.engine.restoring import FILE_NAME
from tallystick.store.tables import decode
from tallystick.store.verify.report import verify

pytestmark = pytest.mark.process


async def run(*arguments: str, code: int = 0) -> str:
    done = await asyncio.to_thread(tally, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


class RestoredGroup(GroupLab):
    """Starts with the member whose folder has a restored store; the others are empty."""

    def start(self, number: int, *, bootstrap: bool = False) -> TallyProcess:
        if bootstrap and number:
            return self.members[0]
        return super().start(number, bootstrap=False)


async def test_a_group_under_load_is_restored_as_a_new_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    every: list[dict[str, Any]] = []
    with GroupLab(tmp_path / "old") as lab:
        async with ClusterClient(lab.nameserver) as client:
            leader, sent = await lab.with_topic(client, "T", 2)
            await sent.produce(200, 4, b"before")
            await run("consume", "T", "--group", "readers", "--commit", "--once", "--nameserver", lab.nameserver)
            load = asyncio.create_task(sent.produce(None, 4, b"during"))
            try:
                for round_ in range(3):
                    known = dict(sent.acknowledged)
                    number = (leader + round_) % 3  # the leader and both followers, each with a part of the pieces
                    store, http = tmp_path / f"old/n{number}/store", lab.members[number].places["http"]
                    await lab.ready(number)
                    made = json.loads(await run("backup", "create", str(store), str(place), "--http", http, "--json"))
                    assert (made["sharedBytes"] > 0) is (round_ > 0)
                    every.append(made)
                other = lab.members[(number + 1) % 3].places["http"]
                assert await run("backup", "create", str(store), str(place), "--http", other, code=2) == ""
            finally:
                load.cancel()
                with suppress(asyncio.CancelledError):
                    await load
    await run("backup", "verify", made["address"])
    await the_group_at_a_point(tmp_path, every[0], made)

    to = tmp_path / "new/n0/store"
    new = ("--group", "group-b", "--member", "n0")
    assert "restored" in await run("backup", "restore", made["address"], str(to), *new)
    assert verify(to).sound
    monkeypatch.setattr(group_lab, "NAME", "group-b")
    with RestoredGroup(tmp_path / "new") as lab:
        async with ClusterClient(lab.nameserver) as client:
            assert await lab.leader() == 0
            for number in (1, 2):
                await asyncio.to_thread(lab.start, number)
                await run("group", "add", f"n{number}", "--http", lab.members[0].places["http"])
            await lab.master(client, 0)
            again = Ledger(client, "T", 2)
            found = await again.read(lab.address(0))
            for body, where in known.items():
                assert found.get(where) == body, f"{body!r} was acknowledged before the backup began"
            await again.produce(50, 2, b"after")
            out = await run("consume", "T", "--group", "readers", "--commit", "--once", "--nameserver", lab.nameserver)
            lines = out.splitlines()
            assert not any(line.startswith("before") for line in lines), "the group continues where it stopped"
            assert sum(line.startswith("during") for line in lines) == sum(
                body.startswith(b"during") for body in found.values()
            )
            for number in range(3):
                await lab.ready(number)
                everything = await again.read(lab.address(number))
                again.check(everything)
            node = json.loads((await asyncio.to_thread(lab.members[0].get, "/node"))[1])
            assert node["recovered"]["reason"] == "restored"


async def the_group_at_a_point(tmp_path: Path, early: dict[str, Any], last: dict[str, Any]) -> None:
    """The last backup, up to where an early one ends, has the log and the tables of the early one."""
    first, cut, end = tmp_path / "first", tmp_path / "cut", early["committed"]
    await run("backup", "restore", early["address"], str(first), "--member", "n5")
    out = await run("backup", "restore", last["address"], str(cut), "--member", "n5", "--until-offset", str(end))
    assert "no backup has the tables" not in out and verify(cut).sound
    found = [log_bytes(each / "dledger-n5/data", 0, end) for each in (first, cut)]
    assert found[0] == found[1] != b""
    out = await run("backup", "restore", last["address"], str(tmp_path / "topic"), "--topic", "T")
    assert "restored" in out and verify(tmp_path / "topic").sound
    config = tmp_path / "topic/config"
    assert list(decode((config / "topics.json").read_bytes())["topicConfigTable"]) == ["T"]
    assert "T@readers" in decode((config / "consumerOffset.json").read_bytes())["offsetTable"]


async def test_a_broker_without_a_group_under_load(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with TallyProcess(tmp_path) as process:
        async with ClusterClient(process.nameserver) as client:
            await client.create_topic(process.places["broker"], "T", 2)
            sent = Ledger(client, "T", 2)
            sent._address = process.places["broker"]
            await sent.produce(100, 4, b"before")
            load = asyncio.create_task(sent.produce(None, 4, b"during"))
            try:
                for _ in range(3):
                    known = dict(sent.acknowledged)
                    made = json.loads(
                        await run("backup", "create", str(process.store), str(place), "--name", "c/b", "--json")
                    )
                to = tmp_path / "to"
                await run("backup", "restore", f"{place}/c/b/latest", str(to))
            finally:
                load.cancel()
                with suppress(asyncio.CancelledError):
                    await load
        http = process.places["http"]
        named = json.loads(await run("backup", "create", str(process.store), str(place), "--http", http, "--json"))
        assert (named["cluster"], named["broker"]) == ("DefaultCluster", "broker-a")
    assert made["sharedBytes"] > 0 and verify(to).sound
    await run("backup", "restore", made["address"], str(tmp_path / "again/data/store"))
    with TallyProcess(tmp_path / "again") as process:
        async with ClusterClient(process.nameserver) as client:
            found = await Ledger(client, "T", 2).read(process.places["broker"])
            for body, where in known.items():
                assert found.get(where) == body, f"{body!r} was acknowledged before the backup began"


def killed(seconds: float, *arguments: str) -> bool:
    """Runs a command and kills it after this time; whether it was killed."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
    )
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True


def test_killed_commands_leave_no_backup_and_no_store(tmp_path: Path) -> None:
    with TallyProcess(tmp_path) as process:
        sent = ("produce", "T", "--count", "4000", "--size", "3000", "--nameserver", process.nameserver)
        assert tally(*sent).returncode == 0
    place, dice, kills = str(tmp_path / "place"), random.Random(1), 0
    create = ("backup", "create", str(process.store), place, "--name", "c/b", "--bytes-per-second", "8M")
    for _ in range(4):
        kills += killed(dice.uniform(0.15, 1.2), *create)
        listed = tally("backup", "list", place, "--json")
        for each in json.loads(listed.stdout):
            assert tally("backup", "verify", each["address"]).returncode == 0
    assert kills, "the rate leaves time for a kill"
    assert tally(*create[:-2]).returncode == 0
    assert tally("backup", "verify", f"{place}/c/b/latest").returncode == 0
    kills = 0
    for _ in range(4):
        shutil.rmtree(tmp_path / "to", ignore_errors=True)
        was_killed = killed(dice.uniform(0.15, 0.8), "backup", "restore", f"{place}/c/b/latest", str(tmp_path / "to"))
        kills += was_killed
        if (tmp_path / "to" / FILE_NAME).exists():
            refused = tally("broker", "--dir", str(tmp_path / "to"), "--port", "0", "--http-port", "-1")
            assert refused.returncode == 2 and "did not finish" in refused.stderr
            assert tally("store", "repair", str(tmp_path / "to")).returncode == 2
        elif (tmp_path / "to").exists() and any((tmp_path / "to").iterdir()):
            assert verify(tmp_path / "to").sound
    assert kills
