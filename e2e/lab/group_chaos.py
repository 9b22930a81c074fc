"""The part of `migrate_lab.py` in which a group that follows a RocketMQ 4.8.0 master gets everything at once.

The master takes load all the time. Meanwhile members are killed with -9, the leader or others or two at a time; one is
stopped for seconds; a bit of a sealed segment is turned over; the disk of one member is full; and what answers at the
master's port for slaves is sometimes a stranger, or lies about positions. Afterwards the group has the master's records
in the master's order, each once, on every member the same bytes, and takes the master's place.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from lab.adopting import prepare
from lab.adoption import CuttingProxy
from lab.damage import CannotMountError, SmallDisks, fill, flip_a_byte
from lab.group import Status
from lab.group_adopting import GroupAdoptLab, judge_group
from lab.ledger import Problems
from lab.load import Shape, run_load
from lab.pair import TallyBroker, log_end
from lab.places import HOST
from lab.processes import ProcessError
from lab.replicas import check_replicas, entries_of, sealed_segments

from tallystick.node.broker.copying.protocol import HEADER
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES
from tallystick.store.formats.record import BLANK_MAGIC, without_positions

SEGMENT_BYTES = 1 << 20
_KILLS = 10
_LIES = 6
_CUTS = 6
_DISK_MB = 400
_SHAPE = Shape(connections=2, senders=4, rest_s=0.05, new_topics=0.0)
_STOPPED_S = 3.0
_FULL_S = 6.0
_REPAIR_S = 240.0
_TURN_BYTES = 2 << 20
_TURN_S = 120.0
_BLANK = BLANK_MAGIC.to_bytes(4, signed=True)


class LyingProxy(CuttingProxy):
    """As `CuttingProxy`, but `lies` connections get something else than the master's log."""

    def __init__(self, target: int, cuts: int, rng: random.Random, most_bytes: int, lies: int) -> None:
        super().__init__(target, cuts, rng, most_bytes)
        self.lies = lies

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.lies == 0 or self._rng.random() < 0.5:
            await super()._serve(reader, writer)
            return
        self.lies -= 1
        try:
            asked = int.from_bytes(await reader.readexactly(8), signed=True)
            lie = self._rng.choice(
                (
                    HEADER.pack(asked + 8, 100) + bytes(100),  # another position
                    HEADER.pack(max(0, asked - 4096), 4096) + bytes(4096),  # what was asked for before
                    HEADER.pack(asked, 1 << 30),  # more than a part can have
                    HEADER.pack(asked, 512) + self._rng.randbytes(512),  # no records
                    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
                )
            )
            writer.write(lie)
            await writer.drain()
            await reader.read(1)  # until it goes
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()


async def chaos(lab: GroupAdoptLab) -> None:
    """See the module."""
    await prepare(lab)
    proxy = LyingProxy(lab.peer.port + 1, _CUTS, lab.rng, max(100_000, lab.messages * 40), _LIES)
    through = f"haMasterAddress={HOST}:{await proxy.start()}"
    disks = SmallDisks([_folder(lab.members[-1])], _DISK_MB)
    _folder(lab.members[-1]).mkdir()
    try:
        disks.mount()
    except CannotMountError as error:
        lab.say(f"no disk will be full, because none can be mounted: {error}")
    stop = asyncio.Event()
    load = asyncio.create_task(run_load(lab.master, lab.ledger, f"{lab.seed}.0", _SHAPE, lab.seed, stop))
    try:
        await asyncio.to_thread(lab.start, through)
        await _everything(lab, through, has_small_disk=bool(disks.mounted))
        while len(lab.ledger.places) < lab.messages and not load.done():  # noqa: ASYNC110  # the ledger has no event
            await asyncio.sleep(0.1)
        stop.set()
        await load
        lab.say(f"{len(lab.ledger.places)} acknowledged; {proxy.lies} of {_LIES} lies were not told")
        await asyncio.to_thread(lab.other.start)
        lab.say(f"the group follows: {await lab.group_follows()}")
        await _compare(lab)
        done = await asyncio.to_thread(lab.promote)
        lab.say(f"promoted: {done}")
        if done["strayBytes"] or done["missingBytes"]:
            lab.problems.add(f"the old master has messages that were not copied: {done}")
        lab.ledger.forget_positions()
        await judge_group(lab)
    finally:
        stop.set()
        await asyncio.gather(load, return_exceptions=True)
        await proxy.close()
        lab.close()
        disks.unmount()


async def _everything(lab: GroupAdoptLab, through: str, *, has_small_disk: bool) -> None:
    """`_KILLS` kills while the group copies, and the other faults between them."""
    has_flipped, pos = False, 0
    for turn in range(_KILLS):
        pos = await _copied_more(lab, pos)
        leader = await asyncio.to_thread(lab.leader)
        others = [member for member in lab.members if member is not leader]
        kind = lab.rng.choice(("leader", "leader", "other", "two"))
        victims = {"leader": [leader], "other": [lab.rng.choice(others)], "two": [leader, lab.rng.choice(others)]}[kind]
        for victim in victims:
            victim.kill()
        lab.say(
            f"kill {turn + 1}: {kind} ({', '.join(_name(victim) for victim in victims)}) at {pos} of the master's log"
        )
        await asyncio.sleep(lab.rng.random())  # as long as a supervisor takes, or no time
        if not has_flipped and sealed_segments(ledger_of(victims[0])):
            await _flip(lab, victims[0])
            has_flipped = True
        await asyncio.gather(*(asyncio.to_thread(victim.start, through) for victim in victims))
        if turn == 2:
            await _pause(lab)
        if turn == 4 and has_small_disk:
            await _full(lab)
    if not has_flipped:
        lab.problems.add("no segment of a member that was killed was sealed: no bit could be turned over")


async def _copied_more(lab: GroupAdoptLab, before: int) -> int:
    """Returns where the group has committed the master's log, when this is some way behind `before`: so it copies at
    this moment. ProcessError: it does not get on."""
    wanted = before + 1 + lab.rng.randrange(_TURN_BYTES)
    deadline = time.monotonic() + _TURN_S
    while time.monotonic() < deadline:
        try:
            leader = await asyncio.to_thread(lab.leader)
            pos = int((await asyncio.to_thread(leader.node))["copy"].get("safePos") or 0)
        except OSError:
            continue  # it was paused, or it is busy
        if pos >= wanted:
            return pos
        await asyncio.sleep(0.05)
    raise ProcessError(f"the group does not get on from {before} of the master's log")


async def _flip(lab: GroupAdoptLab, victim: TallyBroker) -> None:
    """Turns one bit over in a sealed segment of a member that is down."""
    path, at = flip_a_byte(ledger_of(victim), lab.rng.randrange(1 << 30))
    lab.say(f"a bit at byte {at} of {path.name} of {_name(victim)} is turned over")


async def _pause(lab: GroupAdoptLab) -> None:
    """The leader gets no time for some seconds, and then continues as if nothing had happened."""
    leader = await asyncio.to_thread(lab.leader)
    os.kill(leader.pid, signal.SIGSTOP)
    await asyncio.sleep(_STOPPED_S)
    os.kill(leader.pid, signal.SIGCONT)
    lab.say(f"the leader {_name(leader)} was stopped for {_STOPPED_S:g} s")


async def _full(lab: GroupAdoptLab) -> None:
    """The disk of the last member is full for some seconds."""
    filler = await asyncio.to_thread(fill, _folder(lab.members[-1]))
    await asyncio.sleep(_FULL_S)
    filler.unlink()
    lab.say(f"the disk of {_name(lab.members[-1])} was full for {_FULL_S:g} s")


# -- what must be the same ---------------------------------------------------------------------------------------------


async def _compare(lab: GroupAdoptLab) -> None:
    """The members have one log, and it has the master's records in the master's order."""
    end = await log_end(lab.master)
    leader = await asyncio.to_thread(lab.leader)
    commit = (await asyncio.to_thread(_status, leader)).commit_index
    deadline = time.monotonic() + _REPAIR_S
    while not await asyncio.to_thread(_are_equal, lab, commit):
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(1.0)
    ledgers = {_name(member): ledger_of(member) for member in lab.members}
    compared = await asyncio.to_thread(check_replicas, ledgers, commit, lab.problems)
    lab.say(f"the members have the same {compared // 2} bytes of log up to entry {commit}")
    count = await asyncio.to_thread(compare_with_master, lab.commitlog, ledger_of(leader), end, lab.problems)
    lab.say(f"the group has all {count} records of the master's log, in the same order and with the same bytes")


def _are_equal(lab: GroupAdoptLab, commit: int) -> bool:
    problems = Problems()
    check_replicas({_name(member): ledger_of(member) for member in lab.members}, commit, problems)
    return not problems.count


def compare_with_master(commitlog: Path, ledger: Path, end: int, problems: Problems, *, more: bool = False) -> int:
    """Compares the records of a master's log up to `end` with those in the entries of a group's; how many there are.
    `more`: the group may have others behind them."""
    ours = _of_group(ledger)
    count = 0
    for pos, record in _of_master(commitlog, end):
        own = next(ours, None)
        if own is None or without_positions(own[1]) != without_positions(record):
            where = "nothing" if own is None else f"another record at {own[0]}"
            problems.add(f"record {count} of the master, at {pos}: the group has {where}")
            return count
        count += 1
    if not more and (own := next(ours, None)) is not None:
        problems.add(f"the group has more than the master's {count} records, at {own[0]}")
    return count


def _of_master(commitlog: Path, end: int) -> Iterator[tuple[int, bytes]]:
    for path in sorted(each for each in commitlog.iterdir() if each.name.isdigit()):
        begin, at, data = int(path.name), 0, path.read_bytes()
        while at + 8 <= len(data) and begin + at < end:
            size = int.from_bytes(data[at : at + 4])
            if data[at + 4 : at + 8] != _BLANK:
                yield begin + at, data[at : at + size]
            at += size


def _of_group(ledger: Path) -> Iterator[tuple[int, bytes]]:
    """Position and bytes of the records. The other entries are the group's own."""
    for path in sorted(each for each in (ledger / "data").iterdir() if each.name.isdigit()):
        data = path.read_bytes()
        for at, size in entries_of(path):
            is_message = int.from_bytes(data[at + 32 : at + 36]) == 0
            if is_message and size > ENTRY_HEADER_BYTES:
                yield int(path.name) + at, data[at + ENTRY_HEADER_BYTES : at + size]


def _status(member: TallyBroker) -> Status:
    with urllib.request.urlopen(f"http://{member.http}/group", timeout=30) as answer:
        return Status.parse(json.loads(answer.read()))


def _folder(member: TallyBroker) -> Path:
    return member.commitlog.parent


def _name(member: TallyBroker) -> str:
    return _folder(member).name


def ledger_of(member: TallyBroker) -> Path:
    """The folder of a member's log that has `data` and `index`."""
    return _folder(member) / f"dledger-{_name(member)}"
