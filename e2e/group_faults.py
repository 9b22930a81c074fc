"""`make group-faults`: injects all kinds of faults into a group of three members under load, and checks that no
acknowledged message is lost.

    python e2e/group_faults.py --rounds 22 --seed 1
    python e2e/group_faults.py --rounds 100 --only kill-leader        how long a change of the leader takes
    python e2e/group_faults.py --rounds 4 --only full-leader,full-follower

Each round has a load from many clients and one fault (`lab/schedule.py` lists the kinds), and waits until the group is
complete again: every member is a voter again and close behind the leader. After some rounds the load ends, and the
script checks the whole group:

- the history of all clients agrees with what each member has (`lab/history.py` lists the rules);
- the members' files are equal, byte by byte, up to the commit index;
- the members' logs agree on the leader of each term, and each ends with the leader that `GET /group` names;
- the members stop in order, `tally store verify` finds no damage in any of them, and RocketMQ 4.8.0 in DLedger mode
  opens the store of one member and finds every acknowledged message (not without the peer lab).

A probe measures times: it begins a send every 20 ms, and the time of a fault ends with the first acknowledged send that
began after it. The seed determines the faults, the moments and the messages; the order of concurrent sends depends on
the machine. Faults of full disks need permission to mount a tmpfs; without it the script skips them and names them.

Exit status: 0 nothing was lost and no limit was exceeded, 1 a check failed, 2 the test could not run. Stores, logs and
the history of a failed run stay in build/e2e.
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

from lab.damage import CannotMountError, SmallDisks
from lab.deferred import Unrest, check_deferred
from lab.deferred_load import SETTINGS as DEFERRED_SETTINGS
from lab.faults import Faults
from lab.group import Group, Member
from lab.group_load import Clients, create_topics, read_all
from lab.history import History, Queue, Reading, check, check_same
from lab.ledger import Problems
from lab.listing import check_group_listing, check_verify, copy_store
from lab.measurements import Measurements
from lab.peer import Peer, PeerMissingError
from lab.places import work_folder
from lab.processes import ProcessError, end_on_signals
from lab.replicas import check_replicas
from lab.roles import Reign, check_roles
from lab.schedule import KINDS, Sort, Stretch, plan
from lab.waiting import WHOLE_S, whole

from tallystick.node.remoting.errors import RemotingError

SETTINGS = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=6000",  # 300 units
    "maxHashSlotNum=500",
    "maxIndexNum=3000",
    *DEFERRED_SETTINGS,
)
INDEX_SIZES = SETTINGS[2:4]  # what the files of a store do not tell RocketMQ
SMALL_DISK_SETTINGS = ("diskSpaceWarningLevelRatio=1.0", "diskSpaceCleanForciblyRatio=1.0")
SMALL_DISK_MB = 448  # an index segment of dledger alone has 160

_TRIES = 5


class Torture:
    """One run: what was found wrong, what was measured."""

    def __init__(self, work: Path, options: argparse.Namespace, peer: Peer | None) -> None:
        self.work, self.options, self.peer = work, options, peer
        self.problems = Problems()
        self.measured = Measurements()
        self.skipped: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.acknowledged = self.attempts = self.reads = self.deferred = self.compared_bytes = self.listings = 0
        self.elections = 0
        self._stretches = self._rounds = 0
        self._began = time.monotonic()
        self.history = History()

    def say(self, what: str) -> None:
        """A line of progress."""
        print(f"{time.monotonic() - self._began:6.1f} s  {what}", file=sys.stderr, flush=True)

    async def stretch(self, stretch: Stretch) -> None:
        """The life of one group."""
        self._stretches += 1
        small = stretch.sort is Sort.SMALL_DISKS
        settings = (*SETTINGS, *(SMALL_DISK_SETTINGS if small else ()), *self.options.set)
        shape = {"places": 5, "founders": 1} if stretch.sort is Sort.GROWING else {}
        group = Group(self.work / f"group-{self._stretches}", settings, **shape)
        disks = SmallDisks((member.folder for member in group.members), SMALL_DISK_MB if small else 0)
        self.history = History()
        whole = False
        try:
            if small:
                disks.mount()
            leader = await asyncio.to_thread(group.start)
            self.say(f"group {self._stretches} is complete: {stretch.sort.value}")
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
            faults = Faults(group, clients, self.measured, self.problems, self.options.pause_s)
            for fault in stretch.faults:
                self._rounds += 1
                await asyncio.sleep(fault.after_s)
                begin_s = time.time()
                told = await faults.inflict(fault)
                whole_s = await whole(group)
                self.history.unrest.append(Unrest(begin_s, time.time()))
                self.done[fault.kind] += 1
                self.say(f"round {self._rounds}, {fault.kind}: {told}; complete again after {whole_s:.2f} s")
            await asyncio.sleep(0.5)
        if clients.delivered_s is not None:
            self.measured.add("all messages delivered, after the last send", clients.delivered_s)

    async def _look(self, group: Group) -> None:
        """The group at rest, and then its files."""
        finals = await self._finals(group)
        first = next(iter(finals))
        for name in finals:
            if name != first:
                check_same(first, finals[first], name, finals[name], self.problems)
        check(self.history, finals[first], self.problems)
        for age_s in check_deferred(self.history, finals[first], self.problems):
            self.measured.add("delivered again, age when the fault began", age_s)
        self.deferred += len(self.history.deferred)
        sends = self.history.sends
        acknowledged = len(self.history.acknowledged())
        statuses = group.statuses()
        commit_index = min(statuses[number].commit_index for number in group.belong)
        ledgers = {member.name: member.ledger for member in group.belonging}
        self.compared_bytes += await asyncio.to_thread(check_replicas, ledgers, commit_index, self.problems)
        logs = {member.name: member.log.read_text(errors="replace") for member in group.belonging}
        now = {
            f"n{number}": Reign(status.term, status.leader)
            for number, status in statuses.items()
            if number in group.belong and status.leader is not None
        }
        self.elections += check_roles(logs, now, self.problems)
        await asyncio.to_thread(group.stop)
        for member in group.belonging:
            before = self.problems.count
            check_verify(member.folder, self.problems)
            if self.problems.count > before:
                self.problems.add(f"(that was {member.name})")
        self.say(
            f"at rest: {acknowledged} of {len(sends)} attempts acknowledged, {len(self.history.reads)} reads, "
            f"members equal up to entry {commit_index}, {self.problems.count} problems"
        )
        if self.peer is not None:
            await asyncio.to_thread(self._open_with_peer, random.Random(commit_index).choice(group.belonging))

    async def _finals(self, group: Group) -> dict[str, dict[Queue, Reading]]:
        """What each member has at rest. Repeated until no check of a transaction interferes."""
        for _ in range(_TRIES):
            await asyncio.to_thread(group.wait, group.is_at_rest, WHOLE_S, "all members have applied everything")
            before = (await asyncio.to_thread(group.statuses)).values()
            finals = {member.name: await read_all(member.address) for member in group.belonging}
            if len({status.last_index for status in (*before, *group.statuses().values())}) == 1:
                break
        return finals

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
            "deferred": self.deferred,
            "bytes_compared": self.compared_bytes,
            "elections": self.elections,
            "opened_by_rocketmq": self.listings,
            "refusals_and_doubts": dict(self.reasons),
            "problems": self.problems.lines(),
            "limits_exceeded": self.measured.exceeded(),
            **self.measured.to_json(),
        }


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line. SystemExit(2): it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS") or 22), help="number of rounds (22)")
    parser.add_argument(
        "--seed", type=int, default=int(os.environ.get("SEED") or 1), help="seed of the random choices (1)"
    )
    parser.add_argument("--only", default="", help=f"kinds of faults, separated by commas: {', '.join(KINDS)}")
    parser.add_argument("--skip", default="", help="kinds of faults to leave out, separated by commas")
    parser.add_argument(
        "--pause-s", type=float, default=30.0, help="seconds that a process stays stopped by SIGSTOP (30)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every member")
    parser.add_argument("--no-peer", action="store_true", help="leave out the parts with RocketMQ")
    parser.add_argument(
        "--keep-going", action="store_true", help="continue with a new group after one that lost messages"
    )
    parser.add_argument("--json", metavar="FILE", help="write what was measured (-: to standard output)")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds: 1 or more")
    kinds = set(options.only.split(",")) if options.only else set(KINDS)
    options.kinds = [kind for kind in KINDS if kind in kinds - set(options.skip.split(","))]
    if unknown := (kinds | set(filter(None, options.skip.split(",")))) - set(KINDS):
        parser.error(f"unknown kind of fault: {', '.join(sorted(unknown))}")
    if not options.kinds:
        parser.error("all kinds of faults are left out")
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
            pickle.dump(run.history, file)
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
        f"attempts, {run.deferred} delayed or transactional, {run.reads} reads, {run.compared_bytes} bytes equal, "
        f"{run.elections} elections in the members' logs, "
        f"{run.listings} stores opened by RocketMQ",
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
