"""A ConsumeQueue unit that leads to a wrong place is set right from the log, and the log is not blamed for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from derived_lab import Sent, check_reads, files, patch, saved, send, started
from engine_lab import records_of

from tallystick.store.engine.message_store import MessageStore
from tallystick.store.findings import FindingKind
from tallystick.store.formats.queue_format import UNIT

KINDS = [pytest.param(False, id="plain"), pytest.param(True, id="group")]
LOST = 5
"""The offset whose unit, or record, is damaged."""


@asynccontextmanager
async def filled(root: Path, group: bool) -> AsyncIterator[tuple[MessageStore, list[Sent], list[int]]]:
    """A store with twelve messages in one queue, all written; the bytes of the log that it calls damaged."""
    told: list[int] = []
    async with started(root, group) as store:
        store.media.on_damage.append(lambda pos, end: told.extend(range(pos, end)))
        sent = [await send(store, "A", 0, number) for number in range(12)]
        await saved(store)
        check_reads(store, sent)
        yield store, sent, told


def wrong_unit(root: Path, pos: int, size: int) -> None:
    patch(files(root)[0], LOST * UNIT.size, UNIT.pack(pos, size, 0))


def damage_record(store: MessageStore, root: Path, pos: int) -> None:
    name = next((root / store.settings.log_folder).glob(f"{pos - pos % 4096:020}"))
    patch(name, pos % 4096 + 4, b"\xee" * 4)


@pytest.mark.parametrize("group", KINDS)
@pytest.mark.parametrize(
    ("shift", "grow"), [(2, 0), (-2, 0), (0, 4), (0, -4), (3000, 0), (1 << 40, 0), (-(1 << 40), 0), (0, -(1 << 20))]
)
async def test_a_wrong_unit_is_no_damage_of_the_log(tmp_path: Path, group: bool, shift: int, grow: int) -> None:
    async with filled(tmp_path, group) as (store, sent, told):
        ((pos, size, _),) = store.reads.units("A", 0, LOST, 1)
        wrong_unit(tmp_path, pos + shift, size + grow)
        check_reads(store, sent)
        assert told == []
        found = [(each.kind, each.file.split("/")[0]) for each in store.findings.listed()]
        assert found == [(FindingKind.DAMAGE, "consumequeue"), (FindingKind.REBUILT, "consumequeue")]
        assert store.reads.units("A", 0, LOST, 1)[0][:2] == (pos, size)


@pytest.mark.parametrize("group", KINDS)
@pytest.mark.parametrize("shift", [0, 2, 100 << 40], ids=["unit right", "unit near", "unit far"])
async def test_damage_of_the_log_is_reported_with_its_position(tmp_path: Path, group: bool, shift: int) -> None:
    async with filled(tmp_path, group) as (store, sent, told):
        ((pos, size, _),) = store.reads.units("A", 0, LOST, 1)
        damage_record(store, tmp_path, pos)
        if shift:
            wrong_unit(tmp_path, pos + shift, size)
        check_reads(store, sent[:LOST] + sent[LOST + 1 :])
        assert [record.queue_offset for record in records_of(store.reads.get_message("A", 0, LOST, 1).body)] == [
            LOST + 1
        ]
        # A group repairs what it is told of. What a damaged unit says of a damaged record may be some bytes off.
        assert pos + shift % 100 in told
        assert pos - 48 <= min(told) and max(told) < pos + size + shift % 100
        files_named = {each.file for each in store.findings.listed() if each.kind is FindingKind.DAMAGE}
        assert any(not name.startswith("consumequeue") for name in files_named)
