"""Audits of index files: every flipped bit of one is a difference, with its place."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bad_disk import BadDisk
from hypothesis import example, given, settings
from hypothesis import strategies as st
from index_lab import GEOMETRY, SEGMENT, made_store

from tallystick.spark.jobs import audit
from tallystick.spark.options import ReadOptions
from tallystick.spark.runner import inline
from tallystick.store.formats.mapped import ReadMap
from tallystick.store.formats.queue_format import INDEX_ENTRY, INDEX_HEADER, IndexHeader

FIRST_SECONDS = range(GEOMETRY.entry_at(1) + 12, GEOMETRY.entry_at(1) + 16)
"""Of the oldest file: they count from the end of a file that is gone."""


def audited(root: Path) -> dict[str, Any]:
    return audit.run(ReadOptions.parse({"path": f"n0={root}", "splitBytes": str(SEGMENT)}), inline)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    root = tmp_path_factory.mktemp("audit") / "store"
    return root, made_store(root)


@pytest.fixture
def stretches(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes a stretch of the log so many bytes."""
    return lambda size: monkeypatch.setattr("tallystick.spark.jobs.audit_index._STRETCH_BYTES", size)


@pytest.mark.parametrize("size", [1, 500, 32 << 20])
def test_sound_files_are_clean(store: tuple[Path, list[Path]], stretches: Callable[[int], None], size: int) -> None:
    stretches(size)
    root, files = store
    assert len(files) == 5
    assert audited(root)["differences"] == []


@pytest.mark.parametrize("size", [500, 32 << 20])
@pytest.mark.parametrize("gone", ["index", "commitlog"])
def test_what_retention_took_is_not_missed(
    tmp_path: Path, stretches: Callable[[int], None], gone: str, size: int
) -> None:
    stretches(size)
    made_store(tmp_path)
    for path in sorted((tmp_path / gone).iterdir())[:2]:
        path.unlink()
    summary = audited(tmp_path)
    assert summary["clean"] and (summary["sources"][0]["begin"] > 0) == (gone == "commitlog")


@pytest.mark.parametrize("size", [500, 32 << 20])
def test_entries_that_changed_places_are_named(tmp_path: Path, stretches: Callable[[int], None], size: int) -> None:
    stretches(size)
    path = made_store(tmp_path)[1]
    data = bytearray(path.read_bytes())
    (one, other) = (slice(at, at + 12) for at in (GEOMETRY.entry_at(5), GEOMETRY.entry_at(33)))
    data[one], data[other] = data[other], data[one]
    path.write_bytes(data)
    differences = audited(tmp_path)["differences"]
    assert {(each["what"], each["file"]) for each in differences if each["file"]} == {("index", str(path))}


def test_a_file_whose_header_forgot_its_entries_is_named(tmp_path: Path) -> None:
    (path,) = made_store(tmp_path, 20)
    with path.open("r+b") as file:
        file.seek(36)
        file.write(b"\0\0\0\1")
    (difference,) = audited(tmp_path)["differences"]
    assert (difference["file"], difference["offset"]) == (str(path), 0)


def test_a_file_that_the_disk_does_not_give_is_named(tmp_path: Path) -> None:
    with BadDisk(tmp_path) as disk:
        path = made_store(tmp_path / "store")[1]
        large = path.read_bytes().ljust(4 * 4096, b"\0")
        path.write_bytes(large)
        moved = disk.take(path)
        disk.lose(moved, 4096)
        differences = audited(tmp_path / "store")["differences"]
    assert {(each["what"], each["file"]) for each in differences} == {("index", str(path))}
    assert differences[0]["offset"] == 4096 and differences[0]["reason"].startswith("cannot be read")


def test_a_file_whose_map_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made_store(tmp_path)[1]

    def failing(self: ReadMap) -> list[tuple[int, int]]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(ReadMap, "unread", failing)
    differences = audited(tmp_path)["differences"]
    assert ("index", str(path), "cannot be read (0 bytes)") in {
        (each["what"], each["file"], each["reason"]) for each in differences
    }


def field_at(at: int, count: int) -> tuple[str, int | None]:
    """What stands at a byte of an index file, and the byte that a difference names. None: no difference can be seen."""
    slots_end, entries = GEOMETRY.slot_at(GEOMETRY.slots), GEOMETRY.entry_at(1)
    if at < INDEX_HEADER.size:
        if at >= 36:
            return "count", 0
        return "header", at - at % 8
    if at < slots_end:
        return "slot", at - (at - INDEX_HEADER.size) % 4
    if at < entries or at >= GEOMETRY.entry_at(count):
        return "unused", None
    return "entry", at - (at - entries) % INDEX_ENTRY.size


@settings(max_examples=150)
@example(4, 772, 0)  # the last entry names something behind the log
@example(0, 100, 7)
@given(st.integers(0, 4), st.integers(0, GEOMETRY.file_bytes - 1), st.integers(0, 7))
def test_a_flipped_bit_is_named(store: tuple[Path, list[Path]], which: int, at: int, bit: int) -> None:
    root, files = store
    path = files[which]
    whole = path.read_bytes()
    count = IndexHeader(*INDEX_HEADER.unpack_from(whole)).next_entry
    what, place = field_at(at, count)
    if which == 0 and at in FIRST_SECONDS:
        place = None
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    try:
        differences = audited(root)["differences"]
    finally:
        path.write_bytes(whole)
    if place is None:
        assert differences == []
        return
    assert {each["what"] for each in differences} == {"index"}
    places = [each["offset"] for each in differences if each["file"] == str(path)]
    if what != "count":
        assert place in places, differences
    if what in ("slot", "header"):
        assert len(differences) == 1
