"""Jobs that read a store from its broker: the node's own file API, a store that is written to, and nothing mounted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.dataset as dataset
import pytest
from aiohttp.test_utils import TestServer
from engine_lab import message, opened, small

from tallystick.node.core.settings import HttpSettings
from tallystick.node.http.admin_api import AdminView
from tallystick.node.http.server import Probes, application
from tallystick.spark.access import TOKEN_FILE_VARIABLE
from tallystick.spark.cluster.place import PlacedRunner
from tallystick.spark.cluster.plan import Place
from tallystick.spark.cluster.progress import Progress
from tallystick.spark.jobs import audit, export, rebuild, stats
from tallystick.spark.jobs.job import CLEAN, DIFFERENCES
from tallystick.spark.jobs.registry import verdict_of
from tallystick.spark.options import ReadOptions, StorePath
from tallystick.spark.outputs import FolderOutput
from tallystick.spark.runner import inline
from tallystick.store.engine.message_store import MessageStore

ROOMY = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 20 * 100,
    "maxHashSlotNum": 97,
    "maxIndexNum": 500,
}


async def write(store: MessageStore, count: int, seed: int = 1) -> None:
    dice = random.Random(seed)
    for _ in range(count):
        properties = f"KEYS\x01k{dice.randrange(9)}\x02UNIQ_KEY\x01u{dice.randrange(10**9)}\x02"
        await store.writes.put(
            message(dice.randbytes(dice.randrange(200)), queue=dice.randrange(3), properties=properties)
        )


@asynccontextmanager
async def serving(store: MessageStore, token: Path) -> AsyncIterator[Place]:
    view = AdminView(lambda: SimpleNamespace(store=store), str, dict)  # type: ignore[arg-type,return-value]
    probes = Probes(lambda: None, lambda: None, lambda form: iter(()))
    async with TestServer(application(probes, admin=view, settings=HttpSettings(readTokenFile=str(token)))) as server:
        yield Place("n-0", "n", 0, "/not/here", None, f"http://127.0.0.1:{server.port}")


def options_of(place: Place) -> ReadOptions:
    path = StorePath(place.root, place.node, place.group, place.http)
    return replace(ReadOptions.parse({"path": "x", "splitBytes": "50000"}), paths=(path,))


async def test_all_jobs_beside_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("read-only\n")
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, str(token))
    async with opened(small(tmp_path / "store", **ROOMY)) as store, serving(store, token) as place:
        await write(store, 400)
        store.dispatcher.catch_up()
        store._dispatch.write_out()

        async def go_on() -> None:
            for number in range(1000):
                await write(store, 5, number)
                await asyncio.sleep(0.01)

        writer = asyncio.create_task(go_on())
        by_group = PlacedRunner({"n": place}, lambda host_of: inline, Progress(1))
        by_node = PlacedRunner({"n-0": place}, lambda host_of: inline, Progress(1))
        options = options_of(place)
        out = FolderOutput(tmp_path / "lake", shared=False)
        rows = 0
        for _ in range(2):
            summary: dict[str, Any] = await asyncio.to_thread(stats.run, options, by_group)
            assert summary["damaged"] == 0 and summary["messages"] >= 400
            audited = await asyncio.to_thread(audit.run, options, by_node)
            assert audited["clean"], audited["differences"]
            checked = await asyncio.to_thread(rebuild.run, options, by_group, None)
            assert verdict_of(checked) == CLEAN, checked["volumes"]
            assert checked["volumes"][0]["compared"]["queue_units"] >= 300
            rows += (await asyncio.to_thread(export.run, options, by_group, out))["added_rows"]
        made = FolderOutput(tmp_path / "made", shared=False)
        rebuilt = await asyncio.to_thread(rebuild.run, options, by_group, made)
        writer.cancel()
        assert rebuilt["volumes"][0]["differing"] == rebuilt["volumes"][0]["missing"] == []
        assert (tmp_path / "made" / "n" / "consumequeue" / "T" / "0").is_dir()
        table = dataset.dataset(str(out.folder), format="parquet", exclude_invalid_files=True).to_table()
        assert table.num_rows == rows == len(set(table["physical_offset"].to_pylist()))
        assert by_group.book.via("n-0") == by_node.book.via("n-0") == "http"

        index = sorted((tmp_path / "store" / "index").glob("*"))[0]
        with index.open("r+b") as file:
            file.seek(40 + 4 * 97 + 20 * 7 + 3)
            file.write(b"\xff")
        checked = await asyncio.to_thread(rebuild.run, options, by_group, None)
        assert verdict_of(checked) == DIFFERENCES
        assert checked["volumes"][0]["differing"] == [f"index/{index.name}"]
