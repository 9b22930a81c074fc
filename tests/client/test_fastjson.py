"""fastjson's dialect: what Java writes is read, what we write Java reads (its forms are those of the golden files)."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.wire import fastjson
from tallystick.client.wire.fastjson import (
    MAX_DEPTH,
    FastjsonError,
    JsonObjectKey,
    _Writer,
    dumps,
    int_keys,
    loads,
    object_keys,
)

QUEUE = JsonObjectKey({"brokerName": "b", "queueId": 3, "topic": "T"})

scalars = (
    st.integers(-(2**70), 2**70)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.just("null")
)
longs = st.integers(-(2**63), 2**63 - 1)
object_key = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4), longs | st.booleans(), max_size=3
)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | longs | object_key.map(JsonObjectKey)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=30
)


@given(values, st.booleans(), st.booleans())
def test_what_is_written_is_read_back(value: object, pretty: bool, ascii_only: bool) -> None:
    assert lenient(dumps(value, pretty, ascii_only=ascii_only)) == value


awkward = st.text(st.sampled_from('a,":{}\\\t\x7f\u2028é'), max_size=6)
rows = st.dictionaries(awkward, awkward | st.integers() | st.booleans() | st.none() | st.floats(), max_size=4)


@given(st.dictionaries(awkward, rows, max_size=3))
def test_rows_have_the_same_form_on_the_quick_way_and_on_the_slow_way(table: dict[str, object]) -> None:
    slow = _Writer(pretty=True, standard=False, sort_keys=True, ascii_only=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Writer, "_row", lambda *_: None)
        expected = slow.document(table)
    assert dumps(table, pretty=True) == expected


@given(values, st.booleans())
def test_the_standard_form_is_for_strict_readers(value: object, ascii_only: bool) -> None:
    text = dumps(value, standard=True, ascii_only=ascii_only)
    json.loads(text)
    assert not ascii_only or text.isascii()


@given(st.dictionaries(st.integers(-(2**31), 2**31), longs), st.booleans())
def test_number_keys_come_bare_or_quoted(table: dict[int, int], standard: bool) -> None:
    assert int_keys(loads(dumps(table, standard=standard))) == table


@given(st.dictionaries(object_key.map(JsonObjectKey), longs, max_size=4), st.booleans())
def test_object_keys_come_bare_or_in_a_string(table: dict[JsonObjectKey, int], standard: bool) -> None:
    assert object_keys(loads(dumps(table, standard=standard))) == table


@given(st.text(alphabet="{}[]\",:'\\/*0123456789truefalsn.eE+-ul \n$_xu\x00é", max_size=60) | st.binary(max_size=60))
def test_whatever_comes_is_a_value_or_a_fastjson_error(text: str | bytes) -> None:
    try:
        loads(text)
    except FastjsonError as error:
        assert 0 <= error.offset <= len(text)


def lenient(text: bytes) -> object:
    """What the lenient reader makes of `text`: a leading comment keeps the strict one away."""
    return loads(b"//\n" + text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",1:"b"}', {0: "a", 1: "b"}),
        ('{-5:{7:"b"}}', {-5: {7: "b"}}),
        ('{{"brokerName":"b","queueId":3,"topic":"T"}:{"x":1}}', {QUEUE: {"x": 1}}),
        ("{'a':'it\\'s'}", {"a": "it's"}),
        ("{name: true, $x_1:null}", {"name": True, "$x_1": None}),
        ("{,'a':1,,'b':[1,,2,],}", {"a": 1, "b": [1, 2]}),
        ("/* head */ {'a': // tail\n 1}", {"a": 1}),
        ('["\\x41\\v\\0\\/"]', ["A\v\0/"]),
        ('["\t\x01"]', ["\t\x01"]),
        ('["\\ud83d\\ude00", "\\ud83d"]', ["😀", "\ufffd"]),
        ("[1L, 2.5F, +3, .5, 1e3, 007]", [1, 2.5, 3, 0.5, 1000.0, 7]),
        ('\ufeff{"a":{"$ref":"$.b"},}', {"a": {"$ref": "$.b"}}),
        (b"['\xff']", ["\ufffd"]),
        ("{1.5:1,true:2,null:3}", {"1.5": 1, "true": 2, "null": 3}),
        ("{'a':1,'a':2}", {"a": 2}),
        (f"[{2**80},]", [2**80]),
    ],
)
def test_java_is_read(text: str | bytes, value: object) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("", 0),
        ("{", 1),
        ("[1,'a", 3),
        ("{'a' 1}", 5),
        ("[1 2]", 3),
        ("{}x", 2),
        ("[1}", 2),
        ("{[1]:2}", 1),
        (r"['\q']", 2),
        ("nil", 0),
        ("[12ab]", 1),
        ("[" + "9" * 500 + ",]", 1),
        ("/*", 0),
        ("{'a':}", 5),
    ],
)
def test_an_error_tells_the_place(text: str, offset: int) -> None:
    with pytest.raises(FastjsonError) as caught:
        loads(text)
    assert caught.value.offset == offset


def test_depth_has_a_limit() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert lenient(deep.encode()) == json.loads(deep)
    for text in ("[" * 200_000, "{a:" * 200_000, "{" * 200_000, f"//\n[{deep}]"):
        with pytest.raises(FastjsonError, match="nested deeper"):
            loads(text)
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(FastjsonError, match="nested deeper"):
        dumps(endless)


def test_all_files_are_listed_and_sorted_by_name() -> None:
    assert dumps({"b": None, "a": {10: "x", 9: "y"}, "c": [None, 1.5, math.nan], "null": "null"}) == (
        b'{"a":{9:"y",10:"x"},"c":[null,1.5,null],"null":"null"}'
    )
    assert dumps({"b": 1, "a": 2}, sort_keys=False) == b'{"b":1,"a":2}'
    assert dumps({"b": b"\x00\xff", "a": {"y", "x"}}) == b'{"a":["x","y"],"b":"AP8="}'


def test_the_two_forms_of_keys() -> None:
    table = {"t": {QUEUE: {0: "é"}}}
    assert dumps(table) == '{"t":{{"brokerName":"b","queueId":3,"topic":"T"}:{0:"é"}}}'.encode()
    assert dumps(table, standard=True, ascii_only=True) == (
        rb'{"t":{"{\"brokerName\":\"b\",\"queueId\":3,\"topic\":\"T\"}":{"0":"\u00e9"}}}'
    )


def test_half_a_surrogate_pair_can_be_written() -> None:
    assert dumps(["\ud83d"]) == rb'["\ud83d"]'


@pytest.mark.parametrize("value", [object(), {1.5: 1}, {None: 1}, {("a",): 1}])
def test_what_json_cannot_carry_is_our_mistake(value: object) -> None:
    with pytest.raises(TypeError, match="JSON has no form"):
        dumps(value)


@pytest.mark.parametrize("name", ["clean", "cqext"])
def test_the_golden_config_files_come_back_byte_for_byte(golden: Callable[[str], Path], name: str) -> None:
    files = sorted((golden(name) / "config").glob("*.json"))
    assert files
    for file in files:
        value = loads(file.read_bytes())
        for table in find(value, "bitPos"):
            table["bitPos"] = tuple(table["bitPos"])  # type: ignore[assignment]  # a Java array, which stays on one line
        assert dumps(value, pretty=True, sort_keys=False) == file.read_bytes(), file.name


def find(value: object, name: str) -> list[dict[str, list[int]]]:
    if not isinstance(value, dict):
        return []
    return [value] * (name in value) + [found for inner in value.values() for found in find(inner, name)]


# -- tables, quickly ---------------------------------------------------------------------------------------------------

QUEUE_TEXT = '{"brokerName":"b","queueId":3,"topic":"T"}'


def by_either(table: dict[Any, Any]) -> dict[Any, Any]:
    """A table with its keys as numbers or queues, whatever their form is."""
    try:
        return fastjson.int_keys(table)
    except ValueError:
        return dict(fastjson.object_keys(table))


@pytest.mark.parametrize(
    "text",
    [
        "{0:14,1:3}",
        "{-1:5}",
        "{" + QUEUE_TEXT + ":5}",
        "{" + QUEUE_TEXT + ':{"a":1},' + QUEUE_TEXT.replace("3", "4") + ':{"a":2}}',
        '{"' + QUEUE_TEXT.replace('"', '\\"') + '":5}',
        '{"0":5}',
        "{{'brokerName':'b','queueId':3,'topic':'T'}:5}",  # only the slow reader knows this form
        '{{"brokerName":"b\\"c","queueId":3,"topic":"T"}:5}',
    ],
)
def test_tables_are_the_same_when_they_are_read_quickly(text: str) -> None:
    assert by_either(fastjson.loads_tables(text.encode())) == by_either(fastjson.loads(text))


@pytest.mark.parametrize("word", [",5:", "{7:", "{" + QUEUE_TEXT.replace('"', '\\"') + ":", "a,-1:b,2:c", '\\",5:\\"'])
def test_what_looks_like_a_key_inside_a_text_stays(word: str) -> None:
    text = '{0:"' + word + '","name ' + word + '":{1:2}}'
    found, slow = fastjson.loads_tables(text.encode()), fastjson.loads(text)
    (text_found, table), (text_slow, _) = found.values(), slow.values()
    assert text_found == text_slow and by_either(table) == {1: 2}


def test_tables_that_are_no_json_are_an_error() -> None:
    with pytest.raises(FastjsonError):
        fastjson.loads_tables(b"{0:")
