"""How many slots and entries an index file has is found by looking at the file, which does not say it."""

from __future__ import annotations

import mmap
import random
from itertools import count, takewhile

import pytest

from tallystick.store.formats.queue_format import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, IndexGeometry


def index_file(geometry: IndexGeometry, seed: int, entries: int, keys: int) -> mmap.mmap:
    """A file with so many entries, `keys` of each record, as a broker writes it."""
    dice = random.Random(seed)
    data = mmap.mmap(-1, geometry.file_bytes)
    pos = begin_pos = 0
    for number in range(1, entries + 1):
        if number % keys == 0:
            pos += dice.randrange(100, 300)
        begin_pos = pos if number == 1 else begin_pos
        key_hash = dice.randrange(9) if dice.randrange(2) else dice.randrange(2**31)
        slot_at = geometry.slot_at(key_hash % geometry.slots)
        (older,) = INDEX_SLOT.unpack_from(data, slot_at)
        INDEX_ENTRY.pack_into(data, geometry.entry_at(number), key_hash, pos, 0, older)
        INDEX_SLOT.pack_into(data, slot_at, number)
    INDEX_HEADER.pack_into(data, 0, 0, 0, begin_pos, pos, 0, entries + 1)
    return data


@pytest.mark.parametrize("keys", [1, 2, 5])
def test_the_geometry_of_every_file_is_found(keys: int) -> None:
    """A wrong one fits the last entry of one file in a hundred: as many as there are slots."""
    geometry = IndexGeometry(97, 500)
    for seed in range(400):
        for entries in (40, 499):
            assert IndexGeometry.of_file(index_file(geometry, seed, entries, keys)) == geometry, seed


def test_the_usual_geometry_is_found_in_a_file_of_its_size_only_if_all_fits() -> None:
    usual, other = IndexGeometry(5_000_000, 20_000_000), IndexGeometry(2_500_000, 20_500_000)
    assert usual.file_bytes == other.file_bytes
    for geometry in (usual, other):
        for entries in (1, 40):
            assert IndexGeometry.of_file(index_file(geometry, 7, entries, 2)) == geometry


@pytest.mark.parametrize("entries", [20, 499])
def test_damage_of_some_of_the_newest_entries_does_not_hide_the_geometry(entries: int) -> None:
    geometry = IndexGeometry(97, 500)
    for seed in range(50):
        data = index_file(geometry, seed, entries, 2)
        numbers = takewhile(lambda number: number < entries, count(entries - 9, 4))
        for number in numbers:  # not the last one, which is looked for by its position
            data[geometry.entry_at(number)] ^= 1
        assert IndexGeometry.of_file(data) == geometry, seed


@pytest.mark.parametrize("entries", [1, 2])
def test_the_geometry_of_a_file_with_one_record_is_found(entries: int) -> None:
    """The record is at position 0, and zeros anywhere in the file look like that position."""
    geometry = IndexGeometry(7, 200)
    for seed in range(200):
        data = index_file(geometry, seed, entries, 3)
        if data[geometry.entry_at(1) : geometry.entry_at(1) + 4] != bytes(4):  # such an entry cannot be seen
            assert IndexGeometry.of_file(data) == geometry, seed


def test_a_file_without_entries_has_no_geometry_that_can_be_seen() -> None:
    assert IndexGeometry.of_file(mmap.mmap(-1, IndexGeometry(97, 500).file_bytes)) is None
