"""`make convert-lab`: stores of real RocketMQ 4.8.0 become stores of a tallystick group, and the way back.

    python e2e/convert_lab.py                       all parts
    python e2e/convert_lab.py --short               the same with less load and fewer kills: for CI
    python e2e/convert_lab.py --only dledger

Parts:

    plain      RocketMQ writes a store: messages with keys, delayed ones, a transaction whose end is unknown, a consumer
               group in the middle. It is converted while the command is killed again and again. A group of
               one starts on it and grows to three. Consumers continue at their offset, the delayed messages arrive,
               the transaction is checked and committed, keys are found; so it is after the leader is killed.
               Then the store of a member is converted back, and RocketMQ runs on it.
    dledger    a group of RocketMQ in DLedger mode writes stores, and is stopped. A tallystick group starts on copies of
               its folders, in place; and on a converted copy of one of them. Consumers continue in both.

Exit status: 0 nothing lost and nothing different, 1 something is wrong, 2 it could not be tried.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.group import Group, Member
from lab.ledger import Problems
from lab.peer import Peer, PeerMissingError
from lab.places import HOST, TALLY, work_folder
from lab.processes import ProcessError, clean_environment, end_on_signals

_LOG_BYTES = 1 << 20
_SIZES = (
    f"mappedFileSizeCommitLog={_LOG_BYTES}",
    "mappedFileSizeConsumeQueue=60000",
    "maxHashSlotNum=5000",
    "maxIndexNum=20000",
)
_CHECKS = ("transactionTimeOut=2000", "transactionCheckInterval=3000")
_OURS = ("fileReservedTime=720", "diskMaxUsedSpaceRatio=99")
_READY_S = 120
_TOPIC, _GROUP, _DELAYED, _PRODUCERS = "Convert", "readers", "ConvertLater", "tx-producers"


class Lab:
    """What the parts share."""

    def __init__(self, work: Path, messages: int, kills: int, seed: int) -> None:
        self.work, self.messages, self.kills = work, messages, kills
        self.problems = Problems()
        self.dice = random.Random(seed)
        self._began = time.monotonic()
        self._closers: list[Callable[[], None]] = []

    def say(self, what: str) -> None:
        """A line of progress."""
        print(f"{time.monotonic() - self._began:6.1f} s  {what}", flush=True)

    def group(self, name: str, *, founders: int) -> Group:
        """A group of up to three members, with nothing in their folders."""
        group = Group(self.work / name, (*_SIZES, *_CHECKS, *_OURS), places=3, founders=founders)
        self._closers.append(group.kill)
        return group

    def peer(self, name: str, ports: int = 20) -> Peer:
        peer = Peer(self.work / name, ports=ports)
        self._closers.append(lambda: peer.down(kill=True))
        return peer

    def close(self) -> None:
        """Ends all processes."""
        for close in reversed(self._closers):
            close()

    # -- the command ---------------------------------------------------------------------------------------------------

    def convert(self, source: Path, target: Path, *arguments: str) -> dict[str, Any]:
        """`tally store convert`, to its end. ProcessError: it failed."""
        done = subprocess.run(
            _command(source, target, *arguments), capture_output=True, text=True, env=clean_environment()
        )
        if done.returncode != 0:
            raise ProcessError(f"store convert ended with {done.returncode}: {done.stderr[-800:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def convert_with_kills(self, source: Path, target: Path, *arguments: str) -> int:
        """The same, killed with -9 after a random time, `kills` times at most. Returns how often it was killed."""
        killed, longest_s = 0, 0.8
        while killed < self.kills:
            process = subprocess.Popen(
                _command(source, target, *arguments),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=clean_environment(),
            )
            try:
                process.wait(self.dice.uniform(0.2, longest_s))
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
                longest_s += 0.2
            process.communicate()
            if process.returncode == 0:
                return killed
            if process.returncode != -9:
                raise ProcessError(f"a killed store convert did not continue: status {process.returncode}")
            if any(target.glob("commitlog")) or any(target.glob("dledger-n?")):
                break  # it has its name already
        subprocess.run(_command(source, target, *arguments), capture_output=True, check=False, env=clean_environment())
        return killed


def _command(source: Path, target: Path, *arguments: str) -> list[str]:
    return [str(TALLY), "store", "convert", str(source), str(target), "--json", *arguments]


def _probe(peer: Peer, nameserver: str, *arguments: str, timeout_s: float = 300) -> dict[str, Any]:
    """One call of RocketMQ's client. ProcessError: it saw something else than it should."""
    # A group of RocketMQ on a busy machine needs more than the client's 10 s now and then.
    patience = ("--send-timeout", "60000") if arguments[0] == "produce" else ()
    status, output = peer.call("probe", *arguments, *patience, "-n", nameserver, timeout_s=timeout_s)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if status != 0:
        raise ProcessError(f"probe {' '.join(arguments)}: {found.get('failures') or output[-600:]}; see {peer.log}")
    return found


def _fill(lab: Lab, peer: Peer) -> None:
    """What RocketMQ has before it is stopped; see `plain`."""
    where = peer.nameserver
    for topic in (_TOPIC, _DELAYED):
        _probe(peer, where, "topic", "--topic", topic, "--queues", "4")
    half = lab.messages // 2
    to = ("produce", "--topic", _TOPIC)
    some = (*to, "--count", str(half), "--size", "300")
    _probe(peer, where, *some, "--key", "k%d", "--tag", "A,B")
    _consume(peer, where, half)
    _probe(peer, where, *some, "--seed", "2", "--key", "late%d")
    # Level 4 is 30 s: more than the stop takes.
    _probe(peer, where, "produce", "--topic", _DELAYED, "--count", "20", "--delay", "4", "--seed", "3")
    open_ones = ("--count", "3", "--mode", "transaction", "--group", _PRODUCERS, "--tx", "unknown")
    _probe(peer, where, *to, *open_ones, "--seed", "4")


def _consume(peer: Peer, nameserver: str, expect: int, topic: str = _TOPIC, group: str = _GROUP) -> dict[str, Any]:
    arguments = ("consume-push", "--topic", topic, "--group", group, "--expect", str(expect), "--timeout", "120")
    # What arrives late would be too much: the settling time shows it.
    return _probe(peer, nameserver, *arguments, "--settle", "3000")


def _check_moved(lab: Lab, peer: Peer, group: Group, *, with_transactions: bool) -> None:
    """The clients of before find everything at the group. The open transaction is checked by its producers' group."""
    where, half = group.nameserver, lab.messages // 2
    committed = 0
    if with_transactions:
        done = _probe(
            peer, where, "produce", "--topic", "ConvertTx", "--count", "4", "--mode", "transaction",
            "--group", _PRODUCERS, "--tx", "unknown", "--tx-check", "commit", "--linger", "60000", "--seed", "5",
            timeout_s=400,
        )  # fmt: skip
        if done["checks"] < 4:
            lab.problems.add(f"only {done['checks']} of at least 4 checks of transactions arrived")
        committed = 3
    _consume(peer, where, half + committed)
    lab.say(f"the consumers' group got the {half} messages that it had not, and {committed} of the open transactions")
    _consume(peer, where, 20, _DELAYED)
    for key in ("k1", f"late{half - 1}"):
        _probe(peer, where, "query-by-key", "--topic", _TOPIC, "--key", key, "--expect", "1")
    lab.say("delayed messages arrived, keys are found")


def _grow(group: Group) -> None:
    """From one member to three, whose disks are empty."""
    leader = group.start(_READY_S)
    for member in group.members[1:]:
        member.launch()
        member.wait_ready(_READY_S)
        command = [str(TALLY), "group", "add", member.name, "--http", f"{HOST}:{leader.http_port}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment())
        if done.returncode != 0:
            raise ProcessError(f"group add {member.name}: {done.stderr}")
        group.belong.add(member.number)
    group.wait(group.is_whole, _READY_S, "the group of three is complete")


def _put(source: Path, member: Member) -> None:
    shutil.rmtree(member.folder)
    shutil.copytree(source, member.folder)


def plain(lab: Lab) -> None:
    """See the module."""
    peer = lab.peer("rocketmq")
    peer.up((*_SIZES, *_CHECKS))
    _fill(lab, peer)
    peer.down()
    lab.say("RocketMQ has written a store, and is stopped")
    target = lab.work / "converted"
    killed = lab.convert_with_kills(peer.store, target, "--to", "dledger")
    again = lab.work / "again"
    summary = lab.convert(peer.store, again, "--to", "dledger")
    if _bytes(again / "dledger-n0") != _bytes(target / "dledger-n0"):
        lab.problems.add(f"a conversion that was killed {killed} times wrote another log")
    lab.say(f"{summary['records']} records converted; the same after {killed} kills")
    group = lab.group("group", founders=1)
    _put(target, group.members[0])
    _grow(group)
    lab.say("a group started on the store, and grew to three members")
    group.members[0].kill()
    group.belong.discard(0)
    group.wait(lambda: None if group.leader() else "no leader", _READY_S, "another member leads")
    lab.say("the member with the converted store is killed, another one leads")
    _check_moved(lab, peer, group, with_transactions=True)
    group.members[0].launch()
    group.belong.add(0)
    group.wait(group.is_at_rest, _READY_S, "all members have everything")
    leader = group.leader()
    assert leader is not None
    folder = leader.folder
    group.stop()
    _back(lab, folder)


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _back(lab: Lab, folder: Path) -> None:
    """The way back to RocketMQ without DLedger mode: it lists what tallystick lists, and a broker runs on it."""
    target = lab.work / "back"
    summary = lab.convert(folder, target, "--to", "plain")
    lab.say(f"converted back: {summary['records']} records, without {summary['ownEntries']} entries of the group")
    theirs = lab.peer("listing").open_store(target, _SIZES, lab.work / "theirs.json")
    command = [str(TALLY), "store", "dump", str(target), "--json", str(lab.work / "ours.json")]
    for setting in _SIZES:
        command += ["--set", setting]
    subprocess.run(command, check=True, env=clean_environment())
    ours = json.loads((lab.work / "ours.json").read_text())
    for section in ("messages", "queues", "topicQueueTable", "minPhyOffset", "maxPhyOffset", "keys"):
        if theirs["opened"][section] != ours["opened"][section]:
            lab.problems.add(f"RocketMQ lists other {section} in the store that was converted back")
    peer = lab.peer("again-rocketmq")
    peer.work.joinpath("store").mkdir(parents=True, exist_ok=True)
    shutil.copytree(target, peer.store)
    peer.up((*_SIZES, *_CHECKS), keep=True)
    _probe(peer, peer.nameserver, "produce", "--topic", _TOPIC, "--count", "50", "--seed", "9")
    _consume(peer, peer.nameserver, 50)
    lab.say("RocketMQ 4.8.0 runs on it: its listing is the same, and the group got only what is new")
    peer.down()


def dledger(lab: Lab) -> None:
    """See the module."""
    peer = lab.peer("rocketmq-dledger", 130)
    peer.up((*_SIZES, *_CHECKS), mode="dledger")
    _fill(lab, peer)
    peer.down()
    folders = [peer.work / "store" / f"n{number}" for number in range(3)]
    master = folders[_master_of(folders)]
    lab.say("a group of RocketMQ in DLedger mode has written its stores, and is stopped")
    group = lab.group("in-place", founders=3)
    for member, folder in zip(group.members, folders, strict=True):
        _put(folder, member)
        # Its followers have tables that are up to 10 s older: operation.md.
        shutil.rmtree(member.folder / "config")
        shutil.copytree(master / "config", member.folder / "config")
    group.start(_READY_S)
    lab.say("a tallystick group started on copies of its folders")
    _check_moved(lab, peer, group, with_transactions=True)
    group.stop()
    summary = lab.convert(master, lab.work / "copy", "--to", "dledger")
    lab.say(f"{summary['records']} records of one folder converted")
    copied = lab.group("by-copy", founders=1)
    _put(lab.work / "copy", copied.members[0])
    _grow(copied)
    _check_moved(lab, peer, copied, with_transactions=False)
    copied.stop()


def _master_of(folders: list[Path]) -> int:
    """The member that led last: dledger's files of the newest term name it."""
    votes: list[tuple[int, str]] = []
    for number, folder in enumerate(folders):
        pairs = dict(line.split("=", 1) for line in (folder / f"dledger-n{number}" / "currterm").read_text().split())
        votes.append((int(pairs["currTerm"]), pairs["voteLeader"]))
    return int(max(votes)[1].removeprefix("n"))


_PARTS = {"plain": plain, "dledger": dledger}


def main() -> int:
    """Runs the parts; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="400 messages and 3 kills")
    parser.add_argument("--only", choices=sorted(_PARTS))
    arguments = parser.parse_args()
    messages, kills = (400, 3) if arguments.short else (arguments.messages, arguments.kills)
    end_on_signals()
    problems: list[str] = []
    with work_folder("convert-") as work:
        for name, part in _PARTS.items():
            if arguments.only not in (None, name):
                continue
            lab = Lab(work.path / name, messages, kills, arguments.seed)
            lab.work.mkdir()
            try:
                part(lab)
            except PeerMissingError as error:
                print(error, file=sys.stderr)
                return 2
            except ProcessError as error:
                lab.problems.add(str(error))
            finally:
                lab.close()
            problems += [f"{name}: {each}" for each in lab.problems.lines()]
        for problem in problems:
            print(f"WRONG  {problem}", file=sys.stderr)
        work.status = 1 if problems else 0
        print("nothing lost, nothing different" if not problems else f"{len(problems)} things are wrong")
        return work.status


if __name__ == "__main__":
    sys.exit(main())
