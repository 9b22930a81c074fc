"""Mistakes that a driver can make, each made once: the scenarios of the other tests have to notice (D1 to D4, S1, S12).

They show that a test that passes says something. What is noticed is a promise that was broken, or a group that does not
come back; where chance has a part there are some attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import member_lab
import pytest
from member_lab import Group, until

from tallystick.replication.effects import Effect, Write
from tallystick.replication.ledger.vote import VoteFile
from tallystick.replication.member.applier import Applier
from tallystick.replication.member.disk import MemberDisk
from tallystick.replication.member.driver import Driver
from tallystick.replication.member.log_driver import LogDriver
from tallystick.replication.member.outbox import Outbox
from tallystick.replication.member.special import SpecialEntries
from tallystick.replication.member.upkeep import Upkeep

pytestmark = pytest.mark.simulation


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_lab, "PATIENCE_S", 4.0)


async def noticed(scenario: Callable[[Path], Any], tmp_path: Path, attempts: int = 4) -> None:
    for attempt in range(attempts):
        try:
            await scenario(tmp_path / str(attempt))
        except Exception as error:
            print(f"attempt {attempt}: {type(error).__name__}: {str(error)[:300]}")
            return
    pytest.fail("no check found the mutation")


async def all_lose_power(root: Path) -> None:
    async with Group(root) as group:
        for round_ in range(3):
            await group.put_somehow(20)
            await group.put_somehow(20)
            await asyncio.gather(*(node.kill(round_, 0.0) for node in group.nodes))
            await asyncio.gather(*(node.start(group.addresses) for node in group.nodes))
        await group.put_somehow()
        await group.level()


async def test_counting_what_is_only_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D2, D3: acknowledged before it is synced."""

    def counted(self: LogDriver, now: float) -> Sequence[Effect]:
        return self._raft.synced(now, self._ledger.last_index)

    written = LogDriver.write

    def write(self: LogDriver, effect: Write) -> None:
        written(self, effect)
        self._calls.then(self._counted)

    def slow(self: Any) -> None:
        """The disk does not come to it before the power goes."""

    monkeypatch.setattr(LogDriver, "_counted", counted)
    monkeypatch.setattr(LogDriver, "write", write)
    monkeypatch.setattr("tallystick.replication.member.log_writer.LogWriter.request_sync", slow)
    original = LogDriver.log_written

    def log_written(self: LogDriver) -> None:
        original(self)
        self._calls.call(self._counted)

    monkeypatch.setattr(LogDriver, "log_written", log_written)
    monkeypatch.setattr(Upkeep, "save_mark", lambda self: None)
    await noticed(all_lose_power, tmp_path)


async def test_a_vote_that_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D1: after a restart a member knows neither its term nor its vote."""

    async def scenario(root: Path) -> None:
        async with Group(root) as group:
            for _ in range(3):
                leader = await group.leader()
                await group.put(leader, 5)
                await group.level()
                terms = [node.up.status().term for node in group.nodes]
                await asyncio.gather(*(node.kill(1, 0.0) for node in group.nodes))
                await asyncio.gather(*(node.start(group.addresses) for node in group.nodes))
                for node, term in zip(group.nodes, terms, strict=True):
                    record = node.disk.vote.record
                    assert record.term >= term, "the term went back"

    monkeypatch.setattr(MemberDisk, "save_vote", lambda self, effect: None)
    await noticed(scenario, tmp_path)


async def test_entries_that_are_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6: what no majority had stays in the log of who had it."""

    async def scenario(root: Path) -> None:
        async with Group(root) as group:
            await group.put_somehow(5)
            old = await group.leader()
            old.up.set_addresses({each.id: ("127.0.0.1", 1) for each in group.nodes})
            group.stage(old, 5)
            await until(lambda: old.up.ledger.synced_index == old.up.ledger.last_index)
            rest = [node for node in group.nodes if node is not old]
            new = await group.leader(among=rest)
            await group.put(new, 5)
            old.up.set_addresses(group.addresses)
            await group.level()

    await scenario(tmp_path / "sound")
    monkeypatch.setattr(Driver, "_truncate", lambda self, effect: None)
    await noticed(scenario, tmp_path)


async def test_effects_after_one_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a list whose write failed is carried out: what is not there is said to be."""

    async def scenario(root: Path) -> None:
        async with Group(root) as group:
            await group.put_somehow(5)
            leader = await group.leader()
            node = next(each for each in group.nodes if each is not leader)
            other = next(each for each in group.nodes if each not in (leader, node))
            await other.kill()
            node.door.fail("write", "data/00000000000000000000", 28, times=1)
            last, bodies = group.stage(leader, 5)
            try:
                async with asyncio.timeout(0.3):
                    await leader.up.committed(last)
            except TimeoutError:
                return
            group.acknowledge(last, bodies)
            ledger = node.up.ledger
            assert ledger.last_index >= last, "acknowledged and not there"

    def effect_failed(self: LogDriver, effect: Effect, error: OSError) -> None:
        if isinstance(effect, Write):
            last = effect.request.last_index
            self._calls.call(lambda now: self._raft.synced(now, last))

    monkeypatch.setattr(LogDriver, "effect_failed", effect_failed)
    monkeypatch.setattr(LogDriver, "_disk", lambda self, now, state: [])
    await noticed(scenario, tmp_path)


async def test_applying_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S12: what was applied before the start is applied again."""
    find = SpecialEntries.find

    async def scenario(root: Path) -> None:
        async with Group(root) as group:
            leader = await group.leader()
            index = leader.up.propose(member_lab.EntryKind.METADATA, b"x")
            await leader.up.committed(index)
            await group.level()
            node = group.nodes[0]
            state = node.state
            await node.kill()
            node.state = state
            await node.start(group.addresses)
            await group.level()
            assert node.state.applied == [(index, b"x")]
            assert not node.fatal, node.fatal

    def find_all(self: SpecialEntries, first: int) -> None:
        find(self, 0)

    def commit_up_to(self: Applier, index: int) -> None:
        self.applied_index = -1
        original(self, index)

    original = Applier.commit_up_to
    await scenario(tmp_path / "sound")
    monkeypatch.setattr(SpecialEntries, "find", find_all)
    monkeypatch.setattr(Applier, "commit_up_to", commit_up_to)
    await noticed(scenario, tmp_path)


async def test_doubt_that_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D9: a member that acknowledged before it synced and lost its power counts at once."""

    async def scenario(root: Path) -> None:
        async with Group(root, settings=member_lab.ASYNCHRONOUS) as group:
            leader = await group.leader()
            node, other = (each for each in group.nodes if each is not leader)
            await other.kill()
            await group.put(leader, 20)
            await until(lambda: node.up.ledger.last_index >= leader.up.committed_index)
            node.door.lie("sync", "data/")
            await group.put(leader, 20)
            await node.kill(1, 0.0)
            await leader.kill()  # who has the entries is away, and comes back last
            node.door.heal()
            await asyncio.gather(node.start(group.addresses), other.start(group.addresses))
            try:
                await group.put(await group.leader(among=[node, other]), 5)
            except AssertionError:
                pass  # as required: a majority with a possible loss elects no leader
            await leader.start(group.addresses)
            await group.put_somehow()
            await group.level()
            assert not leader.fatal, leader.fatal

    await scenario(tmp_path / "sound")
    monkeypatch.setattr(VoteFile, "note_loss", lambda self, loss: None)
    await noticed(scenario, tmp_path)


async def test_a_leader_that_does_not_look_at_what_it_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S13: the others refuse damage from the leader's disk, and no member repairs it."""
    refused = 0

    async def scenario(root: Path) -> None:
        nonlocal refused
        async with Group(root) as group:
            leader = await group.leader()
            node = next(each for each in group.nodes if each is not leader)
            await node.kill()
            last = 0
            for _ in range(3):
                last = await group.put(leader, 60, 500)
            assert last > 150, "there is a sealed segment"
            path = leader.folder / "data" / f"{0:020}"
            pos = leader.up.ledger.pos_of(50) + 200
            with path.open("r+b") as file:
                file.seek(pos)
                file.write(b"\xff")
            await node.start(group.addresses)
            try:
                await until(lambda: node.up.committed_index >= last, "it gets all")
            finally:
                refused = node.up.refused_ranges
            await group.level()

    await scenario(tmp_path / "sound")
    monkeypatch.setattr(Outbox, "_is_sound", lambda self, first: True)
    await noticed(scenario, tmp_path, attempts=1)
    assert refused > 0, "the damage did not spread"
