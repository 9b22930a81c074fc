"""`make crash`: kills a broker with kill -9 under load, many times, and checks that no acknowledged message is lost.

    python e2e/crash.py --rounds 20 --seed 1
    python e2e/crash.py --rounds 5 --flush async      the page cache survives the process: nothing may be lost either
    python e2e/crash.py --rounds 500 --fast           only kills: 500 in some minutes; most sends create topics

Each round starts the broker on the existing store, reads everything back, sends different kinds of messages over
several connections, and kills the broker at a random moment, sometimes during the recovery. RocketMQ 4.8.0 then opens a
copy of the store: it must find every acknowledged message, queue unit and key, and its listing must be equal to that of
`tally store dump`. After every few rounds the broker delivers all delayed and committed messages and stops; the files
are verified and listed again, and the next round begins with an empty store. At the end RocketMQ 4.8.0 serves a store
that tally wrote, continues to write it under the same load, and is killed or stopped; tally opens what it left.

`--fast` leaves RocketMQ out. It reads back only the queues that the previous round wrote to, and all of them at the
end. Its loads are short, and half of their messages go to new topics, because a kill may lose what a send creates.

Segments, queue files and index files are small, so that each kind has several files. The seed determines the moments
and the messages; the order of concurrent messages depends on the machine. Without the peer lab the script skips the
parts with RocketMQ and names them.

Exit status: 0 nothing was lost, 1 a check failed, 2 the test could not run. After 1 and 2 the stores and logs stay in
build/e2e.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from lab.ledger import Ledger, Problems
from lab.listing import check_listing, check_same, check_verify, copy_store
from lab.load import Shape, create_topics, run_load
from lab.peer import Peer, PeerMissingError
from lab.places import work_folder
from lab.processes import ProcessError, end_on_signals
from lab.readback import check_everything, wait_for_deliveries
from lab.tally import Tally

from tallystick.node.remoting.errors import RemotingError

FILE_SIZES = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=6000",  # 300 units
    "maxHashSlotNum=500",
    "maxIndexNum=3000",
)
INDEX_SIZES = FILE_SIZES[2:]  # what the files of a store do not tell RocketMQ
_ROUNDS_A_STORE = 5
_FAST_ROUNDS_A_STORE = 25
_FAST_KILL_AFTER_S = (0.02, 0.25)
_FAST_NEW_TOPICS = 0.5
_REST_S = (0.0, 0.01, 0.03)  # between two messages of a sender, at most: a flood, a stream, a trickle
_KILL_AFTER_S = (0.1, 1.6)
_KILL_FLOOD_AFTER_S = (0.02, 0.4)  # 25 000 messages a second: RocketMQ has to list them all, and then again
_KILL_RECOVERY = 0.35  # how often, and after how long
_KILL_RECOVERY_AFTER_S = (0.0, 0.8)


class Crash:
    """One run: the broker under test, the store's ledger, what was found wrong."""

    def __init__(self, work: Path, seed: int, flush: str, peer: Peer | None, *, fast: bool = False) -> None:
        self.work, self.seed, self.flush, self.peer, self.fast = work, seed, flush, peer, fast
        self.topics = 0
        self.rng = random.Random(seed)
        self._sample = random.Random(seed)  # separate: the number of calls depends on the machine
        self.problems = Problems()
        self.acknowledged = self.kills = self.recovery_kills = self.listings = self.again = 0
        self._stores = 0
        self._began = time.monotonic()
        self.new_store()

    def new_store(self) -> None:
        """Begins an empty store, with a new ledger."""
        self._stores += 1
        self._checked = 0  # acknowledged messages whose queues were read back
        self.ledger = Ledger()
        self.tally = Tally(self.work / f"store-{self._stores}", (f"flushDiskType={self.flush}", *FILE_SIZES))

    def say(self, what: str) -> None:
        """A line of progress."""
        print(f"{time.monotonic() - self._began:6.1f} s  {what}", flush=True)

    def round(self, number: int) -> None:
        """Start, read back, load, kill, and let RocketMQ look."""
        label = f"{self.seed}.{number}"
        self._start_through_kills()
        read = asyncio.run(self._read_back())
        before = len(self.ledger.places)
        shape = Shape(self.rng.randint(1, 6), self.rng.randint(1, 12), self.rng.choice(_REST_S))
        after_s = self.rng.uniform(*(_KILL_AFTER_S if shape.rest_s else _KILL_FLOOD_AFTER_S))
        if self.fast:
            shape, after_s = replace(shape, new_topics=_FAST_NEW_TOPICS), self.rng.uniform(*_FAST_KILL_AFTER_S)
        rows = len(self.ledger.rows)
        asyncio.run(self._load_and_kill(label, shape, after_s))
        new = len(self.ledger.places) - before
        self.acknowledged += new
        self.topics += len(self.ledger.rows) - rows
        size = f"{shape.connections} x {shape.senders} senders"
        self.say(f"round {number}: read {read} back; {new} acknowledged to {size}, killed after {after_s:.2f} s")
        self.look(f"after round {number}", clean=False)

    def rest(self) -> None:
        """All that is due comes; then a stop in order, and the files as they lie."""
        self._start_through_kills()
        self.again += asyncio.run(wait_for_deliveries(self.tally.broker, self.ledger, self._sample, self.problems))
        self.tally.stop()
        check_verify(self.tally.store, self.problems)
        self.say(f"at rest: {len(self.ledger.places)} acknowledged messages are readable")
        self.look("at rest", clean=True)

    def look(self, when: str, *, clean: bool) -> None:
        """RocketMQ opens a copy of the store, which no process has open now."""
        if self.peer is None:
            return
        folder = self.work / "look"
        shutil.rmtree(folder, ignore_errors=True)
        copy_store(self.tally.store, folder / "store")
        listing = self.peer.open_store(folder / "store", INDEX_SIZES, folder / "theirs.json")
        seen = check_listing(listing["opened"], self.ledger, self.problems)
        theirs, ours = folder / "theirs.json", folder / "ours.json"
        check_same(theirs, folder / "store", list(INDEX_SIZES), ours, self.problems, clean=clean)
        self.listings += 1
        self.say(f"  RocketMQ sees {seen} messages {when}{', as tally does' if not self.problems.count else ''}")

    def hand_over(self) -> None:
        """RocketMQ serves the store, writes on, and is killed; then it is ours again."""
        assert self.peer is not None
        kill = self.rng.random() < 0.5
        shutil.rmtree(self.peer.store, ignore_errors=True)
        copy_store(self.tally.store, self.peer.store)
        settings = [*FILE_SIZES, "fileReservedTime=72", f"flushDiskType={self.flush}"]
        self.peer.up(settings, keep=True)
        try:
            read = asyncio.run(check_everything(self.peer.broker, self.ledger, self._sample, self.problems))
            before = len(self.ledger.places)
            asyncio.run(self._load_for(self.peer.broker, f"{self.seed}.peer", Shape(4, 4, 0.01), 1.5))
            new = len(self.ledger.places) - before
        finally:
            self.peer.down(kill=kill)
        ended = "was killed" if kill else "stopped"
        self.say(f"RocketMQ read {read} messages from tally's store, acknowledged {new} more, and {ended}")
        shutil.rmtree(self.tally.store)
        copy_store(self.peer.store, self.tally.store)
        self.rest()

    def _start_through_kills(self) -> None:
        """Starts the broker, and sometimes kills it on the way, once or twice."""
        while self.rng.random() < _KILL_RECOVERY:
            self.tally.launch()
            time.sleep(self.rng.uniform(*_KILL_RECOVERY_AFTER_S))
            self.tally.kill()
            self.recovery_kills += 1
        self.tally.start()

    async def _read_back(self) -> int:
        await create_topics(self.tally.broker)
        since = self._checked if self.fast else 0
        read = await check_everything(self.tally.broker, self.ledger, self._sample, self.problems, since=since)
        self._checked = len(self.ledger.places)
        return read

    async def _load_and_kill(self, label: str, shape: Shape, after_s: float) -> None:
        load = asyncio.create_task(run_load(self.tally.broker, self.ledger, label, shape, self.seed, asyncio.Event()))
        await asyncio.sleep(after_s)
        self.tally.kill()
        self.kills += 1
        await load

    async def _load_for(self, broker: str, label: str, shape: Shape, seconds: float) -> None:
        stop = asyncio.Event()
        load = asyncio.create_task(run_load(broker, self.ledger, label, shape, self.seed, stop))
        await asyncio.sleep(seconds)
        stop.set()
        await load


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line. SystemExit(2): it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS") or 20), help="number of rounds (20)")
    parser.add_argument(
        "--seed", type=int, default=int(os.environ.get("SEED") or 1), help="seed of the random choices (1)"
    )
    parser.add_argument("--flush", choices=("sync", "async"), default=(os.environ.get("FLUSH") or "sync"))
    parser.add_argument("--no-peer", action="store_true", help="leave out the parts with RocketMQ")
    parser.add_argument(
        "--fast", action="store_true", default=bool(os.environ.get("FAST")), help="only kills: no RocketMQ, short loads"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds: 1 or more")
    return options


def torture(options: argparse.Namespace, work: Path) -> int:
    """All rounds; stops at the first one that found something wrong, so that its store is still there."""
    peer = None
    try:
        peer = None if options.no_peer or options.fast else Peer(work / "peer")
    except PeerMissingError as error:
        print(f"SKIPPED, RocketMQ opens the stores: {error}")
    crash = Crash(work, options.seed, f"{options.flush.upper()}_FLUSH", peer, fast=options.fast)
    rounds_a_store = _FAST_ROUNDS_A_STORE if options.fast else _ROUNDS_A_STORE
    try:
        for number in range(1, options.rounds + 1):
            crash.round(number)
            if not crash.problems.count and (number == options.rounds or number % rounds_a_store == 0):
                crash.rest()
                if number < options.rounds:
                    crash.new_store()
            if crash.problems.count:
                break
        if peer is not None and not crash.problems.count:
            crash.hand_over()
    finally:
        crash.tally.kill()
        if peer is not None:
            peer.down()
    for line in crash.problems.lines():
        print(line)
    ledger = crash.ledger
    print(
        f"seed {options.seed}, {crash.flush}: {crash.kills} kills under load, {crash.recovery_kills} during a start, "
        f"{crash.acknowledged} messages acknowledged, {crash.topics} topics created by sends, "
        f"{crash.again} delivered again, "
        f"{crash.listings} stores opened by RocketMQ; refused: {dict(ledger.refused) or 'none'}"
    )
    print(f"FAILED: {crash.problems.count} problems" if crash.problems.count else "nothing acknowledged was lost")
    return 1 if crash.problems.count else 0


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    end_on_signals()
    with work_folder("crash-", "stores and logs") as work:
        try:
            work.status = torture(options, work.path)
        except (ProcessError, RemotingError) as error:
            print(f"ended early: {error}", file=sys.stderr)
            work.status = 1
    return work.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
