"""Faults of a group under load, one after the other, each to its end, with the times that they took.

A fault ends when the members that it hit are back. Times count from the moment of the fault to the end of the first
send that began after it, according to the clients' probes (`group_load`).
"""

from __future__ import annotations

import asyncio
import random
import time

from lab.damage import fill, flip_a_byte
from lab.full_all import FullAll
from lab.group import AdminError, Group, Member
from lab.group_load import Clients
from lab.growth import Growth
from lab.ledger import Problems
from lab.measurements import Measurements, longest_pause_s
from lab.processes import ProcessError
from lab.replicas import difference, sealed_segments
from lab.schedule import Fault
from lab.waiting import WHOLE_S, leader_of, served_again, until, whole

LEADER_CHANGE = "leader change, all kinds"
TRANSFER, TRANSFER_PAUSE = "transfer, asked to done", "transfer, no send acknowledged"

_REPAIR_S = 180.0  # a member begins to look 60 s after its start
_FULL_S = 90.0
_ALONE_S = 0.6  # shorter than a leader continues without a majority


class Faults:
    """Inflicts one after the other on a group under load, and measures."""

    def __init__(
        self, group: Group, clients: Clients, measured: Measurements, problems: Problems, pause_s: float
    ) -> None:
        """`pause_s`: how long SIGSTOP lasts."""
        self._group, self._clients, self._measured, self._problems = group, clients, measured, problems
        self._pause_s = pause_s
        measured.limit(LEADER_CHANGE, 2.0)
        measured.limit(TRANSFER, 0.3)

    async def inflict(self, fault: Fault) -> str:
        """One fault, from its begin to the return of who was hit; what to say of it. ProcessError: it never ended."""
        leader = await leader_of(self._group)
        followers = [member for member in self._group.members if member is not leader]
        follower = followers[fault.draw % len(followers)]
        victim = follower if fault.kind.endswith("-follower") else leader
        match fault.kind:
            case "kill-leader" | "kill-follower":
                return await self._kill(fault, victim, empty=False)
            case "empty-leader" | "empty-follower":
                return await self._kill(fault, victim, empty=True)
            case "pause-leader" | "pause-follower":
                return await self._pause(fault, victim)
            case "flip-leader" | "flip-follower":
                return await self._flip(fault, victim)
            case "full-leader" | "full-follower":
                return await self._fill(fault, victim)
            case "stop-leader":
                return await self._stop(fault, leader)
            case "kill-all":
                return await self._kill_all(fault)
            case "lose-leader":
                return await self._lose(fault, leader, followers)
            case "transfer":
                return await self._transfer(leader, follower)
            case "full-all":
                return await FullAll(self._group, self._clients, self._measured, self._problems).run(fault)
            case "grow":
                growth = Growth(self._group, self._clients, self._measured, self._problems)
                return await growth.run(random.Random(fault.draw))
        raise AssertionError(f"unknown kind of fault: {fault.kind}")

    async def _changed(self, since_s: float, fault: Fault, *, leader: bool) -> str:
        """Waits for service, and notes the time: of a leader's change, or of a disturbance by a follower."""
        seconds = await served_again(self._group, self._clients, since_s, fault.kind)
        if leader:
            self._measured.add(LEADER_CHANGE, seconds)
        self._measured.add(f"  after {fault.kind}", seconds)
        return f"served again after {seconds * 1000:.0f} ms"

    async def _back(self, member: Member, what: str) -> None:
        """Starts a member, and notes how long it takes to be whole."""
        member.launch()
        seconds = await whole(self._group)
        self._measured.add(f"member complete after {what}", seconds)

    async def _kill(self, fault: Fault, victim: Member, *, empty: bool) -> str:
        since_s = time.monotonic()
        victim.kill()
        told = await self._changed(since_s, fault, leader=fault.kind == "kill-leader")
        await asyncio.sleep(fault.down_s)
        if empty:
            victim.empty()
        await self._back(victim, "its disk was emptied" if empty else "kill -9")
        return f"{victim.name}, {told}"

    async def _stop(self, fault: Fault, victim: Member) -> str:
        since_s = time.monotonic()
        stopping = asyncio.create_task(asyncio.to_thread(victim.stop))
        told = await self._changed(since_s, fault, leader=False)  # it hands over: no election is waited for
        await stopping
        await asyncio.sleep(fault.down_s)
        await self._back(victim, "an orderly stop")
        return f"{victim.name}, {told}"

    async def _pause(self, fault: Fault, victim: Member) -> str:
        since_s = time.monotonic()
        victim.pause()
        told = await self._changed(since_s, fault, leader=fault.kind == "pause-leader")
        await asyncio.sleep(max(0.0, self._pause_s - (time.monotonic() - since_s)))
        victim.resume()
        self._measured.add("member complete after SIGSTOP", await whole(self._group))
        return f"{victim.name} for {self._pause_s:g} s, {told}"

    async def _kill_all(self, fault: Fault) -> str:
        for member in self._group.members:
            member.kill()
        await asyncio.sleep(fault.down_s)
        since_s = time.monotonic()
        for member in self._group.members:
            member.launch()
        seconds = await served_again(self._group, self._clients, since_s, fault.kind)
        self._measured.add("start of all three members", seconds)
        return f"served {seconds * 1000:.0f} ms after the start"

    async def _lose(self, fault: Fault, leader: Member, followers: list[Member]) -> str:
        """What only the leader has goes with its disk. Followers stand still first: on one machine they would otherwise
        have everything in the moment in which it was sent, and an answer that came too early would never be found."""
        for member in followers:
            member.pause()
        await asyncio.sleep(_ALONE_S)
        for member in self._group.members:
            member.kill()
        leader.empty()
        await asyncio.sleep(fault.down_s)
        since_s = time.monotonic()
        for member in self._group.members:
            member.launch()
        seconds = await served_again(self._group, self._clients, since_s, fault.kind)
        self._measured.add("start of all three members, one of them emptied", seconds)
        return f"{leader.name} and its disk, served {seconds * 1000:.0f} ms after the start"

    async def _transfer(self, leader: Member, target: Member) -> str:
        begin_s = time.monotonic()
        try:
            await asyncio.to_thread(leader.transfer, target.number)
        except AdminError as error:
            raise ProcessError(f"transfer from {leader.name} to {target.name}: {error}") from None
        seconds = time.monotonic() - begin_s
        await asyncio.sleep(1.0)
        if (now := await leader_of(self._group)) is not target:
            self._problems.add(f"transfer from {leader.name} to {target.name} was done, and {now.name} leads")
        end_s = time.monotonic()
        pause_s = longest_pause_s(self._clients.acknowledged_probes(), begin_s, end_s)
        await asyncio.sleep(max(0.0, begin_s + 4.0 - time.monotonic()))  # until the last of them is decided
        failed = self._clients.failed_probes(begin_s, end_s)
        repeated = self._clients.repeated_probes(begin_s, end_s)
        self._measured.add(TRANSFER, seconds)
        self._measured.add(TRANSFER_PAUSE, pause_s)
        self._measured.count("transfers, sends that failed", failed)
        self._measured.count("transfers, sends that took a second try", repeated)
        if failed:
            self._problems.add(f"transfer from {leader.name} to {target.name}: {failed} sends failed")
        return (
            f"{leader.name} to {target.name} in {seconds * 1000:.0f} ms, {pause_s * 1000:.0f} ms without an "
            f"acknowledgement, {repeated} sends tried again, {failed} failed"
        )

    async def _flip(self, fault: Fault, victim: Member) -> str:
        """A bit of a sealed segment, under the running member or while it is down. A member looks for such damage some
        time after each start."""
        await until(self._group, lambda: bool(sealed_segments(victim.ledger)), WHOLE_S, "a segment is sealed")
        running = bool(fault.draw & 1)
        if running:
            path, at = flip_a_byte(victim.ledger, fault.draw)
        since_s = time.monotonic()
        victim.kill()
        await served_again(self._group, self._clients, since_s, fault.kind)
        if not running:
            path, at = flip_a_byte(victim.ledger, fault.draw)
        since_s = time.monotonic()
        victim.launch()
        await whole(self._group)
        other = next(member for member in self._group.members if member is not victim)
        end = int(path.name) + path.stat().st_size

        def repaired() -> bool:
            position, _ = difference(victim.ledger / "data", other.ledger / "data", end)
            return position != int(path.name) + at

        await until(self._group, repaired, _REPAIR_S, f"byte {at} of {path} is repaired")
        seconds = time.monotonic() - since_s
        self._measured.add("a flipped byte repaired, from the start", seconds)
        how = "while it ran" if running else "while it was down"
        return f"byte {at} of {path.name} of {victim.name} {how}, repaired {seconds:.1f} s after its start"

    async def _fill(self, fault: Fault, victim: Member) -> str:
        """Fills one member's disk until another member leads, or for a while; then frees it."""
        leads = fault.kind == "full-leader"
        begin_s = time.monotonic()
        filler = await asyncio.to_thread(fill, victim.folder)

        def noticed() -> bool:
            status = self._group.statuses().get(victim.number)
            if status is None or status.disk not in ("low", "full"):
                return False
            return not leads or self._group.leader() not in (None, victim)

        try:
            what = "another member leads" if leads else "it says that its disk is full"
            await until(self._group, noticed, _FULL_S, f"{what}, {victim.name}'s being full")
            noticed_s = time.monotonic()
            await served_again(self._group, self._clients, noticed_s, fault.kind)
            await asyncio.sleep(fault.down_s)
        finally:
            filler.unlink()
        end_s = time.monotonic()
        pause_s = longest_pause_s(self._clients.acknowledged_probes(), begin_s, end_s)
        self._measured.add(f"  {fault.kind}, no send acknowledged", pause_s)
        self._measured.add("member complete after a full disk", await whole(self._group))
        return (
            f"{victim.name}, noticed after {noticed_s - begin_s:.1f} s of load, "
            f"at most {pause_s * 1000:.0f} ms without an acknowledgement"
        )
