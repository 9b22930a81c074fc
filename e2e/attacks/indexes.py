"""Index files that are rebuilt from the log, and a scrub of index files and extensions, disturbed.

A broker has many small index files and ConsumeQueues with extensions. Each round damages a file and then disturbs what
follows from the damage:

    kills   an index file is damaged before a start, which makes the broker rebuild it; `kill -9` at a random moment of
            the rebuild. In every third round an extension and the time of an index entry are damaged, which only the
            scrub finds, and `kill -9` meets the scrub
    full    an entry of the running broker's index is damaged, the disk is full, and a search meets the entry; what the
            removal of the damaged file frees is taken at once
    EIO     the same with one kind of call that fails under `index/`; and reads that fail under the scrub

Required: the broker runs on while its index cannot be written, and serves pulls; it may refuse sends until dispatch
continues. When the cause is gone, and after a restart, searches by key return exactly the
messages with the key, no damage stays open, every acknowledged message is at its offset, dispatch has reached the end
of the log, and `tally store verify` finds nothing at the end.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import struct
import threading
import time
from collections import Counter
from pathlib import Path

from attacks.arena import Arena, metric, node, until
from attacks.disk_shim import Call, DiskErrors
from attacks.traffic import Acknowledged, Pipe, read_queue, send_command
from lab.damage import CannotMountError, SmallDisks, fill, patch
from lab.ledger import body_id
from lab.searching import search
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.errors import RemotingError
from tallystick.store.formats.queue_format import INDEX_ENTRY, INDEX_HEADER, IndexGeometry, IndexHeader
from tallystick.store.formats.record import Record

_GEOMETRY = IndexGeometry(1000, 8000)
_SETTINGS = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=20000",
    f"maxHashSlotNum={_GEOMETRY.slots}",
    f"maxIndexNum={_GEOMETRY.entries}",
    "enableConsumeQueueExt=true",
    "enableCalcFilterBitMap=true",
    "mappedFileSizeConsumeQueueExt=65536",
    "flushDiskType=SYNC_FLUSH",
    "scrubBytesPerSecond=67108864",
    "diskSpaceWarningLevelRatio=1.0",
    "diskSpaceCleanForciblyRatio=1.0",
)
_TOPIC, _QUEUES = "indexed", 2
_MESSAGES, _KILLS, _MORE, _SEED = 60_000, 24, 100, 5
_SAMPLE = 40
_DISK_MIB = 256
_CALLS = (Call.OPEN, Call.WRITE, Call.SYNC, Call.REMOVE, Call.ALLOCATE, Call.READ, Call.RENAME)
_SETTLED_S, _DISTURBED_S = 60.0, 3.0


class Indexed:
    """One broker, and its acknowledged messages."""

    def __init__(self, arena: Arena, folder: Path, rng: random.Random) -> None:
        self.arena, self.rng = arena, rng
        self.tally = Tally(folder, _SETTINGS)
        self.sent = Acknowledged()

    async def begin(self, count: int) -> None:
        """Starts the broker and fills it."""
        self.tally.start()
        async with ClusterClient("", timeout_s=30) as client:
            await client.create_topic(self.tally.broker, _TOPIC, _QUEUES)
        await self.send(count)
        self.arena.check(
            len(self.sent.at) == count, f"{len(self.sent.at)} of {count} acknowledged: {self.sent.refused}"
        )

    async def send(self, count: int) -> int:
        """Sends more messages with keys; returns the number of acknowledged ones."""
        before = len(self.sent.at)
        names = [f"m{n}" for n in range(before, before + count)]
        pipe = Pipe(self.tally.broker, lambda n, answer: self.sent.note(_TOPIC, int(n[1:]) % _QUEUES, n, answer))
        requests = (
            (n, send_command(_TOPIC, int(n[1:]) % _QUEUES, f"{n}|".encode().ljust(100, b"x"), {"KEYS": n}))
            for n in names
        )
        await asyncio.wait_for(pipe.run(requests), 300)
        return len(self.sent.at) - before

    def index_files(self) -> list[Path]:
        return sorted((self.tally.store / "index").iterdir())

    async def found(self, client: ClusterClient, key: str) -> list[str]:
        """Returns the names of the messages that a search by key finds."""
        try:
            return [body_id(record.body) for record in await search(client, self.tally.broker, _TOPIC, key)]
        except RemotingError:
            return []

    async def settled(self, *keys: str) -> bool:
        """Whether nothing is damaged, nothing waits for dispatch, and searches for `keys` and other keys are right."""
        if metric(self.tally, "rocketmq_storage_unrepaired_damage") or self.behind():
            return False
        names = [*keys, *self.rng.sample(list(self.sent.at), _SAMPLE), *list(self.sent.at)[-_SAMPLE:]]
        async with ClusterClient("", timeout_s=30) as client:
            return all([await self.found(client, name) == [name] for name in names])

    def behind(self) -> int:
        """Bytes of the log that wait for dispatch; 1 if unknown."""
        return int((node(self.tally).get("store") or {}).get("dispatchBehindBytes", 1))

    async def check(self, what: str) -> float | None:
        """Checks the final state; returns the seconds until searches were right."""
        check = self.arena.check
        taken = await self.send(_MORE)
        check(taken == _MORE, f"{what}: {taken} of {_MORE} sends were accepted: {self.sent.refused}")
        seconds = await until(self.settled, _SETTLED_S, 0.1)
        damage = metric(self.tally, "rocketmq_storage_unrepaired_damage")
        check(seconds is not None, f"{what}: searches are wrong, {damage} places damaged, {self.behind()} bytes behind")
        for wrong in (await self.sent.missing(self.tally.broker))[:3]:
            check(False, f"{what}: {wrong}")
        return seconds

    def verify(self, what: str) -> None:
        """Checks that the stopped store is sound."""
        self.arena.check_store(self.tally.store, what)
        text = self.tally.log.read_text()
        self.arena.check("Traceback" not in text, f"{what}: a traceback, see {self.tally.log}")

    # -- damage --------------------------------------------------------------------------------------------------------

    def break_chain(self, path: Path) -> None:
        """Damages slots of an index file: a start finds that its chains are wrong."""
        number = self.rng.randrange(_GEOMETRY.slots - 8)
        patch(path, _GEOMETRY.slot_at(number), self.rng.randbytes(32))

    def break_time(self, path: Path) -> None:
        """Changes the time of an entry: only the scrub compares it."""
        patch(path, _GEOMETRY.entry_at(self.rng.randrange(1, 4000)) + 12, struct.pack(">i", 9_999))

    def break_extension(self) -> bool:
        """Damages an extension unit of a full file, if there is one."""
        files = sorted((self.tally.store / "consumequeue_ext" / _TOPIC / "0").glob("*"))[:-1]
        if files:
            patch(self.rng.choice(files), self.rng.randrange(8, 20_000), self.rng.randbytes(16))
        return bool(files)

    def break_entry(self, path: Path) -> str:
        """Makes an entry of an index file point to another record; returns the key of a search that reads it."""
        data = path.read_bytes()
        header = IndexHeader(*INDEX_HEADER.unpack_from(data))
        number = self.rng.randrange(2, header.next_entry - 1)
        _, pos, _, _ = INDEX_ENTRY.unpack_from(data, _GEOMETRY.entry_at(number))
        log = self.tally.store / "commitlog" / f"{pos - pos % 1048576:020d}"
        with log.open("rb") as file:
            file.seek(pos % 1048576)
            key = Record.decode(file.read(4096)).body.split(b"|")[0].decode()
        patch(path, _GEOMETRY.entry_at(number) + 4, struct.pack(">q", pos - 1))
        return key


async def run(arena: Arena) -> None:
    rng = random.Random(_SEED)
    await _kills(arena, rng)
    await _full(arena, rng)
    await _errors(arena, rng)


async def _kills(arena: Arena, rng: random.Random) -> None:
    indexed = Indexed(arena, arena.work / "kills", rng)
    tally, met, times = indexed.tally, Counter[str](), []
    try:
        await indexed.begin(arena.scaled(_MESSAGES, 24_000))
        arena.figure("index files; files of extensions", [
            len(indexed.index_files()), sum(1 for _ in (tally.store / "consumequeue_ext").glob("*/*/*")),
        ])  # fmt: skip
        tally.stop()
        for number in range(arena.scaled(_KILLS, 4)):
            by_scrub = number % 3 == 2
            if by_scrub:
                indexed.break_time(indexed.index_files()[0])
                arena.check(indexed.break_extension(), "no extension is full")
                (tally.store / "tally-scrub").unlink(missing_ok=True)
            else:
                indexed.break_chain(rng.choice(indexed.index_files()[:3]))
            met[await asyncio.to_thread(_kill, tally, indexed.index_files(), rng, by_scrub=by_scrub)] += 1
            tally.start()
            times.append(await indexed.check(f"kill {number}{' in a scrub' if by_scrub else ''}") or 0.0)
            tally.stop()
        arena.figure("kills, by what they interrupted", dict(met))
        arena.figure("seconds until the index was complete after a kill, at most", round(max(times), 2))
        arena.check(met["in a rebuild"] > 0, f"no kill interrupted a rebuild: {dict(met)}")
        indexed.verify("kills")
    finally:
        tally.kill()
    shutil.rmtree(tally.folder)


def _kill(tally: Tally, files: list[Path], rng: random.Random, *, by_scrub: bool) -> str:
    """Starts a broker and kills it while it rebuilds the index or scrubs; returns what the kill interrupted."""
    inodes = {path.stat().st_ino for path in files}
    tally.launch()
    if by_scrub:
        tally.wait_ready()
        time.sleep(rng.uniform(0, 1.5))
        read = metric(tally, "rocketmq_storage_scrubbed_bytes_total")
        tally.kill()
        return "a scrub that had begun" if read else "no scrub yet"
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s and inodes <= _inodes(tally):
        time.sleep(0.0005)
    time.sleep(rng.choice((0.0, rng.uniform(0, 0.02), rng.uniform(0, 0.2))))
    tally.kill()
    return "in a rebuild" if len(_inodes(tally)) < len(files) else "after it"


def _inodes(tally: Tally) -> set[int]:
    return {entry.inode() for entry in os.scandir(tally.store / "index")}


async def _disturbed(indexed: Indexed, what: str) -> tuple[str, list[object]]:
    """A search finds damage that cannot be repaired now; pulls continue. Returns its key, and the results."""
    tally, arena = indexed.tally, indexed.arena
    key = indexed.break_entry(indexed.index_files()[0])
    async with ClusterClient("", timeout_s=30) as client:
        names = await indexed.found(client, key)
        arena.check(set(names) <= {key}, f"{what}: a search for {key} found {names}")
        await asyncio.sleep(_DISTURBED_S)
        pulled = await client.pull(QueueAddress(_TOPIC, "", tally.broker, 0), 0, group="indexes")
        arena.check(bool(pulled.records), f"{what}: a pull returned no message")
    taken = await indexed.send(20)
    arena.check(tally.alive, f"{what}: the broker ended")
    return key, [f"{taken} of 20 sends accepted", f"{indexed.behind()} bytes behind"]


async def _ended(indexed: Indexed, what: str, key: str, seen: list[object]) -> None:
    """After the cause is removed: checks the state without a restart, and after one."""
    tally, arena = indexed.tally, indexed.arena
    alone = await until(lambda: indexed.settled(key), _SETTLED_S, 0.2)
    arena.check(alone is not None, f"{what}: the broker does not rebuild the index without a restart")
    arena.figure(
        f"{what}: in the meantime; seconds until the index was complete without a restart",
        [*seen, alone and round(alone, 1)],
    )
    tally.kill()
    tally.start()
    await indexed.check(what)
    async with ClusterClient("", timeout_s=30) as client:
        low, names = await read_queue(client, tally.broker, _TOPIC, 0)
    arena.check(low == 0 and len(names) > 0, f"{what}: dispatch did not continue")
    tally.stop()
    indexed.verify(what)


async def _full(arena: Arena, rng: random.Random) -> None:
    folder = arena.work / "full"
    folder.mkdir()
    disks = SmallDisks([folder], _DISK_MIB)
    try:
        disks.mount()
    except CannotMountError as error:
        arena.figure("full disk: not tried", str(error))
        return
    indexed = Indexed(arena, folder, rng)
    try:
        await indexed.begin(arena.scaled(_MESSAGES, 24_000))
        over = threading.Event()
        filling = asyncio.create_task(asyncio.to_thread(_keep_full, folder, over))
        try:
            await until(lambda: shutil.disk_usage(folder).free == 0, 30)
            key, seen = await _disturbed(indexed, "a full disk")
        finally:
            over.set()
        (await filling).unlink()
        await _ended(indexed, "a full disk", key, seen)
    finally:
        indexed.tally.kill()
        disks.unmount()


def _keep_full(folder: Path, over: threading.Event) -> Path:
    """Fills the disk, also space that becomes free, until `over`; yields the file."""
    filler = fill(folder)
    while not over.wait(0.001):
        fill(folder)
    return filler


async def _errors(arena: Arena, rng: random.Random) -> None:
    errors = DiskErrors(arena.work / "shim", "/index/")
    indexed = Indexed(arena, arena.work / "errors", rng)
    tally = indexed.tally
    tally.env = errors.env
    try:
        await indexed.begin(arena.scaled(_MESSAGES, 24_000))
        for call in _CALLS:
            errors.fail(call)
            key, seen = await _disturbed(indexed, f"EIO of {call.name}")
            seen.append(f"{errors.failed} calls failed")
            errors.fail(Call.NONE)
            await _ended(indexed, f"EIO of {call.name}", key, seen)
            tally.start()
        tally.stop()
    finally:
        errors.fail(Call.NONE)
        tally.kill()
    for place in ("/index/", "/consumequeue_ext/"):
        await _scrub_errors(arena, indexed, place)


async def _scrub_errors(arena: Arena, indexed: Indexed, place: str) -> None:
    """Reads of the scrub fail under `place`, where something is damaged as well."""
    tally, what = indexed.tally, f"a scrub with EIO under {place}"
    errors = DiskErrors(arena.work / f"shim{place.replace('/', '-')}", place)
    tally.env = errors.env
    indexed.break_time(indexed.index_files()[0])
    arena.check(indexed.break_extension(), "no extension is full")
    (tally.store / "tally-scrub").unlink(missing_ok=True)
    try:
        errors.fail(Call.NONE)
        tally.launch()
        tally.wait_ready()
        errors.fail(Call.READ)
        await until(lambda: errors.failed > 0, 20, 0.1)
        await asyncio.sleep(1)
        arena.check(tally.alive, f"{what}: the broker ended")
        arena.figure(f"{what}: calls failed; findings", [errors.failed, node(tally)["findings"]["counts"]])
        errors.fail(Call.NONE)
        tally.kill()
        (tally.store / "tally-scrub").unlink(missing_ok=True)  # the next pass is due in a week
        tally.start()
        await indexed.check(what)
        scrubbed = await until(lambda: bool((node(tally).get("scrub") or {}).get("lastPassEndedAt")), 60, 0.2)
        arena.figure(f"{what}: seconds of the next pass", scrubbed and round(scrubbed, 1))
        await indexed.check(f"{what}, after the next pass")
        tally.stop()
        indexed.verify(what)
    finally:
        errors.fail(Call.NONE)
        tally.kill()
