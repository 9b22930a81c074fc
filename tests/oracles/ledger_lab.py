"""What tests of a ledger share: small segments, entries from a twin, and a machine that can lose its power."""

from __future__ import annotations

import random
from pathlib import Path

from ledger_twin import TwinLedger

from tallystick.replication.ledger.ledger import Ledger
from tallystick.store._kernel import Door, Entries
from tallystick.store.formats.message import Host
from tallystick.store.formats.record import Record
from tallystick.store.settings import StoreSettings

HOST = Host("127.0.0.1", 10911)
NOW_MS = 1_700_000_000_000
SEGMENT_BYTES = 4096
INDEX_BYTES = 32 * 16
STORE_ID = b"the store's id.."


def _given_up(ledger: Ledger) -> Ledger:
    """Truncated where a loss of power explains the damage."""
    if ledger.damage is not None and ledger.damage.after_power_loss:
        ledger.truncate(ledger.last_index)
    return ledger


def open_ledger(folder: Path, door: Door | None = None, boot: int = 1) -> Ledger:
    """The ledger in `folder`, after the only decision that `open_disk` takes without other members."""
    ledger = Ledger.open(
        folder,
        door or Door(),
        segment_bytes=SEGMENT_BYTES,
        index_segment_bytes=INDEX_BYTES,
        max_message_bytes=3000,
        store_host=HOST.encode(),
        store_id=STORE_ID,
        boot_id=boot.to_bytes(16, "big"),
    )
    return _given_up(ledger)


def open_ledger_of(chosen: StoreSettings, door: Door, boot: int = 0, suffix: bytes = b"") -> Ledger:
    """The ledger of a store with these settings. `suffix`: as of `Ledger.open`."""
    ledger = Ledger.open(
        chosen.log_folder.parent,
        door,
        segment_bytes=chosen.mappedFileSizeCommitLog,
        index_segment_bytes=INDEX_BYTES,
        max_message_bytes=chosen.maxMessageSize,
        store_host=HOST.encode(),
        store_id=STORE_ID,
        suffix=suffix,
        boot_id=boot.to_bytes(16, "big"),
    )
    return _given_up(ledger)


def grow(twin: TwinLedger, dice: random.Random, count: int, term: int) -> None:
    """More entries, of all kinds and sizes. No sector of a body is all zeros: that is how an unwritten one looks."""
    for _ in range(count):
        kind = dice.choice([0, 0, 0, 0, 0, 0, 1, 2, 3])
        topic = "TALLY_SYS_GROUP_LOG" if kind else "T"
        queue = 0 if kind else dice.randrange(2)
        offset = twin.offsets.get((topic, queue), 0)
        twin.offsets[topic, queue] = offset + 1
        body = dice.randbytes(dice.choice([0, 7, 60, 300, 900, 2500]))
        tags = "TAGS\x01t\x02" if offset % 4 else ""  # without properties a record ends in zeros
        record = Record(topic, queue, body, tags, queue_offset=offset, store_timestamp_ms=NOW_MS, store_host=HOST)
        twin.append([record], term, kind)


def entries_of(ledger: Ledger, twin: TwinLedger, first: int, last: int) -> Entries:
    before = twin.entries[first - 1][0] if first else None
    return ledger.check(twin.span(first, last), first - 1, before.term if before else -1)


def feed(ledger: Ledger, twin: TwinLedger, last: int | None = None) -> None:
    """Gives the ledger what the twin has more, written."""
    last = twin.last_index if last is None else last
    first = ledger.log.staged_index + 1
    if first <= last:
        ledger.append_entries(entries_of(ledger, twin, first, last), first)
    ledger.log.write_out()


def made(folder: Path, seed: int = 1, count: int = 40, door: Door | None = None) -> tuple[Ledger, TwinLedger]:
    """A log of some entries in two terms, written and synced."""
    ledger, twin, dice = open_ledger(folder, door), TwinLedger(SEGMENT_BYTES), random.Random(seed)
    grow(twin, dice, count // 2, 1)
    grow(twin, dice, count - count // 2, 3)
    feed(ledger, twin)
    ledger.log.sync()
    return ledger, twin


def assert_is(ledger: Ledger, twin: TwinLedger, last: int | None = None) -> None:
    """The ledger has the twin's entries up to `last`, on the disk and by all its reads."""
    last = twin.last_index if last is None else last
    assert ledger.last_index == ledger.log.written_index == last
    if last > ledger.base.index:
        first = ledger.first_index
        header = twin.entries[last][0]
        assert ledger.log.read_range(first, last) == twin.span(first, last)
        assert ledger.log.written_point()[1:] == (last, header.term, header.chain_crc)
        for index in range(first, last + 1):
            header = twin.entries[index][0]
            assert ledger.log.unit(index) == (header.pos, header.size, header.term)
            assert ledger.term_of(index) == header.term
    kinds = [header.log_index for header, _ in twin.entries[: last + 1] if header.channel == 2]
    # Of four, cuts leave fewer; no more than one is ever cut off in a group (M2, M3).
    assert list(ledger.memberships) == kinds[::-1][: len(ledger.memberships)]


def image(folder: Path) -> dict[str, bytes]:
    return {
        f"{part}/{path.name}": path.read_bytes()
        for part in ("data", "index")
        for path in sorted((folder / part).iterdir())
    }


def flip(folder: Path, pos: int, bit: int = 0) -> None:
    """One bit of the data, on the disk."""
    path = folder / "data" / f"{pos - pos % SEGMENT_BYTES:020}"
    data = bytearray(path.read_bytes())
    data[pos % SEGMENT_BYTES] ^= 1 << bit
    path.write_bytes(data)
