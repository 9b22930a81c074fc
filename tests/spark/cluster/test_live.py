"""Audits of a group of real processes while it is written to: clean, until something is broken."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from group_lab import GroupLab, Ledger, until

from tallystick.node.core.client import ClusterClient
from tallystick.spark.cluster.place import NODE_VARIABLE, PlacedRunner
from tallystick.spark.cluster.plan import Place
from tallystick.spark.cluster.progress import Progress
from tallystick.spark.jobs import audit
from tallystick.spark.options import ReadOptions, StorePath
from tallystick.spark.planning import plan_tasks, volume_of
from tallystick.spark.runner import inline
from tallystick.store._kernel import Door
from tallystick.store.engine.lock import StoreLock
from tallystick.store.verify.dump import settings_of

pytestmark = pytest.mark.process

QUEUES = 4


class MountedOn:
    """Does items one after the other, each as on the worker of its node if that is among those with a worker."""

    at_once = 1

    def __init__(self, workers: Sequence[str]) -> None:
        self.workers = workers

    def __call__(self, function: Callable[[Any], Any], pairs: Sequence[Any]) -> list[Any]:
        return list(self.stream(function, pairs))

    def stream(self, function: Callable[[Any], Any], pairs: Sequence[Any]) -> Iterator[Any]:
        for pair in pairs:
            os.environ[NODE_VARIABLE] = pair[1].node if pair[1].node in self.workers else ""
            yield function(pair)


def places_of(lab: GroupLab) -> list[Place]:
    return [
        Place(f"g-{n}", "g", n, str(process.folder / "store"), "x", f"http://{process.places['http']}")
        for n, process in sorted(lab.members.items())
    ]


def options_of(places: list[Place]) -> ReadOptions:
    return replace(
        ReadOptions.parse({"path": "x", "splitBytes": "200000"}),
        paths=tuple(StorePath(each.root, each.node, each.group, each.http) for each in places),
    )


def audited(places: list[Place], workers: Sequence[str]) -> tuple[dict[str, Any], PlacedRunner]:
    runner = PlacedRunner({each.node: each for each in places}, lambda _: MountedOn(workers), Progress(1))  # type: ignore[arg-type, return-value]
    return audit.run(options_of(places), runner), runner


async def all_have(places: list[Place], leader: int) -> None:
    """Returns when the files of each member show what the leader has by now.

    A majority has what is acknowledged; an audit does not compare a member that has nothing yet. A member that is
    killed is audited by its files alone, and a broker writes units of queues to their files about once a second.
    """
    options = options_of(places)
    files_alone = replace(options, paths=tuple(replace(each, http=None) for each in options.paths))

    async def bounds(of: ReadOptions) -> list[int]:
        return [each.bound for each in await asyncio.to_thread(inline, volume_of, plan_tasks(of, members=True))]

    wanted = (await bounds(options))[leader]

    def least_queues() -> int:
        return min(len(list(Path(each.root).glob("consumequeue/orders/*/*"))) for each in places)

    async def look() -> bool | None:
        return (least_queues() == QUEUES and min(await bounds(files_alone)) >= wanted) or None

    await until(f"the files of all members have what lies below {wanted}", look)


@asynccontextmanager
async def group_with(folder: Path, count: int) -> AsyncIterator[tuple[GroupLab, int, Ledger, list[Place]]]:
    """A group whose members have so many messages, all of them, who leads it, and the producer that sent them."""
    with GroupLab(folder, "scrubBytesPerSecond=0") as lab:  # a scrubber repairs what a test damages
        async with ClusterClient(lab.nameserver) as client:
            leader, ledger = await lab.with_topic(client, "orders", QUEUES)
            await ledger.produce(count, 16, b"before")
            places = places_of(lab)
            await all_have(places, leader)
            yield lab, leader, ledger, places


def flipped(root: Path, at: int) -> Path:
    """Flips a byte of a queue's first file, and gives its path."""
    path = min(root.glob("consumequeue/orders/1/*"))
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    return path


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NODE_VARIABLE, "")


async def test_a_group_under_load_is_clean_and_what_is_flipped_is_named(tmp_path: Path) -> None:
    async with group_with(tmp_path, 300) as (_, leader, ledger, places):
        load = asyncio.create_task(ledger.produce(None, 4, b"during" * 30))
        records = 0
        for workers in (["g-0", "g-1", "g-2"], [f"g-{leader}"], []):
            summary, runner = await asyncio.to_thread(audited, places, workers)
            assert summary["differences"] == [] and summary["clean"]
            assert summary["sources"][leader]["records"] >= 300, "others may be a moment behind"
            assert sum(each["records"] for each in summary["sources"]) > records
            records = sum(each["records"] for each in summary["sources"])
            (compared,) = summary["replicas_compared"]
            assert compared["members"] == 3 and compared["end"] == min(each["bound"] for each in summary["sources"])
            assert [runner.book.via(each.node) == "local" for each in places] == [
                each.node in workers for each in places
            ]
        assert not load.done(), "nothing may have failed"
        broken = places[(leader + 1) % 3]
        path = flipped(Path(broken.root), 20 * 7 + 7)
        for workers in ([broken.node], []):
            (difference,) = (await asyncio.to_thread(audited, places, workers))[0]["differences"]
            assert (difference["source"], difference["file"], difference["offset"]) == (broken.node, str(path), 140)
        assert not load.done()
        load.cancel()


async def test_a_member_that_lags_is_compared_as_far_as_it_came(tmp_path: Path) -> None:
    async with group_with(tmp_path, 200) as (lab, leader, ledger, places):
        behind = (leader + 1) % 3
        lab.kill(behind)
        await ledger.produce(200, 16, b"after")
        summary, _ = await asyncio.to_thread(audited, places, [each.node for each in places])
        assert summary["clean"], json.dumps(summary["differences"])
        bounds = {each["source"]: each["bound"] for each in summary["sources"]}
        assert bounds[f"g-{behind}"] < bounds[f"g-{leader}"]
        assert summary["replicas_compared"][0]["end"] == bounds[f"g-{behind}"]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_what_expires_meanwhile_is_no_difference(golden: Callable[[str], Path], step: int) -> None:
    """Before its `step`th step the job loses the first two files of the log, and what was derived of them."""
    root = golden("clean")
    (root / "abort").touch()
    place = Place("g-0", "g", 0, str(root), "x", "http://127.0.0.1:9")
    log = sorted(root.glob("commitlog/*"))
    begin = int(log[2].name)

    class Expiring(MountedOn):
        steps = 0

        def __call__(self, function: Callable[[Any], Any], pairs: Sequence[Any]) -> list[Any]:
            Expiring.steps += 1
            if Expiring.steps == step + 1:
                for path in [*log[:2], *expired_queues(root, begin)]:
                    path.unlink()
            return super().__call__(function, pairs)

    options = replace(ReadOptions.parse({"path": "x", "splitBytes": "70000"}), paths=(StorePath(place.root, "g-0"),))
    undisturbed = audit.run(options, PlacedRunner({"g-0": place}, lambda _: MountedOn(["g-0"]), Progress(1)))  # type: ignore[arg-type, return-value]
    summary = audit.run(options, PlacedRunner({"g-0": place}, lambda _: Expiring(["g-0"]), Progress(1)))  # type: ignore[arg-type, return-value]
    assert Expiring.steps > step
    assert summary["differences"] == [] and summary["behind"] == undisturbed["behind"]
    (source,) = summary["sources"]
    assert source["expired_bytes"] == (begin if step == 1 else 0) and source["records"] > 0


@pytest.mark.parametrize("healing", [True, False])
def test_what_a_broker_was_about_to_write_is_no_difference(golden: Callable[[str], Path], healing: bool) -> None:
    """A unit and an index entry are not there yet when they are first looked for."""
    root = golden("clean")
    (root / "abort").touch()
    lock = StoreLock.acquire(root, Door())
    place = Place("g-0", "g", 0, str(root), "x", "http://127.0.0.1:9")
    queue, index = min(root.glob("consumequeue/GoldA/0/*")), min(root.glob("index/*"))
    whole = {path: path.read_bytes() for path in (queue, index)}
    queue.write_bytes(whole[queue][:40] + bytes(20) + whole[queue][60:])
    at = 40 + 4 * settings_of(root).maxHashSlotNum + 20 + 3  # in the first entry's hash
    index.write_bytes(whole[index][:at] + bytes([whole[index][at] ^ 1]) + whole[index][at + 1 :])
    steps: list[str] = []

    class Healing(MountedOn):
        def __call__(self, function: Callable[[Any], Any], pairs: Sequence[Any]) -> list[Any]:
            name = getattr(function, "keywords", {})["function"]
            steps.append(getattr(name, "__name__", "plan"))
            if healing and steps[-2:] == ["audit_volume", "audit_volume"]:
                for path, data in whole.items():
                    path.write_bytes(data)
            return super().__call__(function, pairs)

    options = replace(ReadOptions.parse({"path": "x"}), paths=(StorePath(place.root, "g-0"),))
    summary = audit.run(options, PlacedRunner({"g-0": place}, lambda _: Healing(["g-0"]), Progress(1)), 10_000)  # type: ignore[arg-type, return-value]
    lock.release()
    assert steps.count("audit_split") == 2 and steps.count("audit_volume") == 2
    found = {each["what"] for each in summary["differences"]}
    assert found == (set() if healing else {"queue", "index"})


def expired_queues(root: Path, begin: int) -> list[Path]:
    """Files of queues all of whose units name what lies before `begin`."""
    found = []
    for path in sorted(root.glob("consumequeue/*/*/*")):
        data = path.read_bytes()
        units = [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 20) if any(data[at : at + 20])]
        if units and max(units) < begin and len(list(path.parent.iterdir())) > 1:
            found.append(path)
    return found


def test_a_file_that_is_missing_in_the_middle_is_a_difference(golden: Callable[[str], Path]) -> None:
    root = golden("clean")
    place = Place("g-0", "g", 0, str(root), "x", "http://127.0.0.1:9")
    victim = sorted(root.glob("commitlog/*"))[2]

    class Losing(MountedOn):
        steps = 0

        def __call__(self, function: Callable[[Any], Any], pairs: Sequence[Any]) -> list[Any]:
            Losing.steps += 1
            if Losing.steps == 2:
                victim.unlink()
            return super().__call__(function, pairs)

    options = replace(ReadOptions.parse({"path": "x"}), paths=(StorePath(place.root, "g-0"),))
    summary = audit.run(options, PlacedRunner({"g-0": place}, lambda _: Losing(["g-0"]), Progress(1)))  # type: ignore[arg-type, return-value]
    logs = [each["reason"] for each in summary["differences"] if each["file"] == str(victim)]
    assert logs and logs[0].startswith("no file has these bytes; the next sound record is at ")
