"""The log lines about elections: which member leads, since when there was no leader, and why a leader stepped down."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from member_lab import Group, until

from tallystick.replication.effects import Role
from tallystick.replication.member.role_log import RoleLog


def test_each_change_has_a_line_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tallystick.replication")
    now = [0.0]
    log = RoleLog(0, "broker-a", lambda: now[0])

    def told(*change: object) -> list[str]:
        caplog.clear()
        now[0] += 2.0
        log.changed(*change)  # type: ignore[arg-type]
        return caplog.messages

    assert told(Role.FOLLOWER, 6, 1, "", (), None) == ["n0: follows n1, leader of group broker-a in term 6"]
    assert told(Role.FOLLOWER, 6, 1, "", (), 0.1) == []
    assert told(Role.PRE_CANDIDATE, 6, None, "", (), 1.4) == [
        "n0: asks for votes to lead group broker-a after term 6: 1400 ms after n1 was last heard"
    ]
    assert told(Role.PRE_CANDIDATE, 6, None, "", (), 2.4) == []
    assert told(Role.LEADER, 7, 0, "", (2, 0), 0.412) == [
        "n0: became leader of group broker-a in term 7 (votes: n0, n2; 412 ms after n1 was last heard)"
    ]
    assert told(Role.FOLLOWER, 8, 2, "n2 leads term 8", (), 9.0) == [
        "n0: lost leadership of group broker-a, now in term 8: n2 leads term 8",
        "n0: follows n2, leader of group broker-a in term 8",
    ]


def test_a_new_term_of_the_same_leader_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tallystick.replication")
    log = RoleLog(0, "broker-a", lambda: 0.0)
    log.changed(Role.FOLLOWER, 6, 1, "", (), None)
    log.changed(Role.FOLLOWER, 7, None, "", (), 0.1)
    log.changed(Role.FOLLOWER, 7, 1, "", (), 0.1)
    assert [line.rpartition(" ")[2] for line in caplog.messages] == ["6", "7"]


def test_a_storm_of_elections_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tallystick.replication")
    now = [0.0]
    log = RoleLog(0, "broker-a", lambda: now[0])
    for number in range(1000):
        now[0] += 0.01
        log.changed(Role.LEADER, number, 0, "", (0, 1), 0.1)
        log.changed(Role.FOLLOWER, number, None, "no majority answered for 1 s", (), 0.1)
    assert len(caplog.messages) <= 20 + 2 * 10
    now[0] += 1.0
    log.changed(Role.LEADER, 2001, 0, "", (0, 1), 0.1)
    assert caplog.messages[-1].startswith("n0: became leader of group broker-a in term 2001 (")
    assert caplog.messages[-1].endswith(" more since the last such line)")


async def test_a_leader_that_dies_is_followed_by_a_line_that_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tallystick.replication")
    async with Group(tmp_path) as group:
        old = await group.leader()
        await until(lambda: all(node.up.leader == old.id for node in group.nodes))
        caplog.clear()
        await old.kill()
        new = await group.leader()
        lines = [line for line in caplog.messages if "became leader" in line]  # more than one on a very busy machine
        assert f"after n{old.id} was last heard)" in lines[0]
        assert any(line.startswith(f"n{new.id}: became leader of group group in term ") for line in lines)


async def test_debug_shows_each_effect_and_no_contents(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tallystick.replication")
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await group.put(leader, 3)
        await group.level()
    for effect in (
        "SaveVote(term=",
        "RoleChanged(role=",
        "Send(message=AppendRequest(",
        "Write(request=",
        "Commit(index=",
    ):
        assert any(f": {effect}" in line for line in caplog.messages), effect
    assert "message 1" not in caplog.text and "payload" not in caplog.text
