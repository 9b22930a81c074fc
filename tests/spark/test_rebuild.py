"""Queues and index are rebuilt: where they are written, and when files of an open, trimmed or extended store count as
equal."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from engine_lab import message, opened, small

from tallystick.spark.jobs import rebuild
from tallystick.spark.jobs.audit import LAG_MS
from tallystick.spark.jobs.rebuild_compare import Snapshot, compare
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs import FolderOutput, Output
from tallystick.spark.outputs_s3 import S3Output
from tallystick.spark.runner import Inline, inline
from tallystick.spark.volume import VolumeError
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.formats.queue_format import INDEX_ENTRY, INDEX_HEADER, UNIT, IndexGeometry
from tallystick.store.verify.dump import settings_of

Golden = Callable[[str], Path]
pytestmark = pytest.mark.usefixtures("own_temporary_folder")


def options_of(root: Path, **given: str) -> ReadOptions:
    return ReadOptions.parse({"path": f"n0={root}"} | given)


def checked(root: Path, lag_ms: int = LAG_MS, **given: str) -> dict[str, Any]:
    """Built, compared, thrown away."""
    (found,) = rebuild.run(options_of(root, **given), inline, None, lag_ms=lag_ms)["volumes"]
    assert not list(Path(tempfile.gettempdir()).glob("*rebuild-*")), "what was built is removed"
    assert found["folder"] is None
    result: dict[str, Any] = found
    return result


def derived(store: MessageStore) -> None:
    """Queues and index have all of the log, and their files do, too."""
    store.dispatcher.catch_up()
    store._dispatch.write_out()


def flip(path: Path, at: int, by: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ by]))


# -- what is the same --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["clean", "killed", "edge", "dledger-n0", "flipped-body", "torn-tail", "cqext", "trimmed"]
)
def test_sound_stores_are_as_rebuilt(golden: Golden, name: str) -> None:
    root = golden(name)
    found = checked(root)
    assert found["differing"] == found["missing"] == []
    files = len([*root.glob("consumequeue/*/*/*"), *root.glob("index/*")])
    assert found["same"] + found["beyond"] == files
    assert found["compared"]["to_the_byte"] == (name not in ("cqext", "trimmed", "torn-tail"))
    assert found["compared"]["queue_units"] > 50
    assert found["beyond"] == 0 or name == "trimmed"


@pytest.mark.parametrize("name", ["clean", "trimmed", "cqext"])
def test_a_unit_that_is_not_as_rebuilt_is_found(golden: Golden, name: str) -> None:
    """Each byte of some units, in the front, in the middle and at the end of what the log still has."""
    root = golden(name)
    volume = options_of(root).volumes()[0]
    dice = random.Random(name)
    for path in dice.sample(sorted(root.glob("consumequeue/*/*/*")), 3 if name != "cqext" else 2):
        data = path.read_bytes()
        units = [UNIT.unpack_from(data, at) for at in range(0, len(data), UNIT.size)]
        kept = [n for n, unit in enumerate(units) if unit[1] not in (0, 2**31 - 1) and volume.begin <= unit[0]]
        for number in {*kept[:1], *kept[len(kept) // 2 :][:1], *kept[-1:]}:
            at = UNIT.size * number + dice.randrange(UNIT.size)
            if name == "cqext" and at % UNIT.size >= 12:
                continue  # an address, where the extension is
            flip(path, at)
            assert checked(root)["differing"] == [str(path.relative_to(root))], (path, at)
            flip(path, at)
        if kept:
            with path.open("r+b") as file:
                file.seek(UNIT.size * kept[-1])
                file.write(bytes(UNIT.size))
            assert str(path.relative_to(root)) in [*checked(root)["differing"], *checked(root)["missing"]]
            path.write_bytes(data)


def test_a_unit_behind_the_last_one_names_nothing_that_is_there(golden: Golden) -> None:
    root = golden("clean")
    path = sorted(root.glob("consumequeue/GoldB/0/*"))[-1]
    data = path.read_bytes()
    count = len(data.rstrip(b"\0")) // UNIT.size + 1
    for unit in (UNIT.pack(4, 300, 7), UNIT.pack(1 << 40, 300, 7)):
        path.write_bytes((data[: count * UNIT.size] + unit).ljust(len(data), b"\0"))
        assert checked(root)["differing"] == [str(path.relative_to(root))], (
            "it is closed: nothing lies behind the bound"
        )
    path.write_bytes(data)
    shutil.copytree(root / "consumequeue" / "GoldB", root / "consumequeue" / "Ghost")
    assert {name.split("/")[1] for name in checked(root)["differing"]} == {"Ghost"}
    shutil.rmtree(root / "consumequeue" / "Ghost")
    path.unlink()
    assert str(path.relative_to(root)) in checked(root)["missing"]


def test_extensions_are_looked_up(golden: Golden, tmp_path: Path) -> None:
    """Tags codes and times count, bit maps do not; rebuilt ones have none."""
    root = golden("cqext")
    place = FolderOutput(tmp_path / "out")
    rebuild.run(options_of(root), inline, place)
    made = tmp_path / "out" / "n0"
    assert settings_of(made).enableConsumeQueueExt
    ext = sorted(made.glob("consumequeue_ext/GoldExt/0/*"))[0].read_bytes()
    assert (ext[:2], ext[18:20], ext[20:22]) == (b"\0\x14", b"\0\0", b"\0\x14")
    path = sorted(root.glob("consumequeue_ext/GoldExt/0/*"))[0]
    for at, counts in ((9, True), (17, True), (20, False), (33, False)):
        flip(path, 34 * 5 + at)
        queues = ["consumequeue/GoldExt/0/00000000000000000000"] if counts else []
        assert checked(root)["differing"] == queues, at
        flip(path, 34 * 5 + at)


def index_of(root: Path) -> tuple[Path, IndexGeometry, int]:
    path = sorted(root.glob("index/*"))[0]
    settings = settings_of(root)
    geometry = IndexGeometry(settings.maxHashSlotNum, settings.maxIndexNum)
    return path, geometry, INDEX_HEADER.unpack_from(path.read_bytes())[5]


@pytest.mark.parametrize("name", ["clean", "trimmed"])
def test_an_entry_that_is_not_as_rebuilt_is_found(golden: Golden, name: str) -> None:
    root = golden(name)
    path, geometry, count = index_of(root)
    for number in (count - 1, (count + 1) // 2 if name == "clean" else count - 2):
        pos = INDEX_ENTRY.unpack_from(path.read_bytes(), geometry.entry_at(number))[1]
        assert pos >= options_of(root).volumes()[0].begin
        for at in (3, 11, 14, 19) if name == "clean" else (3, 11, 14):  # of a trimmed one, chains are not compared
            flip(path, geometry.entry_at(number) + at, 4)
            names = checked(root, committed=str(1 << 60))["differing"]
            assert names == [f"index/{path.name}"], (number, at)
            flip(path, geometry.entry_at(number) + at, 4)
    if name == "clean":
        for at in (7, 15, 23, 31, 35, 39, geometry.slot_at(0) + 3):
            flip(path, at)
            assert checked(root, committed=str(1 << 60))["differing"] == [f"index/{path.name}"], at
            flip(path, at)


# -- a store that is open ----------------------------------------------------------------------------------------------


async def write(store: MessageStore, count: int, seed: int = 1) -> None:
    dice = random.Random(seed)
    for _ in range(count):
        properties = f"KEYS\x01k{dice.randrange(9)} other\x02UNIQ_KEY\x01u{dice.randrange(10**9)}\x02TAGS\x01a\x02"
        await store.writes.put(
            message(dice.randbytes(dice.randrange(200)), queue=dice.randrange(3), properties=properties)
        )


ROOMY = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 20 * 100,
    "maxHashSlotNum": 97,
    "maxIndexNum": 500,
}


async def test_a_store_that_is_written_to_is_as_rebuilt(tmp_path: Path) -> None:
    """Every time: nothing that is not settled is taken for a difference, and all that is settled is compared."""
    async with opened(small(tmp_path, **ROOMY)) as store:
        await write(store, 300)

        async def go_on() -> None:
            for number in range(90):
                await write(store, 20, number)
                await asyncio.sleep(0.01)
                if number % 7 == 0:
                    store._dispatch.write_out()

        writer, last, turns = asyncio.create_task(go_on()), 0, 0
        while not writer.done():
            found = await asyncio.to_thread(checked, tmp_path)
            assert (found["stopped"], found["differing"], found["missing"]) == (None, [], [])
            assert found["records"] >= last
            assert found["compared"]["queue_units"] + found["behind"].get("queue units", 0) >= found["records"]
            last, turns = found["records"], turns + 1
        await writer
        assert turns > 1 and last > 300


async def test_bounds_below_what_the_store_has(tmp_path: Path) -> None:
    """At each record: queues and index are compared as they were when the log ended there, over several index files."""
    async with opened(small(tmp_path, **ROOMY)) as store:
        await write(store, 400)
        derived(store)
        ends = [pos + size for queue in range(3) for pos, size, _ in store.reads.units("T", queue, 0, 1000)]
        for bound in random.Random(3).sample(ends, 25):
            found = await asyncio.to_thread(checked, tmp_path, committed=str(bound))
            assert found["differing"] == found["missing"] == [] and found["behind"] == {}, bound
            assert found["compared"] == {
                "queue_units": sum(end <= bound for end in ends),
                "index_entries": 3 * sum(end <= bound for end in ends),
                "to_the_byte": False,
            }


@pytest.mark.parametrize("where", ["unit", "entry", "chain", "slot", "missing unit", "lost queue", "lost index"])
async def test_what_is_broken_below_the_bound_of_an_open_store(tmp_path: Path, where: str) -> None:
    async with opened(small(tmp_path, **ROOMY)) as store:
        await write(store, 300)
        derived(store)
        queue = tmp_path / "consumequeue" / "T" / "1" / f"{0:020d}"
        index = sorted((tmp_path / "index").glob("*"))[0]
        geometry = IndexGeometry(97, 500)
        bound = store.reads.units("T", 1, 40, 1)[0][0]
        count = sum(3 for q in range(3) for pos, _, _ in store.reads.units("T", q, 0, 1000) if pos < bound)
        broken = f"consumequeue/T/1/{queue.name}"
        match where:
            case "unit":
                flip(queue, 20 * 30 + 7)
            case "missing unit":
                with queue.open("r+b") as file:
                    file.seek(20 * 30)
                    file.write(bytes(20))
            case "lost queue":
                queue.unlink()
            case "lost index":
                for path in (tmp_path / "index").glob("*"):
                    path.unlink()
                broken = ""
            case "entry" | "chain" | "slot":
                at = {"entry": geometry.entry_at(5) + 3, "chain": geometry.entry_at(count - 1) + 19}.get(where)
                if at is None:  # a slot whose chain, in what is below the bound, begins with another entry then
                    data = index.read_bytes()
                    at = next(
                        geometry.slot_at(slot) + 3
                        for slot in range(97)
                        if 0 < int.from_bytes(data[geometry.slot_at(slot) :][:4], "big") < count
                    )
                flip(index, at)
                broken = f"index/{index.name}"
        settings = {"maxHashSlotNum": "97", "maxIndexNum": "500"}
        options = options_of(tmp_path, committed=str(bound))
        run = rebuild.run(options, inline, None, settings, lag_ms=-1000)
        (found,) = run["volumes"]
        listed = [*found["differing"], *found["missing"]]
        assert [name for name in listed if not name.startswith("index/")] == ([broken] if "queue" in broken else [])
        assert (
            (listed == [broken]) if broken else (len(listed) > 0 and all(name.startswith("index/") for name in listed))
        )


async def test_young_units_may_lack_and_old_ones_may_not(tmp_path: Path) -> None:
    async with opened(small(tmp_path, **ROOMY)) as store:
        await write(store, 90)
        derived(store)
        for path in (tmp_path / "consumequeue" / "T").glob("*/*"):  # as if they were in the broker's memory still
            units = path.read_bytes().rstrip(b"\0")
            with path.open("r+b") as file:
                file.seek((len(units) // UNIT.size - 5) * UNIT.size)
                file.write(bytes(5 * UNIT.size))
        found = await asyncio.to_thread(checked, tmp_path, committed=str(store.readable_end))
        assert found["differing"] == found["missing"] == [] and found["behind"] == {"queue units": 15}
        found = await asyncio.to_thread(checked, tmp_path, lag_ms=-1000, committed=str(store.readable_end))
        assert len(found["differing"]) == 3 and found["behind"] == {}


# -- trimmed -----------------------------------------------------------------------------------------------------------


async def test_a_store_whose_beginning_expired(tmp_path: Path) -> None:
    """Queues begin where the log does; what older units name is gone, and they are no difference. Open, then closed."""
    async with opened(small(tmp_path / "store", **ROOMY)) as store:
        await write(store, 900)
        derived(store)
        for number in (0, 1):
            (tmp_path / "store" / "commitlog" / f"{65536 * number:020d}").unlink()
        found = await asyncio.to_thread(checked, tmp_path / "store")
        assert found["differing"] == found["missing"] == [] and found["begin"] == 2 * 65536
    for _ in range(2):
        found = checked(tmp_path / "store")
        assert found["differing"] == found["missing"] == [] and found["behind"] == {} and found["stopped"] is None
        assert found["compared"]["queue_units"] == found["records"] > 100
        assert found["compared"]["index_entries"] == 3 * found["records"]
        assert found["beyond"] > 0
    place = FolderOutput(tmp_path / "out")
    rebuild.run(options_of(tmp_path / "store"), inline, place)
    store_root, made = tmp_path / "store", tmp_path / "out" / "n0"
    for kind in ("consumequeue", "index"):
        shutil.rmtree(store_root / kind)
        shutil.copytree(made / kind, store_root / kind)
    async with opened(small(store_root, **ROOMY)) as store:
        low, high = store.queues.min_offset("T", 1), store.queues.max_offset("T", 1)
        assert 0 < low < high
        assert store.reads.units("T", 1, low, 1)[0][0] >= 2 * 65536
        assert store.reads.query("T", "other", 5, 0, 1 << 60).records


async def test_what_expires_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again of what is left."""
    async with opened(small(tmp_path, **ROOMY)) as store:
        await write(store, 600)
        derived(store)
    volumes = rebuild.volume_of
    times: list[int] = []

    def expiring(task: Any) -> Any:
        volume = volumes(task)
        if not times:
            Path(volume.files[0].path).unlink()
        times.append(volume.begin)
        return volume

    monkeypatch.setattr(rebuild, "volume_of", expiring)
    found = checked(tmp_path)
    assert times == [0, 65536]
    assert found["differing"] == found["missing"] == [] and found["stopped"] is None and found["begin"] == 65536


# -- outputs -----------------------------------------------------------------------------------------------------------


def made_files(place: Output) -> dict[str, bytes]:
    """By name within the source's folder."""
    found = {}
    for name in place.names("n0"):
        data = place.read(name) or b""
        if isinstance(place, S3Output):
            assert name.endswith(".zst")
            data = pa.input_stream(pa.BufferReader(data), compression="zstd").read()
        found[name.removeprefix("n0/").removesuffix(".zst")] = data
    return found


def test_the_same_files_wherever_they_go(golden: Golden, place: Output) -> None:
    root = golden("clean")
    summary = rebuild.run(options_of(root), inline, place)
    assert summary["volumes"][0]["folder"] == f"{place.place}/n0"
    found = made_files(place)
    theirs = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.glob("consumequeue/*/*/*")}
    assert {name: data for name, data in found.items() if name.startswith("consumequeue/")} == theirs
    index = [data for name, data in found.items() if name.startswith("index/")]
    assert index == [path.read_bytes() for path in sorted(root.glob("index/*"))]
    assert set(place.names()) == set(place.names("n0")), "nothing else is left"
    with pytest.raises(OptionError, match="is not empty"):
        rebuild.run(options_of(root), inline, place)


class Weighing(Inline):
    def __init__(self) -> None:
        self.pieces: list[int] = []

    def stream(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        for result in super().stream(function, items):
            self.pieces.append(sum(len(block) for _, block in result))
            yield result


async def test_zeros_do_not_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "PIECE_BYTES", 200_000)
    async with opened(
        small(tmp_path / "store", **(ROOMY | {"maxHashSlotNum": 500_000, "maxIndexNum": 2_000_000}))
    ) as store:
        await write(store, 300)
        derived(store)
    place, runner = FolderOutput(tmp_path / "out", shared=False), Weighing()
    rebuild.run(options_of(tmp_path / "store"), runner, place)
    (index,) = (tmp_path / "out" / "n0" / "index").iterdir()
    assert index.stat().st_size == 42_000_040 > 10 * sum(runner.pieces)
    assert index.stat().st_blocks * 512 < 5_000_000
    assert max(runner.pieces) <= 200_000 and len(runner.pieces) > 5
    assert index.read_bytes() == next((tmp_path / "store" / "index").iterdir()).read_bytes()


def test_pieces_are_made_again_where_they_are_not(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker was lost, and another one continues."""
    monkeypatch.setattr(rebuild, "PIECE_BYTES", 100_000)
    lost = []

    class Losing(Inline):
        def stream(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
            for number, item in enumerate(items):
                if number % 5 == 3:
                    lost.append(item)
                    rebuild.forget(item.task)
                yield function(item)

    root, place = golden("clean"), FolderOutput(tmp_path / "out", shared=False)
    rebuild.run(options_of(root), Losing(), place)
    assert lost
    volume = options_of(root).volumes()[0]
    assert compare(tmp_path / "out" / "n0", root, Snapshot(volume, 2**63 - 1, False)).to_the_byte
    assert len(made_files(place)) == len([*root.glob("consumequeue/*/*/*"), *root.glob("index/*")])


class Killed(BaseException):
    """The process is gone."""


def test_a_killed_run_does_not_stand_in_the_way(golden: Golden, place: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden("edge")
    create, remove, left = type(place).create, type(place).remove, [0]

    def moment(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return call(*arguments)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(type(place), "create", moment(create))
        patch.setattr(type(place), "remove", moment(remove))
        for at in (2, 3, 7, 20, 4):
            left[0] = at
            try:
                rebuild.run(options_of(root), inline, place)
                break
            except Killed:
                continue
        left[0] = 0
    if not place.names("n0") or place.read("_tally/rebuilding/n0") is not None:
        rebuild.run(options_of(root), inline, place)
    queues = {name: data for name, data in made_files(place).items() if name.startswith("consumequeue/")}
    assert queues == {path.relative_to(root).as_posix(): path.read_bytes() for path in root.glob("consumequeue/*/*/*")}


def test_foreign_files_are_not_changed(golden: Golden, place: Output) -> None:
    place.write("n0/notes.txt", b"mine")
    for _ in range(2):
        with pytest.raises(OptionError, match="is not empty"):
            rebuild.run(options_of(golden("edge")), inline, place)
    assert place.read("n0/notes.txt") == b"mine"


def test_two_logs_in_one_store_are_refused(golden: Golden) -> None:
    root = golden("dledger-n0")
    (root / "commitlog").mkdir(exist_ok=True)
    for segment in sorted((root / "dledger-n0" / "data").iterdir(), reverse=True):
        segment.rename(segment.with_name(f"{int(segment.name) + 1000:020d}"))
    (root / "commitlog" / f"{0:020d}").write_bytes(bytes(1000))
    with pytest.raises(VolumeError, match="two logs"):
        checked(root)
