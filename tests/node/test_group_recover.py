"""A group that lost its majority for good: one member becomes the only voter, and the old members cannot disturb it."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from group_lab import NAME, GroupLab, Ledger, until
from tally_process import tally

from tallystick.node.core.client import ClusterClient
from tallystick.replication.bounds import TERM_JUMP_MAX

pytestmark = pytest.mark.process


def recover(folder: Path, *more: str) -> tuple[int, str, str]:
    done = tally("group", "recover", str(folder), *more, cwd=folder)
    return done.returncode, done.stdout, done.stderr


async def test_a_lost_majority_is_given_up(tmp_path: Path) -> None:
    with GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver) as client:
            leader, sent = await lab.with_topic(client, "T", 2)
            await sent.produce(200, 4, b"before")
            others = [number for number in range(3) if number != leader]
            survivor, lost = others
            term = (await lab.status(leader))["term"]
            for number in (0, 1, 2):
                lab.kill(number)
            store = tmp_path / f"n{survivor}/store"
            await asyncio.to_thread(the_command_asks_first, store)
            code, out, _ = await asyncio.to_thread(recover, store, "--accept-loss", "--yes", NAME)
            assert code == 0 and f"n{survivor} is the only voter of {NAME}" in out
            code, out, _ = await asyncio.to_thread(recover, store, "--accept-loss", "--yes", NAME)
            assert code == 0 and "only voter already" in out

            await asyncio.to_thread(lab.start, survivor)
            assert await lab.leader() == survivor
            status = await lab.status(survivor)
            assert status["voters"] == [survivor] and status["term"] > term + TERM_JUMP_MAX
            await it_shows_what_was_done(lab, survivor)
            await lab.master(client, survivor)
            sent.check(await sent.read(lab.address(survivor)))

            sent.forget_address()  # a client that has the old leader's would send to it
            await one_old_member_leads_nothing(lab, survivor, lost)
            await the_old_majority_does_not_disturb(lab, client, survivor, [leader, lost], sent)

            for number in (leader, lost):  # both, before one of them starts again
                lab.kill(number)
                shutil.rmtree(tmp_path / f"n{number}/store")
            for number in (leader, lost):
                await asyncio.to_thread(lab.start, number)
                http = lab.members[survivor].places["http"]
                done = await asyncio.to_thread(tally, "group", "add", f"n{number}", "--http", http, cwd=tmp_path)
                assert done.returncode == 0, done.stderr
            await lab.ready()
            assert sorted((await lab.status(survivor))["voters"]) == [0, 1, 2]
            await sent.produce(50, 2, b"after")
            for number in range(3):
                await lab.ready(number)
                await has_all(sent, lab, number)


def the_command_asks_first(store: Path) -> None:
    code, out, err = recover(store)
    assert code == 0 and "nothing was changed" in out and "last entry" in out
    for given in ((), ("--yes", "group-b")):
        code, _, err = recover(store, "--accept-loss", *given)
        assert code == 2 and f"--yes must be the name of the group, {NAME}" in err
    code, out, _ = recover(store, "--json")
    assert json.loads(out)["before"]["voters"] == [0, 1, 2] and not json.loads(out)["done"]


async def it_shows_what_was_done(lab: GroupLab, survivor: int) -> None:
    process = lab.members[survivor]
    node = json.loads((await asyncio.to_thread(process.get, "/node"))[1])
    assert node["recovered"]["reason"] == "accepted-loss" and node["recovered"]["voters"] == [0, 1, 2]
    metrics = (await asyncio.to_thread(process.get, "/metrics"))[1]
    lines = [line for line in metrics.splitlines() if line.startswith("tally_group_recovered_timestamp_seconds")]
    assert float(lines[0].split()[-1]) * 1000 == pytest.approx(node["recovered"]["at"], abs=1)
    assert "was made the only voter of its group: a lost majority was given up" in process.log.read_text()


async def one_old_member_leads_nothing(lab: GroupLab, survivor: int, old: int) -> None:
    """It asks the survivor, which gives it no vote and keeps its term."""
    before = await lab.status(survivor)
    await asyncio.to_thread(lab.start, old)

    async def refused() -> bool | None:
        return (await lab.status(old))["refused_messages"] >= 3 or None

    await until("the old member has asked for votes and got answers", refused)
    found, after = await lab.status(old), await lab.status(survivor)
    assert found["leader"] is None and not found["broker"]["leads"] and found["voters"] == [0, 1, 2]
    assert (after["term"], after["leader"], after["voters"]) == (before["term"], survivor, [survivor])


async def the_old_majority_does_not_disturb(
    lab: GroupLab, client: ClusterClient, survivor: int, old: list[int], sent: Ledger
) -> None:
    """Two of three members come back with their old disks: a majority of the old configuration."""
    before = await lab.status(survivor)
    for number in old:
        if number not in lab.members:
            await asyncio.to_thread(lab.start, number)

    async def elected() -> int | None:
        found = [await lab.status(number) for number in old]
        return next((each["leader"] for each in found if each["leader"] is not None), None)

    assert await until("the old members have elected one of them", elected) in old
    assert (await client.masters())[NAME] == lab.address(survivor)
    await sent.produce(50, 2, b"meanwhile")
    after = await lab.status(survivor)
    assert (after["term"], after["leader"], after["voters"]) == (before["term"], survivor, [survivor])
    assert after["broker"]["leads"]
    sent.check(await sent.read(lab.address(survivor)))


async def has_all(sent: Ledger, lab: GroupLab, number: int) -> None:
    """Returns when the member serves all that was acknowledged."""

    async def look() -> bool | None:
        found = await sent.read(lab.address(number))
        return all(found.get(place) == body for body, place in sent.acknowledged.items()) or None

    await until(f"n{number} has all", look)


async def test_it_needs_a_stopped_member(tmp_path: Path) -> None:
    with GroupLab(tmp_path) as lab:
        await lab.leader()
        code, _, err = await asyncio.to_thread(recover, tmp_path / "n0/store", "--accept-loss", "--yes", NAME)
        assert code == 2 and "is already open: process" in err
    (tmp_path / "empty").mkdir()
    code, _, err = recover(tmp_path / "empty")
    assert code == 2 and "has no log of a member of a group" in err
