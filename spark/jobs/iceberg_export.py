"""`export --format iceberg`: adds messages to Iceberg tables, one for all topics or one for each, exactly once.

    TABLE             one table for all topics, by topic and day
    NAMES.{topic}     one table for each topic, by day; NAMES.tally_exports records what all of them have

A run adds the messages below the present bound that a table does not have yet:

    1. it removes what killed runs left, after it excluded them from further commits (`_clear`)
    2. it gathers the new messages, and lists the data files that it will write: `_tally/RUN/files.json` below the
       table's location
    3. it merges the messages into data files, and commits those of a table in one step, with the positions
    4. for several tables, it then records the positions of all in `tally_exports`

If a run is killed before the commit of a table, the table is unchanged. If it is killed after it, the table's own
record shows the next run what to leave out. So the commits of several tables need not be one.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa

from tallystick.spark.columns import SCHEMA
from tallystick.spark.jobs.export_book import ExportError, Ranges, file_name, filter_of, joined
from tallystick.spark.jobs.export_files import Form, MergeTask, Target, merge, targets_of, tasks_of
from tallystick.spark.jobs.export_reading import Reading, read_new
from tallystick.spark.jobs.iceberg_tables import Exported, ExportTable, catalog_at
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs_table import TableOutput
from tallystick.spark.runner import Runner

_TOPIC = "{topic}"
_BOOK = "tally_exports"
_STAGING = "_tally"
_FILES = "files.json"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_]")
CatalogName = tuple[str | None, Mapping[str, str]]
Known = Mapping[str, Ranges]
"""The ranges of each source's log that a table has."""


@dataclass
class _Part:
    """A table, and what this run adds to it. `topic`: None is all."""

    table: ExportTable
    topic: str | None
    known: Known
    columns: pa.Schema
    targets: list[Target] = field(default_factory=list)


class Tables:
    """The tables of an export. `catalog`: its name in pyiceberg's configuration, and further properties. `name`: of the
    one table for all topics, or with `{topic}` of all of them. `filter_`: of the export. OptionError, ExportError."""

    def __init__(self, catalog: CatalogName, name: str, columns: pa.Schema, filter_: Mapping[str, Any]) -> None:
        *namespace, last = name.split(".")
        if not namespace or not all((*namespace, last)) or _TOPIC in ".".join(namespace):
            raise OptionError("table", f"must be of the form NAMESPACE.TABLE or NAMESPACE.{_TOPIC}, not {name!r}")
        self.by_topic = _TOPIC in last
        self._name = name
        self._catalog = catalog_at(*catalog)
        self._columns = columns
        self._filter = filter_
        self._topics: dict[str, str] = {}
        of_book = pa.schema([columns.field("source")]) if self.by_topic else columns
        self.book = self._opened(name.replace(_TOPIC, _BOOK), of_book)
        """The table that records what all of them have; without `{topic}` the table itself."""

    def _opened(self, name: str, columns: pa.Schema) -> ExportTable:
        found = self.existing(name)
        return found or ExportTable.create(self._catalog, name, columns, by_topic=not self.by_topic)

    def existing(self, name: str) -> ExportTable | None:
        return ExportTable.open(self._catalog, name)

    def known(self, table: ExportTable) -> Known:
        """ExportError: the table has messages of another filter."""
        found = table.exported()
        for source, each in found.items():
            if each.filter != self._filter:
                raise ExportError(
                    f"{table.name} was begun with another filter ({each.filter} of {source}): export into another table"
                )
        return {source: each.ranges for source, each in found.items()}

    def of_all(self) -> _Part:
        return _Part(self.book, None, self.known(self.book), self.book.columns(self._columns))

    def of_topic(self, topic: str) -> _Part:
        """Opens the table of a topic, or creates it."""
        name = self._name.replace(_TOPIC, _NOT_IN_A_NAME.sub("_", topic))
        other = self._topics.setdefault(name, topic)
        table = self.book if name == self.book.name else self._opened(name, self._columns)
        if other == topic:
            other = _BOOK if table is self.book else table.topic or topic
        if other != topic:
            raise ExportError(f"the table {name} is that of {other}: export {topic} into another one")
        return _Part(table, topic, self.known(table), table.columns(self._columns))

    def add(self, part: _Part, run: str, files: list[str], before: Known, added: Known) -> int:
        """Commits files to a table; it then has the ranges `before` and `added` too. Returns the number of rows."""
        exported = {
            source: Exported(joined([*part.known.get(source, ()), *before.get(source, ()), *ranges]), self._filter)
            for source, ranges in added.items()
        }
        return part.table.add(run, files, exported, added, part.topic)


def run(
    options: ReadOptions,
    runner: Runner,
    name: str,
    catalog: CatalogName,
    *,
    decompressed: bool,
    file_bytes: int,
) -> dict[str, Any]:
    """Brings the tables up to date. `name`, `catalog`: see `Tables`.

    OptionError, VolumeError, OSError; ExportError: the catalog refuses something, a table has messages of another
    filter, or another export changed it meanwhile.
    """
    form = Form(decompressed, options.max_content_bytes)
    columns = pa.schema([SCHEMA.field("source"), SCHEMA.field("topic"), *list(form.schema)[1:]])
    filter_ = filter_of(options.wanted, "decompressed" if decompressed else "stored")
    tables = Tables(catalog, name, columns, filter_)
    removed, left = _clear(tables)
    exported = tables.known(tables.book)
    before = {each.source: exported.get(each.source, []) for each in options.sources()}
    token = secrets.token_hex(8)
    folder = f"{_STAGING}/{token}"
    output = _output(tables, folder)
    reading = read_new(options, runner, output, form, before, f"{folder}/gathered", token)
    added = {source: ranges for source in before if (ranges := reading.ranges(source))}
    parts, tasks = _planned(tables, reading, before, token, file_bytes)
    rows = files = 0
    if added:
        listed = {part.table.name: [target.name for target in part.targets] for part in parts}
        output.write(f"{folder}/{_FILES}", json.dumps(listed).encode())
        written = {each for names in runner(partial(merge, output=output, form=form), tasks) for each in names}
        for part in parts:
            names = [target.name for target in part.targets if target.name in written]
            if names or not tables.by_topic:
                rows += tables.add(part, token, names, before, added)
            files += len(names)
        if tables.by_topic:
            tables.add(_Part(tables.book, None, exported, pa.schema([])), token, [], before, added)
    output.remove_folder(folder)
    return {
        "job": "export",
        "out": name,
        "added_rows": rows,
        "added_files": files,
        "replaced_files": 0,
        "removed_files": removed,
        "left_files": left,
        **reading.summary({source: joined([*before[source], *added.get(source, ())]) for source in before}),
    }


def _output(tables: Tables, folder: str) -> TableOutput:
    return TableOutput(tables.book.io, tables.book.location, f"{folder}/aside")


def _clear(tables: Tables) -> tuple[int, list[str]]:
    """Removes what killed runs left. Returns the number of data files that it removed, and the names of those whose
    table no longer exists: they may belong to it under another name."""
    output = _output(tables, _STAGING)
    removed, left = 0, []
    for run in sorted({name.split("/")[1] for name in output.names(_STAGING)}):
        listed = output.read(f"{_STAGING}/{run}/{_FILES}")
        for name, files in json.loads(listed or b"{}").items():
            table = tables.book if name == tables.book.name else tables.existing(name)
            if table is None:
                left += files
                continue
            if not table.has_run(run):
                table.exclude(run)
            if not table.has_run(run):  # it can have committed before
                removed += sum(output.removed(file) for file in sorted(table.unused(files)))
        output.remove_folder(f"{_STAGING}/{run}")
    return removed, left


def _planned(
    tables: Tables, reading: Reading, before: Known, token: str, file_bytes: int
) -> tuple[list[_Part], list[MergeTask]]:
    """Assigns the groups to data files, which all are new ones. Returns the tables, and the tasks that write them."""
    parts: dict[str | None, _Part] = {} if tables.by_topic else {None: tables.of_all()}
    numbers = count()
    tasks: list[MergeTask] = []
    for source in before:
        groups = [group for each in reading.of(source) for group in each.groups]
        targets = []
        for target in targets_of(file_name(source), token, groups, file_bytes):
            topic = target.groups[0].topic if tables.by_topic else None
            if topic not in parts:
                parts[topic] = tables.of_topic(topic or "")
            part = parts[topic]
            # The ranges of one table for all were left out before.
            without = tuple(part.known.get(source, ())) if tables.by_topic else ()
            file = part.table.new_file(f"{token}-{next(numbers):06d}.parquet")
            target = replace(target, name=file, columns=part.columns, without=without)
            part.targets.append(target)
            targets.append(target)
        tasks += tasks_of(source, targets, file_bytes)
    return list(parts.values()), tasks
