"""The part of `migrate_lab.py` in which a group of three takes the place of a RocketMQ 4.8.0 master."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from lab.adopting import JAVA_MESSAGES, addresses, check_deliveries, consume, java, prepare, producing
from lab.adoption import CLUSTER, NAME, AdoptLab, CuttingProxy
from lab.consumers import Consumers
from lab.pair import NotReadyError, TallyBroker, log_end
from lab.places import HOST, TALLY, free_block
from lab.processes import ProcessError
from lab.readback import wait_for_deliveries

from tallystick.node.remoting.errors import RemotingError

_MEMBERS = 3
_KILLS = 4
_CUTS = 10
_WAIT_S = 240.0
_OLD_MASTER_ID = 1000
_PAUSE_S = 4
_CONSUMERS_S = 400


class GroupAdoptLab(AdoptLab):
    """As `AdoptLab`, with a group in place of the slave of the first master."""

    def __init__(
        self, work: Path, messages: int, seed: int, *, segment_bytes: int = 8 << 20, log_bytes: int = 4 << 20
    ) -> None:
        """`segment_bytes`: of the group's segments; `log_bytes`: of the masters'."""
        super().__init__(work, messages, seed, ("enablePropertyFilter=true",), log_bytes=log_bytes)
        peers = ";".join(f"n{number}-{HOST}:{free_block()}" for number in range(_MEMBERS))
        own = (
            f"brokerName={NAME}", f"brokerClusterName={CLUSTER}", "brokerRole=SLAVE", "enableDLegerCommitLog=true",
            f"dLegerPeers={peers}", "groupBootstrap=true", f"mappedFileSizeCommitLog={segment_bytes}", self.sizes[1],
            "maxHashSlotNum=5000", "maxIndexNum=20000", "fileReservedTime=720", "diskMaxUsedSpaceRatio=95",
            "enablePropertyFilter=true",
        )  # fmt: skip
        self.members = [
            TallyBroker(
                work / f"n{number}", work / f"n{number}.log", self.peer.nameserver, (*own, f"dLegerSelfId=n{number}")
            )
            for number in range(_MEMBERS)
        ]

    def close(self) -> None:
        """Ends all processes."""
        for member in self.members:
            member.kill()
        super().close()

    def start(self, through: str) -> None:
        """Starts all members; each waits for its group, so they start at once."""
        for member in self.members:
            member.start(through)

    def leader(self) -> TallyBroker:
        """The member that leads. ProcessError: none does for a long time."""
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            for member in self.members:
                try:
                    if member.node()["role"] == "leader":
                        return member
                except OSError:
                    pass  # killed, or not started yet
            time.sleep(0.1)
        raise ProcessError("no member of the group leads")

    def slaves(self) -> list[TallyBroker]:
        """See `AdoptLab`: the members of the group, and the slave of the second master."""
        return [*self.members, self.other]

    def promote(self) -> dict[str, Any]:
        """`tally promote` at the leader. ProcessError: it was refused."""
        command = [str(TALLY), "promote", "--http", self.leader().http, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        if done.returncode != 0:
            raise ProcessError(f"tally promote: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    async def group_follows(self) -> dict[str, Any]:
        """Returns when the group has committed the log of its master as of now, and has its tables. ProcessError."""
        deadline = time.monotonic() + _WAIT_S
        copy: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                end = await log_end(self.master)
                leader = await asyncio.to_thread(self.leader)
                copy = (await asyncio.to_thread(leader.node))["copy"]
                if copy["state"] == "following" and copy["safePos"] >= end and copy["tablesAgeMillis"] is not None:
                    return copy
            except (RemotingError, NotReadyError, OSError):
                pass
            await asyncio.sleep(0.2)
        raise ProcessError(f"the group does not reach its master: {copy}")


async def group(lab: GroupAdoptLab) -> None:
    """See the docstring of `migrate_lab`."""
    await prepare(lab)
    proxy = CuttingProxy(lab.peer.port + 1, _CUTS, lab.rng, max(100_000, lab.messages * 40))
    through = f"haMasterAddress={HOST}:{await proxy.start()}"
    try:
        await asyncio.to_thread(lab.start, through)
        await asyncio.to_thread(lab.other.start)
        lab.migrate("attach")
        await _kill_members(lab, through)
        await java(lab, "produce", "--count", str(JAVA_MESSAGES), "--size", "200", "--mode", "sync")
        await consume(lab, JAVA_MESSAGES)
        consumers = Consumers(lab)
        await consumers.start(2, _CONSUMERS_S)
        await consumers.send()
        await _switch(lab)
        await consumers.send()
        await consumers.judge()
    finally:
        await proxy.close()
    lab.ledger.forget_positions()
    await judge_group(lab)


async def _kill_members(lab: GroupAdoptLab, through: str) -> None:
    for turn in range(_KILLS):
        victim = lab.leader() if turn % 2 == 0 else lab.rng.choice(lab.members)
        await lab.load(lab.messages * (turn + 1) // (_KILLS + 1), lab.master, then=victim.kill)
        await lab.load(len(lab.ledger.places) + lab.messages // 20, lab.master)
        await asyncio.to_thread(victim.start, through)
    lab.say(f"{_KILLS} members were killed; the group follows: {await lab.group_follows()}")


async def _switch(lab: GroupAdoptLab) -> None:
    """`tally migrate`, with a group for the first master and a slave for the second one."""
    with producing(lab):
        await lab.group_follows()
        lab.migrate("watch")
        lab.say(f"tally migrate rehearse:\n{lab.migrate('rehearse', '--sample', '200')}")
        most = max(len(lab.ledger.places) + 100, lab.messages)
        said = await lab.load(most, lab.master, then=lambda: lab.migrate("switch", "--pause", str(_PAUSE_S)))
        lab.say(f"tally migrate switch:\n{said}")
        done = await asyncio.to_thread(lab.promote)  # it is done already: the figures
    lab.say(f"promoted: {done}\n{lab.migrate('verify')}")
    if done["strayBytes"]:
        lab.problems.add(f"the old master has messages that were not copied: {done}")


async def judge_group(lab: GroupAdoptLab) -> None:
    """The new master has all that was acknowledged, once, also after it loses its leader."""
    leader = lab.leader()
    await lab.load(len(lab.ledger.places) + lab.messages // 10, leader.address)
    await check_deliveries(lab, leader.address)
    await _until_registered(lab, leader)
    await java(lab, "produce", "--count", str(JAVA_MESSAGES), "--size", "200", "--mode", "sync")
    await consume(lab, JAVA_MESSAGES)
    leader.kill()
    leader = lab.leader()
    await wait_for_deliveries(leader.address, lab.ledger, lab.rng, lab.problems)
    lab.say("the leader was killed: another one has all of it")


async def _until_registered(lab: GroupAdoptLab, leader: TallyBroker) -> None:
    """Returns when the name server has the leader as the master, and the old master behind the members."""
    deadline, found = time.monotonic() + _WAIT_S, {}
    while time.monotonic() < deadline:
        found = await addresses(lab)
        if found.get(0) == leader.address and found.get(_OLD_MASTER_ID) == lab.master:
            lab.say(f"the name server has {found}")
            return
        await asyncio.sleep(0.2)
    lab.problems.add(f"the name server has {found}, not the group")
