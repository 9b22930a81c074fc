"""What changed between two pictures of a table, as a JSON merge patch: rows that are new or other, null for those gone.

    before  {"rows": {"a": {"n": 1}, "b": {"n": 2}}}
    after   {"rows": {"a": {"n": 3}}}
    patch   {"rows": {"a": {"n": 3}, "b": null}}

A picture is a JSON object without null: null in a patch means "gone", so it cannot be a value. Lists are values,
replaced as a whole. Keys are strings, also where the table counts by numbers (`{"0": 14}`).

Everything here is pure, and nothing is changed in place: a picture that was handed out stays as it is, so that another
thread may write it while the next patch is applied. Source: RFC 7396.
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
    """This is no picture, no patch, or cannot be made to fit; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> Patch:
    """The smallest patch with `merged(before, patch) == after`; {}: they are equal. PatchError: null in `after`."""
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
    """`picture` after `patch`; what the patch does not touch is shared with it."""
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
    """Patches of at most `max_bytes` each as JSON that do the same, applied one after the other, in the patch's order.

    PatchError: a single value is larger than that.
    """
    size = len(_encoded(patch))
    if size <= max_bytes:
        yield patch
        return
    part: Patch = {}
    used = 2  # the braces
    for key, value in patch.items():
        item_bytes = len(_encoded({key: value})) - 1  # one brace stands for the comma
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
        raise PatchError(f"no JSON: {error}") from error


def _same(old: Any, new: Any) -> bool:
    """Equal as JSON: to Python, 1 is True is 1.0."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(_same(left, right) for left, right in zip(old, new, strict=True))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in new)
    return type(old) is type(new) and bool(old == new)


def _checked(value: Any) -> Any:
    """`value` if it can stand in a picture. What is in lists is looked at too."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise PatchError(f"the key {key!r} is no text")
            _checked(inner)
    elif isinstance(value, list):
        for inner in value:
            _checked(inner)
    elif not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise PatchError(f"{value!r} cannot stand in a table")
    return value
