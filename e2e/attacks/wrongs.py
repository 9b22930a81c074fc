"""Bytes of files that become wrong under running processes: of a plain broker, and of a group of three.

    unit        a unit of a ConsumeQueue: noise, that of another record, that of another queue, a wrong size
    entry       an entry of the index leads to another record
    property    one bit of a property of a record in the log
    membership  one bit of the entry in which a member of a group finds who belongs to the group

Each is done while the process runs, in turn at each member. Required: what a consumer pulls at the offset is the
message that was acknowledged there, or nothing for a while; a search returns the messages with the key. The log of the
process names the file, and `GET /node` counts the findings; afterwards no damage is open, and the file has its old
bytes again. One exception: nothing covers the properties of a plain broker's records, so that it serves the changed
byte; all else of the message is right. A member whose membership was damaged starts again, and the leader's damaged
membership does not keep a member with an empty disk from getting the log: the three logs are equal at the end, byte for
byte.
"""

from __future__ import annotations

import asyncio
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks.arena import Arena, ask, until
from attacks.traffic import Acknowledged, Pipe, send_command
from lab.damage import patch
from lab.group import Group
from lab.ledger import Problems, body_id
from lab.replicas import check_replicas
from lab.searching import search
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson
from tallystick.store.formats.queue_format import INDEX_ENTRY, INDEX_HEADER, UNIT, IndexGeometry, IndexHeader
from tallystick.store.formats.record import Record

_GEOMETRY = IndexGeometry(500, 3000)
_SEGMENT = 1 << 20
_SETTINGS = (
    f"mappedFileSizeCommitLog={_SEGMENT}",
    "mappedFileSizeConsumeQueue=20000",
    f"maxHashSlotNum={_GEOMETRY.slots}",
    f"maxIndexNum={_GEOMETRY.entries}",
    "flushDiskType=SYNC_FLUSH",
)
_TOPIC, _QUEUES, _MESSAGES, _SEED = "wrong", 2, 8000, 17
_MARK = "original"
_ENTRY_HEADER = 48
_REPAIRED_S = 60.0


@dataclass(slots=True)
class Victim:
    """A process whose files are damaged."""

    name: str
    address: str
    http_port: int
    store: Path
    log: Path
    """The log of the process."""
    segments: Path
    """The folder of the log's files."""

    def node(self) -> dict[str, Any]:
        """`GET /node`; empty: no answer."""
        status, text = ask(self.http_port, "/node")
        return dict(fastjson.loads(text.encode())) if status == 200 else {}

    def counts(self) -> dict[str, int]:
        """Findings by kind."""
        return dict(self.node().get("findings", {}).get("counts", {}))

    async def written_out(self, sent: Acknowledged) -> None:
        """Waits until the files of the ConsumeQueues have all units: a broker writes them at least once a second."""
        for queue in range(_QUEUES):
            path, at = self.units(queue, max(offset for _, number, offset in sent.at.values() if number == queue))

            def written(path: Path = path, at: int = at) -> bool:
                return path.exists() and any(path.read_bytes()[at : at + UNIT.size])

            if await until(written, _REPAIRED_S, 0.1) is None:
                raise TimeoutError(f"{self.name}: {path} lacks units after {_REPAIRED_S:.0f} s, see {self.log}")

    def open_damage(self) -> float:
        """Damaged places that are not repaired yet; -1: it does not answer."""
        status, text = ask(self.http_port, "/metrics")
        lines = [line for line in text.splitlines() if line.startswith("rocketmq_storage_unrepaired_damage")]
        return float(lines[0].rsplit(" ", 1)[1]) + len(self.node().get("unrepaired", [])) if status == 200 else -1.0

    def units(self, queue: int, number: int) -> tuple[Path, int]:
        """File and byte of a unit."""
        start = number * UNIT.size // 20_000 * 20_000
        return self.store / "consumequeue" / _TOPIC / str(queue) / f"{start:020d}", number * UNIT.size - start

    def find(self, data: bytes) -> tuple[Path, int]:
        """File and byte of these bytes in the log. LookupError: they are not there."""
        for path in sorted(self.segments.iterdir()):
            if (at := path.read_bytes().find(data)) >= 0:
                return path, at
        raise LookupError(f"{data!r} is not in {self.segments}")


class Wrongs:
    """One broker or group, and its acknowledged messages."""

    def __init__(self, arena: Arena) -> None:
        self.arena, self.rng = arena, random.Random(_SEED)
        self.sent = Acknowledged()
        self.seen: dict[str, str] = {}
        """The results of a consumer, by kind of damage and process."""
        self._aimed = "", 0, 0

    async def fill(self, address: str) -> None:
        names = [f"m{n}" for n in range(self.arena.scaled(_MESSAGES, 5000))]
        pipe = Pipe(address, lambda n, answer: self.sent.note(_TOPIC, int(n[1:]) % _QUEUES, n, answer), window=200)
        pad = b"x" * 100
        await pipe.run(
            (n, send_command(_TOPIC, int(n[1:]) % _QUEUES, f"{n}|".encode() + pad, {"KEYS": n, "mark": f"{n}-{_MARK}"}))
            for n in names
        )
        self.arena.check(len(self.sent.at) == len(names), f"{len(self.sent.at)} acknowledged: {self.sent.refused}")

    def draw(self) -> tuple[str, int, int]:
        """A message of the older half: name, queue, offset."""
        name = self.rng.choice(list(self.sent.at)[: len(self.sent.at) // 2])
        return name, self.sent.at[name][1], self.sent.at[name][2]

    async def pulled(self, victim: Victim, queue: int, offset: int) -> Record | None:
        """The record at this offset; None: no record is delivered."""
        async with ClusterClient("", timeout_s=10) as client:
            try:
                found = await client.pull(QueueAddress(_TOPIC, "", victim.address, queue), offset, group="w", count=1)
            except RemotingError:
                return None
        return found.records[0] if found.records and found.records[0].queue_offset == offset else None

    async def _comes(self, victim: Victim, what: str, *, whole: bool = True) -> None:
        """Pulls the message until it is delivered; each delivered message has to be right. `whole`: its properties,
        too."""
        name, queue, offset = self._aimed
        answers = 0

        async def right() -> bool:
            nonlocal answers
            answers += 1
            record = await self.pulled(victim, queue, offset)
            if record is None:
                return False
            good = body_id(record.body) == name and (record.property_table()["mark"] == f"{name}-{_MARK}" or not whole)
            self.arena.check(
                good, f"{what}: a pull at offset {offset} returned {record.body[:20]!r} {record.property_table()}"
            )
            return True

        seconds = await until(right, _REPAIRED_S, 0.05)
        self.arena.check(seconds is not None, f"{what}: {name} at queue {queue} offset {offset} is not delivered")
        self.seen[what] = "the message" if answers == 1 else f"nothing, then the message after {seconds or 0:.2f} s"

    async def _repaired(self, victim: Victim, what: str, path: Path, before: bytes, counts: dict[str, int]) -> None:
        """Checks that no damage is open, the file is as before, and the process has reported it."""
        seconds = await until(lambda: victim.open_damage() == 0 and _same(path, before), _REPAIRED_S, 0.1)
        self.arena.check(seconds is not None, f"{what}: {victim.open_damage()} places open, {path} differs from before")
        told = victim.counts()
        more = {kind: told.get(kind, 0) - counts.get(kind, 0) for kind in ("damage", "rebuilt", "repaired")}
        named = str(path.relative_to(victim.store)) in victim.log.read_text()
        self.arena.check(more["damage"] >= 1 and sum(more.values()) >= 2, f"{what}: /node counts {more} more findings")
        self.arena.check(named, f"{what}: {victim.log} does not name {path}")
        text = victim.log.read_text()
        self.arena.check("Traceback" not in text, f"{what}: a traceback in {victim.log}")

    async def damage_each(self, victim: Victim, *, covered: bool) -> None:
        """Damages units, an entry and a property of one process. `covered`: a CRC covers the properties."""
        await victim.written_out(self.sent)
        for kind in ("noise", "of another record", "of another queue", "of a wrong size"):
            await self.unit(victim, kind)
        await self.entry(victim)
        await self.property(victim, covered=covered)

    # -- the four kinds ------------------------------------------------------------------------------------------------

    async def unit(self, victim: Victim, kind: str) -> None:
        self._aimed = _, queue, offset = self.draw()
        path, at = victim.units(queue, offset)
        before, counts = path.read_bytes(), victim.counts()
        other, there = victim.units(1 - queue if kind == "of another queue" else queue, offset + 7)
        unit = {
            "noise": self.rng.randbytes(UNIT.size),
            "of another record": other.read_bytes()[there : there + UNIT.size],
            "of another queue": other.read_bytes()[there : there + UNIT.size],
            "of a wrong size": before[at : at + 8] + struct.pack(">i", 77) + before[at + 12 : at + 20],
        }[kind]
        patch(path, at, unit)
        what = f"{victim.name}: a unit {kind}"
        await self._comes(victim, what)
        await self._repaired(victim, what, path, before, counts)

    async def entry(self, victim: Victim) -> None:
        """The broker may give the rebuilt file another name, so that its content is compared by searches."""
        path = min((victim.store / "index").iterdir())
        data = path.read_bytes()
        header = IndexHeader(*INDEX_HEADER.unpack_from(data))
        number = self.rng.randrange(2, header.next_entry - 1)
        at, other = _GEOMETRY.entry_at(number), _GEOMETRY.entry_at(number - 1)
        pos, wrong = (INDEX_ENTRY.unpack_from(data, each)[1] for each in (at, other))
        with (victim.segments / f"{pos - pos % _SEGMENT:020d}").open("rb") as file:
            file.seek(pos % _SEGMENT)
            key = body_id(Record.decode(file.read(4096)).body)
        counts = victim.counts()
        patch(path, at + 4, struct.pack(">q", wrong))
        what, answers = f"{victim.name}: an entry of the index", 0

        async def right() -> bool:
            nonlocal answers
            answers += 1
            names = await _search(victim, key)
            self.arena.check(set(names) <= {key}, f"{what}: a search for {key} returns {names}")
            return names == [key]

        seconds = await until(right, _REPAIRED_S, 0.05)
        self.arena.check(seconds is not None, f"{what}: a search for {key} does not return it")
        self.seen[what] = "the message" if answers == 1 else f"nothing, then the message after {seconds or 0:.2f} s"
        await until(lambda: victim.counts().get("rebuilt", 0) > counts.get("rebuilt", 0), _REPAIRED_S, 0.1)
        rebuilt = victim.counts().get("rebuilt", 0) > counts.get("rebuilt", 0)
        self.arena.check(
            rebuilt and victim.open_damage() == 0, f"{what}: {victim.counts()}, {victim.open_damage()} open"
        )
        self.arena.check(f"index/{path.name}" in victim.log.read_text(), f"{what}: the log does not name {path}")

    async def property(self, victim: Victim, *, covered: bool) -> None:
        """`covered`: a CRC covers the properties."""
        self._aimed = name, queue, offset = self.draw()
        path, at = victim.find(f"\x01{name}-{_MARK}".encode())
        before, counts = path.read_bytes(), victim.counts()
        patch(path, at + len(name) + 4, bytes([before[at + len(name) + 4] ^ 1]))
        what = f"{victim.name}: a property"
        await self._comes(victim, what, whole=covered)
        if covered:
            await self._repaired(victim, what, path, before, counts)
            return
        record = await self.pulled(victim, queue, offset)
        changed = record is not None and record.property_table()["mark"] != f"{name}-{_MARK}"
        self.seen[what] += ", with the changed property" if changed else ""
        patch(path, 0, before)


async def run(arena: Arena) -> None:
    await _plain(arena)
    await _group(arena)


async def _plain(arena: Arena) -> None:
    wrongs, tally = Wrongs(arena), Tally(arena.work / "plain", _SETTINGS)
    try:
        tally.start()
        async with ClusterClient("", timeout_s=30) as client:
            await client.create_topic(tally.broker, _TOPIC, _QUEUES)
        await wrongs.fill(tally.broker)
        victim = Victim("plain", tally.broker, tally.http_port, tally.store, tally.log, tally.store / "commitlog")
        await wrongs.damage_each(victim, covered=False)
        for wrong in (await wrongs.sent.missing(tally.broker))[:5]:
            arena.check(False, f"plain: {wrong}")
        tally.stop()
        await asyncio.to_thread(arena.check_store, tally.store, "plain")
    finally:
        tally.kill()
    for what, seen in wrongs.seen.items():
        arena.figure(f"{what}: a consumer sees", seen)


async def _group(arena: Arena) -> None:
    wrongs, group = Wrongs(arena), Group(arena.work / "group", _SETTINGS)
    try:
        leader = await asyncio.to_thread(group.start)
        async with ClusterClient("", timeout_s=30) as client:
            await client.create_topic(leader.address, _TOPIC, _QUEUES)
        await wrongs.fill(leader.address)
        await asyncio.to_thread(group.wait, group.is_at_rest, 60, "the group is at rest")
        for member in group.members:
            role = "leader" if member is group.leader() else "follower"
            victim = Victim(
                f"{member.name} ({role})", member.address, member.http_port, member.folder, member.log,
                member.ledger / "data",
            )  # fmt: skip
            await wrongs.damage_each(victim, covered=True)
        await _membership(arena, wrongs, group)
        for member in group.members:
            for wrong in (await wrongs.sent.missing(member.address))[:5]:
                arena.check(False, f"{member.name}: {wrong}")
        commit = min(status.commit_index for status in group.statuses().values())
        problems = Problems()
        compared = check_replicas({member.name: member.ledger for member in group.members}, commit, problems)
        arena.check(not problems.count, f"the logs differ: {problems.texts[:3]}")
        arena.figure("bytes of three logs that are equal", compared)
        await asyncio.to_thread(group.stop)
    finally:
        group.kill()
    for what, seen in wrongs.seen.items():
        arena.figure(f"{what}: a consumer sees", seen)


async def _membership(arena: Arena, wrongs: Wrongs, group: Group) -> None:
    """The first entry of the log is the membership: at a follower that is killed and started, and at the leader when a
    member asks for the whole log."""
    leader = group.leader()
    assert leader is not None, "the group is complete"
    follower, other = (member for member in group.members if member is not leader)
    path = follower.ledger / "data" / f"{0:020d}"
    before = path.read_bytes()
    patch(path, _ENTRY_HEADER + 120, bytes([before[_ENTRY_HEADER + 120] ^ 1]))
    follower.kill()
    follower.launch()
    await asyncio.to_thread(group.wait, group.is_at_rest, 120, "the follower is back")
    seconds = await until(lambda: _same(path, before), _REPAIRED_S, 0.1)
    arena.check(seconds is not None, f"the membership of {follower.name} differs from before: {follower.log}")
    arena.figure("a follower's membership: seconds from the start until the entry was repaired", seconds)
    path = leader.ledger / "data" / f"{0:020d}"
    patch(path, _ENTRY_HEADER + 120, bytes([before[_ENTRY_HEADER + 120] ^ 1]))
    other.kill()
    other.empty()
    other.launch()
    took = await asyncio.to_thread(group.wait, group.is_at_rest, 120, "the empty member has the log")
    arena.figure("the leader's membership damaged: seconds until an emptied member had the log", round(took, 1))
    repaired = await until(lambda: _same(path, before), _REPAIRED_S, 0.1)
    arena.check(repaired is not None, f"the leader's membership differs from before: {leader.log}")


async def _search(victim: Victim, key: str) -> list[str]:
    """The names of the messages that a search by key returns."""
    async with ClusterClient("", timeout_s=10) as client:
        try:
            return [body_id(record.body) for record in await search(client, victim.address, _TOPIC, key)]
        except RemotingError:
            return []


def _same(path: Path, before: bytes) -> bool:
    return path.read_bytes()[: len(before)] == before
