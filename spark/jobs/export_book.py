"""The book of an export: which ranges of a source's log are exported, and which files are valid.

    _tally/broker-a.json    {"ranges": [[0, 134217728]], "runs": ["5f0c..."], "replaced": [], ...}: ranges are half-open

The name of a file ends with its run. A file is valid if its run is in the book, and the file is not in `replaced`.
Books of earlier versions list pieces of the log instead of runs; the names of their files end with the piece.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from tallystick.spark.outputs import Output
from tallystick.spark.scan import Wanted

BOOKS = "_tally"
_NAME = re.compile(
    r"topic=(?P<topic>[^/]*)/day=(?P<day>[^/]*)/(?P<source>[^/~]+)(?:~\d+)?"
    r"-(?P<run>\d{20}-\d{20}|[0-9a-f]{16})(?:-\d{6})?\.parquet"
)

Ranges = list[tuple[int, int]]


class ExportError(Exception):
    """The output was not written by an export, or another export is writing to it."""


class Book:
    """The book of one source in the output. ExportError: it cannot be read, or names another filter."""

    def __init__(self, source: str, chosen: Mapping[str, Any]) -> None:
        self.source = source
        self.ranges: Ranges = []
        self._runs: list[str] = []
        self._replaced: list[str] = []
        self._filter = chosen
        self._name = f"{BOOKS}/{file_name(source)}.json"
        self._text: bytes | None = None

    @classmethod
    def load(cls, output: Output, source: str, wanted: Wanted, bodies: str) -> Book:
        book = cls(source, filter_of(wanted, bodies))
        book._read(output)
        return book

    def _read(self, output: Output, *, any_filter: bool = False) -> None:
        self._text = output.read(self._name)
        if self._text is None:
            return
        try:
            found = json.loads(self._text)
            pieces = [(int(begin), int(end)) for begin, end in found.get("pieces", ())]
            self.ranges = joined([(int(begin), int(end)) for begin, end in found.get("ranges", pieces)])
            self._runs = [*(f"{begin:020d}-{end:020d}" for begin, end in pieces), *map(str, found.get("runs", ()))]
            self._replaced = list(map(str, found.get("replaced", ())))
            chosen = found["filter"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExportError(f"{output.place}/{self._name} cannot be read: {error!r}") from error
        if chosen != self._filter and not any_filter:
            raise ExportError(f"{output.place} was begun with another filter ({chosen}): export into another folder")

    def valid(self, names: Iterable[str]) -> list[str]:
        """Files of this source that are valid."""
        runs, replaced = set(self._runs), set(self._replaced)
        return [name for name in names if self._run_of(name) in runs and name not in replaced]

    def invalid(self, names: Iterable[str]) -> list[str]:
        """Files of this source that are not valid."""
        own = [name for name in names if self._run_of(name) is not None]
        valid = set(self.valid(own))
        return [name for name in own if name not in valid]

    def _run_of(self, name: str) -> str | None:
        match = _NAME.fullmatch(name)
        return match["run"] if match is not None and match["source"] == file_name(self.source) else None

    def add(self, output: Output, run: str, ranges: Ranges, written: Iterable[str], replaced: Iterable[str]) -> None:
        """Makes the files of a run valid, all of which were written, and invalidates those that they replace."""
        written, gone = set(written), list(replaced)
        if not ranges and not written:
            return
        names = set(output.names())
        if output.read(self._name) != self._text or not written.issuperset(self.invalid(names)):
            raise ExportError(f"another export of {self.source} into {output.place} is running")
        if lost := written - names:
            raise ExportError(f"{output.place} has lost {min(lost)}, which was just written")
        all_ranges = joined([*self.ranges, *ranges])
        runs = [*self._runs, *([run] if written else [])]
        book = {"source": self.source, "filter": self._filter, "ranges": all_ranges, "runs": runs, "replaced": gone}
        self._text = (json.dumps(book) + "\n").encode()
        output.write(self._name, self._text)
        self.ranges, self._runs, self._replaced = all_ranges, runs, gone


def valid_files(output: Output) -> list[str]:
    """Returns the names of the valid files of all sources. ExportError: a book cannot be read; OSError."""
    names = output.names()
    found = []
    for name in names:
        if name.startswith(f"{BOOKS}/") and name.count("/") == 1 and name.endswith(".json"):
            book = Book(unquote(name.removeprefix(f"{BOOKS}/").removesuffix(".json")), {})
            book._read(output, any_filter=True)
            found += book.valid(names)
    return sorted(found)


def place_of(name: str) -> tuple[str, str] | None:
    """Returns topic and day of an exported file; None: it is another file."""
    match = _NAME.fullmatch(name)
    return (unquote(match["topic"]), match["day"]) if match else None


def joined(ranges: Ranges) -> Ranges:
    """The same bytes in as few ranges as possible, ascending."""
    found: Ranges = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif begin < end:
            found.append((begin, end))
    return found


def file_name(source: str) -> str:
    """Returns it escaped for a file's name; `~` began the number of a part there in earlier versions."""
    return quote(source, safe="").replace("~", "%7E")


def filter_of(wanted: Wanted, bodies: str) -> Mapping[str, Any]:
    """Returns what a book records of a filter and of the form of the bodies, as a JSON object."""
    named = {name: getattr(wanted, name) for name in ("topics", "queues", "queue_offsets", "store_times_ms", "keys")}
    chosen = {name: list(value) for name, value in named.items() if value is not None}
    return chosen if bodies == "stored" else chosen | {"bodies": bodies}
