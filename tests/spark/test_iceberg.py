"""Iceberg tables have each message exactly once: with any kill, two exports at a time, and other engines' commits."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from export_lab import Meanwhile
from golden_rows import expected, same
from s3_lab import S3Lab

pytest.importorskip("pyiceberg", reason="needs the group `iceberg`")

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from tallystick.spark.jobs import cli, export, iceberg_export
from tallystick.spark.jobs.export_book import ExportError
from tallystick.spark.jobs.iceberg_tables import ExportTable
from tallystick.spark.jobs.registry import text_of
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs_table import TableOutput
from tallystick.spark.runner import inline, on_spark
from tallystick.store.formats.record import Record

Golden = Callable[[str], Path]
Row = tuple[str, int]
ONE, EACH = "lake.messages", "lake.{topic}"
TOPICS = "GoldBatch,GoldA"


class Warehouse:
    """A catalog in SQLite, and a folder (or a bucket) for tables."""

    def __init__(self, folder: Path, **more: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}", **more}

    @property
    def catalog(self) -> Catalog:
        return load_catalog("lab", **self.properties)

    def export(self, path: str, table: str = ONE, runner: Any = inline, **options: str) -> dict[str, Any]:
        given = ReadOptions.parse({"path": path} | options)
        catalog = ("lab", self.properties)
        return iceberg_export.run(given, runner, table, catalog, decompressed=False, file_bytes=1 << 20)

    def table(self, name: str = ONE) -> Table:
        return self.catalog.load_table(name)

    def rows(self, table: str = ONE) -> list[Row]:
        """(source, position) of all rows of all tables of the export."""
        catalog = self.catalog
        names = [".".join(each) for each in catalog.list_tables("lake")] if table == EACH else [table]
        rows: list[Row] = []
        for name in names:
            found = catalog.load_table(name)
            if "physical_offset" in found.schema().column_names:
                columns = found.scan(selected_fields=("source", "physical_offset")).to_arrow()
                rows += zip(columns["source"].to_pylist(), columns["physical_offset"].to_pylist(), strict=True)
        return sorted(rows)

    def files(self) -> set[str]:
        """All data files, and files of runs, that are in the folder."""
        return {str(each) for each in self.folder.rglob("*") if each.is_file() and "/metadata/" not in str(each)} - {
            str(self.folder / "catalog.db")
        }

    def used(self) -> set[str]:
        """The data files of the tables, also of old snapshots."""
        catalog = self.catalog
        tables = [catalog.load_table(name) for name in catalog.list_tables("lake")]
        return {
            entry.data_file.file_path.removeprefix("file://")
            for table in tables
            for snapshot in table.metadata.snapshots
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
        }


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "warehouse")


def positions(golden_folder: Path, name: str, topics: str | None = None) -> list[int]:
    messages = expected(golden_folder, name)["opened"]["messages"]
    return [each["offset"] for each in messages if topics is None or each["topic"] in topics.split(",")]


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ONE, EACH])
def test_tables_have_what_rocketmq_stored(golden: Golden, golden_folder: Path, warehouse: Warehouse, name: str) -> None:
    path = f"a={golden('clean')}"
    summary = warehouse.export(path, name, splitBytes="700000")
    messages = expected(golden_folder, "clean")["opened"]["messages"]
    assert summary["added_rows"] == len(messages)
    assert f"{len(messages):,} rows in {summary['added_files']} files added to {name}" in text_of(summary)
    catalog = warehouse.catalog
    tables = {each[1]: catalog.load_table(each) for each in catalog.list_tables("lake")}
    rows = []
    for table in tables.values():
        days = [field.name for field in table.spec().fields]
        if table.name()[1] == "tally_exports":
            continue
        assert days == (["topic", "store_day"] if name == ONE else ["store_day"])
        found = table.scan().to_arrow()
        rows += found.to_pylist()
        assert found["store_time"].type == pa.timestamp("us", "UTC")
        for part in table.inspect.partitions().to_pylist():
            assert part["file_count"] == 1, "a topic and day is one file"
    rows.sort(key=lambda row: row["physical_offset"])
    for row, message in zip(rows, messages, strict=True):
        same(row, message)
        assert row["store_time"].timestamp() * 1000 == pytest.approx(row["store_timestamp_ms"], abs=0.01)
    if name == EACH:
        assert {"GoldA", "GoldBatch", "_RETRY_GoldRetryGroup", "tally_exports"} <= set(tables)
        assert {row["topic"] for row in tables["_RETRY_GoldRetryGroup"].scan().to_arrow().to_pylist()} == {
            "%RETRY%GoldRetryGroup"
        }
    before = {key: table.metadata_location for key, table in tables.items()}
    again = warehouse.export(path, name)
    assert (again["added_rows"], again["added_files"]) == (0, 0)
    assert {each[1]: catalog.load_table(each).metadata_location for each in catalog.list_tables("lake")} == before
    assert warehouse.files() == warehouse.used()


def test_a_bucket_as_warehouse(golden: Golden, golden_folder: Path, tmp_path: Path, s3: S3Lab) -> None:
    bucket = f"s3://{s3.make_bucket()}/tables"
    given = {"s3.endpoint": s3.endpoint, "s3.region": "us-east-1", "warehouse": bucket}
    warehouse = Warehouse(tmp_path / "catalog", **given)
    path = f"a={golden('clean')}"
    half = positions(golden_folder, "clean")[1000]
    for bound in (str(half), None, None):
        warehouse.export(path, topic=TOPICS, **({} if bound is None else {"committed": bound}))
    assert warehouse.rows() == [("a", offset) for offset in positions(golden_folder, "clean", TOPICS)]
    table = warehouse.table()
    output = TableOutput(ExportTable(ONE, table).io, table.location(), "_tally/aside")
    assert not [name for name in output.names() if name.startswith("_tally")]
    files = [each["file_path"] for each in table.inspect.files().to_pylist()]
    assert sorted(f"{table.location()}/{each}" for each in output.names("data")) == sorted(files)


def test_tasks_of_spark_write_the_files(spark: Any, golden: Golden, golden_folder: Path, warehouse: Warehouse) -> None:
    warehouse.export(f"a={golden('clean')}", runner=on_spark(spark.sparkContext), splitBytes="700000")
    assert warehouse.rows() == [("a", offset) for offset in positions(golden_folder, "clean")]


def test_a_time_outside_of_the_calendar(tmp_path: Path, warehouse: Warehouse) -> None:
    data = b""
    for number, time in enumerate((1_700_000_000_000, 2**62, -(2**62), -1, 253_402_300_800_000)):
        record = Record("T", 0, b"x", store_timestamp_ms=time, queue_offset=number, pos=len(data))
        data += record.encode()
    log = tmp_path / "store" / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020d}").write_bytes(data.ljust(1 << 16, b"\0"))
    warehouse.export(f"a={tmp_path / 'store'}")
    table = warehouse.table()
    times = {row["queue_offset"]: row["store_time"] for row in table.scan().to_arrow().to_pylist()}
    assert [number for number, time in times.items() if time is None] == [1, 2, 4] and len(times) == 5
    days = {str(part["partition"]["store_day"]) for part in table.inspect.partitions().to_pylist()}
    assert days == {"2023-11-14", "None", "1969-12-31"}


# -- killed ------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


@contextmanager
def killing(at: int) -> Iterator[list[int]]:
    """Within it, the process is killed at one of the moments: there is one before each change of files and tables."""
    moments = [0]

    def moment() -> None:
        moments[0] += 1
        if moments[0] == at:
            raise Killed

    def between(function: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **named: Any) -> Any:
            moment()
            return function(*arguments, **named)

        return changed

    create = TableOutput.create

    @contextmanager
    def created(self: TableOutput, name: str) -> Iterator[Any]:
        with create(self, name) as file:
            yield file
            moment()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableOutput, "create", created)
        patch.setattr(TableOutput, "removed", between(TableOutput.removed))
        patch.setattr(TableOutput, "remove_folder", between(TableOutput.remove_folder))
        patch.setattr(SqlCatalog, "commit_table", between(SqlCatalog.commit_table))
        patch.setattr(SqlCatalog, "create_table", between(SqlCatalog.create_table))
        yield moments


@pytest.mark.parametrize("name", [ONE, EACH])
def test_a_run_that_is_killed_at_any_moment(golden: Golden, golden_folder: Path, tmp_path: Path, name: str) -> None:
    """Some was exported; the next run is killed; so is the one after it, while it cleans up; the last one ends."""
    path = f"a={golden('clean')}"
    every = [("a", offset) for offset in positions(golden_folder, "clean", TOPICS)]
    third = str(every[len(every) // 3][1])
    at, moments = 0, 1
    while at < moments:
        at += 1
        warehouse = Warehouse(tmp_path / str(at))
        warehouse.export(path, name, topic=TOPICS, committed=third)
        held = warehouse.rows(name)
        for later in (at, max(1, at // 2)):
            with killing(later) as seen:
                try:
                    warehouse.export(path, name, topic=TOPICS)
                    moments = at
                except Killed:
                    moments = max(moments, at + 1)
                assert seen[0] > 0
            rows = warehouse.rows(name)
            assert len(rows) == len(set(rows)) and set(held) <= set(rows) <= set(every), at
            held = rows
        # Cut elsewhere: what was left does not just happen to be written again.
        summary = warehouse.export(path, name, topic=TOPICS, splitBytes="200000")
        assert warehouse.rows(name) == every, at
        assert summary["added_rows"] == len(every) - len(held), at
        assert warehouse.files() == warehouse.used(), "nothing is left of the killed runs"
    assert moments > 7, "there were that many moments to be killed at"


_DRIVER = """
import os, signal, sys
from pyiceberg.catalog.sql import SqlCatalog
from tallystick.spark.jobs import cli, export_files
from tallystick.spark.outputs_table import TableOutput

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

commit, write, number = SqlCatalog.commit_table, export_files._write, iter(range(99))
def committed(self, table, *rest):
    found = commit(self, table, *rest)
    kill()
if sys.argv[1] == "between files":
    export_files._write = lambda *arguments: kill() if next(number) else write(*arguments)
elif sys.argv[1] == "before the commit":
    SqlCatalog.commit_table = kill
elif sys.argv[1] == "after the commit":
    SqlCatalog.commit_table = committed
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.process
@pytest.mark.parametrize("moment", ["between files", "before the commit", "after the commit"])
def test_a_driver_that_is_killed(golden: Golden, golden_folder: Path, warehouse: Warehouse, moment: str) -> None:
    """A real process, with kill -9."""
    path = f"a={golden('clean')}"
    command = ["export", "--path", path, "--master", "none", "--format", "iceberg", "--table", ONE]
    command += ["--catalog", "lab", "--topic", TOPICS]
    for name, value in warehouse.properties.items():
        command += ["--catalog-set", f"{name}={value}"]
    ended = subprocess.run([sys.executable, "-c", _DRIVER, moment, *command], capture_output=True, timeout=300)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    every = [("a", offset) for offset in positions(golden_folder, "clean", TOPICS)]
    is_committed = moment == "after the commit"
    assert warehouse.rows() == (every if is_committed else [])
    assert warehouse.files() > warehouse.used(), "it left files"
    assert warehouse.export(path, topic=TOPICS)["added_rows"] == (0 if is_committed else len(every))
    assert warehouse.rows() == every
    assert warehouse.files() == warehouse.used()


# -- others ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ONE, EACH])
def test_two_exports_do_not_both_add(golden: Golden, golden_folder: Path, warehouse: Warehouse, name: str) -> None:
    path = f"a={golden('clean')}"

    def other() -> None:
        assert warehouse.export(path, name, topic=TOPICS, splitBytes="300000")["added_rows"] > 0

    with pytest.raises(ExportError, match=r"another export into .* is running"):
        warehouse.export(path, name, runner=Meanwhile(other), topic=TOPICS)
    warehouse.export(path, name, topic=TOPICS)
    assert warehouse.rows(name) == [("a", offset) for offset in positions(golden_folder, "clean", TOPICS)]
    assert warehouse.files() == warehouse.used()


@pytest.mark.parametrize("late", [False, True])
def test_a_run_that_another_one_took_for_dead_adds_nothing(
    golden: Golden, golden_folder: Path, warehouse: Warehouse, late: bool
) -> None:
    """The other one has nothing to add, but it removes the files of the first: before that looks at them, or after."""
    path = f"a={golden('clean')}"

    def other() -> None:
        summary = warehouse.export(path, topic=TOPICS, committed="0")
        assert (summary["added_rows"], summary["removed_files"]) == (0, 2)
        assert "2 files of a killed run removed" in text_of(summary)

    append = ExportTable._append

    def appended(*arguments: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ExportTable, "_append", append)
            other()
        append(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        if late:
            patch.setattr(ExportTable, "_append", appended)
        with pytest.raises(ExportError, match=r"another export into lake\.messages is running"):
            warehouse.export(path, runner=inline if late else Meanwhile(other), topic=TOPICS)
    assert warehouse.rows() == []
    assert warehouse.export(path, topic=TOPICS)["added_rows"] > 0
    assert warehouse.rows() == [("a", offset) for offset in positions(golden_folder, "clean", TOPICS)]


def test_commits_of_other_engines_do_not_matter(golden: Golden, golden_folder: Path, warehouse: Warehouse) -> None:
    """Before a run, and while it writes: a deletion stays one, and nothing is added twice."""
    path = f"a={golden('clean')}"
    offsets = positions(golden_folder, "clean", TOPICS)
    warehouse.export(path, topic=TOPICS, committed=str(offsets[400]))
    warehouse.table().delete("topic = 'GoldA'")

    def other() -> None:
        warehouse.table().delete("topic = 'GoldBatch'")

    warehouse.export(path, runner=Meanwhile(other), topic=TOPICS)
    later = [("a", offset) for offset in offsets[400:]]
    assert warehouse.rows() == later
    # The snapshots that have positions expire.
    table = warehouse.table()
    with table.transaction() as transaction:
        transaction.update_snapshot().fast_append().commit()
    ours = {each.snapshot_id for each in table.metadata.snapshots} - {table.metadata.current_snapshot_id}
    table.maintenance.expire_snapshots().by_ids(sorted(ours)).commit()
    assert len(warehouse.table().metadata.snapshots) == 1
    assert warehouse.export(path, topic=TOPICS)["added_rows"] == 0
    assert warehouse.rows() == later


def test_a_rollback_takes_back_the_positions(golden: Golden, golden_folder: Path, warehouse: Warehouse) -> None:
    path = f"a={golden('clean')}"
    offsets = positions(golden_folder, "clean", TOPICS)
    warehouse.export(path, topic=TOPICS, committed=str(offsets[400]))
    table = warehouse.table()
    first = table.metadata.current_snapshot_id
    assert first is not None
    warehouse.export(path, topic=TOPICS)
    warehouse.table().manage_snapshots().rollback_to_snapshot(first).commit()
    assert warehouse.rows() == [("a", offset) for offset in offsets[:400]]
    assert warehouse.export(path, topic=TOPICS)["added_rows"] == len(offsets) - 400
    assert warehouse.rows() == [("a", offset) for offset in offsets]


# -- columns -----------------------------------------------------------------------------------------------------------


def test_a_column_that_a_table_lacks_is_added(golden: Golden, golden_folder: Path, warehouse: Warehouse) -> None:
    """As after an update of this product. Others of the table stay, and its types count."""
    path = f"a={golden('clean')}"
    offsets = positions(golden_folder, "clean", TOPICS)
    warehouse.export(path, topic=TOPICS, committed=str(offsets[400]))
    with warehouse.table().update_schema() as update:
        update.delete_column("keys").delete_column("store_host").rename_column("flag", "old_flag")
        from pyiceberg.types import LongType, StringType

        update.add_column("note", StringType()).update_column("queue_id", LongType())
    warehouse.export(path, topic=TOPICS)
    rows = sorted(warehouse.table().scan().to_arrow().to_pylist(), key=lambda row: row["physical_offset"])
    assert [row["physical_offset"] for row in rows] == offsets
    for number, row in enumerate(rows):
        early = number < 400
        assert (row["keys"] is None, row["store_host"] is None, row["flag"] is None) == (early, early, early)
        assert (row["old_flag"] is None, row["note"]) == (not early, None)
    assert {row["queue_id"] for row in rows} == {0, 1, 2, 3}


def test_tables_that_do_not_fit_are_refused(golden: Golden, warehouse: Warehouse) -> None:
    path = f"a={golden('clean')}"
    warehouse.export(path, topic="GoldA")
    with pytest.raises(ExportError, match=r"was begun with another filter .*GoldA.* of a\)"):
        warehouse.export(path)
    from pyiceberg.transforms import BucketTransform

    with warehouse.table().update_spec() as update:
        update.add_field("queue_id", BucketTransform(4), "part")
    with pytest.raises(ExportError, match=r"has the partition part \(bucket\[4\] of queue_id\)"):
        warehouse.export(path, topic="GoldA")


def test_two_topics_with_the_name_of_one_table(tmp_path: Path, warehouse: Warehouse) -> None:
    def store(name: str, *topics: str) -> str:
        data = b""
        for topic in topics:
            data += Record(topic, 0, b"x", store_timestamp_ms=1, pos=len(data)).encode()
        log = tmp_path / name / "commitlog"
        log.mkdir(parents=True)
        (log / f"{0:020d}").write_bytes(data.ljust(1 << 16, b"\0"))
        return f"{name}={tmp_path / name}"

    with pytest.raises(ExportError, match=r"the table lake\.a_b is that of a-b: export a_b into another one"):
        warehouse.export(store("both", "a-b", "a_b"), EACH)
    warehouse.export(store("first", "a-b"), EACH)
    with pytest.raises(ExportError, match=r"is that of a-b: export a%b"):
        warehouse.export(store("second", "a%b"), EACH)
    with pytest.raises(ExportError, match=r"the table lake\.tally_exports is that of tally_exports"):
        warehouse.export(store("third", "tally-exports"), EACH)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--format", "iceberg"], "option table: is required by the format iceberg"),
        (["--format", "iceberg", "--table", "messages"], "option table: must be of the form"),
        (["--format", "iceberg", "--table", "{topic}.x"], "option table: must be of the form"),
        (["--format", "iceberg", "--table", ONE, "--compact", "4"], "option compact: is not for Iceberg tables"),
        (["--format", "iceberg", "--table", ONE, "--out", "x"], "option out: the format iceberg has none"),
        (["--format", "iceberg", "--table", ONE, "--catalog", "unheard-of"], "the catalog unheard-of"),
        (["--format", "orc", "--out", "x"], "option format: must be parquet or iceberg"),
        (["--catalog", "x", "--out", "x"], "option catalog: needs the format iceberg"),
        ([], "option out: an export to Parquet files needs a place for them"),
    ],
)
def test_wrong_arguments_are_refused(
    golden: Golden, given: list[str], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        path = f"a={golden('edge')}"
        assert cli.main(["export", "--path", path, "--master", "none", *given]) == 2
    assert f"tally-job: {reason}" in capsys.readouterr().err
    assert not list(tmp_path.glob("x*"))


def test_without_pyiceberg_the_command_says_what_to_install(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tallystick.spark.jobs.iceberg_export", None)
    monkeypatch.delattr("tallystick.spark.jobs.iceberg_export")
    call = export.Call(ReadOptions.parse({"path": "x"}), inline, None, {"format": "iceberg", "table": ONE})
    with pytest.raises(OptionError, match=r"pip install 'tallystick\[iceberg\]'"):
        export.JOB.run(call)
