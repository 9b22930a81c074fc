"""The difference between two states of a table, as a JSON merge patch: new or changed rows, and null for removed ones.

    before  {"rows": {"a": {"n": 1}, "b": {"n": 2}}}
    after   {"rows": {"a": {"n": 3}}}
    patch   {"rows": {"a": {"n": 3}, "b": null}}

A picture is a JSON object without null: in a patch null means "removed", so it cannot be a value. Lists are values and
are replaced as a whole. Keys are strings, also where the table uses numbers (`{"0": 14}`).

Everything here is pure, and nothing is changed in place: a picture that was returned never changes, so another thread
can write it to a file while the next patch is applied. Source: RFC 7396.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

Picture = dict[str, Any]
Patch = dict[str, Any]

_MISSING: Any = object()


class PatchError(ValueError):
    """The value is not a valid picture or patch, or cannot be split as requested; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> Patch:
    """The smallest patch with `merged(before, patch) == after`; {} if they are equal. PatchError: null in `after`."""
    patch: Patch = {}
    for key, value in after.items():
        old = before.get(key, _MISSING)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            inner = diff(old, value)
            if inner:
                patch[key] = inner
        elif not _same(old, value):
            patch[key] = _checked(value)
    for key in before:
        if key not in after:
            patch[key] = None
    return patch


def merged(picture: Mapping[str, Any], patch: Mapping[str, Any]) -> Picture:
    """`picture` after `patch`; the result shares what the patch does not change."""
    result = dict(picture)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            old = result.get(key)
            result[key] = merged(old if isinstance(old, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def split(patch: Patch, max_bytes: int) -> Iterator[Patch]:
    """Splits a patch into patches of at most `max_bytes` each as JSON, which have the same effect when applied in
    order.

    Raises PatchError if a single value is larger than that.
    """
    size = len(_encoded(patch))
    if size <= max_bytes:
        yield patch
        return
    part: Patch = {}
    used = 2  # the braces
    for key, value in patch.items():
        item_bytes = len(_encoded({key: value})) - 1  # one brace counts for the comma
        if used + item_bytes > max_bytes and part:
            yield part
            part, used = {}, 2
        if used + item_bytes <= max_bytes:
            part[key] = value
            used += item_bytes
        elif isinstance(value, dict) and value:
            room = max_bytes - len(_encoded({key: {}})) + 2
            if room < 2:
                raise PatchError(f"the key {key[:80]!r} does not fit into {max_bytes} bytes")
            for piece in split(value, room):
                yield {key: piece}
        else:
            raise PatchError(f"the value of {key[:80]!r} does not fit into {max_bytes} bytes")
    if part:
        yield part


def _encoded(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError) as error:
        raise PatchError(f"not JSON: {error}") from error


def _same(old: Any, new: Any) -> bool:
    """Whether both are equal as JSON: for Python, 1 is True is 1.0."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(_same(left, right) for left, right in zip(old, new, strict=True))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in new)
    return type(old) is type(new) and bool(old == new)


def _checked(value: Any) -> Any:
    """`value` if it is allowed in a picture. Values in lists are checked too."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise PatchError(f"the key {key!r} is not a string")
            _checked(inner)
    elif isinstance(value, list):
        for inner in value:
            _checked(inner)
    elif not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise PatchError(f"{value!r} is not allowed in a table")
    return value
