"""Bit rot and misdirected writes: bytes of files at rest change silently.

What is derived from the log (queues, index, marks) can be made again: nothing may be lost, whatever becomes of it. Of
the log of a broker by itself, the records that were hit may be unreadable, never wrong, and all others have to be
there; a group has copies.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from simulation.oracle import Fate, Sent
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES
from tallystick.store.formats.log_walk import StepKind, resync, walk
from tallystick.store.formats.record import Record, RecordError
from tallystick.store.formats.segment_files import SegmentFiles

if TYPE_CHECKING:
    from simulation.nodes import Node
    from simulation.simulation import Simulation

DERIVED = ("consumequeue", "index")
MARKS = ("checkpoint", "tally-progress")


async def at_rest(simulation: Simulation, node: Node, dice: Random) -> None:
    """One kind of damage to one node's files."""
    if dice.random() < 0.3:
        return
    kinds = [kind for kind in simulation.profile.rot if kind != "log" or _may_hit_log(simulation, node)]
    if kinds:
        KINDS[dice.choice(kinds)](simulation, node, dice)


def _may_hit_log(simulation: Simulation, node: Node) -> bool:
    """Of a group, one member's only: a majority has to have what was acknowledged."""
    broker = simulation.cluster.broker_of(node)
    assert broker is not None
    struck = simulation.struck.setdefault(broker, node)
    return struck is node


def _folder(node: Node) -> Path:
    assert node.host.folder is not None
    return node.host.folder


def _note(simulation: Simulation, node: Node, text: str) -> None:
    simulation.trace.note(simulation.loop.now, f"rot at {node.name}: {text}")


def _spoil(path: Path, dice: Random) -> str:
    """Changes a file's bytes where it has any; what was done, in words."""
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0"))
    if not used:
        return f"{path.name} has no bytes to change"
    how = dice.choice(("zeros", "flip", "noise", "misdirected", "cut", "gone"))
    if how == "gone":
        path.unlink()
        return f"{path} is gone"
    at = dice.randrange(used)
    if how == "cut":
        with path.open("r+b") as file:
            file.truncate(at)
        return f"{path} is cut at {at}"
    size = 1 if how == "flip" else dice.choice((20, 512, 4096))
    at = at if how == "flip" else at - at % (20 if size == 20 else 512)
    piece = data[at : at + size]
    if how == "flip":
        piece[0] ^= 1 << dice.randrange(8)
    else:
        piece[:] = _instead(how, data, at, len(piece), dice)  # type: ignore[arg-type]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(piece)
    return f"{how} at {at} of {path}"


def _instead(how: str, data: bytes, at: int, size: int, dice: Random) -> bytes:
    """What stands in a place of a file now. "misdirected": sound bytes that belong to another place of the file."""
    if how == "zeros":
        return bytes(size)
    if how == "noise":
        return dice.randbytes(size)
    used = len(data.rstrip(b"\0"))
    step = 20 if size == 20 else 512
    other = dice.randrange(0, max(1, used), step)
    return data[other : other + size].ljust(size, b"\0")


def derived(simulation: Simulation, node: Node, dice: Random) -> None:
    """Some files of queues or index."""
    if node.up:
        return  # they are mapped: what a running process makes of that is seen with its next start
    files = sorted(path for part in DERIVED for path in (_folder(node) / part).rglob("*") if path.is_file())
    for path in dice.sample(files, min(len(files), dice.choice((1, 1, 3, 30)))):
        _note(simulation, node, _spoil(path, dice))


def marks(simulation: Simulation, node: Node, dice: Random) -> None:
    """The files that say how far the others are whole."""
    if node.up:
        return
    for name in MARKS:
        path = _folder(node) / name
        if path.exists() and dice.random() < 0.6:
            _note(simulation, node, _spoil(path, dice))


def tables(simulation: Simulation, node: Node, dice: Random) -> None:
    """One table's file; the one before it stands beside it. Of a group, files are pictures of what its log says."""
    if node.up:
        return
    files = sorted((_folder(node) / "config").glob("*.json"))
    if files:
        _note(simulation, node, _spoil(dice.choice(files), dice))
        broker = simulation.cluster.broker_of(node)
        if broker is not None and not simulation.cluster.is_group(broker):
            simulation.older_tables.add(broker)


def log(simulation: Simulation, node: Node, dice: Random) -> None:
    """One place of the log: a flipped bit, a lost sector."""
    broker = simulation.cluster.broker_of(node)
    assert broker is not None
    group = simulation.cluster.is_group(broker)
    folder = next(iter(sorted(_folder(node).glob("dledger-*/data"))), None) if group else _folder(node) / "commitlog"
    files = sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []
    placed = [
        item
        for item in simulation.oracle.sent.values()
        if item.queue[0] == broker and item.pos >= 0 and item.fate is Fate.ACKNOWLEDGED
    ]
    if not files or not placed:
        return
    target = dice.choice(placed if dice.random() < 0.5 else placed[-5:])
    segment_bytes = int(node.settings["mappedFileSizeCommitLog"])
    path = folder / f"{target.pos - target.pos % segment_bytes:020d}" if folder is not None else files[0]
    if not path.exists():
        return
    data = path.read_bytes()
    at = target.pos % segment_bytes
    try:
        size = Record.decode(data, at).size
    except RecordError:
        return  # it was hit before
    base = target.pos - at
    where = at + dice.randrange(size)
    begin, end = (where, where + 1) if dice.random() < 0.6 else (where - where % 512, where - where % 512 + 512)
    held = records_in(path.parent, segment_bytes, base + begin, base + end, ENTRY_HEADER_BYTES if group else 0)
    how = dice.choice(("zeros", "noise", "misdirected"))
    if group and how != "noise" and not _is_followed(path.parent, segment_bytes, base + end):
        how = "noise"  # a member cannot tell zeros at its log's end from a write that was not synced: a known limit
    with path.open("r+b") as file:
        file.seek(begin)
        if end - begin == 1:
            file.write(bytes([data[begin] ^ (1 << dice.randrange(8))]))
        else:
            file.write(_instead(how, data, begin, end - begin, dice))
    _note(simulation, node, f"bytes {begin} to {end} of {path}, in {target.message.key}")
    simulation.hit_log(node, hit_by(placed, base + begin, base + end), held)


def _is_followed(folder: Path, segment_bytes: int, pos: int) -> bool:
    """Whether the group's log in `folder` has a sound entry behind `pos`."""
    with SegmentFiles(folder, segment_bytes) as files:
        return resync(files, pos, entry_header_bytes=ENTRY_HEADER_BYTES) is not None


def hit_by(placed: list[Sent], begin: int, end: int) -> list[Sent]:
    """Whose records may lie in these bytes of the log: each reaches to the next one at most."""
    ordered = sorted(placed, key=lambda item: item.pos)
    ends = [item.pos for item in ordered[1:]] + [1 << 62]
    return [item for item, stop in zip(ordered, ends, strict=True) if item.pos < end and stop > begin]


def records_in(folder: Path, segment_bytes: int, begin: int, end: int, entry_header_bytes: int) -> list[Record]:
    """The sound records of the log in `folder` that have one of the bytes [begin, end), which are in one segment."""
    found = []
    pos: int | None = begin - begin % segment_bytes
    with SegmentFiles(folder, segment_bytes) as files:
        while pos is not None and pos < end:
            for step in walk(files, pos, entry_header_bytes=entry_header_bytes):
                if step.kind in (StepKind.END, StepKind.DAMAGE):
                    behind = resync(files, step.pos, entry_header_bytes=entry_header_bytes)
                    pos = None if behind is None else behind.pos
                    break
                pos = step.pos + step.size
                if step.record is not None and step.pos < end and pos > begin:
                    found.append(step.record)
                if pos >= end:
                    break
    return found


KINDS = {"derived": derived, "marks": marks, "log": log, "tables": tables}
