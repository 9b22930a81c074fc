"""`tally store repair` of a damaged store, on a full disk, with errors of the disk (EIO), and under `kill -9`.

One store is filled and stopped in order. Each round takes a copy and damages it: units of a ConsumeQueue, a missing
ConsumeQueue, an entry of the index, a table with a backup, the checkpoint. In every second round a record of the log is
damaged as well, and the repair cuts the log there (`--cut`). Then the repair is disturbed:

    kills   `kill -9` at a random moment; half of them after the repair has begun to write
    full    a small file system that has between no block and too few for the files that are rebuilt
    EIO     one kind of call fails under one folder, from a random call on (a preloaded library)

Required: a repair that did not finish ends with status 2 and one line on standard error with the place and the reason.
One that meets a table that cannot be read names it, leaves it as it is, and ends with status 1. Without `--cut` no byte
of the log changes. The next undisturbed repair ends with status 0, and `tally store verify` finds nothing. A broker
that starts then serves every message below the cut (all of them without one) at its offset, with its own body, finds it
by its key, and serves no others. In every third round a broker starts before the second repair, and serves the same
messages.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from attacks.arena import Arena
from attacks.disk_shim import Call, DiskErrors
from attacks.traffic import Acknowledged, Pipe, send_command
from lab.damage import CannotMountError, SmallDisks, fill, patch
from lab.ledger import body_id
from lab.places import TALLY
from lab.processes import ProcessError
from lab.searching import search
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.errors import RemotingError
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.queue_format import IndexGeometry
from tallystick.store.formats.segment_files import SegmentFiles

_INDEX = IndexGeometry(5000, 20_000)
_SETTINGS = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=20000",
    f"maxHashSlotNum={_INDEX.slots}",
    f"maxIndexNum={_INDEX.entries}",
    "flushDiskType=SYNC_FLUSH",
    "diskSpaceWarningLevelRatio=1.0",
    "diskSpaceCleanForciblyRatio=1.0",
)
_TOPIC, _QUEUES, _BODY = "repaired", 4, 200
_MESSAGES, _KILLS, _FULL, _ERRORS, _SEED = 5000, 24, 10, 28, 21
_KEYS = 5
_PLACES = ("/consumequeue/", "/index/", "/config/", "/commitlog/", "/store/")
_CALLS = (Call.OPEN, Call.WRITE, Call.SYNC, Call.RENAME, Call.READ, Call.REMOVE, Call.ALLOCATE)
_DISK_MIB, _MOST_FREE = 64, 256 << 10
_NOT_DONE, _WAIT_S = 2, 300.0


class Stored(NamedTuple):
    """A message of the sound store."""

    pos: int
    queue: int
    offset: int
    name: str


class Repairs:
    """The sound store, and the operations on its copies."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.rng = random.Random(_SEED)
        self.sound = Tally(arena.work / "sound", _SETTINGS)
        self.stored: list[Stored] = []
        """In the order of the log."""

    async def fill(self) -> None:
        """Creates the sound store."""
        tally, count, sent = self.sound, self.arena.scaled(_MESSAGES, 4000), Acknowledged()
        try:
            tally.start()
            async with ClusterClient("", timeout_s=30) as client:
                await client.create_topic(tally.broker, _TOPIC, _QUEUES)
                await client.create_topic(tally.broker, "another", 1)  # the table of topics has a backup now
            pipe = Pipe(tally.broker, lambda name, answer: sent.note(_TOPIC, int(name[1:]) % _QUEUES, name, answer))
            await pipe.run(
                (f"m{n}", send_command(_TOPIC, n % _QUEUES, f"m{n}|".encode() + b"x" * _BODY, {"KEYS": f"m{n}"}))
                for n in range(count)
            )
            tally.stop()
        finally:
            tally.kill()
        self.arena.check(len(sent.at) == count, f"{len(sent.at)} of {count} acknowledged: {sent.refused}")
        with SegmentFiles(tally.store / "commitlog") as log:
            steps = [(step.pos, step.record) for step in walk(log) if step.kind is StepKind.RECORD]
        every = [Stored(pos, each.queue_id, each.queue_offset, body_id(each.body)) for pos, each in steps if each]
        self.stored = [each for each in every if each.name in sent.at]
        wrong = [each for each in self.stored if sent.at[each.name] != (_TOPIC, each.queue, each.offset)]
        self.arena.check(not wrong and len(self.stored) == count, f"the undamaged store has damage: {wrong[:3]}")

    def copy(self, folder: Path) -> Tally:
        """A copy of the sound store, with separate ports."""
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.sound.folder / "data", folder / "data")
        return Tally(folder, _SETTINGS)

    def damage(self, store: Path, *, log: bool) -> int | None:
        """Damages a copy; with `log` a record of the log as well: the byte of the log where that record begins."""
        rng = self.rng
        queue = store / "consumequeue" / _TOPIC
        patch(min((queue / "0").iterdir()), rng.randrange(900) * 20, rng.randbytes(60))
        shutil.rmtree(queue / "1")
        patch(min((store / "index").iterdir()), _INDEX.entry_at(rng.randrange(1, 3000)) + 4, rng.randbytes(8))
        (store / "config" / "topics.json").write_text('{"a')
        os.truncate(store / "checkpoint", 7)
        if not log:
            return None
        pos = rng.choice(self.stored[len(self.stored) // 4 : -1]).pos
        with SegmentFiles(store / "commitlog") as files:
            start = files.start_of(pos)
        assert start is not None, "the record is in a file"
        patch(store / "commitlog" / f"{start:020d}", pos - start + 4, b"\0\0\0\1")
        return pos

    async def settle(self, what: str, tally: Tally, cut: int | None, *, start_first: bool) -> None:
        """Checks what has to hold after a disturbed repair."""
        check, store = self.arena.check, tally.store
        log = _digest(self.sound.store)
        check(cut is not None or _digest(store) == log, f"{what}: the disturbed repair changed the log")
        if start_first:
            await self._serves(f"{what}, started before the second repair", tally, cut, exactly=cut is None)
        ended = _repair(store, cut)
        check(ended.returncode == 0, f"{what}: the second repair ended with {ended.returncode}: {_said(ended)}")
        check(cut is not None or _digest(store) == log, f"{what}: the second repair changed the log")
        verified = _tally("verify", store)
        check(verified.returncode == 0, f"{what}: verify ended with {verified.returncode}: {_said(verified)}")
        check(not (store / "tally-repair").exists(), f"{what}: the marker of a repair was not removed")
        await self._serves(what, tally, cut, exactly=True)

    async def _serves(self, what: str, tally: Tally, cut: int | None, *, exactly: bool) -> None:
        """Starts a broker and checks that it has the messages below `cut`, and with `exactly` no others."""
        kept = [each for each in self.stored if cut is None or each.pos < cut]
        wanted = {(each.queue, each.offset): each.name for each in kept}
        try:
            tally.start()
            found = await _served(tally)
            lost = [place for place, name in wanted.items() if found.get(place) != name]
            self.arena.check(not lost, f"{what}: {len(lost)} messages are lost: {lost[:3]}")
            more = sorted(found.keys() - wanted.keys()) if exactly else []
            self.arena.check(not more, f"{what}: {len(more)} messages from after the cut are delivered: {more[:3]}")
            hidden = await _not_found(tally, [each.name for each in self.rng.sample(kept, _KEYS)])
            self.arena.check(not hidden, f"{what}: queries by key do not find: {hidden}")
            tally.stop()
        except (ProcessError, RemotingError) as error:
            self.arena.check(False, f"{what}: {error}")
        finally:
            tally.kill()

    def refused(self, what: str, ended: subprocess.CompletedProcess[str], place: str, reason: str) -> None:
        """Checks how an unfinished repair reports it: its status, and one line with the place and the reason."""
        line = ended.stderr
        whole = line.startswith("tally: ") and line.count("\n") == 1 and place in line and reason in line
        self.arena.check(ended.returncode == _NOT_DONE, f"{what}: status {ended.returncode}: {_said(ended)}")
        self.arena.check(whole, f"{what}: it prints {line!r}, without {place} or {reason!r}, or in more than one line")


async def run(arena: Arena) -> None:
    repairs = Repairs(arena)
    await repairs.fill()
    await _kills(repairs)
    await _full(repairs)
    await _errors(repairs)


async def _kills(repairs: Repairs) -> None:
    arena, rng = repairs.arena, repairs.rng
    whole_s = []
    for cutting in (False, True):
        tally = repairs.copy(arena.work / f"whole-{cutting}")
        cut = repairs.damage(tally.store, log=cutting)
        begin_s = time.monotonic()
        ended = _repair(tally.store, cut)
        whole_s.append(time.monotonic() - begin_s)
        arena.check(ended.returncode == 0, f"undisturbed: {ended.returncode}: {_said(ended)}")
        await repairs.settle(f"undisturbed, cutting: {cutting}", tally, cut, start_first=False)
        shutil.rmtree(tally.folder)
    arena.figure("seconds of an undisturbed repair; of one that cuts", [round(each, 2) for each in whole_s])
    rounds, landed = arena.scaled(_KILLS, 4), Counter[str]()
    for number in range(rounds):
        cutting = number % 2 == 1
        tally = repairs.copy(arena.work / f"kill-{number}")
        cut = repairs.damage(tally.store, log=cutting)
        state = _killed(tally.store, cut, whole_s[cutting], rng, begun=number % 4 < 2)
        landed[state] += 1
        await repairs.settle(f"kill {number}, {state}", tally, cut, start_first=number % 3 == 0)
        shutil.rmtree(tally.folder)
    arena.figure("kills of a repair, by what they interrupted", dict(landed))
    arena.check(
        landed["while it wrote"] >= rounds // 6, f"too few kills interrupted a repair that wrote: {dict(landed)}"
    )


def _killed(store: Path, cut: int | None, whole_s: float, rng: random.Random, *, begun: bool) -> str:
    """Starts a repair and kills it; returns what it was doing. `begun`: kill only after it has written its note."""
    process = subprocess.Popen(_command(store, cut), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    note = store / "tally-repair"
    if begun:
        while process.poll() is None and not note.exists():
            time.sleep(0.001)
        time.sleep(rng.uniform(0, whole_s / 20))  # most of a repair reads
    else:
        time.sleep(rng.uniform(0, whole_s))
    process.kill()
    status = process.wait()
    if status >= 0:
        return "already ended"
    return "while it wrote" if note.exists() else "before or after it wrote"


async def _full(repairs: Repairs) -> None:
    arena, rng, outcomes = repairs.arena, repairs.rng, Counter[str]()
    for number in range(arena.scaled(_FULL, 4)):
        cutting = number % 2 == 1
        folder = arena.work / f"full-{number}"
        folder.mkdir()
        disks = SmallDisks([folder], _DISK_MIB)
        try:
            disks.mount()
        except CannotMountError as error:
            arena.figure("full disks: not tried", str(error))
            return
        try:
            tally = repairs.copy(folder)
            cut = repairs.damage(tally.store, log=cutting)
            filler = fill(folder)
            os.truncate(filler, max(0, filler.stat().st_size - rng.choice((0, rng.randrange(_MOST_FREE)))))
            for again in ("", " again"):
                ended = _repair(tally.store, cut)
                outcomes[f"status {ended.returncode}"] += 1
                if ended.returncode != 0:
                    repairs.refused(f"full disk {number}{again}", ended, str(tally.store), "No space left on device")
            filler.unlink()
            await repairs.settle(f"full disk {number}", tally, cut, start_first=number % 3 == 0)
        finally:
            disks.unmount()
    arena.figure("repairs on a full disk, by their exit status", dict(outcomes))
    arena.check(outcomes["status 2"] > 0, f"no repair found a full disk: {dict(outcomes)}")


async def _errors(repairs: Repairs) -> None:
    arena, rng, outcomes = repairs.arena, repairs.rng, Counter[str]()
    drawn = [(call, place) for call in _CALLS for place in _PLACES]
    rng.shuffle(drawn)
    for number in range(arena.scaled(_ERRORS, 8)):
        call, place = drawn[number % len(drawn)]
        cutting = number % 2 == 1
        tally = repairs.copy(arena.work / f"error-{number}")
        errors = DiskErrors(arena.work / f"shim-{number}", place)
        cut = repairs.damage(tally.store, log=cutting)
        errors.fail(call, spared=rng.choice((0, 0, rng.randrange(8))))
        ended = _repair(tally.store, cut, errors.env)
        what = f"EIO {number} of {call.name} under {place}"
        outcomes[f"{'no call failed' if not errors.failed else 'calls failed'}, status {ended.returncode}"] += 1
        if call is Call.READ and errors.failed and ended.returncode != _NOT_DONE:
            _unread(arena, what, place, ended)
        elif ended.returncode != 0 or errors.failed:
            repairs.refused(what, ended, str(tally.store), "Input/output error")
        await repairs.settle(what, tally, cut, start_first=number % 3 == 0)
        shutil.rmtree(tally.folder)
    arena.figure("repairs with EIO, by what happened and their exit status", dict(outcomes))
    arena.check(outcomes["calls failed, status 2"] > 0, f"no repair had an I/O error: {dict(outcomes)}")


def _unread(arena: Arena, what: str, place: str, ended: subprocess.CompletedProcess[str]) -> None:
    """A repair ended although reads failed. Derived files were rebuilt, and a cut zeroed the unreadable bytes; an
    unreadable table is not changed, and reported."""
    if place == "/config/":
        named = "cannot be read" in " ".join(ended.stdout.split())
        arena.check(ended.returncode == 1 and named, f"{what}: status {ended.returncode}: {_said(ended)}")
    arena.check(not ended.stderr, f"{what}: it says {ended.stderr!r}")


# -- helpers -----------------------------------------------------------------------------------------------------------


def _command(store: Path, cut: int | None) -> list[str]:
    return [str(TALLY), "store", "repair", str(store), *(() if cut is None else ("--cut", str(cut)))]


def _repair(store: Path, cut: int | None, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(store, cut), capture_output=True, text=True, timeout=_WAIT_S, env=os.environ | dict(env or {})
    )


def _tally(action: str, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TALLY), "store", action, str(store)], capture_output=True, text=True, timeout=_WAIT_S)


def _said(ended: subprocess.CompletedProcess[str]) -> str:
    return (ended.stdout + ended.stderr)[-600:]


def _digest(store: Path) -> str:
    """Of all bytes of the log."""
    digest = hashlib.blake2b()
    for path in sorted((store / "commitlog").iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


async def _served(tally: Tally) -> dict[tuple[int, int], str]:
    """The names of all messages by queue and offset; damage is skipped."""
    found: dict[tuple[int, int], str] = {}
    async with ClusterClient("", timeout_s=30) as client:
        for number in range(_QUEUES):
            queue = QueueAddress(_TOPIC, "", tally.broker, number)
            at, end = await client.offset_range(queue)
            while at < end:
                pulled = await client.pull(queue, at, group="repairs", count=1024)
                found |= {(number, each.queue_offset): body_id(each.body) for each in pulled.records}
                at = max(at + 1, pulled.next_offset)
    return found


async def _not_found(tally: Tally, names: list[str]) -> list[str]:
    """The messages among these that a search by key does not find."""
    hidden = []
    async with ClusterClient("", timeout_s=30) as client:
        for name in names:
            try:
                found = await search(client, tally.broker, _TOPIC, name)
            except RemotingError:
                found = []
            if name not in [body_id(record.body) for record in found]:
                hidden.append(name)
    return hidden
