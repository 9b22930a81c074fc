"""After a power loss a write can be missing before a later one that reached the disk. It was not acknowledged then.

Nothing on the disk tells it from an acknowledged record that was damaged since, so it is reported as damage; the
finding says that the machine was restarted, and what that can mean. What was durable before the restart has no excuse.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from derived_lab import Sent, check_reads, patch, send, started

from tallystick.store._kernel import Door
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.findings import FindingKind
from tallystick.store.formats.progress import ProgressMark


@asynccontextmanager
async def restarted(folder: Path, lost: int, *, rebooted: bool) -> AsyncIterator[tuple[MessageStore, list[Sent]]]:
    """Twenty messages of which the first ten were durable, one of them zeros now, in a store that was killed."""
    root = folder / "store"
    async with started(folder / "made", False) as store:
        sent = [await send(store, "A", 0, number) for number in range(10)]
        assert store.queues.max_offset("A", 0) == 10, "dispatched, and so in the mark"
        await store.upkeep.save(thorough=True)
        durable = ProgressMark.load(folder / "made")
        sent += [await send(store, "A", 0, number) for number in range(10, 20)]
        await store.flush()
        assert store.queues.max_offset("A", 0) == 20
        await store.upkeep.save()
        ((pos, size, _),) = store.reads.units("A", 0, lost, 1)
        shutil.copytree(folder / "made", root)
    patch(root / "commitlog" / f"{0:020}", pos, bytes(size))
    if rebooted:
        mark = ProgressMark.load(root)
        assert mark is not None and durable is not None and 0 < durable.flushed.pos < mark.written.pos
        mark = replace(mark, boot_id=b"another start.. ", flushed=durable.flushed)
        replace(mark, sequence=mark.sequence + 1).save(Door(), root)
    async with started(root, False) as store:
        yield store, [each for each in sent if each.offset != lost]


async def test_what_a_power_loss_explains_says_so_and_what_follows_is_kept(tmp_path: Path) -> None:
    async with restarted(tmp_path, 14, rebooted=True) as (store, kept):
        check_reads(store, kept)
        (found,) = [each for each in store.findings.listed() if each.kind is FindingKind.DAMAGE]
        assert found.file.startswith("commitlog/") and "If it lost power" in found.reason


@pytest.mark.parametrize(("lost", "rebooted"), [(5, True), (14, False)], ids=["durable before", "killed only"])
async def test_what_no_power_loss_explains_is_plain_damage(tmp_path: Path, lost: int, rebooted: bool) -> None:
    async with restarted(tmp_path, lost, rebooted=rebooted) as (store, kept):
        check_reads(store, kept)
        store.reads.get_message("A", 0, lost, 1)
        damage = [each for each in store.findings.listed() if each.kind is FindingKind.DAMAGE]
        assert damage and not any("If it lost power" in each.reason for each in damage)
