"""Merge patches: any two pictures, any size of entry."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.replication.metadata.entry import MetadataError, TablePatch, decode, encode
from tallystick.replication.metadata.merge_patch import PatchError, diff, merged, split

KEYS = st.sampled_from(["a", "b", "c", "0", "7", "dataVersion", "%RETRY%g", ""])
LEAVES = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, "", "1", "x" * 40, 1.5, 1.0])
VALUES = st.recursive(
    LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=5) | st.lists(inner, max_size=3), max_leaves=12
)
PICTURES = st.dictionaries(KEYS, VALUES, max_size=6)


def text(value: Any) -> bytes:
    """Equal only if equal as JSON: to Python, 1 is True."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


@given(PICTURES, PICTURES)
def test_a_patch_makes_the_picture_after_of_the_one_before(before: dict[str, Any], after: dict[str, Any]) -> None:
    kept = copy.deepcopy(before)
    assert text(merged(before, diff(before, after))) == text(after)
    assert text(before) == text(kept), "what was handed out has changed"


@given(PICTURES)
def test_equal_pictures_need_no_patch(picture: dict[str, Any]) -> None:
    assert diff(picture, copy.deepcopy(picture)) == {}


@given(PICTURES, PICTURES)
def test_a_patch_carries_changed_rows_only(before: dict[str, Any], after: dict[str, Any]) -> None:
    patch = diff(before, after)
    for key in before.keys() & after.keys():
        if text(before[key]) == text(after[key]):
            assert key not in patch
    assert {key for key, value in patch.items() if value is None} == before.keys() - after.keys()


@given(PICTURES, PICTURES, st.integers(80, 300))
def test_entries_of_any_size_do_what_the_whole_patch_does(
    before: dict[str, Any], after: dict[str, Any], max_bytes: int
) -> None:
    change = TablePatch("t.json", diff(before, after))
    try:
        bodies = list(encode(change, max_bytes))
    except PatchError:
        return  # a list, or keys within keys, larger than an entry may be: told, not cut
    assert all(len(body) <= max_bytes for body in bodies)
    picture = before
    for body in bodies:
        table, patch = decode(body)
        assert table == "t.json"
        picture = merged(picture, patch)
    assert text(picture) == text(after)


def test_a_large_table_becomes_as_many_entries_as_it_needs_and_its_version_comes_last() -> None:
    rows = {f"topic-{number}": {"perm": 6, "readQueueNums": number} for number in range(2000)}
    bodies = list(encode(TablePatch("topics.json", diff({}, {"table": rows, "dataVersion": {"counter": 1}})), 8192))
    assert len(bodies) > 5
    assert sum(len(body) for body in bodies) < 1.1 * len(text(rows)), "parts are filled"
    assert ["dataVersion" in decode(body).patch for body in bodies] == [False] * (len(bodies) - 1) + [True]


def test_one_row_that_is_larger_than_an_entry_is_split_as_well() -> None:
    row = {str(queue): 10**12 + queue for queue in range(3000)}
    bodies = list(encode(TablePatch("o", diff({}, {"offsetTable": {"T@g": row}})), 4096))
    assert len(bodies) > 10
    picture: dict[str, Any] = {}
    for body in bodies:
        picture = merged(picture, decode(body).patch)
    assert picture == {"offsetTable": {"T@g": row}}


def test_a_single_value_that_is_too_large_is_reported_with_its_key() -> None:
    with pytest.raises(PatchError, match="description"):
        list(split({"rows": {"description": "x" * 500}}, 100))


@pytest.mark.parametrize("bad", [None, float("nan"), {1, 2}, b"bytes", [1, None]])
def test_what_json_or_a_patch_cannot_say_is_refused(bad: object) -> None:
    with pytest.raises(PatchError):
        diff({}, {"row": {"field": bad}})


def test_keys_are_text() -> None:
    with pytest.raises(PatchError, match="0"):
        diff({}, {"offsetTable": {"T@g": {0: 14}}})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"format":2,"table":"t","patch":{}}',
        b'{"format":1,"table":3,"patch":{}}',
        b'{"format":1,"table":"t"}',
    ],
)
def test_an_entry_of_another_version_or_without_one_is_refused(body: bytes) -> None:
    with pytest.raises(MetadataError):
        decode(body)
