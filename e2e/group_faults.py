"""`make group-faults`: three members under load, faults of all kinds, and nothing that was acknowledged is lost.

    python e2e/group_faults.py --rounds 22 --seed 1
    python e2e/group_faults.py --rounds 100 --only kill-leader        how long a change of leader takes
    python e2e/group_faults.py --rounds 4 --only full-leader,full-follower

A round: load from many clients, one fault (`lab/schedule.py` lists the kinds), and the wait until the group is whole
again: every member back, a voter, and close behind the leader. After some rounds the load ends, and the group is looked
at as a whole:

- the history of all clients is checked against what each member has: `lab/history.py` says by which rules;
- the members' files are compared byte by byte, up to where the log is committed;
- the members stop in order, `tally store verify` finds no damage in any of them, and RocketMQ 4.8.0 in DLedger mode
  opens the store of one and sees every acknowledged message (not without the peer lab).

Times are taken by a probe that begins a send every 20 ms: from the fault to the end of the first send that was begun
after it. The seed decides faults, moments and what is sent; how clients interleave is up to the machine. Faults of full
disks need the right to mount a tmpfs, and are skipped by name without it.

Exit status: 0 nothing lost and every limit kept, 1 not so, 2 it could not be tried. Stores, logs and the history of a
run that failed stay in build/e2e.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from lab.damage import CannotMountError, SmallDisks, fill, flip_a_byte
from lab.group import AdminError, Group, Member
from lab.group_load import Clients, create_topics, read_all
from lab.history import History, check, check_same
from lab.ledger import Problems
from lab.listing import check_group_listing, check_verify, copy_store
from lab.measurements import Measurements, longest_pause_s
from lab.peer import Peer, PeerMissingError
from lab.places import work_folder
from lab.processes import ProcessError, end_on_signals
from lab.replicas import check_replicas, difference, sealed_segments
from lab.schedule import KINDS, Fault, Stretch, plan

from tallystick.node.remoting.errors import RemotingError

SETTINGS = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=6000",  # 300 units
    "maxHashSlotNum=500",
    "maxIndexNum=3000",
)
INDEX_SIZES = SETTINGS[2:]  # what the files of a store do not tell RocketMQ
SMALL_DISK_SETTINGS = ("diskSpaceWarningLevelRatio=1.0", "diskSpaceCleanForciblyRatio=1.0")
SMALL_DISK_MB = 448  # an index segment of dledger alone has 160

LEADER_CHANGE = "leader change, all kinds"
TRANSFER, TRANSFER_PAUSE = "transfer, asked to done", "transfer, no send acknowledged"

_WHOLE_S = 90.0
_SERVE_S = 30.0
_MEND_S = 180.0  # a member begins to look 60 s after its start
_FULL_S = 90.0
_LOOK_S = 0.02
_ALONE_S = 0.6  # shorter than a leader goes on without a majority


class Torture:
    """One run: what was found wrong, what was measured."""

    def __init__(self, work: Path, options: argparse.Namespace, peer: Peer | None) -> None:
        self.work, self.options, self.peer = work, options, peer
        self.problems = Problems()
        self.measured = Measurements()
        self.measured.limit(LEADER_CHANGE, 2.0)
        self.measured.limit(TRANSFER, 0.3)
        self.skipped: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.acknowledged = self.attempts = self.reads = self.compared_bytes = self.listings = 0
        self._stretches = self._rounds = 0
        self._began = time.monotonic()
        self.history = History()

    def say(self, what: str) -> None:
        """A line of progress."""
        print(f"{time.monotonic() - self._began:6.1f} s  {what}", file=sys.stderr, flush=True)

    async def stretch(self, stretch: Stretch) -> None:
        """The life of one group."""
        self._stretches += 1
        settings = SETTINGS + (SMALL_DISK_SETTINGS if stretch.small_disks else ())
        group = Group(self.work / f"group-{self._stretches}", settings + tuple(self.options.set))
        disks = SmallDisks((member.folder for member in group.members), SMALL_DISK_MB if stretch.small_disks else 0)
        self.history = History()
        whole = False
        try:
            if stretch.small_disks:
                disks.mount()
            leader = await asyncio.to_thread(group.start)
            self.say(f"group {self._stretches} is whole{', on small disks' if stretch.small_disks else ''}")
            await create_topics(leader.address)
            await self._live(group, stretch)
            await self._look(group)
            whole = not self.problems.count
        except CannotMountError as error:
            self.skipped.update(f"{fault.kind}: {error}" for fault in stretch.faults)
            whole = True
        finally:
            group.kill()
            disks.unmount(keep=not whole)
            self.reasons += self.history.reasons()
            self.acknowledged += len(self.history.acknowledged())
            self.attempts += len(self.history.sends)
            self.reads += len(self.history.reads)

    async def _live(self, group: Group, stretch: Stretch) -> None:
        """Load, and all faults."""
        label = f"{self.options.seed}.{self._stretches}"
        addresses = [member.address for member in group.members]
        clients = Clients(group.nameserver, addresses, self.history, label, self.options.seed)
        async with clients.running():
            faults = Faults(self, group, clients)
            for fault in stretch.faults:
                self._rounds += 1
                await asyncio.sleep(fault.after_s)
                told = await faults.inflict(fault)
                whole_s = await self.whole(group)
                self.done[fault.kind] += 1
                self.say(f"round {self._rounds}, {fault.kind}: {told}; whole again after {whole_s:.2f} s")
            await asyncio.sleep(0.5)

    async def whole(self, group: Group) -> float:
        """Waits for it; how long that took. ProcessError: too long."""
        return await asyncio.to_thread(group.wait, group.is_whole, _WHOLE_S, "the group is whole again")

    async def _look(self, group: Group) -> None:
        """The group at rest, and then its files."""
        await asyncio.to_thread(group.wait, group.is_at_rest, _WHOLE_S, "all members have applied everything")
        finals = {member.name: await read_all(member.address) for member in group.members}
        first = next(iter(finals))
        for name in finals:
            if name != first:
                check_same(first, finals[first], name, finals[name], self.problems)
        check(self.history, finals[first], self.problems)
        sends = self.history.sends
        acknowledged = len(self.history.acknowledged())
        commit_index = min(status.commit_index for status in group.statuses().values())
        ledgers = {member.name: member.ledger for member in group.members}
        self.compared_bytes += await asyncio.to_thread(check_replicas, ledgers, commit_index, self.problems)
        await asyncio.to_thread(group.stop)
        for member in group.members:
            before = self.problems.count
            check_verify(member.folder, self.problems)
            if self.problems.count > before:
                self.problems.add(f"(that was {member.name})")
        self.say(
            f"at rest: {acknowledged} of {len(sends)} attempts acknowledged, {len(self.history.reads)} reads, "
            f"members equal up to entry {commit_index}, {self.problems.count} problems"
        )
        if self.peer is not None:
            await asyncio.to_thread(self._open_with_peer, random.Random(commit_index).choice(group.members))

    def _open_with_peer(self, member: Member) -> None:
        """RocketMQ in DLedger mode opens a copy of what a member left."""
        assert self.peer is not None
        folder = self.work / "look" / str(self._stretches)
        copy_store(member.folder, folder / "store")
        settings = [*INDEX_SIZES]
        listing = self.peer.open_store(folder / "store", settings, folder / "theirs.json", dledger=member.name)
        seen = check_group_listing(listing["opened"], self.history, self.problems)
        self.listings += 1
        self.say(f"  RocketMQ opens the store of {member.name} and sees {seen} messages")

    def report(self) -> dict[str, Any]:
        """What --json prints."""
        return {
            "seed": self.options.seed,
            "rounds": dict(self.done),
            "skipped": dict(self.skipped),
            "acknowledged": self.acknowledged,
            "attempts": self.attempts,
            "reads": self.reads,
            "bytes_compared": self.compared_bytes,
            "opened_by_rocketmq": self.listings,
            "refusals_and_doubts": dict(self.reasons),
            "problems": self.problems.lines(),
            "limits_exceeded": self.measured.exceeded(),
            **self.measured.to_json(),
        }


class Faults:
    """Inflicts one after the other on a group under load, and measures."""

    def __init__(self, torture: Torture, group: Group, clients: Clients) -> None:
        self._torture, self._group, self._clients = torture, group, clients
        self._measured = torture.measured

    async def inflict(self, fault: Fault) -> str:
        """One fault, from its begin to the return of who was hit; what to say of it. ProcessError: it never ended."""
        leader = await self._leader()
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
        raise AssertionError(f"no such kind: {fault.kind}")

    async def _leader(self) -> Member:
        leader = await asyncio.to_thread(self._group.leader)
        if leader is None:
            raise ProcessError("no member says that it leads, and the group was whole just now")
        return leader

    async def _served_again(self, since_s: float, what: str) -> float:
        """Seconds from that moment to the first acknowledged send that was begun after it."""
        while (at_s := self._clients.served_again(since_s)) is None:
            if time.monotonic() - since_s > _SERVE_S:
                raise ProcessError(f"{what}: no send was acknowledged for {_SERVE_S:g} s; see {self._group.folder}")
            await asyncio.to_thread(self._group.look_at_processes)
            await asyncio.sleep(_LOOK_S)
        return at_s - since_s

    async def _changed(self, since_s: float, fault: Fault, *, leader: bool) -> str:
        """Waits for service, and notes the time: of a leader's change, or of a disturbance by a follower."""
        seconds = await self._served_again(since_s, fault.kind)
        if leader:
            self._measured.add(LEADER_CHANGE, seconds)
        self._measured.add(f"  after {fault.kind}", seconds)
        return f"served again after {seconds * 1000:.0f} ms"

    async def _back(self, member: Member, what: str) -> None:
        """Starts a member, and notes how long it takes to be whole."""
        member.launch()
        seconds = await self._torture.whole(self._group)
        self._measured.add(f"member whole after {what}", seconds)

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
        await self._back(victim, "a stop in order")
        return f"{victim.name}, {told}"

    async def _pause(self, fault: Fault, victim: Member) -> str:
        since_s = time.monotonic()
        victim.pause()
        told = await self._changed(since_s, fault, leader=fault.kind == "pause-leader")
        await asyncio.sleep(max(0.0, self._torture.options.pause_s - (time.monotonic() - since_s)))
        victim.resume()
        self._measured.add("member whole after SIGSTOP", await self._torture.whole(self._group))
        return f"{victim.name} for {self._torture.options.pause_s:g} s, {told}"

    async def _kill_all(self, fault: Fault) -> str:
        for member in self._group.members:
            member.kill()
        await asyncio.sleep(fault.down_s)
        since_s = time.monotonic()
        for member in self._group.members:
            member.launch()
        seconds = await self._served_again(since_s, fault.kind)
        self._measured.add("start of all three", seconds)
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
        seconds = await self._served_again(since_s, fault.kind)
        self._measured.add("start of all three, one of them emptied", seconds)
        return f"{leader.name} and its disk, served {seconds * 1000:.0f} ms after the start"

    async def _transfer(self, leader: Member, target: Member) -> str:
        begin_s = time.monotonic()
        try:
            await asyncio.to_thread(leader.transfer, target.number)
        except AdminError as error:
            raise ProcessError(f"transfer from {leader.name} to {target.name}: {error}") from None
        seconds = time.monotonic() - begin_s
        await asyncio.sleep(1.0)
        if (now := await self._leader()) is not target:
            self._torture.problems.add(f"transfer from {leader.name} to {target.name} was done, and {now.name} leads")
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
            self._torture.problems.add(f"transfer from {leader.name} to {target.name}: {failed} sends failed")
        return (
            f"{leader.name} to {target.name} in {seconds * 1000:.0f} ms, {pause_s * 1000:.0f} ms without an "
            f"acknowledgement, {repeated} sends tried again, {failed} failed"
        )

    async def _flip(self, fault: Fault, victim: Member) -> str:
        """A bit of a sealed segment, under the running member or while it is down. A member looks for such damage some
        time after each start."""
        await self._until(lambda: bool(sealed_segments(victim.ledger)), _WHOLE_S, "a segment is sealed")
        running = bool(fault.draw & 1)
        if running:
            path, at = flip_a_byte(victim.ledger, fault.draw)
        since_s = time.monotonic()
        victim.kill()
        await self._served_again(since_s, fault.kind)
        if not running:
            path, at = flip_a_byte(victim.ledger, fault.draw)
        since_s = time.monotonic()
        victim.launch()
        await self._torture.whole(self._group)
        other = next(member for member in self._group.members if member is not victim)
        end = int(path.name) + path.stat().st_size

        def mended() -> bool:
            position, _ = difference(victim.ledger / "data", other.ledger / "data", end)
            return position != int(path.name) + at

        await self._until(mended, _MEND_S, f"byte {at} of {path} is mended")
        seconds = time.monotonic() - since_s
        self._measured.add("a flipped byte mended, from the start", seconds)
        how = "while it ran" if running else "while it was down"
        return f"byte {at} of {path.name} of {victim.name} {how}, mended {seconds:.1f} s after its start"

    async def _fill(self, fault: Fault, victim: Member) -> str:
        """No room on one member's disk until somebody else leads, or for a while; then there is room again."""
        leads = fault.kind == "full-leader"
        begin_s = time.monotonic()
        filler = await asyncio.to_thread(fill, victim.folder)

        def noticed() -> bool:
            status = self._group.statuses().get(victim.number)
            if status is None or "full" not in status.disk:
                return False
            return not leads or self._group.leader() not in (None, victim)

        try:
            what = "another member leads" if leads else "it says that its disk is full"
            await self._until(noticed, _FULL_S, f"{what}, {victim.name}'s being full")
            noticed_s = time.monotonic()
            await self._served_again(noticed_s, fault.kind)
            await asyncio.sleep(fault.down_s)
        finally:
            filler.unlink()
        end_s = time.monotonic()
        pause_s = longest_pause_s(self._clients.acknowledged_probes(), begin_s, end_s)
        self._measured.add(f"  {fault.kind}, no send acknowledged", pause_s)
        self._measured.add("member whole after a full disk", await self._torture.whole(self._group))
        return (
            f"{victim.name}, noticed after {noticed_s - begin_s:.1f} s of load, "
            f"at most {pause_s * 1000:.0f} ms without an acknowledgement"
        )

    async def _until(self, condition: Any, timeout_s: float, what: str) -> None:
        begin_s = time.monotonic()
        while not await asyncio.to_thread(condition):
            await asyncio.to_thread(self._group.look_at_processes)
            if time.monotonic() - begin_s > timeout_s:
                raise ProcessError(f"not within {timeout_s:g} s that {what}; see {self._group.folder}")
            await asyncio.sleep(0.1)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line. SystemExit(2): it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS") or 22))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED") or 1))
    parser.add_argument("--only", default="", help=f"kinds of faults, comma between: {', '.join(KINDS)}")
    parser.add_argument("--skip", default="", help="kinds of faults, comma between")
    parser.add_argument("--pause-s", type=float, default=30.0, help="how long SIGSTOP lasts (30)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every member")
    parser.add_argument("--no-peer", action="store_true", help="without RocketMQ")
    parser.add_argument("--keep-going", action="store_true", help="with the next group after one that lost something")
    parser.add_argument("--json", metavar="FILE", help="write what was measured (-: to standard output)")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds: 1 or more")
    kinds = set(options.only.split(",")) if options.only else set(KINDS)
    options.kinds = [kind for kind in KINDS if kind in kinds - set(options.skip.split(","))]
    if unknown := (kinds | set(filter(None, options.skip.split(",")))) - set(KINDS):
        parser.error(f"no such kind of fault: {', '.join(sorted(unknown))}")
    if not options.kinds:
        parser.error("no kind of fault is left")
    return options


async def torture(run: Torture) -> None:
    """All stretches; ends behind the first one in which something was wrong, unless it is to go on."""
    for stretch in plan(run.options.seed, run.options.rounds, run.options.kinds):
        await run.stretch(stretch)
        if run.problems.count and not run.options.keep_going:
            return


def conclude(run: Torture, work: Path, ended_early: str) -> int:
    """Prints everything; the exit status."""
    if run.problems.count or ended_early:
        with (work / "history.pickle").open("wb") as file:
            pickle.dump((run.history.sends, run.history.reads), file)
    report = run.report() | {"ended_early": ended_early}
    if run.options.json == "-":
        print(json.dumps(report))
    else:
        if run.options.json:
            Path(run.options.json).write_text(json.dumps(report) + "\n")
        print(run.measured.table())
    out = sys.stderr if run.options.json == "-" else sys.stdout
    for reason, count in run.reasons.most_common():
        print(f"{count:8} {reason}", file=out)
    for text, count in run.skipped.items():
        print(f"SKIPPED {count} x {text}", file=out)
    for line in (*run.problems.lines(), *run.measured.exceeded()):
        print(line, file=out)
    rounds = ", ".join(f"{count} {kind}" for kind, count in sorted(run.done.items()))
    print(
        f"seed {run.options.seed}: {rounds or 'no round'}; {run.acknowledged} messages acknowledged in {run.attempts} "
        f"attempts, {run.reads} reads, {run.compared_bytes} bytes compared, {run.listings} times opened by RocketMQ",
        file=out,
    )
    if ended_early:
        print(f"ended early: {ended_early}", file=out)
    if run.problems.count or ended_early:
        print(f"FAILED: {run.problems.count} problems", file=out)
        return 1
    print("nothing acknowledged was lost", file=out)
    return 1 if run.measured.exceeded() else 0


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    end_on_signals()
    with work_folder("group-", "stores and logs") as work:
        peer = None
        try:
            peer = None if options.no_peer else Peer(work.path / "peer")
        except PeerMissingError as error:
            print(f"SKIPPED, RocketMQ opens the stores: {error}", file=sys.stderr)
        run = Torture(work.path, options, peer)
        ended_early = ""
        try:
            asyncio.run(torture(run))
        except* (ProcessError, RemotingError, OSError) as errors:
            ended_early = "; ".join(str(error) for error in _leaves(errors))
        work.status = conclude(run, work.path, ended_early)
    return work.status


def _leaves(errors: BaseExceptionGroup[Any]) -> list[BaseException]:
    return [
        leaf
        for error in errors.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
