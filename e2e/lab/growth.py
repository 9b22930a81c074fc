"""A group that is made of one member grows to three and to five under load, and shrinks again.

The way of an operator: `tally group add` and `tally group remove`, asked of the leader, one change after the other.
What may go wrong on the way does: a member is let in that cannot be reached, one that leads is taken out, and one that
is dead; one comes back with the disk that it had when it was taken out, one with an empty disk.

    n0 ─▶ n0 n1 n2 ─▶ + n3, away at first, n4 ─▶ kill -9 of the leader ─▶ without the leader, without a dead one
       ─▶ both again, one of them emptied ─▶ three of the five
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import time
from typing import Any

from lab.group import AdminError, Group, Member
from lab.group_load import Clients
from lab.ledger import Problems
from lab.measurements import Measurements, longest_pause_s
from lab.places import HOST, TALLY
from lab.processes import ProcessError
from lab.waiting import leader_of, served_again, until, whole

_COMMAND_S = 60
_AWAY_S = 2.0
_LEFT_S = 30.0


class Growth:
    """One run of the story. Every member of the group but the first is new to it."""

    def __init__(self, group: Group, clients: Clients, measured: Measurements, problems: Problems) -> None:
        self._group, self._clients, self._measured, self._problems = group, clients, measured, problems

    async def run(self, rng: random.Random) -> str:
        """What to say of it. ProcessError: something was not done, or not in time."""
        members = self._group.members
        begin_s = time.monotonic()
        for member in members[1:3]:
            member.launch()
            await self._add(member)
        grown_s = time.monotonic() - begin_s
        await self._add_one_that_is_away(members[3])
        members[4].launch()
        await self._add(members[4])
        await self._kill(await leader_of(self._group))

        leader = await leader_of(self._group)
        dead = rng.choice([member for member in self._group.belonging if member is not leader])
        await self._remove(leader, "the leader is removed")
        await asyncio.to_thread(leader.stop)
        dead.kill()
        await self._remove(dead, "a dead member is removed")
        await whole(self._group)

        leader.launch()  # with all that it had
        await self._add(leader)
        dead.empty()
        dead.launch()
        await self._add(dead)

        for member in rng.sample(self._group.belonging, 2):
            await self._remove(member, "a member is removed")
            await self._is_quiet(member)
            await asyncio.to_thread(member.stop)
        await whole(self._group)
        left = ", ".join(member.name for member in self._group.belonging)
        return f"1 to 3 members in {grown_s:.1f} s, to 5, and back to {left}"

    # -- changes -------------------------------------------------------------------------------------------------------

    async def _add(self, member: Member) -> None:
        """By the command, which waits until it votes."""
        begin_s = time.monotonic()
        await self._command("add", member)
        self._group.belong.add(member.number)
        await whole(self._group)
        end_s = time.monotonic()
        self._measured.add("member added, asked to complete", end_s - begin_s)
        self._note_pause("  a member is added", begin_s, end_s)

    async def _add_one_that_is_away(self, member: Member) -> None:
        """It is let in, is no voter while it is away, and holds nothing up."""
        leader = await leader_of(self._group)
        begin_s = time.monotonic()
        await self._asked(leader.admit, member.number, "voter")
        await asyncio.sleep(_AWAY_S)
        try:
            await asyncio.to_thread(leader.admit, member.number, "voter")
            self._problems.add(f"{member.name} became a voter although it is not running")
        except AdminError as error:
            if "does not answer" not in str(error):
                self._problems.add(f"{member.name} cannot be reached, but the error does not say so: {error}")
        self._note_pause("  a learner is away", begin_s, time.monotonic())
        member.launch()
        await self._add(member)

    async def _remove(self, member: Member, what: str) -> None:
        """By the command. To ask once more, as one does who did not get the answer, changes nothing."""
        begin_s = time.monotonic()
        await self._command("remove", member)
        self._group.belong.discard(member.number)
        await served_again(self._group, self._clients, time.monotonic(), what)
        end_s = time.monotonic()
        self._measured.add("member removed, asked to done", end_s - begin_s)
        self._note_pause(f"  {what}", begin_s, end_s)
        await whole(self._group)
        leader = await leader_of(self._group)
        await self._asked(leader.remove, member.number)

    async def _is_quiet(self, member: Member) -> None:
        """Removed, and still running: it follows, and raises no term."""

        def follows() -> bool:
            status = self._group.statuses().get(member.number)
            return status is not None and status.role == "follower"

        await until(self._group, follows, _LEFT_S, f"{member.name} follows")
        before = await self._term()
        await asyncio.sleep(_AWAY_S)
        if (after := await self._term()) != before:
            self._problems.add(f"after {member.name} was removed the term rose from {before} to {after}")

    async def _term(self) -> int:
        return max(status.term for status in (await asyncio.to_thread(self._group.statuses)).values())

    async def _kill(self, member: Member) -> None:
        since_s = time.monotonic()
        member.kill()
        self._measured.add(
            "  after kill -9 of one of five", await served_again(self._group, self._clients, since_s, "kill")
        )
        member.launch()
        await whole(self._group)

    def _note_pause(self, what: str, begin_s: float, end_s: float) -> None:
        self._measured.add(
            f"{what}, no send acknowledged", longest_pause_s(self._clients.acknowledged_probes(), begin_s, end_s)
        )

    # -- how they are asked --------------------------------------------------------------------------------------------

    async def _asked(self, call: Any, *arguments: Any) -> None:
        try:
            await asyncio.to_thread(call, *arguments)
        except AdminError as error:
            raise ProcessError(str(error)) from None

    async def _command(self, action: str, member: Member) -> None:
        """`tally group`. ProcessError: it ended with another status than 0."""
        leader = await leader_of(self._group)
        command = [str(TALLY), "group", action, member.name, "--http", f"{HOST}:{leader.http_port}", "--json"]
        command += ["--wait", str(_COMMAND_S)] if action == "add" else []
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False, timeout=_COMMAND_S + 30
        )
        if done.returncode != 0:
            raise ProcessError(f"tally group {action} {member.name} at {leader.name}: {done.stderr.strip()}")
        answer = json.loads(done.stdout)
        if not isinstance(answer.get("index"), int):
            self._problems.add(f"tally group {action} {member.name} answers {answer}")
