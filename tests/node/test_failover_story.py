"""The logs of three processes explain a failover: who led, how long that leader was silent, and who voted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from group_lab import NAME, GroupLab, until
from lab.ledger import Problems
from lab.roles import Reign, check_roles

pytestmark = pytest.mark.process

ROLES = re.compile(r"n\d: (became leader|follows|lost leadership|asks for votes)")
ELECTED = re.compile(rf"n(\d): became leader of group {NAME} in term (\d+) \(votes: ([n0-9, ]+); (.+)\)")


def story(lab: GroupLab, number: int) -> list[str]:
    """The messages that a member logged about roles, over all its processes."""
    lines = (lab.folder / f"n{number}" / "log.txt").read_text().splitlines()
    return [text for line in lines if ROLES.match(text := json.loads(line)["message"])]


async def test_three_logs_explain_a_failover(tmp_path: Path) -> None:
    with GroupLab(tmp_path, "logFormat=json") as lab:
        await lab.ready()
        first = await lab.leader()
        killed_term = int((await lab.status(first))["term"])
        lab.kill(first)
        await lab.leader()
        lab.start(first)
        await lab.ready()

        async def at_rest() -> tuple[int, int] | None:
            statuses = [await lab.status(number) for number in range(3)]
            leaders = {(status["term"], status["leader"]) for status in statuses}
            ((term, leader), *others) = leaders
            return None if others or leader is None else (int(term), int(leader))

        term, leader = await until("all members name one leader", at_rest)
        logs = {number: story(lab, number) for number in range(3)}
        elections = [match for log in logs.values() for text in log if (match := ELECTED.fullmatch(text))]
        elections.sort(key=lambda match: int(match[2]))
        failover = next(match for match in elections if int(match[2]) > killed_term)
        survivors = [number for number in range(3) if number != first]
        assert int(failover[1]) in survivors
        assert failover[3] == ", ".join(f"n{number}" for number in survivors)
        assert re.fullmatch(rf"\d+ ms after n{first} was last heard", failover[4]), failover[0]

        problems, now = Problems(), {f"n{number}": Reign(term, leader) for number in range(3)}
        check_roles({f"n{number}": "\n".join(log) for number, log in logs.items()}, now, problems)
        assert not problems.count, problems.lines()
        for number, log in logs.items():
            assert "asks for votes" not in log[-1], f"n{number} does not end with the last leader: {log}"
