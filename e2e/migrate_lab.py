"""`make migrate-lab`: real RocketMQ 4.8.0 and tallystick as master and slave of each other.

    python e2e/migrate_lab.py                         all parts, 100 000 messages
    python e2e/migrate_lab.py --messages 5000         the same in short
    python e2e/migrate_lab.py --only follow

Parts:

    follow   a RocketMQ slave follows a tallystick master under a mixed load; the master is killed with -9 and started
             again, the slave is killed once; its log is the master's byte for byte, and it serves every acknowledged
             message. Then the master is killed, and a Java consumer reads all messages of a topic from the slave.
    sync     SYNC_MASTER: without a slave sends are answered with 11; with one, the master is killed under load, and
             every message that was acknowledged with 0 is at the slave.
    adopt    a tallystick slave follows a RocketMQ master under a mixed load, and takes its place; nothing acknowledged
             is lost or doubled, a Java group continues where it was, and Java producers are measured. The old master,
             started again, is a slave of the new one.
    adopt-kill  the same without the master, which is killed with -9; it comes back, and is made a slave.
    group    a group of three follows a RocketMQ master under a mixed load; its members are killed with -9 and its
             connection is cut; then `tally migrate switch` gives it the master's place, while Java consumers (SQL92,
             in order, broadcasting) run on; it loses its leader, and has everything that was acknowledged once, in its
             place.
    group-chaos  a group of three follows a RocketMQ master that takes load all the time, and gets everything at once:
             ten kills with -9, of one member or two, a pause, a flipped bit, a full disk, and strangers and liars at
             the master's port for slaves. It has the master's records in their order, once; its members have the same
             bytes; it takes the master's place.
    group-full  only if it is named: a store of 2 GiB moves to a group under 5 000 messages a second, with delays,
             transactions, retries, SQL92, and three kinds of consumers. Four minutes, 12 GiB of disk.
    cuts     the connection of a slave to a RocketMQ master is cut 20 times at random bytes, and the slave killed twice.
    ahead    a slave that has more than its master, after the master lost its disk, is refused and named; nothing is
             overwritten on either side.

Exit status: 0 nothing lost and nothing different, 1 something is wrong, 2 it could not be tried.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from lab.adopting import adopt, adopt_kill, cuts
from lab.adoption import AdoptLab
from lab.group_adopting import GroupAdoptLab, group
from lab.group_chaos import SEGMENT_BYTES, chaos
from lab.group_full import LOG_BYTES, full
from lab.ledger import Ledger, Problems
from lab.load import TOPICS, Shape, create_topics, run_load
from lab.pair import Master, Nameserver, NotReadyError, RocketmqSlave, first_difference, runtime, wait_same_end
from lab.peer import Peer, PeerMissingError
from lab.places import work_folder
from lab.processes import ProcessError, end_on_signals
from lab.readback import check_everything

from tallystick.node.remoting.errors import RemotingError

_SIZES = ("mappedFileSizeCommitLog=4194304", "mappedFileSizeConsumeQueue=60000")
_OURS = ("maxHashSlotNum=5000", "maxIndexNum=20000", "fileReservedTime=720")
_JAVA_TOPIC = "PairJava"
_JAVA_MESSAGES = 500
_TABLES_S = 12.0  # RocketMQ's slave fetches the tables of its master each 10 s
_CONSUME_S = 180
_CONNECT_S = 90
_GROUP_MESSAGES = 10_000  # of a run of all parts: the group writes each message three times


class Lab:
    """What the parts share: processes, the ledger of one store, and what was found wrong."""

    def __init__(self, work: Path, messages: int, seed: int, settings: tuple[str, ...]) -> None:
        work.mkdir(parents=True)
        self.messages, self.seed = messages, seed
        self.problems, self.ledger = Problems(), Ledger()
        self.rng = random.Random(seed)
        self.nameserver = Nameserver(work)
        self.master = Master(work, self.nameserver.address, (*_SIZES, *_OURS, *settings))
        self.peer = Peer(work / "peer")
        self.slave = RocketmqSlave(self.peer, self.nameserver.address, (*_SIZES, "flushDiskType=ASYNC_FLUSH"))
        self._began = time.monotonic()
        self._loads = 0

    def say(self, what: str) -> None:
        """A line of progress."""
        print(f"{time.monotonic() - self._began:6.1f} s  {what}", flush=True)

    def close(self) -> None:
        """Ends all processes."""
        self.master.kill()
        self.slave.kill()
        self.nameserver.stop()

    async def load(self, until: int, shape: Shape, *, kill: Callable[[], None] | None = None) -> None:
        """Sends until the ledger has so many acknowledged messages; then calls `kill` while the load continues."""
        self._loads += 1
        stop = asyncio.Event()
        label = f"{self.seed}.{self._loads}"
        load = asyncio.create_task(run_load(self.master.address, self.ledger, label, shape, self.seed, stop))
        while len(self.ledger.places) < until and not load.done():  # noqa: ASYNC110  # the ledger has no event
            await asyncio.sleep(0.02)
        if kill is not None:
            kill()
        stop.set()
        await load
        if len(self.ledger.places) < until:
            raise ProcessError(f"the load ended at {len(self.ledger.places)} of {until} messages")

    async def connected(self) -> None:
        """Returns when the slave is connected. It names its position after 5 s, and gets the segment that is the newest
        one then."""
        deadline = time.monotonic() + _CONNECT_S
        while not self.master.slaves()["connected"]:
            if time.monotonic() > deadline:
                raise ProcessError(f"the slave does not connect: {self.master.slaves()}")
            await asyncio.sleep(0.1)

    async def compare(self) -> int:
        """Waits until the slave has the whole log, and compares the bytes. The end of the log."""
        end = await wait_same_end(self.master.address, self.slave.address)
        at = first_difference(self.master.commitlog, self.slave.commitlog, end)
        if at is not None:
            self.problems.add(f"the slave's log differs from the master's at byte {at} of {end}")
        return end

    async def read_at_slave(self) -> int:
        """Every acknowledged message is at the slave, at its place. RocketMQ loses index files when it is killed."""
        # Rows of topics reach a slave later than messages, in RocketMQ too.
        self.ledger.rows &= set(TOPICS)
        return await check_everything(self.slave.address, self.ledger, self.rng, self.problems, keys=False)


_MIX = Shape(connections=4, senders=8, rest_s=0.0, new_topics=0.0)


async def follow(lab: Lab) -> None:
    """See the module."""
    master, slave = lab.master, lab.slave
    master.start()
    slave.start()
    await lab.connected()
    await create_topics(master.address)
    third = lab.messages // 3
    await lab.load(third, _MIX, kill=master.kill)
    lab.say(f"{len(lab.ledger.places)} acknowledged, the master was killed")
    master.start()
    await lab.load(2 * third, _MIX, kill=slave.kill)
    lab.say(f"{len(lab.ledger.places)} acknowledged, the slave was killed")
    slave.start()
    await lab.load(lab.messages, _MIX, kill=master.kill)
    master.start()
    await _probe(lab, "produce", "--count", str(_JAVA_MESSAGES), "--size", "200", "--mode", "sync")
    end = await lab.compare()
    lab.say(f"{len(lab.ledger.places)} acknowledged; the slave has all {end} bytes, and they are the master's")
    connected = master.slaves()["connected"]
    if [each["storedPos"] for each in connected] != [end]:
        lab.problems.add(f"GET /node shows {connected}, not a slave at {end}")
    table = await runtime(slave.address)
    if int(table["commitLogMaxOffset"]) != end:
        lab.problems.add(f"the slave's commitLogMaxOffset is {table['commitLogMaxOffset']}, not {end}")
    await asyncio.sleep(_TABLES_S)
    master.kill()
    read = await lab.read_at_slave()
    lab.say(f"the master is killed; the slave serves {read} messages, all that were acknowledged among them")
    # A group that is new has no offset anywhere. No master is in the route.
    await _probe(lab, "consume-push", "--expect", str(_JAVA_MESSAGES), "--timeout", str(_CONSUME_S), "--quiet")
    lab.say(f"a Java consumer got {_JAVA_MESSAGES} messages from the slave")


async def _probe(lab: Lab, what: str, *arguments: str) -> None:
    """Runs RocketMQ's Java client."""
    command = ["probe", what, "--topic", _JAVA_TOPIC, *arguments, "-n", lab.nameserver.address]
    status, output = await asyncio.to_thread(lab.peer.call, *command)
    if status != 0:
        lab.problems.add(f"the Java client's {what} failed: {output[-300:]}")


async def sync(lab: Lab) -> None:
    """See the module."""
    master, slave = lab.master, lab.slave
    master.start()
    await create_topics(master.address)
    stop = asyncio.Event()
    load = asyncio.create_task(run_load(master.address, lab.ledger, f"{lab.seed}.0", _MIX, lab.seed, stop))
    await asyncio.sleep(1.0)
    stop.set()
    await load
    codes = {text.split()[0] for text in lab.ledger.refused}
    if lab.ledger.places or codes != {"11"}:
        lab.problems.add(f"without a slave: {len(lab.ledger.places)} answers with 0, and codes {sorted(codes)}")
    lab.say(f"without a slave {sum(lab.ledger.refused.values())} sends were stored and answered with 11")
    slave.start()
    await lab.compare()
    await asyncio.sleep(_TABLES_S)
    lab.ledger.refused.clear()
    await lab.load(lab.messages // 10, _MIX, kill=master.kill)
    for _ in range(2):
        master.start()
        await lab.compare()
        lab.ledger.refused.clear()
        await lab.load(len(lab.ledger.places) + lab.messages // 10, _MIX, kill=master.kill)
    read = await lab.read_at_slave()
    lab.say(f"SYNC_MASTER killed 3 times: all {len(lab.ledger.places)} acknowledged messages are at the slave ({read})")


async def ahead(lab: Lab) -> None:
    """See the module."""
    master, slave = lab.master, lab.slave
    master.start()
    slave.start()
    await create_topics(master.address)
    await lab.load(min(2000, lab.messages), _MIX)
    end = await lab.compare()
    slave.stop()
    master.kill()
    theirs = {path.name: path.read_bytes() for path in sorted(slave.commitlog.iterdir())}
    shutil.rmtree(master.commitlog.parent)
    lab.ledger = Ledger()
    master.start()
    await create_topics(master.address)
    await lab.load(100, _MIX)
    slave.start()
    deadline = time.monotonic() + 90
    while not (refused := master.slaves()["refused"]) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    if [each["state"] for each in refused] != ["ahead"]:
        lab.problems.add(f"a slave at {end} of a master that lost its disk: {master.slaves()}")
    await lab.load(200, _MIX)
    if {path.name: path.read_bytes() for path in sorted(slave.commitlog.iterdir())} != theirs:
        lab.problems.add("the slave's log changed")
    lab.say(f"a slave at {end} of a master that lost its disk is refused: {refused}")


ADOPTIONS = {
    "adopt": (adopt, ()),
    "adopt-kill": (adopt_kill, ()),
    "cuts": (cuts, ()),
}
PARTS = {
    "follow": (follow, ("flushDiskType=ASYNC_FLUSH",)),
    "sync": (sync, ("flushDiskType=ASYNC_FLUSH", "brokerRole=SYNC_MASTER")),
    "sync-flush": (sync, ("flushDiskType=SYNC_FLUSH", "brokerRole=SYNC_MASTER")),
    "ahead": (ahead, ("flushDiskType=ASYNC_FLUSH",)),
}
NAMES = (*PARTS, *ADOPTIONS, "group", "group-chaos")
FULL = "group-full"
"""Runs only when it is asked for: it takes 12 GiB of disk."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line. SystemExit(2): it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted((*NAMES, FULL)), action="append")
    options = parser.parse_args(arguments)
    if options.messages < 100:
        parser.error("--messages: 100 or more")
    return options


def _started(name: str, work: Path, options: argparse.Namespace) -> tuple[Lab | AdoptLab, Coroutine[Any, Any, None]]:
    """The processes of a part, and what happens to them."""
    if name in PARTS:
        part, settings = PARTS[name]
        lab = Lab(work, options.messages, options.seed, settings)
        return lab, part(lab)
    if name == "group":
        messages = options.messages if options.only else min(options.messages, _GROUP_MESSAGES)
        grouped = GroupAdoptLab(work, messages, options.seed)
        return grouped, group(grouped)
    if name == "group-chaos":
        messages = options.messages if options.only else min(options.messages, _GROUP_MESSAGES)
        grouped = GroupAdoptLab(work, messages, options.seed, segment_bytes=SEGMENT_BYTES)
        return grouped, chaos(grouped)
    if name == FULL:
        grouped = GroupAdoptLab(work, options.messages, options.seed, segment_bytes=LOG_BYTES, log_bytes=LOG_BYTES)
        return grouped, full(grouped)
    adoption, settings = ADOPTIONS[name]
    adopted = AdoptLab(work, options.messages, options.seed, settings)
    return adopted, adoption(adopted)


def run(options: argparse.Namespace, work: Path) -> int:
    """All parts; the exit status."""
    failed = 0
    for name in options.only or NAMES:
        lab, story = _started(name, work / name, options)
        lab.say(f"-- {name}")
        try:
            asyncio.run(story)
        finally:
            lab.close()
        for line in lab.problems.lines():
            print(line)
        failed += bool(lab.problems.count)
    print(f"FAILED: {failed} parts" if failed else "nothing acknowledged was lost, and the logs are the same")
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    end_on_signals()
    with work_folder("migrate-", "stores and logs") as work:
        try:
            work.status = run(options, work.path)
        except PeerMissingError as error:
            print(f"cannot run: {error}", file=sys.stderr)
        except (ProcessError, RemotingError, NotReadyError) as error:
            print(f"ended early: {error}", file=sys.stderr)
            work.status = 1
    return work.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
