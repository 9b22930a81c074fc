"""Every message is exported once, to any output, with any kill, and from any member."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.parquet as parquet
import pytest
from golden_rows import expected

from tallystick.spark.jobs import export
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs import FolderOutput, Output
from tallystick.spark.outputs_s3 import S3Output
from tallystick.spark.runner import Inline, inline
from tallystick.spark.scan import SplitScan
from tallystick.spark.splits import plan
from tallystick.spark.volume import open_volume

Golden = Callable[[str], Path]
TOPICS = "GoldBatch,GoldA"
Row = tuple[str, int]


def options_of(path: str, **given: str) -> ReadOptions:
    return ReadOptions.parse({"path": path} | given)


def rows_of(place: Output, pieces: dict[str, list[Any]] | None = None) -> list[Row]:
    """(source, position) of every row of every file; of those of some pieces, if these are given."""
    rows: list[Row] = []
    for name in place.names():
        if name.endswith(".parquet"):
            stem = name.rpartition("/")[2].removesuffix(".parquet")
            source, begin, end = stem.rsplit("-", 2)
            if pieces is None or [int(begin), int(end)] in pieces.get(source.partition("~")[0], []):
                table = parquet.read_table(BytesIO(place.read(name) or b""))
                rows += zip(table["source"].to_pylist(), table["physical_offset"].to_pylist(), strict=True)
    return sorted(rows)


def pieces_of(place: Output) -> dict[str, list[Any]]:
    books = [json.loads(place.read(name) or b"") for name in place.names("_tally") if name.endswith(".json")]
    return {book["source"]: book["pieces"] for book in books}


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
            recorded = rows_of(place, pieces_of(place))
            assert len(recorded) == len(set(recorded)) and set(held) <= set(recorded) <= set(every), at
            held = recorded
        # Cut elsewhere: what was left does not just happen to be written again.
        summary = export.run(replace(options, split_bytes=200_000), inline, place)
        assert rows_of(place) == every, number
        assert [each["added_rows"] for each in summary["sources"]] == [
            sum(1 for row in every if row[0] == source and row not in set(held)) for source in roots
        ]
        assert not [name for name in place.names() if name.startswith("_tally/aside")]
    assert moments > 12, "there were that many moments to be killed at"


def test_what_a_dead_run_writes_late_is_removed(golden: Golden, place: Output) -> None:
    """Its pieces were cut elsewhere: what it writes lies within what is recorded, and is in no piece."""
    path = f"a={golden('clean')}"
    export.run(options_of(path, topic=TOPICS, splitBytes="300000"), inline, place)
    rows, names = rows_of(place), place.names()
    split = plan(open_volume(golden("clean"), "a"), split_bytes=700_000)[1]
    if isinstance(place, S3Output) or place.shared:
        late: Output = place
    else:
        late = FolderOutput(Path(place.place))
    export.write_split(split, late, options_of(path, topic=TOPICS).wanted)
    assert len(rows_of(place)) > len(rows)
    assert export.run(options_of(path, topic=TOPICS), inline, place)["added_files"] == 0
    assert (rows_of(place), place.names()) == (rows, names)


class Meanwhile(Inline):
    """Something happens when everything was read and written."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens = happens

    def __call__(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        results = super().__call__(function, items)
        if results and isinstance(results[0], export.Exported):
            self._happens()
        return results


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
    assert len(rows) == len(set(rows)) == len(rows_of(place, pieces_of(place))) > 0


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
    assert list(pieces_of(place)) == ["orders"]


def test_what_expired_before_it_was_read_is_not_recorded(golden: Golden, golden_folder: Path, tmp_path: Path) -> None:
    """Another member may still have it."""
    place = FolderOutput(tmp_path / "out")
    gone, kept = golden("dledger-n0"), golden("dledger-n1")
    first = sorted((gone / "dledger-n0" / "data").iterdir())[0]

    class Expiring(Inline):
        def __call__(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
            if items and hasattr(items[0], "file_start"):
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
    monkeypatch.setattr(export, "CARRIED_BYTES", 50_000)
    carried: list[int] = []

    class Weighing(Inline):
        def stream(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
            for result, files in super().stream(function, items):
                carried.append(result.split.bytes)
                yield result, files

    for name in ("clean", "lost-queues"):
        place = FolderOutput(tmp_path / name, shared=False)
        whole = FolderOutput(tmp_path / f"{name}-whole")
        carried.clear()
        export.run(options_of(f"a={golden(name)}"), Weighing(), place)
        export.run(options_of(f"a={golden(name)}"), inline, whole)
        assert rows_of(place) == rows_of(whole) != []
        largest = max(message["size"] for message in expected(golden_folder, "clean")["opened"]["messages"])
        assert len(carried) > 12 and max(carried) <= 2 * 50_000 + largest
        begins = sorted(begin for begin, _ in pieces_of(place)["a"])
        assert begins[1:] == sorted(end for _, end in pieces_of(place)["a"])[:-1], "pieces meet"


def test_more_topics_than_files_may_be_open(golden: Golden, place: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_MOST_OPEN", 2)
    monkeypatch.setattr(export, "SplitScan", partial(SplitScan, max_rows=100))
    options = options_of(f"a~b={golden('clean')}", topic="GoldA,GoldB,GoldBatch")
    summary = export.run(options, inline, place)
    rows = rows_of(place)
    assert len(rows) == len(set(rows)) == summary["added_rows"] > 0
    assert any("~2-" in name for name in place.names())
    assert export.run(options, inline, place)["added_rows"] == 0
    assert rows_of(place) == rows


def test_a_task_that_fails_leaves_no_half_file(golden: Golden, place: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    write = export._Files.write
    times = iter(range(1000))

    def failing(self: Any, *arguments: Any) -> None:
        write(self, *arguments)
        if next(times) == 5:
            raise OSError("the disk")

    monkeypatch.setattr(export._Files, "write", failing)
    with pytest.raises(OSError, match="the disk"):
        export.run(options_of(f"a={golden('clean')}"), inline, place)
    assert place.names() == []


def test_an_export_needs_a_place(golden: Golden) -> None:
    with pytest.raises(OptionError, match="needs a place"):
        export.run(options_of(f"a={golden('clean')}"), inline, None)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"pieces": 3, "filter": {}}', b'{"pieces": [[1]], "filter": {}}'])
def test_a_book_that_cannot_be_read(golden: Golden, tmp_path: Path, text: bytes) -> None:
    place = FolderOutput(tmp_path)
    place.write("_tally/a.json", text)
    with pytest.raises(export.ExportError, match="cannot be read"):
        export.run(options_of(f"a={golden('clean')}"), inline, place)
