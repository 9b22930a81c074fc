"""Every message is exported once, to any output, with any kill, and from any member."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from export_lab import Meanwhile
from golden_rows import expected

from tallystick.spark.jobs import export, export_files, export_reading
from tallystick.spark.jobs.export_book import Book, valid_files
from tallystick.spark.jobs.export_files import Form, GatherTask, Group, MergeTask, gather, merge, targets_of
from tallystick.spark.jobs.registry import text_of
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs import FolderOutput, Output
from tallystick.spark.outputs_s3 import S3Output
from tallystick.spark.runner import Inline, inline
from tallystick.spark.scan import SplitScan
from tallystick.spark.splits import Split, plan
from tallystick.spark.volume import open_volume
from tallystick.store.formats.record import Record

Golden = Callable[[str], Path]
TOPICS = "GoldBatch,GoldA"
Row = tuple[str, int]


def options_of(path: str, **given: str) -> ReadOptions:
    return ReadOptions.parse({"path": path} | given)


def rows_of(place: Output, names: list[str] | None = None) -> list[Row]:
    """(source, position) of every row of every file, or of these files."""
    rows: list[Row] = []
    for name in place.names() if names is None else names:
        if name.endswith(".parquet"):
            table = read(place, name)
            rows += zip(table["source"].to_pylist(), table["physical_offset"].to_pylist(), strict=True)
    return sorted(rows)


def read(place: Output, name: str) -> pa.Table:
    return parquet.read_table(BytesIO(place.read(name) or b""))


def files_of(place: Output) -> list[str]:
    return [name for name in place.names() if name.endswith(".parquet")]


# -- killed anywhere ---------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


class Killing(Output):
    """Counts what changes the place, and what is about to; the process is killed at one of these moments."""

    def __init__(self, place: Output, at: int) -> None:
        self._place = place
        self._left = at
        self.shared = place.shared
        self.place = place.place
        self.moments = 0
        self._begun: list[Any] = []

    def _moment(self) -> None:
        self.moments += 1
        if self.moments == self._left:
            raise Killed

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        context = self._place.create(name)
        self._begun.append(context)  # a killed process does not clean up
        file = context.__enter__()
        yield file
        file.flush()
        self._moment()
        context.__exit__(None, None, None)
        self._moment()

    def read(self, name: str) -> bytes | None:
        return self._place.read(name)

    def names(self, below: str = "") -> list[str]:
        return self._place.names(below)

    @contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        with self._place.opened(name) as file:
            yield file

    def sizes(self) -> dict[str, int]:
        return self._place.sizes()

    def remove(self, name: str) -> None:
        self._moment()
        self._place.remove(name)

    def clear_aside(self) -> None:
        self._place.clear_aside()


def again(place: Output, request: pytest.FixtureRequest, number: int, tmp_path: Path) -> Output:
    """Another one of the kind, empty."""
    if isinstance(place, S3Output):
        found: Output = request.getfixturevalue("s3").output()
        return found
    return FolderOutput(tmp_path / str(number), shared=place.shared)


def test_a_run_that_is_killed_at_any_moment(
    golden: Golden, golden_folder: Path, place: Output, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Some was exported; the next run is killed; so is the one after it, while it cleans up; the last one ends."""
    roots = {"a": golden("clean"), "b": golden("killed")}
    wanted, half = {}, {}
    for source, name in (("a", "clean"), ("b", "killed")):
        offsets = [
            m["offset"] for m in expected(golden_folder, name)["opened"]["messages"] if m["topic"] == "GoldBatch"
        ]
        wanted[source] = offsets
        half[source] = offsets[len(offsets) // 3]
    every = sorted((source, offset) for source, offsets in wanted.items() for offset in offsets)
    path = ",".join(f"{source}={root}" for source, root in roots.items())
    options = options_of(path, topic="GoldBatch", splitBytes="1500000")
    number, moments = 0, 1
    while number < moments:
        number += 1
        place = again(place, request, number, tmp_path)
        before = options_of(f"a={roots['a']}", topic="GoldBatch", splitBytes="1500000", committed=str(half["a"]))
        export.run(before, inline, place)
        held = rows_of(place)
        for at in (number, max(1, number // 2)):
            killing = Killing(place, at)
            try:
                export.run(options, inline, killing)
                moments = number
            except Killed:
                moments = max(moments, number + 1)
            recorded = rows_of(place, valid_files(place))
            assert len(recorded) == len(set(recorded)) and set(held) <= set(recorded) <= set(every), at
            held = recorded
        # Cut elsewhere: what was left does not just happen to be written again.
        summary = export.run(replace(options, split_bytes=200_000), inline, place)
        assert rows_of(place) == every, number
        assert [each["added_rows"] for each in summary["sources"]] == [
            sum(1 for row in every if row[0] == source and row not in set(held)) for source in roots
        ]
        assert not [name for name in place.names() if name.startswith(("_tally/aside", "_tally/gathered"))]
    assert moments > 12, "there were that many moments to be killed at"


def test_what_a_dead_run_writes_late_is_removed(golden: Golden, place: Output) -> None:
    """Its messages are recorded in files of another run."""
    path = f"a={golden('clean')}"
    export.run(options_of(path, topic=TOPICS, splitBytes="300000"), inline, place)
    rows, names = rows_of(place), place.names()
    split = plan(open_volume(golden("clean"), "a"), split_bytes=700_000)[1]
    if isinstance(place, S3Output) or place.shared:
        late: Output = place
    else:
        late = FolderOutput(Path(place.place))
    wanted, form = options_of(path, topic=TOPICS).wanted, Form(False, 1 << 20)
    gathered = gather(GatherTask(split, "_tally/gathered/a-dead"), late, wanted, form)
    targets = targets_of("a", "0123456789abcdef", gathered.groups, 1 << 30)
    merge(MergeTask("a", tuple(targets)), late, form)
    assert len(rows_of(place)) > len(rows) == len(rows_of(place, valid_files(place)))
    assert export.run(options_of(path, topic=TOPICS), inline, place)["added_files"] == 0
    assert (rows_of(place), place.names()) == (rows, names)


def test_two_at_work_in_one_place_do_not_both_record(golden: Golden, tmp_path: Path) -> None:
    place = FolderOutput(tmp_path / "out")
    options = options_of(f"a={golden('clean')}", topic=TOPICS)

    def other() -> None:
        export.run(replace(options, split_bytes=300_000), inline, place)

    with pytest.raises(export.ExportError, match="another export"):
        export.run(options, Meanwhile(other), place)
    (tmp_path / "out" / "_tally" / "a.json").unlink()
    with pytest.raises(export.ExportError, match="has lost"):
        export.run(options, Meanwhile(lambda: place.remove(max(place.names("topic=GoldA")))), place)
    export.run(options, inline, place)
    rows = rows_of(place)
    assert len(rows) == len(set(rows)) == len(rows_of(place, valid_files(place))) > 0


# -- members of a group ------------------------------------------------------------------------------------------------


def test_whichever_member_is_read(golden: Golden, golden_folder: Path, place: Output) -> None:
    """One that is behind what was exported from another adds and takes nothing; one that is ahead adds the rest."""
    roots = [golden(f"dledger-n{number}") for number in range(3)]
    offsets = [message["offset"] for message in expected(golden_folder, "dledger-n0")["opened"]["messages"]]
    added = []
    for number, kept in ((0, 200), (1, 150), (2, 150), (1, 201), (2, 0), (1, 400), (0, None), (1, 300)):
        bound = {} if kept is None else {"committed": str(offsets[kept] - 48)}
        summary = export.run(
            options_of(f"orders/n{number}={roots[number]}", splitBytes="60000", **bound), inline, place
        )
        assert [each["source"] for each in summary["sources"]] == ["orders"]
        added.append(summary["added_rows"])
    assert added == [200, 0, 0, 1, 0, 199, len(offsets) - 400, 0]
    assert rows_of(place) == [("orders", offset) for offset in offsets]
    assert place.names("_tally") == ["_tally/orders.json"]


def test_what_expired_before_it_was_read_is_not_recorded(golden: Golden, golden_folder: Path, tmp_path: Path) -> None:
    """Another member may still have it."""
    place = FolderOutput(tmp_path / "out")
    gone, kept = golden("dledger-n0"), golden("dledger-n1")
    first = sorted((gone / "dledger-n0" / "data").iterdir())[0]

    class Expiring(Inline):
        def __call__(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
            if items and isinstance(items[0], GatherTask):
                first.unlink(missing_ok=True)
            return super().__call__(function, items)

    summary = export.run(options_of(f"orders/n0={gone}", splitBytes="60000"), Expiring(), place)
    assert summary["damage"] and summary["sources"][0]["ranges"][0][0] > 0
    export.run(options_of(f"orders/n1={kept}"), inline, place)
    offsets = [message["offset"] for message in expected(golden_folder, "dledger-n0")["opened"]["messages"]]
    rows = [offset for _, offset in rows_of(place)]
    assert len(rows) == len(set(rows))
    assert [offset for offset in rows if offset <= offsets[-1]] == offsets, "n1's files know a later bound"


# -- through the driver ------------------------------------------------------------------------------------------------


def test_what_is_carried_is_bounded(
    golden: Golden, golden_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no queue knows a boundary, and the whole file is one split."""
    monkeypatch.setattr(export_reading, "CARRIED_BYTES", 50_000)
    carried: list[Split] = []

    class Weighing(Inline):
        def stream(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
            for result, files in super().stream(function, items):
                carried.append(result.split)
                yield result, files

    for name in ("clean", "lost-queues"):
        place = FolderOutput(tmp_path / name, shared=False)
        whole = FolderOutput(tmp_path / f"{name}-whole")
        carried.clear()
        export.run(options_of(f"a={golden(name)}"), Weighing(), place)
        export.run(options_of(f"a={golden(name)}"), inline, whole)
        assert rows_of(place) == rows_of(whole) != []
        largest = max(message["size"] for message in expected(golden_folder, "clean")["opened"]["messages"])
        assert len(carried) > 12 and max(split.bytes for split in carried) <= 2 * 50_000 + largest
        assert len(Book.load(place, "a", options_of("a=x").wanted, "stored").ranges) == 1, "they meet"


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_topic_and_day_is_one_file_whatever_the_number_of_splits(
    golden: Golden, place: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_files, "SECTION_BYTES", 20_000)
    monkeypatch.setattr(export_files, "SplitScan", partial(SplitScan, max_rows=100))
    options = options_of(f"a~b={golden('clean')}", splitBytes="200000")
    summary = export.run(options, inline, place)
    names = files_of(place)
    places = [name.rpartition("/")[0] for name in names]
    assert len(names) == len(set(places)) == summary["added_files"] > 10
    rows = rows_of(place)
    assert len(rows) == len(set(rows)) == summary["added_rows"] > 3000
    for name in names:
        table = read(place, name)
        order = list(zip(table["queue_id"].to_pylist(), table["queue_offset"].to_pylist(), strict=True))
        assert order == sorted(order)
        for kind in ("born", "store"):
            times, numbers = table[f"{kind}_time"], table[f"{kind}_timestamp_ms"]
            assert times.type == pa.timestamp("us", "UTC") and times.cast(pa.int64()).to_pylist() == [
                number * 1000 for number in numbers.to_pylist()
            ]
    assert export.run(options, inline, place)["added_rows"] == 0
    assert files_of(place) == names


def test_files_have_a_target_size() -> None:
    groups = [Group(f"t{number % 3}", "d", "x", number, 10 if number % 3 else 40) for number in range(300)]
    targets = targets_of("a", "r", groups, 100)
    assert sorted(group.batch for target in targets for group in target.groups) == list(range(300))
    assert len({target.name for target in targets}) == len(targets)
    for topic, size in (("t0", 40), ("t1", 10), ("t2", 10)):
        own = [target for target in targets if target.name.startswith(f"topic={topic}/day=d/a-r-")]
        assert len(own) <= -(-100 * size // 100), "no more than the bytes of the topic need"
        assert all(100 <= target.bytes < 140 for target in own[:-1])
    tasks = export_files.tasks_of("a", targets, 250)
    assert [target for task in tasks for target in task.targets] == targets
    assert all(sum(target.bytes for target in task.targets) < 250 + 140 for task in tasks)


def test_small_files_are_merged_once_there_are_enough(golden: Golden, golden_folder: Path, place: Output) -> None:
    offsets = [message["offset"] for message in expected(golden_folder, "clean")["opened"]["messages"]]
    root, ways = f"a={golden('clean')}", export.Ways(compact=4)
    for number, bound in enumerate((300, 900, 1500, 2100, 2700)):
        summary = export.run(options_of(root, topic="GoldA", committed=str(offsets[bound])), inline, place, ways)
        assert summary["replaced_files"] == (4 if number == 4 else 0)
        assert len(files_of(place)) == (1 if number == 4 else number + 1)
        assert valid_files(place) == files_of(place)
    rows = rows_of(place)
    assert len(rows) == len(set(rows)) > 500
    other = export.run(options_of(f"b={golden('edge')}"), inline, place, ways)
    assert other["replaced_files"] == 0, "files of another source"
    assert [row for row in rows_of(place) if row[0] == "a"] == rows


def test_a_run_that_is_killed_while_it_merges_small_files(
    golden: Golden, golden_folder: Path, place: Output, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    offsets = [message["offset"] for message in expected(golden_folder, "clean")["opened"]["messages"]]
    root, ways = f"a={golden('clean')}", export.Ways(compact=2)
    number, moments = 0, 1
    while number < moments:
        number += 1
        place = again(place, request, number, tmp_path)
        for bound in (300, 900):
            export.run(options_of(root, topic="GoldA", committed=str(offsets[bound])), inline, place)
        held = rows_of(place)
        try:
            export.run(
                options_of(root, topic="GoldA", committed=str(offsets[1500])), inline, Killing(place, number), ways
            )
            moments = number
        except Killed:
            moments = max(moments, number + 1)
        recorded = rows_of(place, valid_files(place))
        assert set(held) <= set(recorded) and len(recorded) == len(set(recorded)), number
        export.run(options_of(root, topic="GoldA"), inline, place)
        rows = rows_of(place)
        assert len(rows) == len(set(rows)) and rows_of(place, valid_files(place)) == rows, number
        assert len(rows) > len(held)
    assert moments > 8, "there were that many moments to be killed at"


def test_what_an_earlier_version_exported_continues(golden: Golden, golden_folder: Path, place: Output) -> None:
    """Its books list pieces of the log, and its files have no times."""
    offsets = [message["offset"] for message in expected(golden_folder, "clean")["opened"]["messages"]]
    root, bound = f"a={golden('clean')}", offsets[1000]
    export.run(options_of(root, topic="GoldA", committed=str(bound)), inline, place)
    (name,) = files_of(place)
    folder = name.rpartition("/")[0]
    table = read(place, name).drop_columns(["born_time", "store_time"])
    place.remove(name)
    for number, piece in enumerate((f"{0:020d}-{bound:020d}", f"{7:020d}-{9:020d}")):
        out = BytesIO()
        parquet.write_table(table, out)
        place.write(f"{folder}/a{'~2' * number}-{piece}.parquet", out.getvalue())
    place.write("_tally/a.json", json.dumps({"filter": {"topics": ["GoldA"]}, "pieces": [[0, bound]]}).encode())
    held = rows_of(place, valid_files(place))
    assert len(held) == table.num_rows
    export.run(options_of(root, topic="GoldA", committed=str(offsets[2000])), inline, place)
    export.run(options_of(root, topic="GoldA"), inline, place, export.Ways(compact=2))
    rows = rows_of(place)
    assert set(held) < set(rows) and len(rows) == len(set(rows))
    (merged,) = files_of(place)
    assert read(place, merged)["store_time"].null_count == 0


def test_decompressed_bodies(tmp_path: Path) -> None:
    data = b""
    bodies = [(0, b"plain"), (1, zlib.compress(b"packed" * 1000)), (1, b"damaged")]
    for number, (flag, body) in enumerate(bodies):
        data += Record("T", 0, body, sys_flag=flag, queue_offset=number, pos=len(data)).encode()
    log = tmp_path / "store" / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020d}").write_bytes(data.ljust(1 << 16, b"\0"))
    place = FolderOutput(tmp_path / "out")
    ways = export.Ways.parse({"bodies": "decompressed"})
    summary = export.run(options_of(f"a={tmp_path / 'store'}"), inline, place, ways)
    assert summary["without_content"] == 1 and "1 body could not be decompressed" in text_of(summary)
    table = read(place, files_of(place)[0])
    assert table["content"].to_pylist() == [b"plain", b"packed" * 1000, None]
    assert table["body"].to_pylist() == [None, None, b"damaged"], "stored bytes are kept where there is no content"
    assert table["content_error"].is_valid().to_pylist() == [False, False, True]
    with pytest.raises(export.ExportError, match="another filter"):
        export.run(options_of(f"a={tmp_path / 'store'}"), inline, place)


def test_a_table_of_the_catalog(spark: Any, golden: Golden, tmp_path: Path) -> None:
    place = FolderOutput(tmp_path / "out place")
    options = options_of(f"a={golden('clean')}", topic=TOPICS)
    ways = export.Ways.parse({"table": "lake_of_a"})
    try:
        summary = export.run(options, inline, place, ways)
        frame = spark.table("lake_of_a")
        assert frame.count() == summary["added_rows"]
        assert {row["topic"] for row in frame.select("topic").distinct().collect()} == set(TOPICS.split(","))
        assert dict(frame.dtypes)["store_time"] == "timestamp"
        assert frame.where("unix_millis(store_time) != store_timestamp_ms").count() == 0
        export.run(options, inline, place, ways)
    finally:
        spark.sql("DROP TABLE IF EXISTS lake_of_a")


def test_a_table_needs_a_session(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = pytest.importorskip("pyspark.sql", reason="needs the group `spark`")
    monkeypatch.setattr(sql.SparkSession, "getActiveSession", lambda: None)
    ways = export.Ways(table="t")
    with pytest.raises(OptionError, match="needs a session of Spark"):
        export.run(options_of(f"a={golden('edge')}"), inline, FolderOutput(tmp_path / "out"), ways)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"bodies": "json"}, "bodies: must be stored or decompressed"),
        ({"fileMib": 2000}, "fileMib: must be 1 to 1024"),
        ({"compact": 1}, "compact: must be 2 or more"),
        ({"fileMib": -1}, "fileMib: must be 1 to 1024"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        export.Ways.parse(given)


def test_a_task_that_fails_leaves_no_valid_file(golden: Golden, place: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    written = export_files._write
    times = iter(range(1000))

    def failing(target: Any, rows: Any, output: Output) -> None:
        if next(times) == 5:
            raise OSError("the disk")
        written(target, rows, output)

    options = options_of(f"a={golden('clean')}")
    with monkeypatch.context() as patch:
        patch.setattr(export_files, "_write", failing)
        with pytest.raises(OSError, match="the disk"):
            export.run(options, inline, place)
    assert valid_files(place) == []
    export.run(options, inline, place)
    assert valid_files(place) == files_of(place) and len(rows_of(place)) == len(set(rows_of(place)))


def test_an_export_needs_a_place(golden: Golden) -> None:
    with pytest.raises(OptionError, match="needs a place"):
        export.run(options_of(f"a={golden('clean')}"), inline, None)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"pieces": 3, "filter": {}}', b'{"pieces": [[1]], "filter": {}}'])
def test_a_book_that_cannot_be_read(golden: Golden, tmp_path: Path, text: bytes) -> None:
    place = FolderOutput(tmp_path)
    place.write("_tally/a.json", text)
    with pytest.raises(export.ExportError, match="cannot be read"):
        export.run(options_of(f"a={golden('clean')}"), inline, place)
