"""Reads and writes JSON in the dialect of the library fastjson, as RocketMQ does. It is not always valid JSON.

Java's RocketMQ writes its config files and the bodies of its requests with fastjson 1.2. It writes map keys that are
not strings as they are: `{0:"a"}` for numbers, and a whole object as the key for objects,
`{{"brokerName":"b","queueId":3,"topic":"T"}:5}`. Its reader accepts more than it writes: single quotes, names without
quotes, extra commas, comments.

`loads` tries a strict parser first (it is a hundred times faster, and most texts are strict), then the lenient one.
`dumps` writes fastjson's form, or on request its pretty form (the one of `config/*.json`), or strictly valid JSON that
fastjson's reader also understands: number keys in quotes, object keys as JSON inside a string.

Keys: a bare number becomes an `int`, an object a `JsonObjectKey`; a key in quotes stays a `str`. So a table can have
keys of either kind, depending on its writer: `int_keys` and `object_keys` convert both to one. `{"$ref":"$.path"}`,
fastjson's reference to a repeated object, is not resolved, and never written.

Source: what RocketMQ 4.8.0 with fastjson 1.2.69 printed; the golden stores and recorded frames hold samples.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import orjson

MAX_DEPTH = (
    100  # of nested objects and lists in what the lenient reader reads and the writer writes; RocketMQ's go to 8
)


LENIENT_REQUEST_BYTES = 64 << 10
"""Largest part of a request that can be in fastjson's dialect. The lenient reader takes 2 ms for each KiB. Clients
write strict JSON, except for a lone surrogate in the properties of a message, which have at most 32 KiB."""


class FastjsonError(ValueError):
    """The text is neither JSON nor fastjson's dialect. `offset`: where, in characters."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(f"{reason} at character {offset}")
        self.reason = reason
        self.offset = offset


class JsonObjectKey(Mapping[str, Any]):
    """A JSON object that is the key of another: an immutable, hashable mapping, equal to any with the same content.

    Objects in it become `JsonObjectKey`s and lists become tuples.
    """

    __slots__ = ("_fields", "_hash")

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields: dict[str, Hashable] = {name: _frozen(value) for name, value in fields.items()}
        self._hash = hash(frozenset(self._fields.items()))

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, JsonObjectKey):
            return self._fields == other._fields
        return NotImplemented

    def __repr__(self) -> str:
        return f"JsonObjectKey({self._fields!r})"


def loads_request(text: bytes) -> Any:
    """As `loads`, for what a stranger sends: a text of more than `LENIENT_REQUEST_BYTES` has to be strict."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if len(text) > LENIENT_REQUEST_BYTES:
            reason = f"more than {LENIENT_REQUEST_BYTES} bytes that are not strict JSON"
            raise FastjsonError(reason, error.pos) from None
    return loads(text)


def loads(text: bytes | bytearray | memoryview | str) -> Any:
    """The value of a JSON text, strict or fastjson's. FastjsonError: it is neither, or nests deeper than `MAX_DEPTH`.

    Bytes that are no UTF-8 become U+FFFD, as in Java. A key that occurs twice keeps its last value. Integers beyond
    64 bits, which Java has no place for, may come as floats.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _Reader(text if isinstance(text, str) else bytes(text).decode("utf-8", "replace")).document()


def loads_tables(text: bytes) -> Any:
    """As `loads`, and fast for tables whose keys are numbers or queues: in a dialect that `loads` reads slowly, their
    keys may come as texts. `int_keys` and `object_keys` read either."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    # A match inside a string ends that string early, so that the result is not JSON, and `loads` reads the text.
    quoted = _QUEUE_KEY.sub(lambda key: b'"' + key.group().replace(b'"', b'\\"') + b'"', text)
    try:
        return orjson.loads(_NUMBER_KEY.sub(rb'"\g<0>"', quoted))
    except orjson.JSONDecodeError:
        return loads(text)


_QUEUE_KEY = re.compile(
    rb'(?<=[{,])\{"brokerName":"[^"\\]*","queueId":-?[0-9]+,"topic":"[^"\\]*"\}(?=:)'
)  # with the fields in the order in which fastjson writes them
_NUMBER_KEY = re.compile(rb"(?<=[{,])-?[0-9]+(?=:)")


def dumps(
    value: Any, pretty: bool = False, *, standard: bool = False, sort_keys: bool = True, ascii_only: bool = False
) -> bytes:
    """The JSON text of `value`, in UTF-8: fastjson's form, its `pretty` one, or with `standard` strictly valid JSON.

    Entries of a mapping whose value is None are left out, the others sorted by name (numbers by value) unless
    `sort_keys` is off. Keys are str, int or `JsonObjectKey`; bytes are written as base64, NaN and infinities as null,
    sets as sorted lists. `pretty` breaks lists into lines, but not tuples (Java's arrays). `ascii_only` escapes all
    other characters.
    TypeError: a value or key that JSON has no form for. FastjsonError: nested deeper than `MAX_DEPTH`.
    """
    if sort_keys and not pretty and not ascii_only:
        try:
            quick = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | _NO_EXTRAS)
        except TypeError:
            pass  # a key that is no string, bytes, an int above 64 bits: the slow way knows, or raises its own error
        else:
            if b"null" not in quick:  # it may be an entry to leave out, or just a word in a string
                return quick
    return _Writer(pretty, standard, sort_keys, ascii_only).document(value)


def int_keys(table: Mapping[Any, Any]) -> dict[int, Any]:
    """`table` with every key as an int, bare or quoted as it came. ValueError: a key is no number."""
    return {key if isinstance(key, int) else int(str(key)): value for key, value in table.items()}


def object_keys(table: Mapping[Any, Any]) -> dict[JsonObjectKey, Any]:
    """`table` with every key as a `JsonObjectKey`, bare or in a string as it came. ValueError: a key is no object."""
    result: dict[JsonObjectKey, Any] = {}
    for key, value in table.items():
        if not isinstance(key, JsonObjectKey):
            fields = loads(key) if isinstance(key, str) else key
            if not isinstance(fields, dict):
                raise ValueError(f"the key {str(key)[:80]!r} is no JSON object")
            key = JsonObjectKey(fields)
        result[key] = value
    return result


_NO_EXTRAS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_ROW_TYPES = frozenset((str, int, bool))


def _frozen(value: Any) -> Hashable:
    if isinstance(value, JsonObjectKey):
        return value
    if isinstance(value, Mapping):
        return JsonObjectKey(value)
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return value  # type: ignore[no-any-return]  # what JSON has besides these is hashable


# --- reading ---

_GAP = re.compile(r"(?:[\s\ufeff\x00]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_GAP_COMMAS = re.compile(r"(?:[\s\ufeff\x00,]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_ESCAPED = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPED |= {str(digit): chr(digit) for digit in range(8)}
_NUMBER = re.compile(r"[+-]?(?:([0-9]+)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?[LSBFDlsbfd]?(?![\w.])")
_NAME = re.compile(r"[^\W\d][\w$.-]*|\$[\w$.-]*")
_WORDS = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DIGITS = 400  # no number of ours has more, and Python's int() takes time that grows with their square


class _Reader:
    """A recursive descent over one text; `pos` is the next character to look at."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0

    def document(self) -> Any:
        self._skip(_GAP)
        value = self._value(0)
        self._skip(_GAP)
        if self.pos < len(self.text):
            raise FastjsonError("text after the end of the document", self.pos)
        return value

    def _skip(self, gap: re.Pattern[str]) -> str:
        """Passes what means nothing; returns the character after it, "" at the end."""
        match = gap.match(self.text, self.pos)
        self.pos = match.end() if match else self.pos
        return self.text[self.pos : self.pos + 1]

    def _value(self, depth: int) -> Any:
        start = self.text[self.pos : self.pos + 1]
        if start == "{":
            return self._object(depth + 1)
        if start == "[":
            return self._list(depth + 1)
        if start in ('"', "'"):
            return self._string(start)
        if number := _NUMBER.match(self.text, self.pos):
            return self._number(number)
        if (name := _NAME.match(self.text, self.pos)) and name.group() in _WORDS:
            self.pos = name.end()
            return _WORDS[name.group()]
        raise FastjsonError("no value" if start else "the text ends where a value is due", self.pos)

    def _object(self, depth: int) -> dict[Any, Any]:
        self._enter(depth)
        result: dict[Any, Any] = {}
        while (start := self._skip(_GAP_COMMAS)) != "}":
            key = self._key(start, depth)
            if self._skip(_GAP) != ":":
                raise FastjsonError("no colon after a name", self.pos)
            self.pos += 1
            self._skip(_GAP)
            result[key] = self._value(depth)
            self._separated("}")
        self.pos += 1
        return result

    def _list(self, depth: int) -> list[Any]:
        self._enter(depth)
        result: list[Any] = []
        while self._skip(_GAP_COMMAS) != "]":
            result.append(self._value(depth))
            self._separated("]")
        self.pos += 1
        return result

    def _enter(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise FastjsonError(f"nested deeper than {MAX_DEPTH}", self.pos)
        self.pos += 1

    def _separated(self, end: str) -> None:
        if self._skip(_GAP) not in (",", end):
            raise FastjsonError(f"no comma or {end!r} after a value", self.pos)

    def _key(self, start: str, depth: int) -> str | int | JsonObjectKey:
        if start in ('"', "'"):
            return self._string(start)
        if start == "{":
            return JsonObjectKey(self._object(depth + 1))
        if number := _NUMBER.match(self.text, self.pos):
            value = self._number(number)
            return value if isinstance(value, int) else number.group()
        if name := _NAME.match(self.text, self.pos):
            self.pos = name.end()
            return name.group()
        raise FastjsonError("no name" if start else "the text ends where a name is due", self.pos)

    def _number(self, match: re.Match[str]) -> int | float:
        if match.end() - match.start() > _MAX_DIGITS:
            raise FastjsonError("a number too long", self.pos)
        self.pos = match.end()
        digits = match.group().rstrip("LSBFDlsbfd")
        return int(digits) if match.group(2) is None and match.group(3) is None and match.group(1) else float(digits)

    def _string(self, quote: str) -> str:
        text, plain = self.text, _PLAIN[quote]
        begin = self.pos
        parts: list[str] = []
        self.pos += 1
        while True:
            run = plain.match(text, self.pos)
            assert run is not None, "an empty run matches too"
            parts.append(run.group())
            self.pos = run.end()
            if text.startswith(quote, self.pos):
                self.pos += 1
                break
            escape = _ESCAPE.match(text, self.pos)
            if escape is None:
                raise FastjsonError("a string without an end", begin)
            code = escape.group(1) or escape.group(2)
            if code is None and escape.group(3) not in _ESCAPED:
                raise FastjsonError(f"no such escape: {escape.group()!r}", self.pos)
            parts.append(chr(int(code, 16)) if code else _ESCAPED[escape.group(3)])
            self.pos = escape.end()
        result = "".join(parts)
        if _SURROGATE.search(result):  # \ud83d\ude00 is one character; half a pair is not valid
            result = result.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return result


# --- writing ---


class _Writer:
    """Builds one text in `parts`. `indent` counts the tabs of a line in the pretty form."""

    def __init__(self, pretty: bool, standard: bool, sort_keys: bool, ascii_only: bool) -> None:
        self.pretty = pretty
        self.standard = standard
        self.sort_keys = sort_keys
        self.ascii_only = ascii_only
        self.parts: list[str] = []
        self.indent = 0

    def document(self, value: Any) -> bytes:
        self._value(value, 0)
        return "".join(self.parts).encode()

    def _value(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise FastjsonError(f"nested deeper than {MAX_DEPTH}", sum(map(len, self.parts)))
        if isinstance(value, str):
            self.parts.append(self._string(value))
        elif isinstance(value, bool):
            self.parts.append("true" if value else "false")
        elif isinstance(value, int):
            self.parts.append(str(int(value)))
        elif value is None or isinstance(value, float):
            self.parts.append(orjson.dumps(value).decode())
        elif isinstance(value, Mapping):
            self._mapping(value, depth)
        elif isinstance(value, bytes):
            self.parts.append(f'"{base64.b64encode(value).decode()}"')
        elif isinstance(value, set | frozenset):
            self._items(sorted(value), depth, broken=False)
        elif isinstance(value, list | tuple):
            self._items(value, depth, broken=self.pretty and isinstance(value, list))
        else:
            raise TypeError(f"JSON has no form for {type(value).__name__}")

    def _mapping(self, table: Mapping[Any, Any], depth: int) -> None:
        if self.pretty and depth < MAX_DEPTH and (row := self._row(table)) is not None:
            self.parts.append(row)
            return
        entries: Iterable[tuple[Any, Any]] = ((key, value) for key, value in table.items() if value is not None)
        if self.sort_keys:
            entries = sorted(entries, key=_key_order)
        self.parts.append("{")
        self.indent += 1
        comma = False
        for key, value in entries:
            if comma:
                self.parts.append(",")
            comma = True
            self._key(key, depth)
            self.parts.append(":")
            self._value(value, depth + 1)
        self.indent -= 1
        if comma and self.pretty:
            self._line()
        self.parts.append("}")

    def _row(self, table: Mapping[Any, Any]) -> str | None:
        """The pretty form of a plain row of a table, ten times faster; None: it may have another form than this.

        A table of 100 000 topics is written as a whole whenever a topic changes.
        """
        if not self.sort_keys or self.ascii_only or not table or not _ROW_TYPES.issuperset(map(type, table.values())):
            return None
        try:
            text = orjson.dumps(table, option=orjson.OPT_SORT_KEYS | _NO_EXTRAS).decode()
        except TypeError:
            return None
        # A quote within a string has a backslash before it; a comma before the end of a string looks like a separator.
        if "\\" in text or text.count(',"') != len(table) - 1:
            return None
        line = "\n" + "\t" * self.indent
        return "{" + line + "\t" + text[1:-1].replace(',"', f',{line}\t"') + line + "}"

    def _key(self, key: Any, depth: int) -> None:
        if isinstance(key, str):
            if self.pretty:
                self._line()  # fastjson breaks the line before a name, but not before a bare key
            self.parts.append(self._string(key))
        elif isinstance(key, int) and not isinstance(key, bool):
            self.parts.append(f'"{int(key)}"' if self.standard else str(int(key)))
        elif isinstance(key, JsonObjectKey):
            if self.standard:
                self.parts.append(self._string(dumps(key, standard=True).decode()))
            else:
                self._value(key, depth + 1)
        else:
            raise TypeError(f"JSON has no form for a key of type {type(key).__name__}")

    def _items(self, items: Iterable[Any], depth: int, *, broken: bool) -> None:
        self.parts.append("[")
        self.indent += 1
        comma = False
        for item in items:
            if comma:
                self.parts.append(",")
            comma = True
            if broken:
                self._line()
            self._value(item, depth + 1)
        self.indent -= 1
        if comma and broken:
            self._line()
        self.parts.append("]")

    def _line(self) -> None:
        self.parts.append("\n" + "\t" * self.indent)

    def _string(self, text: str) -> str:
        if not self.ascii_only:
            try:
                return orjson.dumps(str(text)).decode()
            except TypeError:
                pass  # half a surrogate pair, which UTF-8 cannot carry: escaped below
        return json.dumps(text)


def _key_order(entry: tuple[Any, Any]) -> tuple[int, int, str]:
    """Numbers first, by value; then names; then objects, by their text."""
    key = entry[0]
    if isinstance(key, int):
        return (0, key, "")
    if isinstance(key, str):
        return (1, 0, key)
    return (2, 0, dumps(key).decode())
