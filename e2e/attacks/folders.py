"""Changes of a store's folder under a running broker, or before its start.

Tried: a second broker on the same folder; a folder that another user owns and that cannot be written; `config` that
cannot be written while the log can; a folder that becomes read-only (a remount) and writable again; the whole folder
deleted under the broker. Required: no process ends with a traceback, data that cannot be kept is refused or reported,
reads continue where the files exist, and after the cause is removed the broker serves again, if necessary after a
restart, with all acknowledged messages.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

from attacks.arena import Arena, ask, node, until
from attacks.traffic import Acknowledged, Pipe, send_command
from lab.processes import ProcessError
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient
from tallystick.node.remoting.errors import RemotingError

TOPIC = "folder"
SETTINGS = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=6000",
    "maxHashSlotNum=500",
    "maxIndexNum=3000",
    "flushDiskType=SYNC_FLUSH",
    "diskSpaceWarningLevelRatio=1.0",
    "diskSpaceCleanForciblyRatio=1.0",
)


async def run(arena: Arena) -> None:
    await _two_brokers(arena)
    await _another_user(arena)
    await _read_only(arena)
    await _deleted(arena)


async def _send(tally: Tally, sent: Acknowledged, label: str, count: int, size: int = 100) -> None:
    names = [f"{label}.{number}" for number in range(count)]
    pipe = Pipe(tally.broker, lambda name, answer: sent.note(TOPIC, 0, name, answer), window=50)
    await asyncio.wait_for(pipe.run((n, send_command(TOPIC, 0, f"{n}|".encode().ljust(size, b"x"))) for n in names), 60)


def _system(*command: str) -> bool:
    """Whether the system carried it out."""
    return subprocess.run(command, capture_output=True).returncode == 0


async def _begun(folder: Path) -> tuple[Tally, Acknowledged]:
    tally = Tally(folder, SETTINGS)
    tally.start()
    async with ClusterClient("", timeout_s=30) as client:
        await client.create_topic(tally.broker, TOPIC, 1)
    sent = Acknowledged()
    await _send(tally, sent, "before", 500)
    return tally, sent


async def _end(arena: Arena, what: str, tally: Tally, sent: Acknowledged) -> None:
    """After a restart all acknowledged messages exist."""
    tally.kill()
    tally.start()
    for wrong in await sent.missing(tally.broker):
        arena.check(False, f"{what}: {wrong}")
    arena.check("Traceback" not in tally.log.read_text(), f"{what}: a traceback, see {tally.log}")
    arena.figure(f"{what}: acknowledged and readable; refused", [len(sent.at), sent.refused])
    tally.stop()


async def _two_brokers(arena: Arena) -> None:
    tally, sent = await _begun(arena.work / "two")
    try:
        other = Tally(arena.work / "two", SETTINGS)
        other.log = arena.work / "two" / "other.log"
        try:
            other.start()
            arena.check(False, "a second broker started on the same folder")
        except ProcessError:
            said = other.log.read_text().strip().splitlines()
            arena.check(len(said) <= 3 and str(tally.server.process.pid) in said[-1], f"the second one printed {said}")
        finally:
            other.kill()
        await _send(tally, sent, "after", 100)
        await _end(arena, "two brokers on one folder", tally, sent)
    finally:
        tally.kill()


async def _another_user(arena: Arena) -> None:
    """The folder belongs to root, and the broker runs as another user."""
    tally, sent = await _begun(arena.work / "user")
    try:
        tally.stop()
        if os.geteuid() == 0:
            tally.wrap = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
            tally.launch()
            ended = await until(lambda: not tally.alive, 30)
            said = tally.server.said().strip().splitlines()
            status = tally.server.process.returncode
            arena.check(ended is not None and status == 2, f"a folder of another user: exit status {status}")
            arena.check(len(said) == 1, f"a folder of another user: output {said[:6]}")
            arena.figure("a folder of another user: output", said[-1:])
            tally.kill()
            tally.wrap = ()
        await _end(arena, "a folder of another user", tally, sent)
    finally:
        tally.kill()


async def _read_only(arena: Arena) -> None:
    """A tmpfs that is remounted read-only, and back."""
    folder = arena.work / "read-only"
    folder.mkdir()
    if not _system("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)):
        arena.figure("a read-only remount", "skipped: no right to mount")
        return
    tally: Tally | None = None
    try:
        tally, sent = await _begun(folder)
        tally.log = arena.work / "read-only.log"
        # Files that are open for writing would keep the system from it; a failing disk does not ask.
        if not _system("mount", "-o", "remount,ro", str(folder)):
            tally.kill()
            tally.launch()
            arena.figure("a read-only remount under the broker", "refused by the system: files are open")
            await asyncio.to_thread(tally.wait_ready)
            tally.stop()
            assert _system("mount", "-o", "remount,ro", str(folder))
            tally.launch()
            await until(lambda: tally is not None and not tally.alive, 30)
            arena.check(tally.server.process.returncode == 2, "a start on a read-only disk is not refused with 2")
            arena.figure("a start on a read-only disk: output", tally.server.said().strip().splitlines()[-1:])
            tally.kill()
            assert _system("mount", "-o", "remount,rw", str(folder))
        await _end(arena, "a read-only disk", tally, sent)
    finally:
        if tally is not None:
            tally.kill()
        _system("umount", "--lazy", str(folder))


async def _deleted(arena: Arena) -> None:
    """`rm -r` of the whole store; open files continue to exist, new ones cannot be created."""
    tally, sent = await _begun(arena.work / "deleted")
    try:
        shutil.rmtree(tally.store)
        failed = await until(lambda: ask(tally.http_port, "/healthz")[0] == 500, 30)
        arena.figure("a deleted folder: seconds until /healthz says 500", failed and round(failed, 2))
        await _send(tally, sent, "after", 2_000, 400)
        arena.figure("a deleted folder: acknowledged after it; refused", [len(sent.at) - 500, sent.refused])
        status, reason = ask(tally.http_port, "/healthz")[0], ask(tally.http_port, "/readyz")
        arena.figure("a deleted folder: /healthz, /readyz, phase", [status, *reason, node(tally).get("phase")])
        after = [name for name in sent.at if name.startswith("after")]
        arena.check(not after, f"a deleted folder: {len(after)} messages were acknowledged and not stored")
        arena.check("Traceback" not in tally.log.read_text(), f"a deleted folder: a traceback, see {tally.log}")
        tally.kill()
        tally.start()  # an empty store: what was deleted is gone
        async with ClusterClient("", timeout_s=30) as client:
            try:
                await client.create_topic(tally.broker, TOPIC, 1)
            except RemotingError as error:
                arena.check(False, f"a deleted folder: the broker did not start again: {error}")
        tally.stop()
    finally:
        tally.kill()
