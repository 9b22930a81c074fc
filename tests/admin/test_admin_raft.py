"""The admin core and `tally raft` with a group of three real processes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from group_lab import NAME, GroupLab, until
from tally_process import tally

from tallystick.admin import Admin
from tallystick.admin.models import RaftGroup, Role, StepState

pytestmark = pytest.mark.process


async def test_a_group_is_shown_and_changed_over_the_port_of_brokers(tmp_path: Path) -> None:
    with GroupLab(tmp_path) as lab:
        leader = await lab.leader()
        await lab.ready()
        async with Admin(lab.nameserver, timeout=10.0) as admin:

            async def settled() -> RaftGroup | None:
                found = await admin.raft.groups()
                roles = [each.role for group in found for each in group.members]
                return found[0] if sorted(roles, key=str) == [Role.FOLLOWER, Role.FOLLOWER, Role.LEADER] else None

            group = await until("all members are registered", settled)
            assert (group.name, group.leader, group.problem) == (NAME, leader, None)
            assert [each.id for each in group.members] == [0, 1, 2] and all(each.voter for each in group.members)
            assert [each.address for each in group.members] == [lab.address(number) for number in range(3)]
            assert {each.phase for each in group.members} <= {"ready", "catching-up"}
            assert all(each.lag_bytes is not None for each in group.members) and group.committed is not None
            brokers = {each.address: each.role for each in await admin.brokers.list()}
            assert brokers[lab.address(leader)] is Role.LEADER

            target = (leader + 1) % 3
            planned = await admin.raft.transfer(NAME, target, dry_run=True)
            assert [step.state for step in planned.steps] == [StepState.PLANNED]
            assert planned.steps[0].before["leader"] == leader
            wrong = await admin.raft.add(NAME, 9)
            assert wrong.steps[0].state is StepState.FAILED
            assert "the address of n9 is unknown" in (wrong.steps[0].error or "")

            async def moved() -> bool | None:
                if await lab.leader() == target:
                    return True
                await admin.raft.transfer(NAME, target)
                return None

            await until("leadership is transferred", moved)
            lab.kill(leader)

            async def alone() -> RaftGroup | None:
                (found,) = await admin.raft.groups()
                dead = found.members[leader]
                return found if dead.connected is False and found.leader == target else None

            group = await until("the leader misses a member", alone)
            assert group.members[leader].role is Role.UNKNOWN and group.members[leader].voter
        where = ("--nameserver", lab.nameserver)
        shown = await asyncio.to_thread(tally, "raft", "show", NAME, *where, "--json")
        (found,) = json.loads(shown.stdout)
        assert found["leader"] == target
        lab.start(leader)
        await lab.ready()
        removed = await asyncio.to_thread(tally, "raft", "remove", NAME, f"n{leader}", *where)
        assert removed.returncode == 0, removed.stderr
        added = await asyncio.to_thread(tally, "raft", "add", NAME, f"n{leader}", *where, "--json")
        assert added.returncode == 0, added.stderr
        assert json.loads(added.stdout)["steps"][0]["after"]["role"] == "voter"
        assert (await lab.status(target))["voters"] == [0, 1, 2]
